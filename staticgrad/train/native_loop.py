"""The training loop: epochs, shuffling, batches, steps, sums, validation, as a program.

The whole loop is one program of the virtual machine, so a fit is one native call. It
runs the executables' own programs for a full batch and for the tail; each step ends at
its commit, where a stop or a failure leaves everything at the step before. The cells of
a Run say where the loop stands, so entering the program again continues it:

    epoch:   stop if no epoch or no step is left
             unless started: shuffle, clear the sums, started = 1
    step:    a full batch while there is one, then the tail, phase by phase
    after:   validation, one row of history, epoch += 1, started = 0, again

Groups of batches take the place of steps: a phase runs over the batches of its group
and commits when there are enough or none are left; then the next phase runs over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime.arguments import bind_sizes
from staticgrad.compiler.runtime.assembler import Assembler, Cell, Label, Program
from staticgrad.compiler.runtime.executable import Executable
from staticgrad.compiler.runtime.frame import Frame
from staticgrad.compiler.runtime.vm import FINISHED, STATUS_CODE
from staticgrad.errors import CompilerBug
from staticgrad.train.data import Column, Dataset
from staticgrad.train.micro_batches import Grouping
from staticgrad.train.objective import Phase
from staticgrad.train.run import Run, after_phases

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """A frame for `size` samples and the buffers that its inputs are gathered into."""

    size: int
    frame: Frame
    gathered: tuple[tuple[Array, Column], ...]

    def reported(self, names: Sequence[str]) -> dict[str, Array]:
        """The scalars called `names`; outputs that are only checked come after them."""
        return dict(zip(names, self.frame.outputs, strict=False))


@dataclass(frozen=True, slots=True)
class Feed:
    """A dataset cut into batches: full ones while they last, then the tail.

    `names` are what its executable tells.
    """

    executable: Executable
    data: Dataset
    full: Batch | None
    tail: Batch | None
    names: tuple[str, ...]

    @property
    def batches(self) -> tuple[Batch, ...]:
        """The full batch and the tail, as far as they exist."""
        return tuple(b for b in (self.full, self.tail) if b is not None)

    def failure(self) -> BaseException | None:
        """What a batch's frame has reported, if one has."""
        failed = [b.frame for b in self.batches if b.frame.status[STATUS_CODE]]
        if not failed:
            return None
        return self.executable.traced(failed[0].error(), failed[0].inputs)

    @property
    def full_samples(self) -> int:
        """How many samples the full batches cover."""
        if self.full is None:
            return 0
        return self.data.samples // self.full.size * self.full.size


@dataclass(frozen=True, slots=True)
class CommitGroup:
    """What follows the micro-batches of a phase: a frame that commits them, its names.

    `pending` counts the micro-batches that wait.
    """

    executable: Executable
    frame: Frame
    names: tuple[str, ...]
    pending: Cell

    def failure(self) -> BaseException | None:
        """What the frame has reported, if anything."""
        if not self.frame.status[STATUS_CODE]:
            return None
        return self.executable.traced(self.frame.error(), {})


def groups(grouping: Grouping | None, phases: Sequence[Phase]) -> list[CommitGroup]:
    """The Group of each phase; none where each batch is an update."""
    if grouping is None:
        return []
    return [
        CommitGroup(
            commit, commit.frame({}), tuple(phase.per_update_metrics), grouping.pending
        )
        for commit, phase in zip(grouping.commits, phases, strict=True)
    ]


def feed(
    executable: Executable, data: Dataset, batch_size: int, names: Sequence[str]
) -> Feed:
    """`data` cut into batches for `executable`: plans sizes, compiles nothing."""
    tail = data.samples % batch_size
    return Feed(
        executable,
        data,
        _batch(executable, data, batch_size) if data.samples >= batch_size else None,
        _batch(executable, data, tail) if tail else None,
        tuple(names),
    )


def _batch(executable: Executable, data: Dataset, size: int) -> Batch:
    leaves = [column.leaf for column in data.columns]
    shapes = [column.shape(size) for column in data.columns]
    frame = executable.frame(bind_sizes(leaves, shapes))
    gathered = []
    for column in data.columns:
        buffer = frame.inputs.get(column.leaf.name)
        if buffer is None:
            continue  # no kernel reads it
        if column.axis is None:
            buffer[...] = column.array
        else:
            gathered.append((buffer, column))
    return Batch(size, frame, tuple(gathered))


def training_program(
    run: Run,
    train: Sequence[Feed],
    validation: Feed | None = None,
    groups: Sequence[CommitGroup] = (),
) -> Program:
    """The program of `run`; it ends when the epochs or steps of the run are done.

    `train` has a feed for each phase of a step, `groups` what commits its batches, if
    those are not updates. A stop ends a step before its first phase has committed
    anything.
    """
    later = [batch.frame for feed in train[1:] for batch in feed.batches]
    for frame in (*later, *(group.frame for group in groups[1:])):
        frame.finish_step()
    a = Assembler()
    settings = run.settings
    epoch, step, after, finish = (a.label() for _ in range(4))
    a.place(epoch)
    going = a.label()
    a.jump_if_less(0, run.started, step)
    a.jump_if_less(run.epoch, run.last_epoch, going)
    a.jump(finish)
    a.place(going)
    stepping = a.label()
    a.jump_if_less(run.steps, settings.steps, stepping)
    a.jump(finish)
    a.place(stepping)
    _start_epoch(a, run)
    a.place(step)
    if groups:
        _groups(a, run, list(zip(train, groups, strict=True)), after)
    else:
        _steps(a, run, train, after)
    a.place(after)
    if validation is not None:
        validate(a, run, validation)
    _finish_epoch(a, run)
    a.jump(epoch)
    a.place(finish)
    return a.finish()


def _start_epoch(a: Assembler, run: Run) -> None:
    if run.settings.shuffle:
        a.shuffle(run.order, run.settings.samples, run.seed, run.epoch)
    for total in run.totals.values():
        a.set(total, 0.0)
    a.set(run.seen, 0)
    a.set(run.commits, 0)
    for counted in run.counted.values():
        a.set(counted, 0)
    _start_group(a, run)
    a.set(run.started, 1)


def _start_group(a: Assembler, run: Run) -> None:
    a.set(run.phase, 0)
    a.set(run.group_seen, run.seen)
    a.set(run.group_steps, run.steps)


def _steps(a: Assembler, run: Run, train: Sequence[Feed], after: Label) -> None:
    """Steps until none is left, each an update."""
    top, more = a.place(), a.label()
    a.jump_if_less(run.steps, run.settings.steps, more)
    a.jump(after)
    a.place(more)
    _batches(a, run, train, run.commits, top, after)
    a.jump(after)


def _groups(
    a: Assembler, run: Run, phases: Sequence[tuple[Feed, CommitGroup]], after: Label
) -> None:
    """Groups of batches until none is left, phase by phase."""
    starts = [a.label() for _ in phases]
    for number, start in enumerate(starts):
        a.jump_if_less(run.phase, number + 1, start)
    for number, (feed, group) in enumerate(phases):
        few, over, more, commit = (a.label() for _ in range(4))
        a.place(starts[number])
        a.jump_if_less(group.pending, run.settings.accumulate, few)
        a.place(commit)
        _commit(a, run, group)
        if number + 1 < len(phases):
            a.set(run.seen, run.group_seen)
            a.set(run.steps, run.group_steps)
            a.set(run.phase, number + 1)
            a.jump(starts[number + 1])
        else:
            a.add(run.commits, 1)
            _start_group(a, run)
            a.jump(starts[0])
        a.place(few)
        a.jump_if_less(run.steps, run.settings.steps, more)
        a.jump(over)
        a.place(more)
        _batches(a, run, [feed], group.pending, starts[number], over)
        a.jump(starts[number])
        a.place(over)
        a.jump_if_less(group.pending, 1, after)
        a.jump(commit)


def _batches(
    a: Assembler, run: Run, train: Sequence[Feed], count: Cell, top: Label, over: Label
) -> None:
    """A full batch, then to `top`; or the tail; or to `over` if there is neither."""
    first, rest = train[0], a.label()
    if first.full is not None:
        a.jump_if_less(first.full_samples - 1, run.seen, rest)
        _step(a, run, [(f.full, f.names) for f in train if f.full], count)
        a.jump(top)
    a.place(rest)
    if first.tail is None:
        a.jump(over)
        return
    a.jump_if_less(first.data.samples - 1, run.seen, over)
    _step(a, run, [(f.tail, f.names) for f in train if f.tail], count)


def _step(
    a: Assembler, run: Run, phases: Sequence[tuple[Batch, tuple[str, ...]]], count: Cell
) -> None:
    """One step; what follows the first phase's program happens only if it commits."""
    size = phases[0][0].size
    for batch, _ in phases:
        for buffer, column in batch.gathered:
            a.gather(buffer, column.array, run.order, run.seen, size, _axis(column))
    for batch, _ in phases:
        a.run(batch.frame)
    for batch, names in phases:
        _record(a, run, batch.reported(names), size)
    a.add(count, 1)
    a.add(run.seen, size)
    a.add(run.steps, 1)


def _record(a: Assembler, run: Run, reported: Mapping[str, Array], size: int) -> None:
    """Add to the sums of the epoch, where what is told once an update weighs 1."""
    for name, scalar in reported.items():
        must_be_finite, after = run.must_be_finite.get(name), a.label()
        if must_be_finite is not None:
            a.jump_unless_finite(reported[must_be_finite], after)
        if must_be_finite == name:
            a.add(run.counted[name], size)
        a.record(
            run.totals[name],
            scalar,
            1 if name in run.settings.per_update_metrics else size,
        )
        a.place(after)
        if run.settings.per_step(name):
            value = Cell(0.0, np.float64)
            a.set(value, 0.0)
            a.record(value, scalar, 1)
            a.mean(run.columns[name], run.steps, value, 1)


def _commit(a: Assembler, run: Run, group: CommitGroup) -> None:
    """The update of a group of micro-batches."""
    a.run(group.frame)
    a.set(group.pending, 0)
    _record(a, run, dict(zip(group.names, group.frame.outputs, strict=False)), 1)


def validate(a: Assembler, run: Run, validation: Feed) -> None:
    """The weighted means over `validation`, into the current row."""
    samples = validation.data.samples
    order = np.arange(samples, dtype=np.int64)
    place = Cell(0)
    totals = {name: Cell(0.0, np.float64) for name in run.settings.names}
    a.set(place, 0)
    for total in totals.values():
        a.set(total, 0.0)
    if validation.full is not None:
        top = a.place()
        _evaluate(a, validation.full, order, place, totals)
        a.jump_if_less(place, validation.full_samples, top)
    if validation.tail is not None:
        _evaluate(a, validation.tail, order, place, totals)
    for name, total in totals.items():
        a.mean(run.columns[f"val_{name}"], run.row, total, samples)


def _evaluate(
    a: Assembler, batch: Batch, order: Array, place: Cell, totals: dict[str, Cell]
) -> None:
    for buffer, column in batch.gathered:
        a.gather(buffer, column.array, order, place, batch.size, _axis(column))
    a.run(batch.frame)
    for name, scalar in batch.reported(tuple(totals)).items():
        a.record(totals[name], scalar, batch.size)
    a.add(place, batch.size)


def _finish_epoch(a: Assembler, run: Run) -> None:
    for name, total in run.totals.items():
        if not run.settings.per_step(name):
            a.mean(run.columns[name], run.row, total, run.weight(name))
    a.add(run.row, 1)
    a.add(run.epoch, 1)
    a.set(run.started, 0)


def evaluation_program(run: Run, validation: Feed) -> Program:
    """Only the validation of `run`."""
    a = Assembler()
    validate(a, run, validation)
    a.set(run.row, 1)
    return a.finish()


def _axis(column: Column) -> int:
    assert column.axis is not None
    return column.axis


def require_success(
    code: int, run: Run, sources: Iterable[tuple[int, Feed | CommitGroup]]
) -> None:
    """Raise what `code` of a program stands for, with the step at which it happened.

    The sources have the number of their phase.
    """
    if code == FINISHED:
        return
    for number, source in sources:
        error = source.failure()
        if error is not None:
            raise run.located(after_phases(error, number))
    raise CompilerBug(f"a training program ended with the unknown code {code}")
