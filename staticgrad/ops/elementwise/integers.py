"""Integers as bits, shifts, and the greatest common divisor.

Shifts by the width of the dtype or more, or by a negative number, give 0, or -1 for a
negative number that is shifted right, as in NumPy. None has a derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Op, Sample
from staticgrad.ir.types import BOOL, kind_of
from staticgrad.ops.elementwise.arithmetic import absolute, small_if_bool
from staticgrad.ops.elementwise.division import floor_divide
from staticgrad.ops.elementwise.logic import (
    LOGICAL_AND,
    LOGICAL_NOT,
    LOGICAL_OR,
    LOGICAL_XOR,
)
from staticgrad.ops.examples import integer_pairs, unary_integers
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted
from staticgrad.ops.rules import dtype_error, elementwise


def _pair(
    name: str,
    numpy: Callable[..., Any],
    samples: Callable[[], list[Sample]] = integer_pairs,
    cost: int = 1,
) -> Op:
    return elementwise(name, "iu", numpy, samples=samples, cost=cost)


def _shift_samples() -> list[Sample]:
    counts = np.array([[0], [1], [3], [7], [8], [31], [63], [100], [-1]])
    values = np.array([0, 1, -1, 5, 127, -128])
    unsigned = np.abs(counts), np.abs(values)
    return [
        *(Sample((values.astype(d), counts.astype(d))) for d in ("int8", "int64")),
        *(Sample((unsigned[1].astype(d), unsigned[0].astype(d))) for d in ("uint32",)),
        Sample((np.zeros((0, 3), "int32"), np.ones(3, "int32"))),
    ]


def _gcd_samples() -> list[Sample]:
    a = np.array([0, 12, -18, 35, 1, 100, -128])
    return [
        *(Sample((a.astype(d), a[:, None].astype(d))) for d in ("int8", "int64")),
        Sample((np.abs(a).astype("uint32"), np.uint32(36) + np.zeros(7, "uint32"))),
        Sample((np.zeros((0, 3), "int32"), np.ones(3, "int32"))),
    ]


BITWISE_AND = _pair("bitwise_and", np.bitwise_and)
BITWISE_OR = _pair("bitwise_or", np.bitwise_or)
BITWISE_XOR = _pair("bitwise_xor", np.bitwise_xor)
LEFT_SHIFT = _pair("left_shift", np.left_shift, _shift_samples)
RIGHT_SHIFT = _pair("right_shift", np.right_shift, _shift_samples)
GCD = _pair("gcd", np.gcd, _gcd_samples, cost=100)
INVERT = elementwise("invert", "iu", np.invert, samples=unary_integers, inputs=1)


def _bits(name: str, op: Op, logical: Op, *values: ArrayLike) -> Tensor:
    """Apply `op` to integers, `logical` to bools; DTypeError for floats."""
    tensors = promoted(*values)
    if tensors[0].dtype == BOOL:
        return apply(logical, *tensors)
    if kind_of(tensors[0].dtype) == "f":
        given = [as_tensor(value) for value in values]
        raise dtype_error(name, given, "integers or bools", "cast with .astype")
    return apply(op, *tensors)


def bitwise_and(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 & x2`` of integers or bools.

    >>> import staticgrad as sg
    >>> sg.compile(sg.bitwise_and([12, 7], 6), target="reference")()
    array([4, 6])
    """
    return _bits("bitwise_and", BITWISE_AND, LOGICAL_AND, x1, x2)


def bitwise_or(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 | x2`` of integers or bools.

    >>> import staticgrad as sg
    >>> sg.compile(sg.bitwise_or([12, 7], 6), target="reference")()
    array([14,  7])
    """
    return _bits("bitwise_or", BITWISE_OR, LOGICAL_OR, x1, x2)


def bitwise_xor(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 ^ x2`` of integers or bools.

    >>> import staticgrad as sg
    >>> sg.compile(sg.bitwise_xor([True, False], True), target="reference")()
    array([False,  True])
    """
    return _bits("bitwise_xor", BITWISE_XOR, LOGICAL_XOR, x1, x2)


def invert(x: ArrayLike) -> Tensor:
    """Return ``~x`` of integers or bools.

    >>> import staticgrad as sg
    >>> sg.compile(sg.invert([True, False]), target="reference")()
    array([False,  True])
    """
    return _bits("invert", INVERT, LOGICAL_NOT, x)


def left_shift(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 << x2``; 0 for shifts by the width of the dtype or more.

    >>> import staticgrad as sg
    >>> sg.compile(sg.left_shift([1, 3], 4), target="reference")()
    array([16, 48])
    """
    return _shifted("left_shift", LEFT_SHIFT, x1, x2)


def right_shift(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 >> x2``, an arithmetic shift; 0 or -1 for the width or more.

    >>> import staticgrad as sg
    >>> sg.compile(sg.right_shift([16, -16], 2), target="reference")()
    array([ 4, -4])
    """
    return _shifted("right_shift", RIGHT_SHIFT, x1, x2)


def gcd(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the greatest common divisor of integers, 0 of two zeros.

    >>> import staticgrad as sg
    >>> sg.compile(sg.gcd([12, 7], 18), target="reference")()
    array([6, 1])
    """
    return _shifted("gcd", GCD, x1, x2)


def lcm(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the least common multiple of integers, 0 where one is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.lcm([4, 7], 6), target="reference")()
    array([12, 42])
    """
    x, y = promoted(x1, x2)
    return absolute(floor_divide(x, gcd(x, y)) * y)


def _shifted(name: str, op: Op, x1: ArrayLike, x2: ArrayLike) -> Tensor:
    tensors = small_if_bool(*promoted(x1, x2))
    if kind_of(tensors[0].dtype) == "f":
        given = as_tensor(x1), as_tensor(x2)
        raise dtype_error(name, given, "integers", "cast with .astype")
    return apply(op, *tensors)


__all__ = [
    "bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "invert", "lcm", "left_shift",
    "right_shift",
]  # fmt: skip
