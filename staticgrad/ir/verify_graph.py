"""Verifier of graphs: invariants that every pass preserves.

* each node comes after its inputs (no cycle);
* each op's type rules, run again, give the types that the node carries;
* inputs are listed, once each, under distinct names; every leaf is of its own class;
* updates are of stored leaves, one per leaf, and keep shape and dtype;
* the index of a Gather or Scatter is an IndexCheck of the same extent, seen through
  views only: nothing can be read or written out of bounds;
* nested graphs update nothing, and reach no stored leaf but through their inputs;
* every symbol of a shape is bound by an input's shape.

Nested graphs are checked too. A violation is a CompilerBug that names the node.
"""

from __future__ import annotations

from collections.abc import Sequence

from staticgrad.errors import CompilerBug, DTypeError, ShapeError
from staticgrad.ir.graph import Graph, infer
from staticgrad.ir.node import Constant, Input, Node, Parameter, State, Stored, Tensor
from staticgrad.ir.op import VARIABLE, Gather, IndexCheck, Leaf, Scatter, View
from staticgrad.ir.size import Dim, Size, symbols
from staticgrad.ir.source import at

_INDEXED = (Gather, Scatter)

LEAVES: dict[str, type[Tensor]] = {
    "input": Input,
    "parameter": Parameter,
    "state": State,
    "constant": Constant,
}


def verify_graph(
    graph: Graph,
    known: set[Node] | None = None,
    outer: frozenset[str] = frozenset(),
) -> None:
    """Raise CompilerBug where `graph` violates a rule of this module.

    `known` holds nodes whose own rules were checked before; it is filled. As nodes are
    immutable, a pipeline checks each of them once. `outer` names the symbols that the
    graph around a nested one binds.
    """
    known = set() if known is None else known
    bound = outer | _check_inputs(graph)
    nodes = graph.nodes
    _check_order(nodes)
    listed = set(graph.inputs)
    for node in nodes:
        _check_listed(node, listed)
        if node not in known:
            _check_node(node, bound)
            known.add(node)
        for inner in node.graphs:
            _check_nested(node, inner)
            verify_graph(inner, known, bound)
    _check_updates(graph)


def _check_inputs(graph: Graph) -> frozenset[str]:
    for tensor in graph.inputs:
        if not isinstance(tensor, Input):
            raise CompilerBug(f"graph inputs require Input leaves, got {tensor}")
    names = [tensor.name for tensor in graph.inputs]
    if len(set(names)) != len(names):
        raise CompilerBug(f"graph inputs require distinct names, got {names}")
    return frozenset().union(*(symbols(tensor.shape) for tensor in graph.inputs))


def _check_nested(node: Node, graph: Graph) -> None:
    """Raise if a nested graph has stored leaves or updates."""
    if graph.updates:
        raise CompilerBug(f"nested graphs require no updates, got one in {node}")
    for inner in graph.nodes:
        if any(isinstance(t, Stored) for t in inner.outputs):
            raise CompilerBug(f"nested graphs require captures as inputs, got {inner}")


def _check_order(nodes: Sequence[Node]) -> None:
    seen: set[Node] = set()
    for node in nodes:
        for tensor in node.inputs:
            if tensor.node not in seen:
                raise CompilerBug(f"a graph requires no cycle, got one through {node}")
        seen.add(node)


def _check_listed(node: Node, listed: set[Input]) -> None:
    for tensor in node.outputs:
        if isinstance(tensor, Input) and tensor not in listed:
            raise CompilerBug(
                f"a graph requires all its inputs listed, got {tensor.name!r}"
                f" unlisted{at(node.source)}"
            )


def _check_node(node: Node, bound: frozenset[str]) -> None:
    _check_outputs(node)
    if isinstance(node.op.code, Leaf):
        _check_leaf(node)
    else:
        _check_types(node)
    if isinstance(node.op.code, _INDEXED):
        _check_index(node)
    named = node_symbols(node)
    if not named <= bound:
        raise CompilerBug(
            f"sizes require symbols of an input's shape, got {sorted(named - bound)}"
            f" in {node}"
        )


def node_symbols(node: Node) -> set[str]:
    """Return the names of sizes in the node's types and attributes."""
    found: set[str] = set()
    for type_ in node.types:
        for dim in type_.shape:
            if isinstance(dim, Size):
                found |= dim.symbols()
    for value in node.attrs.values():
        for dim in value if type(value) is tuple else (value,):
            if isinstance(dim, Size):
                found |= dim.symbols()
    return found


def _check_outputs(node: Node) -> None:
    count = len(node.types)
    right = len(node.outputs) == count and node.op.outputs in (count, VARIABLE)
    for index, tensor in enumerate(node.outputs):
        right = right and tensor.node is node
        if right and tensor.index != index:
            raise CompilerBug(f"outputs require their own index, got {node}")
    if not right:
        raise CompilerBug(f"a node requires one type per own output, got {node}")
    for tensor in node.inputs:
        outputs = tensor.node.outputs
        if tensor.index >= len(outputs) or outputs[tensor.index] is not tensor:
            raise CompilerBug(f"inputs require outputs of a node, got {node}")


def _check_leaf(node: Node) -> None:
    if node.inputs:
        raise CompilerBug(f"a leaf requires no inputs, got {node}")
    kind = LEAVES.get(node.op.name)
    if kind is None:
        return
    (tensor,) = node.outputs
    if not isinstance(tensor, kind):
        raise CompilerBug(f"{node.op.name} requires a {kind.__name__}, got {node}")
    held = None
    if isinstance(tensor, Stored):
        held = tensor.storage.array
    if isinstance(tensor, Constant):
        held = tensor.value
    if held is not None and (held.shape, held.dtype) != (tensor.shape, tensor.dtype):
        raise CompilerBug(
            f"{node.op.name} requires a value of its type, got"
            f" {held.dtype}{list(held.shape)} for {node}"
        )


def _check_types(node: Node) -> None:
    try:
        given = tuple([t.type for t in node.inputs])
        types = infer(node.op, given, node.attrs, node.graphs)
    except (ShapeError, DTypeError, IndexError, TypeError, ValueError) as error:
        raise CompilerBug(f"{node} breaks its own rule: {error}") from error
    for found, kept in zip(types, node.types, strict=True):
        if found.shape != kept.shape or found.dtype != kept.dtype:
            raise CompilerBug(f"{node} requires the type {found}, got {kept}")


def _check_index(node: Node) -> None:
    data, index = node.inputs[:2]
    extent = data.shape[node.attrs["axis"]]
    if "window" in node.attrs:
        extent = extent - node.attrs["window"] + 1
    checked = checked_extent(index)
    if checked is None or checked != extent:
        raise CompilerBug(
            f"{node} requires an index checked against {extent}, got one checked"
            f" against {'nothing' if checked is None else checked}"
        )


def checked_extent(index: Tensor) -> Dim | None:
    """Return the extent that `index` is known to lie in; None if unchecked."""
    while isinstance(index.op.code, View):
        index = index.inputs[0]
    if not isinstance(index.op.code, IndexCheck):
        return None
    extent: Dim = index.node.attrs["extent"]
    return extent


def _check_updates(graph: Graph) -> None:
    seen: set[Stored] = set()
    for leaf, new in graph.updates:
        if not isinstance(leaf, Stored):
            raise CompilerBug(f"updates require stored leaves, got {leaf}")
        if leaf in seen:
            raise CompilerBug(f"updates require one per leaf, got two of {leaf.name!r}")
        seen.add(leaf)
        if (new.shape, new.dtype) != (leaf.shape, leaf.dtype):
            raise CompilerBug(
                f"the update of {leaf.name!r} requires {leaf.type}, got {new.type}"
            )
