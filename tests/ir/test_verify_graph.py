"""The verifier of graphs: sound graphs pass, each kind of corruption is noticed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.graph import Graph, apply
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import OPS, Control, Leaf, Op
from staticgrad.ir.size import Size
from staticgrad.ir.types import FLOAT32, FLOAT64
from staticgrad.ir.verify_graph import verify_graph
from staticgrad.ops.named import named


def network() -> Graph:
    """An index, a gather, an update: something for every rule."""
    with sg.Graph() as graph:
        x = sg.input("x", ("batch", 3))
        labels = sg.input("labels", ("batch",), dtype="int64")
        w = sg.parameter(np.ones((3, 3), np.float32), name="w")
        b = sg.parameter(np.ones(3, np.float32), name="b")
        index = named("check_index", labels, extent=3, wrap=True)
        rows = named("take", w, index, axis=0, pointwise=False)
        y = named("tanh", named("add", named("matmul", x, w), b))
        total = named("reduce_sum", named("add", y, rows), axes=(0,))
        sg.update(b, total)
    graph.outputs = (y,)
    return graph


def node_of(graph: Graph, name: str) -> Node:
    return next(node for node in graph.nodes if node.op.name == name)


def test_a_sound_graph_passes() -> None:
    verify_graph(network())


def test_known_nodes_are_checked_once() -> None:
    graph, known = network(), set[Node]()
    verify_graph(graph, known)
    assert known == set(graph.nodes)
    node_of(graph, "tanh").types = ()  # not looked at again
    verify_graph(graph, known)


def corrupt_edge(graph: Graph) -> None:
    node = node_of(graph, "matmul")
    node.inputs = (node.inputs[1], node.inputs[0])


def corrupt_foreign_edge(graph: Graph) -> None:
    node = node_of(graph, "tanh")
    node.inputs = (Tensor(node.inputs[0].node),)


def corrupt_shape(graph: Graph) -> None:
    node = node_of(graph, "tanh")
    (kind,) = node.types
    node.types = (dataclasses.replace(kind, shape=(kind.shape[0], 4)),)


def corrupt_dtype(graph: Graph) -> None:
    node = node_of(graph, "tanh")
    node.types = (dataclasses.replace(node.types[0], dtype=FLOAT64),)


def corrupt_attribute(graph: Graph) -> None:
    node_of(graph, "reduce_sum").attrs = MappingProxyType({"axes": (1,)})


def corrupt_operation(graph: Graph) -> None:
    node_of(graph, "matmul").op = OPS["add"]


def corrupt_index(graph: Graph) -> None:
    node = node_of(graph, "take")
    labels = node.inputs[1].inputs[0]
    node.inputs = (node.inputs[0], labels)


def corrupt_extent(graph: Graph) -> None:
    attrs = {"extent": 4, "wrap": True}
    node_of(graph, "check_index").attrs = MappingProxyType(attrs)


def corrupt_cycle(graph: Graph) -> None:
    node_of(graph, "add").inputs = (node_of(graph, "tanh").outputs[0],) * 2


def corrupt_update_twice(graph: Graph) -> None:
    graph.updates += graph.updates


def corrupt_update_type(graph: Graph) -> None:
    ((leaf, _),) = graph.updates
    graph.updates = ((leaf, graph.outputs[0]),)


def corrupt_update_leaf(graph: Graph) -> None:
    graph.updates = ((graph.inputs[0], graph.inputs[0]),)  # type: ignore[assignment]


def corrupt_inputs(graph: Graph) -> None:
    graph.inputs = graph.inputs[1:]


def corrupt_input_names(graph: Graph) -> None:
    attrs = dict(graph.inputs[0].node.attrs, name="labels")
    graph.inputs[0].node.attrs = MappingProxyType(attrs)


def corrupt_input_class(graph: Graph) -> None:
    graph.inputs += (graph.outputs[0],)  # type: ignore[assignment]


def corrupt_storage(graph: Graph) -> None:
    leaf = next(t for t in graph.stored if t.name == "w")
    leaf.storage._array = leaf.storage.array[:2]


def corrupt_symbol(graph: Graph) -> None:
    other = named("position", shape=(Size.symbol("n"),), axis=0, dtype=FLOAT32)
    graph.outputs += (other,)


def corrupt_symbolic_attribute(graph: Graph) -> None:
    graph.outputs += (named("extent", size=Size.symbol("m")),)


def corrupt_outputs(graph: Graph) -> None:
    node = node_of(graph, "tanh")
    node.outputs += (Tensor(node, 1),)


@pytest.mark.parametrize(
    ("corrupt", "match"),
    [
        (corrupt_edge, "matmul .*breaks its own rule"),
        (corrupt_foreign_edge, "inputs require outputs of a node"),
        (corrupt_shape, r"tanh .*requires the type float32\[batch, 3\]"),
        (corrupt_dtype, "tanh .*requires the type float32"),
        (corrupt_attribute, "requires the type"),
        (corrupt_operation, "add .*requires the type|breaks its own rule"),
        (corrupt_index, "an index checked against 3, got one checked against nothing"),
        (corrupt_extent, "an index checked against 3, got one checked against 4"),
        (corrupt_cycle, "no cycle"),
        (corrupt_update_twice, "one per leaf, got two of 'b'"),
        (corrupt_update_type, r"the update of 'b' requires float32\[3\]"),
        (corrupt_update_leaf, "updates require stored leaves"),
        (corrupt_inputs, "all its inputs listed, got 'x'"),
        (corrupt_input_names, "distinct names"),
        (corrupt_input_class, "require Input leaves"),
        (corrupt_storage, "a value of its type"),
        (corrupt_symbol, r"symbols of an input's shape, got \['n'\]"),
        (corrupt_symbolic_attribute, r"symbols of an input's shape, got \['m'\]"),
        (corrupt_outputs, "one type per own output"),
    ],
)
def test_each_corruption_is_noticed(
    corrupt: Callable[[Graph], None], match: str
) -> None:
    graph = network()
    corrupt(graph)
    with pytest.raises(sg.CompilerBug, match=match):
        verify_graph(graph)


TWICE = Op(
    "twice",
    shape=lambda x: (x.shape, x.shape),
    dtype=lambda x: (x.dtype, x.dtype),
    vjp=None,
    code=Control(),
    numpy=lambda x, graphs: graphs[0](x),
    samples=tuple,
    bad=tuple,
    outputs=2,
)


def nested() -> Graph:
    with sg.Graph():
        x = sg.input("x", ("batch", 3))
    with sg.Graph():
        inner = sg.input("inner", ("batch", 3))
    body = Graph.closed((inner,), (named("tanh", inner), named("exp", inner)))
    node = Node(TWICE, (x,), {}, (x.type, x.type), graphs=(body,))
    return Graph.closed((x,), node.outputs)


def test_nested_graphs_pass() -> None:
    verify_graph(nested())


def test_corruption_of_a_nested_graph_is_noticed() -> None:
    graph = nested()
    (body,) = node_of(graph, "twice").graphs
    corrupt_dtype(body)
    with pytest.raises(sg.CompilerBug, match="tanh .*requires the type"):
        verify_graph(graph)


def test_a_nested_graph_may_not_read_an_outer_input() -> None:
    graph = nested()
    (body,) = node_of(graph, "twice").graphs
    body.outputs = (named("exp", graph.inputs[0]), body.outputs[1])
    body._order = None
    with pytest.raises(sg.CompilerBug, match="all its inputs listed, got 'x'"):
        verify_graph(graph)


def test_leaves_have_their_own_class() -> None:
    op = Op(
        "constant", lambda value: (), lambda value: FLOAT32, None, Leaf(), np.asarray,
        tuple, tuple,
    )  # fmt: skip
    tensor = apply(op, value=np.float32(1))
    with pytest.raises(sg.CompilerBug, match="requires a Constant"):
        verify_graph(Graph.closed((), (tensor,)))


def test_a_chain_of_ten_thousand_nodes_is_verified_without_recursion() -> None:
    with sg.Graph():
        x: Any = sg.input("x", (3,))
    y = x
    for _ in range(10_000):
        y = named("tanh", y)
    verify_graph(Graph.closed((x,), (y,)))
