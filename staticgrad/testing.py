"""Checks of gradients against finite differences, for users and for our own tests.

A function f of arrays is reduced to the scalar ``L = sum(w * f(x))`` with random w; the
gradient of L is compared with central differences ``(L(x + e) - L(x - e)) / 2 eps``,
element by element or along random directions. All runs are on the reference target, in
float64: float32 has too few digits for a difference quotient.

Source: the gradcheck of PyTorch, from which eps and the tolerances are.
Weakness: at a kink the two sides of a difference disagree; choose points away from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.backends.reference import run
from staticgrad.differentiate import grad, substitute
from staticgrad.errors import DTypeError, GraphError
from staticgrad.ir.graph import Graph, apply_multi, topological
from staticgrad.ir.node import Input, Stored, Tensor
from staticgrad.ir.op import Op, Sample
from staticgrad.ir.types import FLOAT64, is_float
from staticgrad.ops.leaves import input as make_input
from staticgrad.ops.named import named
from staticgrad.trees import flatten

Array = npt.NDArray[Any]
Mode = Literal["train", "eval"]

EPS = 1e-6  # the error of a central difference, eps ** 2 + 1e-16 / eps, is about 1e-10
ATOL = 1e-4
RTOL = 1e-3
SHOWN = 5  # differences listed in a message


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar of some inputs, and a point at which to look at it.

    `leaves` are those to differentiate to; `values` holds the arrays of all inputs.
    """

    result: Tensor
    leaves: tuple[Input, ...]
    inputs: tuple[Input, ...]
    values: dict[str, Array]
    mode: Mode

    def at(self, moved: Mapping[str, Array]) -> float:
        """The scalar with some values replaced."""
        graph = Graph.closed(self.inputs, (self.result,))
        (result,), _ = run(graph, self.mode, {**self.values, **moved})
        return float(result)


def gradcheck(
    function: Callable[..., Any] | Tensor,
    *args: npt.ArrayLike,
    wrt: Any = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    mode: Mode = "eval",
    eps: float = EPS,
    atol: float = ATOL,
    rtol: float = RTOL,
    directions: int | None = None,
    simplify: bool = True,
    seed: int = 0,
) -> bool:
    """Compare the gradient of a function, or of a tensor, with finite differences.

    ``gradcheck(f, *arrays)`` builds ``f`` on inputs of the arrays' types and checks the
    gradient with respect to each float one. ``gradcheck(y, wrt=w, inputs={...})``
    checks that of the tensor y with respect to leaves: inputs and parameters. The
    arrays checked are float64. With `directions` it looks along that many random
    directions instead of at each element. True, or an AssertionError that lists the
    differences.

    >>> import numpy as np
    >>> import staticgrad as sg
    >>> sg.testing.gradcheck(lambda x: sg.sum(x ** 3), np.array([2.0, 3.0]))
    True
    """
    scalar = _scalar(function, args, wrt, inputs, mode, seed)
    _compare(scalar, Settings(eps, atol, rtol, directions, simplify, seed))
    return True


def gradgradcheck(
    function: Callable[..., Any] | Tensor,
    *args: npt.ArrayLike,
    wrt: Any = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    mode: Mode = "eval",
    eps: float = EPS,
    atol: float = ATOL,
    rtol: float = RTOL,
    directions: int | None = 2,
    simplify: bool = True,
    seed: int = 0,
) -> bool:
    """Compare second derivatives with finite differences of the first.

    The arguments are those of gradcheck. The gradient, weighted at random, is a scalar
    whose own gradient is checked, along random directions by default.

    >>> import numpy as np
    >>> import staticgrad as sg
    >>> sg.testing.gradgradcheck(lambda x: sg.sum(x ** 3), np.array([2.0, 3.0]))
    True
    """
    scalar = _scalar(function, args, wrt, inputs, mode, seed)
    settings = Settings(eps, atol, rtol, directions, simplify, seed)
    _compare(_derivative(scalar, settings), settings)
    return True


def check_op(op: Op, sample: Sample, order: int = 2) -> None:
    """Check the derivatives of `op` at `sample` in float64, up to `order`."""
    attrs = {name: _widened(value) for name, value in sample.attrs.items()}

    def function(*inputs: Tensor) -> list[Tensor]:
        return list(apply_multi(op, *inputs, **attrs))

    args = [_float64(np.asarray(arg)) for arg in sample.args]
    if not any(is_float(arg.dtype) for arg in args):
        return
    gradcheck(function, *args, simplify=False)
    if order > 1:
        gradgradcheck(function, *args, simplify=False)


def _widened(value: Any) -> Any:
    return FLOAT64 if isinstance(value, np.dtype) and is_float(value) else value


def _float64(array: Array) -> Array:
    return array.astype(FLOAT64) if is_float(array.dtype) else array


# ---- the scalar ----------------------------------------------------------------------


def _scalar(
    function: Callable[..., Any] | Tensor,
    args: Sequence[npt.ArrayLike],
    wrt: Any,
    inputs: Mapping[str, npt.ArrayLike] | None,
    mode: Mode,
    seed: int,
) -> Scalar:
    if isinstance(function, Tensor):
        leaves, outputs, values = _of_tensor(function, wrt, inputs or {})
    else:
        leaves, outputs, values = _of_function(function, args)
    return _weighted(leaves, outputs, values, mode, np.random.default_rng(seed))


def _of_function(
    function: Callable[..., Any], args: Sequence[npt.ArrayLike]
) -> tuple[list[Input], list[Tensor], dict[str, Array]]:
    arrays = [np.asarray(arg) for arg in args]
    with Graph():
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
    """Parameters of wrt become inputs, so that no stored value has to be changed."""
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
            f"leaves that it is computed from"
        )
    with Graph():
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
    """The sum of the float outputs, each element weighted at random."""
    _check_dtypes(leaves)
    floats = [y for y in outputs if is_float(y.dtype)]
    if not floats:
        raise DTypeError("gradcheck requires a float output, got none; cast one")
    found = _inputs_of(floats)
    arrays, _ = run(Graph.closed(found, floats), mode, values)
    weights = _new_inputs("_weight", floats)
    given = {
        w.name: random.uniform(0.5, 1.5, array.shape).astype(w.dtype)
        for w, array in zip(weights, arrays, strict=True)
    }
    terms = [_inner(y, w) for y, w in zip(floats, weights, strict=True)]
    result = _sum(terms)
    everything = dict.fromkeys((*leaves, *_inputs_of([result])))
    return Scalar(result, tuple(leaves), tuple(everything), {**values, **given}, mode)


def _derivative(scalar: Scalar, settings: Settings) -> Scalar:
    """The inner product of the gradient with random vectors."""
    gradients = grad(
        scalar.result, list(scalar.leaves), unused="zero", simplify=settings.simplify
    )
    random = np.random.default_rng(settings.seed + 1)
    vectors = _new_inputs("_vector", gradients)
    given = {
        v.name: random.uniform(0.5, 1.5, scalar.values[x.name].shape)
        for v, x in zip(vectors, scalar.leaves, strict=True)
    }
    result = _sum([_inner(g, v) for g, v in zip(gradients, vectors, strict=True)])
    inputs = tuple(dict.fromkeys((*scalar.inputs, *vectors)))
    values = {**scalar.values, **given}
    return Scalar(result, scalar.leaves, inputs, values, scalar.mode)


def _check_dtypes(leaves: Sequence[Input]) -> None:
    for leaf in leaves:
        if leaf.dtype != FLOAT64:
            raise DTypeError(
                f"gradcheck requires float64, got {leaf.type}; float32 misjudges: "
                f"cast the arrays, or build with sg.Graph(dtype='float64')"
            )
    if not leaves:
        raise DTypeError("gradcheck requires a float64 argument, got none")


def _inputs_of(outputs: Sequence[Tensor]) -> list[Input]:
    tensors = (t for node in topological(outputs) for t in node.outputs)
    return [t for t in tensors if isinstance(t, Input)]


def _new_inputs(name: str, like: Sequence[Tensor]) -> list[Input]:
    with Graph():
        return [make_input(f"{name}_{k}", t.shape, t.dtype) for k, t in enumerate(like)]


def _inner(x: Tensor, y: Tensor) -> Tensor:
    product = named("multiply", x, y)
    return named("reduce_sum", product, axes=tuple(range(x.ndim)))


def _sum(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = named("add", total, term)
    return total


# ---- the comparison ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """How a comparison is made."""

    eps: float
    atol: float
    rtol: float
    directions: int | None
    simplify: bool
    seed: int

    def differs(self, analytic: float, numeric: float) -> bool:
        """Whether the two are further apart than allowed; NaN is."""
        return not abs(analytic - numeric) <= self.atol + self.rtol * abs(numeric)


def _compare(scalar: Scalar, settings: Settings) -> None:
    gradients = _gradients(scalar, settings)
    if settings.directions is None:
        found = _by_element(scalar, gradients, settings)
    else:
        found = _by_direction(scalar, gradients, settings)
    if found:
        listed = "\n  ".join(found[:SHOWN])
        more = "" if len(found) <= SHOWN else f"\n  and {len(found) - SHOWN} more"
        raise AssertionError(
            f"gradcheck requires gradients equal to differences, got\n  {listed}{more}"
        )


def _gradients(scalar: Scalar, settings: Settings) -> dict[str, Array]:
    leaves = list(scalar.leaves)
    tensors = grad(scalar.result, leaves, unused="zero", simplify=settings.simplify)
    graph = Graph.closed(scalar.inputs, tensors)
    arrays, _ = run(graph, scalar.mode, scalar.values)
    return {x.name: array for x, array in zip(leaves, arrays, strict=True)}


def _by_element(
    scalar: Scalar, gradients: Mapping[str, Array], settings: Settings
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
    scalar: Scalar, gradients: Mapping[str, Array], settings: Settings
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
    """The central difference along `steps`."""
    values = scalar.values
    above = scalar.at({name: values[name] + eps * s for name, s in steps.items()})
    below = scalar.at({name: values[name] - eps * s for name, s in steps.items()})
    return (above - below) / (2 * eps)
