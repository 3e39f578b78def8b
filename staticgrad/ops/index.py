"""Elements at positions that are data: check_index, take, scatter_add, position.

Only check_index can fail while a graph runs: it wraps negative indices and refuses
those out of range; take and scatter_add want checked indices. take and scatter_add are
each other's gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, IndexOutOfRange, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import (
    Bad,
    Extent,
    Gather,
    IndexCheck,
    Position,
    Sample,
    Scatter,
    define,
)
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.types import INT64, DType, TensorType, normalize_axis
from staticgrad.ops.views import numbers, same_dtype

Array = npt.NDArray[Any]


# ---- check_index ---------------------------------------------------------------------


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


# ---- take and scatter_add ------------------------------------------------------------


def _checked(index: TensorType) -> None:
    if index.dtype != INT64:
        raise DTypeError("an int64 index", "check_index makes one")


def _take_shape(
    x: TensorType, index: TensorType, *, axis: int, pointwise: bool
) -> Shape:
    _checked(index)
    place = normalize_axis(axis, len(x.shape))
    if not pointwise:
        return x.shape[:place] + index.shape + x.shape[place + 1 :]
    if _others(x.shape, place) != _others(index.shape, place):
        raise ShapeError(f"an index with the sizes of x on every axis but {axis}")
    return index.shape


def _others(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def _take_vjp(
    g: Tensor, y: Tensor, x: Tensor, index: Tensor, *, axis: int, pointwise: bool
) -> tuple[Tensor, None]:
    shape = x.shape
    return scattered(index, g, shape, axis, pointwise), None


def _take_numpy(x: Array, index: Array, *, axis: int, pointwise: bool) -> Array:
    if pointwise:
        return np.take_along_axis(x, index, axis)
    return np.take(x, index, axis)


TAKE = define(
    "take",
    shape=_take_shape,
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
    ],
    bad=lambda: [
        Bad((numbers(4), numbers(2)), _at(0), DTypeError, "int64 index"),
        Bad((numbers(4), np.arange(2)), _at(1), ShapeError, "axis in"),
        Bad((numbers(4, 2), np.arange(2)), _at(0, True), ShapeError, "sizes of x"),
    ],
)


def _scatter_shape(
    index: TensorType, updates: TensorType, *, shape: Shape, axis: int, pointwise: bool
) -> Shape:
    _checked(index)
    place = normalize_axis(axis, len(shape))
    whole = TensorType(shape, updates.dtype)
    if _take_shape(whole, index, axis=place, pointwise=pointwise) != updates.shape:
        raise ShapeError("updates of the shape that take gives")
    return shape


def _scatter_dtype(index: TensorType, updates: TensorType, **_: Any) -> DType:
    if updates.dtype.kind == "b":
        raise DTypeError("updates that are numbers", "cast them to an integer dtype")
    return updates.dtype


def _scatter_vjp(
    g: Tensor,
    y: Tensor,
    index: Tensor,
    updates: Tensor,
    *,
    shape: Shape,
    axis: int,
    pointwise: bool,
) -> tuple[None, Tensor]:
    return None, apply(TAKE, g, index, axis=axis, pointwise=pointwise)


def _scatter_numpy(
    index: Array, updates: Array, *, shape: tuple[int, ...], axis: int, pointwise: bool
) -> Array:
    result = np.zeros(shape, updates.dtype)
    if pointwise:
        grid: list[Any] = list(np.indices(index.shape, sparse=True))
        grid[axis] = index
        np.add.at(result, tuple(grid), updates)
        return result
    before: tuple[Any, ...] = (slice(None),) * (axis % len(shape))
    np.add.at(result, (*before, index), updates)
    return result


SCATTER_ADD = define(
    "scatter_add",
    shape=_scatter_shape,
    dtype=_scatter_dtype,
    vjp=_scatter_vjp,
    code=Scatter(),
    numpy=_scatter_numpy,
    samples=lambda: [
        Sample((np.array([2, 0, 2]), numbers(3, 3)), _into((4, 3), 0)),
        Sample((np.array([[3, 1], [1, 1]]), numbers(2, 2, 2, 2)), _into((2, 4, 2), 1)),
        Sample((np.array(3), numbers()), _into((4,), 0)),
        Sample((np.zeros(0, np.int64), numbers(3, 0)), _into((3, 2), 1)),
        Sample((np.array([[0, 0], [1, 2]]), numbers(2, 2)), _into((2, 3), 1, True)),
        Sample((np.array([1, 1]), np.array([3, 4])), _into((2,), 0)),
    ],
    bad=lambda: [
        Bad((np.arange(2), numbers(3)), _into((4,), 0), ShapeError, "that take gives"),
        Bad((numbers(2), numbers(2)), _into((4,), 0), DTypeError, "int64 index"),
        Bad((np.arange(2), np.ones(2, bool)), _into((4,), 0), DTypeError, "numbers"),
    ],
)


def _at(axis: int, pointwise: bool = False) -> dict[str, Any]:
    return {"axis": axis, "pointwise": pointwise}


def _into(shape: Shape, axis: int, pointwise: bool = False) -> dict[str, Any]:
    return {"shape": shape, "axis": axis, "pointwise": pointwise}


# ---- position ------------------------------------------------------------------------


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


# ---- size ---------------------------------------------------------------------------

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


# ---- on tensors, without conversions (for other ops) ---------------------------------


def checked(index: Tensor, extent: Dim, wrap: bool = True) -> Tensor:
    """The int64 `index`, refused while running where it is not within `extent`."""
    return apply(CHECK_INDEX, index, extent=extent, wrap=wrap)


def taken(x: Tensor, index: Tensor, axis: int, pointwise: bool = False) -> Tensor:
    """Elements of `x` at a checked `index` along `axis`."""
    return apply(TAKE, x, index, axis=axis, pointwise=pointwise)


def scattered(
    index: Tensor, updates: Tensor, shape: Shape, axis: int, pointwise: bool = False
) -> Tensor:
    """Zeros of `shape` with `updates` added at a checked `index` along `axis`."""
    attrs = {"shape": shape, "axis": axis, "pointwise": pointwise}
    return apply(SCATTER_ADD, index, updates, **attrs)


def position(shape: Shape, axis: int, dtype: DType = INT64) -> Tensor:
    """Each element's own index along `axis`."""
    return apply(POSITION, shape=shape, axis=axis % len(shape), dtype=dtype)
