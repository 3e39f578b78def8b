"""Cancelling of movement ops that are inverse, mergeable or implied.

``reshape(reshape(x)) = reshape(x)``, ``transpose(transpose(x)) = transpose(x)``,
``broadcast(broadcast(x)) = broadcast(x)``, ``slice(slice(x)) = slice(x)``; each of them
that changes nothing goes. Elementwise ops broadcast by themselves, so
``f(broadcast(x), y) = f(x, y)`` and ``f(broadcast(x)) = broadcast(f(x))``: less is
computed. ``transpose(a @ b) = transpose(b) @ transpose(a)``, since a GEMM reads a
transpose for nothing. Whatever moves one repeated number is a broadcast of it.
"""

from __future__ import annotations

from operator import is_

from staticgrad.compiler.passes.match import NodeRule, by_rule, is_op, number, uniform
from staticgrad.ir.graph import Graph, apply, rewrite
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Elementwise, View
from staticgrad.ops.movement.views import broadcasted, reshaped, transposed
from staticgrad.ops.named import named


def cancel_moves(graph: Graph) -> Graph:
    """Cancel ``move(move(x)) = move(x)``, ``f(broadcast(x), y) = f(x, y)``."""
    return rewrite(graph, CANCEL_MOVES)


def cancelled(node: Node) -> Tensor | None:
    """Return the tensor that replaces a node whose moves cancel; None if none do."""
    if isinstance(node.op.code, Elementwise):
        return _unbroadcast(node)
    if not isinstance(node.op.code, View):
        return None
    (x,) = node.inputs[:1]
    if is_unmoved(node):
        return x
    value = uniform(x)
    if value is not None and not _is_filled(node):
        return broadcasted(number(value, x.dtype), node.types[0].shape)
    if is_op(x, "broadcast_to") and x.inputs[0].ndim == 0:
        return broadcasted(x.inputs[0], node.types[0].shape)
    rule = RULES.get(node.op.name)
    return None if rule is None else rule(node)


def is_unmoved(node: Node) -> bool:
    """Whether the View leaves every element where it was."""
    (x,) = node.inputs[:1]
    if node.types[0].shape != x.shape:
        return False
    if node.op.name == "transpose":
        moved = [a for a in node.attrs["axes"] if x.shape[a] != 1]
        return moved == sorted(moved)
    if node.op.name == "slice":
        return all(step == 1 for step in node.attrs["steps"])
    return node.op.name in ("reshape", "broadcast_to")


def _is_filled(node: Node) -> bool:
    """Whether the node broadcasts a 0-d constant, the simplest form."""
    (x,) = node.inputs
    return node.op.name == "broadcast_to" and x.ndim == 0 and not x.inputs


def _reshape(node: Node) -> Tensor | None:
    (x,) = node.inputs
    if is_op(x, "reshape"):
        return reshaped(x.inputs[0], node.attrs["shape"])
    return None


def _transpose(node: Node) -> Tensor | None:
    (x,) = node.inputs
    axes: tuple[int, ...] = node.attrs["axes"]
    if is_op(x, "transpose"):
        inner = x.node.attrs["axes"]
        return transposed(x.inputs[0], tuple(inner[a] for a in axes))
    last = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    if is_op(x, "matmul") and axes == last:
        a, b = x.inputs
        return named("matmul", transposed(b, axes), transposed(a, axes))
    return None


def _broadcast(node: Node) -> Tensor | None:
    x = implied(node.inputs[0])
    return broadcasted(x, node.attrs["shape"]) if x is not node.inputs[0] else None


def _slice(node: Node) -> Tensor | None:
    (outer,) = node.inputs
    if not is_op(outer, "slice") or 0 in node.attrs["sizes"]:
        return None
    first = outer.node.attrs
    pairs = zip(first["starts"], first["steps"], node.attrs["starts"], strict=True)
    starts = tuple(start + step * inner for start, step, inner in pairs)
    steps = zip(first["steps"], node.attrs["steps"], strict=True)
    return named(
        "slice",
        outer.inputs[0],
        starts=starts,
        sizes=node.attrs["sizes"],
        steps=tuple(a * b for a, b in steps),
    )


def implied(x: Tensor) -> Tensor:
    """Return the tensor that `x` repeats, if NumPy would broadcast it alike."""
    while is_op(x, "broadcast_to") or _adds_leading_ones(x):
        x = x.inputs[0]
    return x


def _adds_leading_ones(x: Tensor) -> bool:
    if not is_op(x, "reshape"):
        return False
    inner = x.inputs[0].shape
    added = x.ndim - len(inner)
    return added >= 0 and x.shape == (1,) * added + inner


def _unbroadcast(node: Node) -> Tensor | None:
    inputs = tuple([implied(x) for x in node.inputs])
    if all(map(is_, inputs, node.inputs)):
        return None
    return broadcasted(apply(node.op, *inputs, **node.attrs), node.types[0].shape)


RULES: dict[str, NodeRule] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast,
    "slice": _slice,
}

CANCEL_MOVES = by_rule(cancelled)
