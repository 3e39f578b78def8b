"""The table of elementary functions: name -> emitter, chosen for the processor.

Every entry takes an Emitter and values and returns a value. With a hardware FMA they
are staticgrad's own, which vectorise; without, libm's.
"""

from __future__ import annotations

from collections.abc import Callable

from staticgrad.compiler.codegen.emitter import Emitter, Value
from staticgrad.compiler.codegen.mathlib_exponential import (
    erf,
    exp,
    expm1,
    sigmoid,
    tanh,
)
from staticgrad.compiler.codegen.mathlib_libm import LIBM
from staticgrad.compiler.codegen.mathlib_logarithm import log, log1p, power
from staticgrad.compiler.codegen.mathlib_trigonometry import (
    cos,
    cos_any,
    sin,
    sin_any,
)
from staticgrad.compiler.codegen.processor import has_fma


def sqrt(m: Emitter, x: Value) -> Value:
    """The square root, correctly rounded."""
    return m.sqrt(x)


def rsqrt(m: Emitter, x: Value) -> Value:
    """1 / sqrt(x)."""
    return m.div(1.0, m.sqrt(x))


_EXACT: dict[str, Callable[..., Value]] = {"sqrt": sqrt, "rsqrt": rsqrt}

VECTOR: dict[str, Callable[..., Value]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "erf": erf,
    "sin": sin,
    "cos": cos,
    "sin_any": sin_any,
    "cos_any": cos_any,
    "power": power,
}


def functions() -> dict[str, Callable[..., Value]]:
    """The elementary functions for the processor that Numba compiles for."""
    return _EXACT | (VECTOR if has_fma() else LIBM)
