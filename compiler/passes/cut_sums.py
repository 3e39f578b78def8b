"""Sums of padded tensors, split where the zeros begin.

``pad(a, 1, 0) + pad(b, 0, 1) = concatenate(b[:1], a[:-1] + b[1:], a[-1:])``: the
gradient of code that reads x[1:] and x[:-1] is such a sum. Nothing is padded, the
pieces are written where they belong, and zeros are not added. What is -0.0 stays so,
where adding 0.0 would give 0.0. Terms are added in the order they had.

Left alone: sums in which fewer than two terms are padded, sizes that are symbols, and
sums that would fall into more than MOST_PIECES, and into more than two pieces for each
padded term: the gradient of code that reads every x[i] falls into one for each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from staticgrad.compiler.passes.match import is_op, number, replaced
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Shape
from staticgrad.ops.movement.placement import joined
from staticgrad.ops.movement.slicing import cut
from staticgrad.ops.movement.views import broadcasted
from staticgrad.ops.named import named

MOST_PIECES = 32


@dataclass(frozen=True, slots=True)
class _Term:
    """Tensor whose element 0 lies at `low` in the sum; zeros around it."""

    tensor: Tensor
    low: tuple[int, ...]

    def end(self, axis: int) -> int:
        return self.low[axis] + _literal(self.tensor.shape)[axis]

    def covers(self, axis: int, start: int) -> bool:
        return self.low[axis] <= start < self.end(axis)

    def within(self, axis: int, start: int, stop: int) -> _Term:
        """Return its part within [start, stop) of an axis, all of which it covers."""
        part = cut(self.tensor, axis, start - self.low[axis], stop - start)
        return _Term(part, (*self.low[:axis], start, *self.low[axis + 1 :]))


def cut_sums(graph: Graph) -> Graph:
    """Cut sums of padded tensors where the zeros begin.

    ``pad(a, 1, 0) + pad(b, 0, 1) = concatenate(b[:1], a[:-1] + b[1:], a[-1:])``

    """
    inner = _inner(graph)
    found = {
        node.outputs[0]
        for node in graph.nodes
        if is_op(node.outputs[0], "add")
        and node.outputs[0] not in inner
        and _is_worthwhile(node.outputs[0], inner)
    }

    def finish(old: Tensor, now: Tensor) -> Tensor:
        terms = list(_terms(old, now, inner))
        return _cut(terms, _literal(now.shape))

    return replaced(graph, found, finish, cut_sums)


def _inner(graph: Graph) -> set[Tensor]:
    """Return the sums that are only terms of another sum of their type."""
    if not any(_is_zero_pad(node.outputs[0]) for node in graph.nodes):
        return set()  # no sum will be cut
    uses = graph.uses()
    return {
        t
        for node in graph.nodes
        if is_op(node.outputs[0], "add")
        for t in node.inputs
        if is_op(t, "add") and uses[t] == 1 and t.type == node.types[0]
    }


def _is_worthwhile(total: Tensor, inner: Collection[Tensor]) -> bool:
    if any(not isinstance(n, int) for n in total.shape):
        return False
    terms = list(_terms(total, total, inner))
    padded = sum(term.tensor.shape != total.shape for term in terms)
    if padded < 2:
        return False
    pieces = 1
    for axis in range(total.ndim):
        pieces *= len(_bounds(terms, axis)) - 1
    return pieces <= max(MOST_PIECES, 2 * padded)


def _terms(old: Tensor, now: Tensor, inner: Collection[Tensor]) -> Iterator[_Term]:
    """Yield the terms of the sum `old`, from left to right, in their new form."""
    pending = [(old, now)]
    while pending:
        before, after = pending.pop()
        if before is old or before in inner:
            pending += zip(before.inputs[::-1], after.inputs[::-1], strict=True)
        else:
            yield _term(after, now.shape)


def _term(x: Tensor, shape: Shape) -> _Term:
    """Return `x` without the zeros of a pad; whole where it is repeated."""
    if _is_zero_pad(x) and x.shape == shape:
        return _Term(x.inputs[0], tuple(x.node.attrs["low"]))
    return _Term(broadcasted(x, shape), (0,) * len(shape))


def _is_zero_pad(x: Tensor) -> bool:
    if not is_op(x, "pad"):
        return False
    attrs = x.node.attrs
    widths = (*attrs["low"], *attrs["high"], *x.inputs[0].shape)
    plain = not any(attrs["interior"]) and attrs["value"] == 0
    return plain and all(isinstance(n, int) and n >= 0 for n in widths)


def _bounds(terms: Sequence[_Term], axis: int) -> list[int]:
    """Return the positions along an axis where a term begins or ends."""
    return sorted({p for t in terms for p in (t.low[axis], t.end(axis))})


def _cut(terms: Sequence[_Term], shape: tuple[int, ...], axis: int = 0) -> Tensor:
    """Return the sum of `terms` over `shape`, recursively over its axes."""
    if axis == len(shape):
        return reduce(_plus, [term.tensor for term in terms])
    bounds = sorted({0, shape[axis], *_bounds(terms, axis)})
    dtype = terms[0].tensor.dtype
    parts: list[Tensor] = []
    for start, stop in pairwise(bounds):
        own = [
            term.within(axis, start, stop) for term in terms if term.covers(axis, start)
        ]
        piece = (*shape[:axis], stop - start, *shape[axis + 1 :])
        zeros = broadcasted(number(0, dtype), piece)
        parts.append(_cut(own, piece, axis + 1) if own else zeros)
    return joined(parts, axis)


def _plus(x: Tensor, y: Tensor) -> Tensor:
    return named("add", x, y)


def _literal(shape: Shape) -> tuple[int, ...]:
    return tuple(n for n in shape if isinstance(n, int))
