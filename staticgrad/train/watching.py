"""Taps of a Trainer: gradients, and their statistics in each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad import ops
from staticgrad.compiler.runtime.executable import Executable
from staticgrad.compiler.runtime.taps import Tap
from staticgrad.differentiate.cuts import trained
from staticgrad.differentiate.gradients import grad
from staticgrad.ir.node import Stored, Tensor

STATISTICS = ("mean", "std", "min", "max", "norm")

Array = npt.NDArray[Any]


class StepTaps:
    """Taps on the gradients of one loss, each of which is built once."""

    def __init__(self, loss: Tensor, parameters: Any, simplify: bool) -> None:
        self._loss = loss
        self._parameters = parameters
        self._simplify = simplify
        self._made: dict[Tensor, Tensor] = {}

    def gradient_of(self, tensor: Tensor) -> Tensor:
        """Return the gradient of the loss; GraphError names the cut if none."""
        if tensor not in self._made:
            gradient: Tensor = grad(self._loss, tensor, simplify=self._simplify)
            self._made[tensor] = gradient
        return self._made[tensor]

    def watch(self, executable: Executable, last: int) -> GradientWatch:
        """Return a watch over the gradients of all trained parameters."""
        wrt = trained(self._loss, self._parameters)
        gradients = grad(self._loss, wrt, simplify=self._simplify)
        names = [
            t.name if isinstance(t, Stored) else f"{t.op.name} {n}"
            for n, t in enumerate(wrt)
        ]
        tap = executable.tap(ops.stack([statistics(g) for g in gradients]), record=last)
        return GradientWatch(names, tap)


def statistics(g: Tensor) -> Tensor:
    """Return mean, std, min, max and Euclidean norm of `g`, as float64."""
    wide = g.astype("float64")
    return ops.stack(
        [ops.mean(wide), ops.std(wide), ops.min(wide), ops.max(wide),
         ops.sqrt(ops.sum(wide * wide))]
    )  # fmt: skip


class GradientWatch:
    """Statistics of gradients: ``watch["layer.weight"]["norm"]`` has one per step."""

    def __init__(self, names: Sequence[str], tap: Tap) -> None:
        self.names = tuple(names)
        self._tap = tap

    @property
    def steps(self) -> int:
        """Number of steps watched; the last of them are kept."""
        return self._tap.count

    def __getitem__(self, name: str) -> dict[str, Array]:
        """Return the statistics of one parameter, each a float64 array over steps."""
        rows = self._tap.values[:, self.names.index(name)]
        return dict(zip(STATISTICS, rows.T, strict=True))

    @property
    def global_norm(self) -> Array:
        """Norm of all gradients together, for each step."""
        norms = self._tap.values[:, :, STATISTICS.index("norm")]
        total: Array = np.sqrt((norms**2).sum(axis=1))
        return total

    @property
    def problems(self) -> tuple[str, ...]:
        """Describe the gradients that were not finite, with the first step of each."""
        finite = np.isfinite(self._tap.values).all(axis=2)
        bad: Array = np.logical_not(finite)  # (step, parameter)
        first = self._tap.count - len(bad) + 1
        return tuple(
            f"{name}: not finite in {column.sum()} steps, first in step "
            f"{first + int(column.argmax())}"
            for name, column in zip(self.names, bad.T, strict=True)
            if column.any()
        )

    def remove(self) -> None:
        """Stop watching; recorded values stay."""
        self._tap.remove()

    def __str__(self) -> str:
        width = max(len(name) for name in self.names)
        head = "".join(f"{name:>11}" for name in STATISTICS)
        lines = [f"{'':{width}}{head}   (step {self.steps})"]
        values = self._tap.values
        if len(values):
            for name, row in zip(self.names, values[-1], strict=True):
                numbers = "".join(f"{value:>11.2e}" for value in row)
                lines.append(f"{name:{width}}{numbers}")
        return "\n".join([*lines, *(f"warning: {text}" for text in self.problems)])
