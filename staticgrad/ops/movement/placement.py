"""Placement: inputs written into regions of a result (pad, concatenate, replace)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Layout, Piece, Place, Sample, define
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.types import DType, TensorType, normalize_axis
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.slice_bounds import Bounds
from staticgrad.ops.movement.slicing import SLICE, cut, flipped_axes
from staticgrad.ops.movement.views import broadcasted, numbers, same_dtype

Number: TypeAlias = float | int | bool


def _pad_shape(
    x: TensorType, *, low: Shape, high: Shape, interior: Shape, value: Number
) -> Shape:
    """Return ``low + size + interior * (size - 1) + high`` per axis.

    The formula holds for size 0 too, where low and high may be negative: the gradient
    of an empty slice is such a pad.
    """
    if not len(low) == len(high) == len(interior) == len(x.shape):
        raise ShapeError("a low, a high and an interior width per axis")
    padded = []
    for n, before, after, between in zip(x.shape, low, high, interior, strict=True):
        size = before + n + between * (n - 1) + after
        widths = (size, between) if n == 0 else (before, after, between)
        if any(isinstance(w, int) and w < 0 for w in widths):
            raise ShapeError("widths that are not negative", "cut with a slice instead")
        padded.append(size)
    return tuple(padded)


def _pad_pieces(
    shape: Shape, x: TensorType, *, low: Shape, interior: Shape, **_: Any
) -> tuple[Piece]:
    strides = Layout.contiguous(shape).strides
    offset: Dim = 0
    for start, stride in zip(low, strides, strict=True):
        offset = offset + start * stride
    steps = tuple(s * (gap + 1) for s, gap in zip(strides, interior, strict=True))
    return (Piece(0, Layout(x.shape, steps, offset)),)


def _pad_vjp(
    g: Tensor, y: Tensor, x: Tensor, *, low: Shape, interior: Shape, **_: Any
) -> tuple[Tensor]:
    steps = tuple(gap + 1 for gap in interior)
    return (apply(SLICE, g, starts=low, sizes=x.shape, steps=steps),)


def _pad_jvp(ts: tuple[Tensor], y: Tensor, x: Tensor, **attrs: Any) -> Tensor:
    return apply(PAD, *ts, **{**attrs, "value": 0})


def _pad_numpy(
    x: npt.NDArray[Any],
    *,
    low: tuple[int, ...],
    high: tuple[int, ...],
    interior: tuple[int, ...],
    value: Number,
) -> npt.NDArray[Any]:
    sides = zip(x.shape, low, high, interior, strict=True)
    shape = [a + n + gap * (n - 1) + b for n, a, b, gap in sides]
    result = np.full(shape, value, x.dtype)
    ends = zip(x.shape, low, interior, strict=True)
    if x.size:
        region = tuple(slice(a, a + (n - 1) * (g + 1) + 1, g + 1) for n, a, g in ends)
        result[region] = x
    return result


PAD = define(
    "pad",
    shape=_pad_shape,
    dtype=same_dtype,
    vjp=_pad_vjp,
    jvp=_pad_jvp,
    code=Place(_pad_pieces, lambda *, value, **_: value),
    numpy=_pad_numpy,
    samples=lambda: [
        Sample((numbers(2, 3),), _attrs((1, 0), (0, 2), (0, 0))),
        Sample((numbers(3),), _attrs((1,), (2,), (2,), 1.5)),
        Sample((numbers(0, 2),), _attrs((1, 1), (1, 0), (0, 1))),
        Sample((numbers(0),), _attrs((1,), (2,), (2,))),
        Sample((numbers(),), _attrs((), (), ())),
        Sample((np.arange(3),), _attrs((1,), (1,), (0,), 7)),
    ],
    bad=lambda: [
        Bad((numbers(2),), _attrs((-1,), (0,), (0,)), ShapeError, "not negative"),
        Bad((numbers(2),), _attrs((0,), (0,), (-1,)), ShapeError, "not negative"),
        Bad((numbers(2, 2),), _attrs((1,), (0,), (0,)), ShapeError, "per axis"),
    ],
)


def _attrs(
    low: tuple[int, ...],
    high: tuple[int, ...],
    interior: tuple[int, ...],
    value: Number = 0,
) -> dict[str, Any]:
    return {"low": low, "high": high, "interior": interior, "value": value}


def _concatenate_shape(*parts: TensorType, axis: int) -> Shape:
    if not parts:
        raise ShapeError("at least one array")
    first = parts[0].shape
    place = normalize_axis(axis, len(first))
    rest = [t.shape[:place] + t.shape[place + 1 :] for t in parts]
    ranks = {len(t.shape) for t in parts}
    if len(ranks) > 1 or any(other != rest[0] for other in rest):
        raise ShapeError(f"equal sizes on every axis but axis {axis}")
    total: Dim = 0
    for part in parts:
        total = total + part.shape[place]
    return (*first[:place], total, *first[place + 1 :])


def one_dtype(*parts: TensorType, **_: Any) -> DType:
    """The dtype rule of what has parts: theirs."""
    if any(t.dtype != parts[0].dtype for t in parts):
        raise DTypeError("one dtype", "cast with .astype")
    return parts[0].dtype


def _starts(sizes: Sequence[Dim]) -> list[Dim]:
    """Return the offset of each part."""
    zero: Dim = 0
    return list(accumulate(sizes[:-1], operator.add, initial=zero))


def _concatenate_pieces(
    shape: Shape, *parts: TensorType, axis: int
) -> tuple[Piece, ...]:
    strides = Layout.contiguous(shape).strides
    starts = _starts([t.shape[axis] for t in parts])
    return tuple(
        Piece(k, Layout(t.shape, strides, start * strides[axis]))
        for k, (t, start) in enumerate(zip(parts, starts, strict=True))
    )


def _concatenate_vjp(
    g: Tensor, y: Tensor, *parts: Tensor, axis: int
) -> tuple[Tensor, ...]:
    sizes = [part.shape[axis] for part in parts]
    pairs = zip(_starts(sizes), sizes, strict=True)
    return tuple(cut(g, axis, start, size) for start, size in pairs)


CONCATENATE = define(
    "concatenate",
    shape=_concatenate_shape,
    dtype=one_dtype,
    vjp=_concatenate_vjp,
    code=Place(_concatenate_pieces, lambda **_: None),
    numpy=lambda *parts, axis: np.concatenate(parts, axis),
    samples=lambda: [
        Sample((numbers(2, 3), numbers(1, 3)), {"axis": 0}),
        Sample((numbers(2, 1), numbers(2, 2), numbers(2, 0)), {"axis": 1}),
        Sample((numbers(3),), {"axis": 0}),
        Sample((np.arange(3), np.arange(2)), {"axis": 0}),
    ],
    bad=lambda: [
        Bad((numbers(2, 3), numbers(2, 2)), {"axis": 0}, ShapeError, "equal sizes"),
        Bad((numbers(2), numbers(2, 2)), {"axis": 0}, ShapeError, "equal sizes"),
        Bad((numbers(2), numbers(2)), {"axis": 1}, ShapeError, "axis in"),
        Bad((numbers(2), np.arange(2)), {"axis": 0}, DTypeError, "one dtype"),
    ],
)


def joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate tensors of one dtype along `axis`; a single one is returned."""
    return parts[0] if len(parts) == 1 else apply(CONCATENATE, *parts, axis=axis)


def _replace_shape(
    x: TensorType, part: TensorType, *, starts: Shape, steps: tuple[int, ...]
) -> Shape:
    cut_shape = SLICE.shape(x, starts=starts, sizes=part.shape, steps=steps)
    if any(step < 1 for step in steps) or cut_shape != part.shape:
        raise ShapeError("steps that are positive")
    return x.shape


def _replace_pieces(
    shape: Shape, x: TensorType, part: TensorType, *, starts: Shape, steps: Shape
) -> tuple[Piece, Piece]:
    whole = Layout.contiguous(shape)
    offset: Dim = 0
    for start, stride in zip(starts, whole.strides, strict=True):
        offset = offset + start * stride
    strides = tuple(s * k for s, k in zip(whole.strides, steps, strict=True))
    return Piece(0, whole), Piece(1, Layout(part.shape, strides, offset))


def _replace_vjp(
    g: Tensor,
    y: Tensor,
    x: Tensor,
    part: Tensor,
    *,
    starts: Shape,
    steps: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    nothing = broadcasted(frozen(np.zeros((), g.dtype)), part.shape)
    inside = apply(SLICE, g, starts=starts, sizes=part.shape, steps=steps)
    return apply(REPLACE, g, nothing, starts=starts, steps=steps), inside


def _replace_numpy(
    x: npt.NDArray[Any],
    part: npt.NDArray[Any],
    *,
    starts: tuple[int, ...],
    steps: tuple[int, ...],
) -> npt.NDArray[Any]:
    result = np.array(x)
    places = zip(starts, steps, part.shape, strict=True)
    if part.size:
        key = tuple(slice(a, a + (n - 1) * k + 1, k) for a, k, n in places)
        result[key] = part
    return result


REPLACE = define(
    "replace",
    shape=_replace_shape,
    dtype=one_dtype,
    vjp=_replace_vjp,
    code=Place(_replace_pieces, lambda **_: None),
    numpy=_replace_numpy,
    samples=lambda: [
        Sample((numbers(4, 3), numbers(2, 1)), _region((1, 2), (1, 1))),
        Sample((numbers(7), numbers(3)), _region((1,), (2,))),
        Sample((numbers(3), numbers(3)), _region((0,), (1,))),
        Sample((numbers(3), numbers(0)), _region((2,), (1,))),
        Sample((numbers(), numbers()), _region((), ())),
        Sample((np.arange(3), np.arange(1)), _region((1,), (1,))),
    ],
    bad=lambda: [
        Bad((numbers(4), numbers(3)), _region((2,), (1,)), ShapeError, "within 0..3"),
        Bad((numbers(4), numbers(2)), _region((3,), (-1,)), ShapeError, "positive"),
        Bad((numbers(2), np.arange(2)), _region((0,), (1,)), DTypeError, "one dtype"),
    ],
)


def _region(starts: tuple[int, ...], steps: tuple[int, ...]) -> dict[str, Any]:
    return {"starts": starts, "steps": steps}


def replaced(x: Tensor, part: Tensor, bounds: Sequence[Bounds]) -> Tensor:
    """Return `x` with `part` in the region of a slice with these bounds per axis.

    An axis with a negative step is filled from its end.
    """
    part = flipped_axes(part, [a for a, (_, _, step) in enumerate(bounds) if step < 0])
    starts = tuple(
        start + (size - 1) * step if step < 0 else start for start, size, step in bounds
    )
    steps = tuple(abs(step) for _, _, step in bounds)
    return apply(REPLACE, x, part, starts=starts, steps=steps)
