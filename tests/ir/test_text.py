"""Graphs as text: the form is relied on by the tests of passes and by people."""

from __future__ import annotations

import re

import numpy as np

import staticgrad as sg
from staticgrad.ir.graph import Graph
from staticgrad.ir.graph_text import text
from staticgrad.ir.node import Node
from staticgrad.ir.op import Control, Op
from staticgrad.ops.named import named


def example() -> Graph:
    with sg.Graph() as graph:
        x = sg.input("x", ("batch", 3))
        w = sg.parameter(np.zeros(3, np.float32), name="w")
        y = named("tanh", named("add", x, w))
        total = named("reduce_sum", y, axes=(0,))
        sg.update(w, total)
    graph.outputs = (y,)
    return graph


def test_one_line_a_node() -> None:
    assert text(example(), lines=False).splitlines() == [
        "%0: float32[batch, 3] = input('x')",
        "%1: float32[3] = parameter('w')",
        "%2: float32[batch, 3] = add(%0, %1)",
        "%3: float32[batch, 3] = tanh(%2)",
        "%4: float32[3] = reduce_sum(%3, axes=(0,))",
        "return %3",
        "update w <- %4",
    ]


def test_each_line_names_the_line_of_the_user() -> None:
    first, *_ = text(example()).splitlines()
    assert re.fullmatch(r".*input\('x'\)  # test_text.py:\d+", first)


def test_equal_graphs_have_equal_text() -> None:
    assert text(example(), lines=False) == text(example(), lines=False)


def test_attributes_and_constants() -> None:
    with sg.Graph():
        x = sg.input("x", ("n",))
    tensors = (
        sg.constant(np.float32(0.5)),
        sg.constant(np.arange(2)),
        sg.constant(np.zeros((3, 4))),
        named("cast", x, dtype=np.dtype("int32")),
        named("broadcast_to", x, shape=(2, *x.shape)),
    )
    lines = text(Graph.closed((x,), tensors), lines=False).splitlines()
    assert [line.split(" = ")[1] for line in lines[:-1]] == [
        "constant(0.5)",
        "constant([0, 1])",
        "constant(float64[3, 4])",
        "input('x')",
        "cast(%3, dtype=int32)",
        "broadcast_to(%3, shape=(2, n))",
    ]


def test_nested_graphs_are_indented() -> None:
    twice = Op(
        "twice", lambda x: (x.shape,) * 2, lambda x: (x.dtype,) * 2, None, Control(),
        lambda x, graphs: graphs[0](x), tuple, tuple, outputs=2,
    )  # fmt: skip
    with sg.Graph():
        x = sg.input("x", ())
    with sg.Graph():
        inner = sg.input("inner", ())
    body = Graph.closed((inner,), (named("exp", inner), inner))
    node = Node(twice, (x,), {}, (x.type, x.type), graphs=(body,))
    assert text(Graph.closed((x,), node.outputs), lines=False).splitlines() == [
        "%0: float32[] = input('x')",
        "%1: float32[], %2: float32[] = twice(%0)",
        "  {",
        "    %0: float32[] = input('inner')",
        "    %1: float32[] = exp(%0)",
        "    return %1, %0",
        "  }",
        "return %1, %2",
    ]
