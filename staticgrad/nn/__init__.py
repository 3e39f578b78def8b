"""Neural networks: layers, which own parameters, and losses, which are functions.

Layouts are PyTorch's: ``Linear.weight`` is (out, in), classes lie on axis 1.
"""

from typing import TYPE_CHECKING

from staticgrad.nn.activation_layers import *
from staticgrad.nn.convolutions import *
from staticgrad.nn.embedding import *
from staticgrad.nn.image_layers import *
from staticgrad.nn.layers import *
from staticgrad.nn.losses import *
from staticgrad.nn.module import *
from staticgrad.nn.normalisation import *
from staticgrad.nn.pooling import *
from staticgrad.nn.recurrent import *
from staticgrad.nn.transformer import *
from staticgrad.ops import elu as elu
from staticgrad.ops import gelu as gelu
from staticgrad.ops import leaky_relu as leaky_relu
from staticgrad.ops import log_softmax as log_softmax
from staticgrad.ops import relu as relu
from staticgrad.ops import sigmoid as sigmoid
from staticgrad.ops import silu as silu
from staticgrad.ops import softmax as softmax
from staticgrad.ops import softplus as softplus
from staticgrad.ops import tanh as tanh

if not TYPE_CHECKING:  # type checkers see it from the names that the modules list
    del TYPE_CHECKING
    __all__ = sorted(n for n, v in globals().items() if callable(v) and n[0] != "_")
