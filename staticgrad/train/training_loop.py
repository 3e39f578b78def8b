"""The training loop as a value: what happens in which order, for every strategy.

It is a tree of statements over the cells of a Run, written down once, here. Three
strategies carry it out: native_loop writes a program of the virtual machine,
python_loop walks over it and calls executables, cuda_loop launches many steps at once.

    while an epoch is left, and a step or the rest of this epoch:
        unless started: shuffle, clear the sums, started = 1
        while samples and steps are left: a step, or groups of batches
        validation, the means of the epoch into its row, epoch += 1, started = 0

The cells say where the loop stands, so beginning again goes on. A step or a commit that
`stops` looks at the stop cell before it changes anything: all before it is done.

Groups of batches take the place of steps: a phase runs over the batches of its group
and commits when there are enough or none are left; then the next phase runs over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime.assembler import Cell
from staticgrad.compiler.runtime.executable import Executable
from staticgrad.train.data import Dataset
from staticgrad.train.micro_batches import Grouping
from staticgrad.train.run import FOREVER, Run, Sum

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Less:
    """Whether `left` is less than `right`, whole numbers."""

    left: Cell | int
    right: Cell | int


@dataclass(frozen=True, slots=True)
class Set:
    """``cell = number``."""

    cell: Cell
    number: Cell | float


@dataclass(frozen=True, slots=True)
class Add:
    """``cell += number``, both whole."""

    cell: Cell
    number: int


@dataclass(frozen=True, slots=True)
class Mean:
    """``column[row] = total / weight``, NaN where the weight is 0."""

    column: Array
    row: Cell
    total: Cell
    weight: Cell | int


@dataclass(frozen=True, slots=True)
class ShuffleOrder:
    """Fill `order` with the permutation of (`seed`, `epoch`)."""

    order: Array
    seed: Cell
    epoch: Cell


@dataclass(frozen=True, slots=True)
class While:
    """Repeat `body` while all `conditions` hold, or while `always` does."""

    conditions: tuple[Less, ...]
    body: tuple[Statement, ...]
    always: Less | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PhaseExecutable:
    """An executable of phase `number`; `sums` are in the order of its outputs."""

    executable: Executable
    number: int
    sums: tuple[Sum, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BatchStep:
    """The next batch of `data` through `tasks`, one after the other.

    It has `size` samples, or those that are left, of `order` from `seen` on, which then
    goes on past them; `steps` and `count` go up by 1. What the tasks report is summed
    once all have run. With `limit` no step follows when there have been so many.
    """

    tasks: tuple[PhaseExecutable, ...]
    data: Dataset
    size: int
    order: Array
    seen: Cell
    steps: Cell
    limit: int
    count: Cell
    stops: bool = True

    @property
    def left(self) -> tuple[Less, ...]:
        """The conditions under which there is another."""
        samples = Less(self.seen, self.data.samples)
        if self.limit == FOREVER:
            return (samples,)
        return Less(self.steps, self.limit), samples


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """The updates of a group of batches; what `task` reports of it weighs 1."""

    task: PhaseExecutable
    stops: bool


Statement: TypeAlias = Set | Add | Mean | ShuffleOrder | While | BatchStep | GroupCommit


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """The statements that take `run` to its end, or as far as ``last_epoch`` says."""

    run: Run
    statements: tuple[Statement, ...]

    @property
    def steps(self) -> tuple[BatchStep, ...]:
        """Every BatchStep in it."""
        return tuple(w for w in _work(self.statements) if isinstance(w, BatchStep))

    @property
    def is_plain(self) -> bool:
        """Whether all work is steps of a single executable."""
        work = _work(self.statements)
        return all(isinstance(w, BatchStep) and len(w.tasks) == 1 for w in work)


def _work(statements: Iterable[Statement]) -> Iterator[BatchStep | GroupCommit]:
    for statement in statements:
        if isinstance(statement, While):
            yield from _work(statement.body)
        elif isinstance(statement, BatchStep | GroupCommit):
            yield statement


def tasks(
    run: Run, executables: Sequence[Executable], reported: Iterable[Iterable[str]]
) -> tuple[PhaseExecutable, ...]:
    """A PhaseExecutable for each phase, which reports scalars of these names."""
    pairs = zip(executables, reported, strict=True)
    return tuple(
        PhaseExecutable(executable, number, tuple(run.sums[name] for name in names))
        for number, (executable, names) in enumerate(pairs)
    )


def fitting(
    run: Run,
    steps: tuple[PhaseExecutable, ...],
    data: Dataset,
    validation: tuple[Statement, ...] = (),
    commits: Sequence[PhaseExecutable] = (),
    grouping: Grouping | None = None,
) -> TrainingLoop:
    """The loop of ``fit``; with a `grouping` the batches of a group are committed."""
    if grouping is None:
        step = _training_step(run, steps, data, run.commits)
        work = While(step.left, (step,))
    else:
        work = _groups(run, list(zip(steps, commits, strict=True)), data, grouping)
    start = While((Less(run.started, 1),), _start_epoch(run))
    epoch = (start, work, *validation, *_finish_epoch(run))
    left = Less(run.epoch, run.last_epoch), Less(run.steps, run.settings.steps)
    return TrainingLoop(run, (While(left, epoch, always=Less(0, run.started)),))


def _training_step(
    run: Run, steps: tuple[PhaseExecutable, ...], data: Dataset, count: Cell
) -> BatchStep:
    settings = run.settings
    return BatchStep(
        steps, data, settings.batch_size, run.order, run.seen, run.steps,
        settings.steps, count, stops=not steps[0].number,
    )  # fmt: skip


def _start_epoch(run: Run) -> tuple[Statement, ...]:
    shuffle = ShuffleOrder(run.order, run.seed, run.epoch)
    return (
        *((shuffle,) if run.settings.shuffle else ()),
        *(Set(one.total, 0.0) for one in run.sums.values()),
        *(Set(cell, 0) for cell in (run.seen, run.commits, *run.counted.values())),
        *_start_group(run),
        Set(run.started, 1),
    )


def _start_group(run: Run) -> tuple[Statement, ...]:
    """A group of batches begins with the first phase, here."""
    return (
        Set(run.phase, 0),
        Set(run.group_seen, run.seen),
        Set(run.group_steps, run.steps),
    )


def _groups(
    run: Run,
    phases: Sequence[tuple[PhaseExecutable, PhaseExecutable]],
    data: Dataset,
    grouping: Grouping,
) -> While:
    """Groups of batches until none is left, phase by phase."""
    pending = grouping.pending
    body: list[Statement] = []
    for number, (task, commit) in enumerate(phases):
        step = _training_step(run, (task,), data, pending)
        batches = While((*step.left, Less(pending, grouping.size)), (step,))
        group: list[Statement] = [batches, GroupCommit(commit, step.stops)]
        group.append(Set(pending, 0))
        if number + 1 == len(phases):
            body += [*group, Add(run.commits, 1), *_start_group(run)]
        else:
            group += Set(run.seen, run.group_seen), Set(run.steps, run.group_steps)
            group.append(Set(run.phase, number + 1))
            body.append(While((Less(run.phase, number + 1),), tuple(group)))
    return While(step.left, tuple(body), always=Less(0, pending))


def _finish_epoch(run: Run) -> tuple[Statement, ...]:
    means = _means(run, run.sums.values())
    return *means, Add(run.row, 1), Add(run.epoch, 1), Set(run.started, 0)


def _means(run: Run, sums: Iterable[Sum], prefix: str = "") -> list[Mean]:
    """Those of an epoch into its row, of what is not recorded step by step."""
    return [
        Mean(run.columns[prefix + one.name], run.row, one.total, one.weight)
        for one in sums
        if one.column is None
    ]


def validation(
    run: Run, executable: Executable, data: Dataset
) -> tuple[Statement, ...]:
    """The means over `data`, weighted by samples, into the current row."""
    place, ignored, names = Cell(0), Cell(0), run.settings.names
    sums = tuple(Sum(n, Cell(0.0, np.float64), data.samples) for n in names)
    step = BatchStep(
        (PhaseExecutable(executable, 0, sums),), data,
        min(run.settings.batch_size, data.samples),
        np.arange(data.samples, dtype=np.int64), place, ignored, FOREVER, ignored,
    )  # fmt: skip
    clear = (Set(place, 0), *(Set(one.total, 0.0) for one in sums))
    return *clear, While(step.left, (step,)), *_means(run, sums, "val_")
