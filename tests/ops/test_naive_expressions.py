"""Textbook formulas have stable values and finite derivatives.

Each case: an expression, arguments, its values and its gradient, all finite. The second
derivative is finite, too, where the case does not say otherwise.
"""

import math

import numpy as np
import pytest

import staticgrad as sg

INF = math.inf
E1 = math.exp(-1)
SIDE = 1 / (1 + E1)  # sigmoid(1)

CASES = {
    "log(sum(exp))": (
        lambda x: sg.log(sg.sum(sg.exp(x))), [1000.0, 999, -1000],
        1000 + math.log1p(E1), [SIDE, 1 - SIDE, 0],
    ),
    "log(sum(exp)) of tiny": (
        lambda x: sg.log(sg.sum(sg.exp(x), axis=0, keepdims=True)), [-1000.0, -1000],
        [-1000 + math.log(2)], [0.5, 0.5],
    ),
    "log(mean(exp))": (
        lambda x: sg.log(sg.mean(sg.exp(x))), [1000.0, 1000], 1000, [0.5, 0.5],
    ),
    "log(exp + exp)": (
        lambda x: sg.log(sg.exp(x[0]) + sg.exp(x[1])), [1000.0, 1000],
        1000 + math.log(2), [0.5, 0.5],
    ),
    "log(1 + x)": (lambda x: sg.log(1 + x), [1e-20, 0, 1], [1e-20, 0, math.log(2)],
                   [1, 1, 0.5]),
    "log(1 - x)": (lambda x: sg.log(1 - x), [1e-20, 0], [-1e-20, 0], [-1, -1]),
    "exp(x) - 1": (lambda x: sg.exp(x) - 1, [1e-20, 0], [1e-20, 0], [1, 1]),
    "log(1 + exp)": (lambda x: sg.log(1 + sg.exp(x)), [1000.0, -1000, 0],
                     [1000, 0, math.log(2)], [1, 0, 0.5]),
    "log(cosh)": (lambda x: sg.log(sg.cosh(x)), [1000.0, 0, -1000],
                  [1000 - math.log(2), 0, 1000 - math.log(2)], [1, 0, -1]),
    "sqrt(x^2)": (lambda x: sg.sqrt(x**2), [0.0, -2, 3, 1e-30, 1e30],
                  [0, 2, 3, 1e-30, 1e30], [0, -1, 1, 1, 1]),
    "sqrt(x * x)": (lambda x: sg.sqrt(x * x), [0.0, -2], [0, 2], [0, -1]),
    "sqrt(sum(x^2))": (lambda x: sg.sqrt(sg.sum(x**2)), [0.0, 0], 0, [0, 0]),
    "sqrt(x^2 + y^2)": (lambda x: sg.sqrt(x[0] ** 2 + x[1] ** 2), [0.0, 0], 0, [0, 0]),
    "sqrt(mean(x^2))": (lambda x: sg.sqrt(sg.mean(x * x)), [0.0, 0], 0, [0, 0]),
    "norm": (lambda x: sg.linalg.norm(x), [0.0, 0], 0, [0, 0]),
    "std": (lambda x: sg.std(x), [1.0, 1], 0, [0, 0]),
    "x / x": (lambda x: sg.where(x == 0, 1, x / x), [0.0, 1, 2], [1, 1, 1], [0, 0, 0]),
    "sin(x) / x": (lambda x: sg.where(x == 0, 1, sg.sin(x) / x), [0.0, math.pi],
                   [1, 0], [0, -1 / math.pi]),
    "1 / x": (lambda x: sg.where(x > 0, 1 / x, 0), [0.0, -1, 2], [0, 0, 0.5],
              [0, 0, -0.25]),
    "log": (lambda x: sg.where(x > 0, sg.log(x), 0), [0.0, -1, 2],
            [0, 0, math.log(2)], [0, 0, 0.5]),
    "sqrt": (lambda x: sg.where(x > 0, sg.sqrt(x), 0), [0.0, -1, 4], [0, 0, 2],
             [0, 0, 0.25]),
    "power": (lambda x: sg.where(x > 0, x**0.5, 0), [0.0, -1, 4], [0, 0, 2],
              [0, 0, 0.25]),
    "exp": (lambda x: sg.where(x < 10, sg.exp(x), 0), [1000.0, INF, 0], [0, 0, 1],
            [0, 0, 1]),
    "x log(x)": (lambda x: sg.where(x > 0, x * sg.log(x), 0), [0.0, 1], [0, 0], [0, 1]),
    "softmax": (lambda x: (sg.exp(x) / sg.sum(sg.exp(x)))[0], [1000.0, 999], SIDE,
                [SIDE * (1 - SIDE), -SIDE * (1 - SIDE)]),
    "softmax of rows": (
        lambda x: (sg.exp(x) / sg.sum(sg.exp(x), axis=1, keepdims=True))[:, 0],
        [[1000.0, 999]], [SIDE], [[SIDE * (1 - SIDE), -SIDE * (1 - SIDE)]],
    ),
    "log(softmax)": (lambda x: sg.log(sg.exp(x) / sg.sum(sg.exp(x)))[1],
                     [1000.0, -1000], -2000, [-1, 1]),
    "sigmoid": (lambda x: 1 / (1 + sg.exp(-x)), [1000.0, -1000, 0], [1, 0, 0.5],
                [0, 0, 0.25]),
    "exp / (1 + exp)": (lambda x: sg.exp(x) / (1 + sg.exp(x)), [1000.0, -1000, 0],
                        [1, 0, 0.5], [0, 0, 0.25]),
    "log(sigmoid)": (lambda x: sg.log(sg.sigmoid(x)), [1000.0, -1000], [0, -1000],
                     [0, 1]),
    "log(1 - sigmoid)": (lambda x: sg.log(1 - sg.sigmoid(x)), [1000.0, -1000],
                         [-1000, 0], [-1, 0]),
}  # fmt: skip

# A masked factor that is infinite, times one that is 0: the first derivative alone.
ONCE = {"x log(x)"}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients(name, dtype):
    function, point, value, slope = CASES[name]
    x = sg.input("x", np.shape(point), dtype)
    y = function(x)
    dx = sg.grad(sg.sum(y), x)
    got, gradient = sg.compile([y, dx], inputs=[x])(np.asarray(point, dtype))
    rtol = 1e-6 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(got, value, rtol, 1e-7)
    np.testing.assert_allclose(gradient, slope, rtol, 1e-7)


@pytest.mark.parametrize("name", [name for name in CASES if name not in ONCE])
def test_second_derivatives_are_finite(name):
    function, point, _, _ = CASES[name]
    x = sg.input("x", np.shape(point), "float64")
    dx = sg.grad(sg.sum(function(x)), x)
    again = sg.grad(sg.sum(dx * dx + dx), x, unused="zero")
    (found,) = sg.compile([again], inputs=[x])(np.asarray(point))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", ["1 / x", "log", "sqrt", "power", "x log(x)"])
def test_without_stable_forms_what_is_masked_out_is_no_poison(name):
    function, point, _, slope = CASES[name]
    x = sg.input("x", np.shape(point), "float64")
    dx = sg.grad(sg.sum(function(x)), x, simplify=False)
    got = sg.compile(dx, inputs=[x], target="reference")(np.asarray(point))
    np.testing.assert_allclose(got, slope)


def test_nan_is_not_hidden_where_nothing_is_masked():
    x = sg.input("x", (2,))
    dx = sg.grad(sg.sum(x * sg.log(x)), x)
    assert np.isnan(sg.compile(dx, inputs=[x])(np.array([-1.0, np.nan], "f4"))).all()
