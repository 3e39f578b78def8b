"""Layers: Linear, Dropout and Sequential, and ReLU, Sigmoid, Tanh as modules.

`Linear` starts as PyTorch's does (nn.Linear.reset_parameters): weight and bias uniform
in +-1/sqrt(in). `Dropout` is the inverted form (Srivastava et al., JMLR 15, 2014): what
is kept is divided by the probability of keeping, so evaluation needs no scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from staticgrad import ops
from staticgrad.errors import GraphError, ShapeError
from staticgrad.ir.node import Parameter, Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import is_half
from staticgrad.nn import initial_values
from staticgrad.nn.module import Module
from staticgrad.ops.promotion import as_tensor


class Linear(Module):
    """Affine map ``x @ weight.T + bias``: (..., inputs) -> (..., outputs).

    `weight` is (outputs, inputs), `bias` (outputs,) or None; both start uniform in
    +-1/sqrt(inputs), from the open graph's seed, in the graph's dtype.

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0):
    ...     layer = sg.nn.Linear(3, 2)
    >>> print(layer(sg.input("x", ("batch", 3))).type)
    float32[batch, 2]
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        if inputs < 1 or outputs < 1:
            raise ShapeError(
                f"Linear requires sizes of at least 1, got {inputs} and {outputs}"
                f"{at(here())}"
            )
        bound = 1 / math.sqrt(inputs)
        weight = initial_values.uniform((outputs, inputs), bound)
        self.weight: Parameter = ops.parameter(weight, name="linear.weight")
        self.bias: Parameter | None = None
        if bias:
            start = initial_values.uniform((outputs,), bound)
            self.bias = ops.parameter(start, name="linear.bias")

    def __repr__(self) -> str:
        outputs, inputs = self.weight.shape
        bias = ", bias=False" if self.bias is None else ""
        return f"Linear({inputs}, {outputs}{bias})"

    def forward(self, x: Tensor) -> Tensor:
        """Return the affine map of the last axis."""
        x, inputs = as_tensor(x), self.weight.shape[1]
        if x.ndim == 0 or x.shape[-1] != inputs:
            raise ShapeError(
                f"Linear requires {inputs} as the last axis, got {x.type}; "
                f"reshape it or change the layer's inputs{at(here())}"
            )
        y = ops.matmul(x, ops.transpose(self.weight))
        if self.bias is None:
            return y
        bias = ops.astype(self.bias, y.dtype) if is_half(y.dtype) else self.bias
        return ops.add(y, bias)


class Sequential(Module):
    """Chain of layers; the parameters of layer i are named ``i.weight``...

    Any callable of one tensor may stand among them.

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0):
    ...     model = sg.nn.Sequential(sg.nn.Linear(3, 2), sg.nn.ReLU())
    >>> print(model(sg.input("x", ("batch", 3))).type)
    float32[batch, 2]
    """

    def __init__(self, *layers: Any) -> None:
        for index, layer in enumerate(layers):
            if not callable(layer):
                raise GraphError(
                    f"Sequential requires callables, got {type(layer).__name__} as "
                    f"layer {index}; give a Module or a function{at(here())}"
                )
            setattr(self, str(index), layer)
        self.length = len(layers)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int | slice) -> Any:
        """Return layer `index`, or, for a slice, a Sequential of the same layers."""
        if isinstance(index, slice):
            return Sequential(*list(self)[index])
        return self.__dict__[str(range(self.length)[index])]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(self.length))

    def forward(self, x: Tensor) -> Tensor:
        """Apply every layer after the other."""
        for layer in self:
            x = layer(x)
        return x


class ReLU(Module):
    """Rectified linear unit ``max(x, 0)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return ops.relu(x)


class Tanh(Module):
    """Hyperbolic tangent ``tanh(x)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return ops.tanh(x)


class Sigmoid(Module):
    """Logistic sigmoid ``1 / (1 + exp(-x))``."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return ops.sigmoid(x)


class Dropout(Module):
    """Dropout: zero each element with probability `p` in training, else x / (1 - p).

    In evaluation the input is returned unchanged. The mask comes from the graph's
    stream.

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0):
    ...     y = sg.nn.Dropout(0.5)(sg.ones(2))
    >>> sg.compile(y, mode="eval", target="reference")()
    array([1., 1.], dtype=float32)
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise GraphError(
                f"Dropout requires a probability in 0..1, got {p}{at(here())}"
            )
        self.p = float(p)

    def __repr__(self) -> str:
        return f"Dropout({self.p})"

    def forward(self, x: Tensor) -> Tensor:
        """Mask and scale the input in train mode."""
        if self.p == 0:
            return x
        scale = 0.0 if self.p == 1 else 1 / (1 - self.p)
        drawn = ops.random.uniform(ops.random.layer_key(), x.shape, "float32")
        kept = ops.where(ops.greater_equal(drawn, self.p), x * scale, 0.0)
        return ops.by_mode(train=kept, eval=x)


__all__ = ["Dropout", "Linear", "ReLU", "Sequential", "Sigmoid", "Tanh"]
