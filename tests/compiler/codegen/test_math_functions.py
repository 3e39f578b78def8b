"""Accuracy of the less elementary functions, and their special values.

As in test_math.py: errors in units of the last place of the exact result, from mpmath
at 40 digits. lgamma, digamma and zeta have zeros that are no numbers of the format;
below 1 their errors are absolute.
"""

import math

import mpmath
import numpy as np
import pytest
from handwritten import apply
from test_math import INF, LIMIT_ULP, NAN, ulps

RNG = np.random.default_rng(11)

# name: where to try it, and the exact function
FUNCTIONS = {
    "exp2": ([(-150, 128), (-1, 1)], lambda x: mpmath.mpf(2) ** x),
    "log2": ([(0, 1e3), (0.5, 2)], lambda x: mpmath.log(x, 2)),
    "log10": ([(0, 1e3), (0.5, 2)], mpmath.log10),
    "softplus": ([(-90, 90), (-3, 3)], lambda x: mpmath.log1p(mpmath.exp(x))),
    "sinh": ([(-88, 88), (-2, 2)], mpmath.sinh),
    "cosh": ([(-88, 88), (-2, 2)], mpmath.cosh),
    "asinh": ([(-1e3, 1e3), (-2, 2)], mpmath.asinh),
    "acosh": ([(1, 1e3), (1, 1.01)], mpmath.acosh),
    "atanh": ([(-1, 1), (-0.01, 0.01)], mpmath.atanh),
    "erfc": ([(-4, 9), (-1, 1)], mpmath.erfc),
    "gelu": ([(-12, 8), (-1, 1)], lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2),
    "erfinv": ([(-1, 1), (0.999, 1)], mpmath.erfinv),
    "tan": ([(-10, 10), (-1e6, 1e6)], mpmath.tan),
    "tan_any": ([(-10, 10), (-1e6, 1e6)], mpmath.tan),
    "asin": ([(-1, 1), (-0.01, 0.01)], mpmath.asin),
    "acos": ([(-1, 1), (0.99, 1)], mpmath.acos),
    "atan": ([(-10, 10), (-1, 1)], mpmath.atan),
    "cbrt": ([(-1e6, 1e6)], lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x))),
}
TAILS = {"erfc": 5.0, "gelu": 5.0}  # a quotient with sensitivity 3 in the exponent


def worst(name, x, exact_function):
    got = apply(f"{name}({{0}})", x)
    with mpmath.workdps(40), np.errstate(all="ignore"):
        exact = [exact_function(mpmath.mpf(float(v))) for v in x]
        return max(ulps(g, e, x.dtype) for g, e in zip(got, exact, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_the_limit(name, dtype):
    ranges, exact = FUNCTIONS[name]
    x = np.concatenate([RNG.uniform(a, b, 150) for a, b in ranges]).astype(dtype)
    if name == "erfinv":
        x = x[np.abs(x) < 1]
    assert worst(name, x, exact) <= TAILS.get(name, LIMIT_ULP)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["log2", "log10", "asinh", "atan", "cbrt", "sinh"])
def test_over_all_magnitudes(name, dtype):
    info = np.finfo(dtype)
    size = np.exp2(RNG.uniform(info.minexp - 20, info.maxexp, 200)).astype(dtype)
    if name == "sinh":
        size = size[size < 80]
    extremes = np.array([info.smallest_subnormal, info.tiny, info.eps], dtype)
    assert (
        worst(name, np.concatenate([size, extremes]), FUNCTIONS[name][1]) <= LIMIT_ULP
    )


PAIRS = {"atan2": mpmath.atan2, "hypot": mpmath.hypot}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PAIRS)
def test_of_two_arguments(name, dtype):
    kind, info = np.dtype(dtype), np.finfo(dtype)
    far = np.exp2(RNG.uniform(info.minexp, info.maxexp - 1, (2, 200)))
    near = RNG.uniform(-3, 3, (2, 200))
    x, y = np.concatenate([near, far], axis=1).astype(kind)
    got = apply(f"{name}({{0}}, {{1}})", x, y)
    with mpmath.workdps(40), np.errstate(all="ignore"):
        exact = [
            PAIRS[name](mpmath.mpf(float(a)), mpmath.mpf(float(b)))
            for a, b in zip(x, y, strict=True)
        ]
        errors = [
            ulps(g, e, kind)
            for g, e in zip(got, exact, strict=True)
            if abs(e) >= info.tiny or name == "hypot"
        ]
    assert max(errors) <= LIMIT_ULP


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["arctan2", "hypot"])
def test_pairs_of_special_values_follow_c99(name, dtype):
    edge = [0.0, 0.5, 1.0, 1e30, INF, np.finfo(dtype).tiny]
    edge = np.array([*edge, *(-v for v in edge), NAN], dtype)
    x, y = (a.ravel() for a in np.meshgrid(edge, edge))
    kernel = "atan2" if name == "arctan2" else name
    got = apply(f"{kernel}({{0}}, {{1}})", x, y)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x, y)
    np.testing.assert_allclose(got, want, rtol=1e-6 if dtype == "float32" else 1e-15)
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])


SPECIAL = {
    "exp2": [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (10, 1024), (1e5, INF)],
    "log2": [(0.0, -INF), (1.0, 0.0), (8.0, 3), (INF, INF), (-1.0, NAN), (0.25, -2)],
    "log10": [(0.0, -INF), (1.0, 0.0), (1000.0, 3), (INF, INF), (-1.0, NAN)],
    "softplus": [(-INF, 0.0), (INF, INF), (1e30, 1e30), (-1e30, 0.0)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (1e5, INF)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (1e5, INF)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "acosh": [(1.0, 0.0), (INF, INF), (0.5, NAN), (-1.0, NAN), (-INF, NAN)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (2.0, NAN)],
    "erfc": [(0.0, 1), (INF, 0.0), (-INF, 2), (1e30, 0.0), (-1e30, 2)],
    "gelu": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -0.0), (1e30, 1e30)],
    "erfinv": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0)],
    "tan_any": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.5, NAN), (INF, NAN)],
    "acos": [(1.0, 0.0), (1.5, NAN), (-INF, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0)],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (-27.0, -3.0)],
    "lgamma": [
        (1.0, 0.0),
        (2.0, 0.0),
        (0.0, INF),
        (-3.0, INF),
        (INF, INF),
        (-INF, INF),
    ],
    "digamma": [(0.0, -INF), (-0.0, INF), (-3.0, NAN), (INF, INF)],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name, dtype):
    pairs = [*SPECIAL[name], (NAN, NAN)]
    x, expected = (np.array(column, dtype) for column in zip(*pairs, strict=True))
    for repeat in (1, 16):  # alone and in vectors
        got = apply(f"{name}({{0}})", np.repeat(x, repeat))[::repeat]
        np.testing.assert_array_equal(got, expected)
        known = ~np.isnan(expected) & (expected != 0)
        signs = np.signbit(got)[known], np.signbit(expected)[known]
        np.testing.assert_array_equal(*signs)


def test_far_arguments_of_tan():
    x = np.array([1e15, 1e22, 3e300, 2.0**43])
    np.testing.assert_allclose(apply("tan({0})", x), np.tan(x), rtol=1e-14)


def log_gamma(x):
    return mpmath.re(mpmath.loggamma(x)) if x > 0 else mpmath.log(abs(mpmath.gamma(x)))


GAMMA = {
    "lgamma({0})": log_gamma,
    "digamma({0})": mpmath.digamma,
    "zeta({0}, {T}(2))": lambda x: mpmath.polygamma(1, x),
    "zeta({0}, {T}(4))": lambda x: mpmath.polygamma(3, x) / 6,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("template", GAMMA)
def test_gamma_and_its_derivatives(template, dtype):
    parts = RNG.uniform(0, 15, 150), RNG.uniform(-9, 0, 150), RNG.uniform(0.9, 2.1, 50)
    x = np.concatenate(parts).astype(dtype)
    got = apply(template, x)
    eps = float(np.finfo(dtype).eps)
    with mpmath.workdps(40):
        exact = [GAMMA[template](mpmath.mpf(float(v))) for v in x]
        errors = [
            float(abs(mpmath.mpf(float(g)) - e) / max(1, abs(e))) / eps
            for g, e in zip(got, exact, strict=True)
        ]
    assert max(errors) <= (1 if dtype == "float32" else 16)


def test_gamma_far_out():
    x = np.array([1e3, 1e8, 1e300, 1e-300, -1e-300, 1e-5])
    want = [math.lgamma(v) for v in x]
    np.testing.assert_allclose(apply("lgamma({0})", x), want, rtol=1e-14)
    np.testing.assert_allclose(
        apply("digamma({0})", x[:3]), np.log(x[:3]) - 0.5 / x[:3], rtol=1e-6
    )
