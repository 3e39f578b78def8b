"""Elementary functions through the C library, for processors without FMA.

Without a hardware FMA every ``llvm.fma`` would be a library call of its own (8-19 ns an
element), so there the functions of libm are called instead: one call per element, no
vectorisation, errors below one unit in the last place, C99's special values.
"""

from __future__ import annotations

from llvmlite import ir

from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value, declared


def call(name: str, m: IREmitter, *args: Value) -> Value:
    """Call libm's `name` (`name` + "f" for float32)."""
    full = m.pick(f"{name}f", name)
    kind = ir.FunctionType(m.type, [m.type] * len(args))
    return m.b.call(declared(m.b.module, full, kind), args)


def sigmoid(m: IREmitter, x: Value) -> Value:
    """Emit 1 / (1 + exp(-x)), from exp(-|x|), which cannot overflow."""
    z = call("exp", m, m.neg(m.abs(x)))
    top = m.select(m.compare(">=", x, 0.0), 1.0, z)
    return m.div(top, m.add(z, 1.0))


def softplus(m: IREmitter, x: Value) -> Value:
    """Emit log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    z = call("exp", m, m.neg(m.abs(x)))
    return m.add(m.at_least(x, 0.0), call("log1p", m, z))
