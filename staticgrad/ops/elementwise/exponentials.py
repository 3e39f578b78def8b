"""Powers of 2, logarithms to base 2 and 10, the cube root, and products with logs.

Where a derivative is infinite (log2 at 0, cbrt at 0) a cotangent of 0 stays 0, as in
functions.py. xlogy is 0 where its first factor is 0, whatever the second is; there its
derivative in the second is 0, that in the first is the logarithm.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Sample
from staticgrad.ir.types import FLOAT64
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.choice import where
from staticgrad.ops.elementwise.compare import GREATER_EQUAL, ISFINITE
from staticgrad.ops.elementwise.functions import elementary, log, log1p, on_floats
from staticgrad.ops.elementwise.powers import power
from staticgrad.ops.examples import SPECIAL, pairs, spread, unary
from staticgrad.ops.guarded import guarded_divide, guarded_multiply
from staticgrad.ops.promotion import ArrayLike, floats, promoted
from staticgrad.ops.rules import elementwise

Array = npt.NDArray[Any]
EXPONENTS = (*SPECIAL, 10.0, -3.0, 127.5, 128.0, -149.0, -151.0, 1023.5, -1074.0)
POWERS = (*SPECIAL, 8.0, 1000.0, 0.125, 1e-5, 27.0)

EXP2 = elementary(
    "exp2",
    np.exp2,
    lambda g, y, x: guarded_multiply(g, y * math.log(2)),  # dy/dx = y log 2
    unary(-3, 3, EXPONENTS),
    amp="float32",
)
LOG2 = elementary(
    "log2",
    np.log2,
    lambda g, y, x: guarded_divide(g * (1 / math.log(2)), x),  # 1 / (x log 2)
    unary(0.1, 3, POWERS),
    amp="float32",
)
LOG10 = elementary(
    "log10",
    np.log10,
    lambda g, y, x: guarded_divide(g * (1 / math.log(10)), x),  # 1 / (x log 10)
    unary(0.1, 3, POWERS),
    amp="float32",
)
CBRT = elementary(
    "cbrt",
    np.cbrt,
    lambda g, y, x: guarded_divide(g, y * y * 3),  # dy/dx = 1 / (3 y^2)
    unary(0.1, 3, POWERS),
)


def _xlogy(x: Array, y: Array) -> Array:
    nothing = (x == 0) & (y == y)
    return np.where(nothing, np.zeros((), x.dtype), x * np.log(y))


def _xlogy_samples() -> list[Sample]:
    x, y = spread(-2, 2, 2, 3), spread(0.2, 3, 3)
    return [
        Sample((x, y)),
        Sample((x[:, :1], y)),
        Sample((np.zeros((0, 3)), y)),
        *(Sample(s.args, s.attrs, grad=False) for s in pairs(-3.0, 3.0)),
    ]


XLOGY = elementwise(
    "xlogy",
    "f",
    _xlogy,
    vjp=lambda g, z, x, y: (guarded_multiply(g, log(y)), guarded_divide(g * x, y)),
    samples=_xlogy_samples,
    template="select(c_and({0} == {T}(0), {1} == {1}), {T}(0), {0} * log({1}))",
    cost=20,
    amp="float32",
)


def exp2(x: ArrayLike) -> Tensor:
    """Return ``2 ** x``.

    >>> import staticgrad as sg
    >>> sg.compile(sg.exp2([3.0, -1.0]), target="reference")()
    array([8. , 0.5], dtype=float32)
    """
    return on_floats(EXP2, x)


def log2(x: ArrayLike) -> Tensor:
    """Return the logarithm to base 2; -inf at 0, NaN below.

    >>> import staticgrad as sg
    >>> sg.compile(sg.log2([8.0, 0.5]), target="reference")()
    array([ 3., -1.], dtype=float32)
    """
    return on_floats(LOG2, x)


def log10(x: ArrayLike) -> Tensor:
    """Return the logarithm to base 10; -inf at 0, NaN below.

    >>> import staticgrad as sg
    >>> sg.compile(sg.log10([100.0, 1.0]), target="reference")()
    array([2.0000002, 0.       ], dtype=float32)
    """
    return on_floats(LOG10, x)


def cbrt(x: ArrayLike) -> Tensor:
    """Return the cube root, with the sign of x.

    Its derivative at 0 is inf, and 0 if masked.

    >>> import staticgrad as sg
    >>> sg.compile(sg.cbrt([27.0, -8.0]), target="reference")()
    array([ 2.9999998, -2.       ], dtype=float32)
    """
    return on_floats(CBRT, x)


def xlogy(x: ArrayLike, y: ArrayLike) -> Tensor:
    """Compute ``x * log(y)``, 0 where x is 0 and y is not NaN.

    >>> import staticgrad as sg
    >>> sg.compile(sg.xlogy([0.0, 1.0], [0.0, 1.0]), target="reference")()
    array([0., 0.], dtype=float32)
    """
    return apply(XLOGY, *floats(x, y))


def logaddexp2(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``log2(2 ** x1 + 2 ** x2)``, without overflow.

    >>> import staticgrad as sg
    >>> sg.compile(sg.logaddexp2([0.0, 1000.0], 0.0), target="reference")()
    array([   1., 1000.], dtype=float32)
    """
    x, y = floats(x1, x2)
    first = apply(GREATER_EQUAL, x, y)
    high, low = where(first, x, y), where(first, y, x)
    finite = where(apply(ISFINITE, high), high, 0)
    return high + log1p(exp2(low - finite)) * (1 / math.log(2))


def float_power(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 ** x2`` in float64.

    >>> import staticgrad as sg
    >>> sg.compile(sg.float_power([2, 3], -1), target="reference")()
    array([0.5       , 0.33333333])
    """
    x, y = (cast(value, FLOAT64) for value in promoted(x1, x2))
    return power(x, y)


__all__ = ["cbrt", "exp2", "float_power", "log2", "log10", "logaddexp2", "xlogy"]
