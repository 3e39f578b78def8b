"""Derivatives at kinks and ties, and where a masked branch must not poison them."""

import numpy as np
import pytest

import staticgrad as sg


def gradient(function, *values):
    """d sum(function(x...)) / dx for each value, in float64, by the reference."""
    arrays = [np.asarray(v, dtype="float64") for v in values]
    xs = [sg.input(f"x{n}", a.shape, "float64") for n, a in enumerate(arrays)]
    found = sg.grad(sg.sum(function(*xs)), xs, unused="zero")
    result = sg.compile(found, inputs=xs, target="reference")(*arrays)
    return [array.tolist() for array in result]


CASES = [
    (sg.absolute, [-2.0, 0.0, -0.0, 3.0], [-1, 0, 0, 1]),
    (sg.relu, [-2.0, 0.0, -0.0, 3.0], [0, 0, 0, 1]),
    (sg.sign, [-2.0, 0.0, 3.0], [0, 0, 0]),
    (sg.floor, [-2.5, 0.0], [0, 0]),
    (lambda x: sg.clip(x, -1, 1), [-2.0, -1.0, 0.0, 1.0, 2.0], [0, 1, 1, 1, 0]),
    (lambda x: sg.maximum(x, 0), [-1.0, 0.0, 1.0], [0, 0.5, 1]),
    (lambda x: sg.minimum(x, 0), [-1.0, 0.0, 1.0], [1, 0.5, 0]),
    (sg.max, [1.0, 3.0, 3.0, 2.0], [0, 0.5, 0.5, 0]),
    (sg.min, [1.0, 3.0, 1.0, 1.0], [1 / 3, 0, 1 / 3, 1 / 3]),
    (sg.sqrt, [4.0, 0.0], [0.25, np.inf]),
    (sg.prod, [2.0, 0.0, 5.0], [0, 10, 0]),
    (sg.prod, [0.0, 0.0, 5.0], [0, 0, 0]),
    (sg.softplus, [0.0], [0.5]),
    (sg.stop_gradient, [1.0], [0]),
    (sg.nan_to_num, [np.nan, np.inf, 1.0], [0, 0, 1]),
    (lambda x: x**0, [0.0, 2.0], [0, 0]),
    (lambda x: x**2, [0.0, 2.0], [0, 4]),
]


@pytest.mark.parametrize(("function", "x", "want"), CASES)
def test_derivative(function, x, want):
    (got,) = gradient(function, x)
    np.testing.assert_allclose(got, want, rtol=1e-15)


MASKED = {
    "sqrt at 0": (lambda x: sg.where(x > 0, sg.sqrt(x), 0), [0.0, 4.0], [0, 0.25]),
    "sqrt below": (lambda x: sg.where(x > 0, sg.sqrt(x), 0), [-1.0], [0]),
    "rsqrt": (lambda x: sg.where(x > 0, sg.rsqrt(x), 0), [0.0, -1, 4], [0, 0, -1 / 16]),
    "log": (lambda x: sg.where(x > 0, sg.log(x), 0), [0.0, -1.0, 2.0], [0, 0, 0.5]),
    "log1p": (lambda x: sg.where(x > -1, sg.log1p(x), 0), [-1.0, 1.0], [0, 0.5]),
    "divide": (lambda x: sg.where(x != 0, 1 / x, 0), [0.0, 2.0], [0, -0.25]),
    "sinc": (lambda x: sg.where(x == 0, 1, sg.sin(x) / x), [0.0], [0]),
    "exp": (lambda x: sg.where(x > 700, 0, sg.exp(x)), [1e3, 0.0], [0, 1]),
    "power": (lambda x: sg.where(x > 0, x**0.3, 0), [0.0, 1.0], [0, 0.3]),
    "softplus": (
        lambda x: sg.where(x > 30, x, sg.log(1 + sg.exp(x))), [1e3, 0.0], [1, 0.5],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKED)
def test_a_masked_branch_never_poisons(name):
    function, x, want = MASKED[name]
    (got,) = gradient(function, x)
    np.testing.assert_allclose(got, want, rtol=1e-14)


def test_masking_keeps_second_derivatives():
    # the gradient is 0 at x = 4, and its derivative there must not be
    x = sg.input("x", (), "float64")
    loss = (sg.sqrt(x) - 2) ** 2
    second = sg.grad(sg.grad(loss, x), x)
    f = sg.compile(second, inputs=[x], target="reference")
    np.testing.assert_allclose(f(np.array(4.0)), 1 / 8, rtol=1e-14)


@pytest.mark.parametrize("function", [sg.softplus, lambda x: sg.logaddexp(x, 0.0)])
def test_second_derivative_of_softplus_at_0(function):
    x = sg.input("x", (), "float64")
    second = sg.grad(sg.grad(function(x), x), x)
    f = sg.compile(second, inputs=[x], target="reference")
    np.testing.assert_allclose(f(np.array(0.0)), 0.25, rtol=1e-14)


def test_ties_of_two_arguments():
    assert gradient(sg.maximum, [1.0, 2.0], [1.0, 1.0]) == [[0.5, 1], [0.5, 0]]
    assert gradient(sg.minimum, [1.0, 2.0], [1.0, 1.0]) == [[0.5, 0], [0.5, 1]]
    assert gradient(sg.logaddexp, [1.0], [1.0]) == [[0.5], [0.5]]


def test_power_of_two_arguments():
    dx, dp = gradient(lambda x, p: x**p, [0.0, 0.0, 2.0], [0.0, 2.0, 3.0])
    np.testing.assert_allclose(dx, [0, 0, 12])
    np.testing.assert_allclose(dp, [0, 0, 8 * np.log(2)])


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_product_along_a_symbolic_axis(zeros):
    x = sg.input("x", ("n",), "float64")
    f = sg.compile(sg.grad(sg.prod(x), x), inputs=[x], target="reference")
    value = np.array([2.0, 3.0, 5.0, 7.0])
    value[:zeros] = 0
    want = [np.prod(np.delete(value, i)) for i in range(4)]
    np.testing.assert_allclose(f(value), want)


def test_comparisons_and_integers_have_no_derivative():
    x = sg.input("x", (2,), "float64")
    with pytest.raises(sg.GraphError):
        sg.grad(sg.sum((x > 0).astype("float64")), x)


@pytest.mark.parametrize("function", [sg.hypot, sg.arctan2])
def test_second_derivatives_at_the_origin_are_zero(function):
    p = sg.input("p", (2,), "float64")
    second = sg.hessian(function(p[0], p[1]), p)
    for target in ("reference", "cpu"):
        found = sg.compile(second, target=target)
        assert found([0.0, 0.0]).tolist() == [[0.0, 0.0], [0.0, 0.0]]
        assert np.abs(found([3.0, 4.0])).min() > 0
