"""Updates of a copy: x.at[key].set, add, subtract, multiply, max, min.

``x.at[key].add(v)`` is x with v added at ``x[key]``. A static key is a region (the op
replace), a dynamic one a scatter; a mask is a choice per element. Where indices repeat,
set keeps the last value and the others combine all of them in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgrad.errors import ShapeError
from staticgrad.ir.node import Constant, Tensor
from staticgrad.ir.size import Shape
from staticgrad.ir.types import kind_of
from staticgrad.ops.casting import cast
from staticgrad.ops.movement.checked_index import taken
from staticgrad.ops.movement.index_keys import Reading, lookup, read
from staticgrad.ops.movement.indexing import getitem
from staticgrad.ops.movement.placement import replaced
from staticgrad.ops.movement.reshaping import moveaxis
from staticgrad.ops.movement.scatter import How, scattered
from staticgrad.ops.movement.slicing import sliced
from staticgrad.ops.movement.views import broadcasted, reshaped
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.rules import dtype_error, shape_error


class At:
    """Result of ``x.at``; a key in brackets selects the elements to write.

    >>> import staticgrad as sg
    >>> y = sg.zeros(3).at[[0, 2, 2]].add(1.0)
    >>> sg.compile(y, target="reference")().tolist()
    [1.0, 0.0, 2.0]
    """

    __slots__ = ("_x",)

    def __init__(self, x: Tensor) -> None:
        self._x = x

    def __getitem__(self, key: Any) -> Spot:
        """Select the elements ``x[key]``."""
        return Spot(self._x, key)


class Spot:
    """Elements of an array to update; each method returns the updated array.

    Values broadcast to the shape of ``x[key]``.
    """

    __slots__ = ("_key", "_x")

    def __init__(self, x: Tensor, key: Any) -> None:
        self._x = x
        self._key = key

    def get(self) -> Tensor:
        """Return ``x[key]``."""
        return getitem(self._x, self._key)

    def set(self, values: ArrayLike) -> Tensor:
        """Return the array with `values` there; the last of equal indices wins."""
        return _written(self._x, self._key, values, "set")

    def add(self, values: ArrayLike) -> Tensor:
        """Return the array with `values` added; equal indices accumulate."""
        return _written(self._x, self._key, values, "add")

    def subtract(self, values: ArrayLike) -> Tensor:
        """Return the array with `values` subtracted; equal indices accumulate."""
        new = _as_values(self._x, values, "subtract")
        return _written(self._x, self._key, named("negative", new), "add")

    def multiply(self, values: ArrayLike) -> Tensor:
        """Return the array multiplied by `values`; equal indices accumulate."""
        return _written(self._x, self._key, values, "multiply")

    def max(self, values: ArrayLike) -> Tensor:
        """Return the maximum of the old element and all its `values`."""
        return _written(self._x, self._key, values, "maximum")

    def min(self, values: ArrayLike) -> Tensor:
        """Return the minimum of the old element and all its `values`."""
        return _written(self._x, self._key, values, "minimum")


def at_of(x: Tensor) -> At:
    """Select elements to update: ``x.at[key].set(values)`` returns a new array."""
    return At(x)


def _written(x: Tensor, key: Any, values: ArrayLike, how: How) -> Tensor:
    new = _as_values(x, values, how)
    if _is_mask(key):
        return _masked(x, as_tensor(key), new, how)
    reading = read(x, key)
    old = reshaped(sliced(x, reading.parts), tuple(reading.shape))
    block = _in_block(old, reading, new, how)
    sizes = tuple(size for _, size, _ in reading.parts)
    parts = [*reading.parts, *((0, n, 1) for n in x.shape[len(sizes) :])]
    block = reshaped(block, tuple(size for _, size, _ in parts))
    return block if _is_whole(x, parts) else replaced(x, block, parts)


def _is_whole(x: Tensor, parts: list[Any]) -> bool:
    pairs = zip(parts, x.shape, strict=True)
    return all((size, step) == (n, 1) for (_, size, step), n in pairs)


def _as_values(x: Tensor, values: ArrayLike, how: str) -> Tensor:
    new = as_tensor(values, x)
    if not np.can_cast(new.dtype, x.dtype, "same_kind"):
        rule = "values that the dtype of the array holds"
        raise dtype_error(f"at[].{how}", (x, new), rule, "cast with .astype")
    return cast(new, x.dtype)


def _is_mask(key: Any) -> bool:
    if isinstance(key, tuple) and len(key) == 1:
        (key,) = key
    return (
        isinstance(key, Tensor)
        and not isinstance(key, Constant)
        and kind_of(key.dtype) == "b"
    )


def _masked(x: Tensor, mask: Tensor, new: Tensor, how: How) -> Tensor:
    """Select per element (or per row, where the mask has fewer axes)."""
    if mask.shape != x.shape[: mask.ndim]:
        rule = "a mask of the shape of the array, or of its first axes"
        raise shape_error("indexing", (x, mask), rule)
    choice = reshaped(mask, mask.shape + (1,) * (x.ndim - mask.ndim))
    new = _fitted(x, new, x.shape, how)
    return named("where", broadcasted(choice, x.shape), _combined(x, new, how), x)


def _combined(old: Tensor, new: Tensor, how: How) -> Tensor:
    return new if how == "set" else named(how, old, new)


def _fitted(x: Tensor, new: Tensor, shape: Shape, how: str) -> Tensor:
    try:
        return broadcasted(new, shape)
    except ShapeError:
        text = ", ".join(map(str, shape))
        rule = f"values that broadcast to ({text}), got {new.type} for {x.type}"
        raise shape_error(f"at[].{how}", (), rule) from None


def _in_block(old: Tensor, reading: Reading, new: Tensor, how: How) -> Tensor:
    """Return the block of the array with the new values in it."""
    blocks = [old]
    for axis, start, size in reading.windows:
        blocks.append(taken(blocks[-1], start, axis, window=size))
    inner = blocks.pop()
    if reading.gathers:
        result = _scattered(inner, reading, new, how)
    else:
        result = _combined(inner, _fitted(old, new, inner.shape, how), how)
    pairs = zip(reversed(blocks), reversed(reading.windows), strict=True)
    for block, (axis, start, size) in pairs:
        result = scattered(block, start, result, axis, "set", window=size)
    return result


def _scattered(x: Tensor, reading: Reading, new: Tensor, how: How) -> Tensor:
    where = lookup(x.shape, reading.gathers)
    before, after = where.shape[: where.axis], where.shape[where.axis + 1 :]
    rank = where.index.ndim
    if reading.first:
        new = _fitted(x, new, (*where.index.shape, *before, *after), how)
        own = tuple(range(where.axis, where.axis + rank))
        new = moveaxis(new, tuple(range(rank)), own)
    else:
        new = _fitted(x, new, (*before, *where.index.shape, *after), how)
    flat = reshaped(x, where.shape)
    return reshaped(scattered(flat, where.index, new, where.axis, how), x.shape)
