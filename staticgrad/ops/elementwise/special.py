"""erfc, erfinv, and gamma's logarithm with its derivatives.

lgamma' = digamma, digamma' = zeta(2, x), zeta(s, x)' = -s zeta(s + 1, x), so that
derivatives of any order exist. At poles a cotangent of 0 stays 0, as in functions.py.
The functions without a counterpart in NumPy have one here, in float64, which the
reference target runs: other formulas than those of the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import GraphError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Elementwise, Op, Sample, define
from staticgrad.ir.source import at, here
from staticgrad.ops.elementwise.functions import elementary, exp, on_floats
from staticgrad.ops.examples import SPECIAL, bad_unary, special, spread, unary
from staticgrad.ops.guarded import guarded_multiply
from staticgrad.ops.promotion import ArrayLike, floats
from staticgrad.ops.rules import quiet, same_dtype, same_shape

Array = npt.NDArray[Any]
ROOT_PI = math.sqrt(math.pi)
POLES = (*SPECIAL, -2.0, -2.25, 1.0, 2.0, 8.0, 30.5, -30.25)
ALMOST_ONE = (0.0, -0.0, 1e-6, 1e-300, 0.5, -0.75, 0.99999, 1.0, -1.0, 2.0, math.nan)
SHIFT = 12
"""digamma and zeta are evaluated at x + 12 or beyond."""
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


def _in_float64(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(x: Array, **attrs: Any) -> Array:
        return np.asarray(function(x.astype(np.float64), **attrs)).astype(x.dtype)

    return quiet(run)


def _by_number(function: Callable[[float], float]) -> Callable[..., Array]:
    return _in_float64(np.vectorize(function, otypes=[np.float64]))


def _lgamma(x: float) -> float:
    at_pole = x == math.floor(x) and x <= 0 if math.isfinite(x) else x < 0
    return math.inf if at_pole else math.lgamma(x)


def _erfinv(x: float) -> float:
    """Compute erfinv by Newton's method on log erfc, from the far side of the root."""
    size = abs(x)
    if not 0 < size < 1:
        return x if x == 0 else math.copysign(math.inf, x) if size == 1 else math.nan
    y = math.sqrt(-math.log1p(-size)) if size > 0.5 else size * ROOT_PI / 2
    for _ in range(60):
        slope = 2 / ROOT_PI * math.exp(-y * y)
        tail = math.erfc(y)
        far = tail * math.log((1 - size) / tail) if size > 0.5 else math.erf(y) - size
        step = far / slope
        y -= step
        if abs(step) <= 1e-16 * y:
            break
    return math.copysign(y, x)


def _digamma(x: Array) -> Array:
    """Compute digamma: psi(1 - x) - pi cot(pi x) below 0, the series from 12 on."""
    negative = x < 0
    y = np.where(negative, 1 - x, x)
    total = np.zeros_like(y)
    for _ in range(SHIFT):
        near = y < SHIFT
        total = total - np.where(near, 1 / y, 0)
        y = np.where(near, y + 1, y)
    series = sum(b / (2 * k * y ** (2 * k)) for k, b in enumerate(BERNOULLI, 1))
    value = total + np.log(y) - 1 / (2 * y) - series
    r = x - np.rint(x)
    reflected = value - math.pi / np.tan(math.pi * r)
    whole = np.where(r == 0, np.nan, reflected)
    result = np.where(negative, whole, value)
    return np.asarray(np.where(x == 0, np.copysign(np.inf, -x), result))


def _zeta(x: Array, s: int) -> Array:
    """Compute the Hurwitz zeta function.

    Below 0: zeta(f) + (-1)^s (zeta(1 - f) - zeta(1 - x)), f = x - floor(x).
    """
    r = x - np.rint(x)
    fraction, other = np.where(r < 0, r + 1, r), np.where(r < 0, -r, 1 - r)
    lost = _positive_zeta(other, s) - _positive_zeta(1 - x, s)
    below = _positive_zeta(fraction, s) + (-1) ** s * lost
    value = np.where(x < 0, below, _positive_zeta(x, s))
    return np.asarray(np.where((r == 0) & (x <= 0), np.inf, value))


def _positive_zeta(x: Array, s: int) -> Array:
    total, y = np.zeros_like(x), np.maximum(x, 0)
    for _ in range(SHIFT + s):
        near = y < SHIFT + s
        total = total + np.where(near, y ** float(-s), 0)
        y = np.where(near, y + 1, y)
    series, rise = np.zeros_like(x), float(s)
    for k, b in enumerate(BERNOULLI, 1):
        series = series + b / math.factorial(2 * k) * rise * y ** float(1 - s - 2 * k)
        rise *= (s + 2 * k - 1) * (s + 2 * k)
    last = y ** float(-s)
    tail = y * last / (s - 1) + last / 2 + series
    return np.asarray(np.where(x == np.inf, 0, total + tail))


def _zeta_samples() -> list[Sample]:
    plain = np.concatenate([spread(0.3, 4, 5), [-0.4, -3.7, 12.5, 40.0]])
    some = special((0.0, -0.0, -2.0, 1.0, 1e-3, 30.0, math.inf, math.nan))
    return [
        Sample((plain,), {"s": 2}, ulp=16),
        Sample((plain,), {"s": 3}, ulp=16),
        Sample((np.zeros((2, 0)),), {"s": 4}),
        Sample((some,), {"s": 2}, grad=False, ulp=16),
        Sample((some.astype("float32"),), {"s": 5}, grad=False, ulp=16),
        Sample((spread(0.3, 9, 67).astype("float32"),), {"s": 2}, grad=False, ulp=16),
    ]


ERFC = elementary(
    "erfc",
    _by_number(math.erfc),
    lambda g, y, x: g * (exp(-(x * x)) * (-2 / ROOT_PI)),
    unary(-3, 3, (*SPECIAL, 9.0, 26.0), ulp=8),
    cost=30,
)
ERFINV = elementary(
    "erfinv",
    _by_number(_erfinv),
    lambda g, y, x: guarded_multiply(g, exp(y * y) * (ROOT_PI / 2)),
    unary(-0.9, 0.9, ALMOST_ONE, ulp=8),
    cost=50,
    amp="float32",
)
LGAMMA = elementary(
    "lgamma",
    _by_number(_lgamma),
    lambda g, y, x: guarded_multiply(g, digamma(x)),
    unary(0.3, 4, POLES, ulp=2048),  # math.lgamma loses digits near 1 and 2
    cost=80,
    amp="float32",
)
DIGAMMA = elementary(
    "digamma",
    _in_float64(_digamma),
    lambda g, y, x: guarded_multiply(g, apply(ZETA, x, s=2)),
    unary(0.3, 4, (*SPECIAL, -2.0, -2.25, 1.0, 2.0, 11.0), ulp=1024),  # near its zero
    cost=60,
    amp="float32",
)
ZETA: Op = define(
    "zeta",
    shape=same_shape,
    dtype=same_dtype("f"),
    vjp=lambda g, y, x, s: (guarded_multiply(g, apply(ZETA, x, s=s + 1) * -s),),
    code=Elementwise("zeta({0}, {T}({s}))", cost=500),
    numpy=_in_float64(_zeta),
    samples=_zeta_samples,
    bad=bad_unary("a floating-point dtype", "int64"),
    amp="float32",
)


def erfc(x: ArrayLike) -> Tensor:
    """Return ``1 - erf(x)``, small results exact too.

    >>> import staticgrad as sg
    >>> sg.compile(sg.erfc([0.0, 10.0]), target="reference")()
    array([1.e+00, 1.e-45], dtype=float32)
    """
    return on_floats(ERFC, x)


def erfinv(x: ArrayLike) -> Tensor:
    """Return the inverse of erf; infinite at -1 and 1, NaN beyond.

    >>> import staticgrad as sg
    >>> sg.compile(sg.erfinv([0.0, 0.5]), target="reference")()
    array([0.        , 0.47693628], dtype=float32)
    """
    return on_floats(ERFINV, x)


def lgamma(x: ArrayLike) -> Tensor:
    """Return the logarithm of |gamma(x)|; infinite at 0 and at negative whole numbers.

    >>> import staticgrad as sg
    >>> sg.compile(sg.lgamma([1.0, 5.0]), target="reference")()
    array([0.       , 3.1780539], dtype=float32)
    """
    return on_floats(LGAMMA, x)


def digamma(x: ArrayLike) -> Tensor:
    """Return the derivative of lgamma; NaN at negative whole numbers.

    >>> import staticgrad as sg
    >>> sg.compile(sg.digamma([1.0, 5.0]), target="reference")()
    array([-0.5772157,  1.5061177], dtype=float32)
    """
    return on_floats(DIGAMMA, x)


def polygamma(n: int, x: ArrayLike) -> Tensor:
    """Compute the `n`-th derivative of digamma.

    >>> import staticgrad as sg
    >>> sg.compile(sg.polygamma(1, [1.0, 5.0]), target="reference")()
    array([1.644934  , 0.22132295], dtype=float32)
    """
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        raise GraphError(
            f"polygamma requires a whole order n >= 0, got {n!r}; give a number, as in "
            f"sg.polygamma(1, x){at(here())}"
        )
    if n == 0:
        return digamma(x)
    scale = (-1) ** (n + 1) * math.factorial(n)
    return apply(ZETA, *floats(x), s=n + 1) * float(scale)


__all__ = ["digamma", "erfc", "erfinv", "lgamma", "polygamma"]
