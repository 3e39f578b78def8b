"""Pooling: maxima and means of windows, with PyTorch's names and layouts.

An image is (batch, channels, height, width), a sequence (batch, channels, length); the
batch axis may be missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.types import is_float
from staticgrad.nn.window_geometry import (
    channels_first,
    channels_last,
    in_two,
    per_axis,
)
from staticgrad.ops.elementwise.arithmetic import multiply
from staticgrad.ops.elementwise.division import divide
from staticgrad.ops.linear.contractions import einsum
from staticgrad.ops.linear.convolution import conv, geometry, window_count
from staticgrad.ops.linear.pooling_ops import MAX_POOL
from staticgrad.ops.movement.filling import ones
from staticgrad.ops.movement.placement import PAD
from staticgrad.ops.movement.slicing import SLICE
from staticgrad.ops.movement.views import reshaped
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.reductions.reduce import sum as total
from staticgrad.ops.reductions.statistics import mean
from staticgrad.ops.rules import dtype_error, shape_error

Array = npt.NDArray[Any]


class _Windows:
    """Window, stride and margins of a pool over the two axes of an image."""

    def __init__(
        self, name: str, rank: int, x: Tensor, kernel_size: Any, stride: Any,
        padding: Any, dilation: Any, ceil_mode: bool,
    ) -> None:  # fmt: skip
        window = per_axis(name, "kernel_size", kernel_size, rank)
        given = kernel_size if stride is None else stride
        self.window = in_two(window, rank)
        self.strides = in_two(per_axis(name, "stride", given, rank), rank)
        self.dilation = in_two(per_axis(name, "dilation", dilation, rank), rank)
        self.low = in_two(per_axis(name, "padding", padding, rank, least=0), rank, 0)
        if any(2 * p > n for p, n in zip(self.low, self.window, strict=True)):
            rule = f"a padding of at most half the window, got {padding} of {window}"
            raise shape_error(name, (), rule)
        self.high = self._last(name, x) if ceil_mode else self.low

    def _last(self, name: str, x: Tensor) -> tuple[int, int]:
        """Return margins after the image with which the last, partial window counts."""
        high = list(self.low)
        for axis in range(2):
            n, padding = x.shape[1 + axis], 2 * self.low[axis]
            if not isinstance(n, int):
                raise shape_error(name, (x,), "static sizes for ceil_mode")
            stride, spread = self.strides[axis], self.dilation[axis]
            span = spread * (self.window[axis] - 1) + 1
            count = -(-(n + padding - span) // stride) + 1
            if (count - 1) * stride >= n + self.low[axis]:
                count -= 1  # a window must begin in the image or before it
            high[axis] += max((count - 1) * stride + span - (n + padding), 0)
        return high[0], high[1]

    def is_padded(self) -> bool:
        """Whether there is a margin."""
        return any((*self.low, *self.high))

    def is_apart(self) -> bool:
        """Whether the windows tile the image without overlap."""
        return self.window == self.strides and self.dilation == (1, 1)

    def padded(self, x: Tensor, value: float) -> Tensor:
        """Return the image with margins of `value`."""
        if not self.is_padded():
            return x
        low, high = (0, *self.low, 0), (0, *self.high, 0)
        return apply(PAD, x, low=low, high=high, interior=(0,) * 4, value=value)


def max_pool1d(
    x: ArrayLike, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """Return the largest element of each window of a sequence; see `max_pool2d`.

    >>> import staticgrad as sg
    >>> print(sg.nn.max_pool1d(sg.input("x", ("batch", 8, 100)), 2).type)
    float32[batch, 8, 50]
    """
    return _max_pool("max_pool1d", 1, x, kernel_size, stride, padding, dilation,
                     ceil_mode)  # fmt: skip


def max_pool2d(
    x: ArrayLike, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """Return the largest element of each window of an image.

    `kernel_size`, `stride` (by default the window), `padding` and `dilation` are ints
    or one per axis. What is padded never is the largest; with `ceil_mode` a last window
    may reach beyond the margin. A NaN in a window is its result.

    The gradient goes to the largest element, to the first of equal ones (to the first
    NaN if there is one). A window of nothing but -inf that begins in a margin passes
    none on.

    >>> import staticgrad as sg
    >>> print(sg.nn.max_pool2d(sg.input("x", ("batch", 8, 28, 28)), 2).type)
    float32[batch, 8, 14, 14]
    """
    return _max_pool("max_pool2d", 2, x, kernel_size, stride, padding, dilation,
                     ceil_mode)  # fmt: skip


def _max_pool(
    name: str, rank: int, x: ArrayLike, kernel_size: Any, stride: Any, padding: Any,
    dilation: Any, ceil_mode: bool,
) -> Tensor:  # fmt: skip
    given = as_tensor(x)
    image = channels_last(name, given, rank)  # (batch, rows, columns, channels)
    windows = _Windows(
        name, rank, image, kernel_size, stride, padding, dilation, ceil_mode
    )
    lowest = -np.inf if is_float(given.dtype) else _lowest(name, given)
    y = apply(
        MAX_POOL,
        windows.padded(image, lowest),
        window=windows.window,
        strides=windows.strides,
        dilation=windows.dilation,
    )
    return channels_first(y, given, rank)


def _lowest(name: str, x: Tensor) -> int:
    if x.dtype.kind not in "iu":
        raise dtype_error(name, (x,), "numbers", "cast with .astype")
    return int(np.iinfo(x.dtype).min)


def avg_pool1d(
    x: ArrayLike, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """Return the mean of each window of a sequence; see `avg_pool2d`.

    >>> import staticgrad as sg
    >>> print(sg.nn.avg_pool1d(sg.input("x", ("batch", 8, 100)), 2).type)
    float32[batch, 8, 50]
    """
    return _avg_pool("avg_pool1d", 1, x, kernel_size, stride, padding, ceil_mode,
                     count_include_pad)  # fmt: skip


def avg_pool2d(
    x: ArrayLike, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """Return the mean of each window of an image.

    `kernel_size`, `stride` (by default the window) and `padding` are ints or one per
    axis. Pixels of the margin are zeros that count, unless `count_include_pad` is
    false; what a last window of `ceil_mode` has beyond the margin never counts.

    >>> import staticgrad as sg
    >>> print(sg.nn.avg_pool2d(sg.input("x", ("batch", 8, 28, 28)), 2).type)
    float32[batch, 8, 14, 14]
    """
    return _avg_pool("avg_pool2d", 2, x, kernel_size, stride, padding, ceil_mode,
                     count_include_pad)  # fmt: skip


def _avg_pool(
    name: str, rank: int, x: ArrayLike, kernel_size: Any, stride: Any, padding: Any,
    ceil_mode: bool, count_include_pad: bool,
) -> Tensor:  # fmt: skip
    given = as_tensor(x)
    if not is_float(given.dtype):
        raise dtype_error(name, (given,), "floats", "cast with .astype")
    image = channels_last(name, given, rank)  # (batch, rows, columns, channels)
    windows = _Windows(name, rank, image, kernel_size, stride, padding, 1, ceil_mode)
    sums = _sums(windows, image)  # (batch, rows, columns, channels)
    if windows.is_padded() and (ceil_mode or not count_include_pad):
        y = divide(sums, _counts(windows, image, count_include_pad))
    else:
        y = multiply(sums, 1.0 / (windows.window[0] * windows.window[1]))
    return channels_first(y, given, rank)


def _sums(windows: _Windows, x: Tensor) -> Tensor:
    """Sum each window, by a reshape or by a depthwise convolution with ones."""
    if windows.is_apart():
        return _sums_apart(windows, windows.padded(x, 0))
    channels = x.shape[3]
    if not isinstance(channels, int):
        raise shape_error("avg_pool2d", (x,), "a known number of channels")
    kernels = ones((*windows.window, 1, channels), x.dtype)  # depthwise
    return conv(x, kernels, **_as_convolution(windows, channels))


def _as_convolution(windows: _Windows, groups: int) -> dict[str, Any]:
    return geometry(windows.strides, windows.low, windows.high, (1, 1), groups)


def _sums_apart(windows: _Windows, x: Tensor) -> Tensor:
    n, height, width, channels = x.shape
    r, s = windows.window
    rows, columns = (
        window_count(size, step, step, 0, 1) for size, step in ((height, r), (width, s))
    )
    sizes = (n, rows * r, columns * s, channels)
    if sizes != x.shape:
        x = apply(SLICE, x, starts=(0,) * 4, sizes=sizes, steps=(1,) * 4)
    return total(reshaped(x, (n, rows, r, columns, s, channels)), axis=(2, 4))


def _counts(windows: _Windows, x: Tensor, count_include_pad: bool) -> Tensor:
    """Count the pixels of each window: (1, rows, columns, 1)."""
    image = ones((1, *x.shape[1:3], 1), x.dtype)
    attrs = _as_convolution(windows, 1)
    if count_include_pad:
        margins = {"low": (0, *windows.low, 0), "high": (0, *windows.low, 0)}
        image = apply(PAD, image, **margins, interior=(0,) * 4, value=1)
        beyond = tuple(b - a for a, b in zip(windows.low, windows.high, strict=True))
        attrs = {**attrs, "low": (0, 0), "high": beyond}
    return conv(image, ones((*windows.window, 1, 1), x.dtype), **attrs)


def adaptive_avg_pool1d(x: ArrayLike, output_size: Any) -> Tensor:
    """Return the means of `output_size` windows that cover a sequence.

    >>> import staticgrad as sg
    >>> print(sg.nn.adaptive_avg_pool1d(sg.input("x", ("n", 8, 100)), 7).type)
    float32[n, 8, 7]
    """
    return _adaptive("adaptive_avg_pool1d", 1, x, output_size)


def adaptive_avg_pool2d(x: ArrayLike, output_size: Any) -> Tensor:
    """Return the means of as many windows as `output_size` says, which cover an image.

    `output_size` is an int or one per axis; 1 is the mean of the whole image
    (`global_avg_pool2d`). Window i of m over n pixels has those from ``floor(i * n /
    m)`` to below ``ceil((i + 1) * n / m)``.

    >>> import staticgrad as sg
    >>> print(sg.nn.adaptive_avg_pool2d(sg.input("x", ("n", 8, 28, 28)), (7, 1)).type)
    float32[n, 8, 7, 1]
    """
    return _adaptive("adaptive_avg_pool2d", 2, x, output_size)


def global_avg_pool2d(x: ArrayLike) -> Tensor:
    """Return the mean of each channel of an image: (batch, channels).

    >>> import staticgrad as sg
    >>> print(sg.nn.global_avg_pool2d(sg.input("x", ("n", 8, "h", "w"))).type)
    float32[n, 8]
    """
    image = as_tensor(x)
    if image.ndim not in (3, 4):
        rule = "an image of (batch, channels, height, width), the batch may be missing"
        raise shape_error("global_avg_pool2d", (image,), rule)
    return mean(image, axis=(-2, -1))


def _adaptive(name: str, rank: int, x: ArrayLike, output_size: Any) -> Tensor:
    given = as_tensor(x)
    counts = per_axis(name, "output_size", output_size, rank)
    if given.ndim not in (rank + 1, rank + 2):
        raise shape_error(name, (given,), f"{rank + 1} or {rank + 2} axes")
    if not is_float(given.dtype):
        raise dtype_error(name, (given,), "floats", "cast with .astype")
    for place, count in enumerate(counts):
        given = _averaged(name, given, given.ndim - rank + place, count)
    return given


def _averaged(name: str, x: Tensor, axis: int, count: int) -> Tensor:
    n = x.shape[axis]
    if count == 1:
        return mean(x, axis=axis, keepdims=True)
    if not isinstance(n, int):
        raise shape_error(name, (x,), "static sizes for more than one window")
    if n % count == 0:
        shape: Shape = (*x.shape[:axis], count, n // count, *x.shape[axis + 1 :])
        return mean(reshaped(x, shape), axis=axis + 1)
    letters = "abcd"[: x.ndim]
    after = letters.replace(letters[axis], "z")
    weights = as_tensor(_averages(n, count).astype(x.dtype))
    return einsum(f"{letters},z{letters[axis]}->{after}", x, weights)


def _averages(n: int, count: int) -> Array:
    """Return the matrix that maps n elements to the means of `count` windows."""
    matrix = np.zeros((count, n))
    for window in range(count):
        first, last = window * n // count, -(-(window + 1) * n // count)
        matrix[window, first:last] = 1 / (last - first)
    return matrix


def flatten(x: ArrayLike, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merge the axes of `x` from `start_dim` to `end_dim` into one.

    >>> import staticgrad as sg
    >>> print(sg.nn.flatten(sg.input("x", ("batch", 8, 4, 4)), 1).type)
    float32[batch, 128]
    """
    given = as_tensor(x)
    first, last = (
        axis + given.ndim if axis < 0 else axis for axis in (start_dim, end_dim)
    )
    if not 0 <= first <= last < given.ndim:
        rule = f"axes in order, got {start_dim} and {end_dim}"
        raise shape_error("flatten", (given,), rule)
    joined: Dim = 1
    for n in given.shape[first : last + 1]:
        joined = joined * n
    return reshaped(given, (*given.shape[:first], joined, *given.shape[last + 1 :]))


__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d",
    "flatten", "global_avg_pool2d", "max_pool1d", "max_pool2d",
]  # fmt: skip
