"""Evenly spaced numbers: linspace, logspace, geomspace."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from staticgrad.ir.graph import default_dtype
from staticgrad.ir.node import Constant, Tensor
from staticgrad.ir.size import Size
from staticgrad.ir.types import DType, is_float
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.arithmetic import absolute, sign
from staticgrad.ops.elementwise.choice import maximum
from staticgrad.ops.elementwise.exponentials import log10
from staticgrad.ops.elementwise.powers import power
from staticgrad.ops.leaves import dtype_of, frozen
from staticgrad.ops.movement.joining import concatenate
from staticgrad.ops.movement.reshaping import broadcast_arrays, expand_dims, moveaxis
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor, floats
from staticgrad.ops.rules import shape_error, size_is_data


@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int | Size = 50,
    endpoint: bool = True,
    retstep: Literal[False] = False,
    dtype: npt.DTypeLike | None = None,
    axis: int = 0,
) -> Tensor: ...
@overload
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int | Size = 50,
    endpoint: bool = True,
    *,
    retstep: Literal[True],
    dtype: npt.DTypeLike | None = None,
    axis: int = 0,
) -> tuple[Tensor, Tensor]: ...
def linspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int | Size = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: npt.DTypeLike | None = None,
    axis: int = 0,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return `num` numbers from `start` to `stop`, which is the last one if `endpoint`.

    The dtype is the Graph's (float32), or that of the arguments if these are arrays or
    Tensors. The numbers of array arguments lie along a new `axis`. With `retstep` the
    distance of neighbours is returned, too.

    >>> import staticgrad as sg
    >>> sg.compile(sg.linspace(0, 1, 5), target="reference")()
    array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    if isinstance(num, Tensor):
        raise size_is_data("linspace", num)
    first, last = floats(start, stop)
    found = _dtype("linspace", first, last, dtype)
    if not isinstance(num, Size) and num < 0:
        raise shape_error("linspace", (), f"a number num >= 0, got {num}")
    ends = _known(first, last)
    if ends and not isinstance(num, Size):
        low, high = ends
        values, step = np.linspace(low, high, num, endpoint, retstep=True, axis=axis)
        result: Tensor = frozen(values.astype(found))
        return (result, frozen(np.asarray(step, found))) if retstep else result
    result = moveaxis(_between(first, last, num, endpoint), 0, axis)
    result = cast(result, found)
    if not retstep:
        return result
    return result, (last - first) / _steps(num, endpoint)


def _steps(num: int | Size, endpoint: bool) -> int | Tensor:
    """Return the number of steps between `num` numbers, at least 1."""
    count = num - endpoint
    return maximum(as_tensor(count), 1) if isinstance(count, Size) else max(count, 1)


def _between(first: Tensor, last: Tensor, num: int | Size, endpoint: bool) -> Tensor:
    """Interpolate along the first axis, by the distance from both ends."""
    if isinstance(num, Size):
        place = named("position", shape=(num,), axis=0, dtype=first.dtype)
        part = place / cast(as_tensor(_steps(num, endpoint)), first.dtype)
    else:
        part = frozen(np.linspace(0, 1, num, endpoint, dtype=first.dtype))
    column = named("reshape", part, shape=(num,) + (1,) * (first - last).ndim)
    return first * (1 - column) + last * column


def _known(*ends: Tensor) -> list[npt.NDArray[Any]]:
    """Return the values of both ends if they are constants, otherwise none."""
    values = [end.value for end in ends if isinstance(end, Constant)]
    return values if len(values) == len(ends) else []


def _dtype(
    name: str, first: Tensor, last: Tensor, dtype: npt.DTypeLike | None
) -> DType:
    if dtype is not None:
        return dtype_of(name, dtype)
    weak = first.type.weak and last.type.weak
    return default_dtype() if weak else first.dtype


def logspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int | Size = 50,
    endpoint: bool = True,
    base: ArrayLike = 10.0,
    dtype: npt.DTypeLike | None = None,
    axis: int = 0,
) -> Tensor:
    """Return `num` numbers whose logarithms to `base` are evenly spaced.

    >>> import staticgrad as sg
    >>> sg.compile(sg.logspace(0.0, 2.0, 3), target="reference")()
    array([  1.,  10., 100.], dtype=float32)
    """
    wide = as_tensor(base)
    if not wide.ndim:
        exponents = linspace(start, stop, num, endpoint)
    else:
        first, last, wide = broadcast_arrays(*floats(start, stop, wide))
        exponents = _between(first, last, num, endpoint)
        base = expand_dims(wide, 0)
    result = moveaxis(power(base, exponents), 0, axis)
    return result if dtype is None else cast(result, dtype_of("logspace", dtype))


def geomspace(
    start: ArrayLike,
    stop: ArrayLike,
    num: int | Size = 50,
    endpoint: bool = True,
    dtype: npt.DTypeLike | None = None,
    axis: int = 0,
) -> Tensor:
    """Return `num` numbers from `start` to `stop` in geometric progression.

    Both have one sign; NaN where they differ. ShapeError where a known end is 0. If
    `num` is symbolic the ends are rounded like the numbers between them.

    >>> import staticgrad as sg
    >>> sg.compile(sg.geomspace(1.0, 1000.0, 4), target="reference")()
    array([   1.,   10.,  100., 1000.], dtype=float32)
    """
    first, last = floats(start, stop)
    for end in (first, last):
        if isinstance(end, Constant) and not np.all(end.value):
            raise shape_error("geomspace", (), "ends that are not 0")
    found = _dtype("geomspace", first, last, dtype)
    ends = _known(first, last)
    if ends and not isinstance(num, Size):
        with np.errstate(all="ignore"):
            known = np.geomspace(ends[0], ends[1], num, endpoint, axis=axis)
        return frozen(known.astype(found))
    turned = sign(first)
    ratio = log10(last * turned)
    inside = power(10.0, _between(log10(absolute(first)), ratio, num, endpoint))
    result = inside * turned
    if not isinstance(num, Size) and num > 0:
        head = [expand_dims(first + last * 0, 0)]
        tail = [expand_dims(last + first * 0, 0)] if num > 1 and endpoint else []
        middle = result[len(head) : num - len(tail)]
        result = concatenate([*head, middle, *tail])
    result = moveaxis(result, 0, axis)
    return cast(result, found if is_float(found) else first.dtype)


__all__ = ["geomspace", "linspace", "logspace"]
