"""``stop_gradient(x), copy(x), custom(x, *ys) = x``, ``gate(*xs), checkpoint(*xs, *ys)
= xs``.

Markers: only differentiation looks at them.

Runs after differentiation, never before it.
"""

from __future__ import annotations

from staticgrad.ir.graph import Graph, rewrite
from staticgrad.ir.node import Node, Tensor

MARKERS = frozenset(("stop_gradient", "copy", "custom", "gate", "checkpoint"))


def drop_markers(graph: Graph) -> Graph:
    """``stop_gradient(x) = x``, ``copy(x) = x``, ``custom(y, *xs) = y``."""
    return rewrite(graph, _inputs)


def _inputs(node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    if node.op.name not in MARKERS:
        return None
    return inputs[: len(node.outputs)]
