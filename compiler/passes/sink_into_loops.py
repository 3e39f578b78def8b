"""Loop sinking: move elementwise operations on a sequence into the steps of its loop.

``loop(f(xs, w)) = loop(xs, w: f(x, w))`` where f is cheap and nothing else reads
f(xs, w): it is then not stored and read again, and f fuses with what reads the slice.
The other operands of f are the same in every step. A product of all rows stays ahead
of the loop; the bias that is added to it goes into the steps.

Costlier operations stay outside, where they vectorise even if the steps are scalar; so
do those with readers inside that are not elementwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from staticgrad.compiler.passes.body_parts import (
    changed_controls,
    placeholder,
    with_inputs_for,
)
from staticgrad.ir.graph import Graph, apply_multi, rebuilt
from staticgrad.ir.node import Constant, Node, Tensor
from staticgrad.ir.op import Control, Elementwise, View
from staticgrad.ir.types import TensorType

CHEAP = 2  # additions: sums, products and negations


def sink_into_loops(graph: Graph) -> Graph:
    """Sink ``loop(f(xs, w)) = loop(xs, w: f(x, w))`` if nothing else reads f(xs, w)."""
    return changed_controls(graph, _sunk)


def _sunk(
    old: Node, node: Node, uses: Mapping[Tensor, int]
) -> Sequence[Tensor | None] | None:
    if node.op.code != Control("loop"):
        return None
    (body,) = node.graphs
    first = node.attrs["carries"]
    for place in range(first, first + node.attrs["sequences"]):
        sequence = node.inputs[place]
        along = _sequence_of(sequence)
        own = body.inputs[1 + place]
        if along is not None and uses[old.inputs[place]] == 1 and _fuses(own, body):
            return _moved(node, place, along)
    return None


def _sequence_of(tensor: Tensor) -> int | None:
    """Return the sequence among a cheap op's operands; the rest are loop-invariant."""
    code = tensor.op.code
    if not isinstance(code, Elementwise) or code.cost > CHEAP or code.fails:
        return None
    shapes = [x.shape for x in tensor.inputs]
    whole = [n for n, shape in enumerate(shapes) if shape == tensor.shape]
    rest = [shape for shape in shapes if shape != tensor.shape]
    alike = all(len(shape) < tensor.ndim for shape in rest)
    return whole[0] if len(whole) == 1 and alike else None


def _fuses(own: Tensor, body: Graph) -> bool:
    """Whether only elementwise operations read a slice, or views of it."""
    left, kept = [own], set(body.outputs)
    while left:
        tensor = left.pop()
        readers = [n for n in body.nodes if tensor in set(n.inputs)]
        left += [n.outputs[0] for n in readers if isinstance(n.op.code, View)]
        plain = all(isinstance(n.op.code, Elementwise | View) for n in readers)
        if not readers or not plain or tensor in kept:
            return False
    return True


def _moved(node: Node, place: int, along: int) -> Sequence[Tensor]:
    """Return the outputs of the loop with the sequence computed in its steps."""
    (body,), made = node.graphs, node.inputs[place]
    own, source = body.inputs[1 + place], made.inputs[along]
    names = {leaf.name for leaf in body.inputs}
    row = TensorType(source.shape[1:], source.dtype)
    inside = {source: placeholder(row, "sunk", names)}
    for x in made.inputs:
        if x not in inside and not isinstance(x, Constant):
            inside[x] = placeholder(x.type, "sunk", names)
    value = rebuilt(made.node, tuple(inside.get(x, x) for x in made.inputs))
    outputs = with_inputs_for(body, {own: value.outputs[0]}).outputs
    leaf, *captured = inside.values()
    inputs = (leaf if t is own else t for t in body.inputs)
    graph = Graph.closed((*inputs, *captured), outputs)
    operands = (source if n == place else x for n, x in enumerate(node.inputs))
    rest = [x for x in inside if x is not source]
    return apply_multi(node.op, *operands, *rest, graphs=(graph,), **node.attrs)
