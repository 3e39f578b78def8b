"""RMSprop optimiser.

Tieleman and Hinton, "Lecture 6.5 - RMSProp" (Coursera, 2012), in PyTorch's form:
epsilon is added to the root; the centred form subtracts the squared mean gradient
(Graves, "Generating Sequences With Recurrent Neural Networks", 2013).
"""

from __future__ import annotations

from staticgrad import ops
from staticgrad.errors import GraphError
from staticgrad.ir.node import Stored, Tensor
from staticgrad.ir.source import at, here
from staticgrad.optim.optimizer import Optimizer, Pair, Rate, not_negative, single


class RMSprop(Optimizer):
    """RMSprop: steps scaled by a running root mean square of the gradient.

    ``g = grad + weight_decay p``, ``v = alpha v + (1 - alpha) g^2``, then
    ``p - lr g / (sqrt(v) + eps)``. If `centered`, a running mean m of g is kept and
    ``v - m^2`` takes the place of v; with `momentum`, ``b = momentum b + g / (...)``
    and ``p - lr b``.

    >>> RMSprop(1e-2).learning_rate
    0.01
    """

    def __init__(
        self,
        learning_rate: Rate = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        momentum: float = 0.0,
        centered: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(learning_rate)
        if not 0 <= alpha < 1:
            raise GraphError(
                f"RMSprop requires alpha in 0 <= alpha < 1, got {alpha}; "
                f"0.99 is usual{at(here())}"
            )
        self.alpha = float(alpha)
        self.eps = not_negative("RMSprop", "eps", eps, 1e-8)
        self.momentum = not_negative("RMSprop", "momentum", momentum, 0.9)
        self.centered = centered
        self.weight_decay = not_negative("RMSprop", "weight_decay", weight_decay, 1e-4)

    def step(self, parameter: Stored, grad: Tensor) -> list[Pair]:
        """Return the new parameter, its mean square and other states."""
        start, grad = single(parameter), single(grad)
        if self.weight_decay:
            grad = grad + self.weight_decay * start
        old = self.moment(parameter, "square")
        square = self.alpha * old + (1 - self.alpha) * (grad * grad)
        pairs: list[Pair] = [(old, square)]
        spread = square
        if self.centered:
            before = self.moment(parameter, "mean")
            mean = self.alpha * before + (1 - self.alpha) * grad
            spread = square - mean * mean
            pairs.append((before, mean))
        move = grad / (ops.sqrt(spread) + self.eps)
        if self.momentum:
            buffer = self.moment(parameter, "buffer")
            move = self.momentum * buffer + move
            pairs.append((buffer, move))
        new = start - self.rate(start.dtype) * move
        return [(parameter, new.astype(parameter.dtype)), *pairs]
