"""Broadcasting of tensors over a leading axis of examples."""

from __future__ import annotations

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim
from staticgrad.ops.movement.views import broadcasted, reshaped


def with_example_axis(x: Tensor, found: Tensor | None, n: Dim) -> Tensor:
    """Return `found`, or `x` repeated along a leading axis of n where it is None."""
    if found is not None:
        return found
    return broadcasted(reshaped(x, (1, *x.shape)), (n, *x.shape))
