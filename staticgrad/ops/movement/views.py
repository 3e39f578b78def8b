"""Views: reshape, transpose, broadcast_to.

Each op is a record with a rule for shapes and a Layout: how the result reads the memory
of its input. The functions that users call are in reshaping.py.

Weakness: a reshape that merges axes whose strides do not allow it (that of a transpose)
is a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from staticgrad.errors import ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Layout, Op, Sample, View, define
from staticgrad.ir.size import Dim, Shape, equal_if_even, exact_divide, product
from staticgrad.ir.types import DType, TensorType, broadcast_shapes
from staticgrad.ops.named import named
from staticgrad.ops.sizes import shape_text


def same_dtype(x: TensorType, *_: TensorType, **__: Any) -> DType:
    """Return the first input's dtype: the rule of ops that only move elements."""
    return x.dtype


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    """Return distinct numbers, for samples."""
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float64) * 0.7 - 1.3).reshape(shape)


def _reshape_shape(x: TensorType, *, shape: Shape) -> Shape:
    if any(isinstance(dim, int) and dim < 0 for dim in shape):
        raise ShapeError(f"sizes that are not negative, got {shape_text(shape)}")
    if not equal_if_even(product(x.shape), product(shape)):
        raise ShapeError(
            f"as many elements as {shape_text(shape)} has",
            "give sizes whose product is the same; -1 stands for one that follows",
            "pass sizes that divide evenly",
        )
    return shape


def reshape_layout(source: Layout, shape: Shape) -> Layout | None:
    """Return the Layout of a reshape, or None where the axes' strides do not merge.

    Axes are cut into groups of equal size on both sides (NumPy's no-copy rule). A
    group's old axes must lie one inside the other; its new ones then do. Axes of size 1
    have stride 0 and belong to no group. Where sizes are equal only if divisions come
    out even, all axes that are left are one group. An empty one has the strides of C
    order: with stride 0 it would be read in front of the loop that has no step.
    """
    if 0 in shape:
        return Layout(shape, Layout.contiguous(shape).strides, source.offset)
    old = [(n, s) for n, s in zip(source.shape, source.strides, strict=True) if n != 1]
    new = [n for n in shape if n != 1]
    strides: list[Dim] = []
    for old_count, new_count in _groups([n for n, _ in old], new):
        group, old = old[:old_count], old[old_count:]
        sizes, new = new[:new_count], new[new_count:]
        if not _nested(group):
            return None
        inner = Layout.contiguous(tuple(sizes)).strides
        strides.extend(step * group[-1][1] for step in inner)
    steps = iter(strides)
    result = tuple(0 if n == 1 else next(steps) for n in shape)
    return Layout(shape, result, source.offset)


def _nested(axes: list[tuple[Dim, Dim]]) -> bool:
    return all(outer == n * step for (_, outer), (n, step) in pairwise(axes))


def _groups(old: list[Dim], new: list[Dim]) -> list[tuple[int, int]]:
    """Return the numbers of `old` and `new` axes in each run of equal size."""
    found: list[tuple[int, int]] = []
    while old and new:
        i, j = _first_group(old, new)
        found.append((i, j))
        old, new = old[i:], new[j:]
    return found


def _first_group(old: list[Dim], new: list[Dim]) -> tuple[int, int]:
    left, right = old[0], new[0]
    i = j = 1
    while left != right:
        grow_left, grow_right = _which_grows(left, right)
        grow_left, grow_right = grow_left and i < len(old), grow_right and j < len(new)
        if not (grow_left or grow_right):
            return len(old), len(new)
        if grow_left:
            left, i = left * old[i], i + 1
        if grow_right:
            right, j = right * new[j], j + 1
    return i, j


def _which_grows(left: Dim, right: Dim) -> tuple[bool, bool]:
    if isinstance(left, int) and isinstance(right, int):
        return left < right, right < left
    if exact_divide(right, left) is not None:
        return True, False
    if exact_divide(left, right) is not None:
        return False, True
    return True, True


RESHAPE = define(
    "reshape",
    shape=_reshape_shape,
    dtype=same_dtype,
    vjp=lambda g, y, x, *, shape: (named("reshape", g, shape=x.shape),),
    code=View(lambda source, shape, **_: reshape_layout(source, shape)),
    numpy=lambda x, *, shape: x.reshape(shape),
    samples=lambda: [
        Sample((numbers(2, 6),), {"shape": (3, 4)}),
        Sample((numbers(2, 6),), {"shape": (2, 1, 6)}),
        Sample((numbers(),), {"shape": (1, 1)}),
        Sample((numbers(1, 1),), {"shape": ()}),
        Sample((numbers(0, 3),), {"shape": (3, 0, 2)}),
        Sample((np.arange(6),), {"shape": (6, 1)}),
    ],
    bad=lambda: [
        Bad((numbers(2, 3),), {"shape": (4,)}, ShapeError, "as many elements"),
        Bad((numbers(2, 3),), {"shape": (-2, -3)}, ShapeError, "not negative"),
    ],
)


def _transpose_shape(x: TensorType, *, axes: tuple[int, ...]) -> Shape:
    if sorted(axes) != list(range(len(x.shape))):
        raise ShapeError(
            f"axes to be a permutation of 0..{len(x.shape) - 1}, got {shape_text(axes)}"
        )
    return tuple(x.shape[axis] for axis in axes)


def _transpose_layout(
    source: Layout, shape: Shape, *, axes: tuple[int, ...]
) -> Layout | None:
    return Layout(shape, tuple(source.strides[a] for a in axes), source.offset)


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(axis) for axis in range(len(axes)))


TRANSPOSE = define(
    "transpose",
    shape=_transpose_shape,
    dtype=same_dtype,
    vjp=lambda g, y, x, *, axes: (named("transpose", g, axes=_inverse(axes)),),
    code=View(_transpose_layout),
    numpy=lambda x, *, axes: np.transpose(x, axes),
    samples=lambda: [
        Sample((numbers(2, 3, 4),), {"axes": (2, 0, 1)}),
        Sample((numbers(3, 2),), {"axes": (1, 0)}),
        Sample((numbers(),), {"axes": ()}),
        Sample((numbers(0, 2),), {"axes": (1, 0)}),
    ],
    bad=lambda: [
        Bad((numbers(2, 3),), {"axes": (0, 0)}, ShapeError, "permutation"),
        Bad((numbers(2, 3),), {"axes": (0,)}, ShapeError, "permutation"),
    ],
)


def _broadcast_shape(x: TensorType, *, shape: Shape) -> Shape:
    try:
        fits = broadcast_shapes([x.shape, shape]) == shape
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"a shape that broadcasts to {shape_text(shape)}",
            "its axes have to be 1 or equal, counted from the last",
        )
    return shape


def _broadcast_layout(source: Layout, shape: Shape, **_: object) -> Layout:
    added = len(shape) - len(source.shape)
    kept = zip(source.shape, source.strides, shape[added:], strict=True)
    strides = tuple(0 if n == 1 else step for n, step, _ in kept)
    return Layout(shape, (0,) * added + strides, source.offset)


def _broadcast_vjp(g: Tensor, y: Tensor, x: Tensor, *, shape: Shape) -> tuple[Tensor]:
    added = len(shape) - x.ndim
    pairs = zip(x.shape, shape[added:], strict=True)
    grown = tuple(added + axis for axis, (n, m) in enumerate(pairs) if n != m)
    axes = (*range(added), *grown)
    if not axes:
        return (g,)
    total = named("reduce_sum", g, axes=axes)
    return (reshaped(total, x.shape),)


def _broadcast_batch(n: Dim, x: Tensor, *, shape: Shape) -> Tensor:
    """Batch broadcast_to: new axes come after the leading one."""
    added = (1,) * (len(shape) + 1 - x.ndim)
    return broadcasted(reshaped(x, (n, *added, *x.shape[1:])), (n, *shape))


BROADCAST_TO = define(
    "broadcast_to",
    shape=_broadcast_shape,
    dtype=same_dtype,
    vjp=_broadcast_vjp,
    batch=_broadcast_batch,
    code=View(_broadcast_layout),
    numpy=lambda x, *, shape: np.broadcast_to(x, shape),
    samples=lambda: [
        Sample((numbers(3, 1),), {"shape": (2, 3, 4)}),
        Sample((numbers(),), {"shape": (2, 2)}),
        Sample((numbers(1, 2),), {"shape": (0, 2)}),
        Sample((numbers(2),), {"shape": (2,)}),
    ],
    bad=lambda: [
        Bad((numbers(2),), {"shape": (3,)}, ShapeError, "broadcasts to"),
        Bad((numbers(2, 3),), {"shape": (3,)}, ShapeError, "broadcasts to"),
    ],
)


# ---- of nothing but their derivatives ------------------------------------------------


def passing(name: str, count: Callable[..., int], **rules: Any) -> Op:
    """The op that gives its first inputs as they are; the derivative is its own.

    ``count(*inputs, **attrs)`` is how many; `rules` are the others of a record.
    """

    def each(of: Callable[[Any], Any]) -> Callable[..., Any]:
        def run(*inputs: Any, **attrs: Any) -> Any:
            found = [of(x) for x in inputs[: count(*inputs, **attrs)]]
            return found[0] if len(found) == 1 else tuple(found)

        return run

    return define(
        name,
        shape=each(lambda x: x.shape),
        dtype=each(lambda x: x.dtype),
        code=View(lambda source, shape, **_: source),
        numpy=each(lambda x: x.copy()),
        bad=list,
        **rules,
    )


# ---- on tensors, without conversions (for other ops) ---------------------------------


def reshaped(x: Tensor, shape: Shape) -> Tensor:
    """Return `x` with another shape; itself if it has it."""
    return x if x.shape == shape else apply(RESHAPE, x, shape=shape)


def broadcasted(x: Tensor, shape: Shape) -> Tensor:
    """Return `x` repeated to `shape`; itself if it has it."""
    return x if x.shape == shape else apply(BROADCAST_TO, x, shape=shape)


def transposed(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return `x` with its axes in the order `axes`; `x` itself if unchanged."""
    return x if axes == tuple(range(x.ndim)) else apply(TRANSPOSE, x, axes=axes)
