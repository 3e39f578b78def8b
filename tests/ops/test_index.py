"""Indexing, take, scatter_add, one_hot: values, types, gradients' ops, refusals."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.runtime.targets import reference
from staticgrad.errors import DTypeError, IndexOutOfRange, ShapeError
from staticgrad.ir.graph import Graph, apply
from staticgrad.ir.op import OPS, IndexCheck, View
from staticgrad.ir.size import Size

N = Size.symbol("n")


def run(tensor, *inputs, **values):
    graph = Graph.closed(inputs, [tensor])
    return reference.run(graph, "eval", values)[0][0]


def numbers(*shape):
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


KEYS = [
    np.s_[0], np.s_[-1], np.s_[1, 2], np.s_[1, -1, 0], np.s_[...], np.s_[()], np.s_[:],
    np.s_[1:], np.s_[:-1], np.s_[::-1], np.s_[::2], np.s_[1:3], np.s_[:, 1:2],
    np.s_[5:], np.s_[:100], np.s_[-100:], np.s_[3:1], np.s_[::-2], np.s_[:0:-1],
    np.s_[-1:-3:-1], np.s_[..., 0], np.s_[..., None], np.s_[None],
    np.s_[None, ..., None, 1:],
    np.s_[:, None, 0], np.s_[0, ..., 0], np.s_[0, None, :, None, 1], np.s_[:, :, -2:],
    np.s_[[0, 2]], np.s_[[-1]], np.s_[:, [2, 0, 0]], np.s_[..., [1, 1]], np.s_[[]],
    np.s_[np.array([[0, 1], [2, 2]])], np.s_[:, np.array([[0], [1]])], np.s_[0, [1, 2]],
    np.s_[[1, 2], 0], np.s_[0, :, [1, 2]], np.s_[[1, 2], :, 0], np.s_[0, None, [1, 2]],
    np.s_[:, 0, [1, 2]], np.s_[None, 0, 1:, [1, 2]], np.s_[1:, [0, 1], ::-1],
    np.s_[np.int64(1)], np.s_[np.array(1)], np.s_[np.uint8([1, 2])],
    np.s_[1, :, None, [0]], np.s_[::-1, 0, ::2], np.s_[(0, 1)],
    np.s_[np.zeros((0, 2), int)], np.s_[:, [0, 1], ..., 0], np.s_[[0, 1], ..., 0, :],
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_agrees_with_numpy(key):
    value = numbers(3, 4, 5)
    x = sg.input("x", value.shape)
    result, expected = run(x[key], x, x=value), value[key]
    assert result.shape == expected.shape
    assert np.array_equal(result, expected)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize(
    "key",
    [
        np.s_[:], np.s_[1:], np.s_[:-1], np.s_[1:-1], np.s_[::-1], np.s_[::2],
        np.s_[:, 1], np.s_[0], np.s_[-1], np.s_[None, :, 1:3], np.s_[[0, -1]],
        np.s_[0, [1, 2]], np.s_[0, :, None], np.s_[0, ..., [0]], np.s_[3:3],
        np.s_[-2:-2], np.s_[:-1:2], np.s_[:0:-1], np.s_[-1::-1], np.s_[:, ::-1],
    ],
    ids=str,
)  # fmt: skip
def test_indexing_of_symbolic_axes(key, n):
    value = numbers(n, 5)
    x = sg.input("x", ("n", 5))
    if key == np.s_[1:-1] and n == 1:
        return
    result, expected = run(x[key], x, x=value), value[key]
    assert result.shape == expected.shape
    assert np.array_equal(result, expected)


def test_sizes_of_slices_of_symbolic_axes():
    x = sg.input("x", ("n",))
    assert x[1:].shape == x[:-1].shape == (N - 1,)
    assert x[2:-3].shape == (N - 5,)
    assert x[::2].shape == ((N + 1) // 2,)
    assert x[: N // 2].shape == (N // 2,)
    assert sg.concatenate([x, np.zeros(3, "f4")])[:3].shape == (3,)
    assert sg.concatenate([x, np.zeros(3, "f4")])[-3:].shape == (3,)


@pytest.mark.parametrize(
    "key", [np.s_[:3], np.s_[-3:], np.s_[1:3], np.s_[-3:-1], np.s_[2::-1]], ids=str
)
def test_bounds_that_a_size_breaks_are_refused_by_the_call(key):
    values = np.arange(8.0).reshape(4, 2)
    with sg.Graph(dtype="float64"):
        x = sg.input("x", ("n", 2))
        y = x[key]
        f = sg.compile([y, sg.grad(sg.sum(y * y), x)], inputs=[x])
    found, slope = f(values)
    np.testing.assert_array_equal(found, values[key])
    expected = np.zeros_like(values)
    expected[key] = 2 * values[key]
    np.testing.assert_array_equal(slope, expected)
    with pytest.raises(ShapeError, match=r"fits, here n = 2  at test_index\.py:"):
        f(values[:2])


def test_static_axes_give_views_only():
    x = sg.input("x", ("n", 4))
    y = x[1:, None, 2]
    while y.inputs:
        assert isinstance(y.op.code, View)
        (y,) = y.inputs
    assert x[:] is x
    assert x[...] is x


@pytest.mark.parametrize(
    ("key", "error", "match"),
    [
        (np.s_[3], IndexOutOfRange, r"an index in -3\.\.2, got 3"),
        (np.s_[:, -5], IndexOutOfRange, r"an index in -4\.\.3, got -5"),
        (np.s_[[0, 3]], IndexOutOfRange, r"indices in -3\.\.2, got 3"),
        (np.s_[0, 0, 0], ShapeError, "at most 2 indices, got 3"),
        (np.s_[..., ...], ShapeError, "at most one Ellipsis"),
        (np.s_[[0, 1], [0, 1, 2]], ShapeError, "arrays that broadcast together"),
        (np.s_[::0], ShapeError, "a step that is not 0"),
        (np.s_[[[True] * 4] * 3, 0], ShapeError, "at most 2 indices, got 3"),
        (np.s_[True], DTypeError, "sg.where"),
        (np.s_[np.array(True)], DTypeError, "sg.where"),
        (np.s_[1.0], DTypeError, "an index of integers"),
        (np.s_["a"], DTypeError, "requires"),
        (np.s_[[0.5]], DTypeError, "an index of integers"),
        (np.s_[1.5:], ShapeError, "an int or a Size"),
    ],
    ids=str,
)
def test_indexing_refuses(key, error, match):
    with pytest.raises(error, match=match) as caught:
        sg.input("x", (3, 4))[key]
    assert "test_index.py:" in str(caught.value)


def test_a_tensor_is_an_index():
    value, rows = numbers(3, 4), np.array([2, -1, 0], "int32")
    x, i = sg.input("x", (3, 4)), sg.input("i", ("k",), "int32")
    j = sg.input("j", (), "int64")
    assert np.array_equal(run(x[i], x, i, x=value, i=rows), value[rows])
    assert np.array_equal(run(x[:, i], x, i, x=value, i=rows), value[:, rows])
    assert np.array_equal(run(x[j], x, j, x=value, j=np.int64(-2)), value[-2])
    assert np.array_equal(run(x[1:, j], x, j, x=value, j=np.int64(1)), value[1:, 1])
    assert np.array_equal(run(x[j, j], x, j, x=value, j=np.int64(1)), value[1, 1])
    both = run(x[j, i], x, i, j, x=value, i=rows, j=np.int64(1))
    assert np.array_equal(both, value[1, rows])


def test_a_tensor_as_bound_is_refused():
    x, i = sg.input("x", (3,)), sg.input("i", (), "int64")
    with pytest.raises(ShapeError, match="known when the graph is built"):
        x[i:]


@pytest.mark.parametrize("bad", [3, -4])
def test_a_bad_index_is_found_while_running(bad):
    x, i = sg.input("x", (3,)), sg.input("i", (), "int64")
    with pytest.raises(IndexOutOfRange, match=rf"-3 <= index < 3, got {bad}"):
        run(x[i], x, i, x=numbers(3), i=np.int64(bad))


def test_an_integer_on_an_empty_symbolic_axis_is_found_while_running():
    x = sg.input("x", ("n",))
    with pytest.raises(IndexOutOfRange, match="for an axis of size 0"):
        run(x[0], x, x=numbers(0))


def test_every_gather_reads_a_checked_index():
    x, i = sg.input("x", ("n", 3)), sg.input("i", (2,), "int32")
    for y in (x[i], x[0], sg.take(x, i), sg.take_along_axis(x, [[0]], 1)):
        (gather,) = [n for n in Graph.closed((), [y]).nodes if n.op.name == "take"]
        index = gather.inputs[1]
        while isinstance(index.op.code, View):
            (index,) = index.inputs
        assert isinstance(index.op.code, IndexCheck)


# ---- take and its relatives ----------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("indices", [1, [0, 2, 2], [[0], [-1]], []], ids=str)
def test_take(axis, indices):
    value = numbers(3, 3)
    index = np.array(indices, int)
    x = sg.input("x", (3, 3))
    result = run(sg.take(x, indices, axis=axis), x, x=value)
    assert np.array_equal(result, np.take(value, index, axis))


@pytest.mark.parametrize(
    ("shape", "index", "axis"),
    [
        ((3, 4), [[1], [0], [3]], 1),
        ((3, 4), [[2, 0, 1, -1]], 0),
        ((3, 4), [[2], [0]], 0),
        ((1, 4), [[2], [0]], 1),
        ((2, 1, 3), np.zeros((1, 4, 2), int), -1),
        ((3, 4), [11, 0], None),
    ],
)
def test_take_along_axis(shape, index, axis):
    value, index = numbers(*shape), np.array(index)
    x = sg.input("x", shape)
    result = run(sg.take_along_axis(x, index, axis), x, x=value)
    assert np.array_equal(result, np.take_along_axis(value, index, axis))


def test_take_along_axis_refuses():
    x = np.zeros((3, 4))
    with pytest.raises(ShapeError, match="as many axes as the array"):
        sg.take_along_axis(x, [0], 1)
    with pytest.raises(ShapeError, match="axes that broadcast, but axis 1"):
        sg.take_along_axis(x, np.zeros((2, 1), int), 1)
    with pytest.raises(IndexOutOfRange, match="got 4"):
        sg.take_along_axis(x, [[4]], 1)


def test_scatter_add_sums_equal_indices():
    expected = np.zeros((2, 4), "float32")
    updates = numbers(2, 3)
    np.add.at(expected, (slice(None), [3, 1, 3]), updates)
    assert np.array_equal(run(sg.scatter_add((2, 4), [3, 1, -1], updates, 1)), expected)
    counts = sg.scatter_add(4, np.array([[0, 0], [3, 0]]), 1)
    assert counts.dtype == np.int64
    assert run(counts).tolist() == [3, 0, 0, 1]
    rows = sg.scatter_add((3, 2), [0, 0, 2], [1.0, 2.0])
    assert run(rows).tolist() == [[2, 4], [0, 0], [1, 2]]


def test_scatter_add_refuses():
    with pytest.raises(ShapeError, match="axis in"):
        sg.scatter_add((3,), [0], 1.0, axis=1)
    with pytest.raises(ShapeError, match="broadcasts to"):
        sg.scatter_add((3,), [0, 1], np.ones(3))
    with pytest.raises(DTypeError, match="updates that are numbers"):
        sg.scatter_add((3,), [0, 1], True)
    with pytest.raises(IndexOutOfRange, match="got 3"):
        sg.scatter_add((3,), [3], 1.0)


@pytest.mark.parametrize("name", ["take", "scatter", "slice", "pad"])
def test_transposes_agree(name):
    """``<op(x), y> == <x, op^T(y)>`` for each sample, with op^T its own vjp."""
    op = OPS[name]
    for sample in op.samples():
        moved = 2 if name == "scatter" else 0
        if sample.attrs.get("combine", "add") != "add":
            continue
        args = [sg.constant(arg) for arg in sample.args]
        x = args[moved].value
        if x.dtype.kind != "f" or sample.attrs.get("value"):
            continue
        if name == "scatter":  # linear in the updates alone where the base is 0
            args[0] = sg.constant(np.zeros_like(args[0].value))
        y = apply(op, *args, **sample.attrs)
        g = np.random.default_rng(0).normal(size=y.shape)
        back = op.vjp(sg.constant(g), y, *args, **sample.attrs)[moved]
        assert back.type.shape == args[moved].shape
        forward, backward = run(y), run(back)
        assert np.allclose(np.sum(forward * g), np.sum(x * backward), rtol=1e-12)


def test_one_hot():
    labels = sg.input("labels", ("n",), "int32")
    hot = sg.one_hot(labels, 3)
    assert str(hot.type) == "float32[n, 3]"
    given = np.array([2, 0], "int32")
    assert np.array_equal(run(hot, labels, labels=given), np.eye(3)[given])
    with pytest.raises(IndexOutOfRange, match="-1"):
        run(hot, labels, labels=np.array([-1], "int32"))
    assert run(sg.one_hot(1, 2, dtype="bool")).tolist() == [False, True]
    assert run(sg.one_hot([[1], [0]], 2, "int8")).tolist() == [[[0, 1]], [[1, 0]]]
    with pytest.raises(IndexOutOfRange, match=r"0\.\.2, got -1"):
        sg.one_hot([0, -1], 3)
    with pytest.raises(DTypeError, match="integers"):
        sg.one_hot([0.5], 3)
