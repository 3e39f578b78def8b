"""Running sums and products along an axis.

The derivative of a running product is exact with zeros, by a recurrence, of any order
and along symbolic axes. Integers and bools become 64 bits, as in sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Op, Sample, Scan, define
from staticgrad.ir.size import Shape, product
from staticgrad.ir.types import FLOAT32, FLOAT64, DType, TensorType, is_float
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.choice import where
from staticgrad.ops.elementwise.compare import isnan
from staticgrad.ops.examples import SPECIAL, special, spread
from staticgrad.ops.leaves import dtype_of
from staticgrad.ops.movement.slicing import flipped_axes
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.reductions.reduce import accumulator
from staticgrad.ops.rules import one_axis, quiet, same_dtype, shape_error
from staticgrad.ops.twins import twin_of

Array = npt.NDArray[Any]


def _same_shapes(*types: TensorType, axis: int, exclusive: bool) -> Shape:
    shape = types[0].shape
    if any(t.shape != shape for t in types):
        raise ShapeError("inputs of one shape", "broadcast them")
    if not 0 <= axis < len(shape):
        raise ShapeError(f"an axis in 0..{len(shape) - 1}, got {axis}")
    return shape


def _exclusive(y: Array, axis: int, initial: float) -> Array:
    """Shift `y` by one along `axis`: the last is dropped, `initial` comes first."""
    if not y.shape[axis]:
        return y
    first = np.full_like(np.take(y, [0], axis), initial)
    kept = np.take(y, range(y.shape[axis] - 1), axis)
    return np.concatenate([first, kept], axis)


def _wide(dtype: DType) -> DType:
    """Return the accumulator's dtype: float64 for float32; halves come as float32."""
    return FLOAT64 if dtype == FLOAT32 else dtype


def _running(
    function: Callable[..., Any],
    initial: float,
    wide: Callable[[DType], DType] = lambda dtype: dtype,
) -> Callable[..., Array]:
    def run(x: Array, axis: int, exclusive: bool) -> Array:
        y = np.asarray(function(x, axis=axis, dtype=wide(x.dtype))).astype(x.dtype)
        return _exclusive(y, axis, initial) if exclusive else y

    return quiet(run)


@quiet
def _recurrence(a: Array, b: Array, axis: int, exclusive: bool) -> Array:
    slopes, terms = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    state, found = np.zeros(terms.shape[1:], b.dtype), np.zeros_like(terms)
    for k in range(len(terms)):
        after = slopes[k] * state + terms[k]
        found[k] = state if exclusive else after
        state = after
    return np.moveaxis(found, 0, axis).copy()


def _flipped(x: Tensor, axis: int) -> Tensor:
    return flipped_axes(x, (axis,))


def _sum_vjp(
    g: Tensor, y: Tensor, x: Tensor, *, axis: int, exclusive: bool
) -> tuple[Tensor]:
    """Accumulate the cotangents from the other end."""
    turned = apply(CUMSUM, _flipped(g, axis), axis=axis, exclusive=exclusive)
    return (_flipped(turned, axis),)


def _product_vjp(
    g: Tensor, y: Tensor, x: Tensor, *, axis: int, exclusive: bool
) -> tuple[Tensor]:
    """Sum the cotangents of later products, times the product before x_i."""
    before = y if exclusive else apply(CUMPROD, x, axis=axis, exclusive=True)
    return (_later(g, x, axis, exclusive) * before,)


def _recurrence_vjp(
    g: Tensor, h: Tensor, a: Tensor, b: Tensor, *, axis: int, exclusive: bool
) -> tuple[Tensor, Tensor]:
    later = _later(g, a, axis, exclusive)
    before = h if exclusive else apply(RECURRENCE, a, b, axis=axis, exclusive=True)
    return later * before, later


def _later(g: Tensor, a: Tensor, axis: int, exclusive: bool) -> Tensor:
    """Return the cotangent of each state: ``l_i = g_i + a_(i+1) l_(i+1)``.

    Of an exclusive result, g_(i+1) stands for g_i.
    """
    u, v = _flipped(a, axis), _flipped(g, axis)
    terms = v if exclusive else u * v
    carried = apply(RECURRENCE, u, terms, axis=axis, exclusive=True)
    return _flipped(carried if exclusive else v + carried, axis)


def _attrs(axis: int, exclusive: bool = False) -> dict[str, Any]:
    return {"axis": axis, "exclusive": exclusive}


def _samples() -> list[Sample]:
    x = spread(-1.5, 1.5, 2, 3, 4)
    whole = np.array([[3, -1, 4], [1, -5, 9]])
    wide = spread(0.5, 1.5, 5, 67)
    zeros = np.array([[1.5, 0.0, 2.0], [0.0, 3.0, 0.0]])
    return [
        *(Sample((x,), _attrs(axis)) for axis in range(3)),
        *(Sample((x,), _attrs(axis, True)) for axis in range(3)),
        *(Sample((zeros,), _attrs(1, ex)) for ex in (False, True)),
        Sample((x[0, 0],), _attrs(0)),
        Sample((np.zeros((2, 0, 3)),), _attrs(1)),
        Sample((np.zeros((0, 3)),), _attrs(1)),
        *(Sample((wide,), _attrs(axis), grad=False) for axis in (0, 1)),
        *(Sample((wide.astype("f4"),), _attrs(k), grad=False) for k in (0, 1)),
        Sample((wide.astype("f4").T,), _attrs(1, True), grad=False),
        *(Sample((special([v, 1.0]),), _attrs(0), grad=False) for v in SPECIAL),
        *(
            Sample((whole.astype(dtype),), _attrs(1), grad=False)
            for dtype in ("int32", "int64", "uint8", "uint64")
        ),
    ]


def _pairs() -> list[Sample]:
    a, b = spread(-1.5, 1.5, 2, 3, 4), spread(-2, 2, 2, 4, 3).reshape(2, 3, 4)
    return [
        *(
            Sample((a, b), _attrs(axis, ex))
            for axis in range(3)
            for ex in (False, True)
        ),
        Sample((a[0, 0], b[0, 0]), _attrs(0)),
        Sample((np.zeros((2, 0)), np.zeros((2, 0))), _attrs(1)),
        Sample((a.astype("f4"), b.astype("f4")), _attrs(1), grad=False, ulp=16),
    ]


def _bad() -> list[Bad]:
    x, flags = np.zeros((2, 3)), np.zeros(2, bool)
    return [
        *(Bad((x,), _attrs(axis), ShapeError, "an axis in") for axis in (2, -1)),
        Bad((flags,), _attrs(0), DTypeError, "a number's dtype"),
    ]


def _bad_pairs() -> list[Bad]:
    x, y = np.zeros((2, 3)), np.zeros((2, 4))
    return [
        Bad((x, y), _attrs(0), ShapeError, "inputs of one shape"),
        Bad((x, x), _attrs(2), ShapeError, "an axis in"),
        Bad((x, x.astype("f4")), _attrs(0), DTypeError, "one dtype"),
    ]


CUMSUM: Op = define(
    "cumsum",
    shape=_same_shapes,
    dtype=same_dtype("iuf"),
    vjp=_sum_vjp,
    code=Scan("{0} + {1}", -0.0, wide=True),  # -0.0 + x is x, the sign of zero included
    numpy=_running(np.cumsum, -0.0, _wide),
    samples=_samples,
    bad=_bad,
    jvp="linear",
    amp="float32",
)
CUMPROD: Op = define(
    "cumprod",
    shape=_same_shapes,
    dtype=same_dtype("iuf"),
    vjp=_product_vjp,
    code=Scan("{0} * {1}", 1.0),
    numpy=_running(np.cumprod, 1.0),
    samples=_samples,
    bad=_bad,
    amp="float32",
)
RECURRENCE: Op = define(
    "recurrence",
    shape=_same_shapes,
    dtype=same_dtype("f"),
    vjp=_recurrence_vjp,
    code=Scan("{1} * {0} + {2}", 0.0),
    numpy=_recurrence,
    samples=_pairs,
    bad=_bad_pairs,
)


def _scanned(
    op: Op,
    name: str,
    a: ArrayLike,
    axis: int | None = None,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    x = as_tensor(a)
    found = accumulator(x.dtype) if dtype is None else dtype_of(name, dtype)
    x = cast(x, found)
    if axis is None:
        x, axis = named("reshape", x, shape=(product(x.shape),)), 0
    return apply(op, x, axis=one_axis(name, x, axis), exclusive=False)


def cumsum(
    a: ArrayLike, axis: int | None = None, dtype: npt.DTypeLike | None = None
) -> Tensor:
    """Return the running sum along `axis`, by default of all elements in C order.

    The sum of float32 is kept in float64 and rounded where it is shown.

    >>> import staticgrad as sg
    >>> sg.compile(sg.cumsum([1, 2, 3]), target="reference")()
    array([1, 3, 6])
    """
    return _scanned(CUMSUM, CUMSUM.name, a, axis, dtype)


@twin_of(cumsum)
def cumprod(a: ArrayLike, *args: Any, **options: Any) -> Tensor:
    """The running product along `axis`, by default of all elements in C order.

    >>> import staticgrad as sg
    >>> sg.compile(sg.cumprod([1, 2, 3]), target="reference")()
    array([1, 2, 6])
    """
    return _scanned(CUMPROD, "cumprod", a, *args, **options)


@twin_of(cumsum)
def nancumsum(a: ArrayLike, *args: Any, **options: Any) -> Tensor:
    """The running sum, NaN taken as 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.nancumsum([1.0, float("nan"), 2.0]), target="reference")()
    array([1., 1., 3.], dtype=float32)
    """
    return cumsum(filled(a, 0), *args, **options)


@twin_of(cumsum)
def nancumprod(a: ArrayLike, *args: Any, **options: Any) -> Tensor:
    """The running product, NaN taken as 1.

    >>> import staticgrad as sg
    >>> sg.compile(sg.nancumprod([1.0, float("nan"), 2.0]), target="reference")()
    array([1., 1., 2.], dtype=float32)
    """
    return cumprod(filled(a, 1), *args, **options)


def filled(a: ArrayLike, value: float) -> Tensor:
    """`a`, with `value` for NaN."""
    x = as_tensor(a)
    return where(isnan(x), value, x) if is_float(x.dtype) else x


def cumulative_sum(
    x: ArrayLike,
    /,
    *,
    axis: int | None = None,
    dtype: npt.DTypeLike | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Accumulate the sum along `axis`, after a 0 if `include_initial`.

    >>> import staticgrad as sg
    >>> y = sg.cumulative_sum([1, 2, 3], include_initial=True)
    >>> sg.compile(y, target="reference")()
    array([0, 1, 3, 6])
    """
    return _cumulative(CUMSUM, "cumulative_sum", x, axis, dtype, include_initial)


@twin_of(cumulative_sum)
def cumulative_prod(x: ArrayLike, /, **options: Any) -> Tensor:
    """The running product along `axis`, led by a 1 if `include_initial`.

    >>> import staticgrad as sg
    >>> y = sg.cumulative_prod([1, 2, 3], include_initial=True)
    >>> sg.compile(y, target="reference")()
    array([1, 1, 2, 6])
    """
    return _cumulative(CUMPROD, "cumulative_prod", x, **options)


def _cumulative(
    op: Op,
    name: str,
    x: ArrayLike,
    axis: int | None = None,
    dtype: npt.DTypeLike | None = None,
    include_initial: bool = False,
) -> Tensor:
    value = as_tensor(x)
    if axis is None and value.ndim != 1:
        raise shape_error(name, (value,), "axis= of a tensor with several axes")
    along = one_axis(name, value, 0 if axis is None else axis)
    y = _scanned(op, name, value, along, dtype)
    if not include_initial:
        return y
    low = tuple(int(k == along) for k in range(y.ndim))
    none = (0,) * y.ndim
    start = int(op is CUMPROD)
    return named("pad", y, low=low, high=none, interior=none, value=start)


__all__ = [
    "cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "nancumprod", "nancumsum",
]  # fmt: skip
