"""Control nodes taken apart and rebuilt.

For passes that add or drop inputs and results of bodies. Inputs of the parts are those
of the bodies; the tensors bound to them are listed beside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from staticgrad.ir.graph import Graph, deriving, infer, rebuilt, rewritten, topological
from staticgrad.ir.node import Input, Node, Tensor
from staticgrad.ir.op import Control
from staticgrad.ir.types import TensorType
from staticgrad.ops.leaves import INPUT

Change = Callable[[Node, Node, Mapping[Tensor, int]], "Sequence[Tensor | None] | None"]


@dataclass(slots=True)
class Parts:
    """Parts of a Control node.

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


def parts_of(node: Node) -> Parts:
    """Return the parts of a branch, a loop or a repetition."""
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
    return Parts(
        node,
        first=(),
        carries={c: (start, new) for c, start, new in rows},
        slices=dict(zip(own[count:end], outside[count:end], strict=True)),
        captures=dict(zip(own[end:], outside[end:], strict=True)),
        results=[(t,) for t in graph.outputs[count:]] if first else [],
        kept=tuple(own[n] for n in node.attrs.get("kept", ())),
    )


def _branch_parts(node: Node) -> Parts:
    columns = [graph.outputs for graph in node.graphs]
    return Parts(
        node,
        first=node.inputs[:1],
        carries={},
        slices={},
        captures=dict(zip(node.graphs[0].inputs, node.inputs[1:], strict=True)),
        results=list(zip(*columns, strict=True)),
    )


def _named_apart(graphs: Sequence[Graph]) -> tuple[Graph, ...]:
    """Return `graphs`, on the same inputs, renamed to be distinct.

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
    if not places:
        return tuple(graphs)
    inputs = [places.get(leaf, leaf) for leaf in graphs[0].inputs]
    moved = (with_inputs_for(graph, places) for graph in graphs)
    return tuple(Graph.closed(inputs, graph.outputs) for graph in moved)


def with_inputs_for(graph: Graph, places: Mapping[Tensor, Tensor]) -> Graph:
    """Return `graph` with some of its inputs replaced by other tensors' inputs."""
    nodes = topological(graph.outputs, places)
    new = rewritten(nodes, lambda _, __: None, places, nested=False)
    return Graph.closed(graph.inputs, [new.get(t, t) for t in graph.outputs])


def made(parts: Parts, new: Mapping[Tensor, Tensor]) -> Node:
    """Return the node of `parts`, on replaced outer tensors."""
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


def outputs_of(part: Parts, whole: Parts, node: Node) -> list[Tensor | None]:
    """Return the outputs of `node`, made of `whole`, for those of a part's node.

    None for outputs that the whole does not have.
    """
    count = len(whole.carries)
    carries = dict(zip(whole.carries, node.outputs, strict=False))
    keys = [tuple(map(id, result)) for result in whole.results]
    results = dict(zip(keys, node.outputs[count:], strict=False))
    steps = node.outputs[count + len(whole.results) :]
    rooms = dict(zip(whole.kept, steps[2:], strict=False))
    last = [carries.get(carry) for carry in part.carries]
    rest = [results.get(tuple(map(id, result))) for result in part.results]
    own = (*steps[:2], *(rooms[carry] for carry in part.kept))
    return [*last, *rest, *(own if part.kept else steps[:1])]


def placeholder(kind: TensorType, name: str, names: set[str]) -> Tensor:
    """Add a new input of a body, numbered where `names` has its name."""
    number = 0
    while f"{name}_{number}" in names:
        number += 1
    names.add(f"{name}_{number}")
    attrs = {"name": f"{name}_{number}", "shape": kind.shape, "dtype": kind.dtype}
    return Node(INPUT, (), attrs, (kind,), leaf=Input).outputs[0]


def changed_controls(graph: Graph, change: Change) -> Graph:
    """Apply `change` to branches, loops and repetitions until none changes.

    ``change(old, node, uses)`` sees a node as it was, with which `uses` counts who
    reads its inputs and outputs, and on its new inputs. It returns the tensors that
    take the place of its outputs, with None for what nothing reads; or None.
    """
    while (after := _changed_once(graph, change)) is not graph:
        graph = after
    return graph


def _changed_once(graph: Graph, change: Change) -> Graph:
    if not any(node.graphs for node in graph.nodes):
        return graph
    uses = graph.uses()
    new: dict[Tensor, Tensor] = {}
    with deriving() as derive_from:
        for node in graph.nodes:
            derive_from(node)
            kept = _renewed(node, new, change)
            code = node.op.code
            outputs: Sequence[Tensor | None] | None = None
            if isinstance(code, Control) and code.form != "replay":
                outputs = change(node, kept, uses)
            for old, now in zip(node.outputs, outputs or kept.outputs, strict=True):
                if now is not None and now is not old:
                    new[old] = now
    if not new:
        return graph
    roots = [new.get(t, t) for t in graph.outputs]
    updates = [(leaf, new.get(t, t)) for leaf, t in graph.updates]
    return Graph.closed(graph.inputs, roots, updates)


def _renewed(node: Node, new: Mapping[Tensor, Tensor], change: Change) -> Node:
    inputs = tuple(new.get(t, t) for t in node.inputs)
    graphs = tuple(changed_controls(body, change) for body in node.graphs)
    before, now = (*node.inputs, *node.graphs), (*inputs, *graphs)
    same = all(a is b for a, b in zip(before, now, strict=True))
    return node if same else rebuilt(node, inputs, graphs)
