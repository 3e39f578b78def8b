"""Tangent, inverse trigonometric functions, angles and sinc.

Where a derivative is infinite (arcsin at 1) a cotangent of 0 stays 0, as in
functions.py. arctan2 and hypot have derivatives of 0 at the origin.
"""

from __future__ import annotations

import math

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Sample
from staticgrad.ops.elementwise.choice import where
from staticgrad.ops.elementwise.functions import elementary, on_floats, sin, sqrt
from staticgrad.ops.examples import SPECIAL, pairs, unary
from staticgrad.ops.guarded import guarded_divide
from staticgrad.ops.promotion import ArrayLike, as_tensor, floats, stop_gradient
from staticgrad.ops.rules import elementwise

TURNS = (*SPECIAL, 1e5, 1e15, 2.5 * math.pi, 3 * math.pi, math.pi / 4)
UNIT = tuple(x for x in SPECIAL if not abs(x) > 1)
SINC_SERIES = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(6))
SERIES_BELOW = 0.1
"""sinc is its series below this, which is smooth at 0 and exact to 1e-21."""

TAN = elementary(
    "tan",
    np.tan,
    lambda g, y, x: g * (y * y + 1),  # dy/dx = 1 + y^2
    unary(-1.2, 1.2, TURNS),
    amp="float32",
)
ARCSIN = elementary(
    "asin",
    np.arcsin,
    lambda g, y, x: guarded_divide(g, sqrt((1 - x) * (x + 1))),
    unary(-0.9, 0.9, UNIT),
    amp="float32",
)
ARCCOS = elementary(
    "acos",
    np.arccos,
    lambda g, y, x: -guarded_divide(g, sqrt((1 - x) * (x + 1))),
    unary(-0.9, 0.9, UNIT),
    amp="float32",
)
ARCTAN = elementary(
    "atan",
    np.arctan,
    lambda g, y, x: g / (x * x + 1),  # dy/dx = 1 / (1 + x^2)
    unary(-3, 3),
)


def _atan2_vjp(g: Tensor, z: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate: dz/dy = x / r^2, dz/dx = -y / r^2; 0 at the origin."""
    r = _or_infinite(apply(HYPOT, x, y))
    return g * (x / r) / r, -g * (y / r) / r


def _hypot_vjp(g: Tensor, r: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate: dr/dx = x / r, dr/dy = y / r; 0 at the origin."""
    length = _or_infinite(r)
    return g * (x / length), g * (y / length)


def _or_infinite(r: Tensor) -> Tensor:
    """Return the length r, infinite where it is 0, so that quotients by it are 0."""
    return where(r == 0, math.inf, r)


def _pairs() -> list[Sample]:
    return pairs(-3.0, 3.0)


ARCTAN2 = elementwise("atan2", "f", np.arctan2, vjp=_atan2_vjp, samples=_pairs, cost=30)
HYPOT = elementwise("hypot", "f", np.hypot, vjp=_hypot_vjp, samples=_pairs, cost=12)


def tan(x: ArrayLike) -> Tensor:
    """Return the tangent of x in radians.

    >>> import staticgrad as sg
    >>> sg.compile(sg.tan([0.0, 1.0]), target="reference")()
    array([0.       , 1.5574077], dtype=float32)
    """
    return on_floats(TAN, x)


def arcsin(x: ArrayLike) -> Tensor:
    """Return the inverse of the sine, in [-pi/2, pi/2]; NaN outside of [-1, 1].

    >>> import staticgrad as sg
    >>> sg.compile(sg.arcsin([0.0, 1.0]), target="reference")()
    array([0.       , 1.5707964], dtype=float32)
    """
    return on_floats(ARCSIN, x)


def arccos(x: ArrayLike) -> Tensor:
    """Return the inverse of the cosine, in [0, pi]; NaN outside of [-1, 1].

    >>> import staticgrad as sg
    >>> sg.compile(sg.arccos([1.0, 0.0]), target="reference")()
    array([0.       , 1.5707964], dtype=float32)
    """
    return on_floats(ARCCOS, x)


def arctan(x: ArrayLike) -> Tensor:
    """Return the inverse of the tangent, in [-pi/2, pi/2].

    >>> import staticgrad as sg
    >>> sg.compile(sg.arctan([0.0, 1.0]), target="reference")()
    array([0.       , 0.7853982], dtype=float32)
    """
    return on_floats(ARCTAN, x)


def arctan2(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the angle of the point (x2, x1), in [-pi, pi].

    The derivative at (0, 0) is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.arctan2([0.0, 1.0], [1.0, -1.0]), target="reference")()
    array([0.       , 2.3561945], dtype=float32)
    """
    return apply(ARCTAN2, *floats(x1, x2))


def angle(z: ArrayLike, deg: bool = False) -> Tensor:
    """Return 0 of a number >= 0, pi of a negative one (180 with `deg`); no derivative.

    >>> import staticgrad as sg
    >>> sg.compile(sg.angle([2.0, -2.0], deg=True), target="reference")().tolist()
    [0.0, 180.0]
    """
    (x,) = floats(z)
    turn = arctan2(as_tensor(0.0, x), stop_gradient(x))
    return turn * (180 / math.pi) if deg else turn


def hypot(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``sqrt(x1 ** 2 + x2 ** 2)`` without overflow; slope 0 at (0, 0).

    >>> import staticgrad as sg
    >>> sg.compile(sg.hypot([3.0, 3e30], [4.0, 4e30]), target="reference")()
    array([5.e+00, 5.e+30], dtype=float32)
    """
    return apply(HYPOT, *floats(x1, x2))


def deg2rad(x: ArrayLike) -> Tensor:
    """Convert degrees to radians.

    >>> import staticgrad as sg
    >>> sg.compile(sg.deg2rad([0.0, 180.0]), target="reference")()
    array([0.       , 3.1415927], dtype=float32)
    """
    return floats(x)[0] * (math.pi / 180)


def rad2deg(x: ArrayLike) -> Tensor:
    """Convert radians to degrees.

    >>> import staticgrad as sg
    >>> sg.compile(sg.rad2deg([0.0, 1.0]), target="reference")()
    array([ 0.     , 57.29578], dtype=float32)
    """
    return floats(x)[0] * (180 / math.pi)


def sinc(x: ArrayLike) -> Tensor:
    """Return ``sin(pi x) / (pi x)``, 1 at 0, where its derivative is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.sinc([0.0, 0.5]), target="reference")()
    array([1.        , 0.63661975], dtype=float32)
    """
    angle = floats(x)[0] * math.pi
    near = abs(angle) < SERIES_BELOW
    small = where(near, angle, 0)
    series: Tensor | float = SINC_SERIES[-1]
    for coefficient in reversed(SINC_SERIES[:-1]):
        series = series * (small * small) + coefficient
    far = where(near, 1, angle)
    return where(near, series, sin(far) / far)


__all__ = [
    "angle", "arccos", "arcsin", "arctan", "arctan2", "deg2rad", "hypot", "rad2deg",
    "sinc", "tan",
]  # fmt: skip
