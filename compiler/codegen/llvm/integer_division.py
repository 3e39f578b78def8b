"""Division, remainder and integer powers, without traps or exceptions.

Integers: a zero divisor gives 0, as in NumPy; the least integer divided by -1 gives
itself (the processor would raise SIGFPE for both). Floats: ``divide`` is one
instruction; floor_divide and remainder follow NumPy's definition by fmod.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from staticgrad.compiler.codegen.llvm.conversions import is_float, is_signed, simple
from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value
from staticgrad.compiler.codegen.scalar_functions import table


def _divide(b: Any, _kind: Any, x: Value, y: Value) -> Value:
    return b.fdiv(x, y)


def _safe_divisor(b: Any, kind: Any, x: Value, y: Value) -> tuple[Value, Value]:
    """Return a divisor that cannot trap, and whether y is zero."""
    one = ir.Constant(y.type, 1)
    zero = b.icmp_unsigned("==", y, ir.Constant(y.type, 0))
    bad = zero
    if is_signed(kind):
        least = ir.Constant(x.type, -(1 << (x.type.width - 1)))
        minus = b.icmp_signed("==", y, ir.Constant(y.type, -1))
        bad = b.or_(zero, b.and_(b.icmp_signed("==", x, least), minus))
    return b.select(bad, one, y), zero


def _floor_divide(b: Any, kind: Any, x: Value, y: Value) -> Value:
    if is_float(kind):
        return _float_divmod(b, x, y)[0]
    divisor, zero = _safe_divisor(b, kind, x, y)
    quotient = b.udiv(x, divisor)
    if is_signed(kind):
        quotient = b.sdiv(x, divisor)
        rest = b.sub(x, b.mul(quotient, divisor))
        quotient = b.sub(quotient, b.zext(_below(b, rest, divisor), x.type))
    return b.select(zero, ir.Constant(x.type, 0), quotient)


def _remainder(b: Any, kind: Any, x: Value, y: Value) -> Value:
    if is_float(kind):
        return _float_divmod(b, x, y)[1]
    divisor, zero = _safe_divisor(b, kind, x, y)
    rest = b.urem(x, divisor)
    if is_signed(kind):
        rest = b.srem(x, divisor)
        rest = b.select(_below(b, rest, divisor), b.add(rest, divisor), rest)
    return b.select(zero, ir.Constant(x.type, 0), rest)


def _fmod(b: Any, kind: Any, x: Value, y: Value) -> Value:
    """Return the remainder of truncated division, with the sign of x."""
    if is_float(kind):
        return b.frem(x, y)
    divisor, zero = _safe_divisor(b, kind, x, y)
    rest = (b.srem if is_signed(kind) else b.urem)(x, divisor)
    return b.select(zero, ir.Constant(x.type, 0), rest)


def _gcd(b: Any, kind: Any, x: Value, y: Value) -> Value:
    """Run Euclid's algorithm on unsigned magnitudes, which the least integer fits."""
    zero = ir.Constant(x.type, 0)
    if is_signed(kind):
        x, y = (b.select(b.icmp_signed("<", v, zero), b.neg(v), v) for v in (x, y))
    before = b.block
    loop, step = b.append_basic_block("gcd"), b.append_basic_block("gcd_step")
    after = b.append_basic_block("gcd_end")
    b.branch(loop)
    b.position_at_end(loop)
    larger, smaller = b.phi(x.type), b.phi(x.type)
    b.cbranch(b.icmp_unsigned("!=", smaller, zero), step, after)
    b.position_at_end(step)
    rest = b.urem(larger, smaller)
    b.branch(loop)
    for phi, first, again in ((larger, x, smaller), (smaller, y, rest)):
        phi.add_incoming(first, before)
        phi.add_incoming(again, step)
    b.position_at_end(after)
    return larger


def _below(b: Any, rest: Value, divisor: Value) -> Value:
    """Whether truncation rounded up: the remainder's sign is not the divisor's."""
    zero = ir.Constant(rest.type, 0)
    differ = b.icmp_signed("<", b.xor(rest, divisor), zero)
    return b.and_(b.icmp_unsigned("!=", rest, zero), differ)


def _float_divmod(b: Any, x: Value, y: Value) -> tuple[Value, Value]:
    """Return (floor(x / y), x - y floor(x / y)) with the signs of npy_divmod."""
    m = IREmitter(b, x.type)
    rest = b.frem(x, y)
    plain = m.div(m.sub(x, rest), y)
    differ = b.xor(m.lt(rest, 0.0), m.lt(y, 0.0))
    moved = b.and_(m.compare_or_nan("!=", rest, 0.0), differ)
    quotient = m.select(moved, m.sub(plain, 1.0), plain)
    remainder = m.select(moved, m.add(rest, y), rest)
    remainder = m.select(m.eq(rest, 0.0), m.copysign(0.0, y), remainder)
    floor = m.llvm("floor", quotient)
    near = m.gt(m.sub(quotient, floor), 0.5)
    rounded = m.select(near, m.add(floor, 1.0), floor)
    zero = m.copysign(0.0, m.div(x, y))
    rounded = m.select(m.eq(quotient, 0.0), zero, rounded)
    by_zero = m.eq(y, 0.0)
    return m.select(by_zero, m.div(x, y), rounded), m.select(by_zero, rest, remainder)


def _ipower(b: Any, kind: Any, x: Value, y: Value) -> Value:
    """Compute ``x ** y`` by squaring; a negative y gives 1 / x ** -y, truncated."""
    power = _power_loop(b, x, y)
    if not is_signed(kind):
        return power
    one, zero, minus = (ir.Constant(x.type, n) for n in (1, 0, -1))
    odd = b.icmp_unsigned("!=", b.and_(y, one), zero)
    flipped = b.select(odd, minus, one)
    unit = b.select(b.icmp_signed("==", x, one), one, zero)
    inverse = b.select(b.icmp_signed("==", x, minus), flipped, unit)
    return b.select(b.icmp_signed("<", y, zero), inverse, power)


def _power_loop(b: Any, x: Value, y: Value) -> Value:
    one, zero = ir.Constant(x.type, 1), ir.Constant(x.type, 0)
    before = b.block
    loop = b.append_basic_block("power")
    after = b.append_basic_block("power_end")
    b.branch(loop)
    b.position_at_end(loop)
    total, base, left = b.phi(x.type), b.phi(x.type), b.phi(x.type)
    odd = b.icmp_unsigned("!=", b.and_(left, one), zero)
    grown = b.select(odd, b.mul(total, base), total)
    square, halved = b.mul(base, base), b.lshr(left, one)
    for phi, first, again in (
        (total, one, grown),
        (base, x, square),
        (left, y, halved),
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(again, loop)
    b.cbranch(b.icmp_unsigned("!=", halved, zero), loop, after)
    b.position_at_end(after)
    return grown


DIVISION = table(
    simple("divide", 2, _divide, operations=3),
    simple("floor_divide", 2, _floor_divide),
    simple("remainder", 2, _remainder),
    simple("fmod", 2, _fmod, cuda="fmod"),
    simple("gcd", 2, _gcd),
    simple("ipower", 2, _ipower),
)
