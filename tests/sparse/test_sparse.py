"""Sparse Jacobians and Hessians: patterns, colourings, values against dense, cost."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import staticgrad as sg
from staticgrad.sparse.colouring import column_colours, star_colours
from staticgrad.sparse.dependence import dependence
from staticgrad.sparse.patterns import Pattern
from staticgrad.testing import gradcheck


def value(tensor: Any) -> Any:
    return sg.compile(tensor, target="reference")()


def parameter(array: Any, name: str = "p") -> sg.Parameter:
    return sg.parameter(np.array(array, "float64"), name=name)


def dense(matrix: sg.SparseMatrix, target: str = "reference") -> Any:
    result = np.zeros(matrix.shape)
    result[matrix.indices] = sg.compile(matrix.data, target=target)()
    return result


X = np.random.default_rng(0).normal(size=12)
BAND = np.diag(np.arange(1.0, 13)) + np.diag(np.ones(11), 1)


def gathered(x: Any) -> Any:
    return sg.take(x, [3, 0, 0, 7]) * sg.sum(x[:2])


FUNCTIONS = {
    "elementwise": lambda x: sg.sin(x) * x,
    "neighbours": lambda x: x[1:] * x[:-1],
    "every second": lambda x: x[::2] + sg.exp(x[1::2]),
    "backwards": lambda x: x[::-1] * x,
    "rows": lambda x: sg.sum(x.reshape(3, 4) ** 2, axis=1),
    "broadcast": lambda x: x.reshape(3, 4) * x[:4],
    "transposed": lambda x: x.reshape(3, 4).T.reshape(12) * x,
    "padded": lambda x: sg.pad(x, 2, constant_values=3.0) * 2,
    "joined": lambda x: sg.concatenate([x[:3], sg.sin(x), x[1:2]]),
    "gathered": gathered,
    "data index": lambda x: sg.take(x.reshape(3, 4), sg.argmax(x[:3]), axis=0),
    "scattered": lambda x: sg.scatter_add(6, [1, 1, 4], x[:3] ** 2),
    "matrix": lambda x: BAND @ (x * x),
    "matrix on the right": lambda x: (x * x) @ BAND,
    "two matrices": lambda x: x.reshape(3, 4) @ sg.sin(x.reshape(4, 3)),
    "chosen": lambda x: sg.where(x > 0, x, x[::-1]),
    "cut": lambda x: sg.stop_gradient(x) * x[0],
    "one": lambda x: sg.sum(x * x),
    "shared": lambda x: sg.softmax(x),
    "by mode": lambda x: sg.by_mode(train=x, eval=x * x[::-1]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobian_equals_the_dense_one(name: str) -> None:
    x = parameter(X)
    y = FUNCTIONS[name](x)
    want = value(sg.jacobian(y, x)).reshape(-1, 12)
    for mode in ("forward", "reverse", None):
        np.testing.assert_allclose(
            dense(sg.sparse_jacobian(y, x, mode=mode)), want, atol=1e-14
        )
    found = dense(sg.sparse_jacobian(y, x), "cpu")
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-12)


EXACT = {
    "neighbours": 22, "rows": 12, "every second": 12, "padded": 12, "matrix": 23,
    "matrix on the right": 23, "joined": 16, "scattered": 3, "cut": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_patterns_are_as_small_as_they_can_be(name: str) -> None:
    x = parameter(X)
    pattern = dependence(FUNCTIONS[name](x), x)
    if name == "cut":
        assert pattern.indices.tolist() == [0] * 12
    else:
        assert pattern.indices.size == EXACT[name]


def rosenbrock(x: Any) -> Any:
    return sg.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def five_diagonals(x: Any) -> Any:
    return sg.sum((x[2:] - x[1:-1] ** 2 + sg.sin(x[:-2])) ** 2)


SCALARS = {
    "rosenbrock": rosenbrock,
    "five diagonals": five_diagonals,
    "separable": lambda x: sg.sum(sg.exp(x)),
    "arrow": lambda x: sg.sum(x[0] * x * x),
    "full": lambda x: sg.sum(x) ** 2,
    "grid": lambda x: sg.sum((x.reshape(3, 4)[1:] * x.reshape(3, 4)[:-1]) ** 2),
    "linear": lambda x: sg.sum(3 * x),
    "product": lambda x: sg.sum((BAND @ x) ** 4),
}


@pytest.mark.parametrize("name", SCALARS)
def test_hessian_equals_the_dense_one(name: str) -> None:
    x = parameter(X)
    y = SCALARS[name](x)
    want = value(sg.hessian(y, x))
    matrix = sg.sparse_hessian(y, x)
    np.testing.assert_allclose(dense(matrix), want, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(dense(matrix, "cpu"), want, rtol=1e-9, atol=1e-10)
    pairs = set(zip(*(index.tolist() for index in matrix.indices)))
    assert pairs == {(b, a) for a, b in pairs}


def test_the_data_is_differentiable() -> None:
    assert gradcheck(lambda x: sg.sparse_hessian(five_diagonals(x), x).data, X)


def test_float32_and_matrices_as_variables() -> None:
    x = sg.parameter(X.astype("f4").reshape(3, 4), name="x")
    matrix = sg.sparse_hessian(sg.sum(x**3 * x[0]), x)
    assert matrix.data.dtype == np.float32
    want = value(sg.hessian(sg.sum(x**3 * x[0]), x)).reshape(12, 12)
    np.testing.assert_allclose(dense(matrix), want, rtol=1e-5, atol=1e-5)


# ---- colourings ----------------------------------------------------------------------


@st.composite
def patterns(draw: Any) -> Pattern:
    rows, columns = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    places = st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1))
    drawn = sorted(draw(st.sets(places, max_size=25)))
    found = np.array(drawn, np.int64).reshape(-1, 2)
    return Pattern.of(found[:, 0], found[:, 1], (rows, columns))


@given(patterns())
@settings(max_examples=60)
def test_columns_of_one_colour_share_no_row(pattern: Pattern) -> None:
    colours = column_colours(pattern)
    for row in pattern.lists():
        assert len({colours[column] for column in row}) == len(row)


@given(patterns())
@settings(max_examples=60)
def test_star_colourings(pattern: Pattern) -> None:
    size = max(pattern.shape)
    rows, columns = pattern.row_indices, pattern.indices
    both = np.concatenate([rows, columns]), np.concatenate([columns, rows])
    whole = Pattern.of(*both, (size, size))
    colours = star_colours(whole)
    near = [[b for b in row if b != a] for a, row in enumerate(whole.lists())]
    for a in range(size):
        for b in near[a]:
            assert colours[a] != colours[b]
            for c in near[b]:
                for d in near[c]:
                    if len({a, b, c, d}) == 4:
                        assert len({colours[k] for k in (a, b, c, d)}) > 2


@given(patterns(), st.data())
@settings(max_examples=40)
def test_pattern_operations(pattern: Pattern, data: Any) -> None:
    full = np.zeros(pattern.shape, bool)
    full[pattern.row_indices, pattern.indices] = True
    turned = pattern.transposed()
    assert turned.shape == full.T.shape
    assert (turned.row_indices.tolist(), turned.indices.tolist()) == tuple(
        index.tolist() for index in np.nonzero(full.T)
    )
    places = data.draw(st.lists(st.integers(-1, pattern.rows - 1), max_size=6))
    taken = pattern.taken(np.array(places, np.int64))
    want = [full[p].nonzero()[0].tolist() if p >= 0 else [] for p in places]
    assert taken.lists() == want


def test_a_tridiagonal_hessian_takes_three_products_and_a_jacobian_two() -> None:
    x = parameter(np.ones(50))
    pattern = dependence(sg.grad(rosenbrock(x), x), x)
    assert star_colours(pattern).max() + 1 <= 3
    assert column_colours(dependence(x[1:] * x[:-1], x)).max() + 1 == 2


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_compiled_as_a_whole(target: Any) -> None:
    x = parameter(X)
    matrix = sg.sparse_hessian(five_diagonals(x), x)
    found = sg.compile({"h": matrix, "n": 3}, target=target)()
    assert found["n"] == 3
    assert found["h"].shape == (12, 12)
    whole = np.zeros((12, 12))
    whole[found["h"].indices] = found["h"].data
    np.testing.assert_array_equal(whole, dense(matrix, target))


# ---- cost ----------------------------------------------------------------------------


def test_ten_thousand_variables_in_five_products() -> None:
    n = 10_000
    x = parameter(np.random.default_rng(1).normal(size=n))
    start = time.perf_counter()
    matrix = sg.sparse_hessian(five_diagonals(x), x)
    assert time.perf_counter() - start < 40
    assert matrix.indices[0].size == 5 * n - 6
    pattern = Pattern.of(*matrix.indices, matrix.shape)
    assert min(c(pattern).max() for c in (star_colours, column_colours)) + 1 <= 5
    values = sg.compile(matrix.data)()
    v = np.random.default_rng(2).normal(size=n)
    product = np.zeros(n)
    np.add.at(product, matrix.indices[0], values * v[matrix.indices[1]])
    want = sg.compile(sg.hvp(five_diagonals(x), x, v))()
    np.testing.assert_allclose(product, want, rtol=1e-9, atol=1e-9)


# ---- errors --------------------------------------------------------------------------


def test_errors() -> None:
    with sg.Graph():
        s = sg.input("s", ("n",))
    x, z = parameter(X, "x"), parameter(X, "z")
    with pytest.raises(sg.ShapeError, match="requires static sizes"):
        sg.sparse_jacobian(s * 2, s)
    with pytest.raises(sg.GraphError, match="sparse_jacobian requires y to depend"):
        sg.sparse_jacobian(x, z)
    with pytest.raises(sg.GraphError, match="'reverse', 'forward' or None"):
        sg.sparse_jacobian(x, x, mode="both")
    with pytest.raises(sg.ShapeError, match="sparse_hessian requires a scalar"):
        sg.sparse_hessian(x, x)
    with pytest.raises(sg.GraphError, match="to_scipy requires values"):
        sg.sparse_jacobian(x, x).to_scipy()


def test_scipy() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    x = parameter(X)
    data, (rows, columns), shape = matrix = sg.sparse_hessian(rosenbrock(x), x)
    values = value(data)
    want = sparse.coo_matrix((values, (rows, columns)), shape)
    assert (matrix.to_scipy(values) != want.tocsr()).nnz == 0
