"""float16 and bfloat16: 16 bits in memory, float32 in registers.

A load widens and a store rounds to the nearest, ties to even; NaN stays NaN. float16
takes the processor's instructions (F16C, AVX-512, NEON), which round and keep NaN as
IEEE 754 says; where there are none, integer arithmetic after Giesen ("half to float
done quick", https://gist.github.com/rygorous/2156668) vectorises as well. bfloat16 is
the upper half of a float32, so it takes a shift, and an addition to round.

A float64 on its way to 16 bits is first rounded to float32 *to odd*: the last bit says
whether anything was lost, so that the second rounding cannot be wrong (Boldo and
Melquiond, "When double rounding is odd", 2005).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from staticgrad.compiler.codegen.llvm.conversions import convert
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.host.processor import has_half

_HALF = ir.HalfType()
_SHORT = ir.IntType(16)
_INT = ir.IntType(32)
_FLOAT = ir.FloatType()

_SIGN = 0x8000
_INFINITY = 0x7C00  # of float16
_QUIET = 0x0200  # the bit that makes a float16 NaN quiet
_FLOAT_INFINITY = 0x7F800000
_SCALE = 2.0**112  # between the exponents of float16 and float32: 127 - 15
_ROUNDS_TO_INFINITY = 0x477FF000  # 65520, half way from 65504 to 65536
_SMALLEST_NORMAL = 0x38800000  # 2^-14
_SHIFTER = 0.5  # added to a subnormal, it leaves float16's digits at the end


def _int(value: int) -> Value:
    return ir.Constant(_INT, value)


def _is_nan(b: Any, x: Value) -> Value:
    return b.fcmp_unordered("uno", x, x)


def from_float16(b: Any, bits: Value) -> Value:
    """Convert the bits of a float16 to float32."""
    if has_half():
        return b.fpext(b.bitcast(bits, _HALF), _FLOAT)
    wide = b.zext(bits, _INT)
    size = b.and_(wide, _int(_SIGN - 1))
    scaled = b.bitcast(b.shl(size, _int(13)), _FLOAT)
    scaled = b.fmul(scaled, ir.Constant(_FLOAT, _SCALE))  # exact, subnormals too
    special = b.icmp_unsigned(">=", size, _int(_INFINITY))
    found = b.bitcast(scaled, _INT)
    found = b.select(special, b.or_(found, _int(_FLOAT_INFINITY)), found)
    sign = b.shl(b.and_(wide, _int(_SIGN)), _int(16))
    return b.bitcast(b.or_(found, sign), _FLOAT)


def to_float16(b: Any, x: Value) -> Value:
    """Round a float32 to the bits of a float16."""
    if has_half():
        return b.bitcast(b.fptrunc(x, _HALF), _SHORT)
    bits = b.bitcast(x, _INT)
    sign = b.and_(b.lshr(bits, _int(16)), _int(_SIGN))
    size = b.and_(bits, _int(0x7FFFFFFF))
    special = _special16(b, size)
    large = b.icmp_unsigned(">=", size, _int(_ROUNDS_TO_INFINITY))
    small = b.icmp_unsigned("<", size, _int(_SMALLEST_NORMAL))
    found = b.select(small, _subnormal16(b, size), _normal16(b, size))
    found = b.select(large, special, found)
    return b.trunc(b.or_(found, sign), _SHORT)


def _special16(b: Any, size: Value) -> Value:
    """Return infinity, or NaN with its first digits."""
    kept = b.and_(b.lshr(size, _int(13)), _int(_QUIET - 1))
    nan = b.or_(_int(_INFINITY | _QUIET), kept)
    above = b.icmp_unsigned(">", size, _int(_FLOAT_INFINITY))
    return b.select(above, nan, _int(_INFINITY))


def _subnormal16(b: Any, size: Value) -> Value:
    """Round to a multiple of 2^-24, by adding 1/2 in float32."""
    shifter = ir.Constant(_FLOAT, _SHIFTER)
    total = b.bitcast(b.fadd(b.bitcast(size, _FLOAT), shifter), _INT)
    return b.sub(total, b.bitcast(shifter, _INT))


def _normal16(b: Any, size: Value) -> Value:
    odd = b.and_(b.lshr(size, _int(13)), _int(1))
    rebased = b.add(size, _int(((15 - 127) << 23) + 0xFFF))
    return b.lshr(b.add(rebased, odd), _int(13))


def from_bfloat16(b: Any, bits: Value) -> Value:
    """Convert the bits of a bfloat16, a float32's upper half, to float32."""
    return b.bitcast(b.shl(b.zext(bits, _INT), _int(16)), _FLOAT)


def to_bfloat16(b: Any, x: Value) -> Value:
    """Round a float32 to its upper half, to nearest, ties to even; NaN kept."""
    bits = b.bitcast(x, _INT)
    upper = b.lshr(bits, _int(16))
    odd = b.and_(upper, _int(1))
    rounded = b.lshr(b.add(bits, b.add(odd, _int(0x7FFF))), _int(16))
    quiet = b.or_(upper, _int(0x40))
    return b.trunc(b.select(_is_nan(b, x), quiet, rounded), _SHORT)


WIDEN: dict[str, Callable[[Any, Value], Value]] = {
    "float16": from_float16,
    "bfloat16": from_bfloat16,
}
"""Conversions of the bits in memory to float32 in a register."""

NARROW: dict[str, Callable[[Any, Value], Value]] = {
    "float16": to_float16,
    "bfloat16": to_bfloat16,
}
"""Conversions of float32 in a register to the bits in memory."""


def _to_odd(b: Any, x: Value) -> Value:
    """Round a float64 to float32 to odd: towards 0, the last bit set if inexact."""
    near = b.fptrunc(x, _FLOAT)
    back = b.fpext(near, x.type)
    bits = b.bitcast(near, _INT)
    size = b.and_(bits, _int(0x7FFFFFFF))
    finite = b.icmp_unsigned("<=", size, _int(_FLOAT_INFINITY))
    inexact = b.and_(finite, b.fcmp_ordered("!=", back, x))
    low = b.fcmp_ordered("<", x, ir.Constant(x.type, 0.0))
    below, above = b.fcmp_ordered("<", back, x), b.fcmp_ordered(">", back, x)
    beyond = b.select(low, below, above)  # farther from 0 than x is
    cut = b.sub(bits, b.zext(b.and_(beyond, inexact), _INT))
    odd = b.or_(cut, b.zext(inexact, _INT))
    return b.bitcast(odd, _FLOAT)


def rounding(name: str) -> Any:
    """Return ``float16(x)``: x as float32, rounded to float16's precision."""

    @intrinsic
    def rounded(typing: Any, x: Any) -> Any:
        def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
            if x == types.float64:
                single = _to_odd(b, args[0])
            else:
                single = convert(b, args[0], x, types.float32)
            return WIDEN[name](b, NARROW[name](b, single))

        return types.float32(x), generate

    return rounded
