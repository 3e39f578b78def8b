"""Derivatives, special values and ops with an axis of their own, at any shape.

Driven by the op records, as test_shapes_hypothesis: sizes are symbols, so that one
compile serves all that hypothesis draws, those of 0 and 1 among them.
"""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_shapes_hypothesis import (
    BASIC,
    ELEMENTWISE,
    SIZES,
    drawn,
    inputs_of,
    sample_dtypes,
    values,
)

import staticgrad as sg
from staticgrad.ir.graph import apply
from staticgrad.ir.op import OPS, Scan
from staticgrad.ir.types import is_float
from staticgrad.ops.examples import SPECIAL

FEW = settings(parent=BASIC, max_examples=6)
SMOOTH = [
    op
    for op in ELEMENTWISE
    if op.vjp is not None
    and all(is_float(d) for d in sample_dtypes(op)[0])
    and any(s.grad for s in op.samples())
]


def near(got, want):
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


@functools.cache
def gradients(op, pattern):
    """Of the sum over all, on the cpu target and as written on the reference."""
    inputs, attrs = inputs_of(op, pattern)
    y = sg.sum(apply(op, *inputs, **attrs))
    found = sg.grad(y, inputs, unused="zero")
    plain = sg.grad(y, inputs, unused="zero", simplify=False)
    return (
        sg.compile(found, inputs=inputs),
        sg.compile(plain, inputs=inputs, target="reference"),
    )


@pytest.mark.parametrize("op", SMOOTH, ids=repr)
@FEW
@given(data=st.data())
def test_gradients_broadcast_back(op, data):
    pattern, arrays = drawn(op, data)
    compiled, reference = gradients(op, pattern)
    for got, want, x in zip(compiled(*arrays), reference(*arrays), arrays, strict=True):
        assert got.shape == x.shape
        near(got, want)


FLOATS = [op for op in ELEMENTWISE if all(is_float(d) for d in sample_dtypes(op)[0])]
# Where NumPy's or SciPy's values are themselves off by more, or jump; gamma_slope is
# defined for finite arguments alone.
OTHERS = {
    "digamma", "floor_divide", "fmod", "gamma_slope", "lgamma", "polygamma",
    "remainder", "zeta",
}  # fmt: skip


@functools.cache
def of_vectors(op):
    dtypes, attrs = sample_dtypes(op)
    inputs = [sg.input(f"x{k}", ("n",), d) for k, d in enumerate(dtypes)]
    return sg.compile(apply(op, *inputs, **attrs), inputs=inputs)


@pytest.mark.parametrize("op", [op for op in FLOATS if op.name not in OTHERS], ids=repr)
@BASIC
@given(data=st.data())
def test_special_values_of_any_length(op, data):
    """Among vectors and behind them: loops have remainders of every length."""
    dtypes, attrs = sample_dtypes(op)
    drawn = st.lists(st.sampled_from(SPECIAL), min_size=0, max_size=35)
    first = data.draw(drawn)
    rest = st.sampled_from(SPECIAL)
    columns = [first, *([data.draw(rest) for _ in first] for _ in dtypes[1:])]
    arrays = [np.array(c, d) for c, d in zip(columns, dtypes, strict=True)]
    with np.errstate(all="ignore"):
        want = np.asarray(op.numpy(*arrays, **attrs))
    got = of_vectors(op)(*arrays)
    assert got.dtype == want.dtype
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-300)
    else:
        np.testing.assert_array_equal(got, want)


SCANS = [op for op in OPS.values() if isinstance(op.code, Scan)]


@functools.cache
def scan(op, axis, exclusive):
    dtypes, _ = sample_dtypes(op)
    inputs = [sg.input(f"x{k}", ("n", "m", "p"), d) for k, d in enumerate(dtypes)]
    y = apply(op, *inputs, axis=axis, exclusive=exclusive)
    return sg.compile(y, inputs=inputs), dtypes


@pytest.mark.parametrize("op", SCANS, ids=repr)
@BASIC
@given(
    sizes=st.tuples(st.integers(0, 37), SIZES, st.integers(0, 20)),
    axis=st.integers(0, 2),
    exclusive=st.booleans(),
)
def test_scans_of_any_shape(op, sizes, axis, exclusive):
    compiled, dtypes = scan(op, axis, exclusive)
    arrays = [values(sizes, dtype, k) for k, dtype in enumerate(dtypes)]
    near(compiled(*arrays), op.numpy(*arrays, axis=axis, exclusive=exclusive))


@functools.cache
def products():
    x, y = sg.input("x", ("n", "k"), "float64"), sg.input("y", ("k", "m"), "float64")
    z = x @ y
    return sg.compile([z, *sg.grad(sg.sum(z), [x, y])], inputs=[x, y])


@settings(parent=BASIC, max_examples=40)
@given(sizes=st.tuples(st.integers(0, 19), st.integers(0, 19), st.integers(0, 19)))
def test_products_of_any_shape(sizes):
    n, k, m = sizes
    x, y = values((n, k), np.dtype("f8"), 0), values((k, m), np.dtype("f8"), 1)
    z, dx, dy = products()(x, y)
    near(z, x @ y)
    near(dx, np.ones((n, m)) @ y.T)
    near(dy, x.T @ np.ones((n, m)))


@settings(parent=BASIC, max_examples=40)
@given(
    rows=st.integers(0, 3),
    values=st.lists(
        st.sampled_from([0.0, 1.0, -2.0, 7.5, np.nan, np.inf]), max_size=70
    ),
    k=st.integers(0, 20),
)
def test_top_k_of_any_length(rows, values, k):
    """Blocks of 16 and what is left behind them, ties and NaN among them."""
    if k > len(values):
        values = [*values, *range(k - len(values))]
    with sg.Graph():
        x = sg.input("x", ("n", len(values)), "float64")
        f = sg.compile(sg.top_k(x, k), inputs=[x], target="cpu")
    row = np.array(values)
    data = row[(np.arange(len(row)) + np.arange(rows)[:, None]) % max(len(row), 1)]
    found, places = f(data)
    rank = -np.where(np.isnan(data), np.inf, data)
    # by NaN, then by value, then by position, which keeps the order of equal ones
    order = np.lexsort((rank, ~np.isnan(data)))[:, :k]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(found, np.take_along_axis(data, order, 1))
