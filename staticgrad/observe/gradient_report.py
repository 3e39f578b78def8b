"""``gradient_report``: diagnosis of the gradients of a network.

Norms of gradients by layer, units that are saturated (sigmoid and tanh) or dead (relu),
layers without an activation between them, and a verdict. The thresholds are those by
which gradients are commonly judged: a global norm within [0.01, 10] is normal, layers
that are a factor of 1e4 apart are suspicious, beyond 1e10 something explodes.

Activations are found by what computes them, in the graph of the loss, so a relu written
with where counts too. A unit is an index of the last axis, of axis 1 for images.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from staticgrad import ops
from staticgrad.compiling import compile as compile_graph
from staticgrad.differentiate.cuts import trained
from staticgrad.differentiate.gradients import grad
from staticgrad.ir.lazy_module import Later
from staticgrad.ir.node import Input, Stored, Tensor
from staticgrad.ir.size import product
from staticgrad.ir.source import at
from staticgrad.observe.activation_nodes import Activation, activations, unbroken

pictures = Later("staticgrad.pictures")


NORMAL = (0.01, 10.0)  # of the global norm
APART = 1e4  # between the largest and the least norm of a layer: suspicious
EXPLODED = 1e10
VANISHED = 1e-8  # norm of a vanished layer, if others are not
MANY = 0.5  # fraction of units that deserves a remark


@dataclass(frozen=True, slots=True)
class Layer:
    """Gradients of the parameters under one path. `size` counts elements."""

    name: str
    norm: float
    largest: float
    size: int


@dataclass(frozen=True, slots=True)
class Units:
    """Activation with the numbers of its units saturated or dead on all samples."""

    activation: Activation
    units: int
    idle: int

    @property
    def share(self) -> float:
        """Fractions of the units."""
        return self.idle / self.units if self.units else 0.0

    def __str__(self) -> str:
        node = self.activation.tensor.node
        scope = f"{node.scope} " if node.scope else ""
        return (
            f"{scope}{self.activation.kind}{at(node.source)}: {self.idle} of "
            f"{self.units} units {self.activation.state}"
        )


@dataclass(frozen=True, slots=True)
class GradientReport:
    """Result of gradient_report; its string is a report.

    `layers` are in order of construction; `global_norm` is that of all gradients;
    `verdicts` are remarks, the first of which is about the global norm, and `healthy`
    says that it is the only one and good. ``render(path)`` draws the norms.
    """

    loss: float
    layers: tuple[Layer, ...]
    units: tuple[Units, ...]
    verdicts: tuple[str, ...]
    healthy: bool

    @property
    def global_norm(self) -> float:
        """Euclidean norm of all gradients together."""
        return float(np.sqrt(np.sum([layer.norm**2 for layer in self.layers])))

    @property
    def norms(self) -> dict[str, float]:
        """Norm of each layer's gradients by the layer's path."""
        return {layer.name: layer.norm for layer in self.layers}

    def render(self, path: str | os.PathLike[str]) -> Path:
        """Write the picture of the norms as SVG; returns the path."""
        return Path(pictures.render_gradients(self, path))

    def _repr_svg_(self) -> str:
        return str(pictures.gradients_svg(self))

    def __str__(self) -> str:
        width = max((len(layer.name) for layer in self.layers), default=0)
        lines = [f"loss {self.loss:.6g}, global norm {self.global_norm:.3g}"]
        lines += [
            f"  {layer.name:{width}}  norm {layer.norm:9.2e}  "
            f"largest {layer.largest:9.2e}  {layer.size} elements"
            for layer in self.layers
        ]
        lines += [f"  {units}" for units in self.units if units.idle]
        return "\n".join([*lines, *self.verdicts])


def gradient_report(
    loss: Tensor,
    data: Mapping[str, npt.ArrayLike] | None = None,
    parameters: Any = None,
    *,
    mode: Literal["train", "eval"] = "train",
    target: Literal["cpu", "reference"] = "cpu",
) -> GradientReport:
    """Report the gradients of `loss`, a float scalar, on one batch.

    `data` maps the names of the inputs to arrays; `parameters` is a tree of tensors to
    report, by default those a Trainer trains. Nothing is updated. Raises as grad and a
    call of an executable do.

    >>> import numpy as np, staticgrad as sg
    >>> with sg.Graph():
    ...     x = sg.input("x", ("batch", 2))
    ...     w = sg.parameter(np.float32([[1.0], [2.0]]), name="w")
    ...     loss = sg.mean(sg.relu(x @ w) ** 2)
    >>> report = sg.gradient_report(loss, {"x": np.float32([[1, 0], [0, 1]])})
    >>> report.healthy, round(report.global_norm, 3)
    (True, 2.236)
    """
    wrt = trained(loss, parameters)
    gradients = grad(loss, wrt, unused="zero", simplify=target != "reference")
    sizes = [(ops.sum(g.astype("float64") ** 2), ops.max(abs(g))) for g in gradients]
    found = list(activations(loss))
    idle = [a.idle for a in found]
    run = compile_graph([loss, sizes, idle], mode=mode, target=target)
    value, measured, lazy = run(**dict(data or {}))
    layers = tuple(_layers(wrt, measured))
    units = tuple(
        Units(a, int(flags.size), int(flags.sum()))
        for a, flags in zip(found, lazy, strict=True)
    )
    remarks = list(_remarks(layers, units, unbroken(loss)))
    verdict, good = _global_verdict(layers)
    healthy = good and not remarks
    return GradientReport(float(value), layers, units, (verdict, *remarks), healthy)


def _layers(
    wrt: Sequence[Tensor], measured: Sequence[tuple[Any, Any]]
) -> Iterator[Layer]:
    """Yield the layers: parameters under one path, in order of construction."""
    groups: dict[str, list[tuple[Tensor, float, float]]] = {}
    for x, (square, largest) in zip(wrt, measured, strict=True):
        row = (x, float(square), float(largest))
        groups.setdefault(_path(x), []).append(row)
    for name, rows in groups.items():
        squares = float(np.sum([square for _, square, _ in rows]))
        most = float(np.max([largest for _, _, largest in rows]))
        count = sum(elements(x) for x, _, _ in rows)
        yield Layer(name, float(np.sqrt(squares)), most, count)


def elements(x: Tensor) -> int:
    """Return the number of elements of `x`; -1 if it is symbolic."""
    count = product(x.shape)
    return count if isinstance(count, int) else -1


def _path(x: Tensor) -> str:
    if not isinstance(x, Input | Stored):
        return x.op.name
    path, _, last = x.name.rpartition(".")
    return path or last


def _global_verdict(layers: Sequence[Layer]) -> tuple[str, bool]:
    norm = float(np.sqrt(np.sum([layer.norm**2 for layer in layers])))
    low, high = NORMAL
    if not np.isfinite(norm):
        bad = [layer.name for layer in layers if not np.isfinite(layer.norm)]
        return f"not finite: the gradients of {', '.join(bad)}", False
    if norm >= EXPLODED:
        return f"explosion: the global norm is {norm:.2g}", False
    if norm > high:
        return f"large: the global norm {norm:.2g} is above {high:g}", False
    if norm < low:
        return f"small: the global norm {norm:.2g} is below {low:g}", False
    return f"normal: the global norm {norm:.2g} is within {low:g} to {high:g}", True


def _remarks(
    layers: Sequence[Layer], units: Sequence[Units], chains: Sequence[str]
) -> Iterator[str]:
    norms = [layer for layer in layers if np.isfinite(layer.norm)]
    if norms:
        least = min(norms, key=lambda layer: layer.norm)
        most = max(norms, key=lambda layer: layer.norm)
        ratio = most.norm / least.norm if least.norm else np.inf
        if most.norm > 0 and least.norm < VANISHED:
            yield f"vanishing: the norm of {least.name} is {least.norm:.2g}"
        if most.norm > 0 and ratio > APART:
            yield (
                f"suspicious: {most.name} and {least.name} are a factor of "
                f"{ratio:.2g} apart"
            )
    for unit in units:
        if unit.share >= MANY:
            yield f"{unit.activation.state}: {unit}"
    yield from chains
