"""Forward mode through branches and loops: bodies with tangents beside values.

The node that is made computes the results of the one that it is the derivative of as
well, from the same tensors of the same body, so that the compiler runs one of them
(merge_loops.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from staticgrad.control.body_derivatives import (
    InputNames,
    Inside,
    Step,
    Totals,
    active_carries,
    or_zeros,
)
from staticgrad.control.records import REPLAY, SCAN, SWITCH, WHILE
from staticgrad.control.reversal import Replayed, rooms_of
from staticgrad.ir.graph import Graph, apply_multi
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.types import is_float

Rule = Callable[[Node, Totals, Inside], Sequence[Tensor | None]]


def control_tangents(
    node: Node, tangents: Totals, inside: Inside
) -> Sequence[Tensor | None]:
    """Return the tangents of the outputs of a Control node, None where they are zero.

    `tangents` are those of its inputs.
    """
    return RULES[node.op.name](node, tangents, inside)


def _floats(tensors: Sequence[Tensor]) -> list[int]:
    return [n for n, t in enumerate(tensors) if is_float(t.dtype)]


def _known(tangents: Totals) -> list[Tensor]:
    return [t for t in tangents if t is not None]


def _spread(
    count: int, places: Sequence[int], tensors: Sequence[Tensor]
) -> list[Tensor | None]:
    results: list[Tensor | None] = [None] * count
    for place, tensor in zip(places, tensors, strict=True):
        results[place] = tensor
    return results


def _of_switch(node: Node, tangents: Totals, inside: Inside) -> Sequence[Tensor | None]:
    index, *operands = node.inputs
    moving = [n for n, t in enumerate(tangents[1:]) if t is not None]
    places = _floats(node.outputs)
    inputs = node.graphs[0].inputs
    names = InputNames(inputs)
    seeds = [names.like(inputs[n], "t") for n in moving]
    graphs = []
    for graph in node.graphs:
        own = [graph.inputs[n] for n in moving]
        found = inside.push([graph.outputs[n] for n in places], own, seeds)
        graphs.append(Graph.closed((*graph.inputs, *seeds), (*graph.outputs, *found)))
    outputs = apply_multi(
        SWITCH, index, *operands, *_known(tangents), graphs=tuple(graphs)
    )
    return _spread(len(node.outputs), places, outputs[len(node.outputs) :])


def _of_scan(node: Node, tangents: Totals, inside: Inside) -> Sequence[Tensor | None]:
    (graph,) = node.graphs
    step = Step.of(node)
    count, along = len(step.carries), len(step.slices)
    names = InputNames(graph.inputs)
    given: dict[Tensor, Tensor | None] = dict(
        zip(graph.inputs[1:], tangents, strict=True)
    )
    outer: dict[Tensor, Tensor] = dict(zip(graph.inputs[1:], node.inputs, strict=True))
    starts = {own for own, t in given.items() if t is not None}
    moving = active_carries(step.carries, step.new, starts)
    carried = [n for n, c in enumerate(step.carries) if c in moving]
    places = _floats(step.stacked)
    wrt: list[Tensor] = [t for t in graph.inputs[1:] if t in moving]
    seeds = {t: names.like(t, "t") for t in wrt}
    ys = [step.new[n] for n in carried] + [step.stacked[n] for n in places]
    found = inside.push(ys, wrt, [seeds[t] for t in wrt])

    def with_seeds(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [*tensors, *(seeds[t] for t in tensors if t in seeds)]

    def with_tangents(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [
            *(outer[t] for t in tensors),
            *(or_zeros(given[t], outer[t]) for t in tensors if t in seeds),
        ]

    body = Graph.closed(
        (
            step.position,
            *with_seeds(step.carries),
            *with_seeds(step.slices),
            *with_seeds(step.captures),
        ),
        (*step.new, *found[: len(carried)], *step.stacked, *found[len(carried) :]),
    )
    outputs = apply_multi(
        SCAN,
        *with_tangents(step.carries),
        *with_tangents(step.slices),
        *with_tangents(step.captures),
        graphs=(body,),
        length=node.attrs["length"],
        reverse=node.attrs["reverse"],
        carries=count + len(carried),
        sequences=along + sum(t in seeds for t in step.slices),
    )
    last = outputs[count : count + len(carried)]
    stacked = outputs[count + len(carried) + len(step.stacked) :]
    places = [count + n for n in places]
    return _spread(len(node.outputs), [*carried, *places], [*last, *stacked])


def _of_while(node: Node, tangents: Totals, inside: Inside) -> Sequence[Tensor | None]:
    condition, graph = node.graphs
    count = node.attrs["carries"]
    carries, captures = graph.inputs[:count], graph.inputs[count:]
    names = InputNames(graph.inputs)
    given: dict[Tensor, Tensor | None] = dict(zip(graph.inputs, tangents, strict=True))
    outer: dict[Tensor, Tensor] = dict(zip(graph.inputs, node.inputs, strict=True))
    starts = {own for own, t in given.items() if t is not None}
    moving = active_carries(carries, graph.outputs, starts)
    carried = [n for n, c in enumerate(carries) if c in moving]
    wrt = [t for t in graph.inputs if t in moving]
    seeds = {t: names.like(t, "t") for t in wrt}
    ys = [graph.outputs[n] for n in carried]
    found = inside.push(ys, wrt, [seeds[t] for t in wrt])
    changing = [carries[n] for n in carried]
    fixed = [k for k in captures if k in seeds]
    moved, held = [seeds[c] for c in changing], [seeds[k] for k in fixed]
    body = Graph.closed((*carries, *moved, *captures, *held), (*graph.outputs, *found))
    own = condition.inputs  # not the body's
    asked = Graph.closed((*own[:count], *moved, *own[count:], *held), condition.outputs)
    kept = node.attrs.get("kept", ())
    more = [carried.index(n) for n in kept if n in carried]
    outputs = apply_multi(
        WHILE,
        *(outer[c] for c in carries),
        *(or_zeros(given[c], outer[c]) for c in changing),
        *(outer[k] for k in captures),
        *(or_zeros(given[k], outer[k]) for k in fixed),
        graphs=(asked, body),
        carries=count + len(changing),
        limit=node.attrs["limit"],
        checkpoints=node.attrs["checkpoints"],
        **({"kept": (*kept, *(count + n for n in more))} if kept else {}),
    )
    last = outputs[count : count + len(changing)]
    slopes = outputs[len(outputs) - len(more) :]
    rooms = [count + 2 + k for k, n in enumerate(kept) if n in carried]
    return _spread(len(node.outputs), [*carried, *rooms], [*last, *slopes])


def _of_replay(node: Node, tangents: Totals, inside: Inside) -> Sequence[Tensor | None]:
    """Push tangents through a replay: carries in both directions get tangents."""
    loop, rooms = Replayed.of(node), rooms_of(node)
    given = dict(zip(loop.outer, tangents[1 + len(rooms) :], strict=True))
    starts = {own for own, t in given.items() if t is not None}
    moving = active_carries(loop.carries, loop.new, starts)
    moving = active_carries(loop.back, loop.pulled, moving)
    names = InputNames((loop.position, *loop.outer))
    seeds = {t: names.like(t, "t") for t in loop.outer if t in moving}
    carried = [n for n, c in enumerate(loop.carries) if c in seeds]
    pulls = [n for n, b in enumerate(loop.back) if b in seeds]
    places = _floats(loop.stacked)
    wrt, ts = list(seeds), list(seeds.values())
    new = inside.push([loop.new[n] for n in carried], wrt, ts)
    ys = [loop.pulled[n] for n in pulls] + [loop.stacked[n] for n in places]
    found = inside.push(ys, wrt, ts)

    def both(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [*tensors, *(seeds[t] for t in tensors if t in seeds)]

    def both_outside(tensors: Sequence[Tensor]) -> list[Tensor]:
        own = [t for t in tensors if t in seeds]
        return [
            *(loop.outer[t] for t in tensors),
            *(or_zeros(given[t], loop.outer[t]) for t in own),
        ]

    held, back = both(loop.carries), both(loop.back)
    more = (*both(loop.slices), *both(loop.captures))
    inputs = (loop.position, *held)
    slopes = [tangents[2 + n] for n in carried] if rooms else []
    noted = bool(rooms) and all(t is not None for t in slopes)
    outputs = apply_multi(
        REPLAY,
        loop.steps,
        *((*rooms, *_known(slopes)) if noted else ()),
        *both_outside(loop.carries),
        *both_outside(loop.back),
        *both_outside(loop.slices),
        *both_outside(loop.captures),
        graphs=(
            Graph.closed((*inputs, *more), (*loop.new, *new)),
            Graph.closed(
                (*inputs, *back, *more),
                (*loop.pulled, *found[: len(pulls)],
                 *loop.stacked, *found[len(pulls) :]),
            ),
        ),
        length=loop.length,
        carries=len(held),
        cotangents=len(back),
        sequences=len(both(loop.slices)),
        snapshots=loop.snapshots,
        noted=noted,
    )  # fmt: skip
    count = len(loop.back)
    last = outputs[count : len(back)]
    stacked = outputs[len(back) + len(loop.stacked) :]
    spread = [*pulls, *(count + n for n in places)]
    return _spread(len(node.outputs), spread, [*last, *stacked])


RULES: dict[str, Rule] = {
    "replay": _of_replay,
    "switch": _of_switch,
    "scan": _of_scan,
    "while_loop": _of_while,
}
