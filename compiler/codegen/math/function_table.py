"""The elementary functions, one line each.

With a hardware FMA they are staticgrad's own, which vectorise; without, libm's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from staticgrad.compiler.codegen.llvm.conversions import elementary
from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value
from staticgrad.compiler.codegen.math import (
    c_library,
    vector_error,
    vector_exponential,
    vector_gamma,
    vector_hyperbolic,
    vector_inverse,
    vector_logarithm,
    vector_roots,
    vector_trigonometry,
)
from staticgrad.compiler.codegen.random import gamma_ir
from staticgrad.compiler.codegen.scalar_functions import (
    OWN,
    Bound,
    ScalarFunction,
    at_most_one,
    table,
    unbounded,
)
from staticgrad.compiler.host.processor import has_fma

UNMEASURED = 1  # in loops that are cut into pieces, as simple functions count


def _row(
    emit: Callable[..., Value], operations: int, *, arity: int = 1,
    libm: str | Callable[..., Value] | None = "same",
    cuda: str | None = "same", bound: Bound = unbounded, lanes: bool = False,
) -> ScalarFunction:  # fmt: skip
    """The record of a function of its emitter's name.

    `libm` is the C library's function, or what else emits it without a hardware FMA;
    None where there is none, so that what is emitted is right, but slow.
    """
    name = emit.__name__
    if isinstance(libm, str):
        own = name if libm == "same" else libm
        libm = partial(c_library.call, own)
    other = libm or emit

    def chosen(m: IREmitter, *args: Value) -> Value:
        return (emit if has_fma() else other)(m, *args)

    return ScalarFunction(
        name, partial(elementary, chosen, arity), name if cuda == "same" else cuda,
        operations, bound, chosen if lanes else None,
    )  # fmt: skip


ELEMENTARY = table(
    _row(vector_roots.sqrt, 3, libm=None, lanes=True),
    _row(vector_roots.rsqrt, 5, libm=None, lanes=True),
    _row(vector_roots.cbrt, 34),
    _row(vector_roots.hypot, UNMEASURED, arity=2),
    _row(vector_exponential.exp, 16, lanes=True),
    _row(vector_exponential.exp2, 16, lanes=True),
    _row(vector_exponential.expm1, 18, lanes=True),
    _row(vector_exponential.tanh, 24, bound=at_most_one, lanes=True),
    _row(vector_exponential.sigmoid, 18, libm=c_library.sigmoid, cuda=OWN,
         bound=at_most_one, lanes=True),
    _row(vector_exponential.erf, 26, bound=at_most_one, lanes=True),
    _row(vector_error.erfc, 36),
    _row(vector_error.erfinv, UNMEASURED, libm=None),
    _row(vector_error.gelu, 40, libm=None, cuda=OWN, lanes=True),
    _row(vector_logarithm.log, 20, lanes=True),
    _row(vector_logarithm.log2, 22, lanes=True),
    _row(vector_logarithm.log10, 24, lanes=True),
    _row(vector_logarithm.log1p, 26, lanes=True),
    _row(vector_logarithm.softplus, 38, libm=c_library.softplus, cuda=OWN,
         lanes=True),
    _row(vector_logarithm.power, 60, arity=2, libm="pow", cuda="pow"),
    _row(vector_hyperbolic.sinh, UNMEASURED, lanes=True),
    _row(vector_hyperbolic.cosh, UNMEASURED, lanes=True),
    _row(vector_hyperbolic.asinh, UNMEASURED),
    _row(vector_hyperbolic.acosh, UNMEASURED),
    _row(vector_hyperbolic.atanh, UNMEASURED),
    _row(vector_trigonometry.sin, 24, bound=at_most_one),
    _row(vector_trigonometry.cos, 24, bound=at_most_one),
    _row(vector_trigonometry.tan, 28),
    _row(vector_trigonometry.sin_any, UNMEASURED, libm="sin", cuda=None,
         bound=at_most_one),
    _row(vector_trigonometry.cos_any, UNMEASURED, libm="cos", cuda=None,
         bound=at_most_one),
    _row(vector_trigonometry.tan_any, UNMEASURED, libm="tan", cuda=None),
    _row(vector_inverse.asin, 20),
    _row(vector_inverse.acos, 26),
    _row(vector_inverse.atan, 22),
    _row(vector_inverse.atan2, 30, arity=2),
    _row(vector_gamma.lgamma, UNMEASURED),
    _row(vector_gamma.digamma, UNMEASURED, libm=None, cuda=OWN),
    _row(vector_gamma.zeta, UNMEASURED, arity=2, libm=None, cuda=OWN),
    _row(gamma_ir.gamma_slope, UNMEASURED, arity=2, libm=None, cuda=OWN),
)  # fmt: skip
"""By name. `operations` counts the emitter's own (float32); see split_bodies.py."""
