"""Convolutions as functions: names, arguments and layouts are PyTorch's.

Images are (batch, channels, height, width) or, without a batch, (channels, height,
width); kernels are (filters, channels, height, width). The ops work with the channels
last (convolution.py); the transposes between them vanish when a graph is compiled.
"""

from __future__ import annotations

from typing import Any

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim
from staticgrad.nn.window_geometry import (
    channels_first,
    channels_last,
    in_two,
    kernels_last,
    known_window,
    paddings,
    per_axis,
)
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.arithmetic import add
from staticgrad.ops.linear.convolution import conv, conv_input, geometry
from staticgrad.ops.movement.padding import pad
from staticgrad.ops.promotion import ArrayLike, promoted
from staticgrad.ops.rules import shape_error


def conv1d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve a sequence with the filters of `weight`; see `conv2d`.

    `x` is (batch, channels, length), `weight` (filters, channels / groups, width).

    >>> import staticgrad as sg
    >>> x, w = sg.input("x", ("batch", 3, 100)), sg.input("w", (8, 3, 5))
    >>> print(sg.nn.conv1d(x, w, padding="same").type)
    float32[batch, 8, 100]
    """
    return _conv("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve an image with the filters of `weight`.

    ``y[n, k, p, q]`` is the sum over c, r, s of ``x[n, c, p * stride + r * dilation -
    padding, ...] * weight[k, c, r, s]``, plus ``bias[k]``; outside of the image x is 0.

    `x` is (batch, channels, height, width), `weight` (filters, channels / groups,
    height, width). `stride` and `dilation` are ints or one per axis; `padding` too, or
    a pair (before, after) per axis, "valid" (0), or "same" (strides of 1: the result is
    as large as the image). With `groups`, channels and filters are cut into as many
    parts, and filters see the channels of their own part only; groups equal to the
    channels is a depthwise convolution.

    3x3 kernels with many channels are computed by tiles of 2x4 (Winograd): a NaN or an
    infinity may then reach the other elements of the tiles that it is in, and float32
    errs by up to twice as much as sums do, 2e-6 of the largest element at 256 channels.

    Raises ShapeError where sizes do not fit, DTypeError for integers.

    >>> import staticgrad as sg
    >>> x, w = sg.input("x", ("batch", 3, 32, 32)), sg.input("w", (16, 3, 5, 5))
    >>> print(sg.nn.conv2d(x, w, stride=2, padding=2).type)
    float32[batch, 16, 16, 16]
    """
    return _conv("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def _conv(
    name: str, rank: int, x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None,
    stride: Any, padding: Any, dilation: Any, groups: int,
) -> Tensor:  # fmt: skip
    image, w, *rest = promoted(*(t for t in (x, weight, bias) if t is not None))
    kernels = kernels_last(name, w, rank)  # (height, width, channels, filters)
    strides = per_axis(name, "stride", stride, rank)
    spread = per_axis(name, "dilation", dilation, rank)
    widths = paddings(name, padding, known_window(name, w), strides, spread)
    attrs = geometry(
        in_two(strides, rank),
        in_two(tuple(a for a, _ in widths), rank, 0),
        in_two(tuple(b for _, b in widths), rank, 0),
        in_two(spread, rank),
        groups,
    )
    y = conv(channels_last(name, image, rank), kernels, **attrs)
    return channels_first(_biased(name, y, rest), image, rank)


def _biased(name: str, y: Tensor, rest: list[Tensor]) -> Tensor:
    if not rest:
        return y
    (bias,) = rest
    if bias.shape != y.shape[-1:]:
        rule = f"a bias of ({y.shape[-1]},), one number per filter, got {bias.type}"
        raise shape_error(name, (), rule)
    return add(y, cast(bias, y.dtype))  # a policy may have made y 16-bit


def conv_transpose1d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Compute the gradient of `conv1d` by its input; see `conv_transpose2d`.

    >>> import staticgrad as sg
    >>> x, w = sg.input("x", ("batch", 8, 50)), sg.input("w", (8, 3, 4))
    >>> print(sg.nn.conv_transpose1d(x, w, stride=2, padding=1).type)
    float32[batch, 3, 100]
    """
    return _transposed(
        "conv_transpose1d", 1, x, weight, bias, stride, padding, output_padding,
        groups, dilation,
    )  # fmt: skip


def conv_transpose2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """Compute a transposed convolution: pixels times kernels, `stride` apart.

    It is the transpose of the linear map that `conv2d` with the same arguments is.
    `weight` is (channels of x, channels of the result / groups, height, width). The
    result has ``(n - 1) * stride + dilation * (window - 1) + 1 - padding +
    output_padding`` rows, where padding counts both sides; `output_padding`, less than
    the stride or the dilation, adds rows at the end: less than the stride it picks one
    of the sizes that `conv2d` would bring to n.

    >>> import staticgrad as sg
    >>> x, w = sg.input("x", ("batch", 16, 8, 8)), sg.input("w", (16, 3, 4, 4))
    >>> print(sg.nn.conv_transpose2d(x, w, stride=2, padding=1).type)
    float32[batch, 3, 16, 16]
    """
    return _transposed(
        "conv_transpose2d", 2, x, weight, bias, stride, padding, output_padding,
        groups, dilation,
    )  # fmt: skip


def _transposed(
    name: str, rank: int, x: ArrayLike, weight: ArrayLike, bias: ArrayLike | None,
    stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any,
) -> Tensor:  # fmt: skip
    image, w, *rest = promoted(*(t for t in (x, weight, bias) if t is not None))
    kernels, window = kernels_last(name, w, rank), known_window(name, w)
    strides = per_axis(name, "stride", stride, rank)
    spread = per_axis(name, "dilation", dilation, rank)
    widths = paddings(name, padding, window, (1,) * rank, spread)
    more = per_axis(name, "output_padding", output_padding, rank, least=0)
    if any(m >= max(s, d) for m, s, d in zip(more, strides, spread, strict=True)):
        rule = f"an output_padding less than the stride or the dilation, got {more}"
        raise shape_error(name, (), f"{rule}, {strides} and {spread}")
    given = channels_last(name, image, rank)  # (batch, height, width, channels)
    edges = zip(widths, more, strides, strict=True)
    ends = [_end(high, extra, step) for (_, high), extra, step in edges]
    low = in_two(tuple(a for a, _ in widths), rank, 0)
    high, more, empty = (in_two(part, rank, 0) for part in zip(*ends, strict=True))
    steps, gaps = in_two(strides, rank), in_two(spread, rank)
    size: list[Dim] = []  # height and width of the result
    for axis, extra in enumerate(more):
        span = gaps[axis] * (kernels.shape[axis] - 1) + 1
        before = (given.shape[1 + axis] - 1) * steps[axis] + span
        size.append(before - low[axis] - high[axis] + extra)
    if any(isinstance(n, int) and n < 1 for n in size):
        rule = f"a padding that leaves pixels, got {padding!r}"
        raise shape_error(name, (image, w), rule)
    attrs = geometry(steps, low, high, gaps, groups)
    y = conv_input(given, kernels, tuple(size), **attrs)  # channels last
    if any(empty):
        y = pad(y, ((0, 0), *((0, rows) for rows in empty), (0, 0)))
    return channels_first(_biased(name, y, rest), image, rank)


def _end(high: int, extra: int, stride: int) -> tuple[int, int, int]:
    """Return padding at an end, pixels beyond it, and those that no window reaches.

    A stride has room for less than itself; more pixels make the padding smaller first.
    """
    cut = min(extra, high) if extra >= stride else 0
    beyond = min(extra - cut, stride - 1)
    return high - cut, beyond, extra - cut - beyond


__all__ = ["conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"]
