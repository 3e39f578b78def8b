"""Indexing of tensors as NumPy does it, and take, scatter_add and one_hot.

``x[key]`` becomes at most one slice (a view), one reshape (for integers and None) and
one take per integer that is data. An integer on a symbolic axis is data, too: whether
it is within the axis is known when the graph runs.

Known limits: masks of bools and several index arrays at once are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import IndexOutOfRange
from staticgrad.ir.graph import default_dtype
from staticgrad.ir.node import Constant, Tensor
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.source import at, here
from staticgrad.ir.types import INT64, as_dtype
from staticgrad.ops.bounds import Bounds, bounds
from staticgrad.ops.casting import cast
from staticgrad.ops.index import checked, position, scattered, taken
from staticgrad.ops.leaves import ShapeLike, as_shape
from staticgrad.ops.named import named
from staticgrad.ops.promote import ArrayLike, as_tensor
from staticgrad.ops.rules import dtype_error, one_axis, shape_error
from staticgrad.ops.shape import expand_dims, moveaxis, ravel
from staticgrad.ops.slicing import sliced
from staticgrad.ops.views import broadcasted, reshaped

# ---- what a key consists of ----------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    """How a key is applied: cut by `parts`, reshape to `shape`, take at `gathers`.

    `advanced` are the places in the key of integers and arrays, by which NumPy decides
    where the axes of an index array go.
    """

    parts: list[Bounds]
    shape: list[Dim]
    gathers: list[tuple[int, Tensor]]
    advanced: list[int]


def getitem(x: Tensor, key: Any) -> Tensor:
    """``x[key]`` for integers, slices, None, Ellipsis and one array of integers.

    Indices out of range are an IndexOutOfRange: at once where axis and index are known,
    otherwise when the graph runs.
    """
    items = _expanded(x, key if isinstance(key, tuple) else (key,))
    reading = _read(x, items)
    result = reshaped(sliced(x, reading.parts), tuple(reading.shape))
    for axis, index in reversed(reading.gathers):
        result = taken(result, index, axis)
    return _advanced_first(result, reading)


def _expanded(x: Tensor, key: tuple[Any, ...]) -> list[Any]:
    """The key with its Ellipsis replaced by whole slices, one per missing axis."""
    ellipses = [k for k, item in enumerate(key) if item is Ellipsis]
    used = sum(item is not None and item is not Ellipsis for item in key)
    if len(ellipses) > 1:
        raise shape_error("indexing", (x,), "at most one Ellipsis")
    if used > x.ndim:
        rule = f"at most {x.ndim} indices, got {used} for {x.type}"
        raise shape_error("indexing", (), rule)
    missing = [slice(None)] * (x.ndim - used)
    place = ellipses[0] if ellipses else len(key)
    return [*key[:place], *missing, *key[place + 1 :]]


def _read(x: Tensor, items: list[Any]) -> _Reading:
    reading = _Reading([], [], [], [])
    for place, item in enumerate(items):
        if item is None:
            reading.shape.append(1)
            continue
        n = x.shape[len(reading.parts)]
        if isinstance(item, slice):
            part = bounds(item, n, x)
            reading.parts.append(part)
            reading.shape.append(part[1])
            continue
        reading.advanced.append(place)
        _read_integer(x, item, n, reading)
    if sum(index.ndim > 0 for _, index in reading.gathers) > 1:
        raise shape_error(
            "indexing",
            (x,),
            "one index array at most",
            "index one axis after the other, or use sg.take_along_axis",
        )
    return reading


def _read_integer(x: Tensor, item: Any, n: Dim, reading: _Reading) -> None:
    number = _static_integer(item)
    if number is not None and isinstance(n, int):
        if not -n <= number < n:
            raise _out_of_range(number, n, x)
        reading.parts.append((number % n, 1, 1))
        return
    index = as_index(item, n)
    reading.gathers.append((len(reading.shape), index))
    reading.parts.append((0, n, 1))
    reading.shape.append(n)


def _static_integer(item: Any) -> int | None:
    if isinstance(item, np.ndarray) and item.ndim == 0:
        item = item[()]
    if isinstance(item, bool) or not isinstance(item, int | np.integer):
        return None
    return int(item)


def _out_of_range(number: int, n: Dim, x: Tensor) -> IndexOutOfRange:
    return IndexOutOfRange(
        f"indexing requires an index in -{n}..{n - 1}, got {number} for {x.type}; "
        f"give another{at(here())}"
    )


def as_index(item: Any, extent: Dim, wrap: bool = True) -> Tensor:
    """`item` as a checked int64 index; what is known now is checked now, too."""
    index = as_tensor(_as_integers(item))
    if index.dtype.kind == "b":
        advice = "use sg.where instead of a mask"
        raise dtype_error("indexing", (index,), "an index of integers", advice)
    if index.dtype.kind == "f":
        advice = "cast it to an integer dtype"
        raise dtype_error("indexing", (index,), "an index of integers", advice)
    if isinstance(index, Constant) and isinstance(extent, int):
        _check_known(index.value, -extent if wrap else 0, extent)
    return checked(cast(index, INT64), extent, wrap)


def _as_integers(item: Any) -> Any:
    """An empty list is an index of no elements, not one of floats."""
    if isinstance(item, list | tuple) and len(item) == 0:
        return np.zeros(0, np.int64)
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        return np.asarray(item, np.int64)
    return item


def _check_known(index: npt.NDArray[Any], lowest: int, extent: int) -> None:
    wrong = (index < lowest) | (index >= extent)
    if wrong.any():
        raise IndexOutOfRange(
            f"indexing requires indices in {lowest}..{extent - 1}, "
            f"got {index[wrong].flat[0]}; give others{at(here())}"
        )


def _advanced_first(x: Tensor, reading: _Reading) -> Tensor:
    """NumPy: integers apart from an index array put the array's axes first."""
    arrays = [k for k, (_, index) in enumerate(reading.gathers) if index.ndim > 0]
    places = reading.advanced
    if not arrays or places[-1] - places[0] + 1 == len(places):
        return x
    (k,) = arrays
    axis, index = reading.gathers[k]
    first = axis - k  # the scalars taken before it have no axis any more
    own = range(first, first + index.ndim)
    return moveaxis(x, tuple(own), tuple(range(index.ndim)))


# ---- public --------------------------------------------------------------------------


def take(a: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Tensor:
    """The elements of `a` at `indices` along `axis`; of the raveled `a` without one.

    The axes of `indices` take the place of `axis`. Negative indices count from the end.
    An index out of range is an IndexOutOfRange, when the graph runs if not before.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("n", 4))
    >>> print(sg.take(x, [[0, -1]], axis=1).type)
    float32[n, 1, 2]
    """
    x = as_tensor(a)
    if axis is None:
        x, axis = ravel(x), 0
    place = one_axis("take", x, axis)
    return taken(x, as_index(indices, x.shape[place]), place)


def take_along_axis(
    arr: ArrayLike, indices: ArrayLike, axis: int | None = -1
) -> Tensor:
    """For each element of `indices`, that element of `arr` along `axis` beside it.

    The other axes broadcast. With ``axis=None`` both are raveled.

    >>> import staticgrad as sg
    >>> logits, label = sg.input("x", ("n", 10)), sg.input("y", ("n",), "int64")
    >>> print(sg.take_along_axis(logits, sg.expand_dims(label, -1), axis=1).type)
    float32[n, 1]
    """
    x, index = as_tensor(arr), as_tensor(_as_integers(indices))
    if axis is None:
        x, index, axis = ravel(x), ravel(index), 0
    if x.ndim != index.ndim:
        rule = "an index with as many axes as the array"
        raise shape_error("take_along_axis", (x, index), rule)
    place = one_axis("take_along_axis", x, axis)
    shape = _broadcast_others(x, index, place)
    before, after = shape[:place], shape[place + 1 :]
    x = broadcasted(x, (*before, x.shape[place], *after))
    wanted = as_index(index, x.shape[place])
    full = broadcasted(wanted, (*before, index.shape[place], *after))
    return taken(x, full, place, pointwise=True)


def _broadcast_others(x: Tensor, index: Tensor, axis: int) -> Shape:
    """The shape that both have on all axes but `axis`."""
    shape = list(x.shape)
    for k, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)):
        if k == axis or m in (1, n):
            continue
        if n != 1:
            rule = f"axes that broadcast, but axis {axis}"
            raise shape_error("take_along_axis", (x, index), rule)
        shape[k] = m
    return tuple(shape)


def scatter_add(
    shape: ShapeLike, index: ArrayLike, updates: ArrayLike, axis: int = 0
) -> Tensor:
    """Zeros of `shape` with `updates` added at `index` along `axis`; take's transpose.

    `updates` broadcasts to the shape that ``take(zeros(shape), index, axis)`` has.
    Equal indices add up; an index out of range is an IndexOutOfRange.

    >>> import staticgrad as sg
    >>> counts = sg.scatter_add(3, [0, 2, 0], 1.0)
    >>> sg.compile(counts, target="reference")().tolist()
    [2.0, 0.0, 1.0]
    """
    dims = as_shape("scatter_add", shape)
    values = as_tensor(updates)
    if values.type.weak and values.dtype.kind == "f":
        values = cast(values, default_dtype())
    if not -len(dims) <= axis < len(dims):
        rule = f"an axis in -{len(dims)}..{len(dims) - 1}, got {axis}"
        raise shape_error("scatter_add", (), rule)
    place = axis % len(dims)
    where = as_index(index, dims[place])
    full = broadcasted(values, (*dims[:place], *where.shape, *dims[place + 1 :]))
    return scattered(where, full, dims, place)


def one_hot(labels: ArrayLike, n: Dim, dtype: npt.DTypeLike | None = None) -> Tensor:
    """1 where position equals label along a new last axis of `n`, 0 elsewhere.

    `dtype` is by default the Graph's float. Labels must lie in ``0..n-1``: another one
    is an IndexOutOfRange.

    >>> import staticgrad as sg
    >>> sg.compile(sg.one_hot([0, 2], 3), target="reference")().tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    (size,) = as_shape("one_hot", n)
    index = expand_dims(as_index(labels, size, wrap=False), -1)
    hit = named("equal", index, position((size,), 0))
    return cast(hit, default_dtype() if dtype is None else as_dtype(dtype))
