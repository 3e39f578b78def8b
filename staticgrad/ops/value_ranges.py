"""Interval analysis: ranges of values decide which guards a gradient needs.

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
    """Return the least and largest value of elements of `x`, NaN aside.

    >>> import staticgrad as sg
    >>> with sg.Graph():
    ...     x = sg.input("x", (3,))
    ...     range_of(1 + x * x), range_of(sg.exp(-abs(x)))
    ((1.0, inf), (0.0, 1.0))
    """
    return _seen(x, DEEPEST)[0]


def _seen(x: Tensor, depth: int) -> tuple[Range, Tensor | None]:
    """Return the range of `x`, and the tensor it depends on; None for constants."""
    x = seen_through(x)
    if isinstance(x, Constant):
        value = x.value
        known = (float(value.min()), float(value.max())) if value.size else ANYWHERE
        return known, None
    interval = x.op.interval
    if depth == 0 or interval is None:
        return ANYWHERE, x
    seen = [_seen(part, depth - 1) for part in x.inputs]
    bases = {id(base): base for _, base in seen if base is not None}
    if len(bases) > 1:
        return ANYWHERE, x
    found = interval(*(known for known, _ in seen))
    if x.op.name == "multiply" and x.inputs[0] is x.inputs[1]:
        found = 0.0, found[1]  # a square
    return found, next(iter(bases.values()), None)


def within(low: float, high: float) -> Callable[[Range], Range]:
    """The interval of a function whose results lie there whatever its argument is."""
    return lambda _: (low, high)


def product(left: Range, right: Range) -> Range:
    """The interval of x * y."""
    ends = [0.0 if 0.0 in (a, b) else a * b for a in left for b in right]
    return min(ends), max(ends)


def exponential(x: Range) -> Range:
    """The interval of e to the power x."""
    return (0.0, math.exp(x[1])) if x[1] < MOST_EXPONENT else ANYWHERE


def exponential_less_one(x: Range) -> Range:
    """The interval of e to the power x, less 1."""
    return (-1.0, math.exp(x[1])) if x[1] < MOST_EXPONENT else ANYWHERE


def root(x: Range) -> Range:
    """The interval of the square root of x."""
    return (math.sqrt(x[0]), math.sqrt(x[1])) if x[0] > 0 else ANYWHERE


def inverse_root(x: Range) -> Range:
    """The interval of 1 / sqrt(x)."""
    return (0.0, 1 / math.sqrt(x[0])) if x[0] > 0 else ANYWHERE
