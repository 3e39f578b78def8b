"""Padding in NumPy's modes.

A constant is one op; the other modes put slices of the array beside it, or take by an
index that is known where the width is larger than the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.checked_index import checked, taken
from staticgrad.ops.movement.placement import PAD, Number, joined
from staticgrad.ops.movement.slice_bounds import Bounds
from staticgrad.ops.movement.slicing import cut, sliced
from staticgrad.ops.movement.views import broadcasted
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.rules import one_axis, shape_error
from staticgrad.ops.sizes import as_dim, never_negative

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


def pad(
    array: ArrayLike,
    pad_width: Any,
    mode: str = "constant",
    constant_values: Any = 0,
) -> Tensor:
    """Return `array` with more elements before and after it along each axis, as np.pad.

    `pad_width` is one width, a pair (before, after), one pair per axis, or a dict from
    axis to either. Widths may be symbolic sizes. In `mode` "constant" the elements are
    `constant_values`, given like the widths; "edge" repeats the last element, "reflect"
    mirrors at it, "symmetric" mirrors it too, "wrap" continues at the other end.

    >>> import staticgrad as sg
    >>> print(sg.pad(sg.input("x", ("n", 2)), ((1, 0), (0, 2))).type)
    float32[n + 1, 4]
    >>> sg.compile(sg.pad([1, 2, 3], 2, "reflect"), target="reference")().tolist()
    [3, 2, 1, 2, 3, 2, 1]
    """
    x = as_tensor(array)
    if mode not in MODES:
        rule = f"a mode of {', '.join(MODES)}, got {mode!r}"
        raise shape_error("pad", (), rule, "concatenate slices for other modes")
    pairs = [(as_dim(a), as_dim(b)) for a, b in _per_axis(x, pad_width, 0)]
    if not all(never_negative(width) for pair in pairs for width in pair):
        raise shape_error("pad", (x,), "widths that are not negative for any size")
    if mode == "constant":
        return _constant(x, pairs, constant_values)
    for axis, (before, after) in enumerate(pairs):
        if (before, after) != (0, 0):
            x = _extended(x, axis, before, after, mode)
    return x


def _per_axis(x: Tensor, given: Any, default: Any) -> list[tuple[Any, Any]]:
    """Return NumPy's forms of a width or value as one pair per axis."""
    if isinstance(given, dict):
        found = {one_axis("pad", x, axis): _pair(w) for axis, w in given.items()}
        return [found.get(axis, (default, default)) for axis in range(x.ndim)]
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if not isinstance(given, Sequence):
        return [_pair(given)] * x.ndim
    nested = [isinstance(item, Sequence | np.ndarray) for item in given]
    if not any(nested):
        return [_pair(given)] * x.ndim
    pairs = [_pair(item) for item in given]
    if len(pairs) == 1:
        pairs = pairs * x.ndim
    if len(pairs) != x.ndim:
        raise shape_error("pad", (), f"a pair per axis, got {given} for {x.type}")
    return pairs


def _pair(width: Any) -> tuple[Any, Any]:
    sides = tuple(width) if isinstance(width, Sequence | np.ndarray) else (width,)
    if len(sides) not in (1, 2):
        raise shape_error("pad", (), f"a width or a pair of widths, got {width!r}")
    return sides[0], sides[-1]


def _constant(x: Tensor, pairs: list[tuple[Dim, Dim]], values: Any) -> Tensor:
    """Pad with constants: one pad for one value; else one axis and side at a time."""
    found = [(_fill_value(x, a), _fill_value(x, b)) for a, b in _per_axis(x, values, 0)]
    distinct = {repr(value) for pair in found for value in pair}
    if len(distinct) <= 1:
        low, high = (tuple(pair[side] for pair in pairs) for side in (0, 1))
        return _padded(x, low, high, found[0][0] if found else 0)
    none: tuple[Dim, ...] = (0,) * x.ndim
    for axis, (widths, sides) in enumerate(zip(pairs, found, strict=True)):
        low = (*none[:axis], widths[0], *none[axis + 1 :])
        high = (*none[:axis], widths[1], *none[axis + 1 :])
        x = _padded(_padded(x, low, none, sides[0]), none, high, sides[1])
    return x


def _padded(
    x: Tensor, low: tuple[Dim, ...], high: tuple[Dim, ...], value: Number
) -> Tensor:
    zeros = (0,) * x.ndim
    return apply(PAD, x, low=low, high=high, interior=zeros, value=value)


def _fill_value(x: Tensor, value: Any) -> Number:
    """Return the number as the dtype of `x` holds it."""
    if isinstance(value, Tensor) or np.ndim(value) != 0:
        raise shape_error("pad", (), f"numbers as constant_values, got {value!r}")
    number: Number = np.asarray(value).astype(x.dtype).item()
    return number


def _extended(x: Tensor, axis: int, before: Dim, after: Dim, mode: str) -> Tensor:
    """Pad `x` along one axis by elements of its own."""
    n = x.shape[axis]
    if n == 0:
        raise shape_error("pad", (x,), f"elements along axis {axis} to pad with")
    if mode == "edge":
        parts = [_edge(x, axis, 0, before), x, _edge(x, axis, n - 1, after)]
        return joined([part for part in parts if part.shape[axis] != 0], axis)
    spare = n - 1 if mode == "reflect" else n
    widths, known = (before, after), spare if isinstance(spare, int) else 0
    if isinstance(n, int) and not all(isinstance(w, int) for w in widths):
        rule = f"widths that are numbers in mode {mode!r}, got {before} and {after}"
        raise shape_error("pad", (), rule)
    wide = any(isinstance(w, int) and w > known for w in widths)
    if isinstance(n, int) and wide:
        index = np.pad(np.arange(n), widths, mode)  # type: ignore[call-overload]
        return taken(x, checked(frozen(index), n, wrap=False), axis)
    parts = [_begin(x, axis, before, mode), x, _end(x, axis, after, mode)]
    return joined([part for part in parts if part.shape[axis] != 0], axis)


def _edge(x: Tensor, axis: int, place: Dim, width: Dim) -> Tensor:
    shape = (*x.shape[:axis], width, *x.shape[axis + 1 :])
    return broadcasted(cut(x, axis, place, 1), shape)


def _begin(x: Tensor, axis: int, width: Dim, mode: str) -> Tensor:
    n = x.shape[axis]
    if mode == "wrap":
        return cut(x, axis, n - width, width)
    return _reversed(x, axis, width if mode == "reflect" else width - 1, width)


def _end(x: Tensor, axis: int, width: Dim, mode: str) -> Tensor:
    n = x.shape[axis]
    if mode == "wrap":
        return cut(x, axis, 0, width)
    return _reversed(x, axis, n - 2 if mode == "reflect" else n - 1, width)


def _reversed(x: Tensor, axis: int, start: Dim, size: Dim) -> Tensor:
    """Return `size` elements from `start` backwards."""
    parts: list[Bounds] = [(0, n, 1) for n in x.shape]
    parts[axis] = (start, size, -1)
    return sliced(x, parts)


__all__ = ["pad"]
