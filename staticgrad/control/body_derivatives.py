"""Derivatives of bodies and their parts, as the rules of control flow use them.

The rules for a body are those that use these rules, so they are handed over (Inside)
instead of imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from staticgrad.control.bodies import placeholder
from staticgrad.ir.graph import Graph, topological
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import OPS, Control
from staticgrad.ir.types import is_float
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.views import broadcasted
from staticgrad.ops.named import named

Totals: TypeAlias = Sequence[Tensor | None]

GUARDED = ("guarded_divide", "guarded_multiply")
"""Ops in which a zero wins over an infinity."""


class Pull(Protocol):
    """Function that returns the cotangents of `wrt` for `seeds` of `ys`."""

    def __call__(
        self, ys: Sequence[Tensor], wrt: Sequence[Tensor], seeds: Sequence[Tensor]
    ) -> Mapping[Tensor, Tensor]:
        """Return the cotangents of those of `wrt` that `ys` depend on."""


class Push(Protocol):
    """Function that returns the tangents of `ys` for `seeds` of `wrt`."""

    def __call__(
        self, ys: Sequence[Tensor], wrt: Sequence[Tensor], seeds: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Return the tangents of `ys`."""


@dataclass(frozen=True, slots=True)
class Inside:
    """Rules that differentiate bodies."""

    pull: Pull
    push: Push


@dataclass(frozen=True, slots=True)
class Step:
    """Body of a loop, with the roles of its inputs and outputs."""

    position: Tensor
    carries: tuple[Tensor, ...]
    slices: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]
    new: tuple[Tensor, ...]
    stacked: tuple[Tensor, ...]

    @staticmethod
    def of(node: Node) -> Step:
        """Return the body of a scan."""
        (graph,) = node.graphs
        carries, along = node.attrs["carries"], node.attrs["sequences"]
        position, *rest = graph.inputs
        end = carries + along
        return Step(
            position=position,
            carries=tuple(rest[:carries]),
            slices=tuple(rest[carries:end]),
            captures=tuple(rest[end:]),
            new=graph.outputs[:carries],
            stacked=graph.outputs[carries:],
        )


class InputNames:
    """Names for new inputs of a body, distinct from those that it has."""

    def __init__(self, taken: Iterable[Tensor]) -> None:
        self._taken = {t.node.attrs["name"] for t in taken}

    def like(self, tensor: Tensor, what: str) -> Tensor:
        """Return a new input of the type of `tensor`."""
        number = 0
        while f"{what}_{number}" in self._taken:
            number += 1
        self._taken.add(f"{what}_{number}")
        return placeholder(tensor.type, f"{what}_{number}")


def zeros(x: Tensor) -> Tensor:
    """Return zeros of the type of `x`."""
    return broadcasted(frozen(x.dtype.type(0)), x.shape)


def or_zeros(total: Tensor | None, like: Tensor) -> Tensor:
    """Return `total`, or zeros if it is None."""
    return zeros(like) if total is None else total


def active_tensors(nodes: Sequence[Node], wanted: set[Tensor]) -> set[Tensor]:
    """Return the tensors whose derivative by one of `wanted` may not be zero."""
    active: set[Tensor] = set()
    for node in nodes:
        asked = node.op.reached or any(t in active for t in node.inputs)
        passes = node.op.vjp is not None and asked
        for tensor in node.outputs:
            if tensor in wanted or (passes and is_float(tensor.dtype)):
                active.add(tensor)
    return active


def active_carries(
    carries: Sequence[Tensor], new: Sequence[Tensor], inputs: set[Tensor]
) -> set[Tensor]:
    """Return `inputs` and the carries that depend on them after any number of steps."""
    nodes = topological(new)
    found = {t for t in inputs if is_float(t.dtype)}
    while True:
        active = active_tensors(nodes, found) | found
        pairs = zip(carries, new, strict=True)
        more = {c for c, n in pairs if n in active and is_float(c.dtype)} - found
        if not more:
            return found
        found |= more


def needed_tensors(outputs: Iterable[Tensor]) -> set[Tensor]:
    """Return the tensors through which a derivative of `outputs` may pass."""
    needed = {t for t in outputs if is_float(t.dtype)}
    for node in reversed(topological(needed)):
        passes = any(t in needed for t in node.outputs)
        if passes and node.op.vjp is not None:
            needed.update(t for t in node.inputs if is_float(t.dtype))
    return needed


def needed_carries(
    carries: Sequence[Tensor], new: Sequence[Tensor], outputs: set[Tensor]
) -> set[Tensor]:
    """Return the tensors a derivative of `outputs` may pass in any step."""
    seeds = set(outputs)
    while True:
        needed = needed_tensors(seeds)
        more = {n for c, n in zip(carries, new, strict=True) if c in needed} - seeds
        if not more:
            return needed
        seeds |= more


def _is_users(node: Node) -> bool:
    """Whether the node's derivative is a user's function."""
    own = OPS.get(node.op.name) is not node.op or any(
        map(callable, node.attrs.values())
    )
    return own and bool(node.inputs)


def pulled_step(
    inside: Inside,
    ys: Sequence[Tensor],
    wrt: Sequence[Tensor],
    seeds: Sequence[Tensor],
) -> Mapping[Tensor, Tensor]:
    """Return ``inside.pull`` of one step of a loop.

    With a single scalar cotangent g it is ``g * slope``, since slopes need not wait for
    the step before; unless a slope may be infinite where g is 0, which would be NaN, or
    a function of the user's decides what becomes of g.
    """
    scalar = len(seeds) == 1 and seeds[0].shape == ()
    if not scalar or any(map(_is_users, topological(ys, set(wrt)))):
        return inside.pull(ys, wrt, seeds)
    (seed,) = seeds
    slopes = inside.pull(ys, wrt, [frozen(seed.dtype.type(1))])
    nodes = topological(slopes.values(), set(wrt))
    steep = any(node.op.name in GUARDED or node.graphs for node in nodes)
    if steep or any(t.dtype != seed.dtype for t in slopes):
        return inside.pull(ys, wrt, seeds)
    return {t: named("multiply", seed, slope) for t, slope in slopes.items()}


def dependent(outputs: Iterable[Tensor], on: set[Tensor]) -> set[Tensor]:
    """Return `on` and the tensors between them and `outputs` that depend on them.

    Results of branches and loops depend on what their bodies say.
    """
    found = set(on)
    for node in topological(list(outputs)):
        if isinstance(node.op.code, Control):
            found.update(_dependent_results(node, found))
        elif any(t in found for t in node.inputs):
            found.update(node.outputs)
    return found


def _dependent_results(node: Node, found: set[Tensor]) -> Iterable[Tensor]:
    code = node.op.code
    form = code.form if isinstance(code, Control) else ""
    given = [t in found for t in node.inputs]
    if form == "loop":
        return _of_loop(node, [False, *given], 1)
    if form == "repeat":
        return _of_loop(node, given, 0)
    if form == "replay":
        return _of_replay(node, given)
    if form == "branch" and not given[0]:
        columns = [_hits(graph, given[1:]) for graph in node.graphs]
        rows = zip(node.outputs, zip(*columns, strict=True), strict=True)
        return [t for t, hits in rows if any(hits)]
    return node.outputs if any(given) else ()


def _hits(graph: Graph, flags: Sequence[bool]) -> list[bool]:
    """Return, for each output, whether it depends on an input that has a flag."""
    pairs = zip(graph.inputs, flags, strict=True)
    known = dependent(graph.outputs, {t for t, flag in pairs if flag})
    return [t in known for t in graph.outputs]


def _of_replay(node: Node, given: list[bool]) -> Iterable[Tensor]:
    """Propagate flags through a replay: carries forward, then cotangents in reverse."""
    forward, backward = node.graphs
    before = 1 + len(node.inputs) - len(backward.inputs)  # steps, snapshots
    if any(given[:before]):
        return node.outputs
    first = before + node.attrs["carries"]
    last = first + node.attrs["cotangents"]
    carried, more = given[before:first], given[last:]
    carried = _settled(forward, carried, more)
    turned = _settled(backward, given[first:last], more, carried)
    hits = _hits(backward, [False, *carried, *turned, *more])
    every = (*turned, *hits[len(turned) :])
    return [t for t, hit in zip(node.outputs, every, strict=True) if hit]


def _settled(
    graph: Graph, flags: list[bool], more: list[bool], known: Sequence[bool] = ()
) -> list[bool]:
    """Return for each carry whether it depends on flags in this or a later step."""
    while True:
        hits = _hits(graph, [False, *known, *flags, *more])
        found = [a or b for a, b in zip(flags, hits, strict=False)]
        if found == flags:
            return found
        flags = found


def _of_loop(node: Node, flags: list[bool], first: int) -> Iterable[Tensor]:
    """Yield the outputs of a loop that depend on flagged inputs of its body."""
    *conditions, body = node.graphs
    count = node.attrs["carries"]
    while True:
        hits = _hits(body, flags)
        carried = [new or flags[first + n] for n, new in enumerate(hits[:count])]
        if carried == flags[first : first + count]:
            break
        flags[first : first + count] = carried
    if any(hit for asked in conditions for hit in _hits(asked, flags)):
        return node.outputs
    rooms = [carried[n] for n in node.attrs.get("kept", ())]
    ends = [False] * (len(node.outputs) - len(hits) - len(rooms))
    every = (*carried, *hits[count:], *ends, *rooms)
    return [t for t, hit in zip(node.outputs, every, strict=True) if hit]
