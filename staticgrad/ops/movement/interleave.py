"""Interleaving of pixels of several images: the op weave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Layout, Piece, Place, Sample, define
from staticgrad.ir.size import Dim, Shape, product
from staticgrad.ir.types import TensorType
from staticgrad.ops.movement.placement import one_dtype
from staticgrad.ops.movement.slicing import SLICE
from staticgrad.ops.movement.views import numbers, reshaped
from staticgrad.ops.named import named

Array: TypeAlias = npt.NDArray[Any]
Pair: TypeAlias = tuple[int, int]


def _shape(*parts: TensorType, size: Shape, window: Pair, strides: Pair) -> Shape:
    first = parts[0].shape
    if len(parts) != window[0] * window[1] or any(t.shape != first for t in parts):
        raise ShapeError("an image of one shape for each element of the window")
    if len(first) != 4 or any(a > b for a, b in zip(window, strides, strict=True)):
        raise ShapeError("images of four axes and windows that do not overlap")
    counts = tuple(
        (n - tap) // stride + 1
        for n, tap, stride in zip(size, window, strides, strict=True)
    )
    if counts != first[1:3]:
        raise ShapeError(f"as many windows as fit into {size[0]} x {size[1]}")
    return (first[0], *size, first[3])


def _offsets(window: Pair) -> list[Pair]:
    return [(r, s) for r in range(window[0]) for s in range(window[1])]


def _pieces(
    shape: Shape, *parts: TensorType, window: Pair, strides: Pair, **_: Any
) -> Sequence[Piece]:
    batch, rows, columns, last = Layout.contiguous(shape).strides
    steps = (batch, rows * strides[0], columns * strides[1], last)
    return [
        Piece(number, Layout(parts[0].shape, steps, rows * r + columns * s))
        for number, (r, s) in enumerate(_offsets(window))
    ]


def _fill(*, size: Shape, window: Pair, strides: Pair) -> int | None:
    """Return the fill: zeros, where the windows leave anything."""
    whole = all(
        isinstance(n, int) and n % stride == 0
        for n, stride in zip(size, strides, strict=True)
    )
    return None if whole and window == strides else 0


def _vjp(
    g: Tensor, y: Tensor, *xs: Tensor, window: Pair, strides: Pair, **_: Any
) -> tuple[Tensor, ...]:
    shape = xs[0].shape
    steps = (1, *strides, 1)
    return tuple(
        apply(SLICE, g, starts=(0, r, s, 0), sizes=shape, steps=steps)
        for r, s in _offsets(window)
    )


def over_examples(name: str) -> Callable[..., Tensor]:
    """Return the batch rule of the op `name`: examples extend the batch of images."""

    def rule(n: Dim, *xs: Tensor, **attrs: Any) -> Tensor:
        joined = [reshaped(x, (n * x.shape[1], *x.shape[2:])) for x in xs]
        found = named(name, *joined, **attrs)
        return reshaped(found, (n, xs[0].shape[1], *found.shape[1:]))

    return rule


def _numpy(*parts: Array, size: Pair, window: Pair, strides: Pair) -> Array:
    n, rows, columns, last = parts[0].shape
    found = np.zeros((n, *size, last), parts[0].dtype)
    if product(parts[0].shape) == 0:
        return found
    for (r, s), part in zip(_offsets(window), parts, strict=True):
        places = (
            slice(r, r + (rows - 1) * strides[0] + 1, strides[0]),
            slice(s, s + (columns - 1) * strides[1] + 1, strides[1]),
        )
        found[(slice(None), *places)] = part
    return found


def _attrs(size: Pair, window: Pair, strides: Pair) -> dict[str, Any]:
    return {"size": size, "window": window, "strides": strides}


WEAVE = define(
    "weave",
    shape=_shape,
    dtype=one_dtype,
    vjp=_vjp,
    jvp="linear",
    batch=over_examples("weave"),
    code=Place(_pieces, _fill),
    numpy=_numpy,
    samples=lambda: [
        Sample(
            (numbers(2, 2, 2, 3), -numbers(2, 2, 2, 3)), _attrs((2, 5), (1, 2), (1, 2))
        ),
        Sample((numbers(1, 2, 2, 2),) * 4, _attrs((6, 7), (2, 2), (3, 4))),
        Sample((numbers(0, 2, 2, 2),) * 2, _attrs((4, 2), (2, 1), (2, 1))),
    ],
    bad=lambda: [
        Bad((numbers(1, 2, 2, 1),), _attrs((4, 4), (2, 2), (2, 2)), ShapeError, "each"),
        Bad(
            (numbers(1, 2, 2, 1),) * 2,
            _attrs((4, 4), (1, 2), (1, 1)),
            ShapeError,
            "not overlap",
        ),
        Bad(
            (numbers(1, 2, 2, 1),) * 2,
            _attrs((2, 3), (1, 2), (1, 2)),
            ShapeError,
            "as many windows",
        ),
        Bad(
            (numbers(1, 2, 2, 1), numbers(1, 2, 2, 1).astype("f4")),
            _attrs((2, 4), (1, 2), (1, 2)),
            DTypeError,
            "one dtype",
        ),
    ],
)


def interleaved(
    parts: Sequence[Tensor], size: Shape, window: Pair, strides: Pair
) -> Tensor:
    """Interleave `parts` into an image of `size`, zeros elsewhere."""
    return apply(WEAVE, *parts, size=size, window=window, strides=strides)
