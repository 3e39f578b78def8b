"""Guarded division and multiplication for gradient rules: 0 / 0 and 0 * inf are 0.

A branch that ``where`` masks out has the cotangent 0 and may have the derivative inf or
NaN (sqrt at 0, log at 0, exp where it overflows); ``0 * inf`` would poison the gradient
of everything before it. These two ops give 0 wherever the first factor is 0, and their
own derivatives in the first factor are exact there: the double-where form as one node.
In the other factor they are 0 there, so derivatives of any order stay finite.

    guarded_divide(g, d)   = 0 if g == 0 else g / d
    guarded_multiply(g, d) = 0 if g == 0 else g * d

Where d is known to be finite, or not to be 0, they are plain (value_ranges.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ops.examples import pairs
from staticgrad.ops.leaves import frozen
from staticgrad.ops.named import named
from staticgrad.ops.rules import elementwise
from staticgrad.ops.value_ranges import is_finite, is_nonzero

Array = npt.NDArray[Any]


def _select(g: Array, value: Array) -> Array:
    return np.where(g == 0, np.zeros_like(value), value)


def _none_where_zero(g: Tensor, value: Tensor) -> Tensor:
    """Return `value`, 0 where g is 0 whatever the other factor is."""
    zero = frozen(np.zeros((), value.dtype))
    return named("where", named("equal", g, frozen(np.zeros((), g.dtype))), zero, value)


GUARDED_DIVIDE = elementwise(
    "guarded_divide",
    "f",
    lambda g, d: _select(g, g / d),
    vjp=lambda c, y, g, d: (
        guarded_divide(c, d),
        _none_where_zero(g, -guarded_divide(guarded_multiply(c, y), d)),
    ),
    samples=lambda: pairs(-2.0, 2.0),
    template="select({0} == {T}(0), {T}(0), divide({0}, {1}))",
    cost=4,
)

GUARDED_MULTIPLY = elementwise(
    "guarded_multiply",
    "f",
    lambda g, d: _select(g, g * d),
    vjp=lambda c, y, g, d: (
        guarded_multiply(c, d),
        _none_where_zero(g, guarded_multiply(c, g)),
    ),
    samples=lambda: pairs(-2.0, 2.0),
    template="select({0} == {T}(0), {T}(0), {0} * {1})",
    cost=2,
)


def guarded_divide(g: Tensor, d: Tensor) -> Tensor:
    """Return ``g / d``, 0 where g is 0; plain where d is known not to be 0."""
    if is_nonzero(d):
        return named("divide", g, d)
    return apply(GUARDED_DIVIDE, g, d)


def guarded_multiply(g: Tensor, d: Tensor) -> Tensor:
    """Return ``g * d``, 0 where g is 0; plain where d is known to be finite."""
    if is_finite(d):
        return named("multiply", g, d)
    return apply(GUARDED_MULTIPLY, g, d)
