"""Adam and AdamW optimisers.

Kingma and Ba, "Adam: A Method for Stochastic Optimization" (ICLR 2015); Loshchilov and
Hutter, "Decoupled Weight Decay Regularization" (ICLR 2019). Epsilon is added after the
bias correction, as in PyTorch. The corrections ``1 - beta^t`` are float64 scalars,
computed as ``-expm1(t log beta)``: in float32 the first ones would lose 10 bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from staticgrad import ops
from staticgrad.errors import GraphError
from staticgrad.ir.node import State, Stored, Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import FLOAT64
from staticgrad.optim.optimizer import (
    Optimizer,
    Pair,
    Rate,
    matched,
    not_negative,
    single,
)


class Adam(Optimizer):
    """Adam: bias-corrected moments of the gradient.

    ``m = b1 m + (1 - b1) g``, ``v = b2 v + (1 - b2) g^2``,
    ``p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)``; `weight_decay` adds
    ``weight_decay p`` to g, or, if `decoupled`, shrinks p by ``lr weight_decay p``.

    >>> Adam(1e-3).learning_rate
    0.001
    """

    def __init__(
        self,
        learning_rate: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        super().__init__(learning_rate)
        if not all(0 <= beta < 1 for beta in betas):
            raise GraphError(
                f"Adam requires betas in 0 <= beta < 1, got {betas}; "
                f"(0.9, 0.999) is usual{at(here())}"
            )
        self.betas = (float(betas[0]), float(betas[1]))
        self.eps = not_negative("Adam", "eps", eps, 1e-8)
        self.weight_decay = not_negative("Adam", "weight_decay", weight_decay, 1e-2)
        self.decoupled = decoupled

    def updates(self, grads: Any, params: Any) -> list[Pair]:
        """Return pairs for the parameters, their moments and the step count."""
        matches = matched(grads, params)
        count: State = self.new_state("step", np.int64(0))
        time = count + 1
        corrections = [_correction(beta, time) for beta in self.betas]
        pairs: list[Pair] = [*self.started(), (count, time)]
        for parameter, grad in matches:
            pairs += self._step(parameter, grad, *corrections)
        return pairs

    def _step(
        self, parameter: Stored, grad: Tensor, correction1: Tensor, correction2: Tensor
    ) -> list[Pair]:
        start, grad = single(parameter), single(grad)
        dtype = start.dtype
        if self.weight_decay and self.decoupled:
            start = start * (1 - self.rate(dtype) * self.weight_decay)
        elif self.weight_decay:
            grad = grad + self.weight_decay * start
        beta1, beta2 = self.betas
        first = self.moment(parameter, "first")
        second = self.moment(parameter, "second")
        mean = beta1 * first + (1 - beta1) * grad
        square = beta2 * second + (1 - beta2) * (grad * grad)
        root = ops.sqrt(correction2)  # of both sides: one division for each element
        scale = (self.rate(FLOAT64) * root / correction1).astype(dtype)
        least = (self.eps * root).astype(dtype)
        move = scale * mean / (ops.sqrt(square) + least)
        new = (start - move).astype(parameter.dtype)
        return [(parameter, new), (first, mean), (second, square)]


def _correction(beta: float, time: Tensor) -> Tensor:
    """Return ``1 - beta^t``, float64."""
    if not beta:
        return ops.constant(np.float64(1))
    return -ops.expm1(time.astype(FLOAT64) * math.log(beta))


def AdamW(
    learning_rate: Rate = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> Adam:
    """Return Adam with decoupled weight decay.

    >>> import staticgrad as sg
    >>> sg.optim.AdamW(1e-2).learning_rate
    0.01
    """
    return Adam(learning_rate, betas, eps, weight_decay, decoupled=True)
