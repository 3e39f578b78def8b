"""Exclusive products along an axis: the derivative of a product."""

from __future__ import annotations

import builtins

from staticgrad.ir.node import Tensor
from staticgrad.ir.types import INT64
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.choice import where
from staticgrad.ops.named import named


def others(x: Tensor, axis: int) -> Tensor:
    """Multiply all other elements along `axis`: a prefix times a suffix product.

    Both are exclusive running products by doubling, log2(n) products each.
    """
    before, after = _shifted(x, axis, 1), _shifted(x, axis, -1)
    length, step = x.shape[axis], 1
    assert isinstance(length, int)
    while step < length:
        before = before * _shifted(before, axis, step)
        after = after * _shifted(after, axis, -step)
        step *= 2
    return before * after


def _shifted(x: Tensor, axis: int, by: int) -> Tensor:
    """Return `x` moved by `by` elements along `axis`, ones moved in."""
    length = x.shape[axis]
    assert isinstance(length, int)
    by = builtins.max(-length, builtins.min(by, length))
    starts, sizes = [0] * x.ndim, list(x.shape)
    starts[axis], sizes[axis] = builtins.max(-by, 0), length - builtins.abs(by)
    low, high = [0] * x.ndim, [0] * x.ndim
    low[axis], high[axis] = builtins.max(by, 0), builtins.max(-by, 0)
    part = named(
        "slice", x, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * x.ndim
    )
    ends = {"low": tuple(low), "high": tuple(high), "interior": (0,) * x.ndim}
    return named("pad", part, value=1, **ends)


def others_by_counting(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Multiply all other elements, by counting zeros."""
    zero = x == 0
    zeros = _along("reduce_sum", cast(zero, INT64), axes)
    factors = where(zero, 1, x)
    product = _along("reduce_prod", factors, axes)
    at_zero = where(zeros == 1, product, 0)
    return where(zero, at_zero, where(zeros == 0, product / factors, 0))


def _along(name: str, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the reduction called `name` over `axes`, which stay as size 1."""
    shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    return named("reshape", named(name, x, axes=axes), shape=shape)
