"""Learning-rate schedules: factors as functions of the number of steps done.

A Schedule takes the place of a number: ``Adam(cosine(1e-3, steps=1000))``. Its factor
is part of the graph, a function of a State that counts the optimiser's steps, so it is
computed in the compiled loop; steps that are skipped do not count. The rate at which it
starts stays a State: setting ``learning_rate`` scales the whole schedule.

Cosine: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts"
(ICLR 2017), without restarts; linear warm-up: Goyal et al., "Accurate, Large Minibatch
SGD" (2017). Closed forms of PyTorch's CosineAnnealingLR, StepLR and ExponentialLR.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from staticgrad import ops
from staticgrad.errors import GraphError
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """Schedule ``rate * factor(t)`` in step number t, from 0.

    `factor` makes a float64 scalar of the float64 scalar t, with functions of
    staticgrad, so any schedule can be written:

    >>> import staticgrad as sg
    >>> slower = RateSchedule(0.1, lambda t: 1 / sg.sqrt(1 + t))
    >>> sg.optim.SGD(slower).learning_rate
    0.1
    """

    rate: float
    factor: Callable[[Tensor], Tensor]


def cosine(
    rate: float, steps: int, warmup: int = 0, final: float = 0.0, start: float = 0.0
) -> RateSchedule:
    """Return a schedule from `rate` to `final`: half a cosine after linear warm-up.

    In the `warmup` steps the rate rises from `start` (the first step's) to `rate`; it
    is `final` from step number `steps` on, the warm-up included.

    >>> import staticgrad as sg
    >>> sg.optim.SGD(cosine(0.1, steps=100)).learning_rate
    0.1
    """
    _require_steps("cosine", steps - warmup)
    _require_steps("cosine", warmup, least=0)
    low, begin = _share("cosine", final, rate), _share("cosine", start, rate)

    def factor(t: Tensor) -> Tensor:
        done = ops.clip((t - warmup) / (steps - warmup), 0.0, 1.0)
        falling = low + (1 - low) * 0.5 * (1 + ops.cos(math.pi * done))
        if not warmup:
            return falling
        return ops.where(t < warmup, begin + (1 - begin) * t / warmup, falling)

    return RateSchedule(rate, factor)


def step_decay(rate: float, every: int, factor: float = 0.1) -> RateSchedule:
    """Return a schedule that multiplies `rate` by `factor` after `every` steps.

    >>> import staticgrad as sg
    >>> sg.optim.SGD(step_decay(0.1, every=30)).learning_rate
    0.1
    """
    _require_steps("step_decay", every)
    _require_positive("step_decay", factor)
    return RateSchedule(
        rate, lambda t: ops.exp(ops.floor(t / every) * math.log(factor))
    )


def exponential(rate: float, factor: float) -> RateSchedule:
    """Return a schedule that multiplies `rate` by `factor` after each step.

    >>> import staticgrad as sg
    >>> sg.optim.SGD(exponential(0.1, 0.99)).learning_rate
    0.1
    """
    _require_positive("exponential", factor)
    return RateSchedule(rate, lambda t: ops.exp(t * math.log(factor)))


def _require_steps(name: str, steps: int, least: int = 1) -> None:
    if not steps >= least:
        raise GraphError(
            f"{name} requires steps beyond its warm-up, got {steps}; "
            f"count the steps of the whole training{at(here())}"
        )


def _require_positive(name: str, factor: float) -> None:
    if not factor > 0:
        raise GraphError(f"{name} requires a factor > 0, got {factor}{at(here())}")


def _share(name: str, part: float, rate: float) -> float:
    if not 0 <= part <= rate:
        raise GraphError(
            f"{name} requires rates in 0..{rate}, got {part}; `rate` is the highest"
            f"{at(here())}"
        )
    return part / rate if rate else 0.0
