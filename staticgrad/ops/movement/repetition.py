"""Repetition and rotation: tile, repeat, roll, rot90, flipud, fliplr."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim, Size
from staticgrad.ir.types import INT64, kind_of
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.checked_index import checked, position, taken
from staticgrad.ops.movement.placement import joined
from staticgrad.ops.movement.reshaping import axis_list, ravel, transpose
from staticgrad.ops.movement.slicing import cut, flip, flipped_axes
from staticgrad.ops.movement.views import broadcasted, reshaped
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.rules import dtype_error, one_axis, shape_error
from staticgrad.ops.sizes import as_dim, as_shape


def tile(A: ArrayLike, reps: Any) -> Tensor:
    """Return `A` repeated `reps` times along each axis.

    Missing axes are added in front.

    >>> import staticgrad as sg
    >>> print(sg.tile(sg.input("x", ("n", 3)), (2, 1, 4)).type)
    float32[2, n, 12]
    """
    x = as_tensor(A)
    counts = as_shape(reps)
    rank = builtins.max(x.ndim, len(counts))
    counts = (1,) * (rank - len(counts)) + counts
    sizes = (1,) * (rank - x.ndim) + x.shape
    single = tuple(d for n in sizes for d in (1, n))
    several = tuple(d for r, n in zip(counts, sizes, strict=True) for d in (r, n))
    whole = tuple(r * n for r, n in zip(counts, sizes, strict=True))
    return reshaped(broadcasted(reshaped(x, single), several), whole)


def repeat(a: ArrayLike, repeats: Any, axis: int | None = None) -> Tensor:
    """Return each element of `a` several times in a row along `axis`.

    Without an axis `a` is raveled first. `repeats` is one count, which may be a
    symbolic size, or counts per element that are known when the graph is built.

    >>> import staticgrad as sg
    >>> sg.compile(sg.repeat([1, 2], [1, 3]), target="reference")().tolist()
    [1, 2, 2, 2]
    """
    x = as_tensor(a)
    if axis is None:
        x, axis = ravel(x), 0
    place = one_axis("repeat", x, axis)
    if isinstance(repeats, Tensor):
        rule = "repeats that are known when the graph is built, got a Tensor"
        raise shape_error("repeat", (), rule, "use sg.take with indices")
    if isinstance(repeats, Size) or np.size(repeats) == 1:
        one = repeats if isinstance(repeats, Size) else np.reshape(repeats, ())[()]
        return _repeated(x, as_dim(one), place)
    n = x.shape[place]
    counts = np.asarray(repeats)
    if not isinstance(n, int) or counts.shape != (n,):
        rule = f"a count per element of axis {place} of {x.type}"
        raise shape_error("repeat", (), f"{rule}, got shape {counts.shape}")
    index = frozen(np.repeat(np.arange(n), counts))
    return taken(x, checked(index, n, wrap=False), place)


def _repeated(x: Tensor, count: Dim, axis: int) -> Tensor:
    before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    single = reshaped(x, (*before, n, 1, *after))
    several = broadcasted(single, (*before, n, count, *after))
    return reshaped(several, (*before, n * count, *after))


def roll(a: ArrayLike, shift: Any, axis: int | Sequence[int] | None = None) -> Tensor:
    """Return `a` with elements moved by `shift` along `axis`, cyclically.

    Without an axis the raveled array is rolled. `shift` may be a scalar Tensor.

    >>> import staticgrad as sg
    >>> sg.compile(sg.roll([1, 2, 3, 4], 1), target="reference")().tolist()
    [4, 1, 2, 3]
    """
    x = as_tensor(a)
    if axis is None:
        return reshaped(roll(ravel(x), shift, 0), x.shape)
    axes = axis_list("roll", axis)
    shifts = list(shift) if isinstance(shift, tuple | list | np.ndarray) else [shift]
    if len(shifts) == 1:
        shifts = shifts * len(axes)
    if len(axes) == 1:
        axes = axes * len(shifts)
    if len(axes) != len(shifts):
        rule = f"a shift per axis, got {len(shifts)} and {len(axes)}"
        raise shape_error("roll", (), rule)
    for by, place in zip(shifts, axes, strict=True):
        x = _rolled(x, by, one_axis("roll", x, place))
    return x


def _rolled(x: Tensor, shift: Any, axis: int) -> Tensor:
    n = x.shape[axis]
    if isinstance(shift, int | np.integer) and isinstance(n, int):
        first = -int(shift) % n if n else 0
        if first == 0:
            return x
        parts = cut(x, axis, first, n - first), cut(x, axis, 0, first)
        return joined(parts, axis)
    by = as_tensor(shift)
    if by.ndim != 0 or kind_of(by.dtype) not in "iu":
        raise dtype_error("roll", (by,), "a shift that is an integer scalar")
    extent = named("extent", size=n)
    index = named("remainder", position((n,), 0) - cast(by, INT64), extent)
    return taken(x, checked(index, n, wrap=False), axis)


def rot90(m: ArrayLike, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """Rotate `m` by `k` quarter turns, from the first of `axes` to the second.

    >>> import staticgrad as sg
    >>> sg.compile(sg.rot90([[1, 2], [3, 4]]), target="reference")().tolist()
    [[2, 4], [1, 3]]
    """
    x = as_tensor(m)
    first, second = (one_axis("rot90", x, axis) for axis in axes)
    if first == second:
        raise shape_error("rot90", (x,), f"two different axes, got {tuple(axes)}")
    if k % 4 == 0:
        return x
    if k % 4 == 2:
        return flipped_axes(x, [first, second])
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    if k % 4 == 1:
        return transpose(flip(x, second), order)
    return flip(transpose(x, order), second)


def flipud(m: ArrayLike) -> Tensor:
    """Return `m` with its first axis reversed.

    >>> import staticgrad as sg
    >>> sg.compile(sg.flipud([[1, 2], [3, 4]]), target="reference")().tolist()
    [[3, 4], [1, 2]]
    """
    return flip(m, 0)


def fliplr(m: ArrayLike) -> Tensor:
    """Return `m` with its second axis reversed.

    >>> import staticgrad as sg
    >>> sg.compile(sg.fliplr([[1, 2], [3, 4]]), target="reference")().tolist()
    [[2, 1], [4, 3]]
    """
    return flip(m, 1)


__all__ = ["fliplr", "flipud", "repeat", "roll", "rot90", "tile"]
