"""Scaled dot-product attention, multi-head attention, and a transformer block.

Vaswani et al., "Attention Is All You Need" (NeurIPS 2017). Layouts and parameter names
are PyTorch's (batch first), so weights can be carried over. The block is pre-norm
(Xiong et al., "On Layer Normalization in the Transformer Architecture", ICML 2020).
"""

from __future__ import annotations

import math

from staticgrad import ops
from staticgrad.errors import GraphError, ShapeError
from staticgrad.ir.node import Parameter, Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import computed
from staticgrad.nn import initial_values
from staticgrad.nn.layers import Dropout, Linear
from staticgrad.nn.module import Module
from staticgrad.nn.normalisation import LayerNorm
from staticgrad.ops.promotion import as_tensor

MASKED = -1e30  # vanishes in a softmax; not -inf, as a whole row may be masked


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Return ``softmax(query @ key.T / sqrt(depth)) @ value`` over the last two axes.

    query (..., time, depth), key (..., source, depth), value (..., source, width) ->
    (..., time, width). `mask` is bool, True where a source may be seen, and broadcasts
    to (..., time, source); `causal` hides the sources after each time. A row that sees
    nothing sees everything equally.

    >>> import numpy as np, staticgrad as sg
    >>> x = sg.constant(np.eye(2, dtype="float32"))
    >>> y = attention(x, x, x, causal=True)
    >>> sg.compile(y, target="reference")()[0]
    array([1., 0.], dtype=float32)
    """
    query, key = as_tensor(query), as_tensor(key)
    depth = query.shape[-1]
    if not isinstance(depth, int) or key.shape[-1] != depth:
        raise ShapeError(
            f"attention requires queries and keys of one known depth, got {query.type} "
            f"and {key.type}{at(here())}"
        )
    scores = ops.matmul(query * (1 / math.sqrt(depth)), ops.matrix_transpose(key))
    wide = scores.astype(computed(scores.dtype))  # (..., time, source)
    seen = mask
    if causal:
        time = ops.expand_dims(ops.arange(query.shape[-2]), 1)  # (time, 1)
        past = ops.arange(key.shape[-2]) <= time  # (time, source)
        seen = past if seen is None else ops.logical_and(seen, past)
    if seen is not None:
        wide = ops.where(seen, wide, MASKED)
    weights = ops.softmax(wide, axis=-1).astype(scores.dtype)
    return ops.matmul(weights, value)  # (..., time, width)


class MultiHeadAttention(Module):
    """Multi-head attention: (batch, time, features) -> the same.

    `in_proj_weight` (3 features, features) holds the projections of query, key and
    value, `out_proj` is a Linear. Starts as PyTorch's nn.MultiheadAttention: Xavier
    uniform weights, zero biases.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("batch", 5, 8))
    >>> with sg.Graph(seed=0):
    ...     layer = sg.nn.MultiHeadAttention(8, heads=2)
    >>> print(layer(x, causal=True).type)
    float32[batch, 5, 8]
    """

    def __init__(self, features: int, heads: int, bias: bool = True) -> None:
        if heads < 1 or features < 1 or features % heads:
            raise ShapeError(
                "MultiHeadAttention requires heads that divide the features, got "
                f"{heads} and {features}{at(here())}"
            )
        self.features, self.heads = features, heads
        bound = math.sqrt(6 / (4 * features))
        start = initial_values.uniform((3 * features, features), bound)
        self.in_proj_weight: Parameter = ops.parameter(start, name="in_proj_weight")
        self.in_proj_bias: Parameter | None = None
        if bias:
            zeros = initial_values.filled((3 * features,), 0.0)
            self.in_proj_bias = ops.parameter(zeros, name="in_proj_bias")
        self.out_proj = Linear(features, features, bias)
        if self.out_proj.bias is not None:
            self.out_proj.bias.value = initial_values.filled((features,), 0.0)

    def __repr__(self) -> str:
        return f"MultiHeadAttention({self.features}, {self.heads})"

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Attend with key and value defaulting to `query` and key: self-attention.

        `mask` is bool, True where a source may be seen, (time, source) or
        (batch, 1 or heads, time, source).
        """
        query = as_tensor(query)
        key = query if key is None else as_tensor(key)
        value = key if value is None else as_tensor(value)
        for x in (query, key, value):
            self._require(x)
        q, k, v = (self._heads(x, n) for n, x in enumerate((query, key, value)))
        mixed = attention(q, k, v, mask=mask, causal=causal)
        together = ops.moveaxis(mixed, 1, 2)  # (batch, time, head, depth)
        shape = (*query.shape[:2], self.features)
        y: Tensor = self.out_proj(ops.reshape(together, shape))
        return y

    def _require(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.features:
            raise ShapeError(
                f"MultiHeadAttention requires [batch, time, {self.features}], got "
                f"{x.type}{at(here())}"
            )

    def _heads(self, x: Tensor, number: int) -> Tensor:
        """Project `x` by projection `number` to heads: (batch, head, time, depth)."""
        first, last = number * self.features, (number + 1) * self.features
        weight = self.in_proj_weight[first:last]  # (features, features)
        y = ops.matmul(x, ops.transpose(weight))  # (batch, time, features)
        if self.in_proj_bias is not None:
            y = y + self.in_proj_bias[first:last]
        depth = self.features // self.heads
        apart = ops.reshape(y, (*x.shape[:2], self.heads, depth))
        return ops.moveaxis(apart, 2, 1)  # (batch, head, time, depth)


class TransformerBlock(Module):
    """Transformer block: ``x + attention(norm(x))``, then ``x + mlp(norm(x))``.

    The perceptron has `hidden` units (by default 4 times the features) and gelu.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("batch", 5, 8))
    >>> with sg.Graph(seed=0):
    ...     layer = sg.nn.TransformerBlock(8, heads=2)
    >>> print(layer(x).type)
    float32[batch, 5, 8]
    """

    def __init__(
        self,
        features: int,
        heads: int,
        hidden: int | None = None,
        dropout: float = 0.0,
        causal: bool = False,
    ) -> None:
        wide = 4 * features if hidden is None else hidden
        self.norm1 = LayerNorm(features)
        self.attention = MultiHeadAttention(features, heads)
        self.norm2 = LayerNorm(features)
        self.linear1 = Linear(features, wide)
        self.linear2 = Linear(wide, features)
        self.dropout = Dropout(dropout)
        self.causal = causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply both residual steps."""
        seen = self.attention(self.norm1(x), mask=mask, causal=self.causal)
        x = x + self.dropout(seen)
        wide = ops.gelu(self.linear1(self.norm2(x)))  # (batch, time, hidden)
        y: Tensor = x + self.dropout(self.linear2(wide))
        return y


class Residual(Module):
    """Residual connection ``x + body(x)``, or ``shortcut(x) + body(x)``.

    He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016).

    >>> import staticgrad as sg
    >>> with sg.Graph(seed=0):
    ...     layer = sg.nn.Residual(sg.nn.Linear(3, 3))
    >>> print(layer(sg.input("x", ("n", 3))).type)
    float32[n, 3]
    """

    def __init__(self, body: Module, shortcut: Module | None = None) -> None:
        for name, part in (("body", body), ("shortcut", shortcut)):
            if part is not None and not callable(part):
                raise GraphError(
                    f"Residual requires a Module as {name}, got {part!r}{at(here())}"
                )
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both ways."""
        y = self.body(x)
        straight = x if self.shortcut is None else self.shortcut(x)
        if y.shape != straight.shape:
            raise ShapeError(
                f"Residual requires a body that keeps the shape, got {straight.type} "
                f"-> {y.type}; give a shortcut{at(here())}"
            )
        result: Tensor = straight + y
        return result


__all__ = ["MultiHeadAttention", "Residual", "TransformerBlock", "attention"]
