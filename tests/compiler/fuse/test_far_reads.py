"""Operands that loops would read far apart are copied first, by tiles."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.host.processor import vector_bytes
from staticgrad.compiler.lower import strided_copies

CASES = {
    "scaled": lambda m, x, y: x.T * 2,
    "added": lambda m, x, y: x.T + y,
    "both ways": lambda m, x, y: x[:100, :100].T - x[:100, :100],
    "a part": lambda m, x, y: x[3:, 5:].T * y[5:, 3:],
    "backwards": lambda m, x, y: x[::-1].T * y,
    "turned": lambda m, x, y: m.rot90(x) * 2 + m.rot90(x, 3),
    "both backwards": lambda m, x, y: x[::-1, ::-1].T * y[::-1],
    "rows of sums": lambda m, x, y: m.sum(x.T * y, axis=1),
    "columns of sums": lambda m, x, y: m.sum(x.T * y, axis=0),
    "sum of all": lambda m, x, y: m.sum(x.T * y),
    "largest": lambda m, x, y: m.max(x.T, axis=1),
    "two": lambda m, x, y: m.sqrt(abs(x.T)) * m.cos(y) + x.T,
    "broadcast": lambda m, x, y: x.T * y[:, :1] + y[:1],
}


def softmax(m, x):
    e = m.exp(x - m.max(x, axis=1, keepdims=True))
    return e / m.sum(e, axis=1, keepdims=True)


CASES["softmax"] = lambda m, x, y: softmax(m, x.T)
CASES["variance"] = lambda m, x, y: m.var(x.T + y, axis=1)


def copies_of(f):
    return f.source().count("tiles((")


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_values_are_numpys(name, dtype, target):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(211, 130)), draw.normal(size=(130, 211))
    x, y = x.astype(dtype), y.astype(dtype)
    a, b = sg.input("a", x.shape, dtype=dtype), sg.input("b", y.shape, dtype=dtype)
    f = sg.compile(CASES[name](sg, a, b), inputs=[a, b], target=target)
    tolerance = 2e-5 if dtype == "float32" else 1e-12
    expected = CASES[name](np, x.astype("float64"), y.astype("float64"))
    np.testing.assert_allclose(f(x, y), expected, rtol=tolerance, atol=tolerance * 99)


@pytest.mark.parametrize("dtype", ["int32", "int64", "int16", "bool", "float16"])
def test_other_dtypes(dtype):
    x = np.random.default_rng(1).integers(0, 2, (150, 290)).astype(dtype)
    a = sg.input("a", x.shape, dtype=dtype)
    f = sg.compile([a.T | a.T[::-1] if dtype == "bool" else a.T + 1], inputs=[a])
    expected = x.T | x.T[::-1] if dtype == "bool" else x.T + 1
    np.testing.assert_array_equal(f(x)[0], expected)


def test_axes_of_more_than_a_matrix():
    x = np.random.default_rng(2).normal(size=(6, 40, 3, 50)).astype("float32")
    a = sg.input("a", x.shape)
    for axes in ((0, 3, 2, 1), (3, 2, 1, 0), (2, 3, 0, 1), (1, 0, 2, 3), (0, 2, 3, 1)):
        f = sg.compile(sg.exp(a.transpose(axes)) + 1, inputs=[a])
        np.testing.assert_allclose(f(x), np.exp(x.transpose(axes)) + 1, rtol=1e-6)


def test_what_is_copied():
    """Large operands read across their rows are copied; cached ones are not."""

    def copies(shape, call, dtype="float32"):
        x = sg.input("x", shape, dtype=dtype)
        return copies_of(sg.compile(call(x), inputs=[x]))

    assert copies((300, 200), lambda x: x.T * 2) == 1
    assert copies((300, 200), lambda x: sg.softmax(x.T, axis=1)) == 1
    assert copies((300, 200), lambda x: x * 2) == 0
    assert copies((300, 200), lambda x: sg.sum(x.T * 2, axis=0)) == 0
    assert copies((300, 200), lambda x: sg.sum(x, axis=0)) == 0
    assert copies((60, 50), lambda x: x.T * 2) == 0
    assert copies((3000, 8), lambda x: x.T * 2) == 0
    assert copies(("n", 200), lambda x: x.T * 2) == 0
    assert copies((300, 200), lambda x: x.T * 2, "int8") == 0
    assert vector_bytes() <= strided_copies.LINE_BYTES


def test_derivatives():
    x = np.random.default_rng(3).normal(size=(120, 140))
    a = sg.input("a", x.shape, dtype="float64")
    g = sg.grad(sg.sum(sg.sin(a.T) * sg.exp(a.T[:, :1])), a)
    expected = np.cos(x) * np.exp(x[:1])
    expected[0] += (np.sin(x) * np.exp(x[:1])).sum(0)
    np.testing.assert_allclose(sg.compile(g, inputs=[a])(x), expected, rtol=1e-9)


def test_threads_and_poison_change_no_bit():
    x = np.random.default_rng(4).normal(size=(700, 650)).astype("float32")
    a = sg.input("a", x.shape)
    outputs = [sg.softmax(a.T, axis=1), sg.sum(a.T * 3, axis=1), a.T + a.T[::-1]]
    before, found = sg.get_num_threads(), []
    try:
        for threads, poison in ((1, False), (2, False), (1, True)):
            sg.set_num_threads(threads)
            f = sg.compile(outputs, inputs=[a], poison=poison)
            found.append([value.tobytes() for value in f(x)])
    finally:
        sg.set_num_threads(before)
    assert found[0] == found[1] == found[2]


def test_inside_of_loops():
    x = np.random.default_rng(5).normal(size=(130, 130))
    a = sg.input("a", x.shape, dtype="float64")
    last, _ = sg.scan(lambda c, _: (sg.tanh(c.T) + a.T, None), a, None, length=3)
    expected = x
    for _ in range(3):
        expected = np.tanh(expected.T) + x.T
    found = sg.compile([last, sg.grad(sg.sum(last**2), a)], inputs=[a])(x)
    other = sg.compile(
        [last, sg.grad(sg.sum(last**2), a)], inputs=[a], target="reference"
    )(x)
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)
    np.testing.assert_allclose(found[1], other[1], rtol=1e-9, atol=1e-9)
