"""exp, exp2, expm1, tanh, sigmoid and erf, free of branches, so that they vectorise.

All are built on one core: x = n ln 2 + r with |r| <= ln(2) / 2 (Cody and Waite's
two-part ln 2), and exp(r) - 1 as a polynomial. 2^n is applied as two factors, so that
results in the subnormal range come out gradually and n = 128 (1024) does not overflow.

The coefficients are minimax fits made for staticgrad (Remez in 160-bit arithmetic, then
rounded one by one). Largest errors found in units of the last place, float32 over all
arguments and float64 over samples: exp 0.89 / 1.00, expm1 1.22 / 1.14, tanh 1.50 /
2.10, sigmoid 2.40 / 2.10, erf 1.35 / 1.16.
"""

from __future__ import annotations

from typing import NamedTuple

from staticgrad.compiler.codegen.emitter import Emitter, Value

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
TANH_F32 = (
    -0.33333316445350647, 0.13332544267177582, -0.05384782329201698,
    0.021053122356534004, -0.006247951649129391,
)  # fmt: skip
ERF_F32 = (
    0.12837916612625122, -0.3761262595653534, 0.11283578723669052,
    -0.026853347197175026, 0.005187162198126316, -0.0007997852517291903,
    7.806897338014096e-05,
)  # fmt: skip
ERF_F64 = (
    0.1283791670955126, -0.3761263890318375, 0.11283791670954857,
    -0.026866170645072903, 0.005223977624780927, -0.0008548326978744858,
    0.00012055331036983157, -1.4925593508793276e-05, 1.6460972847862832e-06,
    -1.635002556511868e-07, 1.4657882297675927e-08, -1.1365676142100975e-09,
    5.945280222056354e-11,
)  # fmt: skip
LOG_ERFC_F32 = (
    -1.8496055603027344, -2.638967514038086, -0.8431070446968079,
    -0.041563548147678375, 0.010046583600342274, -0.0020120921544730663,
    0.00028958579059690237, -2.169690196751617e-05,
)  # fmt: skip
LOG_ERFC_F64 = (
    -1.8496055099332482, -2.6389675142347837, -0.8431072563591069,
    -0.04156109803021501, 0.010033825225841357, -0.0019779014750910544,
    0.00023731737880422902, 2.6293962521859583e-05, -2.7194768468517398e-05,
    9.665960511605445e-06, -2.12682514398227e-06, 2.0125937171393145e-07,
    5.981804335618635e-08, -3.4053783497130355e-08, 8.68892056704978e-09,
    -1.348067256675262e-09, 1.2225532697488173e-10, -4.9980126506542315e-12,
)  # fmt: skip


class Reduced(NamedTuple):
    """exp(x) = 2^n (1 + high + rest); `shifted` holds n in its lowest bits."""

    shifted: Value
    n: Value
    high: Value
    rest: Value

    def one_plus(self, m: Emitter) -> Value:
        """1 + high + rest."""
        return m.add(m.add(self.high, self.rest), 1.0)


def reduce_exp(m: Emitter, x: Value, low: Value | None = None) -> Reduced:
    """The core of exp(x + low), for x already within the range of exp."""
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


def power_of_two(m: Emitter, shifted: Value, offset: int = 0) -> Value:
    """2^(n + offset), a normal number, from n in the lowest bits of `shifted`."""
    exponent = m.iadd(m.bits(shifted), m.bias + offset)
    return m.from_bits(m.shl(exponent, m.mantissa))


def scaled(m: Emitter, y: Value, reduced: Reduced) -> Value:
    """Y 2^n, rounded once, whether the result is normal or not."""
    half = m.bits(m.fma(reduced.n, 0.5, m.shift + m.bias))
    rest = m.iadd(m.isub(m.bits(reduced.shifted), half), 2 * m.bias)
    first = m.from_bits(m.shl(half, m.mantissa))
    second = m.from_bits(m.shl(rest, m.mantissa))
    return m.mul(m.mul(y, first), second)


def exp(m: Emitter, x: Value, low: Value | None = None) -> Value:
    """The exponential of x + low, where low is a correction far below x."""
    x = m.at_most(x, m.pick(89.0, 710.0))
    return exp_below(m, x, low)


def exp_below(m: Emitter, x: Value, low: Value | None = None) -> Value:
    """exp(x + low) for x that is known not to overflow."""
    x = m.at_least(x, m.pick(-104.0, -746.0))
    reduced = reduce_exp(m, x, low)
    return scaled(m, reduced.one_plus(m), reduced)


def exp2(m: Emitter, x: Value) -> Value:
    """2 ** x = 2^n exp(r ln 2), with r ln 2 in two parts; exact for whole x."""
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


def expm1(m: Emitter, x: Value) -> Value:
    """exp(x) - 1, with small results exact to their last place."""
    inside = m.at_least(m.at_most(x, m.pick(89.0, 710.0)), m.pick(-20.0, -40.0))
    reduced = reduce_exp(m, inside)
    half = power_of_two(m, reduced.shifted, -1)
    base = m.fma(half, reduced.high, m.sub(half, 0.5))
    y = m.fma(half, reduced.rest, base)
    y = m.add(y, y)
    tiny = m.compare_or_nan("<", m.abs(x), m.pick(2.0**-26, 2.0**-55))
    return m.select(tiny, x, y)


def _expm1_moderate(m: Emitter, x: Value) -> Value:
    """exp(x) - 1 for 0 <= x < 60."""
    reduced = reduce_exp(m, x)
    scale = power_of_two(m, reduced.shifted)
    base = m.fma(scale, reduced.high, m.sub(scale, 1.0))
    return m.fma(scale, reduced.rest, base)


def tanh(m: Emitter, x: Value) -> Value:
    """1 - 2 / (exp(2|x|) + 1) for large x, near zero without cancellation."""
    size = m.abs(x)
    clamped = m.at_most(size, m.pick(10.0, 20.0))
    grown = _expm1_moderate(m, m.add(clamped, clamped))
    large = m.compare_or_nan(">", size, 0.55)
    y = m.pick(_tanh_f32, _tanh_f64)(m, size, grown, large)
    return m.copysign(y, x)


def _tanh_f32(m: Emitter, size: Value, grown: Value, large: Value) -> Value:
    quotient = m.div(2.0, m.add(grown, 2.0))
    square = m.mul(size, size)
    odd = m.fma(m.mul(square, size), m.polynomial(square, TANH_F32), size)
    return m.select(large, m.sub(1.0, quotient), odd)


def _tanh_f64(m: Emitter, size: Value, grown: Value, large: Value) -> Value:
    quotient = m.div(m.select(large, 2.0, grown), m.add(grown, 2.0))
    y = m.select(large, m.sub(1.0, quotient), quotient)
    return m.select(m.compare_or_nan("<", size, 2.0**-28), size, y)


def sigmoid(m: Emitter, x: Value) -> Value:
    """1 / (1 + exp(-x)), from exp(-|x|), which cannot overflow."""
    z = exp_below(m, m.neg(m.abs(x)))
    top = m.select(m.compare(">=", x, 0.0), 1.0, z)
    return m.div(top, m.add(z, 1.0))


def erf(m: Emitter, x: Value) -> Value:
    """X + x P(x^2) below 1; beyond, 1 - exp(Q(|x| - 1)), Q a fit of log(erfc)."""
    size = m.abs(x)
    square = m.mul(x, x)
    small = m.fma(x, m.polynomial(square, m.pick(ERF_F32, ERF_F64)), x)
    clamped = m.sub(m.at_most(size, m.pick(3.93, 5.93)), 1.0)
    log = m.polynomial(clamped, m.pick(LOG_ERFC_F32, LOG_ERFC_F64))
    reduced = reduce_exp(m, log)
    rest = m.mul(reduced.one_plus(m), power_of_two(m, reduced.shifted))
    large = m.copysign(m.sub(1.0, rest), x)
    return m.select(m.lt(size, 1.0), small, large)
