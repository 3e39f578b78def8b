"""Signs and parts of numbers: trunc, modf, copysign, signbit, fmod, fmax, fmin, ldexp.

Kinks: copysign has the derivative of absolute, 0 at 0; fmax and fmin that of maximum
and minimum, half at a tie. fmod's derivative in the divisor is minus the quotient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Sample
from staticgrad.ir.types import BOOL, INT64, is_float, largest
from staticgrad.ops import examples
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.arithmetic import sign, small_if_bool
from staticgrad.ops.elementwise.choice import maximum, minimum, where
from staticgrad.ops.elementwise.compare import ISINF, ISNAN
from staticgrad.ops.elementwise.division import (
    division_samples,
    floor_divide,
    remainder,
)
from staticgrad.ops.elementwise.exponentials import exp2
from staticgrad.ops.elementwise.functions import RINT, rounded, rounding
from staticgrad.ops.examples import SPECIAL, pairs
from staticgrad.ops.promotion import ArrayLike, as_tensor, floats, promoted
from staticgrad.ops.rules import elementwise

TRUNC = rounding("trunc", np.trunc)


def _copysign_vjp(
    g: Tensor, z: Tensor, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Differentiate copysign: dz/dx = sign(x) sign(y); no gradient to y."""
    return g * (sign(x) * apply(COPYSIGN, as_tensor(1, x), y)), None


COPYSIGN = elementwise(
    "copysign", "f", np.copysign, vjp=_copysign_vjp, samples=lambda: pairs(-3.0, 3.0)
)
SIGNBIT = elementwise(
    "signbit",
    "f",
    np.signbit,
    samples=lambda: [
        Sample(s.args, grad=False)
        for s in examples.unary(-3, 3, (*SPECIAL, -float("nan")))()
    ],
    inputs=1,
    result=BOOL,
)


def _fmod_vjp(g: Tensor, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate ``z = x - y trunc(x / y)``, whose whole quotient is (x - z) / y."""
    return g, -g * apply(RINT, (x - z) / y)


FMOD = elementwise(
    "fmod", "iuf", np.fmod, vjp=_fmod_vjp, samples=division_samples, cost=8
)


def trunc(x: ArrayLike) -> Tensor:
    """Truncate ``x`` towards 0.

    Integers stay as they are. The derivative is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.trunc([1.7, -1.7]), target="reference")()
    array([ 1., -1.], dtype=float32)
    """
    return rounded(TRUNC, x)


def fix(x: ArrayLike) -> Tensor:
    """Return the same as `trunc`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.fix([1.7, -1.7]), target="reference")()
    array([ 1., -1.], dtype=float32)
    """
    return trunc(x)


def modf(x: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return the fraction and the whole part of x, both with its sign.

    >>> import staticgrad as sg
    >>> sg.compile(sg.modf([1.75, -1.75]), target="reference")()
    (array([ 0.75, -0.75], dtype=float32), array([ 1., -1.], dtype=float32))
    """
    (value,) = floats(x)
    whole = apply(TRUNC, value)
    fraction = where(apply(ISINF, value), 0, value - whole)
    return where(fraction == 0, apply(COPYSIGN, fraction * 0, value), fraction), whole


def copysign(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``|x1|`` with the sign of x2, also of -0.0; no gradient to x2.

    >>> import staticgrad as sg
    >>> sg.compile(sg.copysign([1.0, -2.0], [-0.0, 1.0]), target="reference")()
    array([-1.,  2.], dtype=float32)
    """
    return apply(COPYSIGN, *floats(x1, x2))


def signbit(x: ArrayLike) -> Tensor:
    """Return True where x is negative, -0.0 included.

    >>> import staticgrad as sg
    >>> sg.compile(sg.signbit([1.0, -0.0]), target="reference")()
    array([False,  True])
    """
    tensor = as_tensor(x)
    return apply(SIGNBIT, tensor) if is_float(tensor.dtype) else tensor < 0


def fmod(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 - trunc(x1 / x2) * x2``, with the sign of x1; C's ``%``.

    >>> import staticgrad as sg
    >>> sg.compile(sg.fmod([7, -7], 3), target="reference")()
    array([ 1, -1])
    """
    return apply(FMOD, *promoted(*small_if_bool(x1, x2)))


def divmod(x1: ArrayLike, x2: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return ``floor_divide(x1, x2)`` and ``remainder(x1, x2)``.

    >>> import staticgrad as sg
    >>> sg.compile(sg.divmod([7, -7], 3), target="reference")()
    (array([ 2, -3]), array([1, 2]))
    """
    return floor_divide(x1, x2), remainder(x1, x2)


def fmax(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the larger of two, or the other one where one is NaN.

    Ties share the gradient.

    >>> import staticgrad as sg
    >>> sg.compile(sg.fmax([1.0, float("nan")], 0.5), target="reference")()
    array([1. , 0.5], dtype=float32)
    """
    return _ignoring_nan(maximum, x1, x2)


def fmin(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the smaller of two, or the other one where one is NaN.

    Ties share the gradient.

    >>> import staticgrad as sg
    >>> sg.compile(sg.fmin([1.0, float("nan")], 0.5), target="reference")()
    array([0.5, 0.5], dtype=float32)
    """
    return _ignoring_nan(minimum, x1, x2)


def _ignoring_nan(
    choose: Callable[[Tensor, Tensor], Tensor], x1: ArrayLike, x2: ArrayLike
) -> Tensor:
    x, y = promoted(x1, x2)
    if not is_float(x.dtype):
        return choose(x, y)
    first, second = where(apply(ISNAN, x), y, x), where(apply(ISNAN, y), x, y)
    return choose(first, second)


def ldexp(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 * 2 ** x2`` for whole x2.

    >>> import staticgrad as sg
    >>> sg.compile(sg.ldexp([1.0, 3.0], [4, -1]), target="reference")()
    array([16. ,  1.5], dtype=float32)
    """
    (value,) = floats(x1)
    power = cast(as_tensor(x2), INT64)
    most = math.frexp(largest(value.dtype))[1] - 2
    steps: list[Tensor] = []
    for _ in range(3):  # finite nonzero powers; more change nothing
        steps.append(minimum(maximum(power, -most), most))
        power = power - steps[-1]
    for step in reversed(steps):  # the largest last: subnormals are rounded once
        value = value * exp2(cast(step, value.dtype))
    return value


def real(x: ArrayLike) -> Tensor:
    """Return `x`: all numbers are real.

    >>> import staticgrad as sg
    >>> print(sg.real([1.0, 2.0]).type)
    float32[2]
    """
    return as_tensor(x)


def imag(x: ArrayLike) -> Tensor:
    """Return zeros like `x`: all numbers are real.

    >>> import staticgrad as sg
    >>> sg.compile(sg.imag([1.0, 2.0]), target="reference")()
    array([0., 0.], dtype=float32)
    """
    tensor = as_tensor(x)
    return where(tensor == tensor, as_tensor(0, tensor), as_tensor(0, tensor))


def conjugate(x: ArrayLike) -> Tensor:
    """Return `x`: all numbers are real.

    >>> import staticgrad as sg
    >>> print(sg.conjugate([1.0, 2.0]).type)
    float32[2]
    """
    return as_tensor(x)


__all__ = [
    "conjugate", "copysign", "divmod", "fix", "fmax", "fmin", "fmod", "imag", "ldexp",
    "modf", "real", "signbit", "trunc",
]  # fmt: skip
