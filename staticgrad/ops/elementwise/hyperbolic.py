"""sinh, cosh and the inverses of sinh, cosh and tanh.

Where a derivative is infinite (arccosh at 1, arctanh at 1) a cotangent of 0 stays 0, as
in functions.py.
"""

from __future__ import annotations

import numpy as np

from staticgrad.ir.node import Tensor
from staticgrad.ops.elementwise.functions import (
    TINY_TO_HUGE,
    elementary,
    on_floats,
    sqrt,
)
from staticgrad.ops.elementwise.trigonometry import hypot
from staticgrad.ops.examples import SPECIAL, unary
from staticgrad.ops.guarded import guarded_divide, guarded_multiply
from staticgrad.ops.promotion import ArrayLike

SINH = elementary(
    "sinh",
    np.sinh,
    lambda g, y, x: guarded_multiply(g, cosh(x)),  # dy/dx = cosh x
    unary(-3, 3, TINY_TO_HUGE),
    amp="float32",
)
COSH = elementary(
    "cosh",
    np.cosh,
    lambda g, y, x: guarded_multiply(g, sinh(x)),  # dy/dx = sinh x
    unary(-3, 3, TINY_TO_HUGE),
    amp="float32",
)
ARCSINH = elementary(
    "asinh",
    np.arcsinh,
    lambda g, y, x: g / hypot(x, 1.0),  # dy/dx = 1 / sqrt(x^2 + 1)
    unary(-3, 3),
)
ARCCOSH = elementary(
    "acosh",
    np.arccosh,
    lambda g, y, x: guarded_divide(g, sqrt(x - 1) * sqrt(x + 1)),
    unary(1.2, 4, (*SPECIAL, 1.0000001, 1.5, 1e8)),
)
ARCTANH = elementary(
    "atanh",
    np.arctanh,
    lambda g, y, x: guarded_divide(g, (1 - x) * (x + 1)),  # dy/dx = 1 / (1 - x^2)
    unary(-0.9, 0.9, (*SPECIAL, 0.999, -0.999)),
)


def sinh(x: ArrayLike) -> Tensor:
    """Return the hyperbolic sine.

    >>> import staticgrad as sg
    >>> sg.compile(sg.sinh([0.0, 1.0]), target="reference")()
    array([0.       , 1.1752012], dtype=float32)
    """
    return on_floats(SINH, x)


def cosh(x: ArrayLike) -> Tensor:
    """Return the hyperbolic cosine.

    >>> import staticgrad as sg
    >>> sg.compile(sg.cosh([0.0, 1.0]), target="reference")()
    array([1.       , 1.5430807], dtype=float32)
    """
    return on_floats(COSH, x)


def arcsinh(x: ArrayLike) -> Tensor:
    """Return the inverse of sinh.

    >>> import staticgrad as sg
    >>> sg.compile(sg.arcsinh([0.0, 1.0]), target="reference")()
    array([0.       , 0.8813736], dtype=float32)
    """
    return on_floats(ARCSINH, x)


def arccosh(x: ArrayLike) -> Tensor:
    """Return the inverse of cosh, 0 or more; NaN below 1.

    >>> import staticgrad as sg
    >>> sg.compile(sg.arccosh([1.0, 2.0]), target="reference")()
    array([0.      , 1.316958], dtype=float32)
    """
    return on_floats(ARCCOSH, x)


def arctanh(x: ArrayLike) -> Tensor:
    """Return the inverse of tanh; infinite at -1 and 1, NaN beyond.

    >>> import staticgrad as sg
    >>> sg.compile(sg.arctanh([0.0, 1.0]), target="reference")()
    array([ 0., inf], dtype=float32)
    """
    return on_floats(ARCTANH, x)


__all__ = ["arccosh", "arcsinh", "arctanh", "cosh", "sinh"]
