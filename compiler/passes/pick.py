"""One-hot sums: reductions in which one term is not 0 become gathers.

* ``sum(where(position == i, x, 0), axis) = x[i]``
* ``sum(where(position == i, c, 0), axis) = c`` for a c without that axis
* ``f(a, b)[i] = f(a[i], b[i])`` for elementwise f, so that nothing has to be stored

i is a checked index, so exactly one position equals it. Cross entropy and its gradient
are written with such a comparison, which differentiates into another comparison; here,
after differentiation, one load takes the place of a pass over the row.
"""

from __future__ import annotations

from dataclasses import dataclass

from staticgrad.compiler.passes.match import by_rule, is_number, is_op
from staticgrad.ir.graph import Graph, rebuilt, rewrite
from staticgrad.ir.node import Node, Tensor, seen_through
from staticgrad.ir.op import Elementwise, IndexCheck, Leaf, Matmul, Position, Reduce
from staticgrad.ops.movement.checked_index import taken
from staticgrad.ops.movement.views import broadcasted, reshaped

MOST_STEPS = 8  # elementwise operations that are moved to one element


@dataclass(frozen=True, slots=True)
class _Hit:
    """Index of the one term along `axis`; it has size 1 there."""

    index: Tensor
    axis: int


def pick(graph: Graph) -> Graph:
    """Rewrite ``sum(where(position == i, x, 0), axis) = x[i]``."""
    return rewrite(graph, by_rule(_picked))


def _picked(node: Node) -> Tensor | None:
    code = node.op.code
    if not isinstance(code, Reduce) or code.combine != "add":
        return None
    if len(node.attrs["axes"]) != 1:
        return None
    (axis,) = node.attrs["axes"]
    (terms,) = node.inputs
    negated = is_op(terms, "negative")
    result = _one_term(terms.inputs[0] if negated else terms, axis)
    if result is None:
        return None
    shape = (*terms.shape[:axis], 1, *terms.shape[axis + 1 :])
    result = reshaped(broadcasted(result, shape), node.types[0].shape)
    return -result if negated else result


def _one_term(terms: Tensor, axis: int) -> Tensor | None:
    """Return the term that is not 0, with size 1 along `axis`; None for other forms."""
    if not is_op(terms, "where") or not is_number(terms.inputs[2], 0.0):
        return None
    condition, value, _ = terms.inputs
    hit = _hit(condition, terms, axis)
    return None if hit is None else _Picking(hit, terms).of(value)


def _hit(condition: Tensor, terms: Tensor, axis: int) -> _Hit | None:
    if not is_op(condition, "equal") or condition.shape != terms.shape:
        return None
    for place, index in (condition.inputs, condition.inputs[::-1]):
        along = isinstance(place.op.code, Position) and place.node.attrs["axis"] == axis
        if along and place.shape == terms.shape:
            found = index.inputs[0] if is_op(index, "cast") else index
            if _is_checked(found, terms, axis):
                return _Hit(found, axis)
    return None


def _is_checked(index: Tensor, terms: Tensor, axis: int) -> bool:
    wanted = (*terms.shape[:axis], 1, *terms.shape[axis + 1 :])
    base = seen_through(index)
    checked = isinstance(base.op.code, IndexCheck)
    inside = checked and base.node.attrs["extent"] == terms.shape[axis]
    return inside and index.shape == wanted


class _Picking:
    """Push of a gather through elementwise operations, to one element of a row."""

    def __init__(self, hit: _Hit, terms: Tensor) -> None:
        self.hit = hit
        self.shape = terms.shape
        self.steps = 0

    def of(self, value: Tensor) -> Tensor | None:
        """Return the element of `value`, with size 1 along the axis; None if costly.

        The recursion is at most MOST_STEPS deep.
        """
        rank, axis = len(self.shape), self.hit.axis
        own = axis - (rank - value.ndim)
        if own < 0 or value.shape[own] == 1:
            return value
        code = value.op.code
        if isinstance(code, Leaf | Matmul):
            whole = broadcasted(value, self.shape)
            return taken(whole, self.hit.index, axis, pointwise=True)
        self.steps += 1
        if not isinstance(code, Elementwise) or self.steps > MOST_STEPS:
            return None
        inputs = [self.of(tensor) for tensor in value.inputs]
        if any(tensor is None for tensor in inputs):
            return None
        kept = tuple(tensor for tensor in inputs if tensor is not None)
        return rebuilt(value.node, kept).outputs[0]
