"""Loop-invariant code motion; failing operations and branches stay inside."""

import numpy as np

import staticgrad as sg
from staticgrad.compiler.passes.hoist import hoist
from staticgrad.ir.graph import Graph


def body_names(graph):
    """The operations of the bodies of the graph's loops and branches."""
    node = next(n for n in graph.nodes if n.graphs)
    return [n.op.name for inner in node.graphs for n in inner.nodes if n.inputs]


def hoisted(inputs, outputs):
    """The graph after the pass, which computes the same."""
    graph = Graph.closed(inputs, outputs)
    after = hoist(graph)
    arrays = [
        np.linspace(0.5, 1, int(np.prod(t.shape))).reshape(t.shape) for t in inputs
    ]
    arrays = [a.astype(t.dtype) for a, t in zip(arrays, inputs, strict=True)]
    before = sg.compile(list(graph.outputs), inputs=inputs, target="reference")(*arrays)
    now = sg.compile(list(after.outputs), inputs=inputs)(*arrays)
    for a, b in zip(now, before, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    return graph, after


def test_a_function_of_captures_leaves_a_scan():
    x, w = sg.input("x", (4, 3)), sg.input("w", (3,))

    def step(c, v):
        return (c + sg.exp(w * 2) * v, sg.exp(w * 2))

    graph, after = hoisted([x, w], sg.scan(step, sg.zeros(3), x))
    assert body_names(graph).count("exp") == 2
    assert "exp" not in body_names(after)


def test_the_condition_of_a_while_loop_keeps_its_inputs():
    x, w = sg.input("x", (3,)), sg.input("w", (3,))
    y = sg.while_loop(lambda c: c[0] < 9, lambda c: c * sg.exp(w) + w, x)
    _, after = hoisted([x, w], (y,))
    assert "exp" not in body_names(after)


def test_a_view_stays_unless_a_product_reads_it():
    x, w = sg.input("x", (4, 2, 3)), sg.input("w", (3, 3))

    def step(c, v):
        return (sg.tanh(c @ w.T + v), None)

    _, after = hoisted([x, w], (sg.scan(step, sg.zeros((2, 3)), x)[0],))
    assert "transpose" not in body_names(after)

    def step(c, v):
        return (c * w.T[0] + v, None)

    graph, after = hoisted([x, w], (sg.scan(step, sg.zeros((2, 3)), x)[0],))
    assert after is graph


def test_what_can_fail_stays():
    x, w, i = sg.input("x", (4,)), sg.input("w", (3,)), sg.input("i", (), "int64")
    y = sg.scan(lambda c, v: (c + w[i] * v, None), 0.0, x[:0])[0]
    after = hoist(Graph.closed((x, w, i), (y,)))
    assert "check_index" in body_names(after)
    f = sg.compile(y, inputs=[x, w, i])
    assert f(np.ones(4), np.ones(3), 99) == 0


def test_branches_keep_what_is_in_them():
    x = sg.input("x", (3,))
    y = sg.cond(x[0] > 0, lambda: sg.exp(x), lambda: x)
    graph, after = hoisted([x], (y,))
    assert after is graph
