"""Accumulators of micro-batches for one update: gradients and batch statistics.

Both are kept in States and pooled exactly, whatever the sizes of the micro-batches, so
a group that is cut short by the end of the data counts right: gradients as sums that
are weighted by samples, moments by the formula that joins two samples of T. Chan,
G. Golub and R. LeVeque, "Updating formulae and a pairwise algorithm for computing
sample variances" (COMPSTAT 1982).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from staticgrad import ops
from staticgrad.ir.node import Parameter, State, Stored, Tensor, static_shape
from staticgrad.ir.types import computed
from staticgrad.nn.normalisation import Move
from staticgrad.train.amp import Pair


class Accumulator:
    """Sums of gradients over micro-batches, weighted by samples, and their weight."""

    def __init__(self, params: Sequence[Parameter]) -> None:
        self.sums: list[Stored] = [
            ops.state(
                np.zeros(static_shape(p.shape) or (), computed(p.dtype)),
                name=f"{p.name}.accumulated",
            )
            for p in params
        ]
        self.weight: State = ops.state(np.float64(0), name="accumulated")

    def added(
        self, grads: Sequence[Tensor], weight: Tensor, ok: Tensor | None
    ) -> list[Pair]:
        """Return the updates after one micro-batch of `weight` samples.

        Where it is not `ok` the weight becomes NaN: the group does not count.
        """
        pairs: list[Pair] = [
            (total, total + ops.astype(weight, total.dtype) * g)
            for total, g in zip(self.sums, grads, strict=True)
        ]
        more = self.weight + ops.astype(weight, self.weight.dtype)
        if ok is not None:
            more = ops.where(ok, more, np.nan)
        return [*pairs, (self.weight, more)]

    def means(self) -> list[Tensor]:
        """Return the updates after one micro-batch of `weight` samples."""
        return [t / ops.astype(self.weight, t.dtype) for t in self.sums]

    def cleared(self) -> list[Pair]:
        """Return the updates that start a new group."""
        return _zeroed([*self.sums, self.weight])


class Moments:
    """Count, mean and squared deviations of a batch norm over a group."""

    def __init__(self, move: Move) -> None:
        self.move = move
        leaf = move.running_mean
        start = np.zeros(static_shape(leaf.shape) or (), leaf.dtype)
        name = f"{leaf.name}.accumulated"
        self.count: State = ops.state(np.float64(0), name=f"{name}.count")
        self.mean: State = ops.state(start, name=name)
        self.squares: State = ops.state(start, name=f"{name}.squares")

    def added(self) -> list[Pair]:
        """Return the updates after one micro-batch."""
        kind = self.mean.dtype
        count = ops.astype(self.move.count, self.count.dtype)
        total = self.count + count
        share = ops.astype(count / ops.maximum(total, 1), kind)
        away = ops.astype(self.move.mean, kind) - self.mean
        spread = ops.astype(self.move.variance, kind) * ops.astype(count, kind)
        between = away * away * share * ops.astype(self.count, kind)
        return [
            (self.count, total),
            (self.mean, self.mean + away * share),
            (self.squares, self.squares + spread + between),
        ]

    def cleared(self) -> list[Pair]:
        """Return the updates that start a new group."""
        return _zeroed([self.count, self.mean, self.squares])


def moved(every: Iterable[Moments]) -> list[Pair]:
    """Return the running statistics after a group; a layer's calls apply in order."""
    now: dict[State, Tensor] = {}
    for moments in every:
        move = moments.move
        bessel = ops.astype(ops.maximum(moments.count - 1, 1), moments.squares.dtype)
        found = (moments.mean, moments.squares / bessel)
        for leaf, new in zip((move.running_mean, move.running_var), found, strict=True):
            now[leaf] = move.towards(now.get(leaf, leaf), new)
    return list(now.items())


def _zeroed(leaves: Iterable[Stored]) -> list[Pair]:
    return [(leaf, ops.zeros(leaf.shape, leaf.dtype)) for leaf in leaves]
