"""Indexing, and take, take_along_axis, put_along_axis, scatter_add, one_hot.

``x[key]`` becomes at most one slice (a view), one reshape (for integers and None) and
one take of everything that is data (index_keys.py). An integer on a symbolic axis is
data, too: whether it is within the axis is known when the graph runs.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from staticgrad.ir.graph import default_dtype
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.types import as_dtype, kind_of
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import ShapeLike, as_shape, frozen
from staticgrad.ops.movement.checked_index import position, taken
from staticgrad.ops.movement.index_keys import (
    Reading,
    as_index,
    as_integers,
    lookup,
    read,
)
from staticgrad.ops.movement.reshaping import expand_dims, moveaxis, ravel
from staticgrad.ops.movement.scatter import scattered
from staticgrad.ops.movement.slicing import sliced
from staticgrad.ops.movement.views import broadcasted, reshaped
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.rules import one_axis, shape_error


def getitem(x: Tensor, key: Any) -> Tensor:
    """Index as NumPy's ``x[key]``; a mask must be known when the graph is built.

    Indices out of range are an IndexOutOfRange: at once where axis and index are known,
    otherwise when the graph runs. ``x[i : i + n]`` with a scalar Tensor i takes n
    elements from i on, all of which have to be within the axis.
    """
    reading = read(x, key)
    result = reshaped(sliced(x, reading.parts), tuple(reading.shape))
    for axis, start, size in reading.windows:
        result = taken(result, start, axis, window=size)
    return gathered(result, reading)


def gathered(x: Tensor, reading: Reading) -> Tensor:
    """Gather from `x`, already sliced, by the index arrays and scalars of a key."""
    if not reading.gathers:
        return x
    where = lookup(x.shape, reading.gathers)
    result = taken(reshaped(x, where.shape), where.index, where.axis)
    if not reading.first or where.axis == 0:
        return result
    own = range(where.axis, where.axis + where.index.ndim)
    return moveaxis(result, tuple(own), tuple(range(where.index.ndim)))


Mode = Literal["raise", "wrap", "clip"]


def take(
    a: ArrayLike, indices: ArrayLike, axis: int | None = None, mode: Mode = "raise"
) -> Tensor:
    """Return the elements of `a` at `indices` along `axis`, or of the raveled `a`.

    The axes of `indices` take the place of `axis`. Negative indices count from the end.
    An index out of range is an IndexOutOfRange, when the graph runs if not before; with
    `mode` "wrap" it is taken modulo the size, with "clip" it becomes the nearest one.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("n", 4))
    >>> print(sg.take(x, [[0, -1]], axis=1).type)
    float32[n, 1, 2]
    """
    x = as_tensor(a)
    if axis is None:
        x, axis = ravel(x), 0
    place = one_axis("take", x, axis)
    if mode not in ("raise", "wrap", "clip"):
        raise shape_error("take", (), f"mode raise, wrap or clip, got {mode!r}")
    index = within(indices, x.shape[place], mode) if mode != "raise" else indices
    return taken(x, as_index(index, x.shape[place], call="take"), place)


def within(indices: ArrayLike, extent: Dim, mode: str) -> Tensor:
    """Return `indices` moved into ``0..extent-1``, by `mode` "wrap" or "clip"."""
    index = cast(as_tensor(as_integers(indices)), "int64")
    last = as_tensor(extent, index)
    if mode == "wrap":
        return named("remainder", index, last)
    zero = frozen(np.zeros((), np.int64))
    return named("maximum", named("minimum", index, last - 1), zero)


def take_along_axis(
    arr: ArrayLike, indices: ArrayLike, axis: int | None = -1
) -> Tensor:
    """Return elements of `arr` along `axis`, one for each of `indices`.

    The other axes broadcast. With ``axis=None`` both are raveled.

    >>> import staticgrad as sg
    >>> logits, label = sg.input("x", ("n", 10)), sg.input("y", ("n",), "int64")
    >>> print(sg.take_along_axis(logits, sg.expand_dims(label, -1), axis=1).type)
    float32[n, 1]
    """
    x, index = as_tensor(arr), as_tensor(as_integers(indices))
    if axis is None:
        x, index, axis = ravel(x), ravel(index), 0
    place = one_axis("take_along_axis", x, axis)
    x, full = _beside("take_along_axis", x, index, place)
    return taken(x, full, place, pointwise=True)


def put_along_axis(
    arr: ArrayLike, indices: ArrayLike, values: ArrayLike, axis: int | None = -1
) -> Tensor:
    """Return `arr` with `values` at the positions of take_along_axis.

    The result is new: unlike NumPy's function this one changes no array. Of equal
    indices the last one counts. With ``axis=None`` the result is that of the raveled
    array, in the shape of `arr`.

    >>> import staticgrad as sg
    >>> y = sg.put_along_axis([[1, 2, 3]], [[2, 0]], 9, axis=1)
    >>> sg.compile(y, target="reference")().tolist()
    [[9, 2, 9]]
    """
    x = as_tensor(arr)
    new = cast(as_tensor(values, x), x.dtype)
    index = as_tensor(as_integers(indices))
    if axis is None:
        flat = put_along_axis(ravel(x), ravel(index), new, 0)
        return reshaped(flat, x.shape)
    place = one_axis("put_along_axis", x, axis)
    x, full = _beside("put_along_axis", x, index, place)
    return scattered(x, full, broadcasted(new, full.shape), place, "set", True)


def _beside(name: str, x: Tensor, index: Tensor, place: int) -> tuple[Tensor, Tensor]:
    """Broadcast array and checked index against each other on all other axes."""
    if x.ndim != index.ndim:
        rule = "an index with as many axes as the array"
        raise shape_error(name, (x, index), rule)
    shape = _broadcast_others(name, x, index, place)
    before, after = shape[:place], shape[place + 1 :]
    x = broadcasted(x, (*before, x.shape[place], *after))
    wanted = as_index(index, x.shape[place], call=name)
    return x, broadcasted(wanted, (*before, index.shape[place], *after))


def _broadcast_others(name: str, x: Tensor, index: Tensor, axis: int) -> Shape:
    """Return the shape that both have on all axes but `axis`."""
    shape = list(x.shape)
    for k, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)):
        if k == axis or m in (1, n):
            continue
        if n != 1:
            rule = f"axes that broadcast, but axis {axis}"
            raise shape_error(name, (x, index), rule)
        shape[k] = m
    return tuple(shape)


def scatter_add(
    shape: ShapeLike, index: ArrayLike, updates: ArrayLike, axis: int = 0
) -> Tensor:
    """Return zeros of `shape` with `updates` added at `index`; take's transpose.

    `updates` broadcasts to the shape that ``take(zeros(shape), index, axis)`` has.
    Equal indices add up; an index out of range is an IndexOutOfRange.

    >>> import staticgrad as sg
    >>> counts = sg.scatter_add(3, [0, 2, 0], 1.0)
    >>> sg.compile(counts, target="reference")().tolist()
    [2.0, 0.0, 1.0]
    """
    dims = as_shape("scatter_add", shape)
    values = as_tensor(updates)
    if values.type.weak and kind_of(values.dtype) == "f":
        values = cast(values, default_dtype())
    if not -len(dims) <= axis < len(dims):
        rule = f"an axis in -{len(dims)}..{len(dims) - 1}, got {axis}"
        raise shape_error("scatter_add", (), rule)
    place = axis % len(dims)
    where = as_index(index, dims[place], call="scatter_add")
    full = broadcasted(values, (*dims[:place], *where.shape, *dims[place + 1 :]))
    zeros = broadcasted(frozen(np.zeros((), values.dtype)), dims)
    return scattered(zeros, where, full, place)


def one_hot(labels: ArrayLike, n: Dim, dtype: npt.DTypeLike | None = None) -> Tensor:
    """Return 1 where position equals label along a new last axis of `n`, 0 elsewhere.

    `dtype` is by default the Graph's float. Labels must lie in ``0..n-1``: another one
    is an IndexOutOfRange.

    >>> import staticgrad as sg
    >>> sg.compile(sg.one_hot([0, 2], 3), target="reference")().tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    (size,) = as_shape("one_hot", n)
    index = expand_dims(as_index(labels, size, wrap=False, call="one_hot"), -1)
    hit = named("equal", index, position((size,), 0))
    return cast(hit, default_dtype() if dtype is None else as_dtype(dtype))


__all__ = ["one_hot", "put_along_axis", "scatter_add", "take", "take_along_axis"]
