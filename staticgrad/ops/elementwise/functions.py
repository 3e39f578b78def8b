"""Functions of one float: exponentials, logarithms, roots, sin, cos, rounding.

Integers become floats first, as in NumPy. Where a derivative is infinite or the value
is NaN (log and sqrt at 0 and below, exp where it overflows), a cotangent of 0 stays 0,
so a branch that ``where`` masks out never poisons a gradient (guarded.py); an unmasked
sqrt at 0 has the derivative inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Amp, Op, Sample
from staticgrad.ir.types import FLOAT64, is_float, kind_of
from staticgrad.ops.examples import SPECIAL, unary
from staticgrad.ops.guarded import guarded_divide, guarded_multiply
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor, floats
from staticgrad.ops.rules import elementwise
from staticgrad.ops.value_ranges import (
    Range,
    exponential,
    exponential_less_one,
    inverse_root,
    root,
    within,
)

Array = npt.NDArray[Any]
TINY_TO_HUGE = (*SPECIAL, 88.0, 89.0, 100.0, -87.0, -104.0, 709.0, 710.0, -745.0)


def elementary(
    name: str,
    numpy: Callable[[Array], Array],
    derivative: Callable[[Tensor, Tensor, Tensor], Tensor],
    samples: Callable[[], list[Sample]],
    cost: int = 20,
    amp: Amp = "given",
    interval: Callable[[Range], Range] | None = None,
) -> Op:
    """Return an op of one float; ``derivative(g, y, x)`` is the cotangent of x."""
    return elementwise(
        name,
        "f",
        numpy,
        vjp=lambda g, y, x: (derivative(g, y, x),),
        samples=samples,
        cost=cost,
        inputs=1,
        amp=amp,
        interval=interval,
    )


def rounding(name: str, numpy: Callable[[Array], Array]) -> Op:
    """Return an op that rounds floats to whole numbers."""
    return elementwise(
        name,
        "f",
        numpy,
        samples=unary(-3, 3, (*SPECIAL, 1.5, 2.5, -1.5, -0.3, 2.0**52 + 1)),
        inputs=1,
    )


def _sigmoid(x: Array) -> Array:
    """Compute 1 / (1 + exp(-x)) as (x >= 0 ? 1 : z) / (1 + z), z = exp(-|x|)."""
    z = np.exp(-np.abs(x))
    one = np.ones((), x.dtype)
    return np.where(np.isnan(x), x, np.where(x >= 0, one, z) / (one + z))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _erf(x: Array) -> Array:
    wide = np.vectorize(math.erf, otypes=[np.float64])(x)
    return np.asarray(wide).astype(x.dtype)


EXP = elementary(
    "exp",
    np.exp,
    lambda g, y, x: guarded_multiply(g, y),  # dy/dx = y
    unary(-3, 3, TINY_TO_HUGE),
    amp="float32",
    interval=exponential,
)
EXPM1 = elementary(
    "expm1",
    np.expm1,
    lambda g, y, x: guarded_multiply(g, y + 1),  # dy/dx = y + 1
    unary(-3, 3, TINY_TO_HUGE),
    amp="float32",
    interval=exponential_less_one,
)
LOG = elementary(
    "log",
    np.log,
    lambda g, y, x: guarded_divide(g, x),  # dy/dx = 1 / x
    unary(0.1, 3),
    amp="float32",
)
LOG1P = elementary(
    "log1p",
    np.log1p,
    lambda g, y, x: guarded_divide(g, x + 1),  # dy/dx = 1 / (1 + x)
    unary(-0.8, 3),
    amp="float32",
)
TANH = elementary(
    "tanh",
    np.tanh,
    lambda g, y, x: g * (1 - y * y),  # dy/dx = 1 - y^2
    unary(-3, 3, (*SPECIAL, 9.0, 20.0, 0.55)),
    interval=within(-1, 1),
)
SIGMOID = elementary(
    "sigmoid",
    _sigmoid,
    lambda g, y, x: g * (y * (1 - y)),  # dy/dx = y (1 - y)
    unary(-5, 5, TINY_TO_HUGE),
    interval=within(0, 1),
)
SOFTPLUS = elementary(
    "softplus",
    _softplus,
    lambda g, y, x: g * sigmoid(x),  # dy/dx = sigmoid x
    unary(-5, 5, TINY_TO_HUGE),
    cost=30,
    amp="float32",
)
ERF = elementary(
    "erf",
    _erf,
    lambda g, y, x: g * (exp(-(x * x)) * (2 / math.sqrt(math.pi))),
    unary(-3, 3),
    interval=within(-1, 1),
)
SQRT = elementary(
    "sqrt",
    np.sqrt,
    lambda g, y, x: guarded_divide(g, y + y),  # dy/dx = 1 / (2 y)
    unary(0.1, 3),
    cost=6,
    interval=root,
)
RSQRT = elementary(
    "rsqrt",
    lambda x: 1 / np.sqrt(x),
    lambda g, y, x: guarded_multiply(g, y * y * y * -0.5),  # dy/dx = -y^3 / 2
    unary(0.1, 3),
    cost=8,
    amp="float32",
    interval=inverse_root,
)
SIN = elementary(
    "sin",
    np.sin,
    lambda g, y, x: g * cos(x),  # dy/dx = cos x
    unary(-3, 3, (*SPECIAL, 1e5, 1e15, 3.0 * math.pi)),
    interval=within(-1, 1),
)
COS = elementary(
    "cos",
    np.cos,
    lambda g, y, x: -g * sin(x),  # dy/dx = -sin x
    unary(-3, 3, (*SPECIAL, 1e5, 1e15, 2.5 * math.pi)),
    interval=within(-1, 1),
)
FLOOR = rounding("floor", np.floor)
CEIL = rounding("ceil", np.ceil)
RINT = rounding("rint", np.rint)


def on_floats(op: Op, x: ArrayLike) -> Tensor:
    """Return `op` on x; integers become floats, as in NumPy."""
    return apply(op, *floats(x))


def exp(x: ArrayLike) -> Tensor:
    """Return e to the power ``x``.

    >>> import staticgrad as sg
    >>> sg.compile(sg.exp([0.0, -1000.0]), target="reference")()
    array([1., 0.], dtype=float32)
    """
    return on_floats(EXP, x)


def expm1(x: ArrayLike) -> Tensor:
    """Return ``exp(x) - 1``, exact for small x.

    >>> import staticgrad as sg
    >>> sg.compile(sg.expm1([0.0, 1e-10]), target="reference")()
    array([0.e+00, 1.e-10], dtype=float32)
    """
    return on_floats(EXPM1, x)


def log(x: ArrayLike) -> Tensor:
    """Return the natural logarithm; -inf at 0, NaN below.

    >>> import staticgrad as sg
    >>> sg.compile(sg.log([1.0, 0.0]), target="reference")()
    array([  0., -inf], dtype=float32)
    """
    return on_floats(LOG, x)


def log1p(x: ArrayLike) -> Tensor:
    """Return ``log(1 + x)``, exact for small x.

    >>> import staticgrad as sg
    >>> sg.compile(sg.log1p([0.0, 1e-10]), target="reference")()
    array([0.e+00, 1.e-10], dtype=float32)
    """
    return on_floats(LOG1P, x)


def tanh(x: ArrayLike) -> Tensor:
    """Return the hyperbolic tangent.

    >>> import staticgrad as sg
    >>> sg.compile(sg.tanh([0.0, 30.0]), target="reference")()
    array([0., 1.], dtype=float32)
    """
    return on_floats(TANH, x)


def sigmoid(x: ArrayLike) -> Tensor:
    """Return ``1 / (1 + exp(-x))``, without overflow.

    >>> import staticgrad as sg
    >>> sg.compile(sg.sigmoid([0.0, -1000.0]), target="reference")()
    array([0.5, 0. ], dtype=float32)
    """
    return on_floats(SIGMOID, x)


def softplus(x: ArrayLike) -> Tensor:
    """Return ``log(1 + exp(x))``, without overflow.

    >>> import staticgrad as sg
    >>> sg.compile(sg.softplus([0.0, 1000.0]), target="reference")()
    array([6.931472e-01, 1.000000e+03], dtype=float32)
    """
    return on_floats(SOFTPLUS, x)


def erf(x: ArrayLike) -> Tensor:
    """Return the error function.

    It is ``2 / sqrt(pi)`` times the integral of exp(-t^2) from 0 to x.

    >>> import staticgrad as sg
    >>> sg.compile(sg.erf([0.0, 10.0]), target="reference")()
    array([0., 1.], dtype=float32)
    """
    return on_floats(ERF, x)


def sqrt(x: ArrayLike) -> Tensor:
    """Return the square root; NaN below 0. Its derivative at 0 is inf, and 0 if masked.

    >>> import staticgrad as sg
    >>> sg.compile(sg.sqrt([4, 9]), target="reference")()
    array([2., 3.])
    """
    return on_floats(SQRT, x)


def rsqrt(x: ArrayLike) -> Tensor:
    """Return ``1 / sqrt(x)``; inf at 0, NaN below.

    >>> import staticgrad as sg
    >>> sg.compile(sg.rsqrt([4.0, 0.0]), target="reference")()
    array([0.5, inf], dtype=float32)
    """
    return on_floats(RSQRT, x)


def sin(x: ArrayLike) -> Tensor:
    """Return the sine of x in radians.

    >>> import staticgrad as sg
    >>> sg.compile(sg.sin([0.0]), target="reference")()
    array([0.], dtype=float32)
    """
    return on_floats(SIN, x)


def cos(x: ArrayLike) -> Tensor:
    """Return the cosine of x in radians.

    >>> import staticgrad as sg
    >>> sg.compile(sg.cos([0.0]), target="reference")()
    array([1.], dtype=float32)
    """
    return on_floats(COS, x)


def rounded(op: Op, x: ArrayLike) -> Tensor:
    """Return `op`, a rounding, on floats; integers stay as they are."""
    tensor = as_tensor(x)
    return apply(op, tensor) if is_float(tensor.dtype) else tensor


def floor(x: ArrayLike) -> Tensor:
    """Return the largest whole number <= x.

    Integers stay as they are. The derivative is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.floor([1.7, -1.2]), target="reference")()
    array([ 1., -2.], dtype=float32)
    """
    return rounded(FLOOR, x)


def ceil(x: ArrayLike) -> Tensor:
    """Return the smallest whole number >= x.

    Integers stay as they are. The derivative is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.ceil([1.7, -1.2]), target="reference")()
    array([ 2., -1.], dtype=float32)
    """
    return rounded(CEIL, x)


def rint(x: ArrayLike) -> Tensor:
    """Return the nearest whole number, halves to even. The derivative is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.rint([0.5, 1.5, 1.7]), target="reference")()
    array([0., 2., 2.], dtype=float32)
    """
    return apply(RINT, *floats(x))


def round(a: ArrayLike, decimals: int = 0) -> Tensor:
    """Return `a` to `decimals` places, halves to even.

    With negative `decimals` to tens, hundreds and so on, integers as well, in float64
    as in NumPy; otherwise integers stay as they are.

    >>> import staticgrad as sg
    >>> sg.compile(sg.round([0.125, 2.675], 2), target="reference")()
    array([0.12, 2.68], dtype=float32)
    >>> sg.compile(sg.round([14, 25, -35], -1), target="reference")()
    array([ 10,  20, -40])
    """
    tensor = as_tensor(a)
    if is_float(tensor.dtype):
        return _rounded_to(tensor, decimals)
    if decimals >= 0 or kind_of(tensor.dtype) == "b":
        return tensor
    near = _rounded_to(named("cast", tensor, dtype=FLOAT64), decimals)
    return named("cast", near, dtype=tensor.dtype)


def _rounded_to(x: Tensor, decimals: int) -> Tensor:
    if decimals == 0:
        return apply(RINT, x)
    scale = 10.0 ** abs(decimals)
    if decimals > 0:
        return apply(RINT, x * scale) / scale
    return apply(RINT, x / scale) * scale


__all__ = [
    "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "rint", "round",
    "rsqrt", "sigmoid", "sin", "softplus", "sqrt", "tanh",
]  # fmt: skip
