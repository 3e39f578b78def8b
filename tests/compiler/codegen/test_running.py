"""Running sums of floats by registers: order, ends, signs, what is not finite."""

import math

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.graph import apply
from staticgrad.ops.reductions.scans import CUMSUM

LENGTHS = (31, 32, 33, 47, 48, 63, 64, 65, 500)


def compiled(dtype, exclusive=False, shape=("rows", "n"), axis=1):
    x = sg.input("x", shape, dtype)
    return sg.compile(apply(CUMSUM, x, axis=axis, exclusive=exclusive), inputs=[x])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exclusive", [False, True])
def test_every_length(dtype, exclusive):
    f = compiled(dtype, exclusive)
    for n in LENGTHS:
        x = np.random.default_rng(n).normal(size=(3, n)).astype(dtype)
        want = CUMSUM.numpy(x.astype("f8"), axis=1, exclusive=exclusive)
        rtol = 1e-6 if dtype == "float32" else 1e-14
        np.testing.assert_allclose(f(x), want, rtol, rtol * math.sqrt(n))


def test_it_is_one_call():
    assert "running_sum(" in compiled("float32").source()
    assert "running_sum(" in compiled("float32", shape=("n",), axis=0).source()
    for other in (
        compiled("int64"),
        compiled("float32", axis=0),
        compiled("float32", shape=("rows", 8)),
    ):
        assert "running_sum(" not in other.source()


@pytest.mark.parametrize("exclusive", [False, True])
def test_from_the_last_element_on(exclusive):
    """The derivative of a running sum is one from the other end."""
    x = sg.input("x", ("rows", "n"))
    y = apply(CUMSUM, x[:, ::-1], axis=1, exclusive=exclusive)
    f = sg.compile(y, inputs=[x])
    assert "running_sum(" in f.source()
    for n in LENGTHS:
        value = np.random.default_rng(n).integers(-9, 9, (3, n)).astype("f4")
        want = CUMSUM.numpy(value[:, ::-1], axis=1, exclusive=exclusive)
        assert np.array_equal(f(value), want)


def test_whole_numbers_are_exact():
    x = np.arange(-300, 700, dtype="f4")[None]
    assert np.array_equal(compiled("float32")(x), np.cumsum(x, 1))


def test_zeros_keep_their_sign():
    x = np.full((1, 50), -0.0, "f4")
    assert np.signbit(compiled("float32")(x)).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 15, 16, 40, 49])
def test_what_is_not_finite_stays_from_its_place_on(bad, place):
    x = np.ones((1, 50), "f4")
    x[0, place] = bad
    got = compiled("float32")(x)
    assert np.array_equal(got, np.cumsum(x, 1), equal_nan=True)


def test_nothing_behind_a_row_is_read_or_written():
    """Rows are neighbours in memory: what is left of one is masked."""
    f = compiled("float32")
    x = np.ones((4, 37), "f4")
    x[1] = math.nan
    got = f(x)
    assert np.isnan(got[1]).all()
    assert np.array_equal(got[[0, 2, 3]], np.tile(np.arange(1.0, 38), (3, 1)))


def test_the_bits_depend_on_sizes_alone():
    x = np.random.default_rng(0).normal(size=(64, 5000)).astype("f4")
    f = compiled("float32")
    before = sg.get_num_threads()
    found = []
    for threads in (1, 2):
        sg.set_num_threads(threads)
        found.append(f(x))
    sg.set_num_threads(before)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0][:1], f(x[:1]))


def test_derivative():
    x = sg.parameter(np.random.default_rng(0).normal(size=(2, 40)))
    y = sg.sum(sg.sin(sg.cumsum(x, 1)))
    assert sg.testing.gradcheck(y, wrt=[x])
