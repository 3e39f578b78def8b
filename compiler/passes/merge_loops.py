"""Control nodes that run one body become one: ``f(x), (f(x), g(x)) = (f(x), g(x))``.

A derivative needs more of a loop's steps than the user asked for, and makes a second
node whose body has further results, made of the same tensors. Both are replaced by one
node with the results of both. Bodies are compared by the identity of their tensors, so
this pass comes before all that rewrite them.

Two nodes are joined where every input that their bodies share stands for the same
tensor outside, and neither needs the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from staticgrad.ir.graph import (
    Graph,
    deriving,
    infer,
    rebuilt,
    rewritten,
    topological,
)
from staticgrad.ir.node import Input, Node, Tensor
from staticgrad.ir.op import Control

SAME_DEPTH = 4  # a loop over many examples moves axes of its operands, twice at most


@dataclass(slots=True)
class _Parts:
    """A Control node taken apart.

    `first` are inputs of the node ahead of those that are listed. Each carry is (input
    of the body: start outside, new value in each graph); the other inputs map to
    tensors outside; `results` are what is stacked, or the results of each branch;
    `kept` are the carries of which a repetition keeps snapshots.
    """

    node: Node
    first: tuple[Tensor, ...]
    carries: dict[Tensor, tuple[Tensor, Tensor]]
    slices: dict[Tensor, Tensor]
    captures: dict[Tensor, Tensor]
    results: list[tuple[Tensor, ...]]
    kept: tuple[Tensor, ...] = ()


def merge_loops(graph: Graph) -> Graph:
    """``f(x), (f(x), g(x)) = (f(x), g(x))`` for branches and loops."""
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


# ---- which nodes ---------------------------------------------------------------------


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
    """Equal for nodes that may be joined: they begin with the same input."""
    attrs = node.attrs
    loop = (attrs.get("length"), attrs.get("reverse"), attrs.get("limit"))
    starts = tuple(id(graph.inputs[0]) for graph in node.graphs)
    first = id(node.inputs[0]) if node.op.code == Control("branch") else 0
    room = attrs["checkpoints"] if node.op.code == Control("repeat") else 0
    return node.op.name, loop, starts, first, room


def _compatible(members: Sequence[Node]) -> list[Node]:
    """Those that can be joined with the first one."""
    if len(members) < 2:
        return []
    joined = [members[0]]
    known = _parts(members[0])
    for node in members[1:]:
        other = _parts(node)
        if _fit(known, other):
            joined.append(node)
            known = _union(known, other)
    return joined


def _fit(one: _Parts, other: _Parts) -> bool:
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


def _parts(node: Node) -> _Parts:
    code = node.op.code
    assert isinstance(code, Control)
    if code.form == "branch":
        return _branch_parts(node)
    first = 1 if code.form == "loop" else 0
    graph = node.graphs[-1]
    count, along = node.attrs["carries"], node.attrs.get("sequences", 0)
    own, outside = graph.inputs[first:], node.inputs
    rows = zip(own[:count], outside[:count], graph.outputs[:count], strict=True)
    end = count + along
    return _Parts(
        node,
        first=(),
        carries={c: (start, new) for c, start, new in rows},
        slices=dict(zip(own[count:end], outside[count:end], strict=True)),
        captures=dict(zip(own[end:], outside[end:], strict=True)),
        results=[(t,) for t in graph.outputs[count:]] if first else [],
        kept=tuple(own[n] for n in node.attrs.get("kept", ())),
    )


def _branch_parts(node: Node) -> _Parts:
    columns = [graph.outputs for graph in node.graphs]
    return _Parts(
        node,
        first=node.inputs[:1],
        carries={},
        slices={},
        captures=dict(zip(node.graphs[0].inputs, node.inputs[1:], strict=True)),
        results=list(zip(*columns, strict=True)),
    )


def _union(one: _Parts, other: _Parts) -> _Parts:
    results = {tuple(map(id, r)): r for r in (*one.results, *other.results)}
    return _Parts(
        one.node,
        one.first,
        {**one.carries, **other.carries},
        {**one.slices, **other.slices},
        {**one.captures, **other.captures},
        list(results.values()),
        tuple(dict.fromkeys((*one.kept, *other.kept))),
    )


# ---- the new graph -------------------------------------------------------------------


def _ordered(graph: Graph, groups: Sequence[Sequence[Node]]) -> list[Node] | None:
    """The nodes, those of a group behind the inputs of all; None if there is a circle.

    Of a group the first node stands for all.
    """
    leader = {node: members[0] for members in groups for node in members}
    members = {group[0]: group for group in groups}
    order: list[Node] = []
    state: dict[Node, bool] = {}  # False while its inputs are looked at
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
    """What takes the place of the outputs of nodes that change."""
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
    """The outputs of one node for all of a group."""
    parts = [_parts(node) for node in group]
    whole = parts[0]
    for other in parts[1:]:
        whole = _union(whole, other)
    node = _made(whole, new)
    count = len(whole.carries)
    carries = dict(zip(whole.carries, node.outputs, strict=False))
    keys = [tuple(map(id, result)) for result in whole.results]
    results = dict(zip(keys, node.outputs[count:], strict=False))
    steps = node.outputs[count + len(whole.results) :]
    rooms = dict(zip(whole.kept, steps[2:], strict=False))
    found: dict[Tensor, Tensor] = {}
    for part in parts:
        last = [carries[c] for c in part.carries]
        rest = [results[tuple(map(id, result))] for result in part.results]
        own = (*steps[:2], *(rooms[c] for c in part.kept))
        ends = own if part.kept else steps[:1]
        found.update(zip(part.node.outputs, (*last, *rest, *ends), strict=True))
    return found


def _named_apart(graphs: Sequence[Graph]) -> tuple[Graph, ...]:
    """`graphs`, on the same inputs, with a name of its own for each of these.

    Inputs that several derivatives added may have one name.
    """
    names: set[str] = set()
    places: dict[Tensor, Tensor] = {}
    for leaf in graphs[0].inputs:
        name, number = leaf.name, 0
        while name in names:
            name, number = f"{leaf.name}_{number}", number + 1
        names.add(name)
        if name != leaf.name:
            attrs = {**leaf.node.attrs, "name": name}
            types = (leaf.type,)
            twin = Node(leaf.op, (), attrs, types, source=leaf.source, leaf=Input)
            places[leaf] = twin.outputs[0]
    return tuple(_moved(graph, places) for graph in graphs) if places else tuple(graphs)


def _moved(graph: Graph, places: Mapping[Tensor, Tensor]) -> Graph:
    nodes = topological(graph.outputs, places)
    new = rewritten(nodes, lambda _, __: None, places, nested=False)
    inputs = [places.get(leaf, leaf) for leaf in graph.inputs]
    return Graph.closed(inputs, [new.get(t, t) for t in graph.outputs])


def _made(parts: _Parts, new: Mapping[Tensor, Tensor]) -> Node:
    node, code = parts.node, parts.node.op.code
    attrs = dict(node.attrs)
    inputs = (*parts.carries, *parts.slices, *parts.captures)
    if code == Control("loop"):
        inputs = (node.graphs[0].inputs[0], *inputs)
        attrs["sequences"] = len(parts.slices)
    if "carries" in attrs:
        attrs["carries"] = len(parts.carries)
    if parts.kept:
        places = {carry: n for n, carry in enumerate(parts.carries)}
        attrs["kept"] = tuple(places[carry] for carry in parts.kept)
    last = [ends[1] for ends in parts.carries.values()]
    if code == Control("branch"):
        columns = zip(*parts.results, strict=True)
        graphs = [Graph.closed(inputs, column) for column in columns]
    else:
        results = [result[0] for result in parts.results]
        graphs = [Graph.closed(inputs, (*last, *results))]
    if code == Control("repeat"):
        graphs.insert(0, Graph.closed(inputs, node.graphs[0].outputs))
    named = _named_apart(graphs)
    starts = [ends[0] for ends in parts.carries.values()]
    outside = (
        *parts.first, *starts, *parts.slices.values(), *parts.captures.values()
    )  # fmt: skip
    operands = tuple(new.get(t, t) for t in outside)
    types = infer(node.op, tuple(t.type for t in operands), attrs, named)
    return Node(
        node.op, operands, attrs, types, graphs=named, scope=node.scope,
        source=node.source,
    )  # fmt: skip
