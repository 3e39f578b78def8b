"""The table of elementary functions: name -> emitter, chosen for the processor.

Every entry takes an Emitter and values and returns a value. With a hardware FMA they
are staticgrad's own, which vectorise; without, libm's.
"""

from __future__ import annotations

from collections.abc import Callable

from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.math.libm import LIBM
from staticgrad.compiler.codegen.math.vector_error import erfc, erfinv, gelu
from staticgrad.compiler.codegen.math.vector_exponential import (
    erf,
    exp,
    exp2,
    expm1,
    sigmoid,
    tanh,
)
from staticgrad.compiler.codegen.math.vector_gamma import digamma, lgamma, zeta
from staticgrad.compiler.codegen.math.vector_hyperbolic import (
    acosh,
    asinh,
    atanh,
    cosh,
    sinh,
)
from staticgrad.compiler.codegen.math.vector_inverse import acos, asin, atan, atan2
from staticgrad.compiler.codegen.math.vector_logarithm import (
    log,
    log1p,
    log2,
    log10,
    power,
    softplus,
)
from staticgrad.compiler.codegen.math.vector_roots import cbrt, hypot, rsqrt, sqrt
from staticgrad.compiler.codegen.math.vector_trigonometry import (
    cos,
    cos_any,
    sin,
    sin_any,
    tan,
    tan_any,
)
from staticgrad.compiler.codegen.random.gamma_ir import gamma_slope
from staticgrad.compiler.host.processor import has_fma

_EVERYWHERE: dict[str, Callable[..., Value]] = {
    "sqrt": sqrt,
    "rsqrt": rsqrt,
    "gelu": gelu,
    "erfinv": erfinv,
    "digamma": digamma,
    "zeta": zeta,
    "gamma_slope": gamma_slope,
}
"""What libm does not have; without a hardware FMA these are right but slow."""

VECTOR: dict[str, Callable[..., Value]] = {
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "log": log,
    "log2": log2,
    "log10": log10,
    "log1p": log1p,
    "softplus": softplus,
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
    "sigmoid": sigmoid,
    "erf": erf,
    "erfc": erfc,
    "lgamma": lgamma,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "sin_any": sin_any,
    "cos_any": cos_any,
    "tan_any": tan_any,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "atan2": atan2,
    "cbrt": cbrt,
    "hypot": hypot,
    "power": power,
}


def functions() -> dict[str, Callable[..., Value]]:
    """The elementary functions for the processor that Numba compiles for."""
    return _EVERYWHERE | (VECTOR if has_fma() else LIBM)
