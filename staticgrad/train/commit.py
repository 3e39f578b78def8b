"""Commit of gradients: unscale, check, clip, update, or skip the step.

The order is that of PyTorch's recipes: gradients are divided by the loss scale, looked
through for NaN and infinity, clipped, and used by the optimiser. A step that is skipped
leaves parameters, optimiser and states (running statistics, too) as they were; only the
loss scale falls, and the random stream moves on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from staticgrad import ops
from staticgrad.errors import GraphError
from staticgrad.ir.graph import homes
from staticgrad.ir.node import Parameter, Tensor
from staticgrad.ir.source import at, here
from staticgrad.ops.random import RandomStream
from staticgrad.optim import Clip, Optimizer
from staticgrad.train.amp import LossScale, Pair, all_finite, where_finite

CheckFinite: TypeAlias = Literal["loss", "gradients"] | None
OnNonfinite: TypeAlias = Literal["raise", "skip", "replace"]


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for treating gradients, the same in every phase; see Trainer."""

    check_finite: CheckFinite
    on_nonfinite: OnNonfinite
    clip: tuple[Clip, ...] = ()


def rules(check_finite: Any, on_nonfinite: Any, clip: Any, scaled: bool) -> Rules:
    """Return the Rules for a Trainer's arguments; GraphError if they make no sense."""
    if check_finite not in ("loss", "gradients", None):
        raise GraphError(
            "Trainer requires check_finite 'loss', 'gradients' or None, got "
            f"{check_finite!r}{at(here())}"
        )
    if on_nonfinite not in ("raise", "skip", "replace", None):
        raise GraphError(
            "Trainer requires on_nonfinite 'raise', 'skip' or 'replace', got "
            f"{on_nonfinite!r}{at(here())}"
        )
    if on_nonfinite == "skip" and check_finite is None and not scaled:
        raise GraphError(
            "on_nonfinite='skip' requires something to check, got check_finite=None; "
            f"pass check_finite='gradients'{at(here())}"
        )
    contrary = on_nonfinite == "replace" or (
        on_nonfinite == "raise" and check_finite == "gradients"
    )
    if scaled and contrary:
        raise GraphError(
            "loss_scale requires steps that overflow to be skipped, got "
            f"on_nonfinite={on_nonfinite!r} for gradients; leave it out{at(here())}"
        )
    chosen: OnNonfinite = on_nonfinite or ("skip" if scaled else "raise")
    return Rules(check_finite, chosen, _clips(clip))


def _clips(clip: Any) -> tuple[Clip, ...]:
    if clip is None:
        return ()
    found = tuple(clip) if isinstance(clip, Iterable) else (clip,)
    for each in found:
        if not isinstance(each, Clip):
            raise GraphError(
                "Trainer requires clip=sg.optim.clip_by_global_norm(1.0), one of its "
                f"kind or several, got {each!r}{at(here())}"
            )
    return found


@dataclass(frozen=True, slots=True)
class Commit:
    """Updates, what has to be finite before them, and what is reported once a commit.

    `finite_step` says whether the step counts, where steps may be skipped.
    """

    updates: tuple[Pair, ...]
    per_update_metrics: dict[str, Tensor] = field(default_factory=dict)
    finite_step: Tensor | None = None


def must_be_finite(
    rules: Rules, loss: Tensor, grads: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the scalars whose NaN or infinity raises before anything is written."""
    if rules.check_finite is None or rules.on_nonfinite != "raise":
        return ()
    if rules.check_finite == "loss":
        return (loss,)
    sizes = (ops.max(ops.absolute(g)) for g in grads)  # NaN and infinity survive
    return (loss, *sizes)


def counts(
    rules: Rules, loss: Tensor, grads: Sequence[Tensor], scale: LossScale | None
) -> Tensor | None:
    """Whether a step counts, a bool scalar; None where every step does."""
    checked: list[Tensor] = []
    if rules.on_nonfinite == "skip" and rules.check_finite:
        checked.append(loss)
    if scale is not None or (
        rules.on_nonfinite == "skip" and rules.check_finite == "gradients"
    ):
        checked += grads
    return all_finite(checked) if checked else None


def committed(
    grads: Sequence[Tensor],
    params: Sequence[Parameter],
    optimizer: Optimizer,
    rules: Rules,
    scale: LossScale | None,
    loss: Tensor,
) -> Commit:
    """Return the Commit of unscaled gradients.

    `loss` is what has to be finite beside them: after a group of micro-batches its
    weight, which is NaN where a loss was not.
    """
    ok = counts(rules, loss, grads, scale)
    metrics: dict[str, Tensor] = {}
    if rules.on_nonfinite == "replace":
        metrics["replaced"] = ops.logical_not(all_finite(grads))
        grads = [ops.nan_to_num(g) for g in grads]
    hit: Tensor | None = None
    for clip in rules.clip:
        grads, found = clip.apply(grads)
        hit = found if hit is None else ops.logical_or(hit, found)
    pairs = optimizer.updates(list(grads), list(params))
    if optimizer.schedule is not None:
        metrics["learning_rate"] = optimizer.current_rate
    if hit is not None:
        metrics["clipped"] = hit if ok is None else ops.logical_and(hit, ok)
    if ok is not None:
        metrics["skipped"] = ops.logical_not(ok)
        pairs = where_finite(ok, pairs)
    if scale is not None and ok is not None:
        metrics["loss_scale"] = scale.value * 1.0
        pairs += scale.updates(ok)
    numbers = {name: ops.astype(mark, "float64") for name, mark in metrics.items()}
    return Commit(tuple(pairs), numbers, ok)


def gated(ok: Tensor | None, pairs: Sequence[Pair]) -> list[Pair]:
    """Return updates that apply only if `ok`; random streams always advance."""
    if ok is None:
        return list(pairs)
    graphs = homes([new for _, new in pairs])
    streams = {graph.record(RandomStream).stream for graph in graphs}
    free = [pair for pair in pairs if pair[0] in streams]
    bound = [pair for pair in pairs if pair[0] not in streams]
    return [*free, *where_finite(ok, bound)]
