"""Reductions that ignore NaN.

Nothing flows to an element that is NaN. Where all are NaN, nansum is 0, nanprod 1, and
the others are NaN; nanargmax and nanargmin are then 0, where NumPy raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from staticgrad.ir.node import Tensor
from staticgrad.ir.types import is_float
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.choice import where as choose
from staticgrad.ops.elementwise.compare import isnan
from staticgrad.ops.elementwise.logic import as_bool
from staticgrad.ops.promotion import ArrayLike, as_tensor, widened
from staticgrad.ops.reductions.reduce import (
    Axis,
    Where,
    all,
    mask_of,
    max,
    min,
    prod,
    sum,
)
from staticgrad.ops.reductions.scans import filled
from staticgrad.ops.reductions.statistics import (
    argmax,
    argmin,
    as_float,
    corrected,
    mean,
    root,
    var,
)
from staticgrad.ops.twins import twin_of


@twin_of(sum)
def nansum(a: ArrayLike, *args: Any, **options: Any) -> Tensor:
    """The sum of what is not NaN.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nansum([1.0, float("nan")]), target="reference")())
    1.0
    """
    return sum(filled(a, 0), *args, **options)


@twin_of(prod)
def nanprod(a: ArrayLike, *args: Any, **options: Any) -> Tensor:
    """The product of what is not NaN.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanprod([2.0, float("nan")]), target="reference")())
    2.0
    """
    return prod(filled(a, 1), *args, **options)


@twin_of(max)
def nanmax(a: ArrayLike, *args: Any, **options: Any) -> Tensor:
    """The maximum of what is not NaN; NaN of NaN alone, unless there is an `initial`.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanmax([1.0, float("nan")]), target="reference")())
    1.0
    """
    return _extreme(max, -float("inf"), a, *args, **options)


@twin_of(min)
def nanmin(a: ArrayLike, *args: Any, **options: Any) -> Tensor:
    """The minimum of what is not NaN; NaN of NaN alone, unless there is an `initial`.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanmin([1.0, float("nan")]), target="reference")())
    1.0
    """
    return _extreme(min, float("inf"), a, *args, **options)


def _extreme(
    extreme: Callable[..., Tensor], fill: float, a: ArrayLike, axis: Axis = None,
    keepdims: bool = False, initial: ArrayLike | None = None, where: Where = None,
) -> Tensor:  # fmt: skip
    """Reduce with `fill` for NaN; NaN where nothing else is left."""
    x = as_tensor(a)
    found = extreme(filled(x, fill), axis, keepdims, initial, where)
    if initial is not None or where is not None or not is_float(x.dtype):
        return found
    return choose(all(isnan(x), axis, keepdims), float("nan"), found)


def nanargmax(a: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the index of the first maximum that is not NaN.

    >>> import staticgrad as sg
    >>> int(sg.compile(sg.nanargmax([1.0, float("nan"), 3.0]), target="reference")())
    2
    """
    return argmax(filled(a, -float("inf")), axis, keepdims)


def nanargmin(a: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the index of the first minimum that is not NaN.

    >>> import staticgrad as sg
    >>> int(sg.compile(sg.nanargmin([1.0, float("nan"), 3.0]), target="reference")())
    0
    """
    return argmin(filled(a, float("inf")), axis, keepdims)


@widened
def nanmean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    keepdims: bool = False,
    where: Where = None,
) -> Tensor:
    """Return the mean, ignoring NaN.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanmean([1.0, float("nan")]), target="reference")())
    1.0
    """
    x = as_float("nanmean", a, dtype)
    return mean(x, axis, keepdims=keepdims, where=_known("nanmean", x, where))


def _known(name: str, x: Tensor, mask: Where) -> Tensor:
    """Return the mask of elements that are not NaN and not left out by ``where=``."""
    known = as_bool(x == x)
    return known if mask is None else known & mask_of(name, x, mask)


@widened
def nanvar(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Where = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Tensor:
    """Return the variance, ignoring NaN; NaN where no more than `ddof` are left.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanvar([1.0, 3.0, float("nan")]), target="reference")())
    1.0
    """
    whole = not is_float(as_tensor(a).dtype)  # as in NumPy, then nothing is NaN
    if whole:
        return var(a, axis, dtype, ddof, keepdims, where, mean, correction)
    x = as_float("nanvar", a, dtype)
    known = _known("nanvar", x, where)
    lost = corrected("nanvar", ddof, correction)
    left = sum(cast(known, x.dtype), axis, keepdims=keepdims) - lost
    found = var(x, axis, None, lost, keepdims, known, mean)
    return choose(left > 0, found, float("nan"))


@widened
def nanstd(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Where = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Tensor:
    """Return the standard deviation, ignoring NaN: the root of `nanvar`.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.nanstd([1.0, 3.0, float("nan")]), target="reference")())
    1.0
    """
    return root(nanvar(a, axis, dtype, ddof, keepdims, where, mean, correction))


__all__ = [
    "nanargmax", "nanargmin", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd",
    "nansum", "nanvar",
]  # fmt: skip
