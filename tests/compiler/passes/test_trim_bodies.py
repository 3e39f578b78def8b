"""Bodies lose what nothing needs, and compute the same."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.passes.trim_bodies import trim_bodies
from staticgrad.ir.graph import Graph

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def loop_of(graph):
    return next(node for node in graph.nodes if node.graphs)


def trimmed(outputs, **arrays):
    """The node that is left of the one in `outputs`, which compute the same."""
    inputs = [sg.input(name, a.shape, a.dtype) for name, a in arrays.items()]
    graph = Graph.closed(inputs, outputs(*inputs))
    after = trim_bodies(graph)
    assert trim_bodies(after) is after
    found, wanted = (
        sg.compile(list(g.outputs), inputs=inputs, target=target)(**arrays)
        for g, target in ((after, "cpu"), (graph, "reference"))
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    return loop_of(after)


def test_equal_results_are_stacked_once():
    def step(c, v):
        y = sg.sin(c + v)
        return y, (y, c * y, y)

    def outputs(x):
        last, (first, second, third) = sg.scan(step, sg.zeros(3), x)
        return last, first, second, third * 2

    node = trimmed(outputs, x=X)
    assert len(node.outputs) == 3


def test_what_nothing_reads_goes_with_all_that_only_it_needs():
    def step(carry, row):
        (a, b), (u, v) = carry, row
        return (a + u, b * v), (sg.exp(b), a)

    def outputs(x, y):
        (last, _), (_, stacked) = sg.scan(step, (sg.zeros(3), sg.ones(3)), (x, y))
        return last, stacked

    node = trimmed(outputs, x=X, y=X + 2)
    assert (node.attrs["carries"], node.attrs["sequences"]) == (1, 1)
    assert [n.op.name for n in node.graphs[0].nodes if n.inputs] == ["add"]
    assert len(node.outputs) == 2


def test_a_carry_stays_that_another_one_needs():
    def step(carry, v):
        a, b, c = carry
        return (a + b, b * c, c + v), None

    def outputs(x):
        (last, _, _), _ = sg.scan(step, (sg.zeros(3), sg.ones(3), sg.ones(3)), x)
        return (last,)

    assert trimmed(outputs, x=X).attrs["carries"] == 3


@pytest.mark.parametrize("sequence", [False, True])
def test_one_input_stands_for_a_tensor(sequence):
    def step(c, row):
        if sequence:
            return c * row[0] + row[1], None
        return c * w + row[0] + w, None

    w = sg.parameter(np.float32(0.5), name="w")

    def outputs(x):
        last, _ = sg.scan(step, sg.ones(3), (x, x) if sequence else (x, x + 1))
        return (last,)

    node = trimmed(outputs, x=X)
    assert node.attrs["sequences"] == 1
    assert len(node.inputs) == 2 + (not sequence)


def test_branches_lose_results_and_captures():
    def outputs(x, i):
        return (
            sg.switch(
                i,
                [
                    lambda a, b: (sg.sin(a), b, sg.sin(a)),
                    lambda a, b: (sg.cos(a), a + b, sg.cos(a)),
                ],
                x,
                x * 3,
            )[0],
        )

    node = trimmed(outputs, x=X, i=np.array(1))
    assert (len(node.inputs), len(node.outputs)) == (2, 1)


def test_a_while_loop_keeps_its_carries_and_loses_captures():
    def outputs(x, y):
        def step(carry):
            a, b = carry
            return a * 2 + y[0], b + y[0] * 0.5

        last, _ = sg.while_loop(lambda carry: carry[0][0] < 9, step, (x[3], x[2]))
        return (last,)

    node = trimmed(outputs, x=X, y=X + 2)
    assert node.attrs["carries"] == 2


def test_loops_in_loops_end_without_what_the_outer_one_drops():
    def outer(c, row):
        inner, ys = sg.scan(lambda d, v: (d + v, sg.exp(d)), c[0], row)
        return c + inner, sg.sum(ys)

    def outputs(x):
        return (sg.scan(outer, sg.zeros(3), x)[0],)

    node = trimmed(outputs, x=X)
    (inner,) = [n for n in node.graphs[0].nodes if n.graphs]
    assert len(inner.outputs) == 1
    assert "exp" not in [n.op.name for n in inner.graphs[0].nodes]


def test_a_gradient_stacks_what_two_products_share_once():
    rng = np.random.default_rng(0)
    arrays = {"x": (5, 2, 3), "u": (4, 3), "w": (4, 4)}
    leaves = {n: sg.input(n, shape) for n, shape in arrays.items()}
    u, w = leaves["u"], leaves["w"]

    def step(h, row):
        h = sg.tanh(row + h @ w.T)
        return h, h

    _, ys = sg.scan(step, sg.zeros((2, 4)), leaves["x"] @ u.T)
    grads = sg.grad(sg.sum(ys * ys), [u, w])
    graph = Graph.closed(list(leaves.values()), grads)
    backward = [n for n in trim_bodies(graph).nodes if n.attrs.get("reverse")]
    assert [len(n.outputs) - n.attrs["carries"] for n in backward] == [1]
    given = {n: rng.normal(size=s).astype(np.float32) for n, s in arrays.items()}
    found, wanted = (
        sg.compile(grads, inputs=list(leaves.values()), target=target)(**given)
        for target in ("cpu", "reference")
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)
