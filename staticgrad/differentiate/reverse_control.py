"""Reverse mode through branches and loops.

The derivative of a branch is a branch, so branches not taken cost nothing and have zero
cotangents; the branch taken is recomputed inside of it.

The derivative of a scan is a scan in the other direction, whose carries are the
cotangents of the carries. What it needs of the forward steps is stacked by the forward
scan (residuals.py). Cotangents of captures are summed over the steps; where they are
matrix products, the factors are stacked and multiplied in one product over all steps
(lifting.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from staticgrad.control.body_derivatives import (
    InputNames,
    Inside,
    Step,
    Totals,
    active_carries,
    needed_carries,
    or_zeros,
    pulled_step,
    zeros,
)
from staticgrad.control.records import SCAN, SWITCH
from staticgrad.control.reversal import replayed_again, replayed_scan, replayed_while
from staticgrad.differentiate.lifting import Lifted, lifted, product_factors
from staticgrad.differentiate.residuals import Residuals, residuals
from staticgrad.ir.graph import Graph, apply_multi
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.size import Dim, product
from staticgrad.ir.types import is_float
from staticgrad.ops.movement.views import broadcasted
from staticgrad.ops.named import named

MOST_BYTES = 2**30  # of residuals stacked; beyond, steps are recomputed

Rule = Callable[[Node, Totals, set[Tensor], Inside], Sequence[Tensor | None]]


def control_cotangents(
    node: Node, totals: Totals, active: set[Tensor], inside: Inside
) -> Sequence[Tensor | None]:
    """Return the cotangents of the inputs of a Control node, None where they are zero.

    `totals` are those of its outputs; only inputs in `active` matter.
    """
    return RULES[node.op.name](node, totals, active, inside)


def _of_switch(
    node: Node, totals: Totals, active: set[Tensor], inside: Inside
) -> Sequence[Tensor | None]:
    index, *operands = node.inputs
    inputs = node.graphs[0].inputs
    given = [number for number, total in enumerate(totals) if total is not None]
    names = InputNames(inputs)
    seeds = [names.like(node.outputs[number], "g") for number in given]
    found = []
    for graph in node.graphs:
        pairs = zip(graph.inputs, operands, strict=True)
        wrt = [own for own, x in pairs if x in active and is_float(x.dtype)]
        found.append(inside.pull([graph.outputs[n] for n in given], wrt, seeds))
    places = [
        place
        for place in range(len(operands))
        if any(
            graph.inputs[place] in own
            for graph, own in zip(node.graphs, found, strict=True)
        )
    ]
    if not places:
        return [None] * len(node.inputs)
    graphs = tuple(
        _branch(graph, seeds, [graph.inputs[p] for p in places], own)
        for graph, own in zip(node.graphs, found, strict=True)
    )
    known = [t for t in totals if t is not None]
    outputs = apply_multi(SWITCH, index, *operands, *known, graphs=graphs)
    results: list[Tensor | None] = [None] * len(node.inputs)
    for place, tensor in zip(places, outputs, strict=True):
        results[1 + place] = tensor
    return results


def _branch(
    graph: Graph,
    seeds: Sequence[Tensor],
    wanted: Sequence[Tensor],
    found: Mapping[Tensor, Tensor],
) -> Graph:
    outputs = [found[x] if x in found else zeros(x) for x in wanted]
    return Graph.closed((*graph.inputs, *seeds), outputs)


def _of_scan(
    node: Node, totals: Totals, active: set[Tensor], inside: Inside
) -> Sequence[Tensor | None]:
    snapshots = node.attrs.get("checkpoints", 0)
    if snapshots:
        return replayed_scan(node, totals, active, inside, snapshots)
    pulling = _Pulling(node, totals, active)
    if not pulling.wanted or not pulling.seeds:
        return [None] * len(node.inputs)
    results = pulling.run(inside)
    length = node.attrs["length"]
    if isinstance(length, int) and pulling.stacked_bytes > MOST_BYTES:
        return replayed_scan(node, totals, active, inside, math.isqrt(length))
    return results


class _Pulling:
    """Construction of the derivative of a scan."""

    def __init__(self, node: Node, totals: Totals, active: set[Tensor]) -> None:
        self.node = node
        self.step = step = Step.of(node)
        (self.graph,) = node.graphs
        count = len(step.carries)
        own = self.graph.inputs[1:]
        pairs = zip(own, node.inputs, strict=True)
        starts: set[Tensor] = {inner for inner, x in pairs if x in active}
        moving = active_carries(step.carries, step.new, starts)
        given = {
            out
            for out, total in zip(self.graph.outputs, totals, strict=True)
            if total is not None
        }
        needed = needed_carries(step.carries, step.new, given)
        # the carries that have a cotangent in some step
        self.carried = [
            n
            for n, carry in enumerate(step.carries)
            if carry in moving and (carry in needed or totals[n] is not None)
        ]
        self.stacked = [
            n for n in range(len(step.stacked)) if totals[count + n] is not None
        ]
        self.stacked_bytes = 0
        self.totals = totals
        inputs = (*step.slices, *step.captures)
        self.inputs = [t for t in inputs if t in moving and t in needed]
        self.wanted = [*(step.carries[n] for n in self.carried), *self.inputs]
        names = InputNames(self.graph.inputs)
        self.names = names
        self.carry_seeds = [names.like(step.carries[n], "g") for n in self.carried]
        self.y_seeds = [names.like(step.stacked[n], "gy") for n in self.stacked]
        self.seeds = [*self.carry_seeds, *self.y_seeds]

    def run(self, inside: Inside) -> Sequence[Tensor | None]:
        """Return the cotangents of the node's inputs."""
        step = self.step
        ys = [step.new[n] for n in self.carried] + [
            step.stacked[n] for n in self.stacked
        ]
        found = pulled_step(inside, ys, self.wanted, self.seeds)
        carried = [step.carries[n] for n in self.carried]
        new = [found[c] if c in found else zeros(c) for c in carried]
        along = [x for x in step.slices if x in found]
        captures = [k for k in step.captures if k in found]
        factors = {t for k in captures for t in product_factors(found[k])}
        lifts = {k: lifted(found[k], factors) for k in captures}
        summed = [k for k in captures if lifts[k] is None]
        apart = [lift for lift in lifts.values() if lift is not None]
        backward = _Backward(self, [found[k] for k in summed], apart)
        results = backward.run(new, [found[x] for x in along])
        cotangents: dict[Tensor, Tensor] = dict(
            zip((*carried, *summed, *along), results, strict=True)
        )
        for capture, lift in lifts.items():
            if lift is not None:
                cotangents[capture] = lift.build(backward.stack)
        return [cotangents.get(t) for t in self.graph.inputs[1:]]


class _Backward:
    """Reverse scan, with the stacks that it reads and writes."""

    def __init__(
        self, pulling: _Pulling, sums: Sequence[Tensor], lifts: Sequence[Lifted]
    ) -> None:
        self.pulling = pulling
        self.sums = sums
        self.lifts = lifts
        self.stacks: dict[Tensor, Tensor] = {}

    def stack(self, tensor: Tensor) -> Tensor:
        """Return the stack of all values of the body's `tensor`, along a first axis."""
        return self.stacks[tensor]

    def run(self, new: Sequence[Tensor], along: Sequence[Tensor]) -> list[Tensor]:
        """Return the last carries and sums, then the stacks of `along`."""
        pulling, step = self.pulling, self.pulling.step
        factors = list(dict.fromkeys(t for lift in self.lifts for t in lift.factors))
        made = [t for t in factors if depends(t, pulling.seeds)]
        kept = [t for t in factors if t not in set(made)]
        roots = (*new, *self.sums, *along, *made)
        saved = residuals(step, roots, kept, pulling.seeds)
        self._save(saved)
        names = pulling.names
        totals = [names.like(t, "sum") for t in self.sums]
        added = [
            named("add", total, part)
            for total, part in zip(totals, self.sums, strict=True)
        ]
        body = saved.body(
            carries=(*pulling.carry_seeds, *totals),
            slices=pulling.y_seeds,
            outputs=(*new, *added, *along, *made),
            names=names,
        )
        node, attrs = pulling.node, pulling.node.attrs
        count = len(step.carries)
        starts = [or_zeros(pulling.totals[n], step.carries[n]) for n in pulling.carried]
        starts += [zeros(t) for t in self.sums]
        given = [pulling.totals[count + n] for n in pulling.stacked]
        outputs = apply_multi(
            SCAN,
            *starts,
            *(t for t in given if t is not None),
            *(self.stacks[t] for t in body.sequences),
            *(_outside(node, t) for t in body.captures),
            graphs=(body.graph,),
            length=attrs["length"],
            reverse=not attrs["reverse"],
            carries=len(starts),
            sequences=len(given) + len(body.sequences),
        )
        results = list(outputs[: len(starts) + len(along)])
        self.stacks.update(zip(made, outputs[len(results) :], strict=True))
        return results

    def _save(self, saved: Residuals) -> None:
        """Stack in a forward scan the residuals of the reverse scan."""
        node, step = self.pulling.node, self.pulling.step
        for own in step.slices:
            self.stacks[own] = _outside(node, own)
        length = node.attrs["length"]
        for own in step.captures:
            outer = _outside(node, own)
            self.stacks[own] = broadcasted(outer, (length, *outer.shape))
        tensors = [t for t in saved.stacked if t not in self.stacks]
        self.pulling.stacked_bytes = _bytes(tensors, length)
        if not tensors:
            return
        graph = Graph.closed(
            self.pulling.graph.inputs, (*self.pulling.graph.outputs, *tensors)
        )
        outputs = apply_multi(SCAN, *node.inputs, graphs=(graph,), **node.attrs)
        self.stacks.update(zip(tensors, outputs[-len(tensors) :], strict=True))


def depends(tensor: Tensor, on: Sequence[Tensor]) -> bool:
    """Whether `tensor` depends on one of the inputs `on`."""
    seen: set[Node] = set()
    targets = {t.node for t in on}
    stack = [tensor.node]
    while stack:
        node = stack.pop()
        if node in targets:
            return True
        if node not in seen:
            seen.add(node)
            stack.extend(t.node for t in node.inputs)
    return False


def _bytes(tensors: Sequence[Tensor], length: Dim) -> int:
    """Return the bytes of stacks of `tensors`; 0 where a size is symbolic."""
    sizes = [product((length, *t.shape)) * t.dtype.itemsize for t in tensors]
    return sum(size for size in sizes if isinstance(size, int))


def _outside(node: Node, own: Tensor) -> Tensor:
    """Return the operand of `node` that is bound to the body's input `own`."""
    inputs = node.graphs[0].inputs[1:]
    place = next(n for n, t in enumerate(inputs) if t is own)
    return node.inputs[place]


RULES: dict[str, Rule] = {
    "switch": _of_switch,
    "scan": _of_scan,
    "while_loop": replayed_while,
    "replay": replayed_again,
}
