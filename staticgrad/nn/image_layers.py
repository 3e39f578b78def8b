"""Layers for images and sequences: convolutions, pools, flatten.

Weights start as PyTorch's do (nn._ConvNd.reset_parameters): weight and bias uniform in
+-1/sqrt(the number of products that one element of the result adds up).
"""

from __future__ import annotations

import math
from typing import Any

from staticgrad import ops
from staticgrad.errors import ShapeError
from staticgrad.ir.node import Parameter, Tensor
from staticgrad.ir.source import at, here
from staticgrad.nn import convolutions, initial_values, pooling
from staticgrad.nn.module import Module
from staticgrad.nn.window_geometry import Ints, per_axis


class _Convolution(Module):
    """Base of convolutions: a function of sg.nn with its arguments and parameters."""

    rank = 2
    transposed = False
    function: Any

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1,
        padding: Any = 0, dilation: Any = 1, groups: int = 1, bias: bool = True,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        window = per_axis(name, "kernel_size", kernel_size, self.rank)
        _check_channels(name, in_channels, out_channels, groups)
        self.kernel_size, self.stride, self.padding = window, stride, padding
        self.dilation, self.groups = dilation, groups
        outer, inner = in_channels, out_channels
        if not self.transposed:
            outer, inner = out_channels, in_channels
        shape: Ints = (outer, inner // groups, *window)
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        self.weight: Parameter = ops.parameter(
            initial_values.uniform(shape, bound), name=f"{name.lower()}.weight"
        )
        self.bias: Parameter | None = None
        if bias:
            self.bias = ops.parameter(
                initial_values.uniform((out_channels,), bound),
                name=f"{name.lower()}.bias",
            )

    def __repr__(self) -> str:
        outer, inner = self.weight.shape[0], self.weight.shape[1] * self.groups
        before, after = (outer, inner) if self.transposed else (inner, outer)
        texts = [f"{before}, {after}, kernel_size={self.kernel_size}"]
        defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
        for key, default in defaults.items():
            value = getattr(self, key)
            texts += [f"{key}={value!r}"] if value != default else []
        texts += ["bias=False"] if self.bias is None else []
        return f"{type(self).__name__}({', '.join(texts)})"

    def forward(self, x: Tensor) -> Tensor:
        """Apply the convolution and add the bias."""
        return self._applied(x)

    def _applied(self, x: Tensor, **others: Any) -> Tensor:
        result: Tensor = self.function(
            x, self.weight, self.bias, self.stride, self.padding,
            dilation=self.dilation, groups=self.groups, **others,
        )  # fmt: skip
        return result


def _check_channels(name: str, before: int, after: int, groups: int) -> None:
    if min(before, after, groups) < 1 or before % groups or after % groups:
        raise ShapeError(
            f"{name} requires channels that the groups share equally, got {before}, "
            f"{after} and {groups} groups{at(here())}"
        )


class Conv2d(_Convolution):
    """Convolution of images: (batch, in, height, width) -> (batch, out, ...).

    `weight` is (out_channels, in_channels / groups, height, width), `bias`
    (out_channels,) or None. The arguments are those of `sg.nn.conv2d`.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("batch", 3, 8, 8))
    >>> with sg.Graph(seed=0):
    ...     layer = sg.nn.Conv2d(3, 16, 3, padding=1)
    >>> print(layer(x).type)
    float32[batch, 16, 8, 8]
    """

    function = staticmethod(convolutions.conv2d)


class Conv1d(_Convolution):
    """Convolution of sequences: (batch, in, length) -> (batch, out, ...)."""

    rank = 1
    function = staticmethod(convolutions.conv1d)


class _Transposed(_Convolution):
    """Base of transposed convolutions, which choose among sizes of the result."""

    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1,
        padding: Any = 0, output_padding: Any = 0, groups: int = 1, bias: bool = True,
        dilation: Any = 1,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, kernel_size, stride, padding,
                         dilation, groups, bias)  # fmt: skip
        self.output_padding = output_padding

    def forward(self, x: Tensor) -> Tensor:
        """Apply the transposed convolution and add the bias."""
        return self._applied(x, output_padding=self.output_padding)


class ConvTranspose2d(_Transposed):
    """Transposed convolution of images.

    `weight` is (in_channels, out_channels / groups, height, width). The arguments are
    those of `sg.nn.conv_transpose2d`.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("batch", 16, 4, 4))
    >>> with sg.Graph(seed=0):
    ...     layer = sg.nn.ConvTranspose2d(16, 3, 2, stride=2)
    >>> print(layer(x).type)
    float32[batch, 3, 8, 8]
    """

    function = staticmethod(convolutions.conv_transpose2d)


class ConvTranspose1d(_Transposed):
    """Transposed convolution of sequences; see ConvTranspose2d."""

    rank = 1
    function = staticmethod(convolutions.conv_transpose1d)


class _Pool(Module):
    """Base of pools: a function of windows with its arguments."""

    function: Any

    def __init__(self, kernel_size: Any, stride: Any = None, **others: Any) -> None:
        self.kernel_size, self.stride, self.others = kernel_size, stride, others

    def __repr__(self) -> str:
        texts = [repr(self.kernel_size)]
        texts += [] if self.stride is None else [f"stride={self.stride!r}"]
        texts += [f"{key}={value!r}" for key, value in self.others.items()]
        return f"{type(self).__name__}({', '.join(texts)})"

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to all windows."""
        result: Tensor = self.function(x, self.kernel_size, self.stride, **self.others)
        return result


class MaxPool2d(_Pool):
    """Max pooling of images; the arguments are those of `max_pool2d`.

    >>> import staticgrad as sg
    >>> print(sg.nn.MaxPool2d(2)(sg.input("x", ("batch", 3, 8, 8))).type)
    float32[batch, 3, 4, 4]
    """

    function = staticmethod(pooling.max_pool2d)


class MaxPool1d(_Pool):
    """Max pooling of sequences; the arguments are those of `max_pool1d`."""

    function = staticmethod(pooling.max_pool1d)


class AvgPool2d(_Pool):
    """Average pooling of images; the arguments are those of `avg_pool2d`."""

    function = staticmethod(pooling.avg_pool2d)


class AvgPool1d(_Pool):
    """Average pooling of sequences; the arguments are those of `avg_pool1d`."""

    function = staticmethod(pooling.avg_pool1d)


class AdaptiveAvgPool2d(Module):
    """Average pooling of images to `output_size`; see `adaptive_avg_pool2d`."""

    def __init__(self, output_size: Any) -> None:
        self.output_size = output_size

    def __repr__(self) -> str:
        return f"AdaptiveAvgPool2d({self.output_size!r})"

    def forward(self, x: Tensor) -> Tensor:
        """Return the means of the windows."""
        return pooling.adaptive_avg_pool2d(x, self.output_size)


class Flatten(Module):
    """Flattening of axes, by default all but the batch's; see `flatten`."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def __repr__(self) -> str:
        plain = (self.start_dim, self.end_dim) == (1, -1)
        return "Flatten()" if plain else f"Flatten({self.start_dim}, {self.end_dim})"

    def forward(self, x: Tensor) -> Tensor:
        """Merge the axes into one."""
        return pooling.flatten(x, self.start_dim, self.end_dim)


__all__ = [
    "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "Conv1d", "Conv2d",
    "ConvTranspose1d", "ConvTranspose2d", "Flatten", "MaxPool1d", "MaxPool2d",
]  # fmt: skip
