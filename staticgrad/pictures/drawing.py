"""Boxes and arrows of a graph's picture.

``draw(graph)`` makes one box per node. Constants that are single numbers appear inside
the boxes that use them. Boxes are in topological order, so arrows point from a lower
number to a higher one, updates of stored leaves aside.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from staticgrad.ir.graph import Graph, OpenGraph
from staticgrad.ir.node import Constant, Node, Stored, Tensor
from staticgrad.ir.op import Control


@dataclass(frozen=True, slots=True)
class Box:
    """Box of one node, or of `count` nodes.

    `lines` are shown, the first in bold; `kind` gives the colour; `scope` is the dotted
    path of the clusters around it; `result` marks outputs of the graph.
    """

    lines: tuple[str, ...]
    kind: str
    scope: str
    tooltip: str
    count: int = 1
    result: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """Arrow from box `tail` to box `head`, both indices of the drawing's boxes."""

    tail: int
    head: int
    label: str
    update: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes and arrows; `note` says what was left out, `nodes` their number."""

    title: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    note: str = ""

    @property
    def nodes(self) -> int:
        """Number of nodes that the boxes stand for."""
        return sum(box.count for box in self.boxes)

    def with_note(self, note: str) -> Drawing:
        """Return the same boxes under another note."""
        return replace(self, note=note)


def draw(shown: Graph | Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> Drawing:
    """Return the drawing of a graph, or of everything that tensors are made of."""
    graph = as_graph(shown)
    nodes, scopes, bodies = _all_nodes(graph)
    inline = _inline_constants(nodes, set(graph.roots))
    kept = [node for node in nodes if node not in inline]
    number = {node: position for position, node in enumerate(kept)}
    results = {t.node for t in graph.outputs}
    boxes = [_box(node, scopes[node], node in results) for node in kept]
    arrows = [
        Arrow(number[t.node], number[node], str(t.type))
        for node in kept
        for t in dict.fromkeys(node.inputs)
        if t.node in number
    ]
    arrows += [Arrow(number[t.node], number[node], str(t.type)) for t, node in bodies]
    updates = [pair for pair in graph.updates if pair[1] is not pair[0]]
    arrows += [
        Arrow(number[new.node], number[leaf.node], f"becomes {leaf.name}", update=True)
        for leaf, new in updates
    ]
    return Drawing(_title(len(nodes), graph), tuple(boxes), tuple(arrows))


def as_graph(
    shown: Graph | Tensor | Sequence[Tensor] | Mapping[str, Tensor],
) -> Graph:
    """Return a closed graph of what is to be shown.

    A graph that users opened has no outputs: its unused tensors and its inputs are
    shown instead.
    """
    if isinstance(shown, OpenGraph) and not shown.outputs:
        gc.collect()  # tensors that nobody holds are in cycles until then
        return Graph.closed(shown.inputs, shown.ends, shown.updates)
    if isinstance(shown, Graph):
        return shown
    if isinstance(shown, Tensor):
        return Graph.closed((), (shown,))
    values: Iterable[Any] = shown.values() if isinstance(shown, Mapping) else shown
    return Graph.closed((), tuple(values))


BODIES = {"repeat": (", condition", ", body"), "replay": (", step", ", way back")}


def _all_nodes(
    graph: Graph,
) -> tuple[list[Node], dict[Node, str], list[tuple[Tensor, Node]]]:
    """Return nodes, nested ones before their owner; scopes; results of bodies."""
    nodes: list[Node] = []
    scopes: dict[Node, str] = {}
    bodies: list[tuple[Tensor, Node]] = []
    counts: Counter[str] = Counter()
    stack: list[tuple[Graph, str, Node | None]] = [(graph, "", None)]
    while stack:
        inner, prefix, owner = stack.pop()
        leaves = [t.node for t in inner.inputs] + [
            leaf.node for leaf, _ in inner.updates
        ]
        found = list(dict.fromkeys([*leaves, *inner.nodes]))
        nodes[:0] = [node for node in found if node not in scopes]
        for node in found:
            scopes.setdefault(node, join(prefix, _scope(node)))
            if not node.graphs:
                continue
            counts[node.op.name] += 1
            name = join(scopes[node], f"{node.op.name} {counts[node.op.name]}")
            stack += [
                (body, f"{name}{part}", node)
                for body, part in zip(node.graphs, _parts(node), strict=True)
            ]
        if owner is not None:
            bodies += [(t, owner) for t in dict.fromkeys(inner.outputs)]
    _adopt(nodes, scopes)
    return _in_order(nodes, bodies), scopes, bodies


def _parts(node: Node) -> list[str]:
    """Return the labels of the graphs in `node`, appended to the node's name."""
    count = len(node.graphs)
    code = node.op.code
    if isinstance(code, Control) and code.form == "branch":
        return [f", case {n}" for n in range(count)]
    names = BODIES.get(code.form, ()) if isinstance(code, Control) else ()
    if len(names) == count:
        return list(names)
    return [""] if count == 1 else [f", body {n}" for n in range(count)]


def _in_order(
    nodes: Sequence[Node], bodies: Sequence[tuple[Tensor, Node]]
) -> list[Node]:
    """Return nodes in topological order, after their bodies, which share some."""
    below = {node: [t.node for t in node.inputs] for node in nodes}
    for tensor, owner in bodies:
        below[owner].append(tensor.node)
    order: list[Node] = []
    done: set[Node] = set()
    stack = [(node, False) for node in reversed(nodes)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif node not in done:
            done.add(node)
            stack.append((node, True))
            stack.extend((other, False) for other in reversed(below[node]))
    return order


def join(outer: str, inner: str) -> str:
    """Join two parts of a scope's path."""
    return ".".join(part for part in (outer, inner) if part)


def _scope(node: Node) -> str:
    leaf = node.outputs[0]
    if isinstance(leaf, Stored) and not node.scope and "." in leaf.name:
        return leaf.name.rpartition(".")[0]
    return node.scope


def _adopt(nodes: Sequence[Node], scopes: dict[Node, str]) -> None:
    """Move a stored leaf or constant into the scope of its users, if it is one."""
    users: dict[Node, set[str]] = {}
    for node in nodes:
        for t in node.inputs:
            users.setdefault(t.node, set()).add(scopes[node])
    for node in nodes:
        found = users.get(node, set())
        leaf = node.outputs[0]
        if isinstance(leaf, Stored | Constant) and len(found) == 1:
            scopes[node] = found.pop()


def _inline_constants(nodes: Sequence[Node], roots: set[Tensor]) -> set[Node]:
    return {
        node
        for node in nodes
        if isinstance(node.outputs[0], Constant)
        and node.outputs[0].value.ndim == 0
        and node.outputs[0] not in roots
    }


def kind_of(node: Node) -> str:
    """The kind that gives a box its colour."""
    return node.op.code.kind.picture or node.op.name


def _box(node: Node, scope: str, result: bool) -> Box:
    types = ", ".join(map(str, node.types))
    name = getattr(node.outputs[0], "name", "")
    lines: tuple[str, ...] = (_call(node),)
    tooltip = [f"{node.op.name} -> {types}", f"in {scope}" if scope else ""]
    if node.source is not None:
        tooltip.append(f"{node.source} ({node.source.function})")
    if name:
        lines = (str(name).removeprefix(f"{scope}."), types)
    return Box(
        lines, kind_of(node), scope, "\n".join(filter(None, tooltip)), result=result
    )


def _call(node: Node) -> str:
    """Return the op's name, with the arguments where one of them is a single number."""
    numbers = [
        _number(t) if isinstance(t, Constant) and t.ndim == 0 else "·"
        for t in node.inputs
    ]
    if all(text == "·" for text in numbers):
        return node.op.name
    return f"{node.op.name}({', '.join(numbers)})"


def _number(leaf: Constant) -> str:
    value = leaf.value[()]
    return str(value) if isinstance(value, np.bool_) else f"{value:.4g}"


def _title(count: int, graph: Graph) -> str:
    names = ", ".join(leaf.name for leaf in graph.inputs[:6])
    takes = f", inputs {names}" if names else ""
    return f"{count:,} node{'s' if count != 1 else ''}{takes}"
