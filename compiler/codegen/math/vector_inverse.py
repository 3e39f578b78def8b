"""asin, acos, atan and atan2, branch-free, so that they vectorise.

atan: the quotient is taken so that the polynomial sees at most 1. asin and acos: a
polynomial in x^2 up to 1/2, beyond it pi/2 - 2 asin(sqrt((1 - |x|) / 2)); acos carries
the rounding error of that root. Multiples of pi are added in two parts, last.

Fits as in mathlib_exponential. Largest errors found, float32 / float64, in units of the
last place: asin 2.02 / 1.96, acos 0.93 / 0.99, atan 1.29 / 1.14, atan2 1.50 / 1.33.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value

HALF_PI_F32 = (1.5707963705062866, -4.371138828673793e-08)
HALF_PI_F64 = (1.5707963267948966, 6.123233995736766e-17)
PI_F32 = (3.1415927410125732, -8.742277657347586e-08)
PI_F64 = (3.141592653589793, 1.2246467991473532e-16)

ATAN_F32 = (
    -0.33333298563957214, 0.1999852955341339, -0.14264015853405, 0.10950878262519836,
    -0.08399279415607452, 0.05788031965494156, -0.03109503723680973,
    0.010867033153772354, -0.0017822887748479843,
)  # fmt: skip
ATAN_F64 = (
    -0.3333333333333307, 0.1999999999995176, -0.1428571428258719, 0.11111111007334996,
    -0.09090907010217363, 0.0769227997781826, -0.06666405888890765, 0.05880544119014829,
    -0.05253619251522979, 0.04722768183588479, -0.04220632026663781,
    0.03667734725600374, -0.029969150430357323, 0.022075913499823494,
    -0.013996096214364949, 0.007270694085779985, -0.0029262739518584103,
    0.000846968532357505, -0.0001557590385401003, 1.3604713672600863e-05,
)  # fmt: skip
ASIN_F32 = (
    0.16666752099990845, 0.07495307177305222, 0.045469608157873154,
    0.024181850254535675, 0.042164236307144165,
)  # fmt: skip
ASIN_F64 = (
    0.1666666666666676, 0.07499999999970827, 0.04464285717462191, 0.030381942705947823,
    0.02237221507080961, 0.01735161004409524, 0.013980849047253038,
    0.011398644151762798, 0.010781928602442373, 0.003699490451795014,
    0.021725582885514506, -0.021026424724773486, 0.03264672187659025,
)  # fmt: skip


class _Arc(NamedTuple):
    """Arc sine asin(v) = v + tail; v is |x|, or the root of z = (1 - |x|) / 2."""

    large: Value
    z: Value
    v: Value
    tail: Value


def atan(m: IREmitter, x: Value) -> Value:
    """Return the arc tangent."""
    size = m.abs(x)
    large = m.gt(size, 1.0)
    v = m.select(large, m.div(-1.0, size), size)
    high, low = m.pick(HALF_PI_F32, HALF_PI_F64)
    tail = m.add(_atan_tail(m, v), m.select(large, low, 0.0))
    y = m.add(m.select(large, high, 0.0), m.add(v, tail))
    return m.copysign(y, x)


def _atan_tail(m: IREmitter, v: Value) -> Value:
    """Emit atan(v) - v for |v| <= 1."""
    square = m.mul(v, v)
    cube = m.mul(square, v)
    return m.mul(cube, m.polynomial(square, m.pick(ATAN_F32, ATAN_F64)))


def atan2(m: IREmitter, y: Value, x: Value) -> Value:
    """Emit the angle of the point (x, y), in [-pi, pi], with C99's special cases."""
    width, height = m.abs(x), m.abs(y)
    steep = m.gt(height, width)
    longer, shorter = m.select(steep, height, width), m.select(steep, width, height)
    quotient = m.div(shorter, longer)
    unit = m.select(m.eq(longer, 0.0), 0.0, 1.0)
    quotient = m.select(m.eq(shorter, longer), unit, quotient)
    left = m.b.icmp_signed("<", m.bits(x), m.whole(0))
    v = m.select(m.b.xor(steep, left), m.neg(quotient), quotient)
    half, whole = m.pick(HALF_PI_F32, HALF_PI_F64), m.pick(PI_F32, PI_F64)
    high = m.select(steep, half[0], m.select(left, whole[0], 0.0))
    low = m.select(steep, half[1], m.select(left, whole[1], 0.0))
    angle = m.add(high, m.add(v, m.add(_atan_tail(m, v), low)))
    unknown = m.compare_or_nan("uno", x, y)
    return m.select(unknown, math.nan, m.copysign(angle, y))


def _arc(m: IREmitter, x: Value) -> _Arc:
    size = m.abs(x)
    large = m.gt(size, 0.5)
    z = m.select(large, m.fma(size, -0.5, 0.5), m.mul(size, size))
    v = m.select(large, m.sqrt(z), size)
    tail = m.mul(m.mul(z, v), m.polynomial(z, m.pick(ASIN_F32, ASIN_F64)))
    return _Arc(large, z, v, tail)


def asin(m: IREmitter, x: Value) -> Value:
    """Return the arc sine; NaN outside of [-1, 1]."""
    arc = _arc(m, x)
    high, low = m.pick(HALF_PI_F32, HALF_PI_F64)
    near = m.add(arc.v, arc.tail)
    rest = m.sub(m.add(arc.tail, arc.tail), low)
    far = m.sub(m.sub(high, m.add(arc.v, arc.v)), rest)
    return m.copysign(m.select(arc.large, far, near), x)


def acos(m: IREmitter, x: Value) -> Value:
    """Return the arc cosine; NaN outside of [-1, 1]."""
    arc = _arc(m, x)
    high, low = m.pick(HALF_PI_F32, HALF_PI_F64)
    residual = m.div(m.fma(m.neg(arc.v), arc.v, arc.z), m.mul(arc.v, 2.0))
    residual = m.select(m.gt(arc.z, 0.0), residual, 0.0)
    tail = m.add(arc.tail, m.select(arc.large, residual, 0.0))
    double = m.add(arc.v, tail)
    double = m.add(double, double)
    signed = m.sub(low, m.copysign(arc.tail, x))
    near = m.sub(high, m.sub(m.copysign(arc.v, x), signed))
    left = m.sub(2 * high, m.sub(double, 2 * low))
    far = m.select(m.lt(x, 0.0), left, double)
    return m.select(arc.large, far, near)
