"""Accuracy of the elementary functions, and their special values.

float32 is compared with NumPy in float64, float64 with mpmath at 40 digits. Errors are
in units of the last place (ulp) of the exact result.
"""

import math

import mpmath
import numpy as np
import pytest
from handwritten import apply
from numba import njit

from benchmarks import accuracy
from staticgrad.compiler.codegen.language import namespace
from staticgrad.compiler.codegen.math.function_table import ELEMENTARY
from staticgrad.compiler.host import numba_internals
from staticgrad.compiler.host.processor import has_fma

LIMIT_ULP = 2.5
RNG = np.random.default_rng(3)
INF, NAN = math.inf, math.nan

UNARY = tuple(
    "exp log log1p expm1 tanh sigmoid erf sqrt rsqrt sin cos tan sin_any cos_any "
    "tan_any".split()
)

# where random arguments are worth trying; others are mostly 0, 1 or infinite there
RANGES = {
    "exp": [(-104, 89), (-1, 1)],
    "log": [(0, 1e3), (0.5, 2)],
    "log1p": [(-1, 10), (-0.01, 0.01)],
    "expm1": [(-20, 89), (-0.5, 0.5)],
    "tanh": [(-10, 10), (-0.6, 0.6)],
    "sigmoid": [(-90, 90), (-3, 3)],
    "erf": [(-4, 4), (-1.1, 1.1)],
    "sqrt": [(0, 1e6)],
    "rsqrt": [(0, 1e6)],
    "sin": [(-10, 10), (-1e6, 1e6)],
    "cos": [(-10, 10), (-1e6, 1e6)],
    "tan": [(-10, 10), (-1e6, 1e6)],
}


def plain(name):
    return name.removesuffix("_any")


def unary(name, x):
    return apply(f"{name}({{0}})", x)


EXACT = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf, otypes=["f8"]),
}

PRECISE = {
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
}


def ulps(got, exact, dtype):
    """The error of `got` in units of the last place of `exact`, a float64 or mpf."""
    rounded = dtype.type(exact)
    if not np.isfinite(rounded):
        return 0.0 if got == rounded or got != got != rounded else INF
    unit = float(np.spacing(abs(rounded)))
    return abs(float((mpmath.mpf(float(got)) - mpmath.mpf(exact)) / unit))


def worst_ulp_float32(name, x):
    with np.errstate(all="ignore"):
        exact = EXACT.get(plain(name), getattr(np, plain(name), None))(x.astype("f8"))
        got = unary(name, x).astype("f8")
        rounded = exact.astype("f4")
        fine = np.isfinite(rounded)
        unit = np.spacing(np.abs(rounded[fine])).astype("f8")
        error = np.abs(got[fine] - exact[fine]) / unit
    np.testing.assert_array_equal(got[~fine], rounded[~fine])
    return error.max()


def samples(name, dtype, count):
    integer = np.dtype(f"u{dtype.itemsize}")
    patterns = RNG.integers(0, np.iinfo(integer).max, count, integer).view(dtype)
    with np.errstate(invalid="ignore"):
        parts = [patterns[np.isfinite(patterns)]]
    for low, high in RANGES[plain(name)]:
        parts.append(RNG.uniform(low, high, count).astype(dtype))
    x = np.concatenate(parts)
    if name == "sqrt" or name == "rsqrt" or name == "log":
        x = np.abs(x)
    return np.maximum(x, -1) if name == "log1p" else x


@pytest.mark.parametrize("name", accuracy.NAMES)
def test_float32_bit_patterns_within_the_limit(name):
    """Every 4,001st of all; ``python -m benchmarks accuracy`` looks at each."""
    found = accuracy.examine(name, step=4_001)
    assert accuracy.is_within(found), found


def test_examining_notices_an_inexact_function(monkeypatch):
    names = namespace()
    monkeypatch.setattr(accuracy, "namespace", lambda: {"sinh": names["tanh"]})
    monkeypatch.setattr(accuracy, "LIMIT_ULP", 0.5)
    monkeypatch.setattr(accuracy, "LIMIT_OF_LIBM", 0.4)
    assert not accuracy.is_within(accuracy.examine("sinh", step=40_001))


@pytest.mark.parametrize("name", UNARY)
def test_float32_within_the_limit(name):
    x = samples(name, np.dtype("f4"), 50_000)
    assert worst_ulp_float32(name, x) <= LIMIT_ULP


@pytest.mark.parametrize("name", UNARY)
def test_float64_within_the_limit(name):
    dtype = np.dtype("f8")
    x = samples(name, dtype, 150)
    exact_function = PRECISE.get(plain(name), getattr(mpmath, plain(name), None))
    got = unary(name, x)
    digits = 360 if plain(name) in ("sin", "cos", "tan") else 40  # far arguments
    with mpmath.workdps(digits):
        exact = [exact_function(mpmath.mpf(float(v))) for v in x]
        with np.errstate(all="ignore"):
            errors = [ulps(g, e, dtype) for g, e in zip(got, exact, strict=True)]
    assert max(errors) <= LIMIT_ULP


def test_sin_and_cos_near_multiples_of_half_pi():
    n = np.concatenate([np.arange(1.0, 2000), 2.0 ** np.arange(11, 40)])
    for name in ("sin", "cos"):
        x = (n * (math.pi / 2)).astype("f4")
        assert worst_ulp_float32(name, x) <= LIMIT_ULP
        y = n * (math.pi / 2)
        got = unary(name, y)
        with mpmath.workdps(60):
            exact = [getattr(mpmath, name)(mpmath.mpf(float(v))) for v in y]
            errors = [ulps(g, e, y.dtype) for g, e in zip(got, exact, strict=True)]
        assert max(errors) <= LIMIT_ULP


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_power_within_the_limit(dtype):
    kind = np.dtype(dtype)
    x = np.concatenate([RNG.uniform(0, 3, 300), RNG.uniform(0.99, 1.01, 100)])
    y = np.concatenate([RNG.uniform(-40, 40, 300), RNG.uniform(-5e3, 5e3, 100)])
    x, y = x.astype(kind), y.astype(kind)
    got = apply("power({0}, {1})", x, y)
    with mpmath.workdps(50), np.errstate(all="ignore"):
        exact = [mpmath.power(float(a), float(b)) for a, b in zip(x, y, strict=True)]
        errors = [ulps(g, e, kind) for g, e in zip(got, exact, strict=True)]
    assert max(errors) <= LIMIT_ULP


SPECIAL = {
    "exp": [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0.0), (1e5, INF), (-1e5, 0.0)],
    "log": [
        (0.0, -INF),
        (-0.0, -INF),
        (1.0, 0.0),
        (INF, INF),
        (-1.0, NAN),
        (-INF, NAN),
    ],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (INF, INF), (-2.0, NAN)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (1e5, INF)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (1e30, 1.0)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1e30, 1.0)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (1e30, 1.0)],
    "sqrt": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-1.0, NAN), (4.0, 2.0)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN), (4.0, 0.5)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN)],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name, dtype):
    pairs = [*SPECIAL[name], (NAN, NAN)]
    x, expected = (np.array(column, dtype) for column in zip(*pairs, strict=True))
    for repeat in (1, 16):  # alone and in vectors
        got = unary(name, np.repeat(x, repeat))[::repeat]
        np.testing.assert_array_equal(got, expected)
        known = ~np.isnan(expected)
        signs = np.signbit(got)[known], np.signbit(expected)[known]
        np.testing.assert_array_equal(*signs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_subnormal_and_extreme_arguments(dtype):
    info = np.finfo(dtype)
    x = np.array(
        [info.smallest_subnormal, info.tiny, info.eps, info.max, info.tiny / 3], dtype
    )
    for name in ("log", "log1p", "expm1", "tanh", "erf", "sin", "sqrt", "rsqrt", "exp"):
        exact_function = PRECISE.get(name, getattr(mpmath, name, None))
        got = unary(name, x)
        # mpmath's exp(1e308) is out of reach
        kept = slice(None) if name not in ("exp", "expm1") else [0, 1, 2, 4]
        with mpmath.workdps(400), np.errstate(all="ignore"):
            exact = [exact_function(mpmath.mpf(float(v))) for v in x[kept]]
            errors = [
                ulps(g, e, x.dtype) for g, e in zip(got[kept], exact, strict=True)
            ]
        assert max(errors) <= LIMIT_ULP, name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_power_of_special_values_follows_c99(dtype):
    edge = [0.0, 0.5, 1.0, 2.0, 3.0, 0.3, 1e30, INF]
    edge = np.array([*edge, *(-v for v in edge), NAN], dtype)
    x, y = (a.ravel() for a in np.meshgrid(edge, edge))
    got = apply("power({0}, {1})", x, y)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype("f8"), y.astype("f8")).astype(dtype)
    np.testing.assert_allclose(
        got, expected, rtol=1e-6 if dtype == "float32" else 1e-14
    )
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(expected)[known])


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_do_not_depend_on_position_or_length(name, dtype):
    x = RNG.uniform(0.01, 5, 67).astype(dtype)
    whole = unary(name, x)
    for start, stop in ((0, 1), (5, 6), (1, 18), (3, 66), (66, 67)):
        np.testing.assert_array_equal(unary(name, x[start:stop]), whole[start:stop])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_and_signs(dtype):
    x = np.array([-2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, INF, NAN, 1e30], dtype)
    for name in ("floor", "ceil", "rint"):
        got = unary(name, x)
        np.testing.assert_array_equal(got, getattr(np, name)(x))
        known = ~np.isnan(x)
        expected = np.signbit(getattr(np, name)(x))[known]
        np.testing.assert_array_equal(np.signbit(got)[known], expected)
    got = apply("copysign({0}, {1})", x, x[::-1].copy())
    np.testing.assert_array_equal(got, np.copysign(x, x[::-1]))


def test_the_table_is_chosen_by_the_processor():
    known = set(ELEMENTARY)
    assert set(UNARY) | {"power", "tan", "asin", "lgamma"} <= known
    assert set(namespace()) >= known
    features = numba_internals.target().features
    if "+fma" in features:
        assert has_fma()


# Philox: the model below is checked against the known answers of Random123


def philox(counter, key):
    c, k = [int(v) for v in counter], [int(v) for v in key]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (p1 >> 32) ^ c[1] ^ k[0],
            p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ c[3] ^ k[1],
            p0 & 0xFFFFFFFF,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def test_the_model_of_philox_gives_the_published_answers():
    assert philox([0] * 4, [0] * 2) == [
        0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8,
    ]  # fmt: skip
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert philox(pi, [0xA4093822, 0x299F31D0]) == [
        0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1,
    ]  # fmt: skip


KEY = (0xA4093822, 0x299F31D0, 7, 0xFFFFFFFE)


def draw(name, index, dtype):
    key = ", ".join(f"uint32({word})" for word in KEY)
    return apply(f"{name}({key}, {{0}})", index, result=dtype)


def block(number):
    counter = (number & 0xFFFFFFFF, number >> 32, KEY[2], KEY[3])
    return philox(counter, KEY[:2])


def test_uniform_draws_follow_the_stated_layout():
    index = np.array([0, 1, 2, 3, 4, 1001, 2**40 + 3])
    expected = [(block(i // 4)[i % 4] >> 8) * 2.0**-24 for i in index.tolist()]
    np.testing.assert_array_equal(draw("uniform32", index, "f4"), np.float32(expected))
    expected = []
    for i in index.tolist():
        words = block(i // 2)[2 * (i % 2) :]
        expected.append(((words[0] >> 5) * 2**26 + (words[1] >> 6)) * 2.0**-53)
    np.testing.assert_array_equal(draw("uniform64", index, "f8"), expected)


def test_uniform_draws_look_uniform():
    index = np.arange(100_000)
    for name, dtype in (("uniform32", "f4"), ("uniform64", "f8")):
        x = np.sort(draw(name, index, dtype).astype("f8"))
        assert x[0] >= 0
        assert x[-1] < 1
        distance = np.abs(x - (index + 0.5) / len(x)).max()
        assert distance * math.sqrt(len(x)) < 1.63  # Kolmogorov-Smirnov, 1 %


def test_words_of_a_block():
    key = ", ".join(f"uint32({word})" for word in KEY)
    index = np.arange(4)
    words = [draw_word(key, counter, index) for counter in (0, 5)]
    for counter, found in zip((0, 5), words, strict=True):
        np.testing.assert_array_equal(found, block(counter))


def draw_word(key, counter, index):
    x = index.astype("u4")
    return apply(f"philox_word({key}, uint32({counter}), {{0}})", x)


def test_numbas_fastmath_would_break_the_functions():
    """Why no kernel is compiled with it: compensated sums would be simplified away."""
    cbrt = namespace()["cbrt"]

    def root(x):
        return cbrt(x)

    strict = njit(error_model="numpy")(root)
    loose = njit(error_model="numpy", fastmath=True)(root)
    x = np.linspace(0.1, 9, 100, dtype="f4")
    exact = np.cbrt(x.astype("f8"))

    def error(function):
        return max(abs(function(v) / e - 1) for v, e in zip(x, exact, strict=True))

    assert error(strict) < 1e-6
    if has_fma():
        assert error(loose) > 1e-4
