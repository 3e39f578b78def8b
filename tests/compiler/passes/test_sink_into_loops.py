"""Cheap work on sequences is done in the steps of loops, and gives the same."""

import numpy as np

import staticgrad as sg
from staticgrad.compiler.compile import optimise
from staticgrad.compiler.passes.sink_into_loops import sink_into_loops
from staticgrad.ir.graph import Graph

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
B = np.linspace(0, 1, 6, dtype=np.float32)


def sunk(outputs, *arrays, idle=False):
    """The names of operations outside and inside of the loop, after the pass."""
    inputs = [sg.input(f"x{n}", a.shape, a.dtype) for n, a in enumerate(arrays)]
    graph = Graph.closed(inputs, outputs(*inputs))
    after = sink_into_loops(graph)
    assert (after is graph) == idle
    assert sink_into_loops(after) is after
    found, wanted = (
        sg.compile(list(g.outputs), inputs=inputs, target=target)(*arrays)
        for g, target in ((after, "cpu"), (graph, "reference"))
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    (node,) = [node for node in after.nodes if node.graphs]
    outside = [n.op.name for n in after.nodes if n.inputs and n is not node]
    return outside, [n.op.name for n in node.graphs[0].nodes if n.inputs]


def summed(c, v):
    return c + v, c * v


def test_a_bias_goes_into_the_steps():
    outside, inside = sunk(
        lambda x, b: sg.scan(summed, sg.zeros(6), x + b), X, B
    )  # fmt: skip
    assert "add" not in outside
    assert inside.count("add") == 2


def test_one_operation_after_the_other():
    def outputs(x, b):
        return sg.scan(summed, sg.zeros(6), b - x * 2, reverse=True)

    outside, inside = sunk(outputs, X, B)
    assert set(outside) <= {"broadcast_to"}
    assert sorted(inside) == ["add", "multiply", "multiply", "subtract"]


def test_what_is_read_twice_stays():
    def outputs(x, b):
        y = x + b
        return *sg.scan(summed, sg.zeros(6), y), y

    assert "add" in sunk(outputs, X, B, idle=True)[0]


def test_what_costs_more_stays_outside():
    def outputs(x):
        return sg.scan(summed, sg.zeros(6), sg.exp(x))

    assert "exp" in sunk(outputs, X, idle=True)[0]


def test_two_sequences_are_not_made_of_one():
    def outputs(x, y):
        return sg.scan(summed, sg.zeros(6), x + y)

    assert "add" in sunk(outputs, X, X + 1, idle=True)[0]


def test_what_a_product_reads_stays_outside():
    def outputs(x, b):
        def step(c, v):
            return c + sg.reshape(v, (2, 3)) @ sg.ones((3, 3)), None

        return (sg.scan(step, sg.zeros((2, 3)), x + b)[0],)

    assert "add" in sunk(outputs, X, B, idle=True)[0]


def test_views_of_a_slice_are_looked_through():
    def outputs(x, b):
        def step(c, v):
            left, right = sg.split(v, 2)
            return c + left * right, None

        return (sg.scan(step, sg.zeros(3), x + b)[0],)

    assert "add" not in sunk(outputs, X, B)[0]


def test_a_value_that_is_another_one_in_each_step_is_a_sequence():
    column = np.arange(4, dtype=np.float32).reshape(4, 1)

    def outputs(x, c):
        return sg.scan(summed, sg.zeros(6), x + c)

    assert "add" in sunk(outputs, X, column, idle=True)[0]


def test_what_becomes_cheap_later_goes_too():
    """The cotangent of a square is a sum of two equal products at first."""
    with sg.Graph():
        x = sg.input("x", X.shape)
        _, ys = sg.scan(lambda c, v: (sg.tanh(c + v),) * 2, sg.zeros(6), x)
        graph = Graph.closed([x], [sg.grad(sg.sum(ys * ys) / 8, x)])
    forward, backward = (n for n in optimise(graph, "train").nodes if n.graphs)
    assert set(forward.outputs) & set(backward.inputs)
    assert all(t.op.name != "multiply" for t in backward.inputs)
