"""What a value costs, in additions, and up to where it is rather computed again."""

from __future__ import annotations

from staticgrad.ir.node import Node
from staticgrad.ir.op import Elementwise, Random

CHEAP = 8  # additions up to which a value is computed again rather than kept


def cost_of(node: Node) -> int:
    """Work per element, in additions."""
    code = node.op.code
    return code.cost if isinstance(code, Elementwise | Random) else 2
