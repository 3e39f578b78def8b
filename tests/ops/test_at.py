"""Writing at a key, windows that are data, segments, top_k: against NumPy."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.errors import DTypeError, IndexOutOfRange, ShapeError
from staticgrad.ir.graph import topological
from staticgrad.testing import gradcheck, gradgradcheck

X = np.random.default_rng(1).normal(size=(4, 5, 3))
MASK = X[:, 0, 0] > 0
BLOCK = np.array([[1.0, 2.0], [3.0, 4.0]])

KEYS = [
    np.s_[1], np.s_[-1, 2], np.s_[1:3], np.s_[::-2], np.s_[:, 4:0:-2, None], np.s_[...],
    np.s_[[0, 2]], np.s_[:, [1, 1, 4]], np.s_[[0, 1, 0], [2, 2, 2]],
    np.s_[0, :, [1, 2]],
    np.s_[[[0], [3]], :, [1, 2]], np.s_[1:, [0, 0], ::2], np.s_[:, [1, 2], [0, 2]],
    np.s_[MASK], np.s_[X > 0.3], np.s_[:, X[0] > 0], np.s_[[], 1], np.s_[2:2],
    np.s_[None, [1, 3], ..., 0], np.s_[np.array([3, -1]), 1:3, np.array([[0], [2]])],
]  # fmt: skip

NUMPY = {
    "set": lambda y, key, v: y.__setitem__(key, v),
    "add": np.add.at,
    "subtract": np.subtract.at,
    "multiply": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("how", NUMPY)
def test_writing_equals_numpys(how, target):
    x = sg.input("x", X.shape, "float64")
    outputs, want = [], []
    for key in KEYS:
        shape = X[key].shape
        values = np.random.default_rng(2).normal(size=shape[-1:] if shape else ())
        outputs.append(getattr(x.at[key], how)(values))
        expected = X.copy()
        NUMPY[how](expected, key, values)
        want.append(expected)
    found = sg.compile(outputs, inputs=[x], target=target)(X)
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-14)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_reading_equals_numpys(target):
    x = sg.input("x", X.shape, "float64")
    f = sg.compile([x.at[key].get() for key in KEYS], inputs=[x], target=target)
    for got, key in zip(f(X), KEYS, strict=True):
        assert np.array_equal(got, X[key])


@pytest.mark.parametrize("how", NUMPY)
@pytest.mark.parametrize("number", range(0, len(KEYS), 3))
def test_derivatives(how, number):
    key = KEYS[number]
    values = np.random.default_rng(2).normal(size=X[key].shape)

    def function(x, v):
        return getattr(x.at[key], how)(v) ** 2 + x[key].sum()

    assert gradcheck(function, X, values, directions=3)
    assert gradgradcheck(function, X, values)


def test_several_index_tensors():
    x = sg.input("x", ("n", 4, "m"), "float64")
    i, j = sg.input("i", ("k",), "int64"), sg.input("j", (2, 1), "int32")
    s = sg.input("s", (), "int64")
    outputs = [
        x[i, 0, i], x[i, :, j], x[:, s, j], x[i, j], x[s, s, s], x[s, :, i], x[j, i, s],
        x.at[i, :, j].add(1.0), x.at[s, s].set(0.0), x.at[:, j, i].multiply(2.0),
        sg.grad(sg.sum(x[i, :, j] ** 2), x),
    ]  # fmt: skip
    f = sg.compile(outputs, inputs=[x, i, j, s])
    v = np.random.default_rng(0).normal(size=(3, 4, 5))
    a, b, c = np.array([2, 0, 2]), np.array([[1], [-1]], "int32"), np.int64(-2)
    added, zeroed, doubled, slope = v.copy(), v.copy(), v.copy(), np.zeros_like(v)
    np.add.at(added, np.s_[a, :, b], 1.0)
    zeroed[c, c] = 0
    np.multiply.at(doubled, np.s_[:, b, a], 2.0)
    np.add.at(slope, np.s_[a, :, b], 2 * v[a, :, b])
    want = [
        v[a, 0, a], v[a, :, b], v[:, c, b], v[a, b], v[c, c, c], v[c, :, a], v[b, a, c],
        added, zeroed, doubled, slope,
    ]  # fmt: skip
    for got, expected in zip(f(v, a, b, c), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-14)
    with pytest.raises(IndexOutOfRange, match=r"3"):
        f(v, np.array([3, 0, 0]), b, c)


def test_masks_that_are_data():
    x, m = sg.input("x", (3, 2)), sg.input("m", (3, 2), "bool")
    row = sg.input("row", (3,), "bool")
    outputs = [
        x.at[m].set(0.0), x.at[m].add(x), x.at[row].multiply([2.0, 3.0]),
        x.at[m].max(1.0),
    ]  # fmt: skip
    f = sg.compile(outputs, inputs=[x, m, row])
    v = np.arange(6, dtype="f4").reshape(3, 2)
    a, b = v % 2 == 0, np.array([True, False, True])
    want = [
        np.where(a, 0, v), np.where(a, 2 * v, v),
        np.where(b[:, None], v * np.float32([2, 3]), v),
        np.where(a, np.maximum(v, 1), v),
    ]  # fmt: skip
    for got, expected in zip(f(v, a, b), want, strict=True):
        assert np.array_equal(got, expected)
    with pytest.raises(DTypeError, match=r"sg\.where"):
        x[m]
    with pytest.raises(ShapeError, match="a mask of the shape"):
        x.at[sg.input("other", (2,), "bool")].set(0.0)


def test_of_equal_indices_the_last_is_set_and_differentiated():
    x, v = sg.input("x", (3,), "float64"), sg.input("v", (4,), "float64")
    i = sg.input("i", (4,), "int64")
    y = x.at[i].set(v)
    g = sg.grad(sg.sum(y * np.array([1.0, 10.0, 100.0])), [x, v])
    f = sg.compile([y, *g], inputs=[x, v, i])
    y, dx, dv = f(np.zeros(3), np.arange(1.0, 5.0), np.array([2, 0, 2, 0]))
    assert y.tolist() == [4, 0, 3]
    assert dx.tolist() == [0, 10, 0]
    assert dv.tolist() == [0, 0, 100, 1]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: x.at[0].set([1.0, 2.0]), ShapeError, r"broadcast to \(3\)"),
        (lambda x: x.at[[0, 1]].add(np.zeros((5, 3))), ShapeError, "broadcast to"),
        (lambda x: x.at[5].set(1.0), IndexOutOfRange, "got 5"),
        (lambda x: x.astype("int32").at[0].set(1.5), DTypeError, "dtype of the array"),
    ],
)
def test_refusals(call, error, match):
    with pytest.raises(error, match=match) as caught:
        call(sg.input("x", (2, 3)))
    assert "test_at.py:" in str(caught.value)


def test_assignment_is_refused_with_advice():
    with pytest.raises(TypeError, match=r"x\.at\[key\]\.set"):
        sg.input("x", (2,))[0] = 1.0


# ---- in place ------------------------------------------------------------------------


def test_an_update_of_rows_touches_only_them():
    with sg.Graph() as graph:
        table = sg.parameter(np.zeros((1000, 8), "f4"), name="table")
        i, v = sg.input("i", ("n",), "int64"), sg.input("v", ("n", 8))
        sg.update(table, table.at[i].add(v))
    f = sg.compile([], inputs=[i, v], updates=graph)
    f(np.array([3, 3, 7]), np.ones((3, 8), "f4"))
    assert table.value.sum() == 24
    assert table.value[3].tolist() == [2] * 8
    assert f.memory.arena_bytes < 1000 * 8 * 4


# ---- windows -------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_windows_equal_slices(target):
    x, i = sg.input("x", ("n", 5), "float64"), sg.input("i", (), "int32")
    outputs = [
        x[i : i + 2], x[i - 1 : i + 1, 1:], x[:, i : i + 3], x[2 * i : 2 * (i + 1)],
        x[i : i + 2, 1], x[i : i + 2, [4, 0]], x[i : i + 0],
        sg.dynamic_slice(x, (i, 1), (2, 3)), sg.dynamic_slice(x, (0, i), (1, 2)),
        sg.dynamic_update_slice(x, BLOCK, (i, i + 1)),
        x.at[i : i + 2].set(0.0), x.at[i : i + 2, [1, 1]].add(1.0),
        sg.grad(sg.sum(x[i : i + 2] ** 2), x),
    ]  # fmt: skip
    f = sg.compile(outputs, inputs=[x, i], target=target)
    v = np.random.default_rng(0).normal(size=(6, 5))
    for k in (1, 2):
        moved, zero, more, slope = v.copy(), v.copy(), v.copy(), 0 * v
        moved[k : k + 2, k + 1 : k + 3] = BLOCK
        zero[k : k + 2] = 0
        more[k : k + 2, 1] += 2
        slope[k : k + 2] = 2 * v[k : k + 2]
        want = [
            v[k : k + 2], v[k - 1 : k + 1, 1:], v[:, k : k + 3], v[2 * k : 2 * k + 2],
            v[k : k + 2, 1], v[k : k + 2, [4, 0]], v[k:k],
            v[k : k + 2, 1:4], v[:1, k : k + 2], moved, zero, more, slope,
        ]  # fmt: skip
        for got, expected in zip(f(v, np.int32(k)), want, strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected)
    with pytest.raises(IndexOutOfRange):
        f(v, np.int32(5))
    with pytest.raises(IndexOutOfRange):
        f(v, np.int32(0))


def test_derivatives_of_windows():
    def function(x, u):
        i = sg.constant(np.int64(1))
        block = sg.dynamic_slice(x, (i, i), (2, 3))
        return block**2, sg.dynamic_update_slice(x, u, (i, 0)) ** 2

    x = np.random.default_rng(0).normal(size=(4, 5))
    assert gradcheck(function, x, x[1:3, :4] + 1)
    assert gradgradcheck(function, x, x[1:3, :4] + 1)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x, i: x[i:], "difference is known"),
        (lambda x, i: x[0:i], "difference is known"),
        (lambda x, i: x[i : 2 * i], "difference is known"),
        (lambda x, i: x[i : i + 3 : 2], "difference is known"),
        (lambda x, i: x[i : i + 9], "a size from 0 to 4"),
        (lambda x, i: sg.dynamic_slice(x, (i,), (2,)), "a start and a size per axis"),
        (lambda x, i: sg.dynamic_update_slice(x, x[0], (i, 0)), "as many axes"),
        (lambda x, i: x.at[i : i + 2].set(x), "broadcast to"),
    ],
)
def test_refused_windows(call, match):
    with pytest.raises(ShapeError, match=match):
        call(sg.input("x", (4, 3)), sg.input("i", (), "int64"))


# ---- along an axis, segments, bins ---------------------------------------------------


def test_put_along_axis():
    x = np.arange(12.0).reshape(3, 4)
    cases = [
        (np.array([[0], [3], [1]]), 9.0, 1), (np.array([[2, 0, 0, 1]]), x[:1] - 5, 0),
        (np.array([1, -1]), [7.0, 8.0], None),
    ]  # fmt: skip
    for index, values, axis in cases:
        want = x.copy()
        np.put_along_axis(want, index, values, axis)
        got = sg.compile(sg.put_along_axis(sg.constant(x), index, values, axis))()
        assert np.array_equal(got, want)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_segments(target):
    x, i = sg.input("x", ("n", 2)), sg.input("i", ("n",), "int64")
    names = ("sum", "prod", "max", "min")
    outputs = [getattr(sg, f"segment_{n}")(x, i, 4) for n in names]
    outputs.append(sg.segment_max(x.astype("int32"), i, 2 * x.shape[0]))
    f = sg.compile(outputs, inputs=[x, i], target=target)
    v = np.float32([[1, 2], [3, 4], [5, -6]])
    total, product, most, least, whole = f(v, np.array([1, 3, 1]))
    assert total.tolist() == [[0, 0], [6, -4], [0, 0], [3, 4]]
    assert product.tolist() == [[1, 1], [5, -12], [1, 1], [3, 4]]
    assert most[1].tolist() == [5, 2]
    assert np.all(most[[0, 2]] == -np.inf)
    assert least[1].tolist() == [1, -6]
    assert np.all(least[[0, 2]] == np.inf)
    assert whole.shape == (6, 2)
    with pytest.raises(IndexOutOfRange):
        f(v, np.array([1, -1, 1]))


def test_bincount():
    x, w = np.array([0, 3, 3, 1]), np.array([1.0, 2.0, 3.0, 4.0])
    count, total = sg.compile([sg.bincount(x, length=5), sg.bincount(x, w, 5)])()
    assert np.array_equal(count, np.bincount(x, minlength=5))
    assert np.array_equal(total, np.bincount(x, w, 5))
    with pytest.raises(ShapeError, match="a length"):
        sg.bincount(x)
    longer = sg.bincount(x, length=4, minlength=6)
    assert np.array_equal(sg.compile(longer)(), np.bincount(x, minlength=6))
    with pytest.raises(ShapeError, match="on the data, got minlength=5; pass length="):
        np.bincount(sg.constant(x), minlength=5)
    with pytest.raises(ShapeError, match="an id for each element"):
        sg.segment_sum(x, np.zeros((2, 2), int), 3)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side, target):
    values = np.array([-9.0, 0.0, 1.0, 1.5, 7.0, np.inf, -np.inf, np.nan])
    lines = [
        np.array([0.0, 1.0, 1.0, 1.0, 2.0, 7.0]), np.array([3.0]), np.zeros(0),
        np.array([0.0, np.inf, np.nan, np.nan]), np.arange(17.0),
    ]  # fmt: skip
    outputs = [sg.searchsorted(line, values, side) for line in lines]
    for got, line in zip(sg.compile(outputs, target=target)(), lines, strict=True):
        assert np.array_equal(got, np.searchsorted(line, values, side))


def test_searchsorted_of_a_symbolic_axis():
    a, v = sg.input("a", ("n",), "int32"), sg.input("v", ("m",), "int32")
    f = sg.compile([sg.searchsorted(a, v), sg.digitize(v, a)], inputs=[a, v])
    for n in (1, 2, 5, 100):
        line = np.sort(np.random.default_rng(n).integers(0, 50, n)).astype("int32")
        values = np.arange(-1, 52, dtype="int32")
        place, bins = f(line, values)
        assert np.array_equal(place, np.searchsorted(line, values))
        assert np.array_equal(bins, np.digitize(values, line))


@pytest.mark.parametrize("right", [False, True])
def test_digitize_by_edges_that_decrease(right):
    values = np.array([0.3, -3.0, 1.0, 0.0, -1.0, 2.0])
    for edges in ([1, 0, -1], [1, 1, 0], [-1, 0, 1], [1], [2, 2], []):
        got = sg.compile(sg.digitize(values, edges, right))()
        assert np.array_equal(got, np.digitize(values, edges, right))


# ---- top_k ---------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_top_k(target, dtype):
    x = sg.input("x", ("n", "m"), dtype)
    f = sg.compile([*sg.top_k(x, 3), sg.top_k(x.T, 1)[1]], inputs=[x], target=target)
    for shape in ((1, 3), (7, 5), (40, 33)):
        v = np.random.default_rng(3).integers(-5, 5, shape).astype(dtype)
        values, places, column = f(v)
        order = np.argsort(-v.astype(int), axis=1, kind="stable")[:, :3]
        assert np.array_equal(places, order)
        assert np.array_equal(values, np.take_along_axis(v, order, 1))
        assert np.array_equal(column[:, 0], v.argmax(0))
    with pytest.raises(ShapeError, match="a k from 0 to 2"):
        f(v[:, :2])


def test_derivative_of_top_k():
    x = np.random.default_rng(0).normal(size=(3, 6))
    assert gradcheck(lambda t: sg.top_k(t, 4)[0] ** 2, x)
    assert gradgradcheck(lambda t: sg.top_k(t, 4)[0] ** 3, x)


def test_only_one_output_of_top_k_is_used():
    x = sg.input("x", (2, 4))
    values, places = sg.top_k(x, 2)
    assert values.node is places.node
    v = np.float32([[1, 9, 3, 4], [0, -1, 5, 2]])
    assert sg.compile(places, inputs=[x])(v).tolist() == [[1, 3], [2, 3]]
    assert sg.compile(values * 2, inputs=[x])(v).tolist() == [[18, 8], [10, 4]]
    both = sg.compile(values + places, inputs=[x])(v)
    assert both.tolist() == [[10, 7], [7, 5]]


# ---- scatters without a dense gradient -----------------------------------------------


def test_gradients_of_one_table_are_added_in_place():
    table = sg.input("table", (50, 3))
    i, j = sg.input("i", (4,), "int64"), sg.input("j", (2,), "int64")
    y = sg.sum(table[i] ** 2) + sg.sum(table[j] ** 3)
    f = sg.compile(sg.grad(y, table), inputs=[table, i, j])
    v = np.random.default_rng(0).normal(size=(50, 3)).astype("f4")
    a, b = np.array([0, 7, 7, 3]), np.array([7, 49])
    want = np.zeros_like(v)
    np.add.at(want, a, 2 * v[a])
    np.add.at(want, b, 3 * v[b] ** 2)
    np.testing.assert_allclose(f(v, a, b), want, rtol=1e-5)
    assert len(topological([sg.grad(y, table)])) < 60


# ---- where an index is checked -------------------------------------------------------


def scatters(*, wide: bool = False, twice: bool = False, late: bool = False):
    """An executable that adds into `table`, as a leaf or an input, at `i`."""
    shape = (5, 2) if wide else (5,)
    u, i = sg.input("u", (3, *shape[1:])), sg.input("i", (3,), "int64")
    table = sg.state(np.ones(shape, "f4")) if late else sg.input("table", shape)
    y = table.at[i].add(u)
    outputs = [y, table[i]] if twice else [y]
    given = [u, i] if late else [table, u, i]
    updates = [(table, y)] if late else []
    return sg.compile([] if late else outputs, inputs=given, updates=updates), table


def scattering_kernels(f):
    """For each kernel that combines into its result: whether it checks the index."""
    found = f.memory.plan.schedule.kernels
    return [k.fails for k in found if any(o.mode == "update" for o in k.operands)]


def test_an_index_is_checked_by_the_loop_that_scatters():
    f, _ = scatters()
    table, u = np.ones(5, "f4"), np.array([1, 2, 4], "f4")
    (y,) = f(table, u, np.array([-1, 0, -1]))
    np.testing.assert_array_equal(y, [3, 1, 1, 1, 6])
    assert scattering_kernels(f) == [True]
    assert len(f.memory.plan.schedule.kernels) == 2  # and the copy of the table
    with pytest.raises(IndexOutOfRange, match="got -6 at position 1; .*test_at.py"):
        f(table, u, np.array([0, -6, 9]))
    (y,) = f(table, u, np.array([4, 4, 4]))
    np.testing.assert_array_equal(y, [1, 1, 1, 1, 8])


@pytest.mark.parametrize("how", ["wide", "twice"])
def test_an_index_that_is_read_more_often_is_checked_once(how):
    f, table = scatters(**{how: True})
    v = np.ones(table.shape, "f4")
    f(v, np.ones((3, *table.shape[1:]), "f4"), np.array([0, 1, 1]))
    assert scattering_kernels(f) == [False]


def test_a_leaf_is_written_only_after_the_check():
    f, table = scatters(late=True)
    with pytest.raises(IndexOutOfRange):
        f(np.ones(3, "f4"), np.array([0, 1, 5]))
    np.testing.assert_array_equal(table.value, np.ones(5))
    assert scattering_kernels(f) == [False]
    f(np.ones(3, "f4"), np.array([0, 1, -1]))
    np.testing.assert_array_equal(table.value, [2, 2, 1, 1, 2])
