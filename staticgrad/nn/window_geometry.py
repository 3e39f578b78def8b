"""Normalisation of window sizes, strides and paddings to one number per axis.

`rank` is how many axes a window slides over: 1 or 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from staticgrad.ir.node import Tensor, static_shape
from staticgrad.ops.movement.views import reshaped, transposed
from staticgrad.ops.rules import shape_error

Ints = tuple[int, ...]
Widths = tuple[tuple[int, int], ...]


def per_axis(name: str, what: str, given: Any, rank: int, least: int = 1) -> Ints:
    """Return `given`, an int or one per axis, as one per axis of at least `least`."""
    values = given if isinstance(given, Sequence) else (given,) * rank
    whole = all(isinstance(n, int | np.integer) for n in values)
    if isinstance(given, str) or not whole or len(values) != rank:
        rule = f"an int or {rank} ints as {what}, got {given!r}"
        raise shape_error(name, (), rule)
    if any(n < least for n in values):
        raise shape_error(name, (), f"a {what} of at least {least}, got {given!r}")
    return tuple(int(n) for n in values)


def paddings(
    name: str, given: Any, window: Ints, strides: Ints, dilation: Ints
) -> Widths:
    """Return (before, after) for each axis.

    `given` is "valid" (none), "same" (as many windows as elements, the odd one after,
    strides of 1 only), an int, an int per axis, or a pair (before, after) per axis.
    """
    rank = len(window)
    if given == "valid":
        return ((0, 0),) * rank
    if given == "same":
        if any(stride != 1 for stride in strides):
            rule = f"strides of 1 for padding 'same', got {strides}"
            raise shape_error(name, (), rule, "give the widths as pairs")
        totals = [d * (n - 1) for n, d in zip(window, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    pairs = isinstance(given, Sequence) and any(isinstance(p, Sequence) for p in given)
    if isinstance(given, str) or not pairs:
        return tuple((n, n) for n in per_axis(name, "padding", given, rank, least=0))
    if len(given) != rank:
        raise shape_error(name, (), f"{rank} pairs as padding, got {given!r}")
    found = [per_axis(name, "padding", pair, 2, least=0) for pair in given]
    return tuple((before, after) for before, after in found)


def channels_last(name: str, x: Tensor, rank: int) -> Tensor:
    """Transpose (batch, channels, height, width) to (batch, height, width, channels).

    One axis of windows gets a height of 1; an image without a batch axis one of 1.
    """
    if x.ndim not in (rank + 1, rank + 2):
        axes = (
            "(batch, channels, width)"
            if rank == 1
            else ("(batch, channels, height, width)")
        )
        raise shape_error(name, (x,), f"an image of {axes}, the batch may be missing")
    shape = x.shape if x.ndim == rank + 2 else (1, *x.shape)  # with a batch axis
    if rank == 1:
        shape = (*shape[:2], 1, shape[2])
    return transposed(reshaped(x, shape), (0, 2, 3, 1))


def channels_first(y: Tensor, like: Tensor, rank: int) -> Tensor:
    """Transpose back to channels first, with as many axes as `like` has."""
    result = transposed(y, (0, 3, 1, 2))  # (batch, channels, height, width)
    shape = result.shape
    if rank == 1:
        shape = (*shape[:2], shape[3])
    return reshaped(result, shape if like.ndim == rank + 2 else shape[1:])


def in_two(values: Ints, rank: int, other: int = 1) -> tuple[int, int]:
    """Return one number per axis for two axes: `other` for the height of one axis."""
    return (values[0], values[1]) if rank == 2 else (other, values[0])


def kernels_last(name: str, w: Tensor, rank: int) -> Tensor:
    """Transpose filters-first kernels to (height, width, channels, filters)."""
    if w.ndim != rank + 2:
        rule = f"kernels of {rank + 2} axes, filters and channels first, got {w.type}"
        raise shape_error(name, (), rule)
    shape = w.shape if rank == 2 else (*w.shape[:2], 1, w.shape[2])
    return transposed(reshaped(w, shape), (2, 3, 1, 0))


def known_window(name: str, w: Tensor) -> Ints:
    """Return the window's size, which has to be static."""
    window = static_shape(w.shape[2:])
    if window is None:
        raise shape_error(name, (w,), "kernels of a size that is known")
    return window
