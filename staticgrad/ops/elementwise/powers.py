"""Powers; small whole exponents become products, ``x ** 0.5`` a root.

The derivative in the base is 0 where the exponent is 0, that in the exponent is 0 where
the base is 0.
"""

from __future__ import annotations

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Constant, Tensor
from staticgrad.ir.op import Sample
from staticgrad.ir.types import is_float
from staticgrad.ops import examples
from staticgrad.ops.elementwise.arithmetic import MULTIPLY, small_if_bool
from staticgrad.ops.examples import pairs
from staticgrad.ops.guarded import guarded_multiply
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, promoted
from staticgrad.ops.rules import dtype_error, elementwise


def _power_vjp(g: Tensor, z: Tensor, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate: dz/dx = p x^(p-1), 0 for p = 0; dz/dp = z log(x), 0 for x = 0."""
    slope = p * apply(POWER, x, p - 1)
    if not (isinstance(p, Constant) and bool(np.all(p.value != 0))):
        slope = named("where", p == 0, p, slope)
    positive = named("where", x == 0, x + 1, x)
    dx = guarded_multiply(g, slope)
    return dx, guarded_multiply(g, z * named("log", positive))


def _power_samples() -> list[Sample]:
    base, exponent = examples.spread(0.2, 3.0, 2, 3), examples.spread(-2.0, 2.0, 3)
    return [
        Sample((base, exponent)),
        Sample((base[0], exponent[:, None])),
        Sample((base, np.array(1.7))),
        Sample((np.zeros((0, 3)), exponent)),
        *(Sample(s.args, s.attrs, grad=False) for s in pairs(-3.0, 3.0)),
    ]


POWER = elementwise(
    "power",
    "f",
    np.power,
    vjp=_power_vjp,
    samples=_power_samples,
    cost=60,
    amp="float32",
)


def _integer_power_samples() -> list[Sample]:
    base, exponent = (
        np.array([0, 1, -1, 2, -3, 7]),
        np.array([[0], [1], [2], [5], [63]]),
    )
    return [
        Sample((base.astype(dtype), exponent.astype(dtype)), grad=False)
        for dtype in ("int8", "int32", "int64", "uint8")
    ]


INTEGER_POWER = elementwise(
    "integer_power",
    "iu",
    np.power,
    samples=_integer_power_samples,
    template="ipower({0}, {1})",
    cost=20,
)


def power(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 ** x2``, element by element.

    Exponents that are whole constants up to 8 become products, and 0.5 a square root.
    The derivative in x1 is 0 where x2 is 0, that in x2 is 0 where x1 is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.power([1.0, 2.0, 3.0], 2), target="reference")()
    array([1., 4., 9.], dtype=float32)
    """
    x, p = small_if_bool(*promoted(x1, x2))
    if isinstance(p, Constant) and p.ndim == 0:
        short = _short_power(x, float(p.value))
        if short is not None:
            return short
    if is_float(x.dtype):
        return apply(POWER, x, p)
    if isinstance(p, Constant) and bool(np.any(p.value < 0)):
        advice = "cast the base to a float dtype"
        raise dtype_error("power", (x, p), "exponents >= 0 of integers", advice)
    return apply(INTEGER_POWER, x, p)


def _short_power(x: Tensor, p: float) -> Tensor | None:
    """Return ``x ** p`` as products of x or 1 / x, or as a square root, if short."""
    if p == 0.5:
        return named("sqrt", x)
    if p != int(p) if np.isfinite(p) else True:
        return None
    if not 1 <= abs(p) <= 8 or (p < 0 and not is_float(x.dtype)):
        return None
    square = x if p > 0 else 1 / x
    product: Tensor | None = None
    left = int(abs(p))
    while left:
        if left % 2:
            product = square if product is None else named("multiply", product, square)
        left //= 2
        if left:
            square = named("multiply", square, square)
    return product


def square(x: ArrayLike) -> Tensor:
    """Return ``x * x``.

    >>> import staticgrad as sg
    >>> sg.compile(sg.square([3, -2]), target="reference")()
    array([9, 4])
    """
    (value,) = small_if_bool(x)
    return apply(MULTIPLY, value, value)


__all__ = ["power", "square"]
