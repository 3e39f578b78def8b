"""Reductions that leave out NaN.

Nothing flows to an element that is NaN. Where all are NaN, nansum is 0, nanprod 1, and
the others are NaN; nanargmax and nanargmin are then 0, where NumPy raises an error.
"""

from __future__ import annotations

import numpy.typing as npt

from staticgrad.ir.node import Tensor
from staticgrad.ir.types import FLOAT64, is_float
from staticgrad.ops.casting import cast
from staticgrad.ops.choice import where
from staticgrad.ops.compare import isnan
from staticgrad.ops.leaves import dtype_of
from staticgrad.ops.promote import ArrayLike, as_tensor, widened
from staticgrad.ops.reduce import Axis, all, max, min, prod, sum
from staticgrad.ops.statistics import argmax, argmin, root


def _filled(x: Tensor, value: float) -> Tensor:
    return where(isnan(x), value, x) if is_float(x.dtype) else x


def nansum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    keepdims: bool = False,
) -> Tensor:
    """The sum of what is not NaN.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nansum([1.0, float("nan")]), target="reference")())
    1.0
    """
    return sum(_filled(as_tensor(a), 0), axis, dtype, keepdims)


def nanprod(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    keepdims: bool = False,
) -> Tensor:
    """The product of what is not NaN.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanprod([2.0, float("nan")]), target="reference")())
    2.0
    """
    return prod(_filled(as_tensor(a), 1), axis, dtype, keepdims)


def nanmax(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The maximum of what is not NaN; NaN of NaN alone.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanmax([1.0, float("nan")]), target="reference")())
    1.0
    """
    x = as_tensor(a)
    if not is_float(x.dtype):
        return max(x, axis, keepdims)
    found = max(_filled(x, -float("inf")), axis, keepdims)
    return where(all(isnan(x), axis, keepdims), float("nan"), found)


def nanmin(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The minimum of what is not NaN; NaN of NaN alone.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanmin([1.0, float("nan")]), target="reference")())
    1.0
    """
    x = as_tensor(a)
    if not is_float(x.dtype):
        return min(x, axis, keepdims)
    found = min(_filled(x, float("inf")), axis, keepdims)
    return where(all(isnan(x), axis, keepdims), float("nan"), found)


def nanargmax(a: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first maximum that is not NaN.

    >>> import staticgrad as sg
    >>> int(sg.compile(sg.nanargmax([1.0, float("nan"), 3.0]), target="reference")())
    2
    """
    return argmax(_filled(as_tensor(a), -float("inf")), axis, keepdims)


def nanargmin(a: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first minimum that is not NaN.

    >>> import staticgrad as sg
    >>> int(sg.compile(sg.nanargmin([1.0, float("nan"), 3.0]), target="reference")())
    0
    """
    return argmin(_filled(as_tensor(a), float("inf")), axis, keepdims)


@widened
def nanmean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    keepdims: bool = False,
) -> Tensor:
    """The mean of what is not NaN.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanmean([1.0, float("nan")]), target="reference")())
    1.0
    """
    x = _typed("nanmean", a, dtype)
    return sum(_filled(x, 0), axis, keepdims=keepdims) / _count(x, axis, keepdims)


@widened
def nanvar(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    ddof: int = 0,
    keepdims: bool = False,
) -> Tensor:
    """The variance of what is not NaN; NaN where no more than `ddof` are left.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanvar([1.0, 3.0, float("nan")]), target="reference")())
    1.0
    """
    x = _typed("nanvar", a, dtype)
    away = _filled(x - nanmean(x, axis, keepdims=True), 0)
    left = _count(x, axis, keepdims) - ddof
    total = sum(away * away, axis, keepdims=keepdims)
    return where(left > 0, total / where(left > 0, left, 1), float("nan"))


@widened
def nanstd(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    ddof: int = 0,
    keepdims: bool = False,
) -> Tensor:
    """The standard deviation of what is not NaN: the root of `nanvar`.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanstd([1.0, 3.0, float("nan")]), target="reference")())
    1.0
    """
    return root(nanvar(a, axis, dtype, ddof, keepdims))


def _typed(name: str, a: ArrayLike, dtype: npt.DTypeLike | None) -> Tensor:
    x = as_tensor(a)
    if dtype is not None:
        return cast(x, dtype_of(name, dtype))
    return x if is_float(x.dtype) else cast(x, FLOAT64)


def _count(x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    """How many are not NaN, as a number of the dtype of `x`."""
    known = cast(x == x, x.dtype)
    return sum(known, axis, keepdims=keepdims)
