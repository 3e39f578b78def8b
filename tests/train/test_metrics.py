"""Metrics: values by hand, shapes that do not fit."""

import numpy as np
import pytest

import staticgrad as sg

TARGETS = ("reference", "cpu")


@pytest.mark.parametrize("target", TARGETS)
def test_accuracy_is_the_share_of_right_rows(target):
    logits = np.array([[1, 2, 2], [3, 1, 0], [0, 0, 0], [0, 5, 9]], np.float32)
    with sg.Graph():
        x = sg.input("x", ("batch", 3))
        y = sg.input("y", ("batch",), dtype="int32")
        value = sg.metrics.accuracy(x, y)
    got = sg.compile(value, target=target)(x=logits, y=np.int32([1, 0, 2, 2]))
    assert got == 0.75
    assert got.dtype == np.float32


@pytest.mark.parametrize("target", TARGETS)
def test_regression_metrics(target):
    a, b = np.float32([[1], [2], [4]]), np.float32([[1], [0], [1]])
    with sg.Graph():
        x, y = sg.input("x", ("batch", 1)), sg.input("y", ("batch", 1))
        values = {
            "mse": sg.metrics.mean_squared_error(x, y),
            "mae": sg.metrics.mean_absolute_error(x, y),
        }
    got = sg.compile(values, target=target)(x=a, y=b)
    np.testing.assert_allclose(got["mse"], 13 / 3, rtol=1e-6)
    np.testing.assert_allclose(got["mae"], 5 / 3, rtol=1e-6)


def test_shapes_that_differ_are_errors():
    with sg.Graph():
        x = sg.input("x", ("batch", 3))
        y = sg.input("y", ("batch",), dtype="int64")
        with pytest.raises(sg.ShapeError, match="equal shapes"):
            sg.metrics.mean_squared_error(x, y)
        with pytest.raises(sg.ShapeError, match="equal shapes"):
            sg.metrics.mean_absolute_error(x, y)
        with pytest.raises(sg.ShapeError, match="one label per row"):
            sg.metrics.accuracy(x, x)
