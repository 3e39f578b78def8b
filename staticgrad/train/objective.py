"""Objective of a Trainer: losses with their metrics, updates and leaves, checked.

A step has one phase per loss. A phase updates at once, or, with `accumulate`, adds its
gradients up and leaves the updates to a Commit that runs after some micro-batches.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from staticgrad import ops
from staticgrad.differentiate.cuts import trained
from staticgrad.differentiate.gradients import grad
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import homes, topological
from staticgrad.ir.node import Input, Parameter, Stored, Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import FLOAT32, is_float, is_half
from staticgrad.nn.normalisation import Move, Moves
from staticgrad.ops.named import named
from staticgrad.optim import Optimizer
from staticgrad.train.accumulation import Accumulator, Moments, moved
from staticgrad.train.amp import LossScale, Pair
from staticgrad.train.commit import (
    Commit,
    Rules,
    committed,
    counts,
    gated,
    must_be_finite,
)
from staticgrad.train.data import BATCH

Leaf = TypeVar("Leaf", bound=Tensor)


@dataclass(frozen=True, slots=True)
class TrainedLoss:
    """Loss of a Trainer, its optimiser and parameters; `name` may be empty."""

    name: str
    loss: Tensor
    optimizer: Optimizer
    parameters: Any = None


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase of a step, with an executable of its own.

    `scalars` are reported for each batch, `per_update_metrics` for each update;
    `finite` have to be so before anything is written. `group` is what follows several
    micro-batches, `sums` what they sum up.
    """

    scalars: dict[str, Tensor]
    per_update_metrics: dict[str, Tensor]
    updates: tuple[Pair, ...]
    finite: tuple[Tensor, ...]
    group: Commit | None = None
    sums: tuple[Stored, ...] = ()

    @property
    def reported(self) -> dict[str, Tensor]:
        """Scalars that the executable of the batch returns."""
        return self.scalars | (self.per_update_metrics if self.group is None else {})


@dataclass(frozen=True, slots=True)
class Objective:
    """Phases of a step; `inputs` and `stored` are in order of creation.

    `gates` are, where steps may be skipped, the names of the losses that have to be
    finite for a batch to count in the mean of each of `scalars`.
    """

    phases: tuple[Phase, ...]
    inputs: tuple[Input, ...]
    stored: tuple[Stored, ...]
    gates: tuple[str, ...]

    @property
    def scalars(self) -> dict[str, Tensor]:
        """Losses and metrics."""
        return {n: t for phase in self.phases for n, t in phase.scalars.items()}

    @property
    def sums(self) -> tuple[Stored, ...]:
        """Leaves that groups of batches accumulate into."""
        return tuple(leaf for phase in self.phases for leaf in phase.sums)

    @property
    def per_update_metrics(self) -> tuple[str, ...]:
        """The names of what is reported once an update."""
        return tuple(name for phase in self.phases for name in phase.per_update_metrics)


def parts(loss: Any, optimizer: Any, parameters: Any) -> list[TrainedLoss]:
    """Return the Parts for a Trainer's first arguments: one loss, a list or a dict."""
    if isinstance(loss, Mapping):
        return [_part(str(name), value) for name, value in loss.items()]
    if isinstance(loss, list | tuple):
        return [_part(str(number + 1), value) for number, value in enumerate(loss)]
    if not isinstance(optimizer, Optimizer):
        raise GraphError(
            "Trainer requires an optimizer such as sg.optim.Adam(1e-3), got "
            f"{optimizer!r}{at(here())}"
        )
    return [TrainedLoss("", loss, optimizer, parameters)]


def _part(name: str, value: Any) -> TrainedLoss:
    if not isinstance(value, tuple | list) or len(value) not in (2, 3):
        raise GraphError(
            "Trainer requires phases as (loss, optimizer, parameters), got "
            f"{value!r} as phase {name}{at(here())}"
        )
    loss, optimizer, *parameters = value
    if not isinstance(optimizer, Optimizer):
        raise GraphError(
            f"Trainer requires an optimizer in phase {name}, got {optimizer!r}; "
            f"write (loss, sg.optim.Adam(1e-3), parameters){at(here())}"
        )
    return TrainedLoss(name, loss, optimizer, *parameters)


def objective(
    given: Sequence[TrainedLoss],
    metrics: Mapping[str, Tensor],
    rules: Rules,
    scales: Sequence[LossScale | None],
    accumulate: int,
    pool_statistics: bool,
    simplify: bool,
) -> Objective:
    """Return the Objective of the parts, with the updates of optimisers and graphs.

    With `pool_statistics` and groups of batches, running statistics of batch norms move
    once a group.
    """
    wanted = [_wanted(part) for part in given]
    _require_disjoint(given, wanted)
    reported = _scalars(given, metrics)
    own = _shared_out(reported)
    moves = _moves(reported) if pool_statistics and accumulate > 1 else []
    phases = tuple(
        _phase(part, wrt, scalars, pairs, moves, rules, scale, accumulate, simplify)
        for part, wrt, scalars, pairs, scale in zip(
            given, wanted, reported, own, scales, strict=True
        )
    )
    _require_own_names(
        metrics, {name for phase in phases for name in phase.per_update_metrics}
    )
    roots = [t for phase in phases for t in _roots(phase)]
    leaves = [leaf for phase in phases for leaf, _ in _pairs(phase)]
    stored = dict.fromkeys([*_leaves(roots, Stored), *leaves])
    gates = [
        _name(part, "loss")
        for part, scalars in zip(given, reported, strict=True)
        for _ in scalars
        if rules.on_nonfinite == "skip"
    ]
    return Objective(phases, _leaves(roots, Input), tuple(stored), tuple(gates))


def scales_of(
    wanted: Any, phases: int
) -> tuple[LossScale | None, list[LossScale | None]]:
    """Return the loss scale, and that of each phase."""
    if wanted is None:
        return None, [None] * phases
    if isinstance(wanted, LossScale) and phases == 1:
        return wanted, [wanted]
    if wanted == "dynamic":
        scales = [LossScale() for _ in range(phases)]
        return scales[0], [*scales]
    if isinstance(wanted, int | float) and wanted > 0:
        scales = [LossScale(wanted, 1.0, 1.0) for _ in range(phases)]
        return scales[0], [*scales]
    raise GraphError(
        "Trainer requires loss_scale to be an sg.amp.LossScale (of one loss), "
        f"'dynamic', a number > 0 or None, got {wanted!r}{at(here())}"
    )


def _phase(
    part: TrainedLoss, wrt: Sequence[Parameter], scalars: dict[str, Tensor],
    pairs: Sequence[Pair], moves: Sequence[Move], rules: Rules,
    scale: LossScale | None, accumulate: int, simplify: bool,
) -> Phase:  # fmt: skip
    loss = part.loss
    if is_half(loss.dtype):
        loss = ops.astype(loss, FLOAT32)
    if scale is None:
        grads = grad(loss, list(wrt), simplify=simplify)
    else:
        start = ops.astype(scale.value, loss.dtype)
        scaled = grad(loss, list(wrt), cotangent=start, simplify=simplify)
        grads, _ = scale.unscale(scaled)
    finite = must_be_finite(rules, loss, grads)
    if accumulate == 1:
        done = committed(grads, wrt, part.optimizer, rules, scale, loss)
        updates = (*gated(done.finite_step, pairs), *done.updates)
        return Phase(scalars, _renamed(part, done.per_update_metrics), updates, finite)
    ok = counts(rules, loss, grads, scale)
    group = Accumulator(wrt)
    updated = {leaf for leaf, _ in pairs}
    pooled = [Moments(move) for move in moves if move.running_mean in updated]
    running = moved(pooled)
    own = [pair for pair in pairs if pair[0] not in {leaf for leaf, _ in running}]
    own += [pair for moments in pooled for pair in moments.added()]
    added = group.added(grads, _samples(loss), ok)
    done = committed(group.means(), wrt, part.optimizer, rules, scale, group.weight)
    clear = [*group.cleared(), *(p for m in pooled for p in m.cleared())]
    late = (*done.updates, *gated(done.finite_step, running), *clear)
    commit = Commit(late, _renamed(part, done.per_update_metrics))
    updates = (*gated(ok, own), *added)
    sums = tuple(leaf for leaf, _ in clear)
    return Phase(scalars, commit.per_update_metrics, updates, finite, commit, sums)


def _samples(loss: Tensor) -> Tensor:
    """Return the number of samples in the micro-batch: the size ``batch``, or one."""
    if any(BATCH in leaf.shape for leaf in _leaves([loss], Input)):
        return named("extent", size=BATCH)
    return ops.constant(np.float64(1))


def _renamed(part: TrainedLoss, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    return {_name(part, name): tensor for name, tensor in metrics.items()}


def _name(part: TrainedLoss, word: str) -> str:
    """Return ``loss``, ``loss_1`` in a list of phases, or ``critic_loss`` in a dict."""
    if not part.name:
        return word
    return f"{word}_{part.name}" if part.name.isdigit() else f"{part.name}_{word}"


def _wanted(part: TrainedLoss) -> list[Parameter]:
    _require_scalar("the loss", part.loss)
    if not is_float(part.loss.dtype):
        raise DTypeError(
            f"Trainer requires a float loss, got {part.loss.type}{at(here())}"
        )
    found: list[Parameter] = trained(part.loss, part.parameters)
    if not found and part.parameters is None:
        raise GraphError(
            "Trainer requires a loss that depends on a trainable parameter, got "
            f"{part.loss.type} without one; make one with sg.parameter{at(here())}"
        )
    return found


def _require_disjoint(
    given: Sequence[TrainedLoss], wanted: Sequence[list[Parameter]]
) -> None:
    owner: dict[Parameter, str] = {}
    for part, wrt in zip(given, wanted, strict=True):
        for parameter in wrt:
            if owner.setdefault(parameter, part.name) != part.name:
                raise GraphError(
                    "Trainer requires phases with parameters of their own, got "
                    f"{parameter.name!r} in {owner[parameter]} and {part.name}; give "
                    f"each phase its parameters{at(here())}"
                )


def _scalars(
    given: Sequence[TrainedLoss], metrics: Mapping[str, Tensor]
) -> list[dict[str, Tensor]]:
    """Return the scalars of each phase: its loss, and in the first one the metrics."""
    if not isinstance(metrics, Mapping):
        raise GraphError(
            "Trainer requires metrics as a dict from name to scalar, got "
            f"{type(metrics).__name__}; write {{'accuracy': accuracy}}{at(here())}"
        )
    found: list[dict[str, Tensor]] = [{_name(p, "loss"): p.loss} for p in given]
    _require_own_names(metrics, {name for scalars in found for name in scalars})
    for name, tensor in metrics.items():
        _require_scalar(name, tensor)
        found[0][name] = tensor
    return [
        {n: t if is_float(t.dtype) else t.astype("float64") for n, t in part.items()}
        for part in found
    ]


def _require_own_names(metrics: Mapping[str, Tensor], taken: Container[str]) -> None:
    """Raise if a name is taken, or is that of a validation column (``val_``)."""
    for name in metrics:
        if not isinstance(name, str) or name in taken or name.startswith("val_"):
            raise GraphError(
                f"Trainer requires metrics with names of their own, got {name!r}; "
                f"rename it{at(here())}"
            )


def _shared_out(reported: Sequence[Mapping[str, Tensor]]) -> list[list[Pair]]:
    """Assign the graphs' updates to the first phase that computes their operands."""
    reached = [{n for n in topological(part.values()) if n.inputs} for part in reported]
    graphs = dict.fromkeys(g for part in reported for g in homes(part.values()))
    shares: list[list[Pair]] = [[] for _ in reported]
    for graph in graphs:
        for pair in graph.updates:
            needed = set(topological([pair[1]]))
            fitting = [n for n, nodes in enumerate(reached) if nodes & needed]
            shares[fitting[0] if fitting else 0].append(pair)
    return shares


def _moves(reported: Sequence[Mapping[str, Tensor]]) -> list[Move]:
    """Return the moves of running statistics in the graphs of `reported`."""
    graphs = dict.fromkeys(g for part in reported for g in homes(part.values()))
    return [move for graph in graphs for move in graph.record(Moves)]


def _pairs(phase: Phase) -> tuple[Pair, ...]:
    return phase.updates + (phase.group.updates if phase.group else ())


def _roots(phase: Phase) -> list[Tensor]:
    reported = [*phase.scalars.values(), *phase.per_update_metrics.values()]
    return [*reported, *phase.finite, *(new for _, new in _pairs(phase))]


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


def _leaves(roots: Iterable[Tensor], kind: type[Leaf]) -> tuple[Leaf, ...]:
    """Return the leaves of `kind` that `roots` reach, in order of creation."""
    outputs = (t for node in topological(roots) for t in node.outputs)
    found = [t for t in outputs if isinstance(t, kind)]
    return tuple(sorted(found, key=lambda t: t.node.number))
