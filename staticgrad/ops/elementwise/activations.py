"""Activations and other composites: relu, gelu, logaddexp, clip, nan_to_num, ...

Kinks: the derivative of relu at 0 is 0, that of leaky_relu and elu the one from below;
clip passes the gradient on within its bounds, bounds included. logaddexp has its exact
derivatives everywhere, where both arguments are equal too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import GraphError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import is_float, largest
from staticgrad.ops.elementwise.choice import WHERE, where
from staticgrad.ops.elementwise.compare import (
    GREATER_EQUAL,
    ISFINITE,
    ISNAN,
    LESS_EQUAL,
)
from staticgrad.ops.elementwise.functions import (
    elementary,
    exp,
    expm1,
    log1p,
    sigmoid,
    tanh,
)
from staticgrad.ops.elementwise.special import erfc
from staticgrad.ops.examples import SPECIAL, unary
from staticgrad.ops.promotion import ArrayLike, as_tensor, floats, promoted, widened
from staticgrad.ops.rules import quiet

Array = npt.NDArray[Any]


def _gelu(x: Array) -> Array:
    wide = x.astype(np.float64)
    tail = np.vectorize(math.erfc, otypes=[np.float64])(wide * -math.sqrt(0.5))
    return np.where(wide == -np.inf, -0.0, wide * tail / 2).astype(x.dtype)


def _gelu_derivative(g: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Differentiate gelu: dy/dx = Phi(x) + x phi(x)."""
    density = exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return g * (erfc(x * -math.sqrt(0.5)) * 0.5 + where(abs(x) < 50, x, 0) * density)


GELU = elementary(
    "gelu",
    quiet(_gelu),
    _gelu_derivative,
    unary(-3, 3, (*SPECIAL, -5.0, 9.0), ulp=16),
    cost=40,
)


def relu(x: ArrayLike) -> Tensor:
    """Return ``max(x, 0)``; NaN stays NaN; the derivative at 0 is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.relu([-1.0, 2.0]), target="reference")()
    array([0., 2.], dtype=float32)
    """
    (value,) = promoted(x)
    nothing = as_tensor(0, value)
    return apply(WHERE, apply(LESS_EQUAL, value, nothing), nothing, value)


def leaky_relu(x: ArrayLike, negative_slope: float = 0.01) -> Tensor:
    """Leaky ReLU: ``x`` above 0, ``negative_slope * x`` up to 0.

    The derivative at 0 is `negative_slope`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.leaky_relu([-1.0, 2.0], 0.5), target="reference")()
    array([-0.5,  2. ], dtype=float32)
    """
    (value,) = floats(x)
    return where(value > 0, value, value * negative_slope)


@widened
def elu(x: ArrayLike, alpha: float = 1.0) -> Tensor:
    """Exponential linear unit: ``x`` above 0, ``alpha * (exp(x) - 1)`` up to 0.

    The derivative at 0 is `alpha`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.elu([-1.0, 2.0]), target="reference")()
    array([-0.63212055,  2.        ], dtype=float32)
    """
    (value,) = floats(x)
    return where(value > 0, value, expm1(where(value > 0, 0, value)) * alpha)


@widened
def silu(x: ArrayLike) -> Tensor:
    """Return ``x * sigmoid(x)``.

    >>> import staticgrad as sg
    >>> sg.compile(sg.silu([-1.0, 2.0]), target="reference")()
    array([-0.2689414,  1.761594 ], dtype=float32)
    """
    (value,) = floats(x)
    return value * sigmoid(value)


@widened
def gelu(x: ArrayLike, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit: ``x Phi(x)``, Phi the normal distribution function.

    With `approximate` "tanh", Phi is approximated by a tanh.

    >>> import staticgrad as sg
    >>> sg.compile(sg.gelu([-1.0, 2.0]), target="reference")()
    array([-0.15865526,  1.9544997 ], dtype=float32)
    """
    (value,) = floats(x)
    if approximate == "none":
        return apply(GELU, value)
    if approximate == "tanh":
        inner = (value + value * value * value * 0.044715) * math.sqrt(2 / math.pi)
        return value * 0.5 * (tanh(inner) + 1)
    raise GraphError(
        f'gelu requires approximate="none" or "tanh", got {approximate!r}{at(here())}'
    )


@widened
def logaddexp(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``log(exp(x1) + exp(x2))``, without overflow.

    The larger argument h and the smaller l are chosen, not computed, so that
    h + log1p(exp(l - h)) has exact derivatives, where they are equal too.

    >>> import staticgrad as sg
    >>> sg.compile(sg.logaddexp([0.0, 1000.0], 0.0), target="reference")()
    array([6.931472e-01, 1.000000e+03], dtype=float32)
    """
    x, y = floats(x1, x2)
    first = apply(GREATER_EQUAL, x, y)
    high, low = where(first, x, y), where(first, y, x)
    finite = where(apply(ISFINITE, high), high, 0)
    return high + log1p(exp(low - finite))


def clip(
    a: ArrayLike, a_min: ArrayLike | None = None, a_max: ArrayLike | None = None,
    *, min: ArrayLike | None = None, max: ArrayLike | None = None,
) -> Tensor:  # fmt: skip
    """Clamp `a` to [a_min, a_max]; None is no bound; NaN stays NaN.

    The gradient passes within the bounds, bounds included, and to a bound where it is
    taken.

    >>> import staticgrad as sg
    >>> sg.compile(sg.clip([-5, 2, 9], 0, 5), target="reference")()
    array([0, 2, 5])
    """
    low = a_min if min is None else min
    high = a_max if max is None else max
    result = as_tensor(a)
    if low is not None:
        x, bound = promoted(result, low)
        result = where(x < bound, bound, x)
    if high is not None:
        x, bound = promoted(result, high)
        result = where(x > bound, bound, x)
    return result


def nan_to_num(
    x: ArrayLike,
    copy: bool = True,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """Return `x` with NaN, inf and -inf replaced.

    The defaults are 0 and the largest finite numbers. The gradient is 0 where a value
    is replaced. `copy` is there for NumPy's sake.

    >>> import staticgrad as sg
    >>> sg.compile(sg.nan_to_num([1.0, float("nan")]), target="reference")()
    array([1., 0.], dtype=float32)
    """
    value = as_tensor(x)
    if not is_float(value.dtype):
        return value
    most = largest(value.dtype)
    high = most if posinf is None else posinf
    low = -most if neginf is None else neginf
    known = where(apply(ISNAN, value), nan, value)
    below = where(known == -np.inf, low, known)
    return where(known == np.inf, high, below)


def isclose(
    a: ArrayLike,
    b: ArrayLike,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> Tensor:
    """Return True where ``|a - b| <= atol + rtol * |b|``, or for equal infinities.

    >>> import staticgrad as sg
    >>> sg.compile(sg.isclose([1.0, 2.0], [1.0, 2.1]), target="reference")()
    array([ True, False])
    """
    x, y = floats(a, b)
    near = (abs(x - y) <= atol + rtol * abs(y)) & apply(ISFINITE, y)
    close = near | (x == y)
    return close | (apply(ISNAN, x) & apply(ISNAN, y)) if equal_nan else close


def heaviside(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return 0 below 0, `x2` at 0, 1 above 0; the derivative in x1 is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.heaviside([-1.0, 0.0, 2.0], 0.5), target="reference")()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    x, y = floats(x1, x2)
    step = where(x < 0, 0.0, where(x > 0, as_tensor(1.0, x), y))
    return where(apply(ISNAN, x), x, step)


def isneginf(x: ArrayLike) -> Tensor:
    """Return True where x is -inf.

    >>> import staticgrad as sg
    >>> sg.compile(sg.isneginf([1.0, float("-inf")]), target="reference")()
    array([False,  True])
    """
    return floats(x)[0] == -np.inf


def isposinf(x: ArrayLike) -> Tensor:
    """Return True where x is inf.

    >>> import staticgrad as sg
    >>> sg.compile(sg.isposinf([1.0, float("inf")]), target="reference")()
    array([False,  True])
    """
    return floats(x)[0] == np.inf


__all__ = [
    "clip", "elu", "gelu", "heaviside", "isclose", "isneginf", "isposinf", "leaky_relu",
    "logaddexp", "nan_to_num", "relu", "silu",
]  # fmt: skip
