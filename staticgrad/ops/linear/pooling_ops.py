"""Max pooling: four ops.

``max_pool`` gives the largest element of each window, ``max_pool_index`` which element
of the window it is: the first of equal ones; a NaN counts as larger than every number,
and the first NaN wins. ``pool_pick`` takes from each window the element that an index
names, and ``pool_spread`` puts elements back where they were taken from, adding up
where windows overlap. The last two are linear and each other's derivative, and the
derivative of a maximum is a ``pool_spread`` at its index.

Channels come last: (batch, height, width, channels). The functions for users, whose
channels come first as in PyTorch, are in pooling.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Pool, Sample, define
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.types import DType, TensorType
from staticgrad.ops.linear.convolution import window_count
from staticgrad.ops.movement.interleave import over_examples
from staticgrad.ops.movement.views import numbers

Array: TypeAlias = npt.NDArray[Any]
Pair: TypeAlias = tuple[int, int]

SMALL_WINDOW = 256  # elements up to which an index is a byte


def index_dtype(window: Pair) -> DType:
    """Return the dtype of an index into a window."""
    return np.dtype(np.uint8 if window[0] * window[1] <= SMALL_WINDOW else np.int32)


def _counts(x: TensorType, window: Pair, strides: Pair, dilation: Pair) -> Shape:
    if len(x.shape) != 4:
        raise ShapeError("an image of four axes")
    if min(*window, *strides, *dilation) < 1:
        raise ShapeError("windows, strides and dilations of at least 1")
    counts: list[Dim] = []
    for n, size, stride, spread in zip(
        x.shape[1:3], window, strides, dilation, strict=True
    ):
        count = window_count(n, size, stride, 0, spread)
        if isinstance(count, int) and count < 1:
            raise ShapeError(
                f"a window that fits into the image, got {size} in {n}",
                "pad the image or make the window smaller",
            )
        counts.append(count)
    return (x.shape[0], *counts, x.shape[3])


def _shape(x: TensorType, *, window: Pair, strides: Pair, dilation: Pair) -> Shape:
    return _counts(x, window, strides, dilation)


def _check_index(index: TensorType, window: Pair) -> None:
    if index.dtype != index_dtype(window):
        raise DTypeError(f"an index of {index_dtype(window)}")


def _pick_shape(
    x: TensorType, index: TensorType, *, window: Pair, strides: Pair, dilation: Pair
) -> Shape:
    shape = _counts(x, window, strides, dilation)
    if index.shape != shape:
        raise ShapeError("an index for each window")
    return shape


def _spread_shape(
    g: TensorType, index: TensorType, *, size: Shape, window: Pair, strides: Pair,
    dilation: Pair,
) -> Shape:  # fmt: skip
    if len(g.shape) != 4:
        raise ShapeError("an image of four axes")
    whole = TensorType((g.shape[0], *size, g.shape[3]), g.dtype)
    if index.shape != g.shape or _counts(whole, window, strides, dilation) != g.shape:
        raise ShapeError("an element and an index for each window")
    return whole.shape


def _dtype(x: TensorType, *_: TensorType, window: Pair, **__: Any) -> DType:
    if x.dtype.kind == "b":
        raise DTypeError("numbers", "cast with .astype")
    for index in _:
        _check_index(index, window)
    return x.dtype


def _max_vjp(g: Tensor, y: Tensor, x: Tensor, **attrs: Any) -> tuple[Tensor]:
    index = apply(MAX_POOL_INDEX, x, **attrs)
    return (apply(POOL_SPREAD, g, index, size=x.shape[1:3], **attrs),)


def _max_jvp(ts: tuple[Tensor], y: Tensor, x: Tensor, **attrs: Any) -> Tensor:
    return apply(POOL_PICK, *ts, apply(MAX_POOL_INDEX, x, **attrs), **attrs)


def _pick_vjp(
    g: Tensor, y: Tensor, x: Tensor, index: Tensor, **attrs: Any
) -> tuple[Tensor, None]:
    return apply(POOL_SPREAD, g, index, size=x.shape[1:3], **attrs), None


def _spread_vjp(
    h: Tensor, y: Tensor, g: Tensor, index: Tensor, *, size: Shape, **attrs: Any
) -> tuple[Tensor, None]:
    return apply(POOL_PICK, h, index, **attrs), None


def _parts(
    counts: Any, window: Pair, strides: Pair, dilation: Pair
) -> Iterator[tuple[slice, slice, slice]]:
    """Yield, for each element of the window in order, its positions in all of them."""
    for tap in np.ndindex(*window):
        first = [t * d for t, d in zip(tap, dilation, strict=True)]
        rows, columns = (
            slice(start, start + (count - 1) * stride + 1, stride)
            for start, count, stride in zip(first, counts, strides, strict=True)
        )
        yield slice(None), rows, columns


def _windows(x: Array, window: Pair, strides: Pair, dilation: Pair) -> Array:
    """Return the elements of each window along a new first axis."""
    counts = tuple(
        window_count(n, size, stride, 0, spread)
        for n, size, stride, spread in zip(
            x.shape[1:3], window, strides, dilation, strict=True
        )
    )
    return np.stack([x[p] for p in _parts(counts, window, strides, dilation)])


def _max_numpy(x: Array, **attrs: Any) -> Array:
    return np.asarray(np.max(_windows(x, **attrs), axis=0))


def _index_numpy(x: Array, *, window: Pair, **attrs: Any) -> Array:
    """Return the first index of the maximum, NaN counting as the largest."""
    found = np.argmax(_windows(x, window, **attrs), axis=0)
    return np.asarray(found.astype(index_dtype(window)))


def _pick_numpy(x: Array, index: Array, **attrs: Any) -> Array:
    places = index[None].astype(np.int64)
    return np.asarray(np.take_along_axis(_windows(x, **attrs), places, axis=0)[0])


def _spread_numpy(
    g: Array, index: Array, *, size: Pair, window: Pair, strides: Pair, dilation: Pair
) -> Array:
    found = np.zeros((g.shape[0], *size, g.shape[3]), g.dtype)
    parts = _parts(g.shape[1:3], window, strides, dilation)
    for number, part in enumerate(parts):
        found[part] += np.where(index == number, g, 0)
    return found


def _attrs(
    window: Pair, strides: Pair | None = None, dilation: Pair = (1, 1)
) -> dict[str, Any]:
    return {
        "window": window,
        "strides": window if strides is None else strides,
        "dilation": dilation,
    }


def _mixed(*shape: int) -> Array:
    """Return distinct numbers out of order."""
    return np.asarray(np.sin(1.7 * np.arange(int(np.prod(shape))))).reshape(shape)


def _choice(window: Pair, *shape: int) -> Array:
    count = window[0] * window[1]
    found = np.arange(int(np.prod(shape))) * 7 % count
    return found.reshape(shape).astype(index_dtype(window))


OVERLAP = _attrs((3, 2), (2, 1), (1, 2))


def _samples() -> list[Sample]:
    odd = _mixed(1, 4, 4, 2)
    odd[0, 0, 0, 0] = odd[0, 3, 2, 1] = np.nan
    odd[0, 0:2, 2:4, 1] = -np.inf
    odd[0, 2:4, 0:2, 0] = 0.25
    return [
        Sample((_mixed(2, 4, 6, 3),), _attrs((2, 2))),
        Sample((_mixed(1, 5, 5, 2),), _attrs((2, 2))),
        Sample((_mixed(2, 7, 6, 2),), OVERLAP),
        Sample((_mixed(0, 4, 4, 2),), _attrs((2, 2))),
        Sample((odd,), _attrs((2, 2)), grad=False),
        Sample((odd.astype("f4"),), _attrs((3, 3), (1, 1)), grad=False),
        Sample((_choice((9, 9), 1, 4, 4, 1).astype("i4"),), _attrs((2, 2))),
    ]


def _bad() -> list[Bad]:
    return [
        Bad((numbers(2, 2, 2),), _attrs((2, 2)), ShapeError, "four axes"),
        Bad((numbers(1, 2, 2, 1),), _attrs((3, 2)), ShapeError, "fits"),
        Bad((numbers(1, 2, 2, 1),), _attrs((0, 2)), ShapeError, "at least 1"),
        Bad((np.ones((1, 2, 2, 1), bool),), _attrs((1, 1)), DTypeError, "numbers"),
    ]


MAX_POOL = define(
    "max_pool",
    shape=_shape,
    dtype=_dtype,
    vjp=_max_vjp,
    jvp=_max_jvp,
    batch=over_examples("max_pool"),
    code=Pool("maximum"),
    numpy=_max_numpy,
    samples=_samples,
    bad=_bad,
)

MAX_POOL_INDEX = define(
    "max_pool_index",
    shape=_shape,
    dtype=lambda x, *, window, **attrs: (
        _dtype(x, window=window) and index_dtype(window)
    ),
    vjp=None,
    batch=over_examples("max_pool_index"),
    code=Pool("index"),
    numpy=_index_numpy,
    samples=lambda: [
        *_samples(),
        Sample((_mixed(1, 17, 16, 1),), _attrs((17, 16))),
    ],
    bad=_bad,
)

POOL_PICK = define(
    "pool_pick",
    shape=_pick_shape,
    dtype=_dtype,
    vjp=_pick_vjp,
    jvp="linear",
    batch=over_examples("pool_pick"),
    code=Pool("pick"),
    numpy=_pick_numpy,
    samples=lambda: [
        Sample((_mixed(2, 4, 5, 3), _choice((2, 2), 2, 2, 2, 3)), _attrs((2, 2))),
        Sample((_mixed(2, 7, 6, 2), _choice((3, 2), 2, 3, 4, 2)), OVERLAP),
    ],
    bad=lambda: [
        Bad(
            (numbers(1, 4, 4, 1), _choice((2, 2), 1, 2, 1, 1)),
            _attrs((2, 2)),
            ShapeError,
            "an index for each",
        ),
        Bad(
            (numbers(1, 2, 2, 1), np.zeros((1, 1, 1, 1), "i8")),
            _attrs((2, 2)),
            DTypeError,
            "an index of uint8",
        ),
    ],
)

POOL_SPREAD = define(
    "pool_spread",
    shape=_spread_shape,
    dtype=_dtype,
    vjp=_spread_vjp,
    jvp="linear",
    batch=over_examples("pool_spread"),
    code=Pool("spread"),
    numpy=_spread_numpy,
    samples=lambda: [
        Sample(
            (_mixed(2, 2, 2, 3), _choice((2, 2), 2, 2, 2, 3)),
            {"size": (4, 5), **_attrs((2, 2))},
        ),
        Sample(
            (_mixed(2, 3, 4, 2), _choice((3, 2), 2, 3, 4, 2)),
            {"size": (7, 6), **OVERLAP},
        ),
        Sample(
            (_mixed(1, 2, 2, 2), _choice((2, 2), 1, 2, 2, 2)),
            {"size": (6, 5), **_attrs((2, 2), (3, 3))},
        ),
        Sample(
            (_mixed(0, 2, 2, 1), _choice((2, 2), 0, 2, 2, 1)),
            {"size": (4, 4), **_attrs((2, 2))},
        ),
    ],
    bad=lambda: [
        Bad(
            (numbers(1, 2, 2, 1), _choice((2, 2), 1, 2, 2, 1)),
            {"size": (2, 4), **_attrs((2, 2))},
            ShapeError,
            "for each window",
        ),
        Bad(
            (numbers(2, 2, 2), _choice((2, 2), 2, 2, 2)),
            {"size": (4, 4), **_attrs((2, 2))},
            ShapeError,
            "four axes",
        ),
    ],
)
