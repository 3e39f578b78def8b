"""Fusion of gradient descent into the matrix product of the gradient.

``W - rate * (x @ y)`` becomes ``W + x @ (-rate * y)``, a product that adds to W where
it lies: the gradient is never stored, and W is read and written once. Of both factors
the one that is made later is scaled, by the kernel that makes it: that is the
cotangent, while a scaled activation would wait for the backward pass beside itself.
Where no kernel of elements makes either, as with a loop's, the smaller is scaled, if it
has no more elements than W. Products with the rate are rounded before the sum instead
of after it.

Only where nothing else needs the gradient: not under momentum or Adam, which keep
moments, nor where gradients have to be finite before the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from staticgrad.compiler.passes.match import is_op
from staticgrad.ir.graph import Graph, apply, deriving
from staticgrad.ir.node import Stored, Tensor, seen_through
from staticgrad.ir.op import Elementwise
from staticgrad.ir.size import evaluate
from staticgrad.ops.linear.matrix_products import MATMUL_ADD
from staticgrad.ops.movement.views import reshaped, transposed


@dataclass(frozen=True, slots=True)
class _Step:
    """Update ``leaf + factor * product``; a factor of None is 1."""

    factor: Tensor | None
    product: Tensor


def fold_updates(graph: Graph) -> Graph:
    """Fold ``W - rate * (x @ y) = W + x @ (-rate * y)`` where it is the new W."""
    uses = graph.uses()
    updates = tuple((leaf, _folded(leaf, new, uses)) for leaf, new in graph.updates)
    if all(a is b for (_, a), (_, b) in zip(updates, graph.updates, strict=True)):
        return graph
    return Graph.closed(graph.inputs, graph.outputs, updates)


def _folded(leaf: Stored, new: Tensor, uses: Mapping[Tensor, int]) -> Tensor:
    if uses[new] != 1 or not (is_op(new, "subtract") or is_op(new, "add")):
        return new
    with deriving() as derive_from:
        derive_from(new.node)
        step = _step(leaf, new, uses)
        if step is None:
            return new
        factors = list(step.product.inputs)
        if step.factor is not None:
            side = _scaled_side(leaf, *factors)
            if side is None:
                return new
            factors[side] = _times(factors[side], step.factor)
        return apply(MATMUL_ADD, leaf, *factors)


def _scaled_side(leaf: Stored, x: Tensor, y: Tensor) -> int | None:
    """Return the factor of ``leaf + x @ y`` to scale; None if W is cheaper."""
    sources = seen_through(x), seen_through(y)
    if any(isinstance(source.op.code, Elementwise) for source in sources):
        return int(sources[0].node.number <= sources[1].node.number)
    rows, columns = (evaluate(dim, {}) for dim in leaf.shape[-2:])
    terms = x.shape[-1]
    if isinstance(terms, int) and terms > max(rows, columns):
        return None
    return int(rows >= columns)


def _step(leaf: Stored, new: Tensor, uses: Mapping[Tensor, int]) -> _Step | None:
    base, move = new.inputs
    if is_op(new, "add") and move is leaf:
        base, move = move, base
    step = _taken_apart(move)
    if base is not leaf or uses[move] != 1 or uses[step.product] != 1:
        return None
    if not is_op(step.product, "matmul") or step.product.type != leaf.type:
        return None
    if is_op(new, "add"):
        return step
    return None if step.factor is None else _Step(-step.factor, step.product)


def _taken_apart(move: Tensor) -> _Step:
    """Return rate and product of ``rate * product``, where the rate is one number."""
    if is_op(move, "multiply"):
        for rate, product in (move.inputs, move.inputs[::-1]):
            if rate.ndim == 0 and is_op(product, "matmul"):
                return _Step(rate, product)
    return _Step(None, move)


def _times(x: Tensor, factor: Tensor) -> Tensor:
    """Return ``x * factor``, in the order and the shape in which x is made."""
    if is_op(x, "transpose"):
        return transposed(_times(x.inputs[0], factor), x.node.attrs["axes"])
    if is_op(x, "reshape"):
        return reshaped(_times(x.inputs[0], factor), x.shape)
    return x * factor
