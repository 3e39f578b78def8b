"""Composites of one or two arguments: relu, softplus, logaddexp, clip, nan_to_num, ...

Kinks: the derivative of relu at 0 is 0; clip passes the gradient on within its bounds,
bounds included. softplus and logaddexp have their exact derivatives everywhere, where
both arguments are equal too.
"""

from __future__ import annotations

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.types import is_float
from staticgrad.ops.choice import WHERE, where
from staticgrad.ops.compare import (
    GREATER_EQUAL,
    ISFINITE,
    ISNAN,
    LESS_EQUAL,
)
from staticgrad.ops.functions import exp, log1p
from staticgrad.ops.promote import ArrayLike, as_tensor, floats, promoted

# exp(x) stays finite in float32 below this, and log1p(exp(x)) is x in float64 above it.
SOFTPLUS_IS_LINEAR = 40.0


def relu(x: ArrayLike) -> Tensor:
    """``max(x, 0)``; NaN stays NaN; the derivative at 0 is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.relu([-1.0, 2.0]), target="reference")()
    array([0., 2.], dtype=float32)
    """
    (value,) = promoted(x)
    nothing = as_tensor(0, value)
    return apply(WHERE, apply(LESS_EQUAL, value, nothing), nothing, value)


def softplus(x: ArrayLike) -> Tensor:
    """``log(1 + exp(x))``, without overflow.

    >>> import staticgrad as sg
    >>> sg.compile(sg.softplus([0.0, 1000.0]), target="reference")()
    array([6.931472e-01, 1.000000e+03], dtype=float32)
    """
    (value,) = floats(x)
    linear = value > SOFTPLUS_IS_LINEAR
    small = where(linear, 0, value)
    return where(linear, value, log1p(exp(small)))


def logaddexp(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """``log(exp(x1) + exp(x2))``, without overflow.

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
    """`a` moved into [a_min, a_max]; None is no bound; NaN stays NaN.

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
    """`x` with NaN, inf and -inf replaced; by default by 0 and the largest numbers.

    The gradient is 0 where a value is replaced. `copy` is there for NumPy's sake.

    >>> import staticgrad as sg
    >>> sg.compile(sg.nan_to_num([1.0, float("nan")]), target="reference")()
    array([1., 0.], dtype=float32)
    """
    value = as_tensor(x)
    if not is_float(value.dtype):
        return value
    limits = np.finfo(value.dtype)
    high = float(limits.max) if posinf is None else posinf
    low = float(limits.min) if neginf is None else neginf
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
    """True where ``|a - b| <= atol + rtol * |b|``, or both are the same infinity.

    >>> import staticgrad as sg
    >>> sg.compile(sg.isclose([1.0, 2.0], [1.0, 2.1]), target="reference")()
    array([ True, False])
    """
    x, y = floats(a, b)
    near = (abs(x - y) <= atol + rtol * abs(y)) & apply(ISFINITE, y)
    close = near | (x == y)
    return close | (apply(ISNAN, x) & apply(ISNAN, y)) if equal_nan else close


def heaviside(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """0 below 0, `x2` at 0, 1 above 0; the derivative in x1 is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.heaviside([-1.0, 0.0, 2.0], 0.5), target="reference")()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    x, y = floats(x1, x2)
    step = where(x < 0, 0.0, where(x > 0, as_tensor(1.0, x), y))
    return where(apply(ISNAN, x), x, step)
