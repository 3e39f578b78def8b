"""Arithmetic: + - *, negative, absolute, sign.

Kinks: the derivative of absolute is 0 at 0, as is that of sign everywhere.
"""

from __future__ import annotations

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Op, Sample
from staticgrad.ir.types import is_float, kind_of
from staticgrad.ops import examples
from staticgrad.ops.casting import cast
from staticgrad.ops.examples import integer_pairs, pairs
from staticgrad.ops.guarded import guarded_multiply
from staticgrad.ops.promotion import ArrayLike, floats, promoted
from staticgrad.ops.rules import elementwise
from staticgrad.ops.value_ranges import product


def _pairs() -> list[Sample]:
    return [*pairs(-3.0, 3.0), *integer_pairs()]


def _all_pairs() -> list[Sample]:
    return [*_pairs(), *examples.bool_pairs()]


ADD = elementwise(
    "add",
    "biuf",
    np.add,
    vjp=lambda g, z, x, y: (g, g),
    samples=_all_pairs,
    template="{0} + {1}",
    interval=lambda x, y: (x[0] + y[0], x[1] + y[1]),
)


SUBTRACT = elementwise(
    "subtract",
    "iuf",
    np.subtract,
    vjp=lambda g, z, x, y: (g, -g),
    samples=_pairs,
    template="{0} - {1}",
    interval=lambda x, y: (x[0] - y[1], x[1] - y[0]),
)


MAY_BE_INFINITE = frozenset(("divide", "log", "log1p", "log2", "log10", "power"))
"""Ops whose result is infinite or NaN where a user masks it out by ``where``."""


def _times(g: Tensor, factor: Tensor) -> Tensor:
    """Return ``g * factor``, 0 where g is 0 if the factor may be infinite."""
    if is_float(g.dtype) and factor.op.name in MAY_BE_INFINITE:
        return guarded_multiply(g, factor)
    return g * factor


MULTIPLY = elementwise(
    "multiply",
    "biuf",
    np.multiply,
    vjp=lambda g, z, x, y: (_times(g, y), _times(g, x)),
    samples=_all_pairs,
    template="{0} * {1}",
    jvp="multilinear",
    interval=product,
)


NEGATIVE = elementwise(
    "negative",
    "iuf",
    np.negative,
    vjp=lambda g, y, x: (-g,),
    samples=lambda: [*examples.unary(-3, 3)(), *examples.unary_integers()],
    inputs=1,
    interval=lambda x: (-x[1], -x[0]),
)


ABSOLUTE = elementwise(
    "absolute",
    "biuf",
    np.absolute,
    vjp=lambda g, y, x: (g * sign(x),),
    samples=lambda: [
        *examples.unary(-3, 3)(),
        *examples.unary_integers(),
        *examples.unary_bools(),
    ],
    inputs=1,
    interval=lambda x: (0.0, max(-x[0], x[1])),
)


SIGN = elementwise(
    "sign",
    "iuf",
    np.sign,
    samples=lambda: [*examples.unary(-3, 3)(), *examples.unary_integers()],
    cost=2,
    inputs=1,
)


def binary(op: Op, x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return `op` on the promoted arguments."""
    return apply(op, *promoted(x1, x2))


def add(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 + x2``, element by element; of bools, or.

    >>> import staticgrad as sg
    >>> sg.compile(sg.add([1, 2], 3), target="reference")()
    array([4, 5])
    """
    return binary(ADD, x1, x2)


def subtract(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 - x2``, element by element; DTypeError for bools.

    >>> import staticgrad as sg
    >>> sg.compile(sg.subtract([1, 2], 3), target="reference")()
    array([-2, -1])
    """
    return binary(SUBTRACT, x1, x2)


def multiply(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 * x2``, element by element; of bools, and.

    >>> import staticgrad as sg
    >>> sg.compile(sg.multiply([1, 2], 3), target="reference")()
    array([3, 6])
    """
    return binary(MULTIPLY, x1, x2)


def negative(x: ArrayLike) -> Tensor:
    """Return ``-x``; DTypeError for bools.

    >>> import staticgrad as sg
    >>> sg.compile(sg.negative([1, -2]), target="reference")()
    array([-1,  2])
    """
    return apply(NEGATIVE, *promoted(x))


def positive(x: ArrayLike) -> Tensor:
    """Return ``+x``, a copy.

    >>> import staticgrad as sg
    >>> print(sg.positive([1, -2]).type)
    int64[2]
    """
    return promoted(x)[0]


def absolute(x: ArrayLike) -> Tensor:
    """Return ``|x|``; the derivative at 0 is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.absolute([1, -2]), target="reference")()
    array([1, 2])
    """
    return apply(ABSOLUTE, *promoted(x))


def fabs(x: ArrayLike) -> Tensor:
    """Return ``|x|`` as a float; integers become floats, as in NumPy.

    >>> import staticgrad as sg
    >>> sg.compile(sg.fabs(np.array([1, -2])), target="reference")()
    array([1., 2.])
    """
    return apply(ABSOLUTE, *floats(x))


def sign(x: ArrayLike) -> Tensor:
    """Return -1, 0 or 1 as the sign of x; NaN stays NaN; the derivative is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.sign([5, 0, -2]), target="reference")()
    array([ 1,  0, -1])
    """
    return apply(SIGN, *promoted(x))


def small_if_bool(*values: ArrayLike) -> tuple[Tensor, ...]:
    """Return promoted values; bools as int8, as NumPy's // % ** treat them."""
    tensors = promoted(*values)
    if kind_of(tensors[0].dtype) == "b":
        return tuple(cast(t, np.int8) for t in tensors)
    return tensors


__all__ = [
    "absolute", "add", "fabs", "multiply", "negative", "positive", "sign", "subtract",
]  # fmt: skip
