"""Division: / // % and 1 / x.

Integer division by zero gives 0, as NumPy's does; ``x / y`` of integers is a float64.
"""

from __future__ import annotations

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Sample
from staticgrad.ir.types import is_float
from staticgrad.ops.elementwise.arithmetic import binary, small_if_bool
from staticgrad.ops.examples import integer_pairs, pairs
from staticgrad.ops.guarded import guarded_divide, guarded_multiply
from staticgrad.ops.promotion import ArrayLike, promoted, quotients
from staticgrad.ops.rules import dtype_error, elementwise


def _divide_vjp(g: Tensor, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate a quotient: dz/dx = 1 / y; dz/dy = -z / y."""
    dx = guarded_divide(g, y)
    return dx, -guarded_multiply(dx, z)


DIVIDE = elementwise(
    "divide", "f", np.divide, vjp=_divide_vjp, samples=lambda: pairs(-3.0, 3.0), cost=4
)


def division_samples() -> list[Sample]:
    """Return samples of division; near whole quotients there is no derivative."""
    x, y = np.array([[5.3, -5.3], [7.9, 0.4]]), np.array([2.1, -0.7])
    exact = np.array([1.0, -1.0, 6.0, -6.0, 0.0, -0.0, 5.5])
    by = np.array([0.1, 0.1, 3.0, 3.0, 2.0, 2.0, -2.0])
    finite = np.array(
        [(a, b) for a in exact for b in (0.0, -0.0, 2.0, np.inf, -np.inf)]
    )
    return [
        Sample((x, y)),
        Sample((x, y[0])),
        Sample((exact, by), grad=False),
        Sample((exact.astype("float32"), by.astype("float32")), grad=False),
        Sample((finite[:, 0].copy(), finite[:, 1].copy()), grad=False),
        Sample(
            (np.array([np.nan, np.inf, 1.0]), np.array([1.0, 2.0, np.nan])), grad=False
        ),
        Sample((np.zeros((0, 3)), np.ones(3))),
        *integer_pairs(),
    ]


FLOOR_DIVIDE = elementwise(
    "floor_divide", "iuf", np.floor_divide, samples=division_samples, cost=8
)


REMAINDER = elementwise(
    "remainder",
    "iuf",
    np.remainder,
    vjp=lambda g, z, x, y: (g, -g * apply(FLOOR_DIVIDE, x, y)),
    samples=division_samples,
    cost=8,
)


def divide(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 / x2``, element by element; a float64 if both are integers or bools.

    Where a masked-out division by zero has the cotangent 0, its gradient is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.divide([1, 2], 4), target="reference")()
    array([0.25, 0.5 ])
    """
    return apply(DIVIDE, *quotients(x1, x2))


def true_divide(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the same as `divide`.

    >>> import staticgrad as sg
    >>> print(sg.true_divide(1, [2, 3]).type)
    float64[2]
    """
    return divide(x1, x2)


def floor_divide(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the largest whole number <= ``x1 / x2``; of integers, 0 where x2 is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.floor_divide([7, -7], 2), target="reference")()
    array([ 3, -4])
    """
    return binary(FLOOR_DIVIDE, *small_if_bool(x1, x2))


def remainder(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 - floor_divide(x1, x2) * x2``, with the sign of x2; Python's ``%``.

    >>> import staticgrad as sg
    >>> sg.compile(sg.remainder([7, -7], 3), target="reference")()
    array([1, 2])
    """
    return binary(REMAINDER, *small_if_bool(x1, x2))


def reciprocal(x: ArrayLike) -> Tensor:
    """Return ``1 / x`` of floats.

    >>> import staticgrad as sg
    >>> sg.compile(sg.reciprocal([2.0, 4.0]), target="reference")()
    array([0.5 , 0.25], dtype=float32)
    """
    (value,) = promoted(x)
    if not is_float(value.dtype):
        advice = "cast it first: the reciprocal of an integer is 0, 1 or -1"
        raise dtype_error("reciprocal", (value,), "a floating-point dtype", advice)
    return divide(1, value)


__all__ = ["divide", "floor_divide", "reciprocal", "remainder", "true_divide"]
