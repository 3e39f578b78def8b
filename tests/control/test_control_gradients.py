"""Derivatives through control flow: against differences, to order 2, both modes."""

import numpy as np
import pytest

import staticgrad as sg

rng = np.random.default_rng(0)
X = rng.uniform(0.3, 0.9, 4)
W = rng.normal(size=(3, 3)) * 0.4


def power(x):
    """One carry, one sequence."""
    last, ys = sg.scan(lambda c, v: (sg.sin(c) * v + v, c * v), 0.5, x)
    return last + sg.sum(ys**2)


def pair(x):
    """Carries that change places, a structure that is stacked."""

    def step(carry, v):
        a, b = carry["a"], carry["b"]
        return {"a": b * v, "b": a + sg.tanh(b)}, (a * b, {"y": v})

    last, (ys, rest) = sg.scan(step, {"a": x[0], "b": 1.0}, x, reverse=True)
    return last["a"] + sg.sum(ys) * last["b"] + sg.sum(rest["y"])


def recurrent(w, x):
    """A weight from outside."""
    start = sg.zeros((2, 3), dtype="float64")
    xs = sg.reshape(x, (4, 1, 1)) * sg.ones((4, 2, 3), dtype="float64")
    last, hs = sg.scan(lambda h, v: (sg.tanh(h @ w + v),) * 2, start, xs)
    return sg.sum(hs**2) + sg.sum(last * last)


def transposed(w, bias, x):
    """A weight used transposed, twice, and a bias."""
    start = sg.zeros((2, 3), dtype="float64")

    def step(h, v):
        h = sg.sin(h @ w.T + bias + v) + 0.5 * h @ w
        return h, h[0]

    last, ys = sg.scan(step, start, x)
    return sg.sum(ys) + sg.sum(last**2)


def nested(x):
    """A scan in a scan, which reads what the outer one carries."""

    def outer(total, v):
        inner, ys = sg.scan(lambda c, u: (c * u * v, c + total), 1.0 + v, x)
        return total * v + inner, sg.sum(ys)

    last, ys = sg.scan(outer, 0.0, x)
    return last + sg.sum(ys)


def counted(x):
    """A position, and an element that is read by it."""
    return sg.fori_loop(1, 4, lambda i, c: c * x[i] + sg.sqrt(1.0 + i) * x[0], 0.1)


def branched(x):
    """Both branches are differentiated where they are taken."""
    parts = [
        sg.cond(v > 0.5, lambda v=v: v**3, lambda v=v: sg.sin(v) * x[0])
        for v in [x[0], x[1], x[2], x[3]]
    ]
    return sum(parts)


def switched(x):
    """A branch in a loop, chosen by the position."""

    def step(i, c):
        return sg.switch(i, [lambda: c * x[0], lambda: c + x[1] ** 2, lambda: c * c])

    return sg.fori_loop(0, 4, step, x[3])


def differentiated_inside(x):
    """A gradient inside of the body."""

    def step(c, v):
        slope = sg.grad(sg.sin(c * v) * c, c)
        return c + 0.1 * slope, slope

    last, slopes = sg.scan(step, 0.2, x)
    return last * sg.sum(slopes)


ONE = [power, pair, nested, counted, branched, switched, differentiated_inside]
CASES = [
    *[pytest.param(f, (X,), id=f.__name__) for f in ONE],
    pytest.param(recurrent, (W, X), id="recurrent"),
    pytest.param(transposed, (W, X[:3], rng.normal(size=(4, 2, 3))), id="transposed"),
]


@pytest.mark.parametrize(("function", "args"), CASES)
def test_gradient(function, args):
    sg.testing.gradcheck(function, *args)


@pytest.mark.parametrize(("function", "args"), CASES)
def test_second_derivative(function, args):
    sg.testing.gradgradcheck(function, *args, directions=3)


@pytest.mark.parametrize(("function", "args"), CASES)
def test_forward_mode(function, args):
    sg.testing.check_jvp(function, *args)


@pytest.mark.parametrize(("function", "args"), CASES)
def test_targets_agree(function, args):
    tensors = [sg.input(f"x{n}", a.shape, a.dtype) for n, a in enumerate(args)]
    y = function(*tensors)
    for simplify in (True, False):
        outputs = [y, sg.grad(y, tensors, simplify=simplify)]
        wanted = sg.compile(outputs, target="reference")(*args)
        got = sg.compile(outputs, poison=True)(*args)
        assert got[0] == pytest.approx(wanted[0], rel=1e-12)
        for a, b in zip(got[1], wanted[1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_a_hook_in_a_loop_of_one_number_gets_the_gradient_itself():
    x = sg.input("x", (4,), "float64")

    def last(loop):
        def step(c, v):
            return sg.on_gradient(sg.sin(c) * v, lambda g: sg.clip(g, -0.2, 0.2) + 1)

        return loop(step, x[0])

    def unrolled(step, c):
        for n in range(4):
            c = step(c, x[n])
        return c

    a = last(lambda step, c: sg.scan(lambda c, v: (step(c, v), None), c, x)[0])
    got, wanted = sg.compile([sg.grad(a, x), sg.grad(last(unrolled), x)])(X)
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
