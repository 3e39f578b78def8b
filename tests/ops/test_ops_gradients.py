"""Composites: derivatives of order 1 and 2, in float64, against differences."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.testing import gradcheck, gradgradcheck

X = np.array([[0.3, -1.2, 2.1], [1.4, 0.7, -0.6]])
Y = np.array([[1.1, 0.4, -0.9], [2.0, -1.5, 0.8]])

COMPOSITES = {
    "softmax": lambda x, y: sg.softmax(x, axis=1) * y,
    "log_softmax": lambda x, y: sg.log_softmax(x, axis=0) * y,
    "logsumexp": lambda x, y: sg.logsumexp(x * y, axis=1, keepdims=True),
    "logsumexp_all": lambda x, y: sg.logsumexp(x) * y,
    "logaddexp": sg.logaddexp,
    "logaddexp_equal": lambda x, y: sg.logaddexp(x, x + 0 * y),
    "softplus": lambda x, y: sg.softplus(x * y),
    "relu": lambda x, y: sg.relu(x) * y,
    "clip": lambda x, y: sg.clip(x, -1, 1) * y,
    "clip_by_tensors": lambda x, y: sg.clip(x, y - 0.5, y + 0.5) ** 2,
    "mean": lambda x, y: sg.mean(x, axis=0) * y,
    "var": lambda x, y: sg.var(x, axis=1, ddof=1) * sg.mean(y, axis=1),
    "std": lambda x, y: sg.std(x * y),
    "average": lambda x, y: sg.average(x, axis=1, weights=y * y),
    "prod": lambda x, y: sg.prod(x * y, axis=1),
    "square": lambda x, y: sg.square(x) * sg.reciprocal(y),
    "whole_powers": lambda x, y: x**3 + y**-2 + x**2 * y**5,
    "powers": lambda x, y: abs(x) ** y,
    "roots": lambda x, y: (x * x) ** 0.5 * sg.rsqrt(y * y),
    "remainder": lambda x, y: x % 0.65 * y,
    "where": lambda x, y: sg.where(x > y, x * y, sg.exp(y)),
    "extremes": lambda x, y: sg.max(x, axis=1) * sg.min(y, axis=0)[:2],
    "linspace": lambda x, y: sg.linspace(x, y, 3) ** 2,
    "by_mode": lambda x, y: sg.by_mode(train=x, eval=x * y),
    "stacked": lambda x, y: sg.sum([x, y * 2, 1.5 * X], axis=0) ** 2,
    "heaviside": lambda x, y: sg.heaviside(x, 0.5) * y,
    "casts": lambda x, y: (x * y).astype("float64") * (x > 0),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_derivatives_equal_differences(name):
    assert gradcheck(COMPOSITES[name], X, Y)
    assert gradgradcheck(COMPOSITES[name], X, Y)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_product_with_zeros_to_second_order(count):
    x = np.array([[0.5, -1.5, 2.0], [3.0, 0.7, -0.4]])
    x.ravel()[:count] = 0
    for axis in (None, 0, 1):
        assert gradcheck(lambda t, axis=axis: sg.prod(t, axis=axis), x)
        assert gradgradcheck(lambda t, axis=axis: sg.prod(t, axis=axis), x)
