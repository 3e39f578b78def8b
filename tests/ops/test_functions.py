"""Composites and special functions: values, derivatives of order 1 and 2, kinks."""

import math

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.testing import gradcheck, gradgradcheck

X = np.array([[0.3, -1.2, 2.1], [1.4, 0.7, -0.6]])
Y = np.array([[1.1, 0.4, -0.9], [2.0, -1.5, 0.8]])

DERIVATIVES = {
    "logaddexp2": sg.logaddexp2,
    "float_power": lambda x, y: sg.float_power(abs(x), y),
    "deg2rad": lambda x, y: sg.deg2rad(x) * sg.rad2deg(y),
    "sinc": lambda x, y: sg.sinc(x) * y,
    "modf": lambda x, y: sg.modf(x)[0] * y,
    "fmax": lambda x, y: sg.fmax(x, y) * sg.fmin(x * 2, y),
    "ldexp": lambda x, y: sg.ldexp(x, [3, -1, 0]) * y,
    "leaky_relu": lambda x, y: sg.leaky_relu(x, 0.2) * y,
    "elu": lambda x, y: sg.elu(x, 0.7) * y,
    "silu": lambda x, y: sg.silu(x * y),
    "gelu": lambda x, y: sg.gelu(x * y),
    "gelu_tanh": lambda x, y: sg.gelu(x, approximate="tanh") * y,
    "polygamma": lambda x, y: sg.polygamma(1, abs(x) + 0.5) * y,
    "nansum": lambda x, y: sg.nansum(x * y, axis=1),
    "nanmean": lambda x, y: sg.nanmean(x * y, axis=0),
    "nanvar": lambda x, y: sg.nanvar(x * y, axis=1, ddof=1),
    "nanstd": lambda x, y: sg.nanstd(x, axis=1) * sg.nanmax(y, axis=1),
    "ptp": lambda x, y: sg.ptp(x * y, axis=1),
    "average": lambda x, y: sg.average(x, axis=1, weights=y[0] * y[0]),
    "norm": lambda x, y: sg.linalg.norm(x, axis=1) * sg.linalg.norm(y),
    "norm_1": lambda x, y: sg.linalg.norm(x * y, 1) + sg.linalg.norm(x[0], 1),
    "norm_inf": lambda x, y: sg.linalg.norm(x, np.inf) * sg.linalg.norm(y, -np.inf),
    "norm_3": lambda x, y: sg.linalg.norm(x * y, 3, axis=0),
    "cumsum": lambda x, y: sg.cumsum(x, axis=1) * y + sg.cumsum(y)[2],
    "cumprod": lambda x, y: sg.cumprod(x * y, axis=1),
    "diff": lambda x, y: sg.diff(x) * sg.diff(y, axis=1, append=0.5)[:, :2],
    "trapezoid": lambda x, y: sg.trapezoid(x * y, sg.cumsum(sg.exp(x), 1)),
    "polyval": lambda x, y: sg.polyval(x[0], y),
    "cov": lambda x, y: sg.cov(x, y),
    "corrcoef": lambda x, y: sg.corrcoef(sg.concatenate([x, y], axis=1)),
    "select": lambda x, y: sg.select([x > 1, y > 0], [x * y, y * y], x),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_equal_differences(name):
    assert gradcheck(DERIVATIVES[name], X, Y)
    if name != "corrcoef":  # its elements on the diagonal are 1, a kink of clipping
        assert gradgradcheck(DERIVATIVES[name], X, Y)


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_running_product_with_zeros_to_second_order(zeros):
    x = np.array([[0.5, -1.5, 2.0], [3.0, 0.7, -0.4]])
    x.ravel()[:zeros] = 0
    for axis in (0, 1):
        assert gradcheck(lambda t, axis=axis: sg.cumprod(t, axis=axis), x)
        assert gradgradcheck(lambda t, axis=axis: sg.cumprod(t, axis=axis), x)


def gradient(function, *values):
    arrays = [np.asarray(v, dtype="float64") for v in values]
    xs = [sg.input(f"x{n}", a.shape, "float64") for n, a in enumerate(arrays)]
    found = sg.grad(sg.sum(function(*xs)), xs, unused="zero")
    result = sg.compile(found, inputs=xs, target="reference")(*arrays)
    return [array.tolist() for array in result]


KINKS = [
    (sg.linalg.norm, [0.0, 0.0], [0, 0]),
    (lambda x: sg.linalg.norm(x, 3), [0.0, 0.0], [0, 0]),
    (lambda x: sg.linalg.norm(x, 1), [0.0, 2.0], [0, 1]),
    (lambda x: sg.linalg.norm(x, np.inf), [2.0, -2.0], [0.5, -0.5]),
    (sg.std, [1.0, 1.0], [0, 0]),
    (lambda x: sg.hypot(x, 0.0), [0.0], [0]),
    (lambda x: sg.arctan2(x, 0.0), [0.0, 2.0], [0, 0]),
    (sg.sinc, [0.0], [0]),
    (lambda x: sg.leaky_relu(x, 0.25), [-1.0, 0.0, 1.0], [0.25, 0.25, 1]),
    (sg.elu, [0.0, 1.0], [1, 1]),
    (sg.trunc, [1.5], [0]),
    (lambda x: sg.copysign(x, -1.0), [2.0, 0.0, -2.0], [-1, 0, 1]),
    (lambda x: sg.fmax(x, 1.0), [1.0, 2.0, np.nan], [0.5, 1, 0]),
    (sg.nansum, [1.0, np.nan], [1, 0]),
    (sg.nanprod, [3.0, np.nan], [1, 0]),
    (lambda x: sg.xlogy(x, 0.0) * 0, [0.0], [0]),
    (lambda x: sg.where(abs(x) < 1, sg.arcsin(x), 0), [1.0, 0.0], [0, 1]),
    (lambda x: sg.where(x > 0, sg.log2(x), 0), [0.0], [0]),
    (lambda x: sg.where(x != 0, sg.cbrt(x), 0), [0.0], [0]),
]


@pytest.mark.parametrize(("function", "x", "want"), KINKS)
def test_derivatives_at_kinks(function, x, want):
    (got,) = gradient(function, x)
    np.testing.assert_allclose(got, want, rtol=1e-15)


def test_sinc_is_smooth_at_0():
    x = sg.input("x", (), "float64")
    second = sg.grad(sg.grad(sg.sinc(x), x), x)
    f = sg.compile(second, inputs=[x], target="reference")
    np.testing.assert_allclose(f(np.array(0.0)), -(math.pi**2) / 3, rtol=1e-14)


def test_gradients_of_huge_arguments_do_not_overflow():
    (dy, dx) = gradient(sg.arctan2, [1e200], [1e200])
    np.testing.assert_allclose([dy, dx], [[0.5e-200], [-0.5e-200]])
    (dx, _) = gradient(sg.hypot, [3e200], [4e200])
    np.testing.assert_allclose(dx, [0.6])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_running_sums_of_symbolic_sizes(axis, target):
    x = sg.input("x", ("a", "b", "c"), "float64")
    y = sg.cumsum(x, axis=axis), sg.cumprod(x.T, axis=axis)
    dx = sg.grad(sg.sum(sg.cumprod(x, axis=axis) ** 2), x)
    f = sg.compile([*y, dx], inputs=[x], target=target)
    slow = sg.compile(dx, inputs=[x], target="reference")
    for shape in ((2, 3, 4), (1, 1, 5), (3, 0, 2), (0, 2, 2), (5, 4, 1)):
        v = np.random.default_rng(1).normal(size=shape)
        sums, products, slopes = f(v)
        np.testing.assert_allclose(sums, np.cumsum(v, axis), rtol=1e-14)
        np.testing.assert_allclose(products, np.cumprod(v.T, axis), rtol=1e-14)
        np.testing.assert_allclose(slopes, slow(v), rtol=1e-12)


NORMS = [
    ({}, 1), ({}, 2), ({}, 3), ({"ord": 1}, 1), ({"ord": np.inf}, 1), ({"ord": 0}, 1),
    ({"ord": -np.inf}, 1), ({"ord": 3}, 1), ({"ord": -2.5}, 1), ({"ord": "fro"}, 2),
    ({"ord": 1}, 2), ({"ord": -1}, 2), ({"ord": np.inf}, 2), ({"ord": -np.inf}, 2),
    ({"axis": 1}, 2), ({"axis": 0, "ord": 1, "keepdims": True}, 2),
    ({"axis": (0, 2), "ord": 1}, 3), ({"axis": (2, 0), "ord": np.inf}, 3),
    ({"axis": (0, 1), "keepdims": True}, 3), ({"keepdims": True}, 2),
]  # fmt: skip


@pytest.mark.parametrize(("options", "rank"), NORMS)
def test_norms_are_numpys(options, rank):
    v = np.random.default_rng(2).normal(size=(3, 4, 2)[:rank])
    y = sg.linalg.norm(v, **options)
    got = sg.compile(y, target="reference")()
    want = np.linalg.norm(v, **options)
    np.testing.assert_allclose(got, want, rtol=1e-14)
    assert got.shape == np.shape(want)


def test_norms_that_need_a_decomposition_are_refused():
    with pytest.raises(sg.GraphError, match="norm of matrices requires ord to be"):
        sg.linalg.norm(np.eye(2), 2)
    with pytest.raises(sg.GraphError, match="norm of vectors requires ord to be"):
        sg.linalg.norm(np.ones(2), "fro")
    with pytest.raises(sg.ShapeError, match="a vector or a matrix"):
        sg.linalg.norm(np.ones((2, 2, 2)), 1)


def test_bad_arguments_are_refused():
    with pytest.raises(sg.GraphError, match="polygamma requires a whole order"):
        sg.polygamma(-1, 1.0)
    with pytest.raises(sg.GraphError, match='gelu requires approximate="none"'):
        sg.gelu([1.0], approximate="erf")
    with pytest.raises(sg.DTypeError, match="left_shift requires integers"):
        sg.left_shift(1.5, 1)
    with pytest.raises(sg.ShapeError, match="cumsum requires"):
        sg.cumsum([1.0, 2.0], axis=1)
    with pytest.raises(sg.ShapeError, match="average requires weights"):
        sg.average(np.ones((2, 3)), axis=1, weights=np.ones(2))
    with pytest.raises(sg.ShapeError, match="as many choices"):
        sg.select([], [])


def test_dtypes_are_numpys():
    for dtype in ("int8", "int32", "uint8", "float32", "bool"):
        v = np.array([1, 0, 1], dtype)
        for name in ("cumsum", "cumprod", "nancumsum", "hypot", "arctan2", "fmax"):
            args = (v,) if "cum" in name else (v, v)
            got = getattr(sg, name)(*args).dtype
            want = getattr(np, name)(*args).dtype
            assert got == (want if want != np.float16 else np.float32)
