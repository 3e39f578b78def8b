"""``stop_gradient(x) = x``, ``copy(x) = x``, ``custom(y, *xs) = y``: markers.

Only differentiation looks at them.

Runs after differentiation, never before it.
"""

from __future__ import annotations

from staticgrad.compiler.passes.match import by_table
from staticgrad.ir.graph import Graph, rewrite
from staticgrad.ir.node import Node, Tensor


def drop_markers(graph: Graph) -> Graph:
    """``stop_gradient(x) = x``, ``copy(x) = x``, ``custom(y, *xs) = y``."""
    names = ("stop_gradient", "copy", "custom")
    return rewrite(graph, by_table(dict.fromkeys(names, _input)))


def _input(node: Node) -> Tensor:
    return node.inputs[0]
