"""exp, exp2, expm1, tanh, sigmoid and erf, branch-free, so that they vectorise.

All are built on one core: x = n ln 2 + r with |r| <= ln(2) / 2 (Cody and Waite's
two-part ln 2), and exp(r) - 1 as a polynomial. 2^n is applied in two steps, so that
results in the subnormal range come out gradually and n = 128 (1024) does not overflow.

float64 keeps r in two parts. float32 needs less and counts instructions: products,
comparisons and divisions, which share two of the four pipes of a Zen 4, limit all of
these functions there, so additions and integers do what they can (see README.md).

The coefficients are minimax fits made for staticgrad (Remez in 160-bit arithmetic, then
rounded one by one; ERF_F32 by reweighted least squares). Largest errors found in units
of the last place, float32 over all arguments and float64 over samples: exp 0.91 / 1.00,
expm1 1.53 / 1.14, tanh 1.98 / 2.10, sigmoid 2.15 / 2.10, erf 1.89 / 1.16.
"""

from __future__ import annotations

from typing import NamedTuple

from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value

LOG2_E = 1.4426950408889634
LN2_F32 = (0.6931471824645996, -1.9046542121259336e-09)
LN2_F64 = (0.6931471805599453, 2.3190468138462996e-17)

EXP_F32 = (
    0.4999999701976776, 0.16666539013385773, 0.041667740792036057,
    0.008367064408957958, 0.0013839637394994497,
)  # fmt: skip
EXP_F64 = (
    0.5, 0.16666666666666677, 0.041666666666666685, 0.008333333333321822,
    0.0013888888888893682, 0.00019841269885264976, 2.4801587279013125e-05,
    2.755724522412642e-06, 2.755732946418682e-07, 2.5108666311403116e-08,
    2.0893957635653246e-09,
)  # fmt: skip
ERF_F32 = (
    0.12837916612625122, 0.6366195678710938, 0.10277630388736725, -0.01914782077074051,
    -0.00016951459110714495, 0.0016756963450461626, -0.0006373807555064559,
    0.00011886822176165879, -9.388978469360154e-06,
)  # fmt: skip
ERF_F64 = (
    0.1283791670955126, -0.3761263890318375, 0.11283791670954857,
    -0.026866170645072903, 0.005223977624780927, -0.0008548326978744858,
    0.00012055331036983157, -1.4925593508793276e-05, 1.6460972847862832e-06,
    -1.635002556511868e-07, 1.4657882297675927e-08, -1.1365676142100975e-09,
    5.945280222056354e-11,
)  # fmt: skip
LOG_ERFC_F64 = (
    -1.8496055099332482, -2.6389675142347837, -0.8431072563591069,
    -0.04156109803021501, 0.010033825225841357, -0.0019779014750910544,
    0.00023731737880422902, 2.6293962521859583e-05, -2.7194768468517398e-05,
    9.665960511605445e-06, -2.12682514398227e-06, 2.0125937171393145e-07,
    5.981804335618635e-08, -3.4053783497130355e-08, 8.68892056704978e-09,
    -1.348067256675262e-09, 1.2225532697488173e-10, -4.9980126506542315e-12,
)  # fmt: skip

BALANCE = 1.5
"""tanh and sigmoid are quotients; with this factor above and below, numbers that round
worst (just above a power of 2) meet results that forgive most: 2.0 ulp, not 2.6."""
BALANCE_FRACTION = 0x400000
"""The fraction of 1.5 2^n in float32."""


class Reduced(NamedTuple):
    """Reduced exp(x) = 2^n (1 + high + rest); `shifted` holds n in its lowest bits."""

    shifted: Value
    n: Value
    high: Value
    rest: Value

    def one_plus(self, m: IREmitter) -> Value:
        """Emit 1 + high + rest."""
        return m.add(m.add(self.high, self.rest), 1.0)


def reduce_exp(m: IREmitter, x: Value, low: Value | None = None) -> Reduced:
    """Reduce the argument of exp(x + low), for x within the range of exp."""
    ln2 = m.pick(LN2_F32, LN2_F64)
    shifted = m.fma(x, LOG2_E, m.shift)
    n = m.sub(shifted, m.shift)
    high = m.fma(n, -ln2[0], x)
    correction = m.mul(n, -ln2[1])
    if low is not None:
        correction = m.add(correction, low)
    r = m.add(high, correction)
    tail = m.polynomial(r, m.pick(EXP_F32, EXP_F64))
    return Reduced(shifted, n, high, m.fma(m.mul(r, r), tail, correction))


def power_of_two(m: IREmitter, shifted: Value, offset: int = 0) -> Value:
    """Emit 2^(n + offset), a normal number, from n in the lowest bits of `shifted`."""
    exponent = m.iadd(m.bits(shifted), m.bias + offset)
    return m.from_bits(m.shl(exponent, m.mantissa))


def scaled(m: IREmitter, y: Value, reduced: Reduced) -> Value:
    """Emit ``y 2^n``, rounded once, whether the result is normal or not."""
    half = m.bits(m.fma(reduced.n, 0.5, m.shift + m.bias))
    rest = m.iadd(m.isub(m.bits(reduced.shifted), half), 2 * m.bias)
    first = m.from_bits(m.shl(half, m.mantissa))
    second = m.from_bits(m.shl(rest, m.mantissa))
    return m.mul(m.mul(y, first), second)


class Turns(NamedTuple):
    """Multiple n = rint(x / ln 2), also as an integer plus an offset in low bits."""

    n: Value
    bits: Value

    def power(self, m: IREmitter) -> Value:
        """Emit 2^n where the offset is the bias of the exponent."""
        return m.from_bits(m.shl(self.bits, m.mantissa))


def _turns(m: IREmitter, x: Value, per_turn: float, offset: int) -> Turns:
    """Return the turns of a float32 x; `per_turn` is 1 / ln 2 times a power of 2."""
    magic = m.shift + offset
    shifted = m.fma(x, per_turn, magic)
    return Turns(m.sub(shifted, magic), m.bits(shifted))


def _grown(m: IREmitter, y: Value, x: Value, turns: Turns) -> Value:
    """Emit ``y 2^n`` rounded once, y in [0.5, 2) growing with x; the offset is -1.

    The exponent of y becomes that of y 2^(n - 1), which 2 is multiplied with, or for
    negative x that of y 2^(n + 25), multiplied with 2^-25. NaN, whose exponent this
    destroys, comes back with n - n.
    """
    below = m.iand(m.b.ashr(m.bits(x), m.whole(31)), 26 << 23)
    factor = m.from_bits(m.isub(m.whole(128 << 23), below))
    grown = m.iadd(m.iadd(m.bits(y), m.shl(turns.bits, 23)), below)
    return m.fma(m.from_bits(grown), factor, m.sub(turns.n, turns.n))


def exp(m: IREmitter, x: Value) -> Value:
    """Return the exponential."""
    return exp_below(m, m.at_most(x, m.pick(89.0, 710.0)))


def exp_below(m: IREmitter, x: Value) -> Value:
    """Emit exp(x) for x that is known not to overflow."""
    x = m.at_least(x, m.pick(-104.0, -746.0))
    return _exp_f32(m, x) if m.is32 else _exp_reduced(m, x)


def exp_sum(m: IREmitter, x: Value, low: Value) -> Value:
    """Emit exp(x + low), where low is a correction far below x."""
    x = m.at_least(m.at_most(x, m.pick(89.0, 710.0)), m.pick(-104.0, -746.0))
    return _exp_reduced(m, x, low)


def _exp_reduced(m: IREmitter, x: Value, low: Value | None = None) -> Value:
    reduced = reduce_exp(m, x, low)
    return scaled(m, reduced.one_plus(m), reduced)


def _exp_f32(m: IREmitter, x: Value) -> Value:
    turns = _turns(m, x, LOG2_E, -1)
    r = m.fma(turns.n, -LN2_F32[1], m.fma(turns.n, -LN2_F32[0], x))
    return _grown(m, m.horner(r, (1.0, 1.0, *EXP_F32)), x, turns)


def exp2(m: IREmitter, x: Value) -> Value:
    """Emit 2 ** x = 2^n exp(r ln 2), with r ln 2 in two parts; exact for whole x."""
    x = m.at_least(m.at_most(x, m.pick(129.0, 1025.0)), m.pick(-151.0, -1076.0))
    ln2 = m.pick(LN2_F32, LN2_F64)
    shifted = m.add(x, m.shift)
    n = m.sub(shifted, m.shift)
    r = m.sub(x, n)
    high = m.mul(r, ln2[0])
    low = m.fma(r, ln2[1], m.fma(r, ln2[0], m.neg(high)))
    tail = m.polynomial(high, m.pick(EXP_F32, EXP_F64))
    rest = m.fma(m.mul(high, high), tail, low)
    reduced = Reduced(shifted, n, high, rest)
    return scaled(m, reduced.one_plus(m), reduced)


def expm1(m: IREmitter, x: Value) -> Value:
    """Emit exp(x) - 1, with small results exact to their last place."""
    inside = m.at_least(m.at_most(x, m.pick(89.0, 710.0)), m.pick(-20.0, -40.0))
    return m.pick(_expm1_f32, _expm1_f64)(m, x, inside)


def _expm1_f32(m: IREmitter, x: Value, inside: Value) -> Value:
    turns = _turns(m, inside, LOG2_E, m.bias - 1)
    r = m.fma(turns.n, -LN2_F32[0], inside)
    r = m.fma(turns.n, -LN2_F32[1], r)
    half = turns.power(m)
    y = m.fma(half, _less_one(m, r), m.sub(half, 0.5))
    return m.copysign(m.add(y, y), x)


def _less_one(m: IREmitter, r: Value) -> Value:
    """Emit exp(r) - 1 for float32 |r| <= ln(2) / 2."""
    return m.fma(m.mul(r, r), m.horner(r, EXP_F32), r)


def _expm1_f64(m: IREmitter, x: Value, inside: Value) -> Value:
    reduced = reduce_exp(m, inside)
    half = power_of_two(m, reduced.shifted, -1)
    base = m.fma(half, reduced.high, m.sub(half, 0.5))
    y = m.fma(half, reduced.rest, base)
    tiny = m.compare_or_nan("<", m.abs(x), 2.0**-55)
    return m.select(tiny, x, m.add(y, y))


def tanh(m: IREmitter, x: Value) -> Value:
    """Emit exp(2|x|) - 1 over exp(2|x|) + 1, with the sign of x."""
    size = m.abs(x)
    clamped = m.at_most(size, m.pick(10.0, 20.0))
    return m.signed(m.pick(_tanh_f32, _tanh_f64)(m, size, clamped), x)


def _tanh_f32(m: IREmitter, _size: Value, clamped: Value) -> Value:
    """Emit ``h / (h + 1)`` for h = (exp(2 a) - 1) / 2, both times BALANCE."""
    turns = _turns(m, clamped, 2 * LOG2_E, m.bias - 1)
    r = m.fma(turns.n, -LN2_F32[0], m.add(clamped, clamped))
    tail = m.horner(r, [BALANCE * c for c in EXP_F32])
    less_one = m.fma(r, BALANCE, m.mul(m.mul(r, r), tail))
    half = m.shl(turns.bits, m.mantissa)
    base = m.sub(m.from_bits(m.ior(half, BALANCE_FRACTION)), BALANCE / 2)
    above = m.fma(m.from_bits(half), less_one, base)
    return m.div(above, m.add(above, BALANCE))


def _tanh_f64(m: IREmitter, size: Value, clamped: Value) -> Value:
    """Emit 1 - 2 / (exp(2 a) + 1) for large a, near zero without cancellation."""
    reduced = reduce_exp(m, m.add(clamped, clamped))
    scale = power_of_two(m, reduced.shifted)
    base = m.fma(scale, reduced.high, m.sub(scale, 1.0))
    grown = m.fma(scale, reduced.rest, base)
    large = m.compare_or_nan(">", size, 0.55)
    quotient = m.div(m.select(large, 2.0, grown), m.add(grown, 2.0))
    y = m.select(large, m.sub(1.0, quotient), quotient)
    return m.select(m.compare_or_nan("<", size, 2.0**-28), size, y)


def sigmoid(m: IREmitter, x: Value) -> Value:
    """Emit 1 / (1 + exp(-x))."""
    return m.pick(_sigmoid_f32, _sigmoid_f64)(m, x)


def _sigmoid_f32(m: IREmitter, x: Value) -> Value:
    """Emit ``c / (c + c exp(-x))``, c = 2^-64 BALANCE: exp(104) does not overflow.

    From x = 40 on, where the clamp is, the result is 1.
    """
    x = m.at_least(m.at_most(x, 40.0), -104.0)
    turns = _turns(m, x, -LOG2_E, m.bias - 64)
    r = m.fma(turns.n, -LN2_F32[0], m.neg(x))
    r = m.fma(turns.n, -LN2_F32[1], r)
    grown = m.horner(r, [BALANCE * c for c in (1.0, 1.0, *EXP_F32)])
    above = BALANCE * 2.0**-64
    return m.div(above, m.fma(grown, turns.power(m), above))


def _sigmoid_f64(m: IREmitter, x: Value) -> Value:
    """Emit the sigmoid from exp(-|x|), which cannot overflow."""
    z = exp_below(m, m.neg(m.abs(x)))
    top = m.select(m.compare(">=", x, 0.0), 1.0, z)
    return m.div(top, m.add(z, 1.0))


def erf(m: IREmitter, x: Value) -> Value:
    """Return the error function."""
    return m.pick(_erf_f32, _erf_f64)(m, x)


def _erf_f32(m: IREmitter, x: Value) -> Value:
    """Emit 1 - exp(-t), t = a + a P(a) a fit of -log(erfc(a)) for a = |x|.

    t = n ln 2 + r: 1 - 2^-n exp(-r) = 2^-n (1 - exp(-r)) + (1 - 2^-n).
    """
    a = m.at_most(m.abs(x), 3.93)
    t = m.fma(a, m.polynomial(a, ERF_F32), a)
    turns = _turns(m, t, -LOG2_E, m.bias)
    less_one = _less_one(m, m.fma(turns.n, -LN2_F32[0], m.neg(t)))
    scale = turns.power(m)
    y = m.fma(scale, m.neg(less_one), m.sub(1.0, scale))
    return m.copysign(y, x)


def _erf_f64(m: IREmitter, x: Value) -> Value:
    """Emit ``x + x P(x^2)`` below 1, 1 - exp(Q(|x| - 1)) beyond, a fit of log(erfc)."""
    size = m.abs(x)
    small = m.fma(x, m.polynomial(m.mul(x, x), ERF_F64), x)
    clamped = m.sub(m.at_most(size, 5.93), 1.0)
    reduced = reduce_exp(m, m.polynomial(clamped, LOG_ERFC_F64))
    rest = m.mul(reduced.one_plus(m), power_of_two(m, reduced.shifted))
    large = m.copysign(m.sub(1.0, rest), x)
    return m.select(m.lt(size, 1.0), small, large)
