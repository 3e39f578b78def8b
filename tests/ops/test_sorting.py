"""sort and argsort, and top_k of many: against NumPy's stable sort."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.errors import GraphError, ShapeError
from staticgrad.testing import gradcheck, gradgradcheck

LENGTHS = (1, 2, 17, 24, 25, 48, 49, 96, 97, 300, 5000)
DTYPES = (
    "float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8",
    "uint16", "uint32", "uint64", "bool",
)  # fmt: skip


def rows_of(length, dtype, seed=0):
    """Random rows, few different numbers, extremes, special values, sorted ones."""
    draw = np.random.default_rng(seed + length)
    kind = np.dtype(dtype).kind
    if kind == "f":
        rows = draw.normal(size=(6, length)).astype(dtype)
        rows[1] = np.round(rows[1])
        rows[1, ::3] = np.nan
        rows[2, ::2], rows[2, 1::4] = -0.0, 0.0
        rows[3, :: max(length // 3, 1)] = np.inf
        rows[3, -1] = -np.inf
    elif kind == "b":
        rows = draw.integers(0, 2, (6, length)).astype(bool)
    else:
        info = np.iinfo(dtype)
        rows = draw.integers(info.min, info.max, (6, length), dtype, endpoint=True)
        rows[1] = draw.integers(0, 5, length)
        rows[2], rows[3, 0], rows[3, -1] = 7, info.max, info.min
    rows[4], rows[5] = np.sort(rows[4]), np.sort(rows[5])[::-1]
    return rows


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_places_are_numpys(dtype, target):
    for length in LENGTHS:
        rows = rows_of(length, dtype)
        x = sg.input("x", rows.shape, dtype=dtype)
        f = sg.compile([sg.sort(x), sg.argsort(x)], inputs=[x], target=target)
        values, places = f(rows)
        np.testing.assert_array_equal(places, np.argsort(rows, kind="stable"))
        np.testing.assert_array_equal(values, np.sort(rows))
        assert values.dtype == rows.dtype
        assert places.dtype == np.int64


def test_axes_and_layouts():
    data = np.random.default_rng(0).integers(0, 9, (4, 120, 3)).astype("float32")
    x = sg.input("x", data.shape)
    calls = [
        lambda m, v: m.sort(v, axis=1), lambda m, v: m.sort(v, axis=0),
        lambda m, v: m.argsort(v, axis=-2, stable=True), lambda m, v: m.sort(v, None),
        lambda m, v: m.argsort(v, axis=None, kind="stable"),
        lambda m, v: m.sort(v.T[::-1]), lambda m, v: v[1].argsort(0, stable=True),
        lambda m, v: m.sort(v[:, ::7] + 1, axis=1),
    ]  # fmt: skip
    found = sg.compile([call(sg, x) for call in calls], inputs=[x])(data)
    for ours, call in zip(found, calls, strict=True):
        np.testing.assert_array_equal(ours, call(np, data))


def test_signs_of_zeros_and_infinities_stay():
    x = np.array([0.0, -0.0, np.inf, -1.0, np.nan, -np.inf] * 30)
    values = sg.compile(sg.sort(sg.constant(x)))()
    assert np.signbit(values).sum() == 90
    assert np.isnan(values[-30:]).all()
    assert (values[-60:-30] == np.inf).all()


@pytest.mark.parametrize("length", [0, 5, 200])
def test_symbolic_sizes(length):
    x = sg.input("x", ("rows", "n"), dtype="float64")
    f = sg.compile([sg.sort(x, axis=1), sg.argsort(x, axis=0)], inputs=[x])
    data = np.random.default_rng(length).normal(size=(length // 2, length))
    values, places = f(data)
    np.testing.assert_array_equal(values, np.sort(data, axis=1))
    np.testing.assert_array_equal(places, np.argsort(data, axis=0, kind="stable"))


@pytest.mark.parametrize("length", [7, 130])
def test_derivatives_go_where_elements_were(length):
    x = np.random.default_rng(1).permutation(length).astype("float64") / 7
    weights = np.arange(length) + 1.0
    assert gradcheck(lambda t: sg.sort(t) ** 2 * weights, x)
    assert gradgradcheck(lambda t: sg.sort(t) ** 3 * weights / 99, x)
    t = sg.input("t", x.shape, dtype="float64")
    g = sg.grad(sg.sum(sg.sort(t) * weights), t)
    expected = np.empty(length)
    expected[np.argsort(x)] = weights
    np.testing.assert_array_equal(sg.compile(g, inputs=[t])(x), expected)


def test_each_row_of_vmap_is_sorted():
    data = np.random.default_rng(2).normal(size=(3, 4, 110))
    x = sg.input("x", data.shape, dtype="float64")
    y = sg.vmap(lambda row: sg.sort(row, axis=0) + sg.argsort(row))(x)
    expected = np.sort(data, axis=1) + np.argsort(data, axis=2)
    np.testing.assert_array_equal(sg.compile(y, inputs=[x])(data), expected)


def test_threads_change_nothing():
    data = np.random.default_rng(3).normal(size=(64, 3000)).astype("float32")
    x = sg.input("x", data.shape)
    f = sg.compile([sg.sort(x), sg.argsort(x)], inputs=[x])
    before, found = sg.get_num_threads(), []
    try:
        for threads in (1, 2):
            sg.set_num_threads(threads)
            found.append([value.tobytes() for value in f(data)])
    finally:
        sg.set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_the_largest_of_a_row_in_order(dtype):
    rows = rows_of(300, dtype, seed=5)
    x = sg.input("x", rows.shape, dtype=dtype)
    outputs = [part for k in (3, 40, 60, 300) for part in sg.top_k(x, k)]
    found = sg.compile(outputs, inputs=[x])(rows)
    for k, values, places in zip((3, 40, 60, 300), found[::2], found[1::2]):
        order = 299 - np.argsort(rows[:, ::-1], kind="stable")[:, ::-1][:, :k]
        np.testing.assert_array_equal(places, order)
        np.testing.assert_array_equal(values, np.take_along_axis(rows, order, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
def test_isin_looks_many_elements_up(dtype):
    draw = np.random.default_rng(6)
    data = draw.integers(0, 200, (50, 7)).astype(dtype)
    many = draw.integers(0, 200, (99, 40)).astype(dtype)[:, ::3]
    if np.dtype(dtype).kind == "f":
        data[0, :2], many[3, :2] = np.nan, (np.nan, np.inf)
    x, y = sg.input("x", data.shape, dtype=dtype), sg.input("y", many.shape, dtype)
    f = sg.compile([sg.isin(x, y), sg.isin(x, y, invert=True)], inputs=[x, y])
    found, others = f(data, many)
    np.testing.assert_array_equal(found, np.isin(data, many))
    np.testing.assert_array_equal(others, ~found)


def test_refusals():
    x = sg.input("x", (3,))
    with pytest.raises(ShapeError, match="sort requires"):
        sg.sort(x, axis=1)
    with pytest.raises(GraphError, match="sort requires a kind among"):
        sg.sort(x, kind="bubble")
    with pytest.raises(GraphError, match="argsort requires order=None"):
        sg.argsort(x, order="name")
    with pytest.raises(AttributeError, match=r"sg\.sort\(x\)"):
        x.sort()
