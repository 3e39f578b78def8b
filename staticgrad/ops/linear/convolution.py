"""Convolution in two dimensions: three ops, each the derivative of the others.

The product of an image and kernels is linear in both, so that one sum over n, p, q,
r, s, c, k of

    y[n, p, q, k] * x[n, p * stride + r * dilation - low, ..., c] * w[r, s, c, k]

gives all: ``conv`` sums over the window and makes y, ``conv_input`` makes x of y and w,
``conv_weight`` makes w of x and y. A gradient of any order is made of the three.

Channels come last: images are (batch, height, width, channels), kernels (height, width,
channels of a group, filters). With g groups, channels and filters are cut into g parts,
and filters see the channels of their own part. The functions for users, whose channels
come first as in PyTorch, are in convolutions.py.

Source: the notation of Dumoulin and Visin, A guide to convolution arithmetic for deep
learning (2016), arXiv:1603.07285. What is called convolution there, in PyTorch and
here is a correlation: the kernel is not flipped.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Convolution, Sample, define
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.types import TensorType
from staticgrad.ops.linear.matrix_products import matmul_dtype
from staticgrad.ops.movement.views import numbers

Array: TypeAlias = npt.NDArray[Any]
Pair: TypeAlias = tuple[Dim, Dim]

GEOMETRY = ("strides", "low", "high", "dilation", "groups")
"""The attributes of all three: pairs (height, width), and the number of groups."""


def window_count(n: Dim, window: Dim, stride: int, padding: Dim, dilation: int) -> Dim:
    """Return the number of windows that fit into n elements and `padding` more."""
    return (n + padding - dilation * (window - 1) - 1) // stride + 1


def geometry(
    strides: tuple[int, int] = (1, 1),
    low: Pair = (0, 0),
    high: Pair = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: Dim = 1,
) -> dict[str, Any]:
    """Return the attributes of GEOMETRY as a dict."""
    values = (strides, low, high, dilation, groups)
    return dict(zip(GEOMETRY, values, strict=True))


def _check_ranks(*types: TensorType) -> None:
    if any(len(t.shape) != 4 for t in types):
        raise ShapeError("images and kernels of four axes")


def _check_groups(channels: Dim, own: Dim, filters: Dim, groups: Dim) -> None:
    if own * groups != channels or (isinstance(groups, int) and groups < 1):
        raise ShapeError(
            f"channels = groups * channels of a kernel, got {channels} channels, "
            f"{groups} groups and kernels of {own}",
            "check groups and the kernel's shape",
        )
    if isinstance(filters, int) and isinstance(groups, int) and filters % groups:
        raise ShapeError(
            f"filters that {groups} groups share equally, got {filters} filters"
        )


def _counts(size: Shape, window: Shape, attrs: dict[str, Any]) -> Shape:
    """Return height and width of a convolution's result, for a window of that size."""
    counts = []
    for axis in range(2):
        stride, spread = attrs["strides"][axis], attrs["dilation"][axis]
        if stride < 1 or spread < 1:
            raise ShapeError("strides and dilations of at least 1")
        padding = attrs["low"][axis] + attrs["high"][axis]
        count = window_count(size[axis], window[axis], stride, padding, spread)
        if isinstance(count, int) and count < 1:
            raise ShapeError(
                "a window that fits into the padded image, got a window of "
                f"{spread * (window[axis] - 1) + 1} in {size[axis] + padding}",
                "pad the image or make the window smaller",
            )
        counts.append(count)
    return tuple(counts)


def _conv_shape(x: TensorType, w: TensorType, **attrs: Any) -> Shape:
    _check_ranks(x, w)
    n, height, width, channels = x.shape
    _check_groups(channels, w.shape[2], w.shape[3], attrs["groups"])
    return (n, *_counts((height, width), w.shape[:2], attrs), w.shape[3])


def _input_shape(g: TensorType, w: TensorType, *, size: Shape, **attrs: Any) -> Shape:
    _check_ranks(g, w)
    channels = w.shape[2] * attrs["groups"]
    _check_groups(channels, w.shape[2], w.shape[3], attrs["groups"])
    _check_result((*_counts(size, w.shape[:2], attrs), w.shape[3]), g)
    return (g.shape[0], *size, channels)


def _weight_shape(x: TensorType, g: TensorType, *, size: Shape, **attrs: Any) -> Shape:
    _check_ranks(x, g)
    channels, groups = x.shape[3], attrs["groups"]
    own = channels if groups == 0 else channels // groups
    _check_groups(channels, own, g.shape[3], groups)
    _check_result((*_counts(x.shape[1:3], size, attrs), g.shape[3]), g)
    if x.shape[0] != g.shape[0]:
        raise ShapeError("images of one batch")
    return (*size, own, g.shape[3])


def _check_result(wanted: Shape, g: TensorType) -> None:
    if g.shape[1:] != wanted:
        text = ", ".join(map(str, wanted))
        raise ShapeError(f"an image of (batch, {text}) for these windows, got {g}")


def conv(x: Tensor, w: Tensor, **attrs: Any) -> Tensor:
    """Apply the op: y of x and w."""
    return apply(CONV, x, w, **attrs)


def conv_input(g: Tensor, w: Tensor, size: Shape, **attrs: Any) -> Tensor:
    """Apply the op: gradient of `conv` by its image, of `size`."""
    return apply(CONV_INPUT, g, w, size=size, **attrs)


def conv_weight(x: Tensor, g: Tensor, size: Shape, **attrs: Any) -> Tensor:
    """Apply the op: gradient of `conv` by its kernels, of `size`."""
    return apply(CONV_WEIGHT, x, g, size=size, **attrs)


def _conv_vjp(
    g: Tensor, y: Tensor, x: Tensor, w: Tensor, **attrs: Any
) -> tuple[Tensor, Tensor]:
    return (
        conv_input(g, w, x.shape[1:3], **attrs),
        conv_weight(x, g, w.shape[:2], **attrs),
    )


def _input_vjp(
    h: Tensor, y: Tensor, g: Tensor, w: Tensor, *, size: Shape, **attrs: Any
) -> tuple[Tensor, Tensor]:
    return conv(h, w, **attrs), conv_weight(h, g, w.shape[:2], **attrs)


def _weight_vjp(
    u: Tensor, y: Tensor, x: Tensor, g: Tensor, *, size: Shape, **attrs: Any
) -> tuple[Tensor, Tensor]:
    return conv_input(g, u, x.shape[1:3], **attrs), conv(x, u, **attrs)


def _padded(x: Array, low: tuple[int, int], high: tuple[int, int]) -> Array:
    return np.pad(x, ((0, 0), *zip(low, high, strict=True), (0, 0)))


def _taps(
    window: Any, counts: Any, attrs: dict[str, Any]
) -> list[tuple[tuple[int, int], tuple[slice, slice]]]:
    """Return, for each element of the window, the part of the padded image it reads."""
    strides, dilation = attrs["strides"], attrs["dilation"]

    def part(axis: int, tap: int) -> slice:
        first = tap * dilation[axis]
        return slice(
            first, first + (counts[axis] - 1) * strides[axis] + 1, strides[axis]
        )

    return [
        ((r, s), (part(0, r), part(1, s)))
        for r in range(window[0])
        for s in range(window[1])
    ]


def _by_group(x: Array, groups: int) -> Array:
    """Reshape (..., groups * c) to (groups, product of the others, c)."""
    rows = int(np.prod(x.shape[:-1], dtype=np.int64))
    return x.reshape(rows, groups, x.shape[-1] // groups).transpose(1, 0, 2)


def _together(x: Array, shape: tuple[int, ...]) -> Array:
    """Reshape back what _by_group reshaped."""
    return x.transpose(1, 0, 2).reshape(shape)


def _conv_numpy(x: Array, w: Array, *, groups: int, **attrs: Any) -> Array:
    counts = _counts(x.shape[1:3], w.shape[:2], attrs)
    shape = (x.shape[0], *counts, w.shape[3])
    padded = _padded(x, attrs["low"], attrs["high"])
    total = np.zeros(shape, x.dtype)
    for tap, (rows, columns) in _taps(w.shape[:2], counts, attrs):
        seen = _by_group(padded[:, rows, columns], groups)
        total += _together(seen @ _by_group(w[tap], groups), shape)
    return total


def _input_numpy(
    g: Array, w: Array, *, size: tuple[int, int], groups: int, **attrs: Any
) -> Array:
    low, high, channels = attrs["low"], attrs["high"], w.shape[2] * groups
    whole = np.zeros((g.shape[0], *size, channels), g.dtype)
    padded = _padded(whole, low, high)
    given = _by_group(g, groups)
    for tap, (rows, columns) in _taps(w.shape[:2], g.shape[1:3], attrs):
        kernel = _by_group(w[tap], groups).transpose(0, 2, 1)
        padded[:, rows, columns] += _together(given @ kernel, (*g.shape[:3], channels))
    inner = (slice(a, a + n) for a, n in zip(low, size, strict=True))
    return np.asarray(padded[(slice(None), *inner)])


def _weight_numpy(
    x: Array, g: Array, *, size: tuple[int, int], groups: int, **attrs: Any
) -> Array:
    padded = _padded(x, attrs["low"], attrs["high"])
    shape = (x.shape[3] // groups, g.shape[3])
    given = _by_group(g, groups)
    found = np.zeros((*size, *shape), x.dtype)
    for tap, (rows, columns) in _taps(size, g.shape[1:3], attrs):
        seen = _by_group(padded[:, rows, columns], groups).transpose(0, 2, 1)
        found[tap] = _together(seen @ given, shape)
    return found


ODD = geometry((2, 1), (1, 0), (0, 2), (1, 2), 2)  # nothing is symmetric
_IMAGE, _KERNELS = (2, 5, 4, 4), (3, 2, 2, 6)
_RESULT = (2, 2, 4, 6)
_ULP = 32.0  # sums of up to a hundred products in another order


def _small(*shape: int) -> Array:
    """Return numbers whose sums do not cancel."""
    count = int(np.prod(shape))
    return np.asarray(1.5 + np.sin(1.3 * np.arange(count) + count)).reshape(shape)


def _bad(size: dict[str, Any], x: Array, y: Array) -> list[Bad]:
    plain = {**geometry(), **size}
    return [
        Bad((x[0], y), plain, ShapeError, "four axes"),
        Bad((x, y), {**plain, "groups": 3}, ShapeError, "groups"),
        Bad((x, y.astype("f4")), plain, DTypeError, "one dtype"),
    ]


CONV = define(
    "conv",
    shape=_conv_shape,
    dtype=matmul_dtype,
    vjp=_conv_vjp,
    code=Convolution("result"),
    numpy=_conv_numpy,
    samples=lambda: [
        Sample((_small(2, 4, 3, 2), _small(2, 2, 2, 3)), geometry(), ulp=_ULP),
        Sample((_small(*_IMAGE), _small(*_KERNELS)), ODD, ulp=_ULP),
        Sample(
            (_small(1, 5, 5, 4), _small(3, 3, 1, 4)),
            geometry((1, 1), (1, 1), (1, 1), groups=4),
            ulp=_ULP,
        ),
        Sample((_small(2, 3, 3, 5), _small(1, 1, 5, 20)), geometry(), ulp=_ULP),
        Sample((_small(0, 3, 3, 2), _small(2, 2, 2, 1)), geometry()),
    ],
    bad=lambda: [
        *_bad({}, numbers(2, 5, 5, 2), numbers(2, 2, 2, 4)),
        Bad(
            (numbers(2, 2, 2, 2), numbers(3, 2, 2, 4)),
            geometry(),
            ShapeError,
            "a window that fits",
        ),
        Bad(
            (numbers(2, 5, 5, 2), numbers(2, 2, 2, 4)),
            geometry((0, 1)),
            ShapeError,
            "at least 1",
        ),
    ],
    amp="half",
)

CONV_INPUT = define(
    "conv_input",
    shape=_input_shape,
    dtype=matmul_dtype,
    vjp=_input_vjp,
    code=Convolution("input"),
    numpy=_input_numpy,
    samples=lambda: [
        Sample(
            (_small(2, 3, 2, 3), _small(2, 2, 2, 3)),
            {"size": (4, 3), **geometry()},
            ulp=_ULP,
        ),
        Sample(
            (_small(*_RESULT), _small(*_KERNELS)), {"size": (5, 4), **ODD}, ulp=_ULP
        ),
        Sample(
            (_small(1, 2, 2, 17), _small(3, 3, 2, 17)),
            {"size": (6, 5), **geometry((2, 2))},
            ulp=_ULP,
        ),
        Sample(
            (_small(0, 2, 2, 1), _small(2, 2, 2, 1)), {"size": (3, 3), **geometry()}
        ),
    ],
    bad=lambda: [
        *_bad({"size": (6, 6)}, numbers(2, 5, 5, 4), numbers(2, 2, 2, 4)),
        Bad(
            (numbers(2, 5, 5, 4), numbers(2, 2, 2, 4)),
            {"size": (5, 6), **geometry()},
            ShapeError,
            "an image of",
        ),
    ],
    amp="half",
)

CONV_WEIGHT = define(
    "conv_weight",
    shape=_weight_shape,
    dtype=matmul_dtype,
    vjp=_weight_vjp,
    code=Convolution("weight"),
    numpy=_weight_numpy,
    samples=lambda: [
        Sample(
            (_small(2, 4, 3, 2), _small(2, 3, 2, 3)),
            {"size": (2, 2), **geometry()},
            ulp=_ULP,
        ),
        Sample((_small(*_IMAGE), _small(*_RESULT)), {"size": (3, 2), **ODD}, ulp=_ULP),
        Sample(
            (_small(2, 4, 4, 3), _small(2, 4, 4, 19)),
            {"size": (3, 3), **geometry((1, 1), (1, 1), (1, 1))},
            ulp=_ULP,
        ),
        Sample(
            (_small(0, 3, 3, 2), _small(0, 2, 2, 2)), {"size": (2, 2), **geometry()}
        ),
    ],
    bad=lambda: [
        *_bad({"size": (2, 2)}, numbers(2, 6, 6, 2), numbers(2, 5, 5, 4)),
        Bad(
            (numbers(2, 5, 5, 2), numbers(3, 4, 4, 2)),
            {"size": (2, 2), **geometry()},
            ShapeError,
            "one batch",
        ),
    ],
)
