"""Ops by name, for rules that need an op of a module that needs theirs.

The derivative of a sum is a broadcast and that of a broadcast is a sum: gradient rules
refer to each other in cycles, modules must not. A rule therefore looks its op up in the
table when it runs.
"""

from __future__ import annotations

from typing import Any

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import OPS


def named(name: str, *inputs: Tensor, **attrs: Any) -> Tensor:
    """The output of the op called `name` on `inputs`."""
    return apply(OPS[name], *inputs, **attrs)
