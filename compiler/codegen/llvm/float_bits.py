"""Floats taken apart by their bits: neighbours, fraction and exponent; bits counted.

Branch-free, as in conversions.py; subnormal numbers are right, too.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types

from staticgrad.compiler.codegen.llvm.conversions import is_signed, simple
from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value, declared
from staticgrad.compiler.codegen.scalar_functions import table

_BYTE = ir.IntType(8)


def _nextafter(b: Any, _kind: Any, x: Value, y: Value) -> Value:
    """Emit nextafter: one more or less as an integer; around 0 the least number."""
    m = IREmitter(b, x.type)
    bits = m.bits(x)
    away = b.icmp_signed("==", m.lt(x, y), m.gt(x, 0.0))
    step = b.select(away, m.whole(1), m.whole(-1))
    moved = m.from_bits(m.iadd(bits, step))
    least = m.copysign(m.from_bits(m.whole(1)), y)
    moved = m.select(m.eq(x, 0.0), least, moved)
    known = m.select(m.eq(x, y), y, moved)
    return m.select(b.fcmp_unordered("uno", x, y), m.add(x, y), known)


def _scaled(m: IREmitter, x: Value) -> tuple[Value, Value]:
    """Multiply ``x`` by 2^k if it is subnormal, which makes it normal; return k too."""
    small = m.lt(m.abs(x), 2.0 ** (2 - m.bias))
    shift = m.mantissa + 3
    value = m.select(small, m.mul(x, 2.0**shift), x)
    return value, m.b.select(small, m.whole(shift), m.whole(0))


def _split(m: IREmitter, x: Value) -> Value:
    """Test whether x has an exponent: it is not 0, infinite or NaN."""
    size = m.abs(x)
    return m.b.and_(m.gt(size, 0.0), m.lt(size, math.inf))


def _frexp_exponent(b: Any, _kind: Any, x: Value) -> Value:
    """Emit the e of ``x = f * 2^e`` with ``0.5 <= |f| < 1``; 0 where there is none."""
    m = IREmitter(b, x.type)
    value, shift = _scaled(m, x)
    biased = m.iand(m.shr(m.bits(value), m.mantissa), 2 * m.bias + 1)
    exponent = m.isub(m.isub(biased, m.whole(m.bias - 1)), shift)
    found = b.select(_split(m, x), exponent, m.whole(0))
    return found if m.is32 else b.trunc(found, ir.IntType(32))


def _frexp_fraction(b: Any, _kind: Any, x: Value) -> Value:
    """Emit the f of ``x = f * 2^e`` with ``0.5 <= |f| < 1``; x where there is none."""
    m = IREmitter(b, x.type)
    value, _ = _scaled(m, x)
    others = ~((2 * m.bias + 1) << m.mantissa)
    half = (m.bias - 1) << m.mantissa
    fraction = m.from_bits(m.ior(m.iand(m.bits(value), others), half))
    return m.select(_split(m, x), fraction, x)


def _bitwise_count(b: Any, kind: Any, x: Value) -> Value:
    """Count the ones in |x|."""
    if is_signed(kind):
        below = b.icmp_signed("<", x, ir.Constant(x.type, 0))
        x = b.select(below, b.neg(x), x)
    count = ir.FunctionType(x.type, [x.type])
    name = f"llvm.ctpop.i{x.type.width}"
    ones = b.call(declared(b.module, name, count), (x,))
    return ones if x.type.width == 8 else b.trunc(ones, _BYTE)


BITS = table(
    simple("nextafter", 2, _nextafter, cuda="nextafter"),
    simple("frexp_exponent", 1, _frexp_exponent, types.int32),
    simple("frexp_fraction", 1, _frexp_fraction),
    simple("bitwise_count", 1, _bitwise_count, types.uint8),
)
