"""Loop fusion: merge Control nodes ``f(x), (f(x), g(x)) = (f(x), g(x))``.

A derivative needs more of a loop's steps than the user asked for, and makes a second
node whose body has further results, made of the same tensors. Both are replaced by one
node with the results of both. Bodies are compared by the identity of their tensors, so
this pass comes before all that rewrite them.

Two nodes are joined where every input that their bodies share stands for the same
tensor outside, and neither needs the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from staticgrad.compiler.passes.body_parts import Parts, made, outputs_of, parts_of
from staticgrad.ir.graph import Graph, deriving, rebuilt
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Control

SAME_DEPTH = 4  # a loop over many examples moves axes of its operands, twice at most


def merge_loops(graph: Graph) -> Graph:
    """Merge branches and loops: ``f(x), (f(x), g(x)) = (f(x), g(x))``."""
    nodes = graph.nodes
    groups = list(_groups(nodes))
    if not groups:
        return graph
    order = _ordered(graph, groups)
    while order is None and groups:
        groups.pop()
        order = _ordered(graph, groups)
    if not groups or order is None:
        return graph
    new = _rebuilt(order, groups)
    return Graph.closed(
        graph.inputs,
        [new.get(t, t) for t in graph.outputs],
        [(leaf, new.get(t, t)) for leaf, t in graph.updates],
    )


def _groups(nodes: Sequence[Node]) -> Iterator[list[Node]]:
    found: dict[Hashable, list[Node]] = {}
    for node in nodes:
        code = node.op.code
        joins = isinstance(code, Control) and code.form != "replay"
        if joins and _share_inputs(node.graphs):
            found.setdefault(_key(node), []).append(node)
    for members in found.values():
        joined = _compatible(members)
        if len(joined) > 1:
            yield joined


def _share_inputs(graphs: Sequence[Graph]) -> bool:
    """Whether the graphs have inputs, and all the same ones."""
    first = list(map(id, graphs[0].inputs))
    return bool(first) and all(list(map(id, g.inputs)) == first for g in graphs)


def _key(node: Node) -> Hashable:
    """Return the key of nodes that may be joined: they begin with the same input."""
    attrs = node.attrs
    loop = (attrs.get("length"), attrs.get("reverse"), attrs.get("limit"))
    starts = tuple(id(graph.inputs[0]) for graph in node.graphs)
    first = id(node.inputs[0]) if node.op.code == Control("branch") else 0
    room = attrs["checkpoints"] if node.op.code == Control("repeat") else 0
    return node.op.name, loop, starts, first, room


def _compatible(members: Sequence[Node]) -> list[Node]:
    """Return the members that can be joined with the first one."""
    if len(members) < 2:
        return []
    joined = [members[0]]
    known = parts_of(members[0])
    for node in members[1:]:
        other = parts_of(node)
        if _fit(known, other):
            joined.append(node)
            known = _union(known, other)
    return joined


def _fit(one: Parts, other: Parts) -> bool:
    same_carries = all(
        one.carries[c][1] is new and is_same(one.carries[c][0], start)
        for c, (start, new) in other.carries.items()
        if c in one.carries
    )
    return same_carries and all(
        is_same(outside, mine.get(own, outside)) and own not in one.carries
        for mine, theirs in (
            (one.slices, other.slices), (one.captures, other.captures)
        )
        for own, outside in theirs.items()
    )  # fmt: skip


def is_same(one: Tensor, other: Tensor, depth: int = SAME_DEPTH) -> bool:
    """Whether both are made of the same tensors in the same way."""
    if one is other:
        return True
    a, b = one.node, other.node
    if a.op is not b.op or one.index != other.index or not a.inputs or not depth:
        return False
    if a.attrs != b.attrs or a.graphs != b.graphs or len(a.inputs) != len(b.inputs):
        return False
    return all(
        is_same(*pair, depth - 1) for pair in zip(a.inputs, b.inputs, strict=True)
    )


def _union(one: Parts, other: Parts) -> Parts:
    results = {tuple(map(id, r)): r for r in (*one.results, *other.results)}
    return Parts(
        one.node,
        one.first,
        {**one.carries, **other.carries},
        {**one.slices, **other.slices},
        {**one.captures, **other.captures},
        list(results.values()),
        tuple(dict.fromkeys((*one.kept, *other.kept))),
    )


def _ordered(graph: Graph, groups: Sequence[Sequence[Node]]) -> list[Node] | None:
    """Return the nodes with groups merged behind all their inputs; None for a cycle.

    Of a group the first node stands for all.
    """
    leader = {node: members[0] for members in groups for node in members}
    members = {group[0]: group for group in groups}
    order: list[Node] = []
    state: dict[Node, bool] = {}  # False while its inputs are visited
    stack = [(leader.get(t.node, t.node), False) for t in reversed(graph.roots)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            state[node] = True
            order.append(node)
            continue
        if node in state:
            if not state[node]:
                return None
            continue
        state[node] = False
        stack.append((node, True))
        inputs = (t.node for m in members.get(node, (node,)) for t in m.inputs)
        below = [leader.get(other, other) for other in inputs]
        if any(state.get(other) is False for other in below):
            return None
        pending = [other for other in dict.fromkeys(below) if other not in state]
        stack.extend((other, False) for other in reversed(pending))
    return order


def _rebuilt(
    order: Sequence[Node], groups: Sequence[Sequence[Node]]
) -> dict[Tensor, Tensor]:
    """Rebuild the nodes that change and return the map from old to new outputs."""
    members = {group[0]: group for group in groups}
    new: dict[Tensor, Tensor] = {}
    with deriving() as derive_from:
        for node in order:
            derive_from(node)
            if node in members:
                new.update(_joined(members[node], new))
            elif any(t in new for t in node.inputs):
                kept = rebuilt(node, tuple(new.get(t, t) for t in node.inputs))
                new.update(zip(node.outputs, kept.outputs, strict=True))
    return new


def _joined(
    group: Sequence[Node], new: Mapping[Tensor, Tensor]
) -> dict[Tensor, Tensor]:
    """Return the outputs of one node for all of a group."""
    parts = [parts_of(node) for node in group]
    whole = parts[0]
    for other in parts[1:]:
        whole = _union(whole, other)
    node = made(whole, new)
    found: dict[Tensor, Tensor] = {}
    for part in parts:
        outputs = outputs_of(part, whole, node)
        pairs = zip(part.node.outputs, outputs, strict=True)
        found.update((old, now) for old, now in pairs if now is not None)
    return found
