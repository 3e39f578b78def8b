"""Slices: the op, and flip and split, which are made of it.

A slice is a View with normalised attributes: element k of an axis of the result is
element ``start + k * step`` of the input.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Layout, Sample, View, define
from staticgrad.ir.size import Dim, Shape, Size
from staticgrad.ir.types import TensorType
from staticgrad.ops.movement.slice_bounds import Bounds, bounds
from staticgrad.ops.movement.views import numbers, reshaped, same_dtype
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.rules import one_axis, shape_error, some_axes
from staticgrad.ops.sizes import as_dim


def _slice_shape(
    x: TensorType, *, starts: Shape, sizes: Shape, steps: tuple[int, ...]
) -> Shape:
    if not len(starts) == len(sizes) == len(steps) == len(x.shape):
        raise ShapeError("a start, a size and a step per axis")
    for n, start, size, step in zip(x.shape, starts, sizes, steps, strict=True):
        last = start + (size - 1) * step
        if size == 0:
            _require_empty(start, n, step)
            continue
        outside = _less(start, 0) or _less(size, 0) or _less(last, 0)
        if outside or _less(n - start, 1) or _less(n - last, 1):
            rule = f"elements {start}..{last} within 0..{n - 1}"
            raise ShapeError(rule, "pass arrays of sizes for which it fits")
    return sizes


def _less(dim: Dim, least: int) -> bool:
    """Whether `dim` is known to be less."""
    return isinstance(dim, int) and dim < least


def _require_empty(start: Dim, n: Dim, step: int) -> None:
    """Raise ShapeError for an empty slice that starts outside of its axis."""
    below = start if step > 0 else start - step
    above = n - start - 1 + max(step, 0)
    if _less(below, 0) or _less(above, 0):
        rule = f"a start within 0..{n}, got {start}"
        raise ShapeError(rule, "pass arrays of sizes for which it fits")


def _slice_layout(
    source: Layout, shape: Shape, *, starts: Shape, steps: tuple[int, ...], **_: Any
) -> Layout:
    offset = source.offset
    for start, stride in zip(starts, source.strides, strict=True):
        offset = offset + start * stride
    strides = tuple(s * k for s, k in zip(source.strides, steps, strict=True))
    return Layout(shape, strides, offset)


def _slice_vjp(
    g: Tensor,
    y: Tensor,
    x: Tensor,
    *,
    starts: Shape,
    sizes: Shape,
    steps: tuple[int, ...],
) -> tuple[Tensor]:
    """Scatter the cotangent into zeros; reversed axes are flipped first."""
    flipped = flipped_axes(g, [axis for axis, k in enumerate(steps) if k < 0])
    spans = [(size - 1) * k for size, k in zip(sizes, steps, strict=True)]
    lows = tuple(
        start + span if k < 0 else start
        for start, span, k in zip(starts, spans, steps, strict=True)
    )
    widths = [abs(k) * (size - 1) + 1 for size, k in zip(sizes, steps, strict=True)]
    highs = tuple(
        n - low - width for n, low, width in zip(x.shape, lows, widths, strict=True)
    )
    interior = tuple(abs(k) - 1 for k in steps)
    attrs = {"low": lows, "high": highs, "interior": interior, "value": 0}
    return (named("pad", flipped, **attrs),)


def _slice_numpy(
    x: npt.NDArray[Any],
    *,
    starts: tuple[int, ...],
    sizes: tuple[int, ...],
    steps: tuple[int, ...],
) -> npt.NDArray[Any]:
    return x[tuple(map(_python_slice, starts, sizes, steps))]


def _python_slice(start: int, size: int, step: int) -> slice:
    stop = start + size * step
    return slice(0, 0) if size <= 0 else slice(start, None if stop < 0 else stop, step)


SLICE = define(
    "slice",
    shape=_slice_shape,
    dtype=same_dtype,
    vjp=_slice_vjp,
    code=View(_slice_layout),
    numpy=_slice_numpy,
    samples=lambda: [
        _sample((5, 4), (1, 0), (3, 4), (1, 1)),
        _sample((7,), (1,), (3,), (2,)),
        _sample((7,), (6,), (3,), (-3,)),
        _sample((6, 2), (5, 1), (3, 2), (-2, -1)),
        _sample((4,), (4,), (0,), (1,)),
        _sample((0,), (-1,), (0,), (-1,)),
        _sample((), (), (), ()),
    ],
    bad=lambda: [
        Bad((numbers(4),), _attrs((2,), (3,), (1,)), ShapeError, "within 0..3"),
        Bad((numbers(4),), _attrs((1,), (3,), (-1,)), ShapeError, "within 0..3"),
        Bad((numbers(4),), _attrs((), (), ()), ShapeError, "per axis"),
    ],
)


def _attrs(*bounds: tuple[int, ...]) -> dict[str, Any]:
    return dict(zip(("starts", "sizes", "steps"), bounds, strict=True))


def _sample(shape: tuple[int, ...], *bounds: tuple[int, ...]) -> Sample:
    return Sample((numbers(*shape),), _attrs(*bounds))


def sliced(x: Tensor, parts: Sequence[Bounds]) -> Tensor:
    """Return `x` with the leading axes cut to `parts`; itself where they are whole."""
    whole = [(0, n, 1) for n in x.shape[len(parts) :]]
    starts, sizes, steps = zip(*parts, *whole, strict=True) if x.ndim else ((),) * 3
    if sizes == x.shape and all(k == 1 for k in steps):
        return x
    return apply(SLICE, x, starts=starts, sizes=sizes, steps=steps)


def cut(x: Tensor, axis: int, start: Dim, size: Dim) -> Tensor:
    """Return `size` elements of `axis` from `start` on; the other axes whole."""
    parts: list[Bounds] = [(0, n, 1) for n in x.shape]
    parts[axis] = (start, size, 1)
    return sliced(x, parts)


def flipped_axes(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Reverse `axes` of `x`."""
    if not axes:
        return x
    return sliced(
        x, [(n - 1, n, -1) if k in axes else (0, n, 1) for k, n in enumerate(x.shape)]
    )


def flip(m: ArrayLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """Reverse the order of elements along `axis` (all axes by default).

    >>> import staticgrad as sg
    >>> print(sg.flip(sg.input("x", ("n", 3)), 0).type)
    float32[n, 3]
    """
    x = as_tensor(m)
    return flipped_axes(x, some_axes("flip", x, axis))


def split(
    ary: ArrayLike, indices_or_sections: int | Sequence[int | Size], axis: int = 0
) -> list[Tensor]:
    """Return `ary` cut along `axis` into equal sections, or before given indices.

    Raises ShapeError where the axis is not a multiple of the number of sections; when
    called, if that depends on symbolic sizes.

    >>> import staticgrad as sg
    >>> x = sg.input("x", (3, 6))
    >>> [part.shape for part in sg.split(x, 2, axis=1)]
    [(3, 3), (3, 3)]
    >>> [part.shape for part in sg.split(x, [1, 5], axis=1)]
    [(3, 1), (3, 4), (3, 1)]
    """
    x = as_tensor(ary)
    place = one_axis("split", x, axis)
    if isinstance(indices_or_sections, Sequence | np.ndarray):
        return _split_at(x, [as_dim(k) for k in indices_or_sections], place)
    sections = _sections("split", indices_or_sections)
    n = x.shape[place]
    size = n // sections
    if isinstance(n, int) and n % sections:
        raise shape_error(
            "split",
            (),
            f"an axis that is a multiple of {sections}, got axis {axis} of {x.type}",
            "use array_split or give the indices",
        )
    if size * sections != n:
        x = reshaped(x, (*x.shape[:place], size * sections, *x.shape[place + 1 :]))
    return [cut(x, place, k * size, size) for k in range(sections)]


def array_split(
    ary: ArrayLike, indices_or_sections: int | Sequence[int | Size], axis: int = 0
) -> list[Tensor]:
    """Split as `split`, but earlier sections may be one element longer.

    >>> import staticgrad as sg
    >>> [part.shape for part in sg.array_split(sg.input("x", (7,)), 3)]
    [(3,), (2,), (2,)]
    >>> [part.shape[0] for part in sg.array_split(sg.input("x", ("n",)), 2)]
    [Size('(n + 1)//2'), Size('n//2')]
    """
    x = as_tensor(ary)
    place = one_axis("array_split", x, axis)
    if isinstance(indices_or_sections, Sequence | np.ndarray):
        return split(x, indices_or_sections, place)
    sections = _sections("array_split", indices_or_sections)
    start: Dim = 0
    parts = []
    for k in range(sections):
        size = (x.shape[place] + (sections - 1 - k)) // sections
        parts.append(cut(x, place, start, size))
        start = start + size
    return parts


def _sections(name: str, sections: int) -> int:
    count = operator.index(sections)
    if count < 1:
        raise shape_error(name, (), f"at least one section, got {count}")
    return count


def _split_at(x: Tensor, indices: list[Dim], axis: int) -> list[Tensor]:
    n = x.shape[axis]
    whole: list[Bounds] = [(0, size, 1) for size in x.shape]
    edges = [None, *indices, None]
    return [
        sliced(x, [*whole[:axis], bounds(slice(a, b), n, x), *whole[axis + 1 :]])
        for a, b in pairwise(edges)
    ]


def hsplit(
    ary: ArrayLike, indices_or_sections: int | Sequence[int | Size]
) -> list[Tensor]:
    """Return `ary` cut along the second axis; along the first if it has one.

    >>> import staticgrad as sg
    >>> [part.shape for part in sg.hsplit(sg.input("x", ("n", 4)), 2)]
    [(Size('n'), 2), (Size('n'), 2)]
    """
    x = as_tensor(ary)
    return split(x, indices_or_sections, 0 if x.ndim == 1 else 1)


def vsplit(
    ary: ArrayLike, indices_or_sections: int | Sequence[int | Size]
) -> list[Tensor]:
    """Return `ary`, of two axes at least, cut along the first.

    >>> import staticgrad as sg
    >>> [part.shape for part in sg.vsplit(sg.input("x", (4, 3)), 2)]
    [(2, 3), (2, 3)]
    """
    x = as_tensor(ary)
    if x.ndim < 2:
        raise shape_error("vsplit", (x,), "an array of at least two axes")
    return split(x, indices_or_sections, 0)


def dsplit(
    ary: ArrayLike, indices_or_sections: int | Sequence[int | Size]
) -> list[Tensor]:
    """Return `ary`, of three axes at least, cut along the third.

    >>> import staticgrad as sg
    >>> [part.shape for part in sg.dsplit(sg.input("x", (2, 3, 4)), 2)]
    [(2, 3, 2), (2, 3, 2)]
    """
    x = as_tensor(ary)
    if x.ndim < 3:
        raise shape_error("dsplit", (x,), "an array of at least three axes")
    return split(x, indices_or_sections, 2)


__all__ = ["array_split", "dsplit", "flip", "hsplit", "split", "vsplit"]
