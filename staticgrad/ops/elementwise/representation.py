"""Representation of numbers: nextafter, spacing, frexp, bitwise_count.

nextafter has the derivative 1 in its first argument and 0 in the second; the fraction
of frexp that of a division by a power of two; spacing and counts have none.
"""

from __future__ import annotations

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Op, Sample
from staticgrad.ir.types import is_half, kind_of
from staticgrad.ops.elementwise.arithmetic import absolute, small_if_bool
from staticgrad.ops.elementwise.choice import where
from staticgrad.ops.elementwise.signs import copysign, ldexp
from staticgrad.ops.examples import pairs, unary, unary_integers
from staticgrad.ops.promotion import ArrayLike, as_tensor, floats, stop_gradient
from staticgrad.ops.rules import dtype_error, elementwise

INT32, UINT8 = np.dtype(np.int32), np.dtype(np.uint8)


NEXTAFTER = elementwise(
    "nextafter",
    "f",
    np.nextafter,
    vjp=lambda g, z, x, y: (g, None),
    samples=lambda: pairs(-3.0, 3.0),
    cost=6,
)
FREXP_FRACTION: Op = elementwise(
    "frexp_fraction",
    "f",
    lambda x: np.frexp(x)[0],
    vjp=lambda g, y, x: (ldexp(g, -apply(FREXP_EXPONENT, x)),),
    samples=unary(1.05, 1.95),
    cost=6,
    inputs=1,
)
FREXP_EXPONENT: Op = elementwise(
    "frexp_exponent",
    "f",
    lambda x: np.frexp(x)[1],
    samples=lambda: [Sample(s.args, grad=False) for s in unary(-3, 3)()],
    cost=6,
    inputs=1,
    result=INT32,
)
BITWISE_COUNT = elementwise(
    "bitwise_count",
    "iu",
    np.bitwise_count,
    samples=unary_integers,
    cost=2,
    inputs=1,
    result=UINT8,
)


def nextafter(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the number next to x1 in the direction of x2.

    >>> import staticgrad as sg
    >>> y = sg.nextafter(sg.constant(1.0, "float64"), 2.0)
    >>> float(sg.compile(y, target="reference")()) - 1
    2.220446049250313e-16
    """
    return apply(NEXTAFTER, *_not_half("nextafter", floats(x1, x2)))


def _not_half(name: str, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Raise for 16-bit floats: kernels see them as float32, with other neighbours."""
    if any(is_half(value.dtype) for value in values):
        raise dtype_error(name, values, "float32 or float64", "cast with .astype")
    return values


def spacing(x: ArrayLike) -> Tensor:
    """Return the distance to the next number away from 0.

    It has the sign of x and no derivative.

    >>> import staticgrad as sg
    >>> y = sg.spacing(sg.constant(1.0, "float64"))
    >>> float(sg.compile(y, target="reference")())
    2.220446049250313e-16
    """
    (value,) = _not_half("spacing", floats(stop_gradient(x)))
    away = copysign(as_tensor(np.inf, value), value)
    size = apply(NEXTAFTER, value, away) - value
    return where(value == 0, absolute(size), size)  # of -0.0 it is positive


def frexp(x: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return fraction f and exponent e: ``x = f * 2**e``, ``0.5 <= |f| < 1``.

    Of 0, inf and NaN they are x itself and 0.

    >>> import staticgrad as sg
    >>> f, e = sg.compile(sg.frexp([12.0, -0.5]), target="reference")()
    >>> f.tolist(), e.tolist()
    ([0.75, -0.5], [4, 0])
    """
    (value,) = floats(x)
    return apply(FREXP_FRACTION, value), apply(FREXP_EXPONENT, value)


def bitwise_count(x: ArrayLike) -> Tensor:
    """Return the number of 1 bits in ``|x|``, as uint8.

    >>> import staticgrad as sg
    >>> sg.compile(sg.bitwise_count([7, -8]), target="reference")().tolist()
    [3, 1]
    """
    (value,) = small_if_bool(as_tensor(x))
    if kind_of(value.dtype) not in "iu":
        raise dtype_error("bitwise_count", (value,), "integers", "cast with .astype")
    return apply(BITWISE_COUNT, value)


__all__ = ["bitwise_count", "frexp", "nextafter", "spacing"]
