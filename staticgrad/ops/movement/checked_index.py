"""Gathers: check_index, take, position.

Only check_index can fail while a graph runs: it wraps negative indices and refuses
those out of range; take and scatter (scatter.py) want checked indices. take and a
scatter that adds are each other's gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, IndexOutOfRange, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Extent, Gather, IndexCheck, Position, Sample, define
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.types import INT64, DType, TensorType, normalize_axis
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.views import broadcasted, numbers, same_dtype
from staticgrad.ops.named import called_by, named

Array = npt.NDArray[Any]


def _index_dtype(index: TensorType, **_: Any) -> DType:
    if index.dtype != INT64:
        raise DTypeError("an int64 index", "cast it with .astype('int64')")
    return INT64


def _check_index_numpy(index: Array, *, extent: int, wrap: bool) -> Array:
    lowest = -extent if wrap else 0
    wrong = (index < lowest) | (index >= extent)
    if wrong.any():
        value = index[wrong].flat[0]
        raise IndexOutOfRange(f"an index in {lowest}..{extent - 1}, got {value}")
    return np.where(index < 0, index + extent, index)


CHECK_INDEX = define(
    "check_index",
    shape=lambda index, **_: index.shape,
    dtype=_index_dtype,
    vjp=None,
    code=IndexCheck(),
    numpy=_check_index_numpy,
    samples=lambda: [
        Sample((np.array([0, 2, -1, -3]),), {"extent": 3, "wrap": True}),
        Sample((np.array([[0, 2]]),), {"extent": 3, "wrap": False}),
        Sample((np.array([], np.int64),), {"extent": 0, "wrap": True}),
    ],
    bad=lambda: [
        Bad((numbers(2),), {"extent": 3, "wrap": True}, DTypeError, "int64 index"),
    ],
)


def taken_shape(
    x: TensorType,
    index: TensorType,
    *,
    axis: int,
    pointwise: bool,
    window: Dim | None = None,
) -> Shape:
    """Return the shape of the result of take, and of the updates of scatter."""
    if index.dtype != INT64:
        raise DTypeError("an int64 index", "check_index makes one")
    place = normalize_axis(axis, len(x.shape))
    if not pointwise:
        wide = () if window is None else (window,)
        _require_room(x.shape[place], window)
        return x.shape[:place] + index.shape + wide + x.shape[place + 1 :]
    if window is not None:
        raise ShapeError("no window where the index is pointwise")
    if _others(x.shape, place) != _others(index.shape, place):
        raise ShapeError(f"an index with the sizes of x on every axis but {axis}")
    return index.shape


def _require_room(n: Dim, window: Dim | None) -> None:
    if isinstance(window, int) and isinstance(n, int) and window > n:
        rule = f"a window that fits into its axis of {n}, got one of {window}"
        raise ShapeError(rule, "make the window shorter or the axis longer")


def _others(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _take_vjp(
    g: Tensor, y: Tensor, x: Tensor, index: Tensor, **attrs: Any
) -> tuple[Tensor, None]:
    """Scatter g into zeros."""
    nothing = broadcasted(frozen(np.zeros((), g.dtype)), x.shape)
    return named("scatter", nothing, index, g, combine="add", **attrs), None


def _take_numpy(
    x: Array, index: Array, *, axis: int, pointwise: bool, window: int | None = None
) -> Array:
    if pointwise:
        return np.take_along_axis(x, index, axis)
    return np.take(x, windows(index, window), axis)


def windows(index: Array, window: int | None) -> Array:
    """Return each index and those that follow it, along a new last axis."""
    return index if window is None else index[..., None] + np.arange(window)


TAKE = define(
    "take",
    shape=taken_shape,
    dtype=same_dtype,
    vjp=_take_vjp,
    code=Gather(),
    numpy=_take_numpy,
    samples=lambda: [
        Sample((numbers(4, 3), np.array([2, 0, 2])), _at(0)),
        Sample((numbers(2, 4, 3), np.array([[3, 1], [1, 1]])), _at(1)),
        Sample((numbers(4), np.array(3)), _at(0)),
        Sample((numbers(3, 2), np.zeros((0,), np.int64)), _at(1)),
        Sample((numbers(2, 3), np.array([[0, 2], [1, 1]])), _at(1, True)),
        Sample((numbers(3, 2), np.array([[2, 0]])), _at(0, True)),
        Sample((numbers(5, 2), np.array(1)), {**_at(0), "window": 3}),
        Sample((numbers(2, 5), np.array([1, 0, 1])), {**_at(1), "window": 4}),
        Sample((numbers(2, 3), np.array([3, 1])), {**_at(1), "window": 0}),
    ],
    bad=lambda: [
        Bad((numbers(4), numbers(2)), _at(0), DTypeError, "int64 index"),
        Bad((numbers(4), np.arange(2)), _at(1), ShapeError, "axis in"),
        Bad((numbers(4, 2), np.arange(2)), _at(0, True), ShapeError, "sizes of x"),
        Bad((numbers(4), np.array(0)), {**_at(0), "window": 5}, ShapeError, "fits"),
    ],
)


def _at(axis: int, pointwise: bool = False) -> dict[str, Any]:
    return {"axis": axis, "pointwise": pointwise}


def _position_shape(*, shape: Shape, axis: int, dtype: DType) -> Shape:
    normalize_axis(axis, len(shape))
    return shape


def _position_numpy(*, shape: tuple[int, ...], axis: int, dtype: DType) -> Array:
    index = np.arange(shape[axis]).astype(dtype)
    others = tuple(k for k in range(len(shape)) if k != axis)
    return np.broadcast_to(np.expand_dims(index, others), shape)


POSITION = define(
    "position",
    shape=_position_shape,
    dtype=lambda *, dtype, **_: dtype,
    vjp=None,
    code=Position(),
    numpy=_position_numpy,
    samples=lambda: [
        Sample((), {"shape": (2, 3), "axis": 1, "dtype": INT64}),
        Sample((), {"shape": (2, 3), "axis": 0, "dtype": np.dtype("float32")}),
        Sample((), {"shape": (0, 2), "axis": 0, "dtype": INT64}),
    ],
    bad=lambda: [
        Bad((), {"shape": (2,), "axis": 1, "dtype": INT64}, ShapeError, "axis in"),
    ],
)


EXTENT = define(
    "extent",
    shape=lambda *, size: (),
    dtype=lambda *, size: INT64,
    vjp=None,
    code=Extent(),
    numpy=lambda *, size: np.asarray(size, np.int64),
    samples=lambda: [Sample((), {"size": 7})],
    bad=list,
)


def checked(index: Tensor, extent: Dim, wrap: bool = True, call: str = "") -> Tensor:
    """Check an int64 `index` at run time against `extent`.

    The error names the function that the user called, `call`.
    """
    return called_by(call, apply(CHECK_INDEX, index, extent=extent, wrap=wrap))


def taken(
    x: Tensor,
    index: Tensor,
    axis: int,
    pointwise: bool = False,
    window: Dim | None = None,
) -> Tensor:
    """Return elements of `x` at a checked `index` along `axis`.

    With a `window`, that many elements from each index on, along a new axis after those
    of the index; the index has to be checked against the axis less window - 1.
    """
    attrs: dict[str, Any] = {"axis": axis, "pointwise": pointwise}
    if window is not None:
        attrs["window"] = window
    return apply(TAKE, x, index, **attrs)


def position(shape: Shape, axis: int, dtype: DType = INT64) -> Tensor:
    """Return each element's own index along `axis`."""
    return apply(POSITION, shape=shape, axis=axis % len(shape), dtype=dtype)
