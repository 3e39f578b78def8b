"""Finite differences of a graph's outputs, compared with derivatives.

A function f of arrays is reduced to the scalar ``L = sum(w * f(x))`` with random w; the
gradient of L is compared with central differences ``(L(x + e) - L(x - e)) / 2 eps``,
element by element or along random directions. All runs are on the reference target, in
float64: float32 has too few digits for a difference quotient.

Source: the gradcheck of PyTorch.
Weakness: at a kink the two sides of a difference disagree; choose points away from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime.targets.reference import run
from staticgrad.differentiate.gradients import grad, substitute
from staticgrad.errors import DTypeError, GraphError
from staticgrad.ir.graph import Graph, OpenGraph, topological
from staticgrad.ir.node import Input, Stored, Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import FLOAT64, is_float
from staticgrad.ops.leaves import input as make_input
from staticgrad.ops.named import named
from staticgrad.trees import flatten

Array = npt.NDArray[Any]
Mode = Literal["train", "eval"]

SHOWN = 5  # differences listed in a message


@dataclass(frozen=True, slots=True)
class Scalar:
    """Scalar function of some inputs, and a point at which to compare it.

    `leaves` are those to differentiate to; `values` holds the arrays of all inputs.
    """

    result: Tensor
    leaves: tuple[Input, ...]
    inputs: tuple[Input, ...]
    values: dict[str, Array]
    mode: Mode

    def at(self, moved: Mapping[str, Array]) -> float:
        """Return the scalar with some values replaced."""
        graph = Graph.closed(self.inputs, (self.result,))
        (result,), _ = run(graph, self.mode, {**self.values, **moved})
        return float(result)


def scalar_of(
    function: Callable[..., Any] | Tensor,
    args: Sequence[npt.ArrayLike],
    wrt: Any,
    inputs: Mapping[str, npt.ArrayLike] | None,
    mode: Mode,
    seed: int,
) -> Scalar:
    """Return the scalar for gradcheck's arguments."""
    if isinstance(function, Tensor):
        leaves, outputs, values = _of_tensor(function, wrt, inputs or {})
    else:
        leaves, outputs, values = of_function(function, args)
    return _weighted(leaves, outputs, values, mode, np.random.default_rng(seed))


def of_function(
    function: Callable[..., Any], args: Sequence[npt.ArrayLike]
) -> tuple[list[Input], list[Tensor], dict[str, Array]]:
    """Return float inputs, outputs, and the arrays by the names of the inputs."""
    arrays = [np.asarray(arg) for arg in args]
    with OpenGraph():
        leaves = [
            make_input(f"argument_{k}", array.shape, array.dtype)
            for k, array in enumerate(arrays)
        ]
        outputs, _ = flatten(function(*leaves))
    values = {x.name: array for x, array in zip(leaves, arrays, strict=True)}
    return [x for x in leaves if is_float(x.dtype)], outputs, values


def _of_tensor(
    y: Tensor, wrt: Any, inputs: Mapping[str, npt.ArrayLike]
) -> tuple[list[Input], list[Tensor], dict[str, Array]]:
    """Return the scalar with parameters of wrt as inputs, to keep stored values."""
    tensors, _ = flatten(wrt)
    values = {name: np.asarray(array) for name, array in inputs.items()}
    leaves = [_as_input(x, k, values) for k, x in enumerate(tensors)]
    (output,) = substitute([y], dict(zip(tensors, leaves, strict=True)))
    return leaves, [output], values


def _as_input(x: Any, position: int, values: dict[str, Array]) -> Input:
    if isinstance(x, Input):
        return x
    if not isinstance(x, Stored):
        raise GraphError(
            f"gradcheck requires inputs and parameters in wrt, got {x!r}; give the "
            f"leaves that it is computed from{at(here())}"
        )
    with OpenGraph():
        leaf = make_input(f"_wrt_{position}", x.shape, x.dtype)
    values[leaf.name] = x.value
    return leaf


def _weighted(
    leaves: Sequence[Input],
    outputs: Sequence[Tensor],
    values: dict[str, Array],
    mode: Mode,
    random: np.random.Generator,
) -> Scalar:
    """Return the sum of the float outputs, each element weighted at random."""
    check_dtypes("gradcheck", leaves)
    floats = [y for y in outputs if is_float(y.dtype)]
    if not floats:
        raise DTypeError(
            f"gradcheck requires a float output, got none; cast one{at(here())}"
        )
    found = inputs_of(floats)
    arrays, _ = run(Graph.closed(found, floats), mode, values)
    weights = new_inputs("_weight", floats)
    given = {
        w.name: random.uniform(0.5, 1.5, array.shape).astype(w.dtype)
        for w, array in zip(weights, arrays, strict=True)
    }
    terms = [_inner(y, w) for y, w in zip(floats, weights, strict=True)]
    result = _sum(terms)
    everything = dict.fromkeys((*leaves, *inputs_of([result])))
    return Scalar(result, tuple(leaves), tuple(everything), {**values, **given}, mode)


def derivative(scalar: Scalar, settings: CheckSettings) -> Scalar:
    """Return the inner product of the gradient with random vectors."""
    gradients = grad(
        scalar.result, list(scalar.leaves), unused="zero", simplify=settings.simplify
    )
    random = np.random.default_rng(settings.seed + 1)
    vectors = new_inputs("_vector", gradients)
    given = {
        v.name: random.uniform(0.5, 1.5, scalar.values[x.name].shape)
        for v, x in zip(vectors, scalar.leaves, strict=True)
    }
    result = _sum([_inner(g, v) for g, v in zip(gradients, vectors, strict=True)])
    inputs = tuple(dict.fromkeys((*scalar.inputs, *vectors)))
    values = {**scalar.values, **given}
    return Scalar(result, scalar.leaves, inputs, values, scalar.mode)


def check_dtypes(name: str, leaves: Sequence[Input]) -> None:
    """Raise for dtypes other than float64, in the name of the function `name`."""
    for leaf in leaves:
        if leaf.dtype != FLOAT64:
            raise DTypeError(
                f"{name} requires float64, got {leaf.type}; float32 misjudges: "
                f"cast the arrays, or build with sg.Graph(dtype='float64')"
                f"{at(here())}"
            )
    if not leaves:
        raise DTypeError(
            f"{name} requires a float64 argument, got none; cast an array{at(here())}"
        )


def inputs_of(outputs: Sequence[Tensor]) -> list[Input]:
    """Return the inputs that `outputs` are computed from."""
    tensors = (t for node in topological(outputs) for t in node.outputs)
    return [t for t in tensors if isinstance(t, Input)]


def new_inputs(name: str, like: Sequence[Tensor]) -> list[Input]:
    """An input of the type of each tensor."""
    with OpenGraph():
        return [make_input(f"{name}_{k}", t.shape, t.dtype) for k, t in enumerate(like)]


def _inner(x: Tensor, y: Tensor) -> Tensor:
    product = named("multiply", x, y)
    return named("reduce_sum", product, axes=tuple(range(x.ndim)))


def _sum(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = named("add", total, term)
    return total


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Settings of a comparison."""

    eps: float
    atol: float
    rtol: float
    directions: int | None
    simplify: bool
    seed: int

    def differs(self, analytic: float, numeric: float) -> bool:
        """Whether the two are further apart than allowed; NaN is."""
        return not abs(analytic - numeric) <= self.atol + self.rtol * abs(numeric)


def compare(scalar: Scalar, settings: CheckSettings) -> None:
    """Raise AssertionError where gradients and differences differ."""
    gradients = _gradients(scalar, settings)
    if settings.directions is None:
        found = _by_element(scalar, gradients, settings)
    else:
        found = _by_direction(scalar, gradients, settings)
    report("gradcheck", "gradients equal to differences", found)


def report(name: str, rule: str, found: Sequence[str]) -> None:
    """Raise AssertionError listing `found`, unless it is empty."""
    if not found:
        return
    listed = "\n  ".join(found[:SHOWN])
    more = "" if len(found) <= SHOWN else f"\n  and {len(found) - SHOWN} more"
    raise AssertionError(f"{name} requires {rule}, got\n  {listed}{more}")


def _gradients(scalar: Scalar, settings: CheckSettings) -> dict[str, Array]:
    leaves = list(scalar.leaves)
    tensors = grad(scalar.result, leaves, unused="zero", simplify=settings.simplify)
    graph = Graph.closed(scalar.inputs, tensors)
    arrays, _ = run(graph, scalar.mode, scalar.values)
    return {x.name: array for x, array in zip(leaves, arrays, strict=True)}


def _by_element(
    scalar: Scalar, gradients: Mapping[str, Array], settings: CheckSettings
) -> list[str]:
    found = []
    for name, gradient in gradients.items():
        for index in np.ndindex(gradient.shape):
            step = np.zeros(gradient.shape)
            step[index] = 1.0
            numeric = _slope(scalar, {name: step}, settings.eps)
            analytic = float(gradient[index])
            if settings.differs(analytic, numeric):
                place = f"{name}[{', '.join(map(str, index))}]" if index else name
                found.append(f"{place}: gradient {analytic:.9g}, {numeric:.9g} found")
    return found


def _by_direction(
    scalar: Scalar, gradients: Mapping[str, Array], settings: CheckSettings
) -> list[str]:
    random = np.random.default_rng(settings.seed + 2)
    found = []
    for number in range(settings.directions or 0):
        steps = {name: random.normal(size=g.shape) for name, g in gradients.items()}
        analytic = float(sum(np.sum(g * steps[name]) for name, g in gradients.items()))
        numeric = _slope(scalar, steps, settings.eps)
        if settings.differs(analytic, numeric):
            found.append(
                f"direction {number}: gradient {analytic:.9g}, {numeric:.9g} found"
            )
    return found


def _slope(scalar: Scalar, steps: Mapping[str, Array], eps: float) -> float:
    """Return the central difference along `steps`."""
    values = scalar.values
    above = scalar.at({name: values[name] + eps * s for name, s in steps.items()})
    below = scalar.at({name: values[name] - eps * s for name, s in steps.items()})
    return (above - below) / (2 * eps)
