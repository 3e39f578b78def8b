"""Matrix products: every combination of ranks, dtypes, symbolic sizes, refusals."""

import itertools

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.runtime.targets import reference
from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import Graph, apply
from staticgrad.ir.op import OPS
from staticgrad.ir.size import Size

N = Size.symbol("n")


def run(tensor, *inputs, **values):
    graph = Graph.closed(inputs, [tensor])
    return reference.run(graph, "eval", values)[0][0]


def draw(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape)


LEFT = [(3,), (2, 3), (5, 2, 3), (1, 2, 3), (4, 5, 2, 3), (0, 3), (1, 1, 1, 3)]
RIGHT = [(3,), (3, 4), (5, 3, 4), (1, 3, 4), (4, 1, 3, 4), (3, 0), (5, 3, 1)]


@pytest.mark.parametrize(
    ("left", "right"), list(itertools.product(LEFT, RIGHT)), ids=str
)
def test_matmul_agrees_with_numpy(left, right):
    x, y = draw(*left), draw(*right)
    result, expected = run(sg.matmul(x, y)), np.matmul(x, y)
    assert result.shape == expected.shape
    assert np.allclose(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool"])
@pytest.mark.parametrize(("left", "right"), [((2, 3), (3, 4)), ((3,), (5, 3, 2))])
def test_integers_and_bools_are_exact(dtype, left, right):
    x, y = (np.round(40 * draw(*shape)).astype(dtype) for shape in (left, right))
    result = sg.matmul(x, y)
    assert result.dtype == dtype
    assert np.array_equal(run(result), np.matmul(x, y))


def test_dtypes_are_promoted():
    assert sg.matmul(np.eye(2, dtype="f4"), np.eye(2)).dtype == np.float64
    assert sg.matmul(np.eye(2, dtype="f4"), np.eye(2, dtype="i4")).dtype == np.float64
    x = sg.input("x", (2, 2))
    assert sg.matmul(x, [[1.0, 2.0], [3.0, 4.0]]).dtype == np.float32


def test_symbolic_sizes():
    x = sg.input("x", ("n", 7, 3))
    w = sg.input("w", (3, 4))
    y = sg.matmul(x, w)
    assert y.shape == (N, 7, 4)
    (gemm,) = [n for n in Graph.closed((), [y]).nodes if n.op.name == "matmul"]
    assert gemm.types[0].shape == (7 * N, 4)
    assert sg.matmul(sg.swapaxes(x, 1, 2), x).shape == (N, 3, 3)
    values = {"x": draw(2, 7, 3).astype("f4"), "w": draw(3, 4).astype("f4")}
    expected = values["x"] @ values["w"]
    assert np.allclose(run(y, x, w, **values), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("left", "right", "match"),
    [
        ((2, 3), (2, 3), "as many columns of the first as rows of the second"),
        ((3,), (4,), "as many columns"),
        ((), (2, 2), "at least one axis"),
        ((2, 2, 3), (5, 3, 2), "batch axes that broadcast"),
        (("n", 3), ("m", 3), "as many columns"),
        (("n", 2, 3), ("m", 3, 2), "n and m differ"),
    ],
)
def test_matmul_refuses(left, right, match):
    with pytest.raises(ShapeError, match=match) as error:
        sg.matmul(sg.input("x", left), sg.input("y", right))
    assert "test_matmul.py:" in str(error.value)


def test_the_op_refuses():
    for case in OPS["matmul"].bad():
        with pytest.raises(case.error, match=case.match):
            apply(OPS["matmul"], *map(sg.constant, case.args))
    with pytest.raises(DTypeError, match="floats of one dtype"):
        apply(OPS["matmul"], sg.constant(np.eye(2, dtype=int)), sg.constant(np.eye(2)))


@pytest.mark.parametrize(
    ("left", "right"),
    [((3,), (3,)), ((2, 3), (3,)), ((2, 3), (3, 2)), ((), (2,)), ((2,), ()), ((), ())],
)
def test_dot(left, right):
    x, y = draw(*left), draw(*right)
    assert np.allclose(run(sg.dot(x, y)), np.dot(x, y), rtol=1e-12)


def test_dot_of_more_axes():
    x, y = draw(3), draw(2, 3, 4)
    assert np.allclose(run(sg.dot(x, y)), np.dot(x, y), rtol=1e-12)


def test_outer():
    x, y = draw(2, 3), draw(4)
    assert np.array_equal(run(sg.outer(x, y)), np.outer(x, y))
    assert sg.outer(sg.input("x", ("n",)), [1.0]).shape == (N, 1)
    flags = np.array([True, False])
    assert np.array_equal(run(sg.outer(flags, flags)), np.outer(flags, flags))
