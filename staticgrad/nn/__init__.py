"""Neural networks: layers, which own parameters, and losses, which are functions.

Layouts are PyTorch's: ``Linear.weight`` is (out, in), classes lie on axis 1.
"""

from staticgrad.nn.layers import Dropout, Linear, ReLU, Sequential, Sigmoid, Tanh
from staticgrad.nn.losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    mse_loss,
    nll_loss,
)
from staticgrad.nn.module import Module
from staticgrad.ops import (
    elu,
    gelu,
    leaky_relu,
    log_softmax,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)

__all__ = [
    "Dropout", "Linear", "Module", "ReLU", "Sequential", "Sigmoid", "Tanh",
    "binary_cross_entropy_with_logits", "cross_entropy", "elu", "gelu", "leaky_relu",
    "log_softmax", "mse_loss", "nll_loss", "relu", "sigmoid", "silu", "softmax",
    "softplus", "tanh",
]  # fmt: skip
