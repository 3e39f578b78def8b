"""Taps inside bodies of branches and loops, called in every step.

A tap inside is threaded through the nodes around it: its state (the number of calls, or
a ring buffer) becomes one more carry of a loop, or passes through the branch taken;
``step(kept, value)`` returns the state after a value.

A body that its function traced is put together anew where it captures something; the
Graph of a body knows what took the place of what (bodies.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from staticgrad.control.bodies import Tracing
from staticgrad.control.body_derivatives import InputNames
from staticgrad.ir.graph import Graph, apply_multi, rewritten, topological
from staticgrad.ir.node import Constant, Node, Tensor
from staticgrad.ir.op import Control, Leaf

Thread = Callable[[Sequence[Tensor], Tensor], Sequence[Tensor]]
Path = tuple[tuple[Node, int], ...]
"""Control nodes with the number of a body in each, from the outermost inwards."""


@dataclass(frozen=True, slots=True)
class BodyPlace:
    """Tensor of a body, and the path to the body."""

    path: Path
    tensor: Tensor


def place_of(graph: Graph, tensor: Tensor) -> BodyPlace | None:
    """Return the place in the bodies of `graph` that computes `tensor`.

    That is the body whose function made it, or one that has all that it is made of.
    """
    bodies = list(_bodies(graph))
    for path, body in bodies:
        found = _twin(body, tensor)
        if found in _own(body):
            return BodyPlace(path, found)
    for path, body in bodies:
        made = _made(body, tensor)
        if made is not None:
            return BodyPlace(path, made)
    return None


def _twin(body: Graph, tensor: Tensor) -> Tensor:
    """Return the traced tensor that replaced `tensor` in `body`."""
    return body.record(Tracing).made.get((tensor.node.number, tensor.index), tensor)


def _own(body: Graph) -> set[Tensor]:
    return {t for n in body.nodes for t in n.outputs} | set(body.inputs)


def _made(body: Graph, tensor: Tensor) -> Tensor | None:
    """Recompute `tensor`, which the body lacks, from its tensors; None if impossible.

    A body has its inputs, but not tensors that only captures lead to.
    """
    known, captured = _own(body), body.record(Tracing).captured
    own: dict[Tensor, Tensor] = {}
    outer: dict[Tensor, Tensor] = {}
    for t in (t for node in topological([tensor]) for t in node.outputs):
        place = captured.get((t.node.number, t.index))
        if place is not None:
            outer[t] = place
        elif _twin(body, t) in known and not isinstance(t, Constant):
            own[t] = _twin(body, t)
    nodes = topological([tensor], own | outer)
    leaves = [n for n in nodes if isinstance(n.op.code, Leaf)]
    if any(not isinstance(n.outputs[0], Constant) for n in leaves) or not own:
        return None
    new = rewritten(nodes, lambda _, __: None, own | outer, nested=False)
    return new.get(tensor, tensor)


def _bodies(graph: Graph) -> Iterator[tuple[Path, Graph]]:
    """Yield the bodies of branches and loops, with the paths to them."""
    left: list[tuple[Path, Graph]] = [((), graph)]
    while left:
        path, outer = left.pop()
        for node in outer.nodes:
            code = node.op.code
            if not isinstance(code, Control) or code.form == "replay":
                continue
            first = 1 if code.form == "repeat" else 0
            for number, body in enumerate(node.graphs[first:], first):
                left.append(((*path, (node, number)), body))
                yield left[-1]


def threaded(
    graph: Graph, place: BodyPlace, start: Sequence[Tensor], step: Thread
) -> tuple[Graph, list[Tensor], dict[Tensor, Tensor]]:
    """Add a tap at `place`; return the graph, the tap's results and replacements."""
    threading = _Threading(place, step)
    (node, _), *_ = place.path
    outputs, kept = threading.node(0, start)
    new = dict(zip(node.outputs, outputs, strict=True))
    whole = Graph.closed(
        graph.inputs,
        threading.renewed(graph.outputs, new),
        [
            (leaf, now)
            for leaf, value in graph.updates
            for now in threading.renewed([value], new)
        ],
    )
    return whole, kept, threading.moved


class _Threading:
    """Insertion of one tap along its path; `moved` maps replaced tensors."""

    def __init__(self, place: BodyPlace, step: Thread) -> None:
        self.path = place.path
        self.tensor = place.tensor
        self.step = step
        self.moved: dict[Tensor, Tensor] = {}

    def renewed(
        self, tensors: Sequence[Tensor], new: Mapping[Tensor, Tensor]
    ) -> list[Tensor]:
        """Return `tensors` with those replaced by `new`."""
        nodes = topological(tensors, new)
        found = rewritten(nodes, lambda _, __: None, new, nested=False)
        self.moved.update(found)
        return [found.get(t, t) for t in tensors]

    def node(
        self, depth: int, start: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """Return the outputs of a node of the path, and the tap's results behind it."""
        node, number = self.path[depth]
        code, attrs = node.op.code, dict(node.attrs)
        form = code.form if isinstance(code, Control) else ""
        ahead = {"branch": 1, "loop": 0, "repeat": 0}[form]
        count = len(node.inputs) - 1 if form == "branch" else attrs["carries"]
        inner = count + (form == "loop")  # inputs of the body ahead of the new ones
        names = InputNames(node.graphs[number].inputs)
        own = [names.like(t, "tap") for t in start]
        graphs = []
        for n, graph in enumerate(node.graphs):
            outputs: Sequence[Tensor] = graph.outputs
            kept: Sequence[Tensor] = own
            if n == number:
                outputs, kept = self.body(depth, graph, own)
            inputs = (*graph.inputs[:inner], *own, *graph.inputs[inner:])
            if form == "repeat" and n == 0:
                graphs.append(Graph.closed(inputs, outputs))
                continue
            end = len(outputs) if form == "branch" else count
            graphs.append(Graph.closed(inputs, (*outputs[:end], *kept, *outputs[end:])))
        if form != "branch":
            attrs["carries"] = count + len(own)
        given = ahead + count
        results = apply_multi(
            node.op, *node.inputs[:given], *start, *node.inputs[given:],
            graphs=tuple(graphs), **attrs,
        )  # fmt: skip
        end = len(node.outputs) if form == "branch" else count
        after = end + len(own)
        return (*results[:end], *results[after:]), list(results[end:after])

    def body(
        self, depth: int, graph: Graph, own: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return the outputs of a body of the path, and the tap's results in it."""
        if depth + 1 == len(self.path):
            return graph.outputs, self.step(own, self.tensor)
        inside, kept = self.node(depth + 1, own)
        new = dict(zip(self.path[depth + 1][0].outputs, inside, strict=True))
        return self.renewed(graph.outputs, new), kept
