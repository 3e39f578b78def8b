"""Stochastic gradient descent with momentum.

Sutskever et al., "On the importance of initialization and momentum in deep learning"
(ICML 2013), in PyTorch's form: the velocity is a sum of gradients, not of steps.
"""

from __future__ import annotations

from staticgrad.errors import GraphError
from staticgrad.ir.node import Stored, Tensor
from staticgrad.ir.source import at, here
from staticgrad.optim.optimizer import Optimizer, Pair, Rate, not_negative, single


class SGD(Optimizer):
    """Gradient descent: plain, with momentum, or Nesterov's.

    ``g = grad + weight_decay p``, ``v = momentum v + g``, then ``p - lr v``; with
    `nesterov` ``p - lr (g + momentum v)``.

    >>> SGD(0.1, momentum=0.9).learning_rate
    0.1
    """

    def __init__(
        self,
        learning_rate: Rate,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(learning_rate)
        if nesterov and not momentum:
            raise GraphError(
                f"SGD requires momentum > 0 for nesterov, got {momentum}; "
                f"0.9 is usual{at(here())}"
            )
        self.momentum = not_negative("SGD", "momentum", momentum, 0.9)
        self.nesterov = nesterov
        self.weight_decay = not_negative("SGD", "weight_decay", weight_decay, 1e-4)

    def step(self, parameter: Stored, grad: Tensor) -> list[Pair]:
        """Return the new parameter, and its velocity if there is momentum."""
        start, grad = single(parameter), single(grad)
        if self.weight_decay:
            grad = grad + self.weight_decay * start
        rate = self.rate(start.dtype)
        if not self.momentum:
            return [(parameter, (start - rate * grad).astype(parameter.dtype))]
        velocity = self.moment(parameter, "velocity")
        faster = self.momentum * velocity + grad
        move = grad + self.momentum * faster if self.nesterov else faster
        new = (start - rate * move).astype(parameter.dtype)
        return [(parameter, new), (velocity, faster)]


def Momentum(
    learning_rate: Rate,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> SGD:
    """Return SGD with momentum.

    >>> Momentum(0.1).momentum
    0.9
    """
    return SGD(learning_rate, momentum, nesterov, weight_decay)
