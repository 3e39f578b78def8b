"""Blocking of long loops on a GPU, where indices have 32 bits.

``loop(n, f) = loop(n % b, f . (q b + )) . loop(q, loop(b, f))``, q = n // b: a loop of
small steps becomes one kernel, the loop around it is the graph's. (The cpu target needs
no blocks: its indices have 64 bits, and its kernels poll for a stop.)

Left alone: loops that read or write a slice in each step, whose number of steps memory
bounds, and those whose length is a symbol, which is a size of something, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from staticgrad.ir.graph import Graph, apply_multi, rewrite, rewritten
from staticgrad.ir.node import Input, Node, Tensor
from staticgrad.ir.op import Control
from staticgrad.ops.leaves import INPUT, frozen
from staticgrad.ops.named import named

BLOCK = 2**20  # steps: a millisecond of the smallest ones, half a second of the largest


def cut_loops(graph: Graph) -> Graph:
    """Block loops: ``loop(n, f) = loop(n % b, f . (q b + )) . loop(q, loop(b, f))``."""
    return rewrite(graph, _cut)


def _cut(node: Node, inputs: Sequence[Tensor]) -> Sequence[Tensor] | None:
    length = node.attrs.get("length")
    if node.op.code != Control("loop") or not isinstance(length, int):
        return None
    (body,) = node.graphs
    count = node.attrs["carries"]
    plain = not node.attrs["sequences"] and len(body.outputs) == count
    if not plain or node.attrs["reverse"] or length <= 2 * BLOCK:
        return None
    blocks, rest = divmod(length, BLOCK)
    own = [_like(leaf) for leaf in body.inputs]
    inside = _steps(node, own[1:], BLOCK, named("multiply", own[0], _number(BLOCK)))
    attrs = {**node.attrs, "length": blocks}
    last = apply_multi(node.op, *inputs, graphs=(Graph.closed(own, inside),), **attrs)
    if not rest:
        return last
    return _steps(node, (*last, *inputs[count:]), rest, _number(length - rest))


def _steps(
    node: Node, operands: Sequence[Tensor], length: int, first: Tensor
) -> tuple[Tensor, ...]:
    """Return the loop over so many steps from position `first` on."""
    (body,) = node.graphs
    position, start = _like(body.inputs[0]), _like(body.inputs[0], "first")
    moved: dict[Tensor, Tensor] = {body.inputs[0]: named("add", position, start)}
    new = rewritten(body.nodes, lambda _, __: None, moved, nested=False)
    inputs = (position, *body.inputs[1:], start)
    graph = Graph.closed(inputs, [new.get(t, t) for t in body.outputs])
    attrs = {**node.attrs, "length": length}
    return apply_multi(node.op, *operands, first, graphs=(graph,), **attrs)


def _number(value: int) -> Tensor:
    return frozen(np.asarray(value))


def _like(leaf: Tensor, name: str = "") -> Tensor:
    attrs = dict(leaf.node.attrs)
    attrs["name"] = f"{name}_{attrs['name']}" if name else attrs["name"]
    return Node(INPUT, (), attrs, (leaf.type,), leaf=Input).outputs[0]
