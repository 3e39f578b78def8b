"""Lookup of ops by name, for rules of modules that cannot import each other.

The derivative of a sum is a broadcast and that of a broadcast is a sum: gradient rules
refer to each other in cycles, modules must not. A rule therefore looks its op up in the
table when it runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import OPS


def called_by(name: str, result: Tensor) -> Tensor:
    """Return `result`; errors of its node name the public function `name`."""
    node = result.node
    if not name or node.source is None:
        return result
    same = Node(
        node.op, node.inputs, node.attrs, node.types,
        scope=node.scope, source=replace(node.source, call=name),
    )  # fmt: skip
    return same.outputs[result.index]


def named(name: str, *inputs: Tensor, **attrs: Any) -> Tensor:
    """Apply the op called `name` to `inputs`."""
    return apply(OPS[name], *inputs, **attrs)
