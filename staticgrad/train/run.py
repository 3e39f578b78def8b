"""Run of training: its progress, in memory shared by the program and Python.

Everything that a run needs to go on later is here: the epoch, the samples seen in it,
the permutation, the sums so far and the history. The training loop (training_loop.py)
writes it; the progress bar reads it meanwhile; Trainer saves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime.assembler import Cell
from staticgrad.errors import CompilerBug, GraphError, IndexOutOfRange, NonFiniteError
from staticgrad.ir.source import at, here
from staticgrad.train.data import whole

Array = npt.NDArray[Any]
History: TypeAlias = dict[str, npt.NDArray[np.float64]]
Record: TypeAlias = Literal["epoch", "step"]

FOREVER = 2**62


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings that must be unchanged for a run to be resumed.

    `first_epoch` counts from the first epoch that the trainer ever ran, so that two
    fits in a row shuffle as one. `per_update_metrics` are reported once an update,
    which comes after `accumulate` batches. `gates` are, where steps may be skipped, the
    losses that have to be finite for a batch to count in the mean of each of `names`.
    """

    samples: int
    batch_size: int
    validation_samples: int
    epochs: int
    steps: int
    seed: int
    shuffle: bool
    record: Record
    names: tuple[str, ...]
    first_epoch: int = 0
    per_update_metrics: tuple[str, ...] = ()
    accumulate: int = 1
    gates: tuple[str, ...] = ()

    def per_step(self, name: str) -> bool:
        """Whether the column `name` has a value per step instead of per epoch."""
        reported = name in self.names or (
            name in self.per_update_metrics and self.accumulate == 1
        )
        return self.record == "step" and reported

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps per epoch; the tail counts as a step."""
        return -(-self.samples // self.batch_size)

    @property
    def validated_names(self) -> tuple[str, ...]:
        """Columns that validation fills."""
        return tuple(f"val_{n}" for n in self.names) if self.validation_samples else ()


@dataclass(frozen=True, slots=True)
class Sum:
    """A scalar that an executable reports, and where it is added up.

    It weighs as much as a batch has samples, or 1 if `once`; the mean divides by
    `weight`. With a `must_be_finite` it counts only where the scalar of that name, of
    the same executable, is finite; `counted` counts the samples of batches where it is
    itself. `column` takes the value of each step.
    """

    name: str
    total: Cell
    weight: Cell | int
    once: bool = False
    must_be_finite: str | None = None
    counted: Cell | None = None
    column: Array | None = None


class Run:
    """Cells, sums, permutation and history of one call of fit.

    `epoch` counts over the trainer's life; `started` is 1 within an epoch; `seen` are
    the samples of the epoch whose steps are done; `row` is the next row of the history;
    `commits` are the updates of the epoch; `counted` has, by loss, the samples of
    batches where it was finite, if others do not count. In groups of batches `phase` is
    the phase being run, `group_seen` and `group_steps` are where its group began.
    `ended` is 1 once a callback has ended the run.
    """

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.epoch = Cell(settings.first_epoch)
        self.last_epoch = Cell(settings.first_epoch + settings.epochs)
        self.started = Cell(0)
        self.seen = Cell(0)
        self.steps = Cell(0)
        self.row = Cell(0)
        self.commits = Cell(0)
        self.counted = {loss: Cell(0) for loss in settings.gates}
        self.phase = Cell(0)
        self.group_seen = Cell(0)
        self.group_steps = Cell(0)
        self.ended = Cell(0)
        self.seed = Cell((settings.seed + 2**63) % 2**64 - 2**63)
        self.order = np.arange(settings.samples, dtype=np.int64)
        reported = (*settings.names, *settings.per_update_metrics)
        length = min(settings.steps, settings.epochs * settings.steps_per_epoch)
        self.columns: History = {
            name: np.zeros(length if settings.per_step(name) else settings.epochs)
            for name in reported
        }
        for name in settings.validated_names:
            self.columns[name] = np.zeros(settings.epochs)
        self.sums = {name: self._sum(name) for name in reported}

    def _sum(self, name: str) -> Sum:
        settings, once = self.settings, name in self.settings.per_update_metrics
        must_be_finite = dict(zip(settings.names, settings.gates, strict=False)).get(
            name
        )
        samples = self.seen if must_be_finite is None else self.counted[must_be_finite]
        return Sum(
            name, Cell(0.0, np.float64), self.commits if once else samples, once,
            must_be_finite, counted=self.counted.get(name), column=self.columns[name] if
            settings.per_step(name) else None,
        )  # fmt: skip

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        epochs = self.epoch.value - self.settings.first_epoch
        all_steps = self.steps.value >= self.settings.steps and not self.started.value
        return bool(self.ended.value) or epochs >= self.settings.epochs or all_steps

    @property
    def history(self) -> History:
        """Copy of the rows that are complete."""
        return {
            name: self.columns[name][: self._rows(name)].copy() for name in self.columns
        }

    def _rows(self, name: str) -> int:
        return int(self.steps.value if self.settings.per_step(name) else self.row.value)

    def last_row(self) -> dict[str, float]:
        """Return the last complete row, as floats."""
        rows = {name: self._rows(name) for name in self.columns}
        return {name: float(self.columns[name][n - 1]) for name, n in rows.items() if n}

    def located(self, error: BaseException) -> BaseException:
        """Return `error` with its step and epoch (from 1, in this run)."""
        if not self.started.value:
            return error  # an evaluation has no steps
        in_steps = self.seen.value < self.settings.samples
        place = f"step {self.steps.value + 1}" if in_steps else "validation"
        where = f"in {place}, epoch {self.row.value + 1}"
        if isinstance(error, IndexOutOfRange):
            where += "; the position is counted within its batch"
        return _noted(error, where)

    def arrays(self) -> dict[str, Array]:
        """Return the arrays that are saved, by name, to be read and written."""
        found: dict[str, Array] = {f"column.{n}": c for n, c in self.columns.items()}
        found |= {f"total.{name}": one.total.array for name, one in self.sums.items()}
        found |= {f"counted.{loss}": c.array for loss, c in self.counted.items()}
        return found | ({"order": self.order} if self.started.value else {})

    def saved(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays and facts from which `restored` makes the run again."""
        cells = {name: getattr(self, name).value for name in _CELLS}
        return self.arrays(), {"settings": asdict(self.settings), "cells": cells}


_CELLS = (
    "epoch", "started", "seen", "steps", "row", "commits", "phase", "group_seen",
    "group_steps", "ended",
)  # fmt: skip


def restored(
    arrays: Mapping[str, Array],
    facts: Mapping[str, Any],
    settings: RunSettings | None = None,
) -> Run:
    """Restore the run saved by `saved`; longer if `settings` have more epochs."""
    old = dict(facts["settings"])
    if "marks" in old:  # as it was called in files of the first version
        old["per_update_metrics"] = old.pop("marks")
    for name in ("names", "per_update_metrics", "gates"):
        old[name] = tuple(old.get(name, ()))
    run = Run(settings or RunSettings(**old))
    for name in _CELLS:
        getattr(run, name).value = facts["cells"].get(name, 0)
    for name, array in run.arrays().items():
        known = arrays[name]
        array[: len(known)] = known[: len(array)]  # columns may be longer now
    return run


def resumed(run: Run, wanted: RunSettings) -> Run:
    """Resume `run` with the arguments `wanted`, which may ask for more epochs.

    GraphError if they differ otherwise.
    """
    settings = replace(wanted, first_epoch=run.settings.first_epoch)
    if settings == run.settings:
        return run
    more = settings.epochs > run.settings.epochs
    same = replace(settings, epochs=run.settings.epochs) if more else settings
    _require_equal(run.settings, same)
    longer = restored(*run.saved(), settings)
    longer.ended.value = 0
    return longer


class InPhase:
    """Context that adds to an error in phase `number` what is already applied."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception) and self.number:
            raise after_phases(error, self.number) from error.__cause__


def after_phases(error: BaseException, number: int) -> BaseException:
    """Add to an `error` of phase `number` of a step which phases are applied."""
    if not number:
        return error
    earlier = "phase 1" if number == 1 else f"phases 1 to {number}"
    return _noted(error, f"in phase {number + 1}; {earlier} of it applied")


def _noted(error: BaseException, where: str) -> BaseException:
    if isinstance(error, NonFiniteError | IndexOutOfRange | CompilerBug):
        return type(error)(f"{error}  {where}")
    error.add_note(where)  # what a function of the user's raised
    return error


def _require_equal(stored: RunSettings, wanted: RunSettings) -> None:
    """Raise GraphError naming the difference between a stored run and the call."""
    old, new = asdict(stored), asdict(wanted)
    differing = [k for k in old if old[k] != new[k]]
    if differing:
        name = differing[0]
        old = {k: None if v == FOREVER else v for k, v in old.items()}
        new = {k: None if v == FOREVER else v for k, v in new.items()}
        raise GraphError(
            f"fit(resume=True) requires the arguments of the run before, got "
            f"{name} {new[name]!r}, not {old[name]!r}; repeat the call, or leave "
            f"resume out{at(here())}"
        )


def lengths(epochs: Any, steps: Any, per_epoch: int) -> tuple[int, int]:
    """Return the epochs and steps for which `fit` runs; None is no limit."""
    epochs = None if epochs is None else whole("epochs", epochs)
    steps = None if steps is None else whole("steps", steps)
    for name, number in (("epochs", epochs), ("steps", steps)):
        if number is not None and number < 0:
            raise GraphError(
                f"fit requires {name} >= 0, got {number}; "
                f"pass how many to train for{at(here())}"
            )
    if epochs is None:
        epochs = 1 if steps is None else -(-steps // per_epoch)
    return epochs, FOREVER if steps is None else steps


def checked_record(record: Any) -> Record:
    """Return `record`, or GraphError."""
    if record not in ("epoch", "step"):
        raise GraphError(
            f"fit requires record 'epoch' or 'step', got {record!r}; "
            f"leave it out for a value per epoch{at(here())}"
        )
    found: Record = record
    return found


def evaluation(names: Sequence[str], samples: int, batch_size: int) -> RunSettings:
    """Return the settings of a run that only validates."""
    return RunSettings(
        samples=1, batch_size=batch_size, validation_samples=samples, epochs=1,
        steps=0, seed=0, shuffle=False, record="epoch", names=tuple(names),
    )  # fmt: skip
