"""Workload: one computation, written once for each library that runs it.

A workload gives arrays and, per library, a function from those arrays to a scalar loss
(or, for kind "value", to an array). What is done with the loss is its kind:

- "sgd" and "adam": a training step, loss and updated parameters;
- "gradient": the gradient with respect to the parameters;
- "value": the value.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Arrays = dict[str, np.ndarray]
Kind = Literal["sgd", "adam", "gradient", "value"]


@dataclass(frozen=True, slots=True)
class Goal:
    """At least `ratio` times the best peer; `what` is "loop", "call" or "best"."""

    what: str
    threads: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the steps table.

    ``arrays(scale)`` makes parameters and data; scale 1 is the size in the table, less
    is for tests. `losses` are functions by library: ours(sg, p, d), torch(torch, p, d),
    jax(jax, p, d), pytensor(pt, p, d). `flops` and `moved_bytes` are what a step cannot
    do without, of the arrays; products only count as flops.
    """

    name: str
    title: str
    kind: Kind
    arrays: Callable[[float], tuple[Arrays, Arrays]]
    losses: Mapping[str, Callable[..., Any]]
    flops: Callable[[Arrays, Arrays], float]
    moved_bytes: Callable[[Arrays, Arrays], float]
    rate: float = 0.0
    goals: tuple[Goal, ...] = field(default=())

    @property
    def trains(self) -> bool:
        """Whether a step updates the parameters."""
        return self.kind in ("sgd", "adam")


def total_bytes(arrays: Arrays) -> int:
    """The bytes of all of them."""
    return sum(array.nbytes for array in arrays.values())


def trained_bytes(parameters: Arrays, data: Arrays) -> float:
    """Parameters read and written, data read."""
    return 2.0 * total_bytes(parameters) + total_bytes(data)


def no_flops(parameters: Arrays, data: Arrays) -> float:
    """For workloads without products."""
    return 0.0


def normal(rng: np.random.Generator, *shape: int, scale: float = 0.1) -> np.ndarray:
    """Normal float32 numbers."""
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def scaled(size: int, scale: float, least: int = 2) -> int:
    """A size for a scale."""
    return max(least, round(size * scale))
