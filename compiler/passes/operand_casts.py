"""Operand casts: casts from 16 bits ahead of a product, kernels of their own."""

from __future__ import annotations

from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Node, seen_through
from staticgrad.ir.op import Elementwise
from staticgrad.ir.types import is_half


def operand_casts(graph: Graph) -> frozenset[Node]:
    """Return the casts from 16 bits whose results only products read."""
    wide = {node for node in graph.nodes if _is_widening(node)}
    if not wide:
        return frozenset()
    others = {t.node for t in graph.roots}
    for node in graph.nodes:
        kind = node.op.code.kind
        if not kind.is_view and (kind.fused or not kind.accumulates):
            others.update(seen_through(t).node for t in node.inputs)
    return frozenset(wide - others)


def _is_widening(node: Node) -> bool:
    if not isinstance(node.op.code, Elementwise) or len(node.inputs) != 1:
        return False
    return is_half(node.inputs[0].dtype) and not is_half(node.types[0].dtype)
