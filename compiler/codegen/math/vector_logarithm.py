"""Logarithms, softplus and power, branch-free, so that they vectorise.

x = 2^e m with m in [sqrt(1/2), sqrt(2)), log x = e ln 2 + log1p(m - 1). The exponent is
taken out and turned into a float, for float64 by operations on bits, since AVX2 has no
conversion and no arithmetic shift of 64-bit integers. That turns NaN and infinity into
finite numbers, so every function ends with a select of the special values.

float32 power goes through float64; float64 power carries the logarithm in two parts.
Fits as in mathlib_exponential. Largest errors found, float32 / float64, in units of the
last place: log 0.96 / 0.75, log1p 1.50 / 0.80, log2 0.82 / 0.68, log10 0.71 / 0.59,
softplus 1.90 / 1.46, power 0.55 / 1.00.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value
from staticgrad.compiler.codegen.math.vector_exponential import (
    LN2_F32,
    LN2_F64,
    LOG2_E,
    exp_below,
    exp_sum,
    power_of_two,
)

LARGEST = (float(np.finfo(np.float32).max), float(np.finfo(np.float64).max))
ROOT_HALF_F32 = 0x3F3504F3
ROOT_HALF_F64 = 0x3FE6A09E667F3BCD

LOG_F32 = (0.6666677594184875, 0.39977583289146423, 0.2987082004547119)
LOG_F64 = (
    0.6666666666666734, 0.39999999999416275, 0.28571428742167293,
    0.2222219858611909, 0.18183564040843186, 0.15314049752467157,
    0.1479602678311782,
)  # fmt: skip
POWER_EXP_F32 = (
    1.0, 1.0, 0.4999999329420474, 0.16666519886297565, 0.041668434712891125,
    0.008368806499514827, 0.0013811570326442211,
)  # fmt: skip
POWER_LOG_F32 = (
    -0.49999999993741284, 0.33333333425147454, -0.250000020164078,
    0.19999987377362521, -0.16666489798219922, 0.1428620893388347,
    -0.1250663031151349, 0.11105795978521137, -0.09880348057237504,
    0.09029638820867673, -0.09318545324024256, 0.09176750316426549,
    -0.04842129407858571,
)  # fmt: skip
POWER_LOG_F64 = (
    0.1999999999999999, 0.14285714285721926, 0.11111111108892675,
    0.0909090942233447, 0.07692279187935389, 0.06668133354545527,
    0.05837866507453672, 0.05991084607607069,
)  # fmt: skip


# 1 / ln 2 and 1 / ln 10 in two parts; log10(2), whose first part has trailing zeros, so
# that its product with an exponent is exact.
LOG2_E_F32 = (1.4426950216293335, 1.925963033500011e-08)
LOG2_E_F64 = (1.4426950408889634, 2.0355273740931033e-17)
LOG10_E_F32 = (0.4342944920063019, -1.0103049952192578e-08)
LOG10_E_F64 = (0.4342944819032518, 1.098319650216765e-17)
LOG10_2_F32 = (0.301025390625, 4.605038981195214e-06)
LOG10_2_F64 = (0.3010299956640665, -8.532344317057107e-14)


class Pair(NamedTuple):
    """Double-word number high + low, |low| at most an ulp of high."""

    high: Value
    low: Value


def _root_half(m: IREmitter) -> int:
    return int(m.pick(ROOT_HALF_F32, ROOT_HALF_F64))


def _exponent(m: IREmitter, offset_bits: Value) -> Value:
    """Return the top bits, a signed exponent, as a float."""
    if m.is32:
        exponent = m.b.ashr(offset_bits, m.whole(m.mantissa))
        return m.b.sitofp(exponent, m.type)
    flipped = m.shr(m.ixor(offset_bits, 1 << (m.width - 1)), m.mantissa)
    shifted = m.from_bits(m.ior(flipped, (m.bias + m.mantissa) << m.mantissa))
    return m.sub(shifted, 2.0**m.mantissa + 2.0 ** (m.width - 1 - m.mantissa))


def split(m: IREmitter, x: Value, subnormals: bool = True) -> tuple[Value, Value]:
    """Return (e, m) with x = 2^e m, m in [sqrt(1/2), sqrt(2)), x positive, finite."""
    root, extra = _root_half(m), m.mantissa + 1
    start = m.whole(root)
    if subnormals:
        small = m.lt(x, m.pick(2.0**-126, 2.0**-1022))
        x = m.select(small, m.mul(x, 2.0**extra), x)
        start = m.b.select(small, m.whole(root + (extra << m.mantissa)), start)
    bits = m.isub(m.bits(x), start)
    fraction = m.iand(bits, (1 << m.mantissa) - 1)
    return _exponent(m, bits), m.from_bits(m.iadd(fraction, root))


def _log_parts(m: IREmitter, f: Value) -> tuple[Value, Value]:
    """Return the parts of log1p(f) = f - half + rest."""
    half = m.mul(m.mul(f, f), 0.5)
    s = m.div(f, m.add(f, 2.0))
    square = m.mul(s, s)
    tail = m.mul(square, m.polynomial(square, m.pick(LOG_F32, LOG_F64)))
    return half, m.mul(s, m.add(half, tail))


def _log1p_f32(m: IREmitter, f: Value) -> Value:
    """Emit log1p(f) = f - s (f - s^2 P(s^2)), s = f / (f + 2)."""
    s = m.div(f, m.add(f, 2.0))
    square = m.mul(s, s)
    inner = m.fma(m.neg(square), m.polynomial(square, LOG_F32), f)
    return m.fma(m.neg(s), inner, f)


def _log_of(m: IREmitter, e: Value, f: Value) -> Value:
    """Emit ``e ln 2 + log1p(f)``; float32 does not need the second part of ln 2."""
    if m.is32:
        return m.fma(e, LN2_F32[0], _log1p_f32(m, f))
    return _log_sum(m, e, f, m.number(-0.0))


def _log_sum(m: IREmitter, e: Value, f: Value, low: Value) -> Value:
    """Emit ``e ln 2 + log1p(f) + low``, the largest added last."""
    ln2 = m.pick(LN2_F32, LN2_F64)
    half, rest = _log_parts(m, f)
    tail = m.fma(e, ln2[1], m.add(rest, low))
    return m.fma(e, ln2[0], m.sub(f, m.sub(half, tail)))


def log(m: IREmitter, x: Value) -> Value:
    """Return the natural logarithm; -inf at 0, NaN below."""
    e, significand = split(m, x)
    return _log_edges(m, x, _log_of(m, e, m.sub(significand, 1.0)))


def log_inside(m: IREmitter, x: Value) -> Value:
    """Return the natural logarithm of positive normal numbers; garbage for others."""
    e, significand = split(m, x, subnormals=False)
    return _log_of(m, e, m.sub(significand, 1.0))


def log2(m: IREmitter, x: Value) -> Value:
    """Return the logarithm to base 2, exact for powers of 2."""
    e, product = _times_log(m, x, m.pick(LOG2_E_F32, LOG2_E_F64))
    total = m.add(e, product.high)
    rest = m.add(m.sub(e, total), product.high)
    rest = m.select(m.eq(e, 0.0), 0.0, rest)
    return _log_edges(m, x, m.add(total, m.add(product.low, rest)))


def log10(m: IREmitter, x: Value) -> Value:
    """Return the logarithm to base 10."""
    e, product = _times_log(m, x, m.pick(LOG10_E_F32, LOG10_E_F64))
    high, low = m.pick(LOG10_2_F32, LOG10_2_F64)
    lead = m.mul(e, high)
    total = m.add(lead, product.high)
    back = m.sub(total, lead)
    rest = m.add(m.sub(lead, m.sub(total, back)), m.sub(product.high, back))
    rest = m.add(rest, m.fma(e, low, product.low))
    return _log_edges(m, x, m.add(total, rest))


def _times_log(
    m: IREmitter, x: Value, factor: tuple[float, float]
) -> tuple[Value, Pair]:
    """Return (e, log(m) times a constant in two parts) where x = 2^e m."""
    e, significand = split(m, x)
    f = m.sub(significand, 1.0)
    half, rest = _log_parts(m, f)
    high = m.sub(f, half)
    low = m.add(m.sub(m.sub(f, high), half), rest)
    product = _product(m, high, m.number(factor[0]))
    tail = m.fma(low, factor[0], m.fma(high, factor[1], product.low))
    return e, Pair(product.high, tail)


def _log_edges(m: IREmitter, x: Value, y: Value) -> Value:
    """Correct ``y``, a logarithm of x, at its special values."""
    y = _infinite_if(m, x, y)
    edge = m.select(m.eq(x, 0.0), -math.inf, math.nan)
    return m.select(m.compare_or_nan(">", x, 0.0), y, edge)


def _infinite_if(m: IREmitter, x: Value, y: Value) -> Value:
    """Return ``y``, but x if inf or NaN: max(y, x - M) for M, the largest number."""
    beyond = m.sub(x, m.pick(*LARGEST))
    return m.select(m.gt(y, beyond), y, beyond)


def log1p(m: IREmitter, x: Value) -> Value:
    """Emit log(1 + x); 1 + x = 2^e (1 + f), f = 2^-e x + (2^-e - 1) rounds once."""
    bits = m.isub(m.bits(m.add(x, 1.0)), _root_half(m))
    field = m.iand(bits, -(1 << m.mantissa))
    inverse = m.isub(m.whole(m.bias << m.mantissa), field)  # below 0 for the largest x
    none = m.whole(0)
    inverse = m.b.select(m.b.icmp_signed(">", inverse, none), inverse, none)
    less_one = m.sub(m.from_bits(inverse), 1.0)
    f = m.add(m.from_bits(m.isub(m.bits(x), field)), less_one)
    e = _exponent(m, bits)
    y = _infinite_if(m, x, m.copysign(_log_of(m, e, f), x))
    edge = m.select(m.eq(x, -1.0), -math.inf, math.nan)
    return m.select(m.compare_or_nan(">", x, -1.0), y, edge)


def log1p_pair(m: IREmitter, x: Pair, doubled: Value | None = None) -> Value:
    """Emit log(1 + high + low) of finite numbers, plus log(2) where `doubled` holds."""
    u = m.add(x.high, 1.0)
    back = m.sub(u, 1.0)
    error = m.add(m.sub(1.0, m.sub(u, back)), m.sub(x.high, back))
    error = m.add(error, x.low)  # u + error == 1 + high + low
    bits = m.isub(m.bits(u), _root_half(m))
    field = m.iand(bits, -(1 << m.mantissa))
    significand = m.from_bits(m.isub(m.bits(u), field))
    scale = m.from_bits(m.isub(m.whole(m.bias << m.mantissa), field))
    scale = m.select(m.lt(u, 2.0 ** (m.mantissa + 2)), scale, 0.0)
    e = _exponent(m, bits)
    if doubled is not None:
        e = m.add(e, m.select(doubled, 1.0, 0.0))
    part = m.mul(error, scale)
    first = m.sub(significand, 1.0)
    f = m.add(first, part)
    return _log_sum(m, e, f, m.sub(part, m.sub(f, first)))


def softplus(m: IREmitter, x: Value) -> Value:
    """Emit log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))."""
    z = exp_below(m, m.neg(m.abs(x)))
    return m.add(m.at_least(x, 0.0), _log1p_unit(m, z))


def _log1p_unit(m: IREmitter, z: Value) -> Value:
    """Emit log(1 + z) for z in [0, 1]: 1 + z is not split, but halved if large."""
    ln2 = m.pick(LN2_F32, LN2_F64)
    large = m.gt(z, math.sqrt(2) - 1)
    f = m.select(large, m.fma(z, 0.5, -0.5), z)
    if m.is32:
        return m.add(m.select(large, ln2[0], 0.0), _log1p_f32(m, f))
    half, rest = _log_parts(m, f)
    tail = m.sub(half, m.add(rest, m.select(large, ln2[1], 0.0)))
    return m.add(m.select(large, ln2[0], 0.0), m.sub(f, tail))


def power(m: IREmitter, x: Value, y: Value) -> Value:
    """Emit ``x ** y`` with C99's special cases."""
    size = m.abs(x)
    result = m.pick(_power_f32, _power_f64)(m, size, y)
    return _power_special(m, x, y, result)


def _power_special(m: IREmitter, x: Value, y: Value, result: Value) -> Value:
    whole, half = m.eq(m.rint(y), y), m.mul(y, 0.5)
    odd = m.b.and_(whole, m.compare_or_nan("!=", m.rint(half), half))
    negative = m.b.icmp_signed("<", m.bits(x), m.whole(0))
    result = m.select(m.b.and_(odd, negative), m.neg(result), result)
    below = m.b.and_(m.lt(x, 0.0), m.gt(x, -math.inf))
    broken = m.compare_or_nan("!=", m.rint(y), y)
    result = m.select(m.b.and_(below, broken), math.nan, result)
    turns = m.b.and_(m.eq(x, -1.0), m.eq(m.abs(y), math.inf))
    one = m.b.or_(m.eq(y, 0.0), m.b.or_(m.eq(x, 1.0), turns))
    return m.select(one, 1.0, result)


def _power_f32(m: IREmitter, size: Value, y: Value) -> Value:
    """Emit the power in float64: the logarithm to 2^-35, the exponential to 2^-26."""
    d = m.wide()
    base, exponent = m.widen(size), m.widen(y)
    e, significand = split(d, base, subnormals=False)
    f = d.sub(significand, 1.0)
    tail = d.fma(d.mul(f, f), d.polynomial(f, POWER_LOG_F32), f)
    log_base = _log_special(d, base, d.fma(e, LN2_F64[0], tail))
    t = d.at_least(d.at_most(d.mul(exponent, log_base), 90.0), -110.0)
    shifted = d.fma(t, LOG2_E, d.shift)
    r = d.fma(d.sub(shifted, d.shift), -LN2_F64[0], t)
    grown = d.mul(d.polynomial(r, POWER_EXP_F32), power_of_two(d, shifted))
    return m.narrow(grown)


def _log_special(m: IREmitter, size: Value, log_size: Value) -> Value:
    """Return log_size where valid: -inf for 0, inf and NaN for themselves."""
    finite = m.lt(size, math.inf)
    inside = m.select(finite, log_size, size)
    return m.select(m.eq(size, 0.0), -math.inf, inside)


def _power_f64(m: IREmitter, size: Value, y: Value) -> Value:
    e, significand = split(m, size)
    log_size = _log_pair(m, e, significand)
    high = _log_special(m, size, log_size.high)
    plain = m.b.and_(m.lt(size, math.inf), m.gt(size, 0.0))
    low = m.select(plain, log_size.low, 0.0)
    product = m.mul(y, high)
    rest = m.fma(y, low, m.fma(y, high, m.neg(product)))
    moderate = m.lt(m.abs(product), 1000.0)
    return exp_sum(m, product, m.select(moderate, rest, 0.0))


def _product(m: IREmitter, x: Value, y: Value | float) -> Pair:
    """Return ``x y`` exactly, as a Pair."""
    high = m.mul(x, y)
    return Pair(high, m.fma(x, y, m.neg(high)))


def _log_pair(m: IREmitter, e: Value, significand: Value) -> Pair:
    """Emit ``e ln 2 + log(significand)`` in two parts, from s = (m - 1) / (m + 1)."""
    s = _quotient(m, significand)
    square = _product(m, s.high, s.high)
    square_low = m.fma(m.add(s.high, s.high), s.low, square.low)
    series = _log_series(m, Pair(square.high, square_low))
    cube = _product(m, s.high, series.high)
    cube_low = m.fma(s.low, series.high, m.fma(s.high, series.low, cube.low))
    half = m.add(s.high, cube.high)
    half_low = m.add(m.add(m.sub(s.high, half), cube.high), m.add(s.low, cube_low))
    return _with_exponent(m, e, Pair(m.add(half, half), m.add(half_low, half_low)))


def _quotient(m: IREmitter, significand: Value) -> Pair:
    """Emit (m - 1) / (m + 1), with the remainder of the division."""
    f, g = m.sub(significand, 1.0), m.add(significand, 1.0)
    g_low = m.sub(significand, m.sub(g, 1.0))
    inverse = m.div(1.0, g)
    high = m.mul(f, inverse)
    remainder = m.fma(m.neg(high), g_low, m.fma(m.neg(high), g, f))
    return Pair(high, m.mul(remainder, inverse))


def _log_series(m: IREmitter, square: Pair) -> Pair:
    """Emit ``z / 3 + z^2 Q(z)`` for z = s^2, in two parts."""
    third, third_low = 1 / 3, 1.850371707708594e-17
    square_square = m.mul(square.high, square.high)
    tail = m.mul(square_square, m.polynomial(square.high, POWER_LOG_F64))
    lead = _product(m, square.high, third)
    low = m.fma(square.high, third_low, m.fma(square.low, third, lead.low))
    low = m.add(low, tail)
    high = m.add(lead.high, low)
    return Pair(high, m.add(m.sub(lead.high, high), low))


def _with_exponent(m: IREmitter, e: Value, log_m: Pair) -> Pair:
    """Emit ``e ln 2 + log_m``."""
    lead = _product(m, e, LN2_F64[0])
    lead_low = m.fma(e, LN2_F64[1], lead.low)
    high = m.add(lead.high, log_m.high)
    back = m.sub(high, lead.high)
    low = m.add(m.sub(lead.high, m.sub(high, back)), m.sub(log_m.high, back))
    low = m.add(low, m.add(lead_low, log_m.low))
    total = m.add(high, low)
    return Pair(total, m.add(m.sub(high, total), low))
