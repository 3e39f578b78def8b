"""Reverse mode with few states of a loop in memory.

The op "replay" runs the steps of a loop again, from snapshots, and the way back over
each of them: the derivative of a `while_loop`, whose number of steps is known when it
has run, and of a scan that keeps checkpoints. Its own derivative is that of the two
scans that it stands for, which takes a number of steps that is known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from staticgrad.control.bodies import placeholder
from staticgrad.control.records import REPLAY, SCAN
from staticgrad.errors import GraphError
from staticgrad.inside import (
    Inside,
    Names,
    Step,
    Totals,
    active_carries,
    needed_carries,
    pulled_step,
)
from staticgrad.ir.graph import Graph, apply_multi, rewritten, topological
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.size import Dim
from staticgrad.ir.source import at
from staticgrad.ir.types import INT64, TensorType
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import frozen
from staticgrad.ops.named import named
from staticgrad.ops.promote import as_tensor
from staticgrad.ops.views import broadcasted

UNKNOWN = -1
"""The length of a loop whose steps are counted when it runs."""


def _zeros(x: Tensor) -> Tensor:
    return broadcasted(frozen(x.dtype.type(0)), x.shape)


def replayed_scan(
    node: Node, totals: Totals, active: set[Tensor], inside: Inside, snapshots: int
) -> Sequence[Tensor | None]:
    """The cotangents of the inputs of a scan, from `snapshots` carries."""
    step = Step.of(node)
    length = node.attrs["length"]
    steps = cast(as_tensor(length), INT64)
    replaying = _Replaying(step, node.inputs, totals, active)
    return replaying.run(inside, steps, length, snapshots, node.attrs["reverse"])


def replayed_while(
    node: Node, totals: Totals, active: set[Tensor], inside: Inside
) -> Sequence[Tensor | None]:
    """The cotangents of the inputs of a while_loop."""
    graph, count = node.graphs[1], node.attrs["carries"]
    position = Names(graph.inputs).like(frozen(np.asarray(0)), "position")
    step = Step(
        position=position,
        carries=tuple(graph.inputs[:count]),
        slices=(),
        captures=tuple(graph.inputs[count:]),
        new=graph.outputs,
        stacked=(),
    )
    replaying = _Replaying(step, node.inputs, totals[:count], active)
    steps, snapshots = node.outputs[count], node.attrs["checkpoints"]
    return replaying.run(inside, steps, UNKNOWN, snapshots, False)


class _Replaying:
    """The way back over a loop while it is made."""

    def __init__(
        self,
        step: Step,
        outside: Sequence[Tensor],
        totals: Totals,
        active: set[Tensor],
    ) -> None:
        self.step = step
        self.outside = outside
        self.own = (*step.carries, *step.slices, *step.captures)
        self.totals = totals
        count = len(step.carries)
        pairs = zip(self.own, outside, strict=True)
        starts = {inner for inner, x in pairs if x in active}
        moving = active_carries(step.carries, step.new, starts)
        results = (*step.new, *step.stacked)
        given = {
            y for y, total in zip(results, totals, strict=True) if total is not None
        }
        needed = needed_carries(step.carries, step.new, given)
        self.carried = [
            n
            for n, carry in enumerate(step.carries)
            if carry in moving and (carry in needed or totals[n] is not None)
        ]
        self.stacked = [
            n for n in range(len(step.stacked)) if totals[count + n] is not None
        ]
        inputs = (*step.slices, *step.captures)
        self.wanted = [step.carries[n] for n in self.carried]
        self.wanted += [t for t in inputs if t in moving and t in needed]

    def run(
        self, inside: Inside, steps: Tensor, length: Dim, snapshots: int, reverse: bool
    ) -> Sequence[Tensor | None]:
        """The cotangents of what is outside."""
        step, totals, count = self.step, self.totals, len(self.step.carries)
        if not self.wanted or not (self.carried or self.stacked):
            return [None] * len(self.own)
        names = Names((step.position, *self.own))
        seeds = [names.like(step.carries[n], "g") for n in self.carried]
        rows = [names.like(step.stacked[n], "gy") for n in self.stacked]
        ys = [step.new[n] for n in self.carried]
        ys += [step.stacked[n] for n in self.stacked]
        found = pulled_step(inside, ys, self.wanted, [*seeds, *rows])
        carried = [step.carries[n] for n in self.carried]
        captures = [k for k in step.captures if k in found]
        along = [x for x in step.slices if x in found]
        sums = [names.like(k, "sum") for k in captures]
        new = [found[c] if c in found else _zeros(c) for c in carried]
        new += [
            named("add", total, found[k])
            for total, k in zip(sums, captures, strict=True)
        ]
        more = (*step.slices, *rows, *step.captures)
        forward = Graph.closed((step.position, *step.carries, *more), step.new)
        backward = Graph.closed(
            (step.position, *step.carries, *seeds, *sums, *more),
            (*new, *(found[x] for x in along)),
        )
        outer = dict(zip(self.own, self.outside, strict=True))
        firsts = [_or_zeros(totals[n], step.carries[n]) for n in self.carried]
        firsts += [_zeros(k) for k in captures]
        whole = [outer[x] for x in step.slices]
        whole += [t for n in self.stacked if (t := totals[count + n]) is not None]
        if reverse:
            whole = [_flipped(t) for t in whole]
            forward, backward = (_turned(g, length) for g in (forward, backward))
        outputs = apply_multi(
            REPLAY, steps, *(outer[c] for c in step.carries), *firsts, *whole,
            *(outer[k] for k in step.captures), graphs=(forward, backward),
            length=length, carries=count, cotangents=len(firsts), sequences=len(whole),
            snapshots=snapshots,
        )  # fmt: skip
        stacks = outputs[len(firsts) :]
        if reverse:
            stacks = tuple(_flipped(t) for t in stacks)
        named_outputs = dict(
            zip((*carried, *captures, *along), (*outputs[: len(firsts)], *stacks),
                strict=True)
        )  # fmt: skip
        return [named_outputs.get(t) for t in self.own]


def _or_zeros(total: Tensor | None, like: Tensor) -> Tensor:
    return _zeros(like) if total is None else total


def _flipped(x: Tensor) -> Tensor:
    """`x` with its first axis reversed."""
    starts = (x.shape[0] - 1, *(0,) * (x.ndim - 1))
    steps = (-1, *(1,) * (x.ndim - 1))
    return named("slice", x, starts=starts, sizes=x.shape, steps=steps)


def _turned(graph: Graph, length: Dim) -> Graph:
    """A body whose positions count from the end."""
    position, *others = graph.inputs
    new = Names(graph.inputs).like(position, "position")
    last = cast(as_tensor(length - 1), INT64)
    mirrored: dict[Tensor, Tensor] = {position: named("subtract", last, new)}
    nodes = topological(graph.outputs, mirrored)
    moved = rewritten(nodes, lambda _, __: None, mirrored, nested=False)
    return Graph.closed((new, *others), [moved.get(t, t) for t in graph.outputs])


# ---- derivatives of a replay ---------------------------------------------------------


class Alone:
    """A replay as two scans, on inputs of its own.

    What is derived from `outputs` with respect to `inputs` leaves out how the node's
    inputs depend on each other; `outside` puts them in their place.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.inputs = [
            placeholder(TensorType(t.shape, t.dtype), f"operand_{n}")
            for n, t in enumerate(node.inputs)
        ]
        self.outputs = _expanded(node, self.inputs)

    def outside(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """`tensors` computed from the node's own inputs."""
        places: dict[Tensor, Tensor] = dict(
            zip(self.inputs, self._node.inputs, strict=True)
        )
        nodes = topological(tensors, places)
        new = rewritten(nodes, lambda _, __: None, places, nested=False)
        return [new.get(t, t) for t in tensors]


def _expanded(node: Node, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a replay gives, by two scans that keep all states."""
    attrs = node.attrs
    length = attrs["length"]
    if length == UNKNOWN:
        raise GraphError(
            "while_loop requires forward mode for the derivative of its gradient, got "
            "reverse mode; use sg.jvp on the loss first, or a scan of a known length"
            f"{at(node.source)}"
        )
    forward, backward = node.graphs
    count, back, along = attrs["carries"], attrs["cotangents"], attrs["sequences"]
    operands = inputs[1:]
    starts, rest = operands[:count], operands[count:]
    pulled, rest = rest[:back], rest[back:]
    keeping = Graph.closed(
        forward.inputs, (*forward.outputs, *forward.inputs[1 : 1 + count])
    )
    first = apply_multi(
        SCAN, *starts, *rest, graphs=(keeping,), length=length, reverse=False,
        carries=count, sequences=along,
    )  # fmt: skip
    own = backward.inputs
    body = Graph.closed(
        (own[0], *own[1 + count : 1 + count + back], *own[1 : 1 + count],
         *own[1 + count + back :]),
        backward.outputs,
    )  # fmt: skip
    return apply_multi(
        SCAN, *pulled, *first[count:], *rest, graphs=(body,), length=length,
        reverse=True, carries=back, sequences=count + along,
    )  # fmt: skip
