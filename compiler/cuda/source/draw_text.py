"""Random numbers in the CUDA subset: Philox, uniform, normal, gamma, Poisson.

Words, counters and formulas are the cpu's (philox_ir.py, draws_ir.py, gamma_ir.py,
poisson_ir.py), so that both targets draw the same numbers but for the last places of
elementary functions.
"""

from __future__ import annotations

from staticgrad.ir.philox_rounds import MULTIPLIERS, ROUNDS, WEYL

DRAWS = f"""
def philox(a0, a1, a2, a3, b0, b1):
    n = uint32(0)
    while n < uint32({ROUNDS}):
        p = uint64({MULTIPLIERS[0]}) * uint64(a0)
        q = uint64({MULTIPLIERS[1]}) * uint64(a2)
        first = uint32(q >> uint64(32)) ^ a1 ^ b0
        third = uint32(p >> uint64(32)) ^ a3 ^ b1
        a1 = uint32(q)
        a3 = uint32(p)
        a0 = first
        a2 = third
        b0 = b0 + uint32({WEYL[0]})
        b1 = b1 + uint32({WEYL[1]})
        n = n + uint32(1)
    return a0, a1, a2, a3

def words(k0, k1, k2, k3, block):
    high = uint32(block >> uint64(32))
    w0, w1, w2, w3 = philox(uint32(block), high, k2, k3, k0, k1)
    return w0, w1, w2, w3

def word_of(k0, k1, k2, k3, block, number):
    w0, w1, w2, w3 = words(k0, k1, k2, k3, block)
    low = w1 if number == uint32(1) else w0
    high = w3 if number == uint32(3) else w2
    return low if number < uint32(2) else high

def philox_word(k0, k1, k2, k3, c, number):
    return word_of(k0, k1, k2, k3, uint64(uint32(c)), uint32(number))

def word32(k0, k1, k2, k3, i):
    return word_of(k0, k1, k2, k3, uint64(i) >> uint64(2), uint32(i) & uint32(3))

def joined(low, high):
    return uint64(low) | (uint64(high) << uint64(32))

def word64(k0, k1, k2, k3, i):
    w0, w1, w2, w3 = words(k0, k1, k2, k3, uint64(i) >> uint64(1))
    second = (i & int64(1)) != int64(0)
    return joined(w2 if second else w0, w3 if second else w1)

def fraction32(word):
    return float32(word >> uint32(8)) * float32(5.9604644775390625e-08)

def fraction64(word):
    a = float64(uint32(word) >> uint32(5))
    b = float64(uint32(word >> uint64(32)) >> uint32(6))
    return (a * float64(67108864) + b) * float64(1.1102230246251565e-16)

def uniform32(k0, k1, k2, k3, i):
    return fraction32(word32(k0, k1, k2, k3, i))

def uniform64(k0, k1, k2, k3, i):
    return fraction64(word64(k0, k1, k2, k3, i))

def sine_of(half_turns, quarters):
    odd = (quarters & uint32(1)) != uint32(0)
    plain = cospi(half_turns) if odd else sinpi(half_turns)
    return -plain if (quarters & uint32(2)) != uint32(0) else plain

def quarters_of(word):
    quarters = (word + uint32(536870912)) >> uint32(30)
    return quarters, int32(word - (quarters << uint32(30)))

def normal32(k0, k1, k2, k3, i):
    w0, w1, w2, w3 = words(k0, k1, k2, k3, uint64(i) >> uint64(2))
    second = (i & int64(2)) != int64(0)
    x = w2 if second else w0
    u = (float32(x) + float32(0.5)) * float32(2.3283064365386963e-10)
    q, rest = quarters_of(w3 if second else w1)
    turn = float32(rest) * float32(4.656612873077393e-10)
    q = q if (i & int64(1)) != int64(0) else q + uint32(1)
    return sqrt(log(u) * float32(-2)) * sine_of(turn, q)

def normal64(k0, k1, k2, k3, i):
    w0, w1, w2, w3 = words(k0, k1, k2, k3, uint64(i) >> uint64(1))
    u = float64(1) - fraction64(joined(w0, w1))
    y = joined(w2, w3)
    q = (y + uint64(2305843009213693952)) >> uint64(62)
    rest = int64(y - (q << uint64(62)))
    turn = float64(rest) * float64(1.0842021724855044e-19)
    quarters = uint32(q)
    quarters = quarters if (i & int64(1)) != int64(0) else quarters + uint32(1)
    return sqrt(log(u) * float64(-2)) * sine_of(turn, quarters)

def unit(word):
    return (float64(word) + float64(0.5)) * float64(2.3283064365386963e-10)

def gamma(k0, k1, k2, k3, i, a):
    small = a < float64(1)
    d = (a + float64(1) if small else a) - float64(0.3333333333333333)
    c = float64(1) / sqrt(d * float64(9))
    block = uint64(i) << uint64(4)
    last = block + uint64(15)
    v = float64(0)
    boost = uint32(0)
    going = True
    while going:
        w0, w1, w2, w3 = words(k0, k1, k2, k3, block)
        q, rest = quarters_of(w1)
        turn = float64(rest) * float64(4.656612873077393e-10)
        x = sqrt(log(unit(w0)) * float64(-2)) * sine_of(turn, q + uint32(1))
        y = c * x + float64(1)
        v = y * y * y
        bound = float64(0.5) * x * x + d * (float64(1) - v + log(v))
        fits = c_and(v > float64(0), log(unit(w2)) < bound)
        boost = w3
        going = c_not(c_or(fits, block == last))
        block = block + uint64(1)
    scaled = d * v * (exp(log(unit(boost)) / a) if small else float64(1))
    return scaled if a >= float64(0) else float64(nan)

def poisson_log_probability(k, rate):
    factorial = float64(1)
    factor = float64(2)
    while factor < float64(10):
        factorial = factorial * (factor if k >= factor else float64(1))
        factor = factor + float64(1)
    few = k * log(rate) - rate - log(factorial)
    z = float64(1) / (k * k)
    rest = float64(0.0007936507936507937) - z / float64(1680)
    rest = float64(0.002777777777777778) - z * rest
    rest = (float64(0.08333333333333333) - z * rest) / k
    many = k * log(rate / k) + (k - rate)
    many = many - log(k * float64(6.283185307179586)) * float64(0.5) - rest
    return few if k < float64(10) else many

def poisson(k0, k1, k2, k3, i, rate):
    inside = c_and(rate >= float64(0), rate <= float64(4611686018427387904))
    small = rate < float64(10)
    block = uint64(i) << uint64(5)
    last = block + uint64(31)
    w0, w1, w2, w3 = words(k0, k1, k2, k3, block)
    u = fraction64(joined(w0, w1))
    term = exp(-rate)
    total = term
    found = float64(0)
    going = c_and(c_and(inside, small), u >= total)
    while going:
        found = found + float64(1)
        term = term * rate / found
        total = total + term
        going = c_and(u >= total, term > float64(1e-17))
    width = sqrt(rate) * float64(2.53) + float64(0.931)
    a = width * float64(0.02483) - float64(0.059)
    bound = float64(0.9277) - float64(3.6224) / (width - float64(2))
    scale = float64(1.1328) / (width - float64(3.4)) + float64(1.1239)
    k = float64(0)
    trying = c_and(inside, c_not(small))
    while trying:
        w0, w1, w2, w3 = words(k0, k1, k2, k3, block)
        x = fraction64(joined(w0, w1)) - float64(0.5)
        v = fraction64(joined(w2, w3))
        us = float64(0.5) - fabs(x)
        k = floor((a * float64(2) / us + width) * x + rate + float64(0.43))
        quick = c_and(us >= float64(0.07), v <= bound)
        outside = c_or(k < float64(0), c_and(us < float64(0.013), v > us))
        height = log(v * scale / (a / (us * us) + width))
        fits = c_and(c_not(outside), height <= poisson_log_probability(k, rate))
        trying = c_not(c_or(c_or(quick, fits), block == last))
        block = block + uint64(1)
    taken = found if small else (k if k > float64(0) else float64(0))
    return taken if inside else float64(-1)

def gamma_slope(given, point):
    a = float64(given)
    x = float64(point)
    inside = c_and(c_and(a > float64(0), x > float64(0)), x < float64(inf))
    near = c_and(inside, a < float64(10000))
    power = float64(1) / a
    factor = log(x) - digamma_positive(a + float64(1))
    total = power * factor
    steps = float64(0)
    going = near
    while going:
        steps = steps + float64(1)
        step = a + steps
        power = power * x / step
        factor = factor - float64(1) / step
        added = power * factor
        total = total + added
        small = fabs(added) <= fabs(total) * float64(1e-17)
        over = c_and(small, steps > x - a)
        going = c_not(c_or(over, steps >= float64(20000)))
    y = cbrt(x / (a - float64(0.3333333333333333)))
    cube = y * y * (float64(3) - y) * float64(0.5)
    far = cube if inside else x * float64(0)
    return T(-(x * total) if near else far)
"""
