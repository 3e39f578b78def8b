"""Normalisation: batch, layer, group and root-mean-square, as functions and layers.

Ioffe and Szegedy, "Batch Normalization" (ICML 2015); Ba, Kiros and Hinton, "Layer
Normalization" (2016); Wu and He, "Group Normalization" (ECCV 2018); Zhang and Sennrich,
"Root Mean Square Layer Normalization" (NeurIPS 2019). Conventions are PyTorch's: the
batch is divided by the root of its biased variance, running variances are unbiased,
`momentum` is the share of the new batch.

Statistics of 16-bit inputs are taken in float32, and running ones are float32. With
``Trainer(accumulate=N)`` a batch is normalised by the statistics of its micro-batch, as
in PyTorch; ``pool_statistics=True`` moves the running ones once an update by the mean
and variance of all its micro-batches. Layer and group norms do not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from staticgrad import ops
from staticgrad.errors import GraphError, ShapeError
from staticgrad.ir.graph import OpenGraph, current_graph
from staticgrad.ir.node import Parameter, State, Tensor
from staticgrad.ir.size import Size, product
from staticgrad.ir.source import at, here
from staticgrad.ir.types import computed, is_half
from staticgrad.nn import initial_values
from staticgrad.nn.module import Module
from staticgrad.ops.promotion import as_tensor, widened


@widened
def layer_norm(
    x: Tensor,
    axes: int | Sequence[int] = -1,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise: ``(x - mean) / sqrt(var + eps) * weight + bias`` over `axes`.

    `weight` and `bias` broadcast to x; None leaves them out.

    >>> import staticgrad as sg
    >>> y = layer_norm(sg.constant([1.0, 3.0]), eps=0.0)
    >>> sg.compile(y, target="reference")()
    array([-1.,  1.], dtype=float32)
    """
    away = x - ops.mean(x, axes, keepdims=True)
    variance = ops.mean(away * away, axes, keepdims=True)
    return _affine(away * ops.rsqrt(variance + eps), weight, bias)


@widened
def rms_norm(
    x: Tensor,
    axes: int | Sequence[int] = -1,
    weight: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` over `axes`.

    >>> import staticgrad as sg
    >>> y = rms_norm(sg.constant([3.0, 3.0]), eps=0.0)
    >>> sg.compile(y, target="reference")()
    array([1., 1.], dtype=float32)
    """
    square = ops.mean(x * x, axes, keepdims=True)
    return _affine(x * ops.rsqrt(square + eps), weight, None)


@widened
def group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each of `groups` groups of channels: (n, channels, ...).

    `weight` and `bias` are (channels,).

    >>> import staticgrad as sg
    >>> y = group_norm(sg.constant([[1.0, 3.0, 5.0, 9.0]]), 2, eps=0.0)
    >>> sg.compile(y, target="reference")()
    array([[-1.,  1., -1.,  1.]], dtype=float32)
    """
    x = as_tensor(x)
    channels = x.shape[1] if x.ndim > 1 else 0
    if not isinstance(channels, int) or groups < 1 or channels % groups or not channels:
        raise ShapeError(
            f"group_norm requires channels on axis 1 that {groups} groups share, got "
            f"{x.type}; choose a divisor{at(here())}"
        )
    rest = x.shape[2:]
    apart = ops.reshape(x, (x.shape[0], groups, channels // groups, *rest))
    axes = tuple(range(2, apart.ndim))
    even = ops.reshape(layer_norm(apart, axes, eps=eps), x.shape)
    return _affine(even, _of_channels(weight, x), _of_channels(bias, x))


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _of_channels(values: Tensor | None, x: Tensor) -> Tensor | None:
    """Reshape a vector over the channels, axis 1 of `x`, to broadcast."""
    if values is None or x.ndim == 2:
        return values
    return ops.reshape(values, (values.shape[0], *(1,) * (x.ndim - 2)))


class LayerNorm(Module):
    """Layer normalisation over the last axes, whose sizes are `shape`.

    >>> import staticgrad as sg
    >>> print(sg.nn.LayerNorm(4)(sg.input("x", ("n", 4))).type)
    float32[n, 4]
    """

    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-5, affine: bool = True
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.weight, self.bias = _weight_and_bias(self.shape, affine)

    def __repr__(self) -> str:
        return f"LayerNorm({self.shape if len(self.shape) > 1 else self.shape[0]})"

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input."""
        x = as_tensor(x)
        axes = _last_axes("LayerNorm", x, self.shape)
        return layer_norm(x, axes, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Root-mean-square normalisation over the last axes, whose sizes are `shape`."""

    def __init__(
        self, shape: int | Sequence[int], eps: float = 1e-6, affine: bool = True
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps = eps
        self.weight, _ = _weight_and_bias(self.shape, affine)

    def __repr__(self) -> str:
        return f"RMSNorm({self.shape if len(self.shape) > 1 else self.shape[0]})"

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input."""
        x = as_tensor(x)
        axes = _last_axes("RMSNorm", x, self.shape)
        return rms_norm(x, axes, self.weight, self.eps)


class GroupNorm(Module):
    """Group normalisation of `channels` channels in `groups` groups."""

    def __init__(
        self, groups: int, channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        if groups < 1 or channels < 1 or channels % groups:
            raise ShapeError(
                f"GroupNorm requires groups that divide the channels, got {groups} "
                f"and {channels}{at(here())}"
            )
        self.groups, self.eps = groups, eps
        self.channels = channels
        self.weight, self.bias = _weight_and_bias((channels,), affine)

    def __repr__(self) -> str:
        return f"GroupNorm({self.groups}, {self.channels})"

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input."""
        x = as_tensor(x)
        _require_channels("GroupNorm", x, self.channels, (2, 3, 4, 5))
        return group_norm(x, self.groups, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class Move:
    """Statistics of one batch-norm call, and the running statistics they update.

    `variance` is biased, `count` is how many numbers each of them was taken of.
    """

    running_mean: State
    running_var: State
    mean: Tensor
    variance: Tensor
    count: Size | int
    momentum: float

    def towards(self, old: Tensor, new: Tensor) -> Tensor:
        """Return the running statistic after `old`, for a batch whose own is `new`."""
        moved = old * (1 - self.momentum) + self.momentum * new
        return moved.astype(old.dtype)


class Moves(list[Move]):
    """The moves of running statistics in a Graph, in order."""


class _BatchNorm(Module):
    """Base of batch norms: statistics over all axes but the channels', axis 1."""

    ranks: tuple[int, ...] = ()

    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
    ) -> None:
        name = type(self).__name__
        if channels < 1:
            raise ShapeError(
                f"{name} requires at least 1 channel, got {channels}{at(here())}"
            )
        if not 0 <= momentum <= 1:
            raise GraphError(
                f"{name} requires a momentum in 0..1, got {momentum}; 0.1 is usual"
                f"{at(here())}"
            )
        self.channels, self.eps, self.momentum = channels, eps, float(momentum)
        self.weight, self.bias = _weight_and_bias((channels,), affine)
        start = initial_values.filled((channels,), 0.0)
        kind = computed(start.dtype)
        self.running_mean: State = ops.state(start.astype(kind), name="running_mean")
        self.running_var: State = ops.state(np.ones(channels, kind), name="running_var")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels})"

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch in train mode, by running statistics in eval mode."""
        name, x = type(self).__name__, as_tensor(x)
        _require_channels(name, x, self.channels, self.ranks)
        graph = current_graph()
        if graph is None:
            raise GraphError(
                f"{name} requires an open Graph, which keeps its updates, got none; "
                f"call it inside `with sg.Graph():`{at(here())}"
            )
        wide = x.astype(computed(x.dtype)) if is_half(x.dtype) else x
        axes = (0, *range(2, x.ndim))  # all but the channels
        mean = ops.mean(wide, axes)  # (channels,)
        away = wide - _row(mean, x)
        variance = ops.mean(away * away, axes)  # (channels,)
        count = product(tuple(x.shape[axis] for axis in axes))
        spread = ops.sum(away * away, axes) / ops.maximum(count - 1, 1)  # unbiased
        move = Move(
            self.running_mean, self.running_var, mean, variance, count, self.momentum
        )
        _keep(graph, move, self.running_mean, mean)
        _keep(graph, move, self.running_var, spread)
        graph.record(Moves).append(move)
        centre = ops.by_mode(train=mean, eval=self.running_mean.astype(mean.dtype))
        scale = ops.by_mode(train=variance, eval=self.running_var.astype(mean.dtype))
        y = (wide - _row(centre, x)) * _row(ops.rsqrt(scale + self.eps), x)
        y = _affine(y, _row(self.weight, x), _row(self.bias, x))
        return y.astype(x.dtype) if is_half(x.dtype) else y


def _keep(graph: OpenGraph, move: Move, state: State, new: Tensor) -> None:
    """Move a running statistic towards `new`; again for each call of the layer."""
    old = graph.pending(state)
    moved = move.towards(state if old is None else old, ops.stop_gradient(new))
    graph.replace_update(state, ops.by_mode(train=moved, eval=state))


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (n, channels) or (n, channels, length).

    In train mode the statistics are the batch's, and ``running_mean`` and
    ``running_var`` (states) move towards them by `momentum`; eval mode uses those. The
    variance of one number per channel, as in a last batch of one sample, is 0.
    Called several times in one graph, the layer moves them once per call, in order.

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0):
    ...     y = sg.nn.BatchNorm1d(3)(sg.input("x", ("n", 3)))
    >>> print(y.type)
    float32[n, 3]
    """

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (n, channels, height, width); see BatchNorm1d."""

    ranks = (4,)


def _row(values: Tensor | None, x: Tensor) -> Tensor | None:
    """Return a vector over the channels that broadcasts to `x`, as computed."""
    found = _of_channels(values, x)
    if found is None or not is_half(found.dtype):
        return found
    return found.astype(computed(found.dtype))


def _weight_and_bias(
    shape: tuple[int, ...], affine: bool
) -> tuple[Parameter | None, Parameter | None]:
    if not shape or min(shape) < 1:
        raise ShapeError(
            f"a norm requires sizes of at least 1, got {shape}{at(here())}"
        )
    if not affine:
        return None, None
    weight = ops.parameter(initial_values.filled(shape, 1.0), name="norm.weight")
    return weight, ops.parameter(initial_values.filled(shape, 0.0), name="norm.bias")


def _last_axes(name: str, x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    if x.shape[-len(shape) :] != shape:
        sizes = ", ".join(map(str, shape))
        raise ShapeError(
            f"{name} requires [..., {sizes}], got {x.type}; "
            f"reshape it or change the layer's shape{at(here())}"
        )
    return tuple(range(x.ndim - len(shape), x.ndim))


def _require_channels(
    name: str, x: Tensor, channels: int, ranks: Sequence[int]
) -> None:
    if x.ndim in ranks and x.shape[1] == channels:
        return
    wanted = " or ".join(map(str, ranks))
    raise ShapeError(
        f"{name} requires {wanted} axes with {channels} channels on axis 1, got "
        f"{x.type}{at(here())}"
    )


__all__ = [
    "BatchNorm1d", "BatchNorm2d", "GroupNorm", "LayerNorm", "RMSNorm", "group_norm",
    "layer_norm", "rms_norm",
]  # fmt: skip
