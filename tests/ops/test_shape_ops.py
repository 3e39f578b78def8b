"""Views and pieces: shapes, layouts, values, symbolic sizes, refusals."""

import itertools

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.runtime.targets import reference
from staticgrad.errors import ShapeError
from staticgrad.ir.graph import Graph
from staticgrad.ir.op import Layout
from staticgrad.ir.size import Size, equal_if_even, evaluate
from staticgrad.ops.movement.views import reshape_layout
from staticgrad.ops.sizes import never_negative

N, M = Size.symbol("n"), Size.symbol("m")


def run(tensor, *inputs, **values):
    graph = Graph.closed(inputs, [tensor])
    return reference.run(graph, "eval", values)[0][0]


def numbers(*shape):
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


def read(layout, memory):
    """The array that `layout` sees in flat `memory`."""
    result = np.empty(layout.shape, memory.dtype)
    for index in itertools.product(*map(range, layout.shape)):
        place = sum(i * s for i, s in zip(index, layout.strides, strict=True))
        result[index] = memory[layout.offset + place]
    return result


def bound(layout, **values):
    dims = [tuple(evaluate(d, values) for d in part) for part in layout_parts(layout)]
    return Layout(dims[0], dims[1], evaluate(layout.offset, values))


def layout_parts(layout):
    return layout.shape, layout.strides


# ---- reshape -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "new", "expected"),
    [
        (("n", 4, 3), (-1, 12), (N, 12)),
        (("n", 4, 3), (-1,), (12 * N,)),
        (("n", 6), (-1, 3), (2 * N, 3)),
        (("n", "m"), (-1,), (N * M,)),
        (("n", "m"), (M, -1), (M, N)),
        (("n", 6), (-1, 4), (3 * N // 2, 4)),
        (("n", "m"), (-1, 3), (N * M // 3, 3)),
        (("n",), (N // 4, 2, 2), (N // 4, 2, 2)),
        ((12,), (N, -1), (N, 12 // N)),
        ((2, 3), 6, (6,)),
        ((2, 3), [3, 2], (3, 2)),
        ((2, 3), np.array([1, 6]), (1, 6)),
        ((), (1, 1), (1, 1)),
        ((0, 3), (-1, 3), (0, 3)),
    ],
)
def test_reshape_sizes(shape, new, expected):
    assert sg.reshape(sg.input("x", shape), new).shape == expected


@pytest.mark.parametrize(
    ("shape", "new", "match"),
    [
        (("n", 6), (-1, 4, N), "multiple of 4\\*n"),
        (("n", 3), (0, -1), "multiple of 0"),
        (("n",), (N // 2, 3), "as many elements"),
        (("n",), (3,), "as many elements"),
        (("n", "m"), (N, N), "as many elements"),
        ((2, 3), (-1, -1), "at most one -1"),
        ((0, 3), (0, -1), "multiple of 0"),
        ((2, 3), (2.0, 3), "an int or a Size"),
        ((2, 3), "ab", "ints or Sizes"),
        ((4,), (-2, -2), "not negative"),
    ],
)
def test_reshape_refuses(shape, new, match):
    with pytest.raises(ShapeError, match=match) as error:
        sg.reshape(sg.input("x", shape), new)
    assert "test_shape_ops.py:" in str(error.value)


def test_reshape_order():
    with pytest.raises(ShapeError, match="order 'C'"):
        sg.reshape(np.zeros(3), (3,), order="F")


def test_reshape_layout_agrees_with_numpy_on_every_strided_view():
    memory = np.arange(48)
    views = [
        Layout((4, 3, 4), (12, 4, 1)),
        Layout((4, 4, 3), (12, 1, 4)),
        Layout((4, 1, 12), (12, 5, 1)),
        Layout((2, 3, 4), (24, 4, 1), 3),
        Layout((3, 4), (-4, 1), 11),
        Layout((3, 4), (0, 1), 2),
        Layout((3, 4), (0, 0), 2),
        Layout((12,), (-1,), 20),
        Layout((1, 1), (7, 9), 5),
        Layout((0, 4), (4, 1)),
    ]
    shapes = [
        (48,), (12,), (24,), (4, 12), (12, 4), (2, 2, 12), (3, 4), (4, 3), (2, 6),
        (12, 1), (1, 12), (6, 2), (2, 1, 2, 3), (1,), (), (0,), (4, 0), (2, 3, 2, 2),
        (2, 3, 4), (4, 3, 2, 2), (16, 3), (3, 2, 2), (1, 3, 1, 4), (2, 12),
    ]  # fmt: skip
    tried = 0
    for view, shape in itertools.product(views, shapes):
        if np.prod(view.shape) != np.prod(shape):
            continue
        tried += 1
        array = read(view, memory)
        strided = np.lib.stride_tricks.as_strided(
            memory[view.offset :], view.shape, [8 * s for s in view.strides]
        )
        found = reshape_layout(view, shape)
        no_copy = np.shares_memory(strided.reshape(shape), memory) or array.size == 0
        assert (found is not None) == no_copy, (view, shape)
        if found is not None:
            assert read(found, memory).tolist() == array.reshape(shape).tolist()
    assert tried > 50


@pytest.mark.parametrize(
    ("view", "new", "fits"),
    [
        (Layout.contiguous((N, 6)), (2 * N, 3), True),
        (Layout.contiguous((N, 4, 3)), (N, 12), True),
        (Layout.contiguous((4, N)), (N, 4), True),
        (Layout.contiguous((N, M)), (M, N), True),
        (Layout((N, 6), (1, N)), (2 * N, 3), False),
        (Layout((N, 6), (1, N)), (N, 2, 3), True),
        (Layout((N, 6), (1, N)), (N, 1, 6), True),
        (Layout((N, 1, M), (M, 77, 1)), (N * M,), True),
        (Layout((N, 4), (8, 1)), (4 * N,), False),
        (Layout((N, 4), (8, 2), 3), (2, 2 * N), True),
        (Layout((N, 4), (8, 2), 3), (N * 4,), True),
        (Layout((N, 3), (0, 0)), (3 * N,), True),
        (Layout((N // 2, 2), (2, 1)), (1, (N // 2) * 2), True),
        (Layout((N, M), (M, 1)), (N * M // 3, 3), True),
        (Layout((M, N), (N, 1)), (M, N // 2, 2), True),
        (Layout((M, N), (1, M)), (M, N // 2, 2), True),
        (Layout((M, N), (1, M)), (M * N // 2, 2), False),
    ],
)
def test_reshape_layout_of_symbolic_sizes(view, new, fits):
    found = reshape_layout(view, new)
    assert (found is not None) == fits
    if found is None:
        return
    values = {"n": 4, "m": 3}
    memory = np.arange(500)
    before, after = bound(view, **values), bound(found, **values)
    assert read(after, memory).ravel().tolist() == read(before, memory).ravel().tolist()


def test_unit_axes_get_stride_zero():
    found = reshape_layout(Layout((3, 4), (1, 3)), (1, 3, 1, 4, 1))
    assert found.strides == (0, 1, 0, 3, 0)


# ---- what is made of the views -------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.transpose(x),
        lambda m, x: m.transpose(x, (0, 2, 1)),
        lambda m, x: m.transpose(x, (-1, 0, 1)),
        lambda m, x: m.swapaxes(x, 0, -1),
        lambda m, x: m.matrix_transpose(x),
        lambda m, x: m.moveaxis(x, 0, -1),
        lambda m, x: m.moveaxis(x, (0, 1), (-1, 0)),
        lambda m, x: m.moveaxis(x, -1, 0),
        lambda m, x: m.expand_dims(x, 0),
        lambda m, x: m.expand_dims(x, (0, -1)),
        lambda m, x: m.expand_dims(x, (2, 4)),
        lambda m, x: m.squeeze(x[:, :1]),
        lambda m, x: m.squeeze(x[:, :1], 1),
        lambda m, x: m.broadcast_to(x, (5, 2, 3, 4)),
        lambda m, x: m.ravel(x),
        lambda m, x: m.flip(x),
        lambda m, x: m.flip(x, 1),
        lambda m, x: m.flip(x, (0, -1)),
        lambda m, x: m.pad(x, 1),
        lambda m, x: m.pad(x, (1, 2), constant_values=7),
        lambda m, x: m.pad(x, ((0, 1), (2, 0), (1, 1)), "constant"),
        lambda m, x: m.pad(x, [[3, 1]]),
        lambda m, x: m.concatenate([x, x], 1),
        lambda m, x: m.concatenate([x, x, x], axis=None),
        lambda m, x: m.concatenate([x, x], axis=-1),
        lambda m, x: m.concatenate(x),
        lambda m, x: m.concat([x, x]),
        lambda m, x: m.stack([x, x]),
        lambda m, x: m.stack([x, x], axis=-1),
        lambda m, x: m.stack([x, x], axis=2),
        lambda m, x: m.hstack([x, x]),
        lambda m, x: m.vstack([x, x]),
        lambda m, x: m.split(x, 2, axis=2)[1],
        lambda m, x: m.split(x, [1, 2], 1)[1],
        lambda m, x: m.split(x, [2, 1], 1)[1],
        lambda m, x: m.array_split(x, 2, 1)[0],
        lambda m, x: m.array_split(x, 3, axis=-1)[2],
        lambda m, x: m.array_split(x, 5, axis=-1)[4],
        lambda m, x: m.broadcast_arrays(x, np.float32(1.0))[1],
    ],
)
def test_functions_agree_with_numpy(function):
    value = numbers(2, 3, 4)
    x = sg.input("x", (2, 3, 4))
    result = run(function(sg, x), x, x=value)
    expected = function(np, value)
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected)


@pytest.mark.parametrize("shape", [(), (3,), (0,)])
def test_stacks_of_small_arrays(shape):
    value = numbers(*shape)
    for name in ("stack", "hstack", "vstack"):
        result = run(getattr(sg, name)([value, value]))
        assert np.array_equal(result, getattr(np, name)([value, value]))


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda x: sg.transpose(x), (4, N)),
        (lambda x: sg.broadcast_to(x, (2, N, 4)), (2, N, 4)),
        (lambda x: sg.expand_dims(x, 1), (N, 1, 4)),
        (lambda x: sg.squeeze(x), (N, 4)),
        (lambda x: sg.ravel(x), (4 * N,)),
        (lambda x: sg.flip(x), (N, 4)),
        (lambda x: sg.pad(x, ((1, 2), (0, 0))), (N + 3, 4)),
        (lambda x: sg.pad(x, {0: N}), (3 * N, 4)),
        (lambda x: sg.concatenate([x, x, np.ones((1, 4), "f4")]), (2 * N + 1, 4)),
        (lambda x: sg.stack([x, x], 1), (N, 2, 4)),
        (lambda x: sg.split(x, 2, 1)[0], (N, 2)),
        (lambda x: sg.split(sg.concat([x, x]), 2)[1], (N, 4)),
        (lambda x: sg.array_split(x, 3)[1], ((N + 1) // 3, 4)),
        (lambda x: sg.array_split(sg.tile(x, (6, 1)), 3)[1], (2 * N, 4)),
        (lambda x: sg.split(x, [N // 2])[0], (N // 2, 4)),
        (lambda x: sg.split(x, [N // 2])[1], (N - N // 2, 4)),
    ],
)
@pytest.mark.parametrize("n", [0, 1, 5])
def test_symbolic_sizes(build, expected, n):
    x = sg.input("x", ("n", 4))
    y = build(x)
    assert y.shape == expected
    result = run(y, x, x=numbers(n, 4))
    assert result.shape == tuple(evaluate(dim, {"n": n}) for dim in expected)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda x: sg.transpose(x, (0,)), "permutation of 0..1, got"),
        (lambda x: sg.transpose(x, (0, 0)), "permutation"),
        (lambda x: sg.transpose(x, (0, 2)), r"axis in -2\.\.1, got 2"),
        (lambda x: sg.swapaxes(x, 0, 5), "swapaxes requires an axis"),
        (lambda x: sg.moveaxis(x, (0, 1), 0), "as many distinct sources"),
        (lambda x: sg.moveaxis(x, (0, 0), (0, 1)), "as many distinct sources"),
        (lambda x: sg.expand_dims(x, (0, 0)), "distinct axes"),
        (lambda x: sg.expand_dims(x, 5), "expand_dims requires an axis"),
        (lambda x: sg.squeeze(x, 0), "axes of size 1"),
        (lambda x: sg.broadcast_to(x, (N, 5)), "broadcasts to"),
        (lambda x: sg.broadcast_to(x, (4,)), "broadcasts to"),
        (lambda x: sg.broadcast_to(x, (M, 4)), "broadcasts to"),
        (lambda x: sg.broadcast_arrays(x, np.ones(5)), "shapes that broadcast"),
        (lambda x: sg.flip(x, 2), "flip requires an axis"),
        (lambda x: sg.pad(x, -1), "not negative"),
        (lambda x: sg.pad(x, {0: N - 1}), "not negative for any size"),
        (lambda x: sg.pad(x, ((1, 1), (1, 1), (1, 1))), "a pair per axis"),
        (lambda x: sg.pad(x, ((1, 1, 1), (1, 1))), "a width or a pair"),
        (lambda x: sg.pad(x, 1, "nearest"), "mode"),
        (lambda x: sg.concatenate([x, np.ones((2, 3))]), "equal sizes"),
        (lambda x: sg.concatenate([x, np.ones(4)]), "equal sizes"),
        (lambda x: sg.concatenate([x, x], 2), "concatenate requires an axis"),
        (lambda x: sg.concatenate([1.0, 2.0]), "at least one axis"),
        (lambda x: sg.concatenate([]), "at least one array"),
        (lambda x: sg.concatenate(x), "first axis of static size"),
        (lambda x: sg.stack([x, np.ones((4, 4))]), "arrays of one shape"),
        (lambda x: sg.split(x, 3, 1), "multiple of 3"),
        (lambda x: sg.split(x, 0), "at least one section"),
    ],
)
def test_refusals(build, match):
    with pytest.raises(ShapeError, match=match) as error:
        build(sg.input("x", ("n", 4)))
    assert "test_shape_ops.py:" in str(error.value)


def test_dtypes_are_promoted_like_numpy():
    parts = [np.arange(3, dtype="int32"), np.ones(2, "float32")]
    assert sg.concatenate(parts).dtype == np.concatenate(parts).dtype
    assert sg.stack([np.int8(1), np.int16(2)]).dtype == np.int16
    assert run(sg.pad(np.arange(2), 1, constant_values=2.9)).tolist() == [2, 0, 1, 2]


def test_lists_of_tensors_are_arguments():
    x = sg.input("x", (2,))
    result = run(sg.transpose([x, [5.0, 6.0]]), x, x=numbers(2))
    assert result.tolist() == [[0.0, 5.0], [1.0, 6.0]]


def test_nothing_is_added_where_nothing_changes():
    x = sg.input("x", ("n", 4))
    same = [
        sg.reshape(x, (-1, 4)), sg.transpose(x, (0, 1)), sg.broadcast_to(x, (N, 4)),
        sg.concatenate([x]), sg.flip(x, ()), sg.squeeze(x),
    ]  # fmt: skip
    assert all(y is x for y in same)


# ---- pieces --------------------------------------------------------------------------


def test_pieces_fill_the_regions_of_the_result():
    x, y = sg.input("x", (2, 3)), sg.input("y", (2, 2))
    for result in (
        sg.concatenate([x, y], 1),
        sg.pad(x, ((1, 0), (2, 1)), constant_values=-1.0),
    ):
        node = result.node
        values = {"x": numbers(2, 3), "y": 10 + numbers(2, 2)}
        names = [t.name for t in node.inputs]
        code, types = node.op.code, [t.type for t in node.inputs]
        fill = code.fill(**node.attrs)
        memory = np.full(np.prod(result.shape), np.nan if fill is None else fill)
        for piece in code.pieces(result.shape, *types, **node.attrs):
            region = piece.region
            for index in itertools.product(*map(range, region.shape)):
                steps = zip(index, region.strides, strict=True)
                place = region.offset + sum(i * s for i, s in steps)
                memory[place] = values[names[piece.input]][index]
        expected = run(result, *node.inputs, **{n: values[n] for n in names})
        assert memory.reshape(result.shape).tolist() == expected.tolist()


# ---- sizes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (lambda n, m: n // 2, "n//2"),
        (lambda n, m: 6 * n // 4, "3*n//2"),
        (lambda n, m: (n + 1) // 2 * 2, "2*((n + 1)//2)"),
        (lambda n, m: n // 2 // m, "(n//2)//m"),
        (lambda n, m: (n // 2) ** 2, "(n//2)**2"),
        (lambda n, m: 7 // n, "7//n"),
        (lambda n, m: (6 * n + 4) // 3, "2*n + 1"),
        (lambda n, m: n * m * 6 // (4 * n), "3*m//2"),
        (lambda n, m: (2 * n + m) // 2, "n + m//2"),
        (lambda n, m: (4 * n - 1) // 2, "2*n - 1"),
        (lambda n, m: (3 * n * m) // n, "3*m"),
    ],
)
def test_divisions_of_sizes(of, text):
    assert str(of(N, M)) == text
    assert evaluate(of(N, M), {"n": 4, "m": 3}) == of(4, 3)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (N, N, True), (N // 2 * 2, N, True), (N // 2, N, False), (N, M, False),
        (N // 2 + N // 2, N, True), ((N + 1) // 2 * 2, N, False),
        ((N // 2 * M) // 3 * 6, N * M, True), (12 // N * N, 12, True), (3, 4, False),
    ],
)  # fmt: skip
def test_equal_if_even(left, right, equal):
    assert equal_if_even(left, right) == equal


@pytest.mark.parametrize(
    ("size", "known"),
    [
        (3, True), (-1, False), (N, True), (N + 2, True), (N - 1, False), (N * M, True),
        (N - M, False), (N - N // 2, True), (N // 2, True), (N - 2 * (N // 2), True),
        (N - (N + 1) // 2, False), (N + 1 - (N + 1) // 2, True), ((N - 1) // 2, False),
        (2 * N - N // 2 - N // 3, True), (N // 2 - N // 3, False), (-N, False),
    ],
)  # fmt: skip
def test_never_negative(size, known):
    assert never_negative(size) == known


# ---- gradients of symbolic sizes -----------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(
    "build",
    [
        lambda x: x[1:],
        lambda x: x[:-1, ::-1],
        lambda x: x[::-2, 1:3],
        lambda x: x[::2, None],
        lambda x: x[0],
        lambda x: x[-1, [0, 2, 2]],
        lambda x: sg.pad(x, ((2, 1), (0, 3))),
        lambda x: sg.concatenate([x, x[1:], sg.flip(x)]),
        lambda x: sg.stack([x, 2 * x], axis=1),
        lambda x: sg.broadcast_to(x, (3, *x.shape)),
        lambda x: sg.reshape(x, (2, -1)).T,
        lambda x: sg.moveaxis(sg.reshape(x, (-1, 2, 2)), 0, 2),
        lambda x: sg.take(x, [[0, 0]], axis=0),
        lambda x: sg.take_along_axis(x, [[3, 1]], axis=1),
        lambda x: sg.matmul(x, x.T),
        lambda x: sg.outer(x, [1.0, 2.0]),
        lambda x: sum(sg.split(x, 2, axis=1)),
    ],
)
def test_gradients_of_symbolic_sizes(build, n):
    """``<g, dy> == <dx, x' - x>`` for a small step, in float64."""
    x = sg.input("x", ("n", 4), "float64")
    y = build(x)
    weights = sg.reshape(sg.cos(sg.arange(y.size, dtype="float64")), y.shape)
    total = sg.sum(y * weights)
    (dx,) = (sg.grad(total, x),)
    assert dx.shape == x.shape
    at = np.random.default_rng(n).normal(size=(n, 4))
    along = np.random.default_rng(n + 1).normal(size=(n, 4))
    slope = np.sum(run(dx, x, x=at) * along)
    step = 1e-6
    ends = [run(total, x, x=at + s * along) for s in (step, -step)]
    assert np.allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-7)
