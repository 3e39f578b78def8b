"""Base class of optimisers.

The learning rate is a State, so it can change between runs without compiling again; a
Schedule multiplies it by a function of a step count. Moments and step counts are
States, which `reset` sets to zero; those of 16-bit parameters are float32, and so is
the arithmetic of their steps. Nothing is registered
with a graph: ``updates`` returns pairs, for ``sg.compile(updates=...)`` or Trainer.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from staticgrad import ops
from staticgrad.errors import GraphError, ShapeError
from staticgrad.ir.node import State, Stored, Tensor, static_shape
from staticgrad.ir.source import at, here
from staticgrad.ir.types import FLOAT64, DType, computed, is_half
from staticgrad.optim.schedules import RateSchedule
from staticgrad.trees import flatten, flatten_as

Pair: TypeAlias = tuple[Stored, Tensor]
Rate: TypeAlias = float | RateSchedule


class Optimizer:
    """Base of the optimisers; a subclass defines ``step``, or all of ``updates``."""

    def __init__(self, learning_rate: Rate) -> None:
        self.schedule: RateSchedule | None = None
        if isinstance(learning_rate, RateSchedule):
            self.schedule, learning_rate = learning_rate, learning_rate.rate
        rate = _checked_rate(learning_rate)
        self._rate: State = ops.state(np.float64(rate), name="learning_rate")
        self._states: dict[str, State] = {}
        self._now: Tensor = self._rate

    def __repr__(self) -> str:
        told = {k: v for k, v in vars(self).items() if k[0] != "_" and v is not None}
        parts = [f"{name}={value!r}" for name, value in told.items()]
        if self.schedule is None:
            parts.insert(0, f"learning_rate={self.learning_rate!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def learning_rate(self) -> float:
        """Step size, read anew at each step; that at which a schedule starts."""
        return float(self._rate.value)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._rate.value = np.float64(_checked_rate(rate))

    @property
    def states(self) -> dict[str, State]:
        """Learning rate, moments and step counts, by a name of their own."""
        return {"learning_rate": self._rate, **self._states}

    def reset(self) -> None:
        """Set moments and step counts back to zero; the learning rate stays."""
        for state in self._states.values():
            state.value = np.zeros_like(state.value)

    def updates(self, grads: Any, params: Any) -> list[Pair]:
        """Return pairs (leaf, new value) for each parameter and state that changes.

        `grads` and `params` are trees of one structure, as sg.grad takes and gives.
        """
        pairs = self.started()
        for parameter, grad in matched(grads, params):
            pairs += self.step(parameter, grad)
        return pairs

    def step(self, parameter: Stored, grad: Tensor) -> list[Pair]:
        """Return pairs for one parameter and for the states that belong to it."""
        raise TypeError(
            f"{type(self).__name__} requires an updates or a step method, got none; "
            f"use SGD or Adam{at(here())}"
        )

    def started(self) -> list[Pair]:
        """Return the update of the schedule's step counter, first of ``updates``."""
        if self.schedule is None:
            return []
        count = self.new_state("schedule", np.int64(0))
        factor = self.schedule.factor(count.astype(FLOAT64))
        self._now = self._rate * ops.astype(factor, FLOAT64)
        return [(count, count + 1)]

    @property
    def current_rate(self) -> Tensor:
        """Learning rate of this step, a float64 scalar, once updates are made."""
        return self._now

    def rate(self, dtype: DType) -> Tensor:
        """Return the learning rate of this step as a tensor of `dtype`."""
        return self._now.astype(dtype)

    def moment(self, parameter: Stored, name: str) -> State:
        """Return a new State of zeros, shaped as `parameter`."""
        shape = static_shape(parameter.shape)
        value = np.zeros(shape or (), computed(parameter.dtype))
        return self.new_state(f"{parameter.name}.{name}", value)

    def new_state(self, name: str, value: Any) -> State:
        """Return a State that `reset` zeroes and Trainer saves."""
        key, number = name, 1
        while key in self._states:
            key, number = f"{name}_{number}", number + 1
        self._states[key] = ops.state(value, name=key)
        return self._states[key]


def single(x: Tensor) -> Tensor:
    """Return `x` in the dtype that it is computed with in: float32 for 16 bits."""
    return x.astype(computed(x.dtype)) if is_half(x.dtype) else x


def matched(grads: Any, params: Any) -> list[tuple[Stored, Tensor]]:
    """Return (parameter, gradient) pairs of two equal trees, or raise."""
    leaves, treedef = flatten(params)
    try:
        tensors = flatten_as(treedef, grads)
    except GraphError as error:
        raise GraphError(
            f"updates requires gradients in the structure of the parameters, got "
            f"{error}; sg.grad(loss, params) gives gradients{at(here())}"
        ) from None
    for name, leaf, grad in zip(treedef.paths, leaves, tensors, strict=True):
        _require_match(name, leaf, grad)
    return list(zip(leaves, tensors, strict=True))


def _require_match(name: str, leaf: Any, grad: Any) -> None:
    if not isinstance(leaf, Stored) or not isinstance(grad, Tensor):
        raise GraphError(
            f"updates requires parameters and their gradients, got "
            f"{type(leaf).__name__} and {type(grad).__name__} as {name or 'value'}; "
            f"sg.grad(loss, params) gives gradients{at(here())}"
        )
    if (leaf.shape, computed(leaf.dtype)) != (grad.shape, computed(grad.dtype)):
        raise ShapeError(
            f"updates requires a gradient of the parameter's type, got {grad.type} "
            f"for {leaf.name} {leaf.type}; cast or reshape it{at(here())}"
        )


def not_negative(optimizer: str, name: str, value: float, usual: float) -> float:
    """Return `value` as a float; GraphError if it is negative, NaN or no number."""
    if not _as_number(value) >= 0:
        raise GraphError(
            f"{optimizer} requires {name} >= 0, got {value}; {usual} is usual"
            f"{at(here())}"
        )
    return float(value)


def _checked_rate(rate: float) -> float:
    value = _as_number(rate)
    if not value >= 0:
        advice = "1e-3 is usual for Adam"
        if callable(rate):
            advice = "wrap a function of the step: sg.optim.Schedule(0.1, function)"
        raise GraphError(
            f"optimizer requires a learning rate >= 0, got {rate!r}; {advice}"
            f"{at(here())}"
        )
    return value


def _as_number(value: Any) -> float:
    """Return `value` as a float; NaN if it is no number."""
    try:
        return math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        return math.nan
