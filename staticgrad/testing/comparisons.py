"""Comparisons: forward mode with differences and reverse mode, vmap with a loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from staticgrad.compiler.runtime.targets.reference import run
from staticgrad.differentiate.gradients import jvp, vjp
from staticgrad.ir.graph import Graph, OpenGraph
from staticgrad.ir.node import Input, Tensor
from staticgrad.ops.leaves import input as make_input
from staticgrad.testing.differences import (
    Array,
    CheckSettings,
    Mode,
    inputs_of,
    new_inputs,
)
from staticgrad.trees import flatten


@dataclass(frozen=True, slots=True)
class Point:
    """Outputs of some inputs, all float64, and arrays at which to compare them."""

    leaves: Sequence[Input]
    outputs: Sequence[Tensor]
    values: dict[str, Array]
    mode: Mode

    def run(
        self, tensors: Sequence[Tensor], moved: Mapping[str, Array] | None = None
    ) -> list[Array]:
        """Return the arrays of `tensors`, with some values added or replaced."""
        graph = Graph.closed(inputs_of(tensors), tensors)
        arrays, _ = run(graph, self.mode, {**self.values, **(moved or {})})
        return arrays


def forward_differences(point: Point, settings: CheckSettings) -> list[str]:
    """Compare tangents along a random direction with central differences."""
    steps, tangents = _random_tangents(point, settings)
    found = []
    above, below = (
        point.run(point.outputs, {n: point.values[n] + e * s for n, s in steps.items()})
        for e in (settings.eps, -settings.eps)
    )
    for place, (analytic, high, low) in enumerate(
        zip(tangents, above, below, strict=True)
    ):
        numeric = (high - low) / (2 * settings.eps)
        for index in np.ndindex(numeric.shape):
            pair = float(analytic[index]), float(numeric[index])
            if settings.differs(*pair):
                name = f"output {place}[{', '.join(map(str, index))}]"
                found.append(f"{name}: tangent {pair[0]:.9g}, {pair[1]:.9g} found")
    return found


def _random_tangents(
    point: Point, settings: CheckSettings
) -> tuple[dict[str, Array], list[Array]]:
    random = np.random.default_rng(settings.seed)
    vectors = new_inputs("_tangent", point.leaves)
    steps = {
        x.name: random.normal(size=point.values[x.name].shape) for x in point.leaves
    }
    given = {v.name: steps[x.name] for v, x in zip(vectors, point.leaves, strict=True)}
    tangents = jvp(
        list(point.outputs), list(point.leaves), vectors, "zero", settings.simplify
    )
    return steps, point.run(tangents, given)


def transpose_gap(point: Point, settings: CheckSettings) -> list[str]:
    """Compare ``w . (J v)`` with ``(w J) . v``."""
    steps, tangents = _random_tangents(point, settings)
    random = np.random.default_rng(settings.seed + 1)
    weights = new_inputs("_weight", point.outputs)
    given = {
        w.name: random.normal(size=t.shape)
        for w, t in zip(weights, tangents, strict=True)
    }
    pulled = vjp(
        list(point.outputs), list(point.leaves), weights, "zero", settings.simplify
    )
    back = point.run(pulled, given)
    forward = sum(
        float(np.sum(given[w.name] * t)) for w, t in zip(weights, tangents, strict=True)
    )
    reverse = sum(
        float(np.sum(g * steps[x.name]))
        for g, x in zip(back, point.leaves, strict=True)
    )
    if abs(forward - reverse) <= 1e-9 * (1 + abs(reverse)):
        return []
    return [f"w . (J v): {forward:.9g} forward, {reverse:.9g} in reverse"]


def outputs_of(
    function: Callable[..., Any],
    arrays: Sequence[Array],
    mode: Mode,
    axes: Sequence[int | None] | None = None,
    size: str | None = None,
) -> list[Array]:
    """The outputs of a function of arrays; `axes` are of the symbolic `size`."""
    with OpenGraph():
        leaves = [
            make_input(f"argument_{k}", _named_axis(a.shape, axis, size), a.dtype)
            for k, (a, axis) in enumerate(
                zip(arrays, axes or [None] * len(arrays), strict=True)
            )
        ]
        outputs, _ = flatten(function(*leaves))
    values = {x.name: array for x, array in zip(leaves, arrays, strict=True)}
    arrays, _ = run(Graph.closed(leaves, outputs), mode, values)
    return arrays


def _named_axis(
    shape: tuple[int, ...], axis: int | None, size: str | None
) -> list[int | str]:
    dims: list[int | str] = list(shape)
    if axis is not None and size is not None:
        dims[axis] = size
    return dims


def is_near(got: Array, want: Array, atol: float, rtol: float) -> bool:
    """Whether the two have one type and are equal within the tolerances."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    return bool(np.allclose(got, want, rtol, atol, equal_nan=True))
