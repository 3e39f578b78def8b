"""Batching of branches and loops over a leading axis of examples.

A loop over batched values has batched carries, slices and captures; values that do not
depend on examples stay as they are. A `while_loop` whose condition differs runs as long
as it is true for any example, and leaves finished examples unchanged. A branch that
examples choose becomes a selection if all branches are elementwise and none can fail;
otherwise the examples go through it one after the other, each through the branch that
it takes. So do examples of a loop that may fail on what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from staticgrad.control.bodies import placeholder
from staticgrad.control.body_derivatives import Step, zeros
from staticgrad.control.records import REPLAY, SCAN, SWITCH, WHILE
from staticgrad.control.reversal import rooms_of
from staticgrad.ir.graph import Graph, apply_multi, depending, rebuilt, topological
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import (
    Control,
    Elementwise,
    Extent,
    Leaf,
    Position,
    View,
    can_fail,
)
from staticgrad.ir.size import Dim
from staticgrad.ir.types import INT64, TensorType
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.views import reshaped, transposed
from staticgrad.ops.named import named

Batched: TypeAlias = Sequence[Tensor | None]


class Inner(Protocol):
    """Function that maps tensors of a body to their batched forms.

    The first result maps inputs to new ones, the second tensors that depend on them.
    """

    def __call__(
        self, outputs: Sequence[Tensor], flagged: Sequence[Tensor]
    ) -> tuple[Mapping[Tensor, Tensor], Mapping[Tensor, Tensor]]:
        """Return the mapping of inputs to batched ones, and the batched tensors."""

    def with_example_axis(self, x: Tensor, found: Tensor | None) -> Tensor:
        """Return `found`, or `x` broadcast over examples, the same for the same `x`."""


def control_batched(
    node: Node, inputs: Batched, n: Dim, inner: Inner
) -> Sequence[Tensor]:
    """Return the outputs of a Control node for all examples, on a leading axis."""
    return RULES[node.op.name](node, inputs, n, inner)


def example(tensor: Tensor, n: Dim, name: str) -> Tensor:
    """Return an input of a body that holds all examples of `tensor`."""
    return placeholder(TensorType((n, *tensor.shape), tensor.dtype), name)


def _swapped(x: Tensor) -> Tensor:
    """Return `x` with its first two axes exchanged."""
    return transposed(x, (1, 0, *range(2, x.ndim)))


def _with_carries(
    carries: Sequence[Tensor], new: Sequence[Tensor], flagged: set[Tensor]
) -> set[Tensor]:
    """Return `flagged` and the carries that depend on them after any steps."""
    while True:
        reached = depending(new, flagged)
        pairs = zip(carries, new, strict=True)
        more = {c for c, n in pairs if n in reached} - flagged
        if not more:
            return flagged
        flagged |= more


def _scan(node: Node, inputs: Batched, n: Dim, inner: Inner) -> Sequence[Tensor]:
    step = Step.of(node)
    (graph,) = node.graphs
    own = graph.inputs[1:]
    starts: set[Tensor] = {t for t, x in zip(own, inputs, strict=True) if x is not None}
    flagged = _with_carries(step.carries, step.new, starts)
    order = [t for t in own if t in flagged]
    places, found = inner(graph.outputs, order)
    new = [
        inner.with_example_axis(y, found.get(y)) if c in flagged else y
        for c, y in zip(step.carries, step.new, strict=True)
    ]
    stacked = [found.get(y, y) for y in step.stacked]
    body = Graph.closed(
        (step.position, *(places.get(t, t) for t in own)), (*new, *stacked)
    )
    along = set(step.slices)
    operands = []
    for t, x, many in zip(own, node.inputs, inputs, strict=True):
        whole = inner.with_example_axis(x, many) if t in flagged else x
        operands.append(_swapped(whole) if t in along and t in flagged else whole)
    outputs = apply_multi(SCAN, *operands, graphs=(body,), **node.attrs)
    count = len(step.carries)
    last = [
        y if c in flagged else inner.with_example_axis(y, None)
        for c, y in zip(step.carries, outputs[:count], strict=True)
    ]
    rest = [
        _swapped(y) if inside in found else inner.with_example_axis(y, None)
        for inside, y in zip(step.stacked, outputs[count:], strict=True)
    ]
    return [*last, *rest]


def _while(node: Node, inputs: Batched, n: Dim, inner: Inner) -> Sequence[Tensor]:
    kept = node.attrs.get("kept", ())
    if kept:  # snapshots are not read: see _replay
        attrs = {**node.attrs, "kept": ()}
        plain = apply_multi(WHILE, *node.inputs, graphs=node.graphs, **attrs)[0].node
        unread = node.outputs[len(plain.outputs) :]
        outputs = _while(plain, inputs, n, inner)
        return [*outputs, *(inner.with_example_axis(zeros(t), None) for t in unread)]
    condition, graph = node.graphs
    count = node.attrs["carries"]
    own = graph.inputs
    starts: set[Tensor] = {t for t, x in zip(own, inputs, strict=True) if x is not None}
    flagged = _with_carries(own[:count], graph.outputs, starts)
    asked = {a for a, t in zip(condition.inputs, own, strict=True) if t in flagged}
    (going,) = condition.outputs
    if going in depending([going], set(asked)):
        if _can_fail(node):
            return _by_rows(node, inputs, n)
        flagged |= set(own[:count])
        return _while_rows(node, inputs, n, inner, flagged)
    order = [t for t in own if t in flagged]
    places, found = inner(graph.outputs, order)
    new = [
        inner.with_example_axis(y, found.get(y)) if c in flagged else y
        for c, y in zip(own[:count], graph.outputs, strict=True)
    ]
    body = Graph.closed([places.get(t, t) for t in own], new)
    asking = _asking(condition, own, flagged, n)
    operands = [
        inner.with_example_axis(x, many) if t in flagged else x
        for t, x, many in zip(own, node.inputs, inputs, strict=True)
    ]
    outputs = apply_multi(WHILE, *operands, graphs=(asking, body), **node.attrs)
    return [
        y if k < count and own[k] in flagged else inner.with_example_axis(y, None)
        for k, y in enumerate(outputs)
    ]


def _asking(
    condition: Graph, own: Sequence[Tensor], flagged: set[Tensor], n: Dim
) -> Graph:
    """Return the condition, which depends on no example, on inputs of the new types."""
    inputs = [
        example(a, n, a.name) if t in flagged else a
        for a, t in zip(condition.inputs, own, strict=True)
    ]
    return Graph.closed(inputs, condition.outputs)


def _while_rows(
    node: Node, inputs: Batched, n: Dim, inner: Inner, flagged: set[Tensor]
) -> Sequence[Tensor]:
    """Batch a while_loop: run while any example is active; finished ones stay."""
    condition, graph = node.graphs
    count = node.attrs["carries"]
    own = graph.inputs
    asked = [a for a, t in zip(condition.inputs, own, strict=True) if t in flagged]
    order = [t for t in own if t in flagged]
    places, found = inner(graph.outputs, order)
    asked_places, answers = inner(condition.outputs, asked)
    (going,) = condition.outputs
    rows = answers[going]
    steps = example(frozen(np.asarray(0)), n, "steps_of_rows")
    whole = [asked_places.get(a, a) for a in condition.inputs]
    anyone = named("reduce_any", rows, axes=(0,))
    asking = Graph.closed((*whole[:count], steps, *whole[count:]), (anyone,))
    # the condition once more, on the inputs of the body
    same = dict(zip(whole, (places.get(t, t) for t in own), strict=True))
    (active,) = _moved([rows], same)
    new = [
        _selected(active, inner.with_example_axis(y, found.get(y)), places[c])
        for c, y in zip(own[:count], graph.outputs, strict=True)
    ]
    inputs_of = [places.get(t, t) for t in own]
    counted = named("add", steps, cast(active, INT64))
    body = Graph.closed(
        (*inputs_of[:count], steps, *inputs_of[count:]), (*new, counted)
    )
    operands = [
        inner.with_example_axis(x, many) if t in flagged else x
        for t, x, many in zip(own, node.inputs, inputs, strict=True)
    ]
    start = inner.with_example_axis(frozen(np.asarray(0)), None)
    attrs = {**node.attrs, "carries": count + 1}
    outputs = apply_multi(
        WHILE, *operands[:count], start, *operands[count:], graphs=(asking, body),
        **attrs,
    )  # fmt: skip
    return outputs[: count + 1]


def _moved(outputs: Sequence[Tensor], places: Mapping[Tensor, Tensor]) -> list[Tensor]:
    """Return `outputs` computed from other inputs."""
    new = dict(places)
    for node in topological(outputs, places):
        if any(t in new for t in node.inputs):
            kept = rebuilt(node, tuple(new.get(t, t) for t in node.inputs))
            new.update(zip(node.outputs, kept.outputs, strict=True))
    return [new.get(t, t) for t in outputs]


def _selected(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    shape = (active.shape[0], *(1,) * (new.ndim - 1))
    return named("where", reshaped(active, shape), new, old)


def _switch(node: Node, inputs: Batched, n: Dim, inner: Inner) -> Sequence[Tensor]:
    index, *operands = inputs
    if index is not None and not _is_select(node):
        return _by_rows(node, inputs, n)
    columns = []
    graphs = []
    flags = [x is not None for x in operands]
    for graph in node.graphs:
        order = [t for t, flag in zip(graph.inputs, flags, strict=True) if flag]
        places, found = inner(graph.outputs, order)
        results = [inner.with_example_axis(y, found.get(y)) for y in graph.outputs]
        columns.append(results)
        graphs.append(Graph.closed([places.get(t, t) for t in graph.inputs], results))
    outside = [
        x if many is None else many
        for x, many in zip(node.inputs[1:], operands, strict=True)
    ]
    if index is None:
        return apply_multi(SWITCH, node.inputs[0], *outside, graphs=tuple(graphs))
    chosen = [
        _moved(results, dict(zip(graph.inputs, outside, strict=True)))
        for graph, results in zip(graphs, columns, strict=True)
    ]
    outputs = chosen[-1]
    for number, results in reversed(list(enumerate(chosen[:-1]))):
        mine = named("equal", index, frozen(np.asarray(number)))
        outputs = [_selected(mine, a, b) for a, b in zip(results, outputs, strict=True)]
    return outputs


def _is_select(node: Node) -> bool:
    """Whether all branches may run, and select: elementwise and unable to fail."""
    plain = Elementwise | Extent | Leaf | Position | View
    return all(
        isinstance(inner.op.code, plain) and not can_fail(inner.op.code)
        for graph in node.graphs
        for inner in graph.nodes
    )


def _can_fail(node: Node) -> bool:
    codes = (inner.op.code for graph in node.graphs for inner in graph.nodes)
    return any(can_fail(code) or isinstance(code, Control) for code in codes)


def _by_rows(node: Node, inputs: Batched, n: Dim) -> Sequence[Tensor]:
    """Apply the node to one example after the other."""
    position = placeholder(TensorType((), INT64), "position")
    own = [
        placeholder(TensorType(x.shape, x.dtype), f"row_{k}")
        for k, x in enumerate(node.inputs)
    ]
    inside = rebuilt(node, tuple(own))
    differ = [k for k, many in enumerate(inputs) if many is not None]
    same = [k for k, many in enumerate(inputs) if many is None]
    body = Graph.closed(
        (position, *(own[k] for k in differ), *(own[k] for k in same)), inside.outputs
    )
    rows = [many for many in inputs if many is not None]
    return apply_multi(
        SCAN, *rows, *(node.inputs[k] for k in same), graphs=(body,), length=n,
        reverse=False, carries=0, sequences=len(rows),
    )  # fmt: skip


def _replay(node: Node, inputs: Batched, n: Dim, inner: Inner) -> Sequence[Tensor]:
    """Batch a replay: one example after the other, from the first state of each."""
    ahead = 1 + len(rooms_of(node))
    operands = (node.inputs[0], *node.inputs[ahead:])
    attrs = {**node.attrs, "noted": False}
    alone = apply_multi(REPLAY, *operands, graphs=node.graphs, **attrs)[0].node
    return _by_rows(alone, (inputs[0], *inputs[ahead:]), n)


RULES: dict[str, Callable[[Node, Batched, Dim, Inner], Sequence[Tensor]]] = {
    "scan": _scan,
    "while_loop": _while,
    "switch": _switch,
    "replay": _replay,
}
