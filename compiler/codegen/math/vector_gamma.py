"""lgamma, digamma and the Hurwitz zeta function of whole order; float32 in float64.

lgamma: (x - 1)(x - 2) times a polynomial on [1, 3], to which arguments in (0, 8) are
shifted; Stirling's series from 8 on; the reflection formula below 0. digamma: shifted
by ten, the asymptotic series, the reflection formula below 0. zeta: terms up to ten,
then Euler and Maclaurin's formula; below 0 what is added and lost on the way to (0, 1).

Accuracy: a few units in the last place, absolute below 1 (both have zeros that are no
numbers of the format). lgamma and digamma are free of branches; zeta is a loop.
Source of the formulas: Abramowitz and Stegun 6.1.41, 6.3.18, 23.2.3; the DLMF 25.11.43.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value, declared
from staticgrad.compiler.codegen.math.vector_logarithm import log, power

LGAMMA = (
    0.42278433509846713, -0.10031730167435421, 0.03296500062115597,
    -0.012384192193336403, 0.004998641164680356, -0.0021081308352055112,
    0.0009153769228593482, -0.0004057073767183402, 0.0001825526289609524,
    -8.30953205143401e-05, 3.816898384337613e-05, -1.7660549436859962e-05,
    8.221641168761987e-06, -3.851628024568635e-06, 1.8101965799291278e-06,
    -8.417878185566207e-07, 3.982919074962609e-07, -2.1160209415295267e-07,
    1.0090092625984202e-07, -1.9155798912805917e-08, 8.980664220820412e-09,
    -2.9689377236178223e-08, 1.435465302953771e-08, 7.546982106044216e-09,
    -3.670795027768109e-09, -3.045083104616406e-09, 1.4756809431956831e-09,
)  # fmt: skip
STIRLING = (
    1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156,
    -3617 / 122400,
)  # fmt: skip
DIGAMMA = (
    -1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760, -1 / 12, 3617 / 8160,
)  # fmt: skip
MACLAURIN = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000,
    1 / 74724249600, -3617 / 10670622842880000,
)  # fmt: skip
"""B(2k) / (2k)!"""
SIN_PI = (
    -0.16666666666666666, 0.008333333333333207, -0.00019841269841212406,
    2.7557319211543665e-06, -2.5052106900962584e-08, 1.605894077996236e-10,
    -7.643012475721674e-13, 2.7213365376829305e-15,
)  # fmt: skip
STIRLING_FROM = 8.0
SHIFT = 10


def in_float64(function: Callable[..., Value], m: IREmitter, *args: Value) -> Value:
    """Emit `function` through float64 where m is of float32."""
    if not m.is32:
        return function(m, *args)
    wide = function(m.wide(), *(m.widen(x) for x in args))
    return m.narrow(wide)


def lgamma(m: IREmitter, x: Value) -> Value:
    """Emit the logarithm of |gamma(x)|; infinite at 0, -1, -2, ..."""
    return in_float64(_lgamma, m, x)


def digamma(m: IREmitter, x: Value) -> Value:
    """Return the derivative of lgamma; NaN at negative whole numbers, infinite at 0."""
    return in_float64(_digamma, m, x)


def zeta(m: IREmitter, x: Value, s: Value) -> Value:
    """Return the sum of (x + k) ** -s over k = 0, 1, ..., for whole s >= 2."""
    return in_float64(_zeta, m, x, s)


def _sin_pi(m: IREmitter, r: Value) -> Value:
    """Emit sin(pi r) for |r| <= 1/2."""
    angle = m.mul(r, math.pi)
    square = m.mul(angle, angle)
    return m.fma(m.mul(square, angle), m.polynomial(square, SIN_PI), angle)


def _lgamma(m: IREmitter, x: Value) -> Value:
    size = m.abs(x)
    positive = _lgamma_positive(m, size)
    distance = m.abs(_sin_pi(m, m.sub(size, m.rint(size))))
    reflected = log(m, m.div(math.pi, m.mul(size, distance)))
    turned = m.b.and_(m.lt(x, 0.0), m.gt(size, 2.0**-60))  # nearer to 0 they are equal
    y = m.select(turned, m.sub(reflected, positive), positive)
    whole = m.b.and_(m.lt(x, 0.0), m.eq(m.rint(x), x))
    edge = m.b.or_(whole, m.b.or_(m.eq(size, math.inf), m.eq(size, 0.0)))
    return m.select(edge, math.inf, y)


def _lgamma_positive(m: IREmitter, x: Value) -> Value:
    small, large = m.lt(x, 1.0), m.compare(">=", x, STIRLING_FROM)
    near, factor = m.select(small, m.add(x, 1.0), x), m.number(1.0)
    for _ in range(int(STIRLING_FROM) - 3):
        shifts = m.compare(">=", near, 3.0)
        near = m.select(shifts, m.sub(near, 1.0), near)
        factor = m.select(shifts, m.mul(factor, near), factor)
    factor = m.select(large, x, m.select(small, x, factor))
    logarithm = log(m, factor)
    u = m.sub(near, 2.0)
    fit = m.mul(m.mul(m.add(u, 1.0), u), m.polynomial(u, LGAMMA))
    below = m.select(small, m.sub(fit, logarithm), m.add(fit, logarithm))
    inverse = m.div(1.0, x)
    series = m.mul(m.polynomial(m.mul(inverse, inverse), STIRLING), inverse)
    rest = m.add(series, math.log(2 * math.pi) / 2)
    lead = m.fma(m.sub(x, 0.5), m.sub(logarithm, 1.0), m.sub(rest, 0.5))
    return m.select(large, lead, below)


def _digamma(m: IREmitter, x: Value) -> Value:
    negative = m.lt(x, 0.0)
    y = _digamma_positive(m, m.select(negative, m.sub(1.0, x), x))
    r = m.sub(x, m.rint(x))
    cosine = _sin_pi(m, m.sub(0.5, m.abs(r)))
    cotangent = m.div(m.mul(cosine, math.pi), _sin_pi(m, r))
    y = m.select(negative, m.sub(y, cotangent), y)
    whole = m.b.and_(negative, m.eq(r, 0.0))
    y = m.select(whole, math.nan, y)
    return m.select(m.eq(x, 0.0), m.copysign(math.inf, m.neg(x)), y)


def _digamma_positive(m: IREmitter, x: Value) -> Value:
    """Emit digamma at x + 10, less 1 / x + ... + 1 / (x + 9) for x < 10."""
    near = m.lt(x, float(SHIFT))
    low = m.select(near, x, 1.0)
    product, slope = low, m.number(1.0)
    for k in range(1, SHIFT):
        term = m.add(low, float(k))
        slope = m.fma(slope, term, product)
        product = m.mul(product, term)
    lost = m.select(near, m.div(slope, product), 0.0)
    far = m.select(near, m.add(x, float(SHIFT)), x)
    inverse = m.div(1.0, far)
    square = m.mul(inverse, inverse)
    series = m.mul(square, m.polynomial(square, DIGAMMA))
    tail = m.sub(series, m.mul(inverse, 0.5))
    return m.add(m.sub(log(m, far), lost), tail)


def _zeta(m: IREmitter, x: Value, s: Value) -> Value:
    """Emit the Hurwitz zeta function.

    Below 0: zeta(f) + (-1)^s (zeta(1 - f) - zeta(1 - x)), f = x - floor(x).
    """
    r = m.sub(x, m.rint(x))
    left = m.lt(r, 0.0)
    fraction = m.select(left, m.add(r, 1.0), r)
    other = m.select(left, m.neg(r), m.sub(1.0, r))
    half = m.mul(s, 0.5)
    sign = m.select(m.eq(m.rint(half), half), 1.0, -1.0)
    negative = m.lt(x, 0.0)
    y = _positive_zeta(m, m.select(negative, fraction, x), s)
    lost = m.sub(
        _positive_zeta(m, m.select(negative, other, 1.0), s),
        _positive_zeta(m, m.select(negative, m.sub(1.0, x), 1.0), s),
    )
    y = m.select(negative, m.fma(sign, lost, y), y)
    whole = m.b.and_(m.compare("<=", x, 0.0), m.eq(r, 0.0))
    return m.select(whole, math.inf, y)


def _positive_zeta(m: IREmitter, x: Value, s: Value) -> Value:
    """Emit a call: inlined three times it would compile for longer."""
    kind = ir.FunctionType(m.type, [m.type, m.type])
    function = declared(m.b.module, "staticgrad_zeta", kind)
    if not function.blocks:
        function.linkage = "internal"
        function.attributes.add("noinline")
        inside = IREmitter(ir.IRBuilder(), m.type)
        inside.b.position_at_end(function.append_basic_block())
        inside.b.ret(_zeta_sum(inside, *function.args))
    return m.b.call(function, [x, s])


def _zeta_sum(m: IREmitter, x: Value, s: Value) -> Value:
    base, total = _zeta_terms(m, x, s)
    last = power(m, base, m.neg(s))
    series = m.number(0.0)
    factor = m.div(m.mul(s, last), base)
    square = m.div(1.0, m.mul(base, base))
    for k, coefficient in enumerate(MACLAURIN):
        series = m.fma(factor, coefficient, series)
        rise = m.mul(m.add(s, 2.0 * k + 1), m.add(s, 2.0 * k + 2))
        factor = m.mul(m.mul(factor, rise), square)
    integral = m.div(m.mul(base, last), m.sub(s, 1.0))
    tail = m.add(m.fma(last, 0.5, integral), series)
    return m.select(m.eq(x, math.inf), 0.0, m.add(total, tail))


def _zeta_terms(m: IREmitter, x: Value, s: Value) -> tuple[Value, Value]:
    """Emit (x + n, the sum of n terms), where x + n is at least ten more than s."""
    b: Any = m.b
    before = b.block
    loop, after = b.append_basic_block("terms"), b.append_basic_block("terms_end")
    limit = m.add(s, float(SHIFT))
    near = m.lt(x, limit)
    b.cbranch(near, loop, after)
    b.position_at_end(loop)
    base, total = b.phi(m.type), b.phi(m.type)
    grown = m.add(total, power(m, base, m.neg(s)))
    moved = m.add(base, 1.0)
    for phi, first, again in ((base, x, moved), (total, m.number(0.0), grown)):
        phi.add_incoming(first, before)
        phi.add_incoming(again, loop)
    b.cbranch(m.lt(moved, limit), loop, after)
    b.position_at_end(after)
    last, result = b.phi(m.type), b.phi(m.type)
    for phi, first, again in ((last, x, moved), (result, m.number(0.0), grown)):
        phi.add_incoming(first, before)
        phi.add_incoming(again, loop)
    return last, result
