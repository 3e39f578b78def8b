"""Functions that move elements around: values, dtypes and gradients against NumPy."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.errors import ShapeError
from staticgrad.testing import gradcheck, gradgradcheck

A = np.arange(24, dtype="float64").reshape(2, 3, 4) * 0.7 - 3.1
M = A[0]
V = np.array([1.5, -2.0, 0.5])

# the same calls with NumPy and with staticgrad
CASES = {
    "ravel": lambda m, x: m.ravel(x),
    "moveaxis": lambda m, x: m.moveaxis(x, (0, 1), (-1, 0)),
    "rollaxis": lambda m, x: m.rollaxis(x, 2),
    "rollaxis_back": lambda m, x: m.rollaxis(x, 0, 3),
    "swapaxes": lambda m, x: m.swapaxes(x, 0, 2),
    "expand_dims": lambda m, x: m.expand_dims(x, (0, -1)),
    "squeeze": lambda m, x: m.squeeze(x[:1, :, :1]),
    "tile": lambda m, x: m.tile(x, (2, 1, 3)),
    "tile_more": lambda m, x: m.tile(x[0, 0], (2, 2)),
    "tile_fewer": lambda m, x: m.tile(x, 2),
    "repeat": lambda m, x: m.repeat(x, 3, axis=1),
    "repeat_flat": lambda m, x: m.repeat(x, 2),
    "repeat_counts": lambda m, x: m.repeat(x, [2, 0, 3], axis=1),
    "roll": lambda m, x: m.roll(x, 2),
    "roll_axis": lambda m, x: m.roll(x, -1, axis=2),
    "roll_axes": lambda m, x: m.roll(x, (1, 5), axis=(0, 2)),
    "roll_one": lambda m, x: m.roll(x, 1, axis=(0, 1)),
    "rot90": lambda m, x: m.rot90(x),
    "rot180": lambda m, x: m.rot90(x, 2, (1, 2)),
    "rot270": lambda m, x: m.rot90(x, -1, (2, 0)),
    "flip": lambda m, x: m.flip(x, (0, 2)),
    "flipud": lambda m, x: m.flipud(x),
    "fliplr": lambda m, x: m.fliplr(x),
    "pad": lambda m, x: m.pad(x, ((1, 0), (0, 2), (1, 1)), constant_values=7),
    "pad_values": lambda m, x: m.pad(
        x, 1, constant_values=((1, 2), (3, 4), (5, 6))
    ),
    "pad_edge": lambda m, x: m.pad(x, ((1, 2), (0, 0), (5, 1)), "edge"),
    "pad_reflect": lambda m, x: m.pad(x, ((1, 1), (2, 0), (3, 2)), "reflect"),
    "pad_reflect_wide": lambda m, x: m.pad(x, ((3, 4), (0, 0), (9, 2)), "reflect"),
    "pad_symmetric": lambda m, x: m.pad(x, ((2, 1), (3, 0), (1, 4)), "symmetric"),
    "pad_symmetric_wide": lambda m, x: m.pad(x, 6, "symmetric"),
    "pad_wrap": lambda m, x: m.pad(x, ((1, 2), (0, 3), (4, 0)), "wrap"),
    "pad_wrap_wide": lambda m, x: m.pad(x, 7, "wrap"),
    "tril": lambda m, x: m.tril(x),
    "triu": lambda m, x: m.triu(x, 1),
    "tril_vector": lambda m, x: m.tril(x[0, 0], -1),
    "cross": lambda m, x: m.cross(x.reshape(8, 3), x.reshape(8, 3)[::-1] + 1),
    "cross_axis": lambda m, x: m.cross(x, x[::-1] * 2, axis=1),
    "diag": lambda m, x: m.diag(x[0, 0], 1),
    "diag_of_matrix": lambda m, x: m.diag(x[0], -1),
    "diagonal": lambda m, x: m.diagonal(x, 1, 2, 0),
    "diagonal_beyond": lambda m, x: m.diagonal(x, 5),
    "diagflat": lambda m, x: m.diagflat(x[0, :2], -2),
    "trace": lambda m, x: m.trace(x, 1),
    "trace_axes": lambda m, x: m.trace(x, axis1=1, axis2=2),
    "meshgrid": lambda m, x: m.meshgrid(x[0, 0], x[0, :, 0], x[:, 0, 0]),
    "meshgrid_ij": lambda m, x: m.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
    "meshgrid_sparse": lambda m, x: m.meshgrid(x[0, 0], x[0, :, 0], sparse=True),
    "atleast_1d": lambda m, x: m.atleast_1d(x[0, 0, 0]),
    "atleast_2d": lambda m, x: m.atleast_2d(x[0, 0], x),
    "atleast_3d": lambda m, x: m.atleast_3d(x[0, 0], x[0]),
    "column_stack": lambda m, x: m.column_stack([x[0, 0], x[0].T]),
    "dstack": lambda m, x: m.dstack([x[0], x[1]]),
    "dstack_vectors": lambda m, x: m.dstack([x[0, 0], x[0, 1]]),
    "block": lambda m, x: m.block([[x[0], x[1]], [x[1, :1], x[0, :1]]]),
    "block_deep": lambda m, x: m.block([[[x], [x]]]),
    "block_vectors": lambda m, x: m.block([x[0, 0], 2.0]),
    "broadcast_arrays": lambda m, x: m.broadcast_arrays(x, x[0, 0]),
    "append": lambda m, x: m.append(x, x[:1], axis=0),
    "append_flat": lambda m, x: m.append(x, 3.0),
    "insert": lambda m, x: m.insert(x, 1, 5.0, axis=1),
    "insert_several": lambda m, x: m.insert(x, [2, 0, 2], [1.0, 2.0, 3.0, ], axis=2),
    "insert_flat": lambda m, x: m.insert(x, -1, [1.0, 2.0]),
    "insert_slice": lambda m, x: m.insert(x, slice(0, 2), 9.0, axis=1),
    "insert_row": lambda m, x: m.insert(x[0], 1, x[1, 0], axis=0),
    "delete": lambda m, x: m.delete(x, 1, axis=1),
    "delete_several": lambda m, x: m.delete(x, [0, -1], axis=2),
    "delete_slice": lambda m, x: m.delete(x, slice(0, 9, 2)),
    "hsplit": lambda m, x: m.hsplit(x, 3),
    "vsplit": lambda m, x: m.vsplit(x, 2),
    "dsplit": lambda m, x: m.dsplit(x, [1, 3]),
    "vander": lambda m, x: m.vander(x[0, 0]),
    "vander_up": lambda m, x: m.vander(x[0, 0], 2, increasing=True),
    "full_like": lambda m, x: m.full_like(x, 2.5) * x,
    "take_wrap": lambda m, x: m.take(x, [5, -7], axis=1, mode="wrap"),
    "take_clip": lambda m, x: m.take(x, [5, -7], axis=1, mode="clip"),
}  # fmt: skip


def as_tuple(result):
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def equal(got, want):
    assert len(got) == len(want)
    for left, right in zip(got, want, strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        np.testing.assert_allclose(left, right, rtol=1e-14)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("part", range(4))
def test_values_equal_numpys(part, target):
    names = list(CASES)[part::4]  # compiling one graph for many takes less time
    x = sg.input("x", A.shape, "float64")
    outputs = {name: as_tuple(CASES[name](sg, x)) for name in names}
    f = sg.compile(outputs, inputs=[x], target=target)
    found = f(A)
    for name in names:
        equal(found[name], as_tuple(CASES[name](np, A)))


@pytest.mark.parametrize("name", CASES)
def test_derivatives_equal_differences(name):
    def function(x):
        return [part * part for part in as_tuple(CASES[name](sg, x))]

    assert gradcheck(function, A, directions=3)
    assert gradgradcheck(function, A)


def test_symbolic_sizes():
    calls = {
        "tile": lambda m, x: m.tile(x, (2, 3)),
        "repeat": lambda m, x: m.repeat(x, 2, axis=0),
        "roll": lambda m, x: m.roll(x, 2, axis=0),
        "roll_back": lambda m, x: m.roll(x, -7, axis=1),
        "rot90": lambda m, x: m.rot90(x),
        "pad_edge": lambda m, x: m.pad(x, 2, "edge"),
        "pad_reflect": lambda m, x: m.pad(x, 1, "reflect"),
        "pad_symmetric": lambda m, x: m.pad(x, 2, "symmetric"),
        "pad_wrap": lambda m, x: m.pad(x, 2, "wrap"),
        "tril": lambda m, x: m.tril(x),
        "diagonal": lambda m, x: m.diagonal(m.matmul(x, x.T), 1),
        "diag": lambda m, x: m.diag(x[:, 0], -1),
        "trace": lambda m, x: m.trace(m.matmul(x, x.T)),
        "meshgrid": lambda m, x: m.meshgrid(x[:, 0], x[0])[0],
        "column_stack": lambda m, x: m.column_stack([x, x[:, 0]]),
        "block": lambda m, x: m.block([[x, x], [x * 2, x]]),
        "kron": lambda m, x: m.kron(x, x),
    }
    x = sg.input("x", ("n", "m"), "float64")
    f = sg.compile({k: call(sg, x) for k, call in calls.items()}, inputs=[x])
    for n, m in ((2, 3), (5, 2), (3, 7)):
        value = np.random.default_rng(n).normal(size=(n, m))
        found = f(value)
        for name, call in calls.items():
            np.testing.assert_allclose(found[name], call(np, value), rtol=1e-13)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "int64"])
def test_pieces_that_take_turns_are_copied_in_one_loop(count, dtype):
    data = [
        (np.arange(7 * 5).reshape(7, 5) * (n + 3) % 11).astype(dtype)
        for n in range(count)
    ]
    for dims in ((7, 5), ("n", 5), (7, "n")):
        xs = [sg.input(f"x{n}", dims, dtype=dtype) for n in range(count)]
        parts = [xs[0], *xs[1:-1], xs[0] if count == 3 else xs[-1].T[::-1].T]
        y = sg.stack(parts, axis=-1)
        f = sg.compile([y, sg.stack(parts, axis=1)], inputs=xs)
        last = data[0] if count == 3 else data[-1][:, ::-1]
        theirs = [data[0], *data[1:-1], last]
        found = f(*data)
        np.testing.assert_array_equal(found[0], np.stack(theirs, axis=-1))
        np.testing.assert_array_equal(found[1], np.stack(theirs, axis=1))
        alone = sg.compile(y, inputs=xs)
        assert alone.source().count("def kernel") == 1


def test_a_mirror_needs_enough_elements_when_it_runs():
    x = sg.input("x", ("n",))
    f = sg.compile(sg.pad(x, 2, "reflect"), inputs=[x])
    assert f(np.float32([1, 2, 3])).tolist() == [3, 2, 1, 2, 3, 2, 1]
    with pytest.raises(ShapeError):
        f(np.float32([1, 2]))


def test_a_shift_that_is_data():
    x, s = sg.input("x", ("n",)), sg.input("s", (), "int32")
    f = sg.compile(sg.roll(x, s), inputs=[x, s])
    value = np.arange(5, dtype="float32")
    for shift in (-7, -1, 0, 3, 12):
        assert np.array_equal(f(value, np.int32(shift)), np.roll(value, shift))


def test_fillings():
    outputs = [
        sg.tri(3, 4, -1), sg.tri(2, dtype="int32"), sg.indices((2, 3)),
        *sg.indices((2, 3), sparse=True), *sg.tril_indices(3, 1, 2),
        *sg.triu_indices(3), *sg.diag_indices(3), sg.identity(2),
    ]  # fmt: skip
    want = [
        np.tri(3, 4, -1, dtype="f4"), np.tri(2, dtype="int32"), np.indices((2, 3)),
        *np.indices((2, 3), sparse=True), *np.tril_indices(3, 1, 2),
        *np.triu_indices(3), *np.diag_indices(3), np.identity(2, dtype="f4"),
    ]  # fmt: skip
    for got, expected in zip(sg.compile(outputs)(), want, strict=True):
        assert got.dtype == expected.dtype
        assert np.array_equal(got, expected)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: sg.diagonal(x[0, 0]), "at least two axes"),
        (lambda x: sg.diag(x), "one or two axes"),
        (lambda x: sg.diag(sg.input("y", ("n", 3))), "the smaller of n and 3"),
        (lambda x: sg.rot90(x, axes=(1, 1)), "two different axes"),
        (lambda x: sg.roll(x, (1, 2, 3), axis=(0, 1)), "a shift per axis"),
        (lambda x: sg.repeat(x, sg.constant([1, 2])), "got a Tensor"),
        (lambda x: sg.repeat(x, [1, 2], axis=1), "a count per element"),
        (lambda x: sg.pad(x, 1, "mean"), "a mode of constant, edge"),
        (lambda x: sg.pad(x, -1), "not negative"),
        (lambda x: sg.pad(x, 1, constant_values=x), "numbers as constant_values"),
        (lambda x: sg.pad(sg.zeros((0,)), 1, "edge"), "elements along axis 0"),
        (lambda x: sg.cross(x, x), "three elements"),
        (lambda x: sg.meshgrid(x, indexing="ji"), "'xy' or 'ij'"),
        (lambda x: sg.block([[x], x]), "nested equally deep"),
        (lambda x: sg.insert(x, 9, 1.0, axis=0), "places in -2..2"),
        (lambda x: sg.delete(x, 9, axis=0), "places in the axis"),
        (lambda x: sg.delete(sg.input("y", ("n",)), 0), "known when the graph"),
        (lambda x: sg.vander(x), "one axis"),
        (lambda x: sg.rollaxis(x, 0, 7), r"a start in -3\.\.3"),
        (lambda x: sg.tril(x[0, 0, 0]), "at least one axis"),
        (lambda x: sg.vsplit(x[0, 0], 2), "at least two axes"),
        (lambda x: sg.dsplit(x[0], 2), "at least three axes"),
        (lambda x: sg.take(x, 0, mode="none"), "raise, wrap or clip"),
        (lambda x: sg.where(x > 0), "two arrays to choose from"),
    ],
)
def test_refusals(call, match):
    with pytest.raises(ShapeError, match=match) as caught:
        call(sg.input("x", A.shape))
    assert "test_rearranging.py:" in str(caught.value)


@pytest.mark.parametrize("name", ["nonzero", "argwhere", "flatnonzero", "unique"])
def test_results_whose_size_is_data_are_refused(name):
    with pytest.raises(TypeError, match=r"use sg\.(where|bincount)"):
        getattr(np, name)(sg.input("x", (3,)))
