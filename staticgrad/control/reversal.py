"""Reversal of loops with few states in memory (checkpointing by Revolve).

The op "replay" runs the steps of a loop again, from snapshots, and the way back over
each of them: the derivative of a `while_loop`, which keeps snapshots while it runs
forward, and of a scan that keeps checkpoints.

The way back of a replay is one as well. Its steps give cotangents G of the carries c,
``G_i = B(c_i, G_i+1)``, and B is linear in G. So what is the cotangent C_i of G_i goes
forward, ``C_i+1 = C_i dB/dG(c_i)``, beside the carries, and the cotangents of the
carries go back as they always do, beside G:

    L_i = L_i+1 dc_i+1/dc_i + C_i dB/dc(c_i, G_i+1)

That is a replay of the steps (c, C) whose way back is (G, L), and again linear in
these, so derivatives of any order keep few states. Weakness: a B that is not linear,
after a hook that clips gradients or in third derivatives past a guarded division, would
need all G on the way forward; that is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from staticgrad.control.body_derivatives import (
    InputNames,
    Inside,
    Step,
    Totals,
    active_carries,
    dependent,
    needed_carries,
    or_zeros,
    pulled_step,
    zeros,
)
from staticgrad.control.records import REPLAY, SCAN, WHILE
from staticgrad.errors import GraphError
from staticgrad.ir.graph import Graph, apply_multi, rewritten, topological
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.size import Dim
from staticgrad.ir.source import at
from staticgrad.ir.types import INT64
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import frozen
from staticgrad.ops.named import named
from staticgrad.ops.promotion import as_tensor

UNKNOWN = -1
"""The length of a loop whose steps are counted when it runs."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Steps of a loop and of its reversal, on the same inputs.

    `back` are carries of the way back and `pulled` their new values, `stacked` what the
    way back stacks; without a way back, what the steps do. `outer` maps inputs to outer
    tensors, and `steps` is their number.
    """

    position: Tensor
    carries: tuple[Tensor, ...]
    new: tuple[Tensor, ...]
    back: tuple[Tensor, ...]
    pulled: tuple[Tensor, ...]
    slices: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]
    stacked: tuple[Tensor, ...]
    outer: Mapping[Tensor, Tensor]
    steps: Tensor
    length: Dim
    snapshots: int

    @staticmethod
    def of_step(
        step: Step, outside: Sequence[Tensor], steps: Tensor, length: Dim, few: int
    ) -> Replayed:
        """Make a loop without a reversal yet."""
        own = (*step.carries, *step.slices, *step.captures)
        return Replayed(
            step.position, step.carries, step.new, (), (), step.slices, step.captures,
            step.stacked, dict(zip(own, outside, strict=True)), steps, length, few,
        )  # fmt: skip

    @staticmethod
    def of(node: Node) -> Replayed:
        """Take a replay apart."""
        attrs = node.attrs
        forward, backward = node.graphs
        count, pulls = attrs["carries"], attrs["cotangents"]
        along = 1 + count + pulls
        end = along + attrs["sequences"]
        own = backward.inputs
        mine = (*own[: 1 + count], *own[along:])
        new = moved(forward.outputs, dict(zip(forward.inputs, mine, strict=True)))
        outside = node.inputs[1 + len(rooms_of(node)) :]
        return Replayed(
            own[0], own[1 : 1 + count], tuple(new), own[1 + count : along],
            backward.outputs[:pulls], own[along:end], own[end:],
            backward.outputs[pulls:], dict(zip(own[1:], outside, strict=True)),
            node.inputs[0], attrs["length"], attrs["snapshots"],
        )  # fmt: skip


def rooms_of(node: Node) -> tuple[Tensor, ...]:
    """Return the snapshots that a replay reads: which are there, and their stacks."""
    noted = node.attrs.get("noted", False)
    return node.inputs[1 : 2 + node.attrs["carries"]] if noted else ()


def moved(tensors: Sequence[Tensor], places: Mapping[Tensor, Tensor]) -> list[Tensor]:
    """Return `tensors` computed from other inputs."""
    nodes = topological(tensors, places)
    new = rewritten(nodes, lambda _, __: None, places, nested=False)
    return [new.get(t, t) for t in tensors]


def replayed_scan(
    node: Node, totals: Totals, active: set[Tensor], inside: Inside, snapshots: int
) -> Sequence[Tensor | None]:
    """Return the cotangents of the inputs of a scan, from `snapshots` carries."""
    step = Step.of(node)
    length, reverse = node.attrs["length"], node.attrs["reverse"]
    outside, rows = list(node.inputs), list(totals[len(step.carries) :])
    first, end = len(step.carries), len(step.carries) + len(step.slices)
    if reverse:
        step = _turned(step, node.graphs[0], length)
        outside[first:end] = map(_flipped, outside[first:end])
        rows = [None if row is None else _flipped(row) for row in rows]
    steps = cast(as_tensor(length), INT64)
    loop = Replayed.of_step(step, outside, steps, length, snapshots)
    starts = _active(loop, node.inputs, active)
    found = _Reversing(loop, starts, inside, node).run(totals[:first], (), rows)
    results = [found.get(t) for t in loop.outer]
    if reverse:
        results[first:end] = [
            None if x is None else _flipped(x) for x in results[first:end]
        ]
    return results


def replayed_while(
    node: Node, totals: Totals, active: set[Tensor], inside: Inside
) -> Sequence[Tensor | None]:
    """Return the cotangents of the inputs of a while_loop."""
    graph, count = node.graphs[1], node.attrs["carries"]
    position = InputNames(graph.inputs).like(frozen(np.asarray(0)), "position")
    step = Step(
        position=position,
        carries=graph.inputs[:count],
        slices=(),
        captures=graph.inputs[count:],
        new=graph.outputs,
        stacked=(),
    )
    few = node.attrs["checkpoints"]
    loop = Replayed.of_step(step, node.inputs, node.outputs[count], UNKNOWN, few)
    starts = _active(loop, node.inputs, active)
    found = _Reversing(loop, starts, inside, node).run(totals[:count], (), ())
    return [found.get(t) for t in graph.inputs]


def replayed_again(
    node: Node, totals: Totals, active: set[Tensor], inside: Inside
) -> Sequence[Tensor | None]:
    """Return the cotangents of the inputs of a replay."""
    loop, count = Replayed.of(node), node.attrs["cotangents"]
    ahead = 1 + len(rooms_of(node))
    starts = _active(loop, node.inputs[ahead:], active)
    ends = [None] * len(loop.carries)
    reversing = _Reversing(loop, starts, inside, node)
    found = reversing.run(ends, totals[:count], totals[count:])
    return [*[None] * ahead, *(found.get(t) for t in loop.outer)]


def _active(
    loop: Replayed, outside: Sequence[Tensor], active: set[Tensor]
) -> set[Tensor]:
    return {own for own, x in zip(loop.outer, outside, strict=True) if x in active}


class _Reversing:
    """Construction of the reversal of a loop.

    Only inputs in `starts` matter. `node` is the node to differentiate.
    """

    def __init__(
        self,
        loop: Replayed,
        starts: set[Tensor],
        inside: Inside,
        node: Node,
    ) -> None:
        self.loop = loop
        self.starts = starts
        self.inside = inside
        self.node = node
        self.names = InputNames((loop.position, *loop.outer))

    def _find_turned(self, totals: Totals, rows: Totals) -> None:
        """Find the carries of the forward loop: cotangents of the reverse carries."""
        loop = self.loop
        self.rows = {
            y: row for y, row in zip(loop.stacked, rows, strict=True) if row is not None
        }
        ends = dict(zip(loop.back, totals, strict=True))
        given = {p for p, g in zip(loop.pulled, totals, strict=True) if g is not None}
        needed = needed_carries(loop.back, loop.pulled, given | set(self.rows))
        turned = [b for b in loop.back if b in needed or ends[b] is not None]
        place = dict(zip(loop.back, loop.pulled, strict=True))
        self.turned = {b: self.names.like(b, "t") for b in turned}
        self.firsts = {self.turned[b]: or_zeros(ends[b], b) for b in turned}
        self.row_seeds = {y: self.names.like(y, "gy") for y in self.rows}
        self.ys = [*(place[b] for b in turned), *self.rows]
        self.seeds = [*self.turned.values(), *self.row_seeds.values()]
        found = self.inside.pull(self.ys, turned, self.seeds) if turned else {}
        self.forward = {
            seed: found[b] if b in found else zeros(b)
            for b, seed in self.turned.items()
        }
        self.fixed = [seed for seed, new in self.forward.items() if new is seed]
        self.going = [seed for seed in self.forward if seed not in set(self.fixed)]

    def _require_linear(self) -> None:
        """Raise GraphError unless the step is linear in the reverse carries."""
        back, forward = set(self.loop.back), set(self.forward.values())
        if dependent(forward, back) & forward:
            raise GraphError(
                "the gradient of a loop with checkpoints requires steps whose gradient "
                "is linear in what comes back, to be differentiated in reverse mode "
                "again; got an on_gradient function, or a third derivative, where it "
                "is not; use sg.jvp on the gradient, or a scan without checkpoints"
                f"{at(self.node.source)}"
            )
        nothing = {b: zeros(b) for b in self.loop.back}
        new = moved(list(self.forward.values()), nothing)
        self.forward = dict(zip(self.forward, new, strict=True))

    def run(self, ends: Totals, totals: Totals, rows: Totals) -> dict[Tensor, Tensor]:
        """Return the cotangents of the outer tensors bound to the loop's inputs.

        Given are those of the last carries, of the last carries of the way back, and of
        what is stacked.
        """
        loop = self.loop
        self._find_turned(totals, rows)
        self._require_linear()
        pairs = list(zip(loop.carries, loop.new, ends, strict=True))
        moving = active_carries(loop.carries, loop.new, self.starts)
        given = {new for _, new, total in pairs if total is not None} | set(self.ys)
        needed = needed_carries(loop.carries, loop.new, given)
        carried = [
            (c, new, total)
            for c, new, total in pairs
            if c in moving and (c in needed or total is not None)
        ]
        inputs = (*loop.slices, *loop.captures)
        wanted = [c for c, _, _ in carried]
        wanted += [t for t in inputs if t in moving and t in needed]
        seeds = {c: self.names.like(c, "g") for c, _, _ in carried}
        ys = [*(new for _, new, _ in carried), *self.ys]
        found: Mapping[Tensor, Tensor] = {}
        if wanted and ys:
            found = pulled_step(self.inside, ys, wanted, [*seeds.values(), *self.seeds])
        results: dict[Tensor, Tensor] = {}
        if found or carried:
            starts = {seeds[c]: or_zeros(total, c) for c, _, total in carried}
            results = self._replay(found, seeds, starts)
        asked = {b: seed for b, seed in self.turned.items() if b in self.starts}
        moving_on = not set(self.going).isdisjoint(asked.values())
        last = self.firsts | (self._forward() if moving_on else {})
        return results | {b: last[seed] for b, seed in asked.items()}

    def _replay(
        self,
        found: Mapping[Tensor, Tensor],
        seeds: Mapping[Tensor, Tensor],
        starts: Mapping[Tensor, Tensor],
    ) -> dict[Tensor, Tensor]:
        loop = self.loop
        captures = [k for k in loop.captures if k in found]
        along = [x for x in loop.slices if x in found]
        sums = {k: self.names.like(k, "sum") for k in captures}
        new = [found[c] if c in found else zeros(c) for c in seeds]
        new += [named("add", total, found[k]) for k, total in sums.items()]
        stacks = [found[x] for x in along]
        back = _closure(loop.back, loop.pulled, [*new, *stacks])
        pulls = dict(zip(loop.back, loop.pulled, strict=True))
        states = (*loop.carries, *self.going)
        steps = (*loop.new, *(self.forward[seed] for seed in self.going))
        after = dict(zip(states, steps, strict=True))
        self.held = _closure(states, steps, [*new, *stacks, *(pulls[b] for b in back)])
        more = self._more()
        inputs = (loop.position, *self.held, *more)
        forward = Graph.closed(inputs, [after[c] for c in self.held])
        firsts = {b: loop.outer[b] for b in back}
        firsts |= starts
        firsts |= {total: zeros(k) for k, total in sums.items()}
        backward = Graph.closed(
            (loop.position, *self.held, *firsts, *more),
            (*(pulls[b] for b in back), *new, *stacks),
        )
        rooms = self._rooms()
        outside = {**loop.outer, **self.firsts}
        outputs = apply_multi(
            REPLAY,
            rooms[0] if rooms else loop.steps,
            *rooms[1:],
            *(outside[c] for c in self.held),
            *firsts.values(),
            *self._whole(),
            graphs=(forward, backward),
            length=loop.length,
            carries=len(self.held),
            cotangents=len(firsts),
            sequences=len(loop.slices) + len(self.rows),
            snapshots=loop.snapshots,
            **({"noted": True} if rooms else {}),
        )
        names = (*back, *seeds, *captures, *along)
        results = dict(zip(names, outputs, strict=True))
        return {t: results[t] for t in (*seeds, *captures, *along)}

    def _more(self) -> tuple[Tensor, ...]:
        """Return inputs of the bodies after their carries."""
        slices = (*self.loop.slices, *self.row_seeds.values())
        return (*slices, *self.loop.captures, *self.fixed)

    def _whole(self) -> list[Tensor]:
        """Return the outer tensors bound to the inputs of the body."""
        loop = self.loop
        outside = [loop.outer[x] for x in loop.slices]
        outside += self.rows.values()
        outside += [loop.outer[k] for k in loop.captures]
        return [*outside, *(self.firsts[seed] for seed in self.fixed)]

    def _rooms(self) -> tuple[Tensor, ...]:
        """Return the number of steps and the loop's snapshots, if it keeps them."""
        if self.node.op is not WHILE:
            return ()
        places = self.node.graphs[1].inputs
        kept = tuple(n for n, c in enumerate(places) if c in set(self.held))
        if not kept:
            return ()
        attrs = {**self.node.attrs, "kept": kept}
        outputs = apply_multi(
            WHILE, *self.node.inputs, graphs=self.node.graphs, **attrs
        )
        return outputs[self.node.attrs["carries"] :]

    def _forward(self) -> dict[Tensor, Tensor]:
        """Return the last values of the forward carries."""
        loop = self.loop
        states = (*loop.carries, *self.going)
        steps = (*loop.new, *(self.forward[seed] for seed in self.going))
        after = dict(zip(states, steps, strict=True))
        own = _closure(states, steps, self.going)
        outside = {**loop.outer, **self.firsts}
        starts = [outside[c] for c in own]
        news = [after[c] for c in own]
        if loop.length != UNKNOWN:
            body = Graph.closed((loop.position, *own, *self._more()), news)
            outputs = apply_multi(
                SCAN, *starts, *self._whole(), graphs=(body,), length=loop.length,
                reverse=False, carries=len(own),
                sequences=len(loop.slices) + len(self.rows),
            )  # fmt: skip
            return dict(zip(own, outputs, strict=False))
        count = self.names.like(loop.steps, "steps")
        inputs = (loop.position, *own, *self._more(), count)
        going = named("less", loop.position, count)
        later = named("add", loop.position, frozen(np.asarray(1)))
        outputs = apply_multi(
            WHILE, frozen(np.asarray(0)), *starts, *self._whole(), loop.steps,
            graphs=(Graph.closed(inputs, (going,)),
                    Graph.closed(inputs, (later, *news))),
            carries=1 + len(own), limit=UNKNOWN, checkpoints=loop.snapshots,
        )  # fmt: skip
        return dict(zip(own, outputs[1:], strict=False))


def _closure(
    carries: Sequence[Tensor], new: Sequence[Tensor], outputs: Sequence[Tensor]
) -> list[Tensor]:
    """Return the carries on which `outputs` depend, in this or a later step."""
    after = dict(zip(carries, new, strict=True))
    found: set[Tensor] = set()
    roots = list(outputs)
    while True:
        reached = {t for node in topological(roots) for t in node.outputs}
        more = [c for c in carries if c in reached and c not in found]
        if not more:
            return [c for c in carries if c in found]
        found.update(more)
        roots += [after[c] for c in more]


def _flipped(x: Tensor) -> Tensor:
    """Return `x` with its first axis reversed."""
    starts = (x.shape[0] - 1, *(0,) * (x.ndim - 1))
    steps = (-1, *(1,) * (x.ndim - 1))
    return named("slice", x, starts=starts, sizes=x.shape, steps=steps)


def _turned(step: Step, graph: Graph, length: Dim) -> Step:
    """Return a step whose positions count from the end."""
    new = InputNames(graph.inputs).like(step.position, "position")
    last = cast(as_tensor(length - 1), INT64)
    outputs = moved(graph.outputs, {step.position: named("subtract", last, new)})
    count = len(step.carries)
    return Step(
        new, step.carries, step.slices, step.captures,
        tuple(outputs[:count]), tuple(outputs[count:]),
    )  # fmt: skip
