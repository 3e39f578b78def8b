"""sin, cos, tan: branch-free within a stated range, through libm beyond it.

x = n pi/2 + r, |r| <= pi/4, with pi/2 in three parts; float64 carries a remainder
along. n comes from x * 2/pi in one rounding and has to be small enough for its product
with the first part to leave an exact difference: |x| < 98304 in float32, 2^42 in
float64. ``sin_any`` and the like test each argument and take another way for what lies
beyond, which keeps a loop from vectorising: float32 reduces in float64 up to 2^44, the
rest (infinity and NaN too) goes through libm. The loop writer (loop_source.py) looks at
a block of arguments first and uses ``sin`` and the like where all of them are near.

Largest errors found within the range, float32 / float64, in units of the last place:
sin 1.55 / 0.73, cos 1.54 / 0.75, tan 1.95 / 1.86.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value, declared

FAR_F32 = 0x47C00000
"""The bits of 98304: from here on float32 is reduced in float64."""
FARTHEST_F32 = 0x55800000
"""The bits of 2^44: from here on float32 goes through libm."""
FAR_F64 = 0x4290000000000000
"""The bits of 2^42: from here on float64 goes through libm."""

HALF_PI_F32 = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)

SIN_F32 = (-0.16666653752326965, 0.008332105353474617, -0.0001950773730641231)
COS_F32 = (0.04166664555668831, -0.0013887308305129409, 2.443210905767046e-05)
SIN_F64 = (
    -0.1666666666666663, 0.008333333333321839, -0.00019841269829356012,
    2.755731353733978e-06, -2.505073416933631e-08, 1.5895418919322346e-10,
)  # fmt: skip
COS_F64 = (
    0.04166666666666659, -0.0013888888888872184, 2.48015872882931e-05,
    -2.755731401428879e-07, 2.0875677957142885e-09, -1.1357329671531684e-11,
)  # fmt: skip
TAN_F32 = (
    0.33333349227905273, 0.1333266943693161, 0.054059963673353195, 0.02127949334681034,
    0.010847337543964386, 7.0501773734577e-05, 0.004387428518384695,
)  # fmt: skip


Reduced = tuple[Value, Value | None, Value]
"""(r, low, q): x = n pi/2 + r + low, and q = n modulo 4 in its low two bits."""


def sin(m: IREmitter, x: Value) -> Value:
    """Emit the sine of near x; garbage for far ones."""
    return _sin(m, x, _reduce(m, x))


def cos(m: IREmitter, x: Value) -> Value:
    """Emit the cosine of near x; garbage for far ones."""
    return _cos(m, x, _reduce(m, x))


def tan(m: IREmitter, x: Value) -> Value:
    """Emit the tangent of near x; garbage for far ones."""
    return _tan(m, x, _reduce_closely(m, x))


def _sin(m: IREmitter, x: Value, reduced: Reduced) -> Value:
    r, low, quadrant = reduced
    return m.select(m.eq(x, 0.0), x, _quadrant_value(m, r, low, quadrant))


def _cos(m: IREmitter, x: Value, reduced: Reduced) -> Value:
    r, low, quadrant = reduced
    return _quadrant_value(m, r, low, m.iadd(quadrant, 1))


def _tan(m: IREmitter, x: Value, reduced: Reduced) -> Value:
    r, low, quadrant = reduced
    odd = m.b.icmp_unsigned("!=", m.iand(quadrant, 1), m.whole(0))
    square = m.mul(r, r)
    if m.is32:
        tail = m.mul(m.mul(square, r), m.polynomial(square, TAN_F32))
        if low is not None:
            tail = m.fma(low, m.add(square, 1.0), tail)
        near = m.add(r, tail)
        y = m.div(m.select(odd, -1.0, near), m.select(odd, near, 1.0))
    else:
        sine, cosine = _sine(m, r, square, low), _cosine(m, r, square, low)
        above = m.select(odd, m.neg(cosine), sine)
        y = m.div(above, m.select(odd, sine, cosine))
    return m.select(m.eq(x, 0.0), x, y)


def sin_any(m: IREmitter, x: Value) -> Value:
    """Return the sine of every x."""
    return _any(m, x, "sin", sin, _sin)


def cos_any(m: IREmitter, x: Value) -> Value:
    """Return the cosine of every x."""
    return _any(m, x, "cos", cos, _cos)


def tan_any(m: IREmitter, x: Value) -> Value:
    """Return the tangent of every x."""
    return _any(m, x, "tan", tan, _tan)


def distance_bits(m: IREmitter, x: Value) -> Value:
    """Return the bits of |x| as an integer, FAR_F32 or FAR_F64 or more if far."""
    return m.iand(m.bits(x), (1 << (m.width - 1)) - 1)


def _reduce(m: IREmitter, x: Value) -> Reduced:
    if m.is32:
        return _reduce_f32(m, x)
    shifted = m.fma(x, 2 / math.pi, m.shift)
    n = m.sub(shifted, m.shift)
    first = m.fma(n, -HALF_PI[0], x)
    second = m.mul(n, HALF_PI[1])
    second_low = m.fma(n, HALF_PI[1], m.neg(second))
    r = m.sub(first, second)
    error = m.sub(m.sub(first, r), second)
    low = m.sub(error, m.fma(n, HALF_PI[2], second_low))
    total = m.add(r, low)
    return total, m.add(m.sub(r, total), low), m.bits(shifted)


def _reduce_f32(m: IREmitter, x: Value) -> Reduced:
    shifted = m.fma(x, 2 / math.pi, m.shift)
    n = m.sub(shifted, m.shift)
    for part in HALF_PI_F32:
        x = m.fma(n, -part, x)
    return x, None, m.bits(shifted)


def _reduce_closely(m: IREmitter, x: Value) -> Reduced:
    """Reduce the argument closely, for float32 in float64: quotients need it."""
    return _reduce_in_f64(m, x) if m.is32 else _reduce(m, x)


def _reduce_in_f64(m: IREmitter, x: Value) -> Reduced:
    d, wide = m.wide(), m.widen(x)
    shifted = d.fma(wide, 2 / math.pi, d.shift)
    n = d.sub(shifted, d.shift)
    r = d.fma(n, -HALF_PI[1], d.fma(n, -HALF_PI[0], wide))
    total = m.narrow(r)
    low = m.narrow(d.sub(r, m.widen(total)))
    return total, low, m.b.trunc(d.bits(shifted), m.integer)


def sine_and_cosine(m: IREmitter, r: Value, quadrant: Value) -> tuple[Value, Value]:
    """Emit sine and cosine of r + quadrant pi/2, |r| <= pi/4, by two polynomials."""
    square = m.mul(r, r)
    sine, cosine = _sine(m, r, square, None), _cosine(m, r, square, None)
    odd = m.b.icmp_unsigned("!=", m.iand(quadrant, 1), m.whole(0))
    turned = m.iadd(quadrant, 1)
    return (
        _signed(m, m.select(odd, cosine, sine), quadrant),
        _signed(m, m.select(odd, sine, cosine), turned),
    )


def _quadrant_value(
    m: IREmitter, r: Value, low: Value | None, quadrant: Value
) -> Value:
    """Emit sin(r + n pi/2), from both polynomials."""
    square = m.mul(r, r)
    sine, cosine = _sine(m, r, square, low), _cosine(m, r, square, low)
    odd = m.b.icmp_unsigned("!=", m.iand(quadrant, 1), m.whole(0))
    return _signed(m, m.select(odd, cosine, sine), quadrant)


def _signed(m: IREmitter, y: Value, quadrant: Value) -> Value:
    """Emit ``y``, or -y in the lower half plane."""
    sign = m.shl(m.shr(quadrant, 1), m.width - 1)
    return m.from_bits(m.ixor(m.bits(y), sign))


def _sine(m: IREmitter, r: Value, square: Value, low: Value | None) -> Value:
    cube = m.mul(square, r)
    if m.is32 or low is None:
        return m.fma(cube, m.polynomial(square, m.pick(SIN_F32, SIN_F64)), r)
    tail = m.mul(cube, m.polynomial(square, SIN_F64))
    return m.add(r, m.add(tail, m.mul(low, m.fma(square, -0.5, 1.0))))


def _cosine(m: IREmitter, r: Value, square: Value, low: Value | None) -> Value:
    if m.is32:
        tail = m.fma(square, m.polynomial(square, COS_F32), -0.5)
        return m.fma(square, tail, 1.0)
    half = m.mul(square, 0.5)
    lead = m.sub(1.0, half)
    error = m.sub(m.sub(1.0, lead), half)
    fourth = m.mul(square, square)
    tail = m.fma(fourth, m.polynomial(square, COS_F64), error)
    if low is not None:
        tail = m.sub(tail, m.mul(r, low))
    return m.add(lead, tail)


Near = Callable[[IREmitter, Value], Value]
Rest = Callable[[IREmitter, Value, Reduced], Value]
"""Evaluation after the reduction."""


def _any(m: IREmitter, x: Value, name: str, near: Near, rest: Rest) -> Value:
    """Emit a call: inlined, LLVM would run libm in all lanes and compile longer."""
    kind = ir.FunctionType(m.type, [m.type])
    function = declared(m.b.module, f"staticgrad_{name}_f{m.width}", kind)
    if not function.blocks:
        function.linkage = "internal"
        function.attributes.add("noinline")
        _define_any(IREmitter(ir.IRBuilder(), m.type), function, name, near, rest)
    return m.b.call(function, [x])


def _define_any(m: IREmitter, function: Any, name: str, near: Near, rest: Rest) -> None:
    m.b.position_at_end(function.append_basic_block())
    x = function.args[0]
    distance = distance_bits(m, x)
    with m.b.if_then(_at_least(m, distance, m.pick(FARTHEST_F32, FAR_F64))):
        m.b.ret(_libm(m, x, name))
    if m.is32:
        with m.b.if_then(_at_least(m, distance, FAR_F32)):
            m.b.ret(rest(m, x, _reduce_in_f64(m, x)))
    m.b.ret(near(m, x))


def _at_least(m: IREmitter, distance: Value, limit: int) -> Value:
    return m.b.icmp_unsigned(">=", distance, m.whole(limit))


def _libm(m: IREmitter, x: Value, name: str) -> Value:
    double = ir.DoubleType()
    kind = ir.FunctionType(double, [double])
    y = m.b.call(declared(m.b.module, name, kind), [m.widen(x) if m.is32 else x])
    return m.narrow(y) if m.is32 else y
