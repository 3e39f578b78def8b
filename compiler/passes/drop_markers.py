"""``stop_gradient(x) = x`` and ``copy(x) = x``: what only differentiation looks at.

Runs after differentiation, never before it.
"""

from __future__ import annotations

from staticgrad.compiler.passes.match import by_table
from staticgrad.ir.graph import Graph, rewrite
from staticgrad.ir.node import Node, Tensor


def drop_markers(graph: Graph) -> Graph:
    """``stop_gradient(x) = x``, ``copy(x) = x``."""
    return rewrite(graph, by_table({"stop_gradient": _input, "copy": _input}))


def _input(node: Node) -> Tensor:
    return node.inputs[0]
