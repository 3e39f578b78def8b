"""``by_mode(a, b) = a`` in train mode, ``by_mode(a, b) = b`` in eval mode."""

from __future__ import annotations

from typing import Literal

from staticgrad.compiler.passes.match import by_rule
from staticgrad.ir.graph import Graph, rewrite
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Mode


def resolve_mode(graph: Graph, mode: Literal["train", "eval"]) -> Graph:
    """Resolve ``by_mode(a, b) = a`` in train mode and ``= b`` in eval mode."""
    side = 0 if mode == "train" else 1

    def rule(node: Node) -> Tensor | None:
        return node.inputs[side] if isinstance(node.op.code, Mode) else None

    return rewrite(graph, by_rule(rule))
