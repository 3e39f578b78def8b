"""Lifting: sums over the steps of a scan, computed outside from stacked factors.

The cotangent of a weight is ``sum over t of x_t' g_t``: with all x and all g stacked it
is one matrix product whose inner axis runs over all steps, instead of one small product
and one addition a step. Views and sums of such products are taken outside with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Matmul, Reduce, View
from staticgrad.ops.movement.views import reshaped, transposed
from staticgrad.ops.named import named

Stack = Callable[[Tensor], Tensor]

MOST_TERMS = 16
SWAPPED = (1, 0)


@dataclass(frozen=True, slots=True)
class Lifted:
    """Tensor whose sum over all steps is computed outside, from stacked `factors`."""

    tensor: Tensor
    factors: tuple[Tensor, ...]

    def build(self, stack: Stack) -> Tensor:
        """Return the sum, given the function that stacks the factors."""
        return _built(self.tensor, stack)


def product_factors(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the factors of the products of which `tensor` is a sum."""
    found: list[Tensor] = []
    for term in _terms(tensor):
        if _is_product(term):
            found += _factors(term)
    return tuple(found)


def lifted(tensor: Tensor, stacked: Collection[Tensor]) -> Lifted | None:
    """Return how the sum of `tensor` over the steps is lifted; None if it cannot be.

    Sums of tensors that are not `stacked` for products anyway are cheaper in the steps.
    """
    factors: list[Tensor] = []
    for term in _terms(tensor):
        if _is_product(term):
            factors += _factors(term)
        elif _is_sum(term) and term.inputs[0] in stacked:
            factors.append(term.inputs[0])
        else:
            return None
    return Lifted(tensor, tuple(factors))


def _terms(tensor: Tensor) -> list[Tensor]:
    """Return the addends of `tensor`, seen through views."""
    terms: list[Tensor] = []
    stack = [tensor]
    for _ in range(MOST_TERMS):
        if not stack:
            return terms
        top = stack.pop()
        if _is_linear(top):
            stack.extend(top.inputs)
        else:
            terms.append(top)
    return [tensor]


def _is_product(tensor: Tensor) -> bool:
    return isinstance(tensor.op.code, Matmul) and tensor.ndim == 2


def _is_linear(tensor: Tensor) -> bool:
    """Whether a tensor is an addition of equal shapes, a transposition or a reshape."""
    if tensor.op.name == "add":
        return all(t.shape == tensor.shape for t in tensor.inputs)
    return isinstance(tensor.op.code, View) and tensor.op.name in (
        "transpose",
        "reshape",
    )


def _is_sum(tensor: Tensor) -> bool:
    code = tensor.op.code
    return isinstance(code, Reduce) and code.combine == "add"


def _factors(product: Tensor) -> tuple[Tensor, Tensor]:
    a, b = product.inputs
    return (a.inputs[0] if _is_swapped(a) else a), b


def _is_swapped(tensor: Tensor) -> bool:
    return tensor.op.name == "transpose" and tensor.node.attrs["axes"] == SWAPPED


def _built(tensor: Tensor, stack: Stack) -> Tensor:
    """Build the sum recursively, at most MOST_TERMS deep."""
    if _is_product(tensor):
        return _product(tensor, stack)
    if _is_sum(tensor):
        whole = stack(tensor.inputs[0])
        axes = (0, *(axis + 1 for axis in tensor.node.attrs["axes"]))
        return named("reduce_sum", whole, axes=axes)
    inputs = [_built(t, stack) for t in tensor.inputs]
    return apply(tensor.op, *inputs, **tensor.node.attrs)


def _product(tensor: Tensor, stack: Stack) -> Tensor:
    """Return ``sum over t of a_t b_t``, as one product."""
    a = tensor.inputs[0]
    left, right = _factors(tensor)
    rows = stack(right)
    rows = reshaped(rows, (rows.shape[0] * rows.shape[1], rows.shape[2]))
    columns = stack(left)
    if _is_swapped(a):  # (step, inner, m)
        flat = reshaped(
            columns, (columns.shape[0] * columns.shape[1], columns.shape[2])
        )
        return named("matmul", transposed(flat, SWAPPED), rows)
    columns = transposed(columns, (1, 0, 2))  # (m, step, inner)
    flat = reshaped(columns, (columns.shape[0], columns.shape[1] * columns.shape[2]))
    return named("matmul", flat, rows)
