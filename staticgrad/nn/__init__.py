"""Neural networks: layers, which own parameters, and losses, which are functions.

Layouts are PyTorch's: ``Linear.weight`` is (out, in), classes lie on axis 1.
"""

from staticgrad.nn.activations import (
    ELU,
    GELU,
    Identity,
    LeakyReLU,
    SiLU,
    Softmax,
    Softplus,
)
from staticgrad.nn.embedding import Embedding
from staticgrad.nn.layers import Dropout, Linear, ReLU, Sequential, Sigmoid, Tanh
from staticgrad.nn.losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    mse_loss,
    nll_loss,
)
from staticgrad.nn.module import Module
from staticgrad.nn.normalisation import (
    BatchNorm1d,
    BatchNorm2d,
    GroupNorm,
    LayerNorm,
    RMSNorm,
    group_norm,
    layer_norm,
    rms_norm,
)
from staticgrad.nn.transformer import (
    MultiHeadAttention,
    Residual,
    TransformerBlock,
    attention,
)
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
    "ELU", "GELU", "BatchNorm1d", "BatchNorm2d", "Dropout", "Embedding",
    "GroupNorm", "Identity", "LayerNorm", "LeakyReLU", "Linear", "Module",
    "MultiHeadAttention", "RMSNorm", "ReLU", "Residual", "Sequential", "SiLU",
    "Sigmoid", "Softmax", "Softplus", "Tanh", "TransformerBlock", "attention",
    "binary_cross_entropy_with_logits", "cross_entropy", "elu", "gelu", "group_norm",
    "layer_norm", "leaky_relu", "log_softmax", "mse_loss", "nll_loss", "relu",
    "rms_norm", "sigmoid", "silu", "softmax", "softplus", "tanh",
]  # fmt: skip
