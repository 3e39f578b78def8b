"""A symbolic size in arithmetic, comparisons and NumPy's functions; what it is not."""

import math

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.node import Tensor

with sg.Graph(dtype="float64"):
    X = sg.input("x", ("n",))
N = X.shape[0]


def both(y, size):
    """`y` for a size on both targets."""
    for target in ("reference", "cpu"):
        yield sg.compile(y, inputs=[X], target=target)(np.ones(size))


FUNCTIONS = {
    "sqrt": (np.sqrt, lambda n: np.sqrt(n)),
    "log": (np.log, lambda n: np.log(n)),
    "maximum": (lambda n: np.maximum(n, 3), lambda n: max(n, 3)),
    "number times": (lambda n: np.float64(0.5) * n, lambda n: 0.5 * n),
    "array over": (lambda n: np.ones(3) / n, lambda n: np.ones(3) / n),
    "above": (lambda n: n > 3, lambda n: n > 3),
    "below": (lambda n: n >= 3, lambda n: n >= 3),
    "array above": (lambda n: np.arange(5) < n, lambda n: np.arange(5) < n),
    "choice": (lambda n: sg.where(n > 3, 1.0, 2.0), lambda n: 1.0 if n > 3 else 2.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_size_is_a_number_of_the_graph(name):
    function, known = FUNCTIONS[name]
    y = function(N)
    assert isinstance(y, Tensor)
    for size in (1, 3, 7):
        for found in both(y, size):
            np.testing.assert_allclose(found, known(size), rtol=1e-15)


def test_what_is_exact_stays_a_size():
    assert np.int64(2) * N == 2 * N
    assert np.add(N, 1) == N + 1
    assert np.int64(7) // N == 7 // N
    assert (np.int64(3) == N) is False
    assert np.int64(3) != N


@pytest.mark.parametrize(
    "use", [range, int, float, math.sqrt, lambda n: [1, 2][n], np.ones]
)
def test_a_size_has_no_value_while_the_graph_is_built(use):
    sizes = (N,) if use is np.ones else N
    with pytest.raises(TypeError, match=r"requires a number, got the size n, .*sg\."):
        use(sizes)


SPACES = {
    "ends": lambda m, n: m.linspace(0.1, 1, n),
    "open": lambda m, n: m.linspace(0.1, 1, n, endpoint=False),
    "lines": lambda m, n: m.linspace([0.0, 1.0], [2.0, 5.0], n, axis=-1),
    "logarithmic": lambda m, n: m.logspace(0, 2, n),
    "geometric": lambda m, n: m.geomspace(1, 1000, n),
}


@pytest.mark.parametrize("name", SPACES)
def test_as_many_numbers_as_a_size_says(name):
    with sg.Graph(dtype="float64"):
        y = SPACES[name](sg, N)
    for size in (0, 1, 2, 9):
        for found in both(y, size):
            np.testing.assert_allclose(found, SPACES[name](np, size), rtol=1e-14)


def test_the_distance_of_numbers_whose_count_is_a_size():
    with sg.Graph(dtype="float64"):
        _, step = sg.linspace(0, 1, N, retstep=True)
    assert all(found == 0.25 for found in both(step, 5))
