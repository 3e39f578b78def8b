"""The training loop in Python, one call of an executable at a time.

It serves the targets without a virtual machine and is the oracle of the native loop:
the same order of samples, the same sums, the same places to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime.assembler import Cell
from staticgrad.compiler.runtime.vm import FINISHED, STOPPED
from staticgrad.ops.random.philox import philox
from staticgrad.train.interrupt import completed
from staticgrad.train.run import InPhase
from staticgrad.train.training_loop import (
    Add,
    BatchStep,
    GroupCommit,
    Less,
    Mean,
    PhaseExecutable,
    Set,
    ShuffleOrder,
    Statement,
    TrainingLoop,
    While,
)

Array = npt.NDArray[Any]

_LOW = 2**32 - 1


def permutation(count: int, seed: int, epoch: int) -> Array:
    """Shuffle 0..count-1 by Fisher and Yates with Philox, as SHUFFLE does."""
    last = np.arange(max(count, 1), dtype=np.int64)
    counter = (last & _LOW, last >> 32, epoch & _LOW, epoch >> 32 & _LOW)
    words = philox(counter, (seed & _LOW, seed >> 32 & _LOW)).astype(object)
    bits = words[:, 0] | words[:, 1] << 32
    order = np.arange(count, dtype=np.int64)
    for i in range(count - 1, 0, -1):
        other = bits[i] * (i + 1) >> 64
        order[[i, other]] = order[[other, i]]
    return order


def shuffle(statement: ShuffleOrder) -> None:
    """Fill the order of `statement`."""
    order = statement.order
    order[...] = permutation(len(order), statement.seed.value, statement.epoch.value)


def walk(
    statements: Iterable[Statement], shuffle: Callable[[ShuffleOrder], None]
) -> Iterator[BatchStep | GroupCommit]:
    """The steps and commits in order, which the caller does; the rest is done here."""
    for statement in statements:
        match statement:
            case Set(cell, number):
                cell.value = _number(number)
            case Add(cell, number):
                cell.value += number
            case Mean(column, row, total, weight):
                by = _number(weight)
                column[row.value] = total.value / by if by else np.nan
            case ShuffleOrder():
                shuffle(statement)
            case While(conditions, body, always):
                while (always and _holds(always)) or all(map(_holds, conditions)):
                    yield from walk(body, shuffle)
            case BatchStep() | GroupCommit():
                yield statement


def carry_out(
    loop: TrainingLoop,
    do: Callable[[BatchStep | GroupCommit], None],
    shuffle: Callable[[ShuffleOrder], None] = shuffle,
) -> None:
    """Go on to the end of `loop`; KeyboardInterrupt, or what `do` raises."""

    def advance(stop: Cell) -> int:
        for work in walk(loop.statements, shuffle):
            if work.stops and stop.value:
                return STOPPED
            do(work)
        return FINISHED

    completed(advance)


def _holds(condition: Less) -> bool:
    return bool(_number(condition.left) < _number(condition.right))


def _number(value: Cell | float) -> Any:
    return value.value if isinstance(value, Cell) else value


class PythonLoop:
    """Carries out `loop`, which has no plan of its own."""

    plan = None

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._run = loop.run
        self._data = {step: step.data.on_host() for step in loop.steps}

    def run(self) -> None:
        """Go on to the end; KeyboardInterrupt, or what an executable raises."""
        carry_out(self._loop, self._do)

    def _do(self, work: BatchStep | GroupCommit) -> None:
        if isinstance(work, BatchStep):
            self._step(work)
        else:
            self._record(work.task, self._called(work.task, {}), 1)

    def _step(self, step: BatchStep) -> None:
        rows = step.order[step.seen.value :][: step.size]
        batch = self._data[step].batch(rows)
        reported = [self._called(task, batch) for task in step.tasks]
        for task, scalars in zip(step.tasks, reported, strict=True):
            self._record(task, scalars, len(rows))
        step.seen.value += len(rows)
        step.steps.value += 1
        step.count.value += 1

    def _called(
        self, task: PhaseExecutable, batch: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        with InPhase(task.number):
            try:
                scalars: Mapping[str, Array] = task.executable(**batch)
            except Exception as error:  # noqa: BLE001  a user's function may raise any
                raise self._run.located(error) from error.__cause__
        return scalars

    def _record(
        self, task: PhaseExecutable, reported: Mapping[str, Array], rows: int
    ) -> None:
        for one in task.sums:
            value = float(reported[one.name])
            if one.must_be_finite is None or np.isfinite(reported[one.must_be_finite]):
                one.total.value += value * (1 if one.once else rows)
                if one.counted is not None:
                    one.counted.value += rows
            if one.column is not None:
                one.column[self._run.steps.value] = value
