"""Loops that keep what the index before has computed: the same bits, less work."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.codegen.loops.loop_source import kernel_source
from staticgrad.compiler.codegen.loops.shifted_values import shifted
from staticgrad.compiler.kernel_ir.kernels import Loop, LoopKernel
from staticgrad.compiler.kernel_ir.walks import statements_of

RNG = np.random.default_rng(0)


def slope(x):
    """Differences of what costs something."""
    return f(x[1:]) - f(x[:-1])


def f(x):
    return x * x * 0.5 - 1.0 / (x * x + 1.0)


def curve(x):
    """Three neighbours, of which one is kept."""
    y = f(x)
    return y[2:] - 2.0 * y[1:-1] + y[:-2]


def backwards(x):
    return slope(x[::-1])


def valley(x):
    """The gradient of Rosenbrock's function."""
    low, high = x[:-1], x[1:]
    terms = 100.0 * (high - low * low) ** 2 + (1.0 - low) ** 2
    return sg.grad(sg.sum(terms), x)


def rows(x):
    """Along the last axis of two."""
    y = sg.reshape(x[: x.shape[0] // 8 * 8], (-1, 8))
    return f(y[:, 1:]) - f(y[:, :-1])


def columns(x):
    """Along the first axis of two: neighbours are a row apart."""
    y = sg.reshape(x[: x.shape[0] // 8 * 8], (-1, 8))
    return f(y[1:]) - f(y[:-1])


def total(x):
    """A sum: loops with registers keep nothing."""
    return sg.sum(slope(x) ** 2)


BUILDS = (slope, curve, backwards, valley, rows, columns, total)


def kept(g):
    """Count the values that the loops of an executable keep."""
    kernels = [k for k in g.memory.plan.schedule.kernels if isinstance(k, LoopKernel)]
    loops = [(s, k) for k in kernels for s in statements_of(k.body)]
    found = [shifted(s, k) for s, k in loops if isinstance(s, Loop)]
    return sum(len(one.kept) for one in found if one is not None)


@pytest.mark.parametrize("size", [16, 1000, 300_001])
@pytest.mark.parametrize("build", BUILDS)
def test_the_same_bits_as_node_by_node(build, size):
    x = RNG.normal(size=size).astype("f4")
    leaf = sg.input("x", (size,))
    y = build(leaf)
    ours, plain = (
        sg.compile(y, inputs=[leaf], target=target)(x)
        for target in ("cpu", "reference")
    )
    if build is total:
        np.testing.assert_allclose(ours, plain, rtol=1e-5)
    else:
        np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("build", [slope, curve, valley])
def test_sizes_that_are_not_known_may_leave_no_index(build):
    leaf = sg.input("x", ("n",))
    y = build(leaf)
    ours, plain = (
        sg.compile(y, inputs=[leaf], target=target) for target in ("cpu", "reference")
    )
    for size in (2, 3, 4, 65, 1):
        x = RNG.normal(size=size).astype("f4")
        if size > 2 or build is not curve:
            np.testing.assert_array_equal(ours(x), plain(x))


@pytest.mark.parametrize(
    ("build", "count"),
    [(slope, 1), (curve, 1), (backwards, 1), (valley, 1), (rows, 1), (total, 0)],
)
def test_what_is_kept(build, count):
    leaf = sg.input("x", (1000,))
    g = sg.compile(build(leaf), inputs=[leaf])
    g(np.ones(1000, "f4"))
    assert kept(g) == count


def test_elements_and_single_operations_are_read_and_done_again():
    leaf = sg.input("x", (1000,))
    for y in (leaf[1:] - leaf[:-1], leaf[1:] ** 2 - leaf[:-1] ** 2):
        g = sg.compile(y, inputs=[leaf])
        g(np.ones(1000, "f4"))
        assert kept(g) == 0


def test_the_source_says_it():
    leaf = sg.input("x", (1000,))
    g = sg.compile(slope(leaf), inputs=[leaf])
    g(np.ones(1000, "f4"))
    (kernel,) = g.memory.plan.schedule.kernels
    text = kernel_source(kernel).text
    assert "if begin < end:\n        i0 = begin\n" in text
    assert text.count("load(") == 2
