"""Products over all steps of a loop with a carry's value before each of them.

``sum of h[t - 1]^T g[t] = h[-1]^T g[0] + h[:-1]^T g[1:]`` where the carry after each
step, h, is stacked as well: what it was before them need not be. So the gradient of
recurrent weights reads the states that the layer returns, and no step copies its own.

Only where such products are all that reads the stack, and the steps can be counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from staticgrad.compiler.passes.match import is_op
from staticgrad.ir.graph import Graph, apply, rewrite
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Control, Matmul, View
from staticgrad.ir.size import Dim, product
from staticgrad.ops.linear.matrix_products import MATMUL_ADD
from staticgrad.ops.movement.views import reshaped, transposed
from staticgrad.ops.named import named


@dataclass(frozen=True, slots=True)
class _Shift:
    """Input that a carry starts as, and the output that stacks it after each step.

    `back` says that the loop goes from the last row to the first.
    """

    start: int
    after: int
    back: bool


def shift_stacks(graph: Graph) -> Graph:
    """Rewrite ``sum of h[t - 1]^T g[t] = h[-1]^T g[0] + h[:-1]^T g[1:]``, h stacked."""
    shifts = {t: shift for node in graph.nodes for t, shift in _shifts(node)}
    sides = dict(_sides(graph, shifts)) if shifts else {}
    if not sides:
        return graph

    def rule(node: Node, inputs: Sequence[Tensor]) -> tuple[Tensor] | None:
        if node not in sides:
            return None
        side = sides[node]
        return (_apart(inputs, side, shifts[_stack(node.inputs[side])]),)

    return rewrite(graph, rule)


def _shifts(node: Node) -> Iterator[tuple[Tensor, _Shift]]:
    """Yield stacks of carries before each step that are stacked after it as well."""
    length = node.attrs.get("length")
    if node.op.code != Control("loop") or not isinstance(length, int) or length < 2:
        return
    (body,), count = node.graphs, node.attrs["carries"]
    places = {t: count + n for n, t in enumerate(body.outputs[count:])}
    carries = zip(body.inputs[1:], body.outputs[:count], strict=False)
    for n, (old, new) in enumerate(carries):
        if old in places and new in places and new is not old and old.ndim:
            shift = _Shift(n, places[new], node.attrs["reverse"])
            yield node.outputs[places[old]], shift


def _sides(graph: Graph, shifts: Mapping[Tensor, _Shift]) -> Iterator[tuple[Node, int]]:
    """Yield products and their sides that are stacks only such products read."""
    found = {node: side for node in graph.nodes for side in _side(node, shifts)}
    needed = set(graph.roots)
    for node in reversed(graph.nodes):
        if not isinstance(node.op.code, View):
            own = found.get(node)
            needed.update(x for side, x in enumerate(node.inputs) if side != own)
        elif node.outputs[0] in needed:
            needed.add(node.inputs[0])
    for node, side in found.items():
        if _stack(node.inputs[side]) not in needed:
            yield node, side


def _side(node: Node, shifts: Mapping[Tensor, _Shift]) -> Iterator[int]:
    """Yield the side of a matrix product whose terms are the rows of a stack."""
    if not isinstance(node.op.code, Matmul) or len(node.types[0].shape) != 2:
        return
    for side, x in enumerate(node.inputs):
        stack, width = _stack(x), x.shape[side]
        by_rows = is_op(x, "transpose") == (side == 0)
        if stack in shifts and by_rows and stack.shape[-1] == width:
            yield side


def _stack(factor: Tensor) -> Tensor:
    """Return the tensor that `factor` views as a matrix, or as its transpose."""
    matrix = factor.inputs[0] if is_op(factor, "transpose") else factor
    return matrix.inputs[0] if is_op(matrix, "reshape") else matrix


def _apart(inputs: Sequence[Tensor], side: int, shift: _Shift) -> Tensor:
    """Return the product of the first step, to which that of the others is added."""
    stack, other = _stack(inputs[side]), inputs[1 - side]
    loop = stack.node
    each, width = product(stack.shape[1:-1]), stack.shape[-1]
    steps = stack.shape[0] - 1
    rows = _part(loop.outputs[shift.after], 0, 1 if shift.back else 0, steps)

    def factors(rows: Tensor, at: Dim, terms: Dim) -> Sequence[Tensor]:
        matrix = reshaped(rows, (terms, width))
        one = matrix if side else transposed(matrix, (1, 0))
        both = one, _part(other, side, at, terms)
        return both[::-1] if side else both

    at = (each * steps, 0) if shift.back else (0, each)
    first = factors(loop.inputs[shift.start], at[0], each)
    return apply(
        MATMUL_ADD, named("matmul", *first), *factors(rows, at[1], each * steps)
    )


def _part(x: Tensor, axis: int, start: Dim, size: Dim) -> Tensor:
    """Slice `size` elements of `x` along an axis."""
    starts = tuple(start if n == axis else 0 for n in range(x.ndim))
    sizes = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return named("slice", x, starts=starts, sizes=sizes, steps=(1,) * x.ndim)
