"""Between which numbers values lie: which factors of a gradient need no guard.

``-t * t <= 0``, so ``exp(-t * t) <= 1``, and ``1 + t * t >= 1``. Only functions of one
tensor t are looked through, down to one whose derivative lets a NaN of t pass: without
a guard a gradient is then NaN where it would be with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from staticgrad.ir.node import Constant, Tensor, seen_through
from staticgrad.ir.types import largest, smallest_normal

Range: TypeAlias = tuple[float, float]

ANYWHERE: Range = (-math.inf, math.inf)
DEEPEST = 12  # nodes that are looked through
MOST_EXPONENT = 700.0


def is_finite(x: Tensor) -> bool:
    """Whether no element of `x` is infinite, nor NaN if it is a constant."""
    if isinstance(x, Constant):
        return bool(np.all(np.isfinite(x.value)))
    low, high = range_of(x)
    return max(-low, high) <= largest(x.dtype)


def is_nonzero(x: Tensor) -> bool:
    """Whether no element of `x` is 0."""
    if isinstance(x, Constant):
        return bool(np.all(x.value != 0))
    low, high = range_of(x)
    return max(low, -high) >= smallest_normal(x.dtype)


def range_of(x: Tensor) -> Range:
    """The least and the largest that elements of `x` can be which are not NaN.

    >>> import staticgrad as sg
    >>> with sg.Graph():
    ...     x = sg.input("x", (3,))
    ...     range_of(1 + x * x), range_of(sg.exp(-abs(x)))
    ((1.0, inf), (0.0, 1.0))
    """
    return _seen(x, DEEPEST)[0]


def _seen(x: Tensor, depth: int) -> tuple[Range, Tensor | None]:
    """The range of `x`, and of which tensor it is a function; None of constants."""
    x = seen_through(x)
    if isinstance(x, Constant):
        value = x.value
        known = (float(value.min()), float(value.max())) if value.size else ANYWHERE
        return known, None
    name = x.op.name
    if depth > 0 and name in UNARY:
        inside, base = _seen(x.inputs[0], depth - 1)
        return UNARY[name](*inside), base
    if depth > 0 and name in BINARY:
        (left, one), (right, other) = (_seen(part, depth - 1) for part in x.inputs)
        if one is None or other is None or one is other:
            square = name == "multiply" and x.inputs[0] is x.inputs[1]
            found = _square(*left) if square else BINARY[name](left, right)
            return found, other if one is None else one
    return ANYWHERE, x


def _square(low: float, high: float) -> Range:
    return 0.0, max(low * low, high * high)


def _times(left: Range, right: Range) -> Range:
    ends = [0.0 if 0.0 in (a, b) else a * b for a in left for b in right]
    return min(ends), max(ends)


def _exp(_low: float, high: float) -> Range:
    return (0.0, math.exp(high)) if high < MOST_EXPONENT else ANYWHERE


def _expm1(_low: float, high: float) -> Range:
    return (-1.0, math.exp(high)) if high < MOST_EXPONENT else ANYWHERE


def _sqrt(low: float, high: float) -> Range:
    return (math.sqrt(low), math.sqrt(high)) if low > 0 else ANYWHERE


def _rsqrt(low: float, _high: float) -> Range:
    return (0.0, 1 / math.sqrt(low)) if low > 0 else ANYWHERE


UNARY: dict[str, Callable[[float, float], Range]] = {
    "negative": lambda low, high: (-high, -low),
    "absolute": lambda low, high: (0.0, max(-low, high)),
    "sigmoid": lambda low, high: (0.0, 1.0),
    "tanh": lambda low, high: (-1.0, 1.0),
    "sin": lambda low, high: (-1.0, 1.0),
    "cos": lambda low, high: (-1.0, 1.0),
    "erf": lambda low, high: (-1.0, 1.0),
    "exp": _exp,
    "expm1": _expm1,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
}
BINARY: dict[str, Callable[[Range, Range], Range]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "subtract": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "multiply": _times,
}
