"""Products with what a carry was before each step read what it was after them."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.passes.shift_stacks import shift_stacks
from staticgrad.compiler.passes.trim_bodies import trim_bodies
from staticgrad.ir.graph import Graph

RNG = np.random.default_rng(0)
STEPS, ROWS, WIDTH = 5, 3, 4
X = RNG.standard_normal((STEPS, ROWS, WIDTH)).astype(np.float32)
W = RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 2
H = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)


def shifted(build, *arrays, idle=False):
    """Return the stacks of a loop after the pass; check results by the reference."""
    inputs = [sg.input(f"x{n}", a.shape, a.dtype) for n, a in enumerate(arrays)]
    graph = Graph.closed(inputs, build(*inputs))
    after = shift_stacks(graph)
    assert (after is graph) == idle
    assert shift_stacks(after) is after
    found, wanted = (
        sg.compile(list(g.outputs), inputs=inputs, target=target)(*arrays)
        for g, target in ((after, "cpu"), (graph, "reference"))
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    loops = [node for node in trim_bodies(after).nodes if node.graphs]
    return [len(loop.outputs) - loop.attrs["carries"] for loop in loops]


def stacks(h, x, w, reverse=False):
    """The states before and after the steps of a layer."""

    def step(h, x):
        new = sg.tanh(x + h @ w)
        return new, (h, new)

    return sg.scan(step, h, x, reverse=reverse)[1]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_stack_of_what_was_before_goes(side, reverse):
    """Each row of the other factor is different, so none may be taken for another."""

    def product(x, w, h):
        before, after = (sg.reshape(t, (-1, WIDTH)) for t in stacks(h, x, w, reverse))
        other = sg.reshape(x, (-1, WIDTH))
        left = before.T @ other if side == "left" else other.T @ before
        return left, after

    assert shifted(product, X, W, H) == [1]


def test_a_carry_of_one_row():
    def product(x, w, h):
        before, after = stacks(h, x, w)
        return x.T @ before, after

    assert shifted(product, X[:, 0], W, H[0]) == [1]


def test_several_products_read_one_stack():
    def products(x, w, h):
        before, after = stacks(h, x, w)
        one, other = sg.reshape(before, (-1, WIDTH)), sg.reshape(x, (-1, WIDTH))
        return one.T @ other, other.T @ one, one.T @ sg.exp(other), after

    assert shifted(products, X, W, H) == [1]


def test_what_something_else_reads_stays():
    def products(x, w, h):
        before, after = stacks(h, x, w)
        one, other = sg.reshape(before, (-1, WIDTH)), sg.reshape(x, (-1, WIDTH))
        return one.T @ other, sg.sum(one), after

    assert shifted(products, X, W, H, idle=True) == [2]


def test_products_along_other_axes_stay():
    """The terms are the features of a state, or its steps alone."""

    def products(x, w, h):
        before, after = stacks(h, x, w)
        one = sg.reshape(before, (-1, WIDTH))
        wide = sg.reshape(before, (STEPS, -1))
        return one @ w, wide.T @ sg.reshape(x, (STEPS, -1)), after

    assert shifted(products, X, W, H, idle=True) == [2]


def test_without_the_other_stack_it_stays():
    def product(x, w, h):
        before, _ = stacks(h, x, w)
        return (sg.reshape(before, (-1, WIDTH)).T @ sg.reshape(x, (-1, WIDTH)),)

    def only_before(x, w, h):
        def step(h, x):
            return sg.tanh(x + h @ w), h

        before = sg.scan(step, h, x)[1]
        return (sg.reshape(before, (-1, WIDTH)).T @ sg.reshape(x, (-1, WIDTH)),)

    assert shifted(only_before, X, W, H, idle=True) == [1]
    assert shifted(product, X, W, H) == [1]


def test_one_step_has_none_before_it():
    def product(x, w, h):
        before, after = stacks(h, x, w)
        return before[0].T @ x[0], sg.reshape(before, (-1, WIDTH)).T @ x[0], after

    assert shifted(product, X[:1], W, H, idle=True) == [2]


def layer(rows, steps, dtype="float32"):
    with sg.Graph(dtype=dtype):
        x, h = sg.input("x", (steps, rows, WIDTH)), sg.input("h", (rows, WIDTH))
        w = sg.input("w", (WIDTH, WIDTH))
        loss = sg.sum(stacks(h, x, w)[1] ** 2)
        grads = sg.grad(loss, [w, h, x])
    return [
        sg.compile(grads, inputs=[x, w, h], target=target)
        for target in ("cpu", "reference")
    ]


@pytest.mark.parametrize("rows", [ROWS, "rows"])
@pytest.mark.parametrize("steps", [STEPS, 2, "steps"])
def test_gradients_of_a_layer(rows, steps):
    """Sizes that are not known are; a number of steps that is not stays as it is."""
    x = X[: steps if isinstance(steps, int) else STEPS]
    f, reference = layer(rows, steps)
    for a, b in zip(f(x, W, H), reference(x, W, H), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_layer_keeps_its_states_once():
    """States, derivatives and cotangents; not the states before each step as well."""
    shape = 20, 16, 32
    with sg.Graph(seed=0):
        x = sg.input("x", shape)
        layer = sg.nn.RNN(32, 32)
        loss = sg.mean(layer(x)[0] ** 2)
        f = sg.compile(sg.grad(loss, layer.parameters()), inputs=[x])
    x = np.zeros(shape, np.float32)
    f(x)
    assert f.memory.arena_bytes < 3.5 * x.nbytes
