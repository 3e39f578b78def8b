"""Gamma numbers by rejection, and how they change with the shape parameter.

Element i tries block 16 i + t of its key for t = 0, 1, ..., 15, in float64: words 0 and
1 give a normal number x, word 2 decides whether d (1 + c x)^3 is taken (19 of 20 are,
so that none of sixteen is has probability 1e-20), word 3 makes a number for a < 1 of
one for a + 1 by a factor u^(1/a).

Source: G. Marsaglia, W. W. Tsang, "A simple method for generating gamma variables", ACM
TOMS 26, 2000. The derivative dx/da at a fixed value of the distribution function is a
series in x (differentiating that of the incomplete gamma function term by term); for
large a it is that of the cube, at a fixed x. Where 1 - F is below 1e-12, where no
number is drawn, the series loses all digits. Figurnov, Mohamed, Mnih, "Implicit
reparameterization gradients", NeurIPS 2018.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.op import Bad, Op, Random, Sample, define
from staticgrad.ir.size import Shape
from staticgrad.ir.source import at, here
from staticgrad.ir.types import TensorType, broadcast_shapes, is_float
from staticgrad.ops.guarded import guarded_multiply
from staticgrad.ops.random.draws import WORDS, check_key, sample_key, sample_keys
from staticgrad.ops.random.philox import normal_of, philox
from staticgrad.ops.rules import broadcast, elementwise

Array = npt.NDArray[Any]

TRIES = 16
LARGE = 1e4
"""From here on the derivative is that of the cube, right to about 1 / (10 a)."""


def parameter_shape(key: TensorType, a: TensorType, *, shape: Shape) -> Shape:
    """Return the shape of a draw with the parameter `a`."""
    check_key(key, shape)
    broadcast(TensorType(shape, a.dtype), a)
    if broadcast_shapes([shape, a.shape]) != shape:
        raise ShapeError("parameters that broadcast to the shape", "reshape them")
    return shape


def _gamma_dtype(key: TensorType, a: TensorType, *, shape: Shape) -> Any:
    if not is_float(a.dtype):
        raise DTypeError("a floating-point dtype", "cast with .astype")
    return a.dtype


def _gamma_numpy(key: Array, a: Array, *, shape: tuple[int, ...]) -> Array:
    whole = np.broadcast_to(a, shape).astype(np.float64)
    lead = key.ndim - 1
    keys = key.reshape(-1, WORDS)
    parts = whole.reshape(len(keys), -1) if whole.size else np.zeros((0, 0))
    rows = [_one_key(*pair) for pair in zip(keys, parts, strict=False)]
    assert lead <= len(shape)
    return np.array(rows).reshape(shape).astype(a.dtype)


def _one_key(key: Array, a: Array) -> Array:
    small = a < 1
    d = np.where(small, a + 1, a) - 1 / 3
    result = np.full(len(a), np.nan)
    with np.errstate(all="ignore"):
        c = 1 / np.sqrt(9 * d)
        for turn in range(TRIES):
            left = np.flatnonzero(np.isnan(result))
            x, accept, boost = _words(key, left * TRIES + turn)
            y = 1 + c[left] * x
            v = y * y * y
            bound = 0.5 * x * x + d[left] * (1 - v + np.log(v))
            taken = (v > 0) & (np.log(accept) < bound) | (turn == TRIES - 1)
            factor = np.where(small[left], np.exp(np.log(boost) / a[left]), 1)
            result[left] = np.where(taken, d[left] * v * factor, np.nan)
    return np.where(a >= 0, result, np.nan)


def _words(key: Array, blocks: Array) -> tuple[Array, Array, Array]:
    """Draw a normal and two uniform numbers from each block."""
    number = blocks.astype(np.uint64)
    low, high = number & np.uint64(0xFFFFFFFF), number >> np.uint64(32)
    words = philox((low, high, key[2], key[3]), (key[0], key[1])).T
    u0, u2, u3 = ((words[k] + 0.5) * 2.0**-32 for k in (0, 2, 3))
    return normal_of(u0, words[1]), u2, u3


def _slope_numpy(a: Array, x: Array) -> Array:
    wide, y = (np.asarray(v, np.float64) for v in np.broadcast_arrays(a, x))
    with np.errstate(all="ignore"):
        found = np.where(wide < LARGE, _series(wide, y), _of_cube(wide, y))
    return np.where((y > 0) & (wide > 0), found, 0 * y).astype(np.asarray(x).dtype)


def _series(a: Array, x: Array) -> Array:
    """Sum ``-x x^n (log x - digamma(a + n + 1)) / ((a)(a + 1)...(a + n))`` over n."""
    term, factor = 1 / a, np.log(x) - digamma_numpy(a + 1)
    total, steps = term * factor, np.zeros_like(x)
    active = np.isfinite(total) & (a < LARGE)
    while np.any(active):
        steps = steps + 1
        term = np.where(active, term * x / (a + steps), term)
        factor = np.where(active, factor - 1 / (a + steps), factor)
        total = np.where(active, total + term * factor, total)
        small = np.abs(term * factor) <= 1e-17 * np.abs(total)
        active = active & ~(small & (steps > x - a)) & (steps < MOST)
    return np.asarray(-x * total)


def _of_cube(a: Array, x: Array) -> Array:
    y = np.cbrt(x / (a - 1 / 3))
    return np.asarray(y * y * (3 - y) / 2)


MOST = 20000.0
"""Terms at most; 10 sqrt(a) + x - a are needed."""


def digamma_numpy(x: Array) -> Array:
    """Return the derivative of lgamma for x > 0."""
    shift = np.zeros_like(x)
    y = x.copy()
    for _ in range(10):
        shift, y = shift - 1 / y, y + 1
    z = 1 / (y * y)
    tail = z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z / 132))))
    return np.asarray(np.log(y) - 0.5 / y - tail + shift)


def _once(*_: Any, **__: Any) -> Any:
    raise GraphError(
        "gamma has one derivative with respect to its shape parameter, got a second; "
        f"use sg.stop_gradient on it{at(here())}"
    )


GAMMA_SLOPE: Op = elementwise(
    "gamma_slope",
    "f",
    _slope_numpy,
    vjp=_once,
    cost=400,
    samples=lambda: [
        Sample(
            (
                np.array([0.3, 1.0, 2.5, 40.0]),
                np.array([[1e-3, 0.2, 1.0, 30.0], [0.9, 3.0, 6.0, 52.0]]),
            ),
            grad=False,
            ulp=256,
        ),
        Sample((np.array([2e4, 0.0, 1.0]), np.array([2.01e4, 1.0, 0.0])), grad=False),
        Sample((np.array([2.0], "f4"), np.array([1.5], "f4")), grad=False),
        Sample((np.zeros((0, 3)), np.ones(3)), grad=False),
    ],
)
GAMMA = define(
    "gamma",
    shape=parameter_shape,
    dtype=_gamma_dtype,
    vjp=lambda g, y, key, a, *, shape: (
        None,
        guarded_multiply(g, apply(GAMMA_SLOPE, a, y)),
    ),
    jvp="transposed",
    code=Random("{T}(gamma({k0}, {k1}, {k2}, {k3}, {i}, float64({0})))", cost=200),
    numpy=_gamma_numpy,
    samples=lambda: (
        [
            Sample((sample_key(), a), {"shape": shape}, grad=False, ulp=ulp)
            for a, shape, ulp in (
                (np.array([0.3, 1.0, 2.5, 40.0]), (6, 4), 256),
                (np.array([0.0, -1.0, np.nan, 1e6]), (4,), 256),
                (np.array(2.0, "f4"), (5,), 2),
                (np.ones((0, 2)), (0, 2), 0),
            )
        ]
        + [
            Sample(
                (sample_keys(), np.array(3.0)), {"shape": (2, 3)}, grad=False, ulp=64
            )
        ]
    ),
    bad=lambda: [
        Bad((np.zeros(4), np.ones(2)), {"shape": (2,)}, DTypeError, "uint32"),
        Bad((sample_key(), np.ones(2)), {"shape": (3,)}, ShapeError, "broadcast"),
        Bad((sample_key(), np.ones(2, "i8")), {"shape": (2,)}, DTypeError, "floating"),
    ],
)
