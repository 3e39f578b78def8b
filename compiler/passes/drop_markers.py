"""Removal of markers of differentiation.

``stop_gradient(x), copy(x), custom(x, *ys) = x``, ``gate(*xs), checkpoint(*xs,
*ys) = xs``, ``reduce_max(x, nonempty) = reduce_max(x)``, which a softmax may share.

"""

from __future__ import annotations

from staticgrad.ir.graph import Graph, apply, rewrite
from staticgrad.ir.node import Node, Tensor

MARKERS = frozenset(("stop_gradient", "copy", "custom", "gate", "checkpoint"))


def drop_markers(graph: Graph) -> Graph:
    """Drop ``stop_gradient(x) = x``, ``copy(x) = x``, ``custom(y, *xs) = y``."""
    return rewrite(graph, _inputs)


def _inputs(node: Node, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    if node.op.name in MARKERS:
        return inputs[: len(node.outputs)]
    if "nonempty" not in node.attrs:
        return None
    attrs = {name: node.attrs[name] for name in node.attrs if name != "nonempty"}
    return (apply(node.op, *inputs, **attrs),)
