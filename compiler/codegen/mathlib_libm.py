"""The elementary functions through the C library, for processors without FMA.

Without a hardware FMA every ``llvm.fma`` would be a library call of its own (8-19 ns an
element), so there the functions of libm are called instead: one call per element, no
vectorisation, errors below one unit in the last place, C99's special values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llvmlite import ir

from staticgrad.compiler.codegen.emitter import Emitter, Value, declared


def call(name: str, m: Emitter, *args: Value) -> Value:
    """Libm's `name` (`name` + "f" for float32)."""
    full = m.pick(f"{name}f", name)
    kind = ir.FunctionType(m.type, [m.type] * len(args))
    return m.b.call(declared(m.b.module, full, kind), args)


def sigmoid(m: Emitter, x: Value) -> Value:
    """1 / (1 + exp(-x)), from exp(-|x|), which cannot overflow."""
    z = call("exp", m, m.neg(m.abs(x)))
    top = m.select(m.compare(">=", x, 0.0), 1.0, z)
    return m.div(top, m.add(z, 1.0))


LIBM: dict[str, Callable[..., Value]] = {
    "exp": partial(call, "exp"),
    "expm1": partial(call, "expm1"),
    "log": partial(call, "log"),
    "log1p": partial(call, "log1p"),
    "tanh": partial(call, "tanh"),
    "sigmoid": sigmoid,
    "erf": partial(call, "erf"),
    "sin": partial(call, "sin"),
    "cos": partial(call, "cos"),
    "sin_any": partial(call, "sin"),
    "cos_any": partial(call, "cos"),
    "power": partial(call, "pow"),
}
