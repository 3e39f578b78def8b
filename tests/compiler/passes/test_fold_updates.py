"""Does a matrix product take the step itself, and only where it may?"""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.kernel_ir.kernels import GemmKernel, LoopKernel

RNG = np.random.default_rng(4)
X = RNG.standard_normal((6, 5)).astype(np.float32)
Y = RNG.standard_normal((6, 3)).astype(np.float32)
RATE = 0.1


def start():
    return np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


def compiled(optimizer=None, outputs=lambda loss, grads: loss, batch=6):
    with sg.Graph():
        x, y = sg.input("x", (batch, 5)), sg.input("y", (batch, 3))
        w = sg.parameter(start(), name="w")
        b = sg.parameter(np.zeros(3, np.float32), name="b")
        loss = sg.mean((sg.tanh(x @ w) + b - y) ** 2)
        grads = sg.grad(loss, [w, b])
        step = (optimizer or sg.optim.SGD(RATE)).updates(grads, [w, b])
        f = sg.compile(outputs(loss, grads), inputs=[x, y], updates=step)
    return f, w


def adding(f):
    kernels = f.memory.plan.schedule.kernels
    return [k for k in kernels if isinstance(k, GemmKernel) and k.beta == 1]


def expected_after_one_step():
    w, x, y = start().astype(np.float64), X.astype(np.float64), Y.astype(np.float64)
    h = np.tanh(x @ w)
    return w - RATE * x.T @ ((1 - h**2) * 2 * (h - y) / y.size)


@pytest.mark.parametrize("batch", [6, "batch"])
def test_a_step_of_descent_is_a_product_that_adds_to_the_weights(batch):
    f, w = compiled(batch=batch)
    f(x=X, y=Y)
    assert len(adding(f)) == 1
    np.testing.assert_allclose(w.value, expected_after_one_step(), rtol=1e-5)


def test_a_gradient_that_is_an_output_stays():
    f, w = compiled(outputs=lambda loss, grads: [loss, grads[0]])
    _, gradient = f(x=X, y=Y)
    assert not adding(f)
    np.testing.assert_allclose(w.value, start() - RATE * gradient, rtol=1e-6)


@pytest.mark.parametrize(
    "optimizer", [sg.optim.SGD(RATE, momentum=0.9), sg.optim.Adam(RATE)]
)
def test_moments_need_the_gradient(optimizer):
    f, _ = compiled(optimizer)
    f(x=X, y=Y)
    assert not adding(f)


def test_both_sides_of_a_shared_weight_are_added_before_the_step():
    with sg.Graph():
        x = sg.input("x", (6, 5))
        w = sg.parameter(np.eye(5, dtype=np.float32), name="w")
        loss = sg.sum((x @ w) @ w)
        updates = sg.optim.SGD(RATE).updates([sg.grad(loss, w)], [w])
        f = sg.compile(loss, inputs=[x], updates=updates)
    f(x=X)
    total = np.broadcast_to(X.sum(0)[:, None], (5, 5)).astype(np.float64)
    expected = np.eye(5) - RATE * (total + np.ones((5, 1)) * X.sum(0)[:, None])
    np.testing.assert_allclose(w.value, expected, rtol=1e-5, atol=1e-6)


def test_nothing_is_written_where_the_loss_is_not_finite():
    with sg.Graph() as graph:
        x, y = sg.input("x", ("batch", 5)), sg.input("y", ("batch", 3))
        w = sg.parameter(start(), name="w")
        loss = sg.mean((x @ w - y) ** 2)
    trainer = sg.Trainer(loss, sg.optim.SGD(RATE))
    with pytest.raises(sg.NonFiniteError):
        trainer.step(x=np.full_like(X, np.inf), y=Y)
    np.testing.assert_array_equal(w.value, start())
    trainer.step(x=X, y=Y)
    assert not np.array_equal(w.value, start())
    assert graph.stored == (w,)


def weights_after_a_large_step(x, threads):
    sg.set_num_threads(threads)
    with sg.Graph():
        leaf = sg.input("x", (64, 500))
        w = sg.parameter(np.zeros((500, 300), np.float32), name="w")
        loss = sg.sum((leaf @ w - 1) ** 2)
        updates = sg.optim.SGD(1e-3).updates([sg.grad(loss, w)], [w])
        f = sg.compile(loss, inputs=[leaf], updates=updates)
    f(x=x)
    assert adding(f)
    return w.value


def test_bits_do_not_depend_on_threads():
    x = RNG.standard_normal((64, 500)).astype(np.float32)
    before = sg.get_num_threads()
    try:
        one, two = (weights_after_a_large_step(x, n) for n in (1, 2))
    finally:
        sg.set_num_threads(before)
    np.testing.assert_array_equal(one, two)
    exact = 2e-3 * x.T.astype(np.float64).sum(1)
    np.testing.assert_allclose(one, exact[:, None] * np.ones(300), rtol=1e-4)


@pytest.mark.parametrize(("terms", "folds"), [(20, True), (21, False)])
def test_a_factor_larger_than_the_weights_is_not_scaled(terms, folds):
    """Neither factor of W's gradient, x^T (y v^T), is made by a kernel of elements."""
    shapes = (terms, 3), (terms, 4), (3, 20), (20, 4)
    x, y, w, v = (RNG.standard_normal(shape).astype(np.float32) for shape in shapes)
    with sg.Graph():
        leaf, other = sg.input("x", x.shape), sg.input("y", y.shape)
        weight = sg.parameter(w, name="w")
        loss = sg.sum(leaf @ weight @ v * other)
        updates = sg.optim.SGD(RATE).updates([sg.grad(loss, weight)], [weight])
        f = sg.compile([], inputs=[leaf, other], updates=updates)
    f(x, y)
    assert len(adding(f)) == folds
    np.testing.assert_allclose(
        weight.value, w - RATE * x.T @ (y @ v.T), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("rows", "columns"), [(3, 20), (20, 3)])
def test_of_factors_that_no_kernel_of_elements_makes_the_smaller_is_scaled(
    rows, columns
):
    """W's gradient is x^T (y v^T): an input and a product."""
    shapes = (6, rows), (6, 4), (rows, columns), (columns, 4)
    x, y, w, v = (RNG.standard_normal(shape).astype(np.float32) for shape in shapes)
    with sg.Graph():
        leaf, other = sg.input("x", x.shape), sg.input("y", y.shape)
        weight = sg.parameter(w, name="w")
        loss = sg.sum(leaf @ weight @ v * other)
        updates = sg.optim.SGD(RATE).updates([sg.grad(loss, weight)], [weight])
        f = sg.compile([], inputs=[leaf, other], updates=updates)
    f(x, y)
    schedule = f.memory.plan.schedule
    (product,) = adding(f)
    makers = {
        o.buffer: k for k in schedule.kernels for o in k.operands if o.mode != "read"
    }
    scaled = [
        o.buffer
        for o in product.operands[:2]
        if isinstance(makers.get(o.buffer), LoopKernel)
    ]
    assert [schedule.buffers[buffer].elements for buffer in scaled] == [
        6 * min(rows, columns)
    ]
    np.testing.assert_allclose(
        weight.value, w - RATE * x.T @ (y @ v.T), rtol=1e-4, atol=1e-5
    )
