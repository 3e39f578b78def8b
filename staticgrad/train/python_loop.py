"""The training loop of native_loop.py in Python, one call of an executable at a time.

It serves the targets without a virtual machine and is the oracle of the compiled loop:
the same order of samples, the same sums, the same places to stop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime.assembler import Cell
from staticgrad.compiler.runtime.executable import Executable
from staticgrad.compiler.runtime.vm import FINISHED, STOPPED
from staticgrad.ops.random.philox import philox
from staticgrad.train.data import Dataset
from staticgrad.train.micro_batches import Grouping
from staticgrad.train.run import InPhase, Run

Array = npt.NDArray[Any]

_LOW = 2**32 - 1


def permutation(count: int, seed: int, epoch: int) -> Array:
    """Fisher and Yates' shuffle of 0..count-1 with Philox, as SHUFFLE does it."""
    last = np.arange(max(count, 1), dtype=np.int64)
    counter = (last & _LOW, last >> 32, epoch & _LOW, epoch >> 32 & _LOW)
    words = philox(counter, (seed & _LOW, seed >> 32 & _LOW)).astype(object)
    bits = words[:, 0] | words[:, 1] << 32
    order = np.arange(count, dtype=np.int64)
    for i in range(count - 1, 0, -1):
        other = bits[i] * (i + 1) >> 64
        order[[i, other]] = order[[other, i]]
    return order


def train(
    run: Run, steps: Sequence[Executable], data: Dataset, scorer: Executable | None,
    validation: Dataset | None, stop: Cell, grouping: Grouping | None,
) -> int:  # fmt: skip
    """Continue `run` until it is done (FINISHED) or `stop` is set (STOPPED)."""
    while run.started.value or (
        not run.done and run.epoch.value < run.last_epoch.value
    ):
        if not run.started.value:
            _start_epoch(run)
        if grouping is None:
            stopped = not _steps(run, steps, data, stop)
        else:
            stopped = not _groups(run, steps, data, stop, grouping)
        if stopped:
            return STOPPED
        if scorer is not None and validation is not None:
            stopped = not validate(run, scorer, validation, stop)
            if stopped:
                return STOPPED
        run.finish_epoch()
    return FINISHED


def _start_epoch(run: Run) -> None:
    settings = run.settings
    if settings.shuffle:
        epoch = run.epoch.value
        run.order[...] = permutation(settings.samples, settings.seed, epoch)
    run.start_epoch()


def _left(run: Run, data: Dataset) -> bool:
    steps, seen = run.steps.value, run.seen.value
    return bool(steps < run.settings.steps and seen < data.samples)


def _rows(run: Run) -> Array:
    return run.order[run.seen.value :][: run.settings.batch_size]


def _steps(run: Run, steps: Sequence[Executable], data: Dataset, stop: Cell) -> bool:
    """Steps until none is left, each an update; False if stopped before."""
    while _left(run, data):
        if stop.value:
            return False
        rows = _rows(run)
        _step(run, steps, data.batch(rows), len(rows))
        run.commits.value += 1
    return True


def _groups(
    run: Run, steps: Sequence[Executable], data: Dataset, stop: Cell, grouping: Grouping
) -> bool:
    """Groups of batches until none is left, phase by phase; False if stopped before."""
    pending = grouping.pending
    while _left(run, data) or pending.value:
        phase = run.phase.value
        if pending.value >= grouping.size or not _left(run, data):
            _commit(run, grouping)
            continue
        if stop.value and not phase:
            return False
        rows = _rows(run)
        with InPhase(phase):
            _step(run, [steps[phase]], data.batch(rows), len(rows))
        pending.value += 1
    return True


def _called(
    run: Run, executable: Executable, batch: dict[str, Array]
) -> dict[str, Array]:
    try:
        scalars: dict[str, Array] = executable(**batch)
    except Exception as error:  # noqa: BLE001  a function of the user's may raise any
        raise run.located(error) from error.__cause__
    return scalars


def _step(
    run: Run, steps: Sequence[Executable], batch: dict[str, Array], rows: int
) -> None:
    reported: dict[str, Array] = {}
    for number, step in enumerate(steps):
        with InPhase(number):
            reported |= _called(run, step, batch)
    _record(run, reported, rows)
    run.seen.value += rows
    run.steps.value += 1


def _record(run: Run, reported: Mapping[str, Array], rows: int) -> None:
    for name, value in reported.items():
        must_be_finite = run.must_be_finite.get(name)
        if must_be_finite is None or np.isfinite(reported[must_be_finite]):
            weight = 1 if name in run.settings.per_update_metrics else rows
            run.totals[name].value += float(value) * weight
            if must_be_finite == name:
                run.counted[name].value += rows
        if run.settings.per_step(name):
            run.columns[name][run.steps.value] = value


def _commit(run: Run, grouping: Grouping) -> None:
    phase = run.phase.value
    _record(run, _called(run, grouping.commits[phase], {}), 1)
    grouping.pending.value = 0
    if phase + 1 == len(grouping.commits):
        run.commits.value += 1
        run.start_group()
        return
    run.phase.value = phase + 1
    run.seen.value = run.group_seen.value
    run.steps.value = run.group_steps.value


def validate(run: Run, scorer: Executable, data: Dataset, stop: Cell) -> bool:
    """Fill the validation columns of the current row; False if stopped before."""
    order = np.arange(data.samples, dtype=np.int64)
    totals = dict.fromkeys(run.settings.names, 0.0)
    for first in range(0, data.samples, run.settings.batch_size):
        if stop.value:
            return False
        rows = order[first : first + run.settings.batch_size]
        scalars = _called(run, scorer, data.batch(rows))
        for name in totals:
            totals[name] += float(scalars[name]) * len(rows)
    for name, total in totals.items():
        run.columns[f"val_{name}"][run.row.value] = total / data.samples
    return True


def score(run: Run, executable: Executable, data: Dataset, stop: Cell) -> int:
    """Only the validation of `run`."""
    return FINISHED if validate(run, executable, data, stop) else STOPPED
