"""Groups of micro-batches: their commits, and the batches that are pending.

Each phase has a commit of its own. Later phases have to see what earlier ones have
updated, so they run over the micro-batches of a group again once those have committed:
``fit`` gathers them again (native_loop.py), ``step`` keeps copies of them until the
group is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime.assembler import Cell
from staticgrad.compiler.runtime.executable import Executable
from staticgrad.ir.node import Input, Stored
from staticgrad.train.data import samples_of
from staticgrad.train.run import InPhase

Array = npt.NDArray[Any]


@dataclass(slots=True)
class Grouping:
    """Group of `size` batches; `pending` counts those of the current phase.

    `commits` are the executables of the phases, `sums` their accumulators, `waiting`
    the batches of ``step`` that later phases have not seen.
    """

    size: int
    commits: tuple[Executable, ...]
    sums: tuple[Stored, ...]
    inputs: tuple[Input, ...]
    pending: Cell = field(default_factory=lambda: Cell(0))
    waiting: list[dict[str, Array]] = field(default_factory=list)

    @property
    def several(self) -> bool:
        """Whether there is more than one phase."""
        return len(self.commits) > 1

    def step(
        self, steps: Sequence[Executable], batch: dict[str, Any]
    ) -> dict[str, Any]:
        """Run a micro-batch through the first of `steps`; the rest on a full group.

        Scalars of later phases are averaged by samples.
        """
        if self.several and self.pending.value != len(self.waiting):
            self.drop()  # batches of a run that was stopped
        reported = dict(steps[0](**batch))
        self.pending.value += 1
        if self.several:
            self.waiting.append({name: np.array(a) for name, a in batch.items()})
        if self.pending.value >= self.size:
            reported |= self.commit(steps)
        return reported

    def commit(self, steps: Sequence[Executable]) -> dict[str, Any]:
        """Apply the updates of the pending batches, phase after phase."""
        reported = dict(self.commits[0]())
        self.pending.value = 0
        batches, self.waiting = self.waiting, []
        phases = list(zip(steps, self.commits, strict=True))
        try:
            for number, (step, commit) in enumerate(phases[1:], 1):
                with InPhase(number):
                    found = [step(**batch) for batch in batches]
                    reported |= self._means(found, batches) | commit()
        except Exception:
            self.drop()
            raise
        return reported

    def start(self, steps: Sequence[Executable], resuming: bool) -> None:
        """Start a run, whose later phases see its own batches only.

        Batches pending from ``step`` are committed first; those of another run are
        dropped.
        """
        if self.waiting:
            self.commit(steps)
        elif self.several and not resuming:
            self.drop()

    def drop(self) -> None:
        """Drop the pending batches."""
        self.pending.value = 0
        self.waiting = []
        for leaf in self.sums:
            leaf.value = np.zeros_like(leaf.value)

    def _means(
        self, found: Sequence[dict[str, Any]], batches: Sequence[dict[str, Array]]
    ) -> dict[str, float]:
        weights = [samples_of(self.inputs, batch) for batch in batches]
        return {
            name: float(
                np.average([float(one[name]) for one in found], weights=weights)
            )
            for name in found[0]
        }
