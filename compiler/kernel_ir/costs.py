"""Cost of values in additions, and the limit up to which they are recomputed."""

from __future__ import annotations

from staticgrad.ir.node import Node
from staticgrad.ir.op import Elementwise, Random

# of a matrix product, which does about 100 GF/s where an addition takes 0.15 ns
FLOPS_PER_ADDITION = 15
CHEAP = 8  # additions up to which a value is computed again rather than kept


def cost_of(node: Node) -> int:
    """Return the work per element, in additions."""
    code = node.op.code
    return code.cost if isinstance(code, Elementwise | Random) else 2
