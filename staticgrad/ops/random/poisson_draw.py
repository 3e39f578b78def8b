"""Poisson draws by inversion and rejection.

Element i uses blocks 32 i + t of its key, in float64. Below 10 the distribution
function is inverted, term by term, at the 53 bits of the first two words of block 32 i.
From 10 on whole numbers are taken or rejected, at most for t = 0, 1, ..., 31: the first
two words of a block propose one from a table mountain hat, the others decide. At least
three of four are taken, so that none of 32 is has probability 5e-20.

Source: W. Hormann, "The transformed rejection method for generating Poisson random
variables", Insurance: Mathematics and Economics 12, 1993 (PTRS); log k! from 10 on by
Stirling's series, to 1e-12.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Random, Sample, define
from staticgrad.ir.size import Shape
from staticgrad.ir.types import DType, TensorType, is_float
from staticgrad.ops.leaves import ShapeLike
from staticgrad.ops.movement.views import broadcasted
from staticgrad.ops.promotion import ArrayLike, floats
from staticgrad.ops.random.distributions import drawn_shape
from staticgrad.ops.random.draws import WORDS, one_key, sample_key, sample_keys
from staticgrad.ops.random.gamma_draw import parameter_shape
from staticgrad.ops.random.philox import fractions, philox
from staticgrad.ops.random.random_integers import integer_kind

Array = npt.NDArray[Any]

TRIES = 32
LARGE = 10.0  # means from which rejection is used
MOST = 2.0**62
LEAST_TERM = 1e-17  # smaller terms are below a 53-bit number's resolution


def _poisson_dtype(key: TensorType, lam: TensorType, *, dtype: DType, **_: Any) -> Any:
    if not is_float(lam.dtype):
        raise DTypeError("a floating-point dtype", "cast with .astype")
    return dtype


def _poisson_shape(
    key: TensorType, lam: TensorType, *, shape: Shape, dtype: DType
) -> Shape:
    return parameter_shape(key, lam, shape=shape)


def _poisson_numpy(
    key: Array, lam: Array, *, shape: tuple[int, ...], dtype: DType
) -> Array:
    whole = np.broadcast_to(lam, shape).astype(np.float64)
    keys = key.reshape(-1, WORDS)
    parts = whole.reshape(len(keys), -1) if whole.size else np.zeros((0, 0))
    rows = [_one_key(*pair) for pair in zip(keys, parts, strict=False)]
    return np.array(rows).reshape(shape).astype(dtype)


def _one_key(key: Array, lam: Array) -> Array:
    result = np.full(len(lam), -1.0)
    small = np.flatnonzero((lam >= 0) & (lam < LARGE))
    large = np.flatnonzero((lam >= LARGE) & (lam <= MOST))
    with np.errstate(all="ignore"):
        u, _ = _fractions(key, small * TRIES)
        result[small] = _inverted(u, lam[small])
        for turn in range(TRIES):
            if not large.size:
                break
            u, v = _fractions(key, large * TRIES + turn)
            k, taken = _tried(u, v, lam[large])
            taken |= turn == TRIES - 1
            result[large[taken]] = np.maximum(k[taken], 0)
            large = large[~taken]
    return result


def _fractions(key: Array, blocks: Array) -> tuple[Array, Array]:
    """Draw two numbers of 53 bits in [0, 1) from each block."""
    number = blocks.astype(np.uint64)
    low, high = number & np.uint64(0xFFFFFFFF), number >> np.uint64(32)
    words = philox((low, high, key[2], key[3]), (key[0], key[1]))
    u, v = fractions(words.reshape(-1, 2, 2)).T
    return u, v


def _inverted(u: Array, lam: Array) -> Array:
    """Return the first k at which the distribution function exceeds u."""
    term, k = np.exp(-lam), np.zeros_like(lam)
    total = term.copy()
    while np.any(going := (u >= total) & (term > LEAST_TERM)):
        k = np.where(going, k + 1, k)
        term = np.where(going, term * lam / k, term)
        total = np.where(going, total + term, total)
    return k


def _tried(u: Array, v: Array, lam: Array) -> tuple[Array, Array]:
    """Return a candidate for each pair, and whether it is accepted."""
    b = 0.931 + 2.53 * np.sqrt(lam)
    a = -0.059 + 0.02483 * b
    u = u - 0.5
    us = 0.5 - np.abs(u)
    k = np.floor((2 * a / us + b) * u + lam + 0.43)
    quick = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    outside = (k < 0) | ((us < 0.013) & (v > us))
    height = np.log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b))
    return k, quick | (~outside & (height <= _log_probability(k, lam)))


def _log_probability(k: Array, lam: Array) -> Array:
    """Compute ``k log(lam) - lam - log(k!)``."""
    factorial = np.ones_like(k)
    for factor in range(2, 10):
        factorial = factorial * np.where(k >= factor, factor, 1)
    few = k * np.log(lam) - lam - np.log(factorial)
    z = 1 / (k * k)
    rest = (1 / 12 - z * (1 / 360 - z * (1 / 1260 - z / 1680))) / k
    many = k * np.log(lam / k) + (k - lam) - 0.5 * np.log(2 * np.pi * k) - rest
    return np.where(k < 10, few, many)


POISSON = define(
    "poisson",
    shape=_poisson_shape,
    dtype=_poisson_dtype,
    vjp=None,
    code=Random("{T}(poisson({k0}, {k1}, {k2}, {k3}, {i}, float64({0})))", cost=300),
    numpy=_poisson_numpy,
    samples=lambda: (
        [
            Sample((sample_key(), lam), {"shape": shape, "dtype": np.dtype(kind)})
            for lam, shape, kind in (
                (np.array([0.0, 0.3, 9.9, 10.0, 35.5, 1e3]), (50, 6), "int64"),
                (np.array([-1.0, np.nan, np.inf, 1e15, 4e18]), (5,), "int64"),
                (np.array(2.0, "f4"), (7,), "int32"),
                (np.array(80.0, "f4"), (7,), "uint8"),
                (np.ones((0, 2)), (0, 2), "int64"),
            )
        ]
        + [
            Sample(
                (sample_keys(), np.array([3.0, 30.0])),
                {"shape": (2, 2), "dtype": np.dtype("int64")},
            )
        ]
    ),
    bad=lambda: [
        Bad((np.zeros(4), np.ones(2)), _attrs(2), DTypeError, "uint32"),
        Bad((sample_key(), np.ones(2)), _attrs(3), ShapeError, "broadcast"),
        Bad((sample_key(), np.ones(2, "i8")), _attrs(2), DTypeError, "floating"),
    ],
)


def _attrs(count: int) -> dict[str, Any]:
    return {"shape": (count,), "dtype": np.dtype("int64")}


def poisson(
    key: ArrayLike,
    lam: ArrayLike = 1.0,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike = "int64",
) -> Tensor:
    """Draw Poisson numbers, with mean and variance `lam` >= 0; -1 for another `lam`.

    `lam` may be up to 2**62 and broadcasts to `shape`; `dtype` is any integer dtype.
    They are exact for a source of 53 random bits (Hormann's PTRS, 1993, from 10 on;
    inversion below). No gradient flows to `lam`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.random.poisson(sg.random.key(0), [0.5, 4.0, 1e6]))().tolist()
    [0, 5, 998778]
    """
    (rate,) = floats(lam)
    dims = drawn_shape("poisson", shape, rate)
    attrs = {"shape": dims, "dtype": integer_kind("poisson", dtype)}
    return apply(POISSON, one_key("poisson", key), broadcasted(rate, dims), **attrs)
