"""What a Trainer minimises: a loss with its metrics, updates and leaves, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from staticgrad import ops
from staticgrad.differentiate import grad
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import homes, topological
from staticgrad.ir.node import Input, Parameter, Stored, Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import is_float
from staticgrad.optim import Optimizer
from staticgrad.trees import flatten

CheckFinite: TypeAlias = Literal["loss", "gradients"] | None
Pair: TypeAlias = tuple[Stored, Tensor]
Leaf = TypeVar("Leaf", bound=Tensor)


@dataclass(frozen=True, slots=True)
class Objective:
    """`scalars` (loss first), what a step updates, what has to be finite, the leaves.

    `inputs` and `stored` are in order of creation.
    """

    scalars: dict[str, Tensor]
    updates: tuple[Pair, ...]
    finite: tuple[Tensor, ...]
    inputs: tuple[Input, ...]
    stored: tuple[Stored, ...]


def objective(
    loss: Tensor,
    optimizer: Optimizer,
    parameters: Any,
    metrics: Mapping[str, Tensor],
    check_finite: CheckFinite,
    simplify: bool,
) -> Objective:
    """The Objective of `loss`: updates are the optimiser's and those of its graph."""
    scalars = _scalars(loss, metrics)
    if check_finite not in ("loss", "gradients", None):
        raise GraphError(
            "Trainer requires check_finite 'loss', 'gradients' or None, got "
            f"{check_finite!r}{at(here())}"
        )
    if not isinstance(optimizer, Optimizer):
        raise GraphError(
            "Trainer requires an optimizer such as sg.optim.Adam(1e-3), got "
            f"{optimizer!r}{at(here())}"
        )
    wrt = _trainable(loss) if parameters is None else flatten(parameters)[0]
    grads = grad(loss, wrt, simplify=simplify)
    graphs = homes(scalars.values())
    updates = [pair for graph in graphs for pair in graph.updates]
    updates += optimizer.updates(grads, wrt)
    finite = [loss] if check_finite else []
    if check_finite == "gradients":
        finite += [ops.max(ops.absolute(g)) for g in grads]  # NaN and infinity survive
    roots = [*scalars.values(), *(new for _, new in updates)]
    stored = dict.fromkeys([*_leaves(roots, Stored), *(leaf for leaf, _ in updates)])
    return Objective(
        scalars, tuple(updates), tuple(finite), _leaves(roots, Input), tuple(stored)
    )


def _scalars(loss: Tensor, metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if "loss" in metrics:
        raise GraphError(
            f"Trainer requires metrics with names of their own, got 'loss'{at(here())}"
        )
    found = {"loss": loss, **metrics}
    for name, tensor in found.items():
        _require_scalar(name, tensor)
    if not is_float(loss.dtype):
        raise DTypeError(f"Trainer requires a float loss, got {loss.type}{at(here())}")
    return {
        name: tensor if is_float(tensor.dtype) else tensor.astype("float64")
        for name, tensor in found.items()
    }


def _require_scalar(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise DTypeError(
            f"Trainer requires tensors, got {type(tensor).__name__} as {name}"
            f"{at(here())}"
        )
    if tensor.shape != ():
        raise ShapeError(
            f"Trainer requires scalars, got {tensor.type} as {name}; take its mean"
            f"{at(here())}"
        )


def _trainable(loss: Tensor) -> list[Parameter]:
    found = [p for p in _leaves([loss], Parameter) if p.trainable]
    if not found:
        raise GraphError(
            "Trainer requires a loss that depends on a trainable parameter, got "
            f"{loss.type} without one; make one with sg.parameter{at(here())}"
        )
    return found


def _leaves(roots: Iterable[Tensor], kind: type[Leaf]) -> tuple[Leaf, ...]:
    """The leaves of `kind` that `roots` reach, in order of creation."""
    outputs = (t for node in topological(roots) for t in node.outputs)
    found = [t for t in outputs if isinstance(t, kind)]
    return tuple(sorted(found, key=lambda t: t.node.number))
