"""Reading of index keys ``x[key]`` by NumPy's rules.

A key is read once, for reading (indexing.py) and for writing (indexed_updates.py):
integers that are known and slices become bounds of one slice, None an axis of size 1,
slices with a scalar Tensor for a start windows, and everything else gathers. Several
index arrays are broadcast together; their axes stand where the first of them does, or
come first where a slice, None or Ellipsis stands between them.

A mask that is known when the graph is built is an index; one that is data would give a
result whose size is data, which a static graph does not have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import IndexOutOfRange, ShapeError
from staticgrad.ir.node import Constant, Tensor
from staticgrad.ir.size import Dim, Shape, product
from staticgrad.ir.source import at, here
from staticgrad.ir.types import INT64, broadcast_shapes, kind_of
from staticgrad.ops.casting import cast
from staticgrad.ops.movement.checked_index import checked, position
from staticgrad.ops.movement.slice_bounds import Bounds, bounds
from staticgrad.ops.movement.views import reshaped
from staticgrad.ops.movement.windows import is_dynamic, window_of
from staticgrad.ops.promotion import as_tensor
from staticgrad.ops.rules import dtype_error, shape_error

MASK_ADVICE = (
    "choose with sg.where(mask, x, other), which keeps the shape, or write with "
    "x.at[mask].set"
)


@dataclass(slots=True)
class Reading:
    """Reading of a key: cut by `parts`, reshape to `shape`, then take.

    `windows` and `gathers` have axes of `shape`; `first` says that the axes of index
    arrays come first.
    """

    parts: list[Bounds] = field(default_factory=list)
    shape: list[Dim] = field(default_factory=list)
    windows: list[tuple[int, Tensor, Dim]] = field(default_factory=list)
    gathers: list[tuple[int, Tensor]] = field(default_factory=list)
    first: bool = False


@dataclass(frozen=True, slots=True)
class Lookup:
    """Merged gathers: take along `axis` of the array reshaped to `shape`."""

    shape: Shape
    axis: int
    index: Tensor


def read(x: Tensor, key: Any) -> Reading:
    """Return the Reading of `key` for `x`; errors name the rule that it breaks."""
    items = _expanded(x, key if isinstance(key, tuple) else (key,))
    reading, advanced = Reading(), []
    for place, item in enumerate(items):
        if item is Ellipsis:
            continue
        if item is None:
            reading.shape.append(1)
            continue
        n = x.shape[len(reading.parts)]
        if isinstance(item, slice):
            _read_slice(x, item, n, reading)
            continue
        advanced.append(place)
        _read_integer(x, item, n, reading)
    arrays = any(index.ndim > 0 for _, index in reading.gathers)
    reading.first = arrays and advanced[-1] - advanced[0] + 1 != len(advanced)
    return reading


def _expanded(x: Tensor, key: tuple[Any, ...]) -> list[Any]:
    """Return the key with masks as indices and its Ellipsis as slices."""
    items = [part for item in key for part in _unmasked(x, item)]
    ellipses = [k for k, item in enumerate(items) if item is Ellipsis]
    used = sum(item is not None and item is not Ellipsis for item in items)
    if len(ellipses) > 1:
        raise shape_error("indexing", (x,), "at most one Ellipsis")
    if used > x.ndim:
        rule = f"at most {x.ndim} indices, got {used} for {x.type}"
        raise shape_error("indexing", (), rule)
    missing: list[Any] = [slice(None)] * (x.ndim - used)
    if not ellipses:
        return [*items, *missing]
    # An Ellipsis for no axis still separates the indices beside it.
    place = ellipses[0]
    return [*items[:place], *(missing or [Ellipsis]), *items[place + 1 :]]


def _unmasked(x: Tensor, item: Any) -> tuple[Any, ...]:
    """Return a known mask as the indices where it is true; else the item as it is."""
    mask = item.value if isinstance(item, Constant) else item
    if isinstance(mask, list) and _holds_bools(mask):
        mask = np.asarray(mask)
    if not isinstance(mask, np.ndarray) or kind_of(mask.dtype) != "b" or mask.ndim == 0:
        return (item,)
    return np.nonzero(mask)


def _holds_bools(items: list[Any]) -> bool:
    inner: Any = items
    while isinstance(inner, list) and inner:
        inner = inner[0]
    return isinstance(inner, bool | np.bool_)


def _read_slice(x: Tensor, item: slice, n: Dim, reading: Reading) -> None:
    if is_dynamic(item):
        start, size = window_of(item, n, x)
        reading.windows.append((len(reading.shape), start, size))
        reading.parts.append((0, n, 1))
        reading.shape.append(n)
        return
    part = bounds(item, n, x)
    reading.parts.append(part)
    reading.shape.append(part[1])


def _read_integer(x: Tensor, item: Any, n: Dim, reading: Reading) -> None:
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


def as_index(
    item: Any, extent: Dim, wrap: bool = True, call: str = "indexing"
) -> Tensor:
    """Return `item` as a checked int64 index; a known one is checked at once, too.

    Errors name the function that the user called, `call`.
    """
    index = as_tensor(as_integers(item))
    if kind_of(index.dtype) == "b":
        raise dtype_error(call, (index,), "an index of integers", MASK_ADVICE)
    if kind_of(index.dtype) == "f":
        advice = "cast it to an integer dtype"
        raise dtype_error(call, (index,), "an index of integers", advice)
    if isinstance(index, Constant) and isinstance(extent, int):
        _check_known(index.value, -extent if wrap else 0, extent, call)
    return checked(cast(index, INT64), extent, wrap, call)


def as_integers(item: Any) -> Any:
    """Return `item` as integers; an empty list is an index, not floats."""
    if isinstance(item, list | tuple) and len(item) == 0:
        return np.zeros(0, np.int64)
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        return np.asarray(item, np.int64)
    return item


def _check_known(index: npt.NDArray[Any], lowest: int, extent: int, call: str) -> None:
    wrong = (index < lowest) | (index >= extent)
    if wrong.any():
        raise IndexOutOfRange(
            f"{call} requires indices in {lowest}..{extent - 1}, "
            f"got {index[wrong].flat[0]}; give others{at(here())}"
        )


def lookup(shape: Shape, gathers: list[tuple[int, Tensor]]) -> Lookup:
    """Merge gathers from an array of `shape` into one.

    The axes of the index stand in the place of the gathered ones where these are
    neighbours, and first where they are not.
    """
    if len(gathers) == 1:
        ((axis, index),) = gathers
        return Lookup(shape, axis, index)
    axes = [axis for axis, _ in gathers]
    _broadcast([index for _, index in gathers])
    if axes == list(range(axes[0], axes[0] + len(axes))):
        return _neighbours(shape, gathers)
    return _apart(shape, gathers)


def _broadcast(indices: list[Tensor]) -> None:
    try:
        broadcast_shapes([index.shape for index in indices])
    except ShapeError as error:
        rule = "index arrays that broadcast together"
        raise shape_error("indexing", indices, rule, error.args[0]) from None


def _neighbours(shape: Shape, gathers: list[tuple[int, Tensor]]) -> Lookup:
    """Merge ``x[i, j]``: element i * m + j of the two axes as one."""
    first, last = gathers[0][0], gathers[-1][0]
    flat = gathers[0][1]
    for axis, index in gathers[1:]:
        flat = flat * shape[axis] + index
    size = product(shape[first : last + 1])
    merged = (*shape[:first], size, *shape[last + 1 :])
    return Lookup(merged, first, checked(flat, size, wrap=False))


def _apart(shape: Shape, gathers: list[tuple[int, Tensor]]) -> Lookup:
    """Merge ``x[i, :, j]``: each element's position in the array as one axis."""
    axes = dict(gathers)
    others = [axis for axis in range(len(shape)) if axis not in axes]
    flat: Tensor | None = None
    for axis, n in enumerate(shape):
        if axis in axes:
            index = axes[axis]
            term = reshaped(index, index.shape + (1,) * len(others))
        else:
            later = len(others) - others.index(axis) - 1
            term = reshaped(position((n,), 0), (n,) + (1,) * later)
        step = product(shape[axis + 1 :])
        term = term if isinstance(step, int) and step == 1 else term * step
        flat = term if flat is None else flat + term
    assert flat is not None
    size = product(shape)
    return Lookup((size,), 0, checked(flat, size, wrap=False))
