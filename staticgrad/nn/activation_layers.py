"""Activations as layers."""

from __future__ import annotations

from staticgrad import ops
from staticgrad.ir.node import Tensor
from staticgrad.nn.module import Module


class Identity(Module):
    """``x``."""

    def forward(self, x: Tensor) -> Tensor:
        """The input itself."""
        return x


class LeakyReLU(Module):
    """X above 0, ``negative_slope * x`` below."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def __repr__(self) -> str:
        return f"LeakyReLU({self.negative_slope})"

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return ops.leaky_relu(x, self.negative_slope)


class ELU(Module):
    """X above 0, ``alpha (exp(x) - 1)`` below."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def __repr__(self) -> str:
        return f"ELU({self.alpha})"

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return ops.elu(x, self.alpha)


class GELU(Module):
    """X times the normal distribution function; by tanh if `approximate` is "tanh"."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return ops.gelu(x, approximate=self.approximate)


class SiLU(Module):
    """``x sigmoid(x)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return ops.silu(x)


class Softplus(Module):
    """``log(1 + exp(x))``."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return ops.softplus(x)


class Softmax(Module):
    """``exp(x) / sum(exp(x))`` along `axis`."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Along the axis."""
        return ops.softmax(x, axis=self.axis)


__all__ = ["ELU", "GELU", "Identity", "LeakyReLU", "SiLU", "Softmax", "Softplus"]
