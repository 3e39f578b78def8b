"""Activations as layers."""

from __future__ import annotations

from staticgrad import ops
from staticgrad.ir.node import Tensor
from staticgrad.nn.module import Module


class Identity(Module):
    """Identity: ``x``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input."""
        return x


class LeakyReLU(Module):
    """Leaky ReLU: ``x`` above 0, ``negative_slope * x`` below."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = negative_slope

    def __repr__(self) -> str:
        return f"LeakyReLU({self.negative_slope})"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return ops.leaky_relu(x, self.negative_slope)


class ELU(Module):
    """Exponential linear unit: ``x`` above 0, ``alpha (exp(x) - 1)`` below."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def __repr__(self) -> str:
        return f"ELU({self.alpha})"

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return ops.elu(x, self.alpha)


class GELU(Module):
    """Gaussian error linear unit: ``x Phi(x)``, Phi the normal distribution."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return ops.gelu(x, approximate=self.approximate)


class SiLU(Module):
    """Sigmoid linear unit: ``x sigmoid(x)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return ops.silu(x)


class Softplus(Module):
    """Softplus ``log(1 + exp(x))``."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it elementwise."""
        return ops.softplus(x)


class Softmax(Module):
    """Softmax ``exp(x) / sum(exp(x))`` along `axis`."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Apply it along the axis."""
        return ops.softmax(x, axis=self.axis)


__all__ = ["ELU", "GELU", "Identity", "LeakyReLU", "SiLU", "Softmax", "Softplus"]
