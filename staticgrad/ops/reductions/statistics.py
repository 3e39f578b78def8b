"""Composites of reductions: mean, var, std, argmax, argmin, logsumexp, softmax, ...

Kinks: std has the derivative 0 where it is 0, as a norm.

softmax, log_softmax and logsumexp subtract the maximum, which takes no gradient: their
value does not depend on it.
"""

from __future__ import annotations

import builtins
from typing import Literal, overload

import numpy as np
import numpy.typing as npt

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Op
from staticgrad.ir.size import Dim, Shape, product
from staticgrad.ir.types import BOOL, FLOAT64, INT64, is_float
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.activations import isclose
from staticgrad.ops.elementwise.choice import maximum, where
from staticgrad.ops.elementwise.functions import exp, log, sqrt
from staticgrad.ops.elementwise.logic import as_bool
from staticgrad.ops.leaves import dtype_of
from staticgrad.ops.movement.views import broadcasted
from staticgrad.ops.named import named
from staticgrad.ops.promotion import (
    ArrayLike,
    as_tensor,
    floats,
    promoted,
    quotients,
    stop_gradient,
    widened,
)
from staticgrad.ops.reductions.reduce import (
    REDUCE_ALL,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_SUM,
    Axis,
    Where,
    mask_of,
    masked,
    reduced,
)
from staticgrad.ops.rules import one_axis, shape_error, some_axes

LAST = np.iinfo(np.int64).max
LONG_ROW, LONGEST_ROW, LEAST_ROWS = 512, 16384, 8


def count(x: Tensor, axes: tuple[int, ...]) -> Dim:
    """Return the number of elements of `x` along `axes`."""
    return product(tuple(x.shape[axis] for axis in axes))


def _summands(a: ArrayLike, weights: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return both, integers as float64, whatever the weights are."""
    x, w = as_tensor(a), as_tensor(weights)
    return x if is_float(x.dtype) else cast(x, FLOAT64), w


@widened
def mean(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    keepdims: bool = False,
    where: Where = None,
) -> Tensor:
    """Return the mean over `axis` (all by default).

    Of integers it is a float64, of no elements NaN. `where`, which broadcasts to `a`,
    selects the elements that count.

    >>> import staticgrad as sg
    >>> sg.compile(sg.mean([[1, 2], [3, 6]], axis=0), target="reference")()
    array([2., 4.])
    """
    x = as_float("mean", a, dtype)
    axes = some_axes("mean", x, axis)
    total = reduced(REDUCE_SUM, "mean", masked("mean", x, where, 0), axes, keepdims)
    return total / _counted("mean", x, axes, keepdims, where)


def as_float(name: str, a: ArrayLike, dtype: npt.DTypeLike | None) -> Tensor:
    """Return `a` as `dtype`, by default as it is; integers become float64."""
    x = as_tensor(a)
    if dtype is not None:
        x = cast(x, dtype_of(name, dtype))
    return x if is_float(x.dtype) else cast(x, FLOAT64)


def _counted(
    name: str, x: Tensor, axes: tuple[int, ...], keepdims: bool, mask: Where
) -> Tensor | Dim:
    """Return the number of elements along `axes` that count, less those masked out."""
    if mask is None or mask is True:
        return count(x, axes)
    hits = cast(broadcasted(mask_of(name, x, mask), x.shape), x.dtype)
    return reduced(REDUCE_SUM, name, hits, axes, keepdims)


@overload
def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    returned: Literal[False] = False,
    *,
    keepdims: bool = False,
) -> Tensor: ...
@overload
def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    *,
    returned: Literal[True],
    keepdims: bool = False,
) -> tuple[Tensor, Tensor]: ...
@widened
def average(
    a: ArrayLike,
    axis: Axis = None,
    weights: ArrayLike | None = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Return the mean over `axis`, weighted by `weights`.

    If `returned`, also return the sum of the weights. They have the shape of `a`, or
    that of its axes `axis`.

    >>> import staticgrad as sg
    >>> y = sg.average([1.0, 2.0, 3.0], weights=[1.0, 0.0, 1.0])
    >>> float(sg.compile(y, target="reference")())
    2.0
    """
    if weights is None:
        x = as_float("average", a, None)
        result = mean(x, axis, keepdims=keepdims)
        whole = as_tensor(count(x, some_axes("average", x, axis)), result)
    else:
        x, w = quotients(*_summands(a, weights))
        w = w if w.shape == x.shape else _along(x, w, axis)
        whole = reduced(REDUCE_SUM, "average", w, axis, keepdims)
        result = reduced(REDUCE_SUM, "average", x * w, axis, keepdims) / whole
    if not returned:
        return result
    return result, broadcasted(cast(whole, result.dtype), result.shape)


def _along(x: Tensor, w: Tensor, axis: Axis) -> Tensor:
    """Broadcast weights of some axes, in their order, along the others."""
    rule = "weights of the shape of a, or of its axes axis="
    if axis is None:
        raise shape_error("average", (x, w), rule)
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    places = [one_axis("average", x, a) for a in given]
    if w.shape != tuple(x.shape[p] for p in places):
        raise shape_error("average", (x, w), rule)
    order = sorted(range(len(places)), key=places.__getitem__)
    turned = named("transpose", w, axes=tuple(order)) if len(order) > 1 else w
    shape = tuple(n if k in places else 1 for k, n in enumerate(x.shape))
    return broadcasted(named("reshape", turned, shape=shape), x.shape)


@widened
def var(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Where = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Tensor:
    """Return the variance over `axis` (all by default).

    The sum of squares is divided by the count less `ddof`. `correction` is another name
    of `ddof`. `where` selects the elements that count. `mean` is the mean, if it is
    known, with the axes kept.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.var([1, 2, 3, 4]), target="reference")())
    1.25
    """
    x = as_float("var", a, dtype)
    axes = some_axes("var", x, axis)
    if mean is None:
        total = reduced(REDUCE_SUM, "var", masked("var", x, where, 0), axes, True)
        mean = total / _counted("var", x, axes, True, where)
    away = masked("var", x - mean, where, 0)
    total = reduced(REDUCE_SUM, "var", away * away, axes, keepdims)
    lost = corrected("var", ddof, correction)
    left = _counted("var", x, axes, keepdims, where)
    if isinstance(left, Tensor):
        return total / maximum(left - lost, 0)
    return total / (as_tensor(left, total) - lost)


def corrected(name: str, ddof: float, correction: float | None) -> float:
    """Return the number subtracted from the count; ShapeError where both are given."""
    if correction is None:
        return ddof
    if ddof != 0:
        raise shape_error(name, (), "ddof= or correction=, got both", "leave out one")
    return correction


@widened
def std(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    ddof: float = 0,
    keepdims: bool = False,
    where: Where = None,
    mean: ArrayLike | None = None,
    correction: float | None = None,
) -> Tensor:
    """Return the standard deviation over `axis`: the root of `var`.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.std([1, 3]), target="reference")())
    1.0
    """
    return root(var(a, axis, dtype, ddof, keepdims, where, mean, correction))


def root(x: Tensor) -> Tensor:
    """Compute the square root of a sum of squares, with the derivative 0 at 0."""
    zero = x == 0
    return where(zero, 0, sqrt(where(zero, 1, x)))


def ptp(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the maximum less the minimum over `axis` (all by default).

    >>> import staticgrad as sg
    >>> int(sg.compile(sg.ptp([3, 9, 5]), target="reference")())
    6
    """
    x = as_tensor(a)
    top = reduced(REDUCE_MAX, "ptp", x, axis, keepdims)
    return top - reduced(REDUCE_MIN, "ptp", x, axis, keepdims)


def count_nonzero(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Count the elements over `axis` (all by default) that are not 0.

    >>> import staticgrad as sg
    >>> int(sg.compile(sg.count_nonzero([3, 0, 5]), target="reference")())
    2
    """
    hits = cast(as_bool(a), INT64)
    return reduced(REDUCE_SUM, "count_nonzero", hits, axis, keepdims)


def allclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Whether `isclose` holds everywhere, a bool scalar.

    >>> import staticgrad as sg
    >>> bool(sg.compile(sg.allclose([1.0, 2.0], [1.0, 2.1]), target="reference")())
    False
    """
    close = isclose(a, b, rtol, atol, equal_nan)
    return reduced(REDUCE_ALL, "allclose", close, None, False)


def array_equal(a1: ArrayLike, a2: ArrayLike, equal_nan: bool = False) -> Tensor:
    """Whether shapes and elements are equal, a bool scalar.

    >>> import staticgrad as sg
    >>> bool(sg.compile(sg.array_equal([1, 2], [1, 2]), target="reference")())
    True
    """
    x, y = promoted(a1, a2)
    if x.shape != y.shape:
        return as_tensor(np.False_)
    same = x == y
    if equal_nan and is_float(x.dtype):
        same = same | ((x != x) & (y != y))
    return reduced(REDUCE_ALL, "array_equal", same, None, False)


def argmax(a: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the int64 index of the first maximum along `axis`.

    Without an axis it is an index into the raveled array. A NaN counts as the maximum,
    as in NumPy.

    >>> import staticgrad as sg
    >>> sg.compile(sg.argmax([[1, 5, 5], [7, 2, 0]], axis=1), target="reference")()
    array([1, 0])
    """
    return _arg(REDUCE_MAX, "argmax", a, axis, keepdims)


def argmin(a: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the int64 index of the first minimum along `axis`.

    Without an axis it is an index into the raveled array. A NaN counts as the minimum,
    as in NumPy.

    >>> import staticgrad as sg
    >>> sg.compile(sg.argmin([[1, 5, 1], [7, 2, 0]], axis=1), target="reference")()
    array([0, 2])
    """
    return _arg(REDUCE_MIN, "argmin", a, axis, keepdims)


def _arg(op: Op, name: str, a: ArrayLike, axis: int | None, keepdims: bool) -> Tensor:
    """Return the least position of an element that is the extreme."""
    x = stop_gradient(a)
    if axis is None:
        place = _arg_of_all(op, name, x)
        return named("reshape", place, shape=(1,) * x.ndim) if keepdims else place
    along = one_axis(name, x, axis)
    extreme = reduced(op, name, x, along, True)
    position = named("position", shape=x.shape, axis=along, dtype=INT64)
    if x.dtype == BOOL:
        hit = x if op is REDUCE_MAX else ~x
        place = reduced(REDUCE_MIN, name, where(hit, position, LAST), along, keepdims)
        return where(place == LAST, 0, place)
    hit = x == extreme
    if is_float(x.dtype):
        hit = hit | (x != x)
    return reduced(REDUCE_MIN, name, where(hit, position, LAST), along, keepdims)


def _arg_of_all(op: Op, name: str, x: Tensor) -> Tensor:
    """Return the place in the flat array, by long rows, so that each is read once."""
    size = product(x.shape)
    length = _row_length(x.shape)
    if length == 0:
        return _arg(op, name, named("reshape", x, shape=(size,)), 0, False)
    count = size // length if isinstance(size, int) else product(x.shape[:-1])
    rows = named("reshape", x, shape=(count, length))
    places = _arg(op, name, rows, 1, False)
    found = _at(rows, named("reshape", places, shape=(rows.shape[0], 1)), 1)
    row = _arg(op, name, named("reshape", found, shape=rows.shape[:1]), 0, False)
    return row * length + _at(places, row, 0)


def _row_length(shape: Shape) -> int:
    """Return a row length that divides an array well; 0 if there is none."""
    size, last = product(shape), shape[-1] if shape else 0
    if isinstance(size, int):
        most = builtins.min(LONGEST_ROW, size // LEAST_ROWS)
        lengths = range(most, LONG_ROW - 1, -1)
        return next((n for n in lengths if size % n == 0), 0)
    return last if isinstance(last, int) and last >= LONG_ROW else 0


def _at(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """Gather elements at an index known to be in range."""
    known = named("check_index", index, extent=x.shape[axis], wrap=False)
    return named("take", x, known, axis=axis, pointwise=index.ndim == x.ndim)


@widened
def logsumexp(a: ArrayLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return ``log(sum(exp(a)))`` over `axis` (all by default), without overflow.

    It is -inf of nothing.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.logsumexp([1000.0, -1000.0]), target="reference")())
    1000.0
    """
    (x,) = floats(a)
    axes = some_axes("logsumexp", x, axis)
    top = stop_gradient(reduced(REDUCE_MAX, "logsumexp", x, axes, True, empty=True))
    top = where(named("isfinite", top), top, 0)
    total = apply(REDUCE_SUM, exp(x - top), axes=axes) if axes else exp(x - top)
    low = named("reshape", top, shape=total.shape) if axes else top
    result = log(total) + low
    if not keepdims:
        return result
    return named("reshape", result, shape=top.shape)


@widened
def softmax(x: ArrayLike, axis: Axis = -1) -> Tensor:
    """Return ``exp(x) / sum(exp(x))`` along `axis`, without overflow.

    `axis` may be several axes, or None for all of them.

    >>> import staticgrad as sg
    >>> sg.compile(sg.softmax([1000.0, 1000.0]), target="reference")()
    array([0.5, 0.5], dtype=float32)
    """
    value = exp(_centred("softmax", x, axis))
    return value / reduced(REDUCE_SUM, "softmax", value, axis, True)


@widened
def log_softmax(x: ArrayLike, axis: Axis = -1) -> Tensor:
    """Return ``log(softmax(x))`` along `axis` (or axes), without underflow.

    >>> import staticgrad as sg
    >>> sg.compile(sg.log_softmax([0.0, -1000.0]), target="reference")()
    array([    0., -1000.], dtype=float32)
    """
    value = _centred("log_softmax", x, axis)
    return value - log(reduced(REDUCE_SUM, "log_softmax", exp(value), axis, True))


def _centred(name: str, x: ArrayLike, axis: Axis) -> Tensor:
    """Subtract from `x` its maximum along `axis`."""
    (value,) = floats(x)
    along = some_axes(name, value, axis)
    top = reduced(REDUCE_MAX, name, value, along, True, empty=True)
    return value - stop_gradient(top)


__all__ = [
    "allclose", "argmax", "argmin", "array_equal", "average", "count_nonzero",
    "log_softmax", "logsumexp", "mean", "ptp", "softmax", "std", "var",
]  # fmt: skip
