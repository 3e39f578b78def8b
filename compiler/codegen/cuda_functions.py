"""Functions of the kernel language for the CUDA target: libdevice, and text of our own.

NVIDIA's libdevice has the elementary functions, each for one type (`expf`, `exp`). Its
largest errors in float32 (CUDA C++ Programming Guide, mathematical functions) are 1-2
units in the last place, 3 for sinh, asinh, atanh, atan2 and hypot, 4 for tan, acosh,
erfc and pow, 6 for lgamma away from its zeros; in float64 they are 1-2, 5 for erfc.

What it has not is written here, in the kernel language itself: cuda_expression.py puts
the text where it is called, since device functions would need a device to be compiled.
`T` is the type of the first argument. A body is assignments, while loops without
calls in their conditions, and one return at its end.

Own, too, are sin, cos and tan of float32 (cuda_trigonometry.py), and lgamma of float64,
which spills registers in libdevice. digamma and zeta are computed in float64 whatever
their type, as on the cpu.
"""

from __future__ import annotations

import ast
from functools import cache

from staticgrad.compiler.codegen.cuda_trigonometry import TRIGONOMETRY

LIBDEVICE: dict[str, str] = {
    **{
        name: name
        for name in (
            "exp exp2 expm1 log log2 log10 log1p sinh cosh tanh asinh acosh atanh erf "
            "erfc lgamma sin cos tan asin acos atan atan2 cbrt hypot sqrt rsqrt erfinv "
            "erfcx floor ceil rint trunc copysign fma fabs sinpi cospi nextafter"
        ).split()
    },
    "power": "pow",
    "float_rest": "fmod",
}
"""Our name -> the name of the float64 function; the float32 one has an `f` behind."""

BOTH = """
def sigmoid(x):
    z = exp(-fabs(x))
    top = z if not_at_least(x, T(0)) else T(1)
    return top / (T(1) + z)

def softplus(x):
    top = T(0) if x < T(0) else x
    return top + log1p(exp(-fabs(x)))

def gelu(x):
    a = T(40) if fabs(x) > T(40) else fabs(x)
    h = a * a
    rest = fma(a, a, -h)
    left = exp(-h * T(0.5)) * (T(1) - rest * T(0.5))
    q = left * erfcx(a * T(0.7071067811865476)) * T(0.5)
    return -a * q if x < T(0) else x * (T(1) - q)

def sign_float(x):
    rest = T(0) if x == T(0) else x
    low = T(-1) if x < T(0) else rest
    return T(1) if x > T(0) else low

def floor_divide_float(x, y):
    rest = float_rest(x, y)
    plain = (x - rest) / y
    signs = c_xor(rest < T(0), y < T(0))
    moved = c_and(rest != T(0), signs)
    quotient = plain - T(1) if moved else plain
    down = floor(quotient)
    rounded = down + T(1) if quotient - down > T(0.5) else down
    whole = copysign(T(0), x / y) if quotient == T(0) else rounded
    return x / y if y == T(0) else whole

def remainder_float(x, y):
    rest = float_rest(x, y)
    signs = c_xor(rest < T(0), y < T(0))
    moved = c_and(rest != T(0), signs)
    turned = rest + y if moved else rest
    signed = copysign(T(0), y) if rest == T(0) else turned
    return rest if y == T(0) else signed

def divisor(x, y):
    bad = c_or(y == T(0), overflows(x, y))
    return T(1) if bad else y

def floor_divide_int(x, y):
    d = divisor(x, y)
    quotient = quotient_of(x, d)
    rest = x - quotient * d
    down = quotient - T(1) if c_and(rest != T(0), opposite(rest, d)) else quotient
    return T(0) if y == T(0) else down

def remainder_int(x, y):
    d = divisor(x, y)
    rest = x - quotient_of(x, d) * d
    up = rest + d if c_and(rest != T(0), opposite(rest, d)) else rest
    return T(0) if y == T(0) else up

def fmod_int(x, y):
    d = divisor(x, y)
    rest = x - quotient_of(x, d) * d
    return T(0) if y == T(0) else rest

def gcd(x, y):
    a = U(absolute(x))
    b = U(absolute(y))
    while b != U(0):
        rest = a - quotient_of(a, b) * b
        a = b
        b = rest
    return T(a)

def ipower(x, y):
    total = T(1)
    base = x
    left = U(y)
    going = True
    while going:
        total = total * base if (left & U(1)) != U(0) else total
        base = base * base
        left = U(left >> U(1))
        going = left != U(0)
    flipped = T(-1) if (y & T(1)) != T(0) else T(1)
    unit = T(1) if x == T(1) else T(0)
    inverse = flipped if x == T(-1) else unit
    return inverse if y < T(0) else total

def upower(x, y):
    total = T(1)
    base = x
    left = y
    going = True
    while going:
        total = total * base if (left & T(1)) != T(0) else total
        base = base * base
        left = left >> T(1)
        going = left != T(0)
    return total

def philox(a0, a1, a2, a3, b0, b1, number):
    n = uint32(0)
    while n < uint32(10):
        p = uint64(3528531795) * uint64(a0)
        q = uint64(3449720151) * uint64(a2)
        first = uint32(q >> uint64(32)) ^ a1 ^ b0
        third = uint32(p >> uint64(32)) ^ a3 ^ b1
        a1 = uint32(q)
        a3 = uint32(p)
        a0 = first
        a2 = third
        b0 = b0 + uint32(2654435769)
        b1 = b1 + uint32(3144134277)
        n = n + uint32(1)
    low = a1 if number == uint32(1) else a0
    high = a3 if number == uint32(3) else a2
    return low if number < uint32(2) else high

def philox_word(k0, k1, k2, k3, c, number):
    return philox(uint32(c), uint32(0), k2, k3, k0, k1, uint32(number))

def word32(k0, k1, k2, k3, i):
    block = uint64(i) >> uint64(2)
    number = uint32(i) & uint32(3)
    high = uint32(block >> uint64(32))
    return philox(uint32(block), high, k2, k3, k0, k1, number)

def word64(k0, k1, k2, k3, i):
    at = int64(uint64(i) << uint64(1))
    low = word32(k0, k1, k2, k3, at)
    high = word32(k0, k1, k2, k3, at + int64(1))
    return uint64(low) | (uint64(high) << uint64(32))

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

def normal32(k0, k1, k2, k3, i):
    first = int64(i & int64(-2))
    x = word32(k0, k1, k2, k3, first)
    y = word32(k0, k1, k2, k3, first + int64(1))
    u = (float32(x) + float32(0.5)) * float32(2.3283064365386963e-10)
    radius = sqrt(log(u) * float32(-2))
    q = (y + uint32(536870912)) >> uint32(30)
    rest = int32(y - (q << uint32(30)))
    turn = float32(rest) * float32(4.656612873077393e-10)
    odd = (q & uint32(1)) != uint32(0)
    is_sine = (i & int64(1)) != int64(0)
    plain = cospi(turn) if c_not(c_xor(odd, is_sine)) else sinpi(turn)
    quarter = q if is_sine else q + uint32(1)
    value = -plain if (quarter & uint32(2)) != uint32(0) else plain
    return radius * value

def normal64(k0, k1, k2, k3, i):
    first = int64(i & int64(-2))
    x = word64(k0, k1, k2, k3, first)
    y = word64(k0, k1, k2, k3, first + int64(1))
    u = float64(1) - fraction64(x)
    radius = sqrt(log(u) * float64(-2))
    q = (y + uint64(2305843009213693952)) >> uint64(62)
    rest = int64(y - (q << uint64(62)))
    turn = float64(rest) * float64(1.0842021724855044e-19)
    odd = (q & uint64(1)) != uint64(0)
    is_sine = (i & int64(1)) != int64(0)
    plain = cospi(turn) if c_not(c_xor(odd, is_sine)) else sinpi(turn)
    quarter = q if is_sine else q + uint64(1)
    value = -plain if (quarter & uint64(2)) != uint64(0) else plain
    return radius * value

def high_product(x, y):
    mask = uint64(4294967295)
    low = (x & mask) * (y & mask)
    middle = (x >> uint64(32)) * (y & mask) + (low >> uint64(32))
    other = (x & mask) * (y >> uint64(32)) + (middle & mask)
    top = (x >> uint64(32)) * (y >> uint64(32))
    return top + (middle >> uint64(32)) + (other >> uint64(32))

def inside(x, extent):
    return x if c_and(x >= int64(0), x < extent) else extent - int64(1)

def lgamma64(x):
    size = fabs(x)
    small = size < T(1)
    near = size + T(1) if small else size
    factor = T(1)
    k = T(0)
    while k < T(5):
        shifts = near >= T(3)
        near = near - T(1) if shifts else near
        factor = factor * near if shifts else factor
        k = k + T(1)
    factor = size if small else factor
    large = size >= T(8)
    logarithm = log(size if large else factor)
    u = near - T(2)
    p = T(1.4756809431956831e-09)
    p = fma(p, u, T(-3.045083104616406e-09))
    p = fma(p, u, T(-3.670795027768109e-09))
    p = fma(p, u, T(7.546982106044216e-09))
    p = fma(p, u, T(1.435465302953771e-08))
    p = fma(p, u, T(-2.9689377236178223e-08))
    p = fma(p, u, T(8.980664220820412e-09))
    p = fma(p, u, T(-1.9155798912805917e-08))
    p = fma(p, u, T(1.0090092625984202e-07))
    p = fma(p, u, T(-2.1160209415295267e-07))
    p = fma(p, u, T(3.982919074962609e-07))
    p = fma(p, u, T(-8.417878185566207e-07))
    p = fma(p, u, T(1.8101965799291278e-06))
    p = fma(p, u, T(-3.851628024568635e-06))
    p = fma(p, u, T(8.221641168761987e-06))
    p = fma(p, u, T(-1.7660549436859962e-05))
    p = fma(p, u, T(3.816898384337613e-05))
    p = fma(p, u, T(-8.30953205143401e-05))
    p = fma(p, u, T(0.0001825526289609524))
    p = fma(p, u, T(-0.0004057073767183402))
    p = fma(p, u, T(0.0009153769228593482))
    p = fma(p, u, T(-0.0021081308352055112))
    p = fma(p, u, T(0.004998641164680356))
    p = fma(p, u, T(-0.012384192193336403))
    p = fma(p, u, T(0.03296500062115597))
    p = fma(p, u, T(-0.10031730167435421))
    p = fma(p, u, T(0.42278433509846713))
    fit = (u + T(1)) * u * p
    value = fit - logarithm if small else fit + logarithm
    i = T(1) / size
    z = i * i
    s = T(-0.029550653594771242)
    s = fma(s, z, T(0.00641025641025641))
    s = fma(s, z, T(-0.0019175269175269176))
    s = fma(s, z, T(0.0008417508417508417))
    s = fma(s, z, T(-0.0005952380952380953))
    s = fma(s, z, T(0.0007936507936507937))
    s = fma(s, z, T(-0.002777777777777778))
    s = fma(s, z, T(0.08333333333333333))
    rest = s * i + T(0.9189385332046727)
    lead = fma(size - T(0.5), logarithm - T(1), rest - T(0.5))
    value = lead if large else value
    whole = rint(x) == x
    below = x < T(0)
    distance = fabs(sinpi(size - rint(size)))
    mirrored = log(T(3.141592653589793) / (size * distance)) - value
    value = mirrored if c_and(below, size > T(8.673617379884035e-19)) else value
    edge = c_or(c_and(below, whole), c_or(size == T(inf), size == T(0)))
    return T(inf) if edge else value

def digamma_positive(x):
    near = x < float64(10)
    low = x if near else float64(1)
    product = low
    slope = float64(1)
    k = float64(1)
    while k < float64(10):
        term = low + k
        slope = fma(slope, term, product)
        product = product * term
        k = k + float64(1)
    lost = slope / product if near else float64(0)
    far = x + float64(10) if near else x
    inverse = float64(1) / far
    s = inverse * inverse
    p = float64(0.4431372549019608)
    p = fma(p, s, float64(-0.08333333333333333))
    p = fma(p, s, float64(0.021092796092796094))
    p = fma(p, s, float64(-0.007575757575757576))
    p = fma(p, s, float64(0.004166666666666667))
    p = fma(p, s, float64(-0.003968253968253968))
    p = fma(p, s, float64(0.008333333333333333))
    p = fma(p, s, float64(-0.08333333333333333))
    return log(far) - lost + (s * p - inverse * float64(0.5))

def digamma(given):
    x = float64(given)
    below = x < float64(0)
    y = digamma_positive(float64(1) - x if below else x)
    r = x - rint(x)
    cotangent = float64(3.141592653589793) * cospi(r) / sinpi(r)
    y = y - cotangent if below else y
    y = float64(nan) if c_and(below, r == float64(0)) else y
    y = copysign(float64(inf), -x) if x == float64(0) else y
    return T(y)

def zeta_sum(x, s):
    base = x
    total = float64(0)
    limit = s + float64(10)
    while base < limit:
        total = total + power(base, -s)
        base = base + float64(1)
    last = power(base, -s)
    square = float64(1) / (base * base)
    f0 = s * last / base
    f1 = f0 * (s + float64(1)) * (s + float64(2)) * square
    f2 = f1 * (s + float64(3)) * (s + float64(4)) * square
    f3 = f2 * (s + float64(5)) * (s + float64(6)) * square
    f4 = f3 * (s + float64(7)) * (s + float64(8)) * square
    f5 = f4 * (s + float64(9)) * (s + float64(10)) * square
    f6 = f5 * (s + float64(11)) * (s + float64(12)) * square
    f7 = f6 * (s + float64(13)) * (s + float64(14)) * square
    series = f7 * float64(-3.3896802963225827e-13)
    series = fma(f6, float64(1.3382536530684679e-11), series)
    series = fma(f5, float64(-5.284190138687493e-10), series)
    series = fma(f4, float64(2.08767569878681e-08), series)
    series = fma(f3, float64(-8.267195767195768e-07), series)
    series = fma(f2, float64(3.306878306878307e-05), series)
    series = fma(f1, float64(-0.001388888888888889), series)
    series = fma(f0, float64(0.08333333333333333), series)
    tail = base * last / (s - float64(1)) + last * float64(0.5) + series
    return float64(0) if x == float64(inf) else total + tail

def zeta(given, order):
    x = float64(given)
    s = float64(order)
    r = x - rint(x)
    left = r < float64(0)
    fraction = r + float64(1) if left else r
    other = -r if left else float64(1) - r
    half = s * float64(0.5)
    turn = float64(1) if rint(half) == half else float64(-1)
    below = x < float64(0)
    y = zeta_sum(fraction if below else x, s)
    first = zeta_sum(other if below else float64(1), s)
    second = zeta_sum(float64(1) - x if below else float64(1), s)
    y = y + turn * (first - second) if below else y
    whole = c_and(x <= float64(0), r == float64(0))
    return T(float64(inf) if whole else y)
"""


SPLIT = """
def settled(x):
    return c_not(c_and(fabs(x) > T(0), fabs(x) < T(inf)))

def frexp_exponent32(x):
    tiny = fabs(x) < T(4.70197740328915e-38)
    value = x * T(67108864) if tiny else x
    biased = (float_bits(value) >> int32(23)) & int32(255)
    shift = int32(152) if tiny else int32(126)
    return int32(0) if settled(x) else biased - shift

def frexp_fraction32(x):
    value = x * T(67108864) if fabs(x) < T(4.70197740328915e-38) else x
    bits = (float_bits(value) & int32(-2139095041)) | int32(1056964608)
    return x if settled(x) else float_of(bits)

def frexp_exponent64(x):
    tiny = fabs(x) < T(8.900295434028806e-308)
    value = x * T(36028797018963968) if tiny else x
    biased = (float_bits(value) >> int64(52)) & int64(2047)
    shift = int64(1077) if tiny else int64(1022)
    return int32(0) if settled(x) else int32(biased - shift)

def frexp_fraction64(x):
    tiny = fabs(x) < T(8.900295434028806e-308)
    value = x * T(36028797018963968) if tiny else x
    bits = float_bits(value) & int64(-9218868437227405313)
    return x if settled(x) else double_of(bits | int64(4602678819172646912))
"""

HALVES = """
def to_odd(x):
    t = float32(x)
    bits = float_bits(t)
    above = fabs(float64(t)) > fabs(x)
    bits = bits - int32(1) if above else bits
    exact = float64(t) == x
    bits = bits if c_or(exact, x != x) else bits | int32(1)
    return float_of(bits)

def from_bfloat16(bits):
    return float_of(int32(uint32(bits) << uint32(16)))

def to_bfloat16(x):
    bits = uint32(float_bits(x))
    rounded = bits + uint32(32767) + ((bits >> uint32(16)) & uint32(1))
    nan = (bits >> uint32(16)) | uint32(64)
    return uint16((rounded >> uint32(16)) if x == x else nan)

def from_float16(bits):
    word = uint32(bits)
    sign = (word & uint32(32768)) << uint32(16)
    exponent = (word >> uint32(10)) & uint32(31)
    fraction = word & uint32(1023)
    top = uint32(255) if exponent == uint32(31) else exponent + uint32(112)
    normal = float_of(int32((top << uint32(23)) | (fraction << uint32(13))))
    small = float32(fraction) * float32(5.960464477539063e-08)
    size = small if exponent == uint32(0) else normal
    return -size if sign != uint32(0) else size

def to_float16(x):
    bits = uint32(float_bits(x))
    sign = (bits >> uint32(16)) & uint32(32768)
    size = bits & uint32(2147483647)
    rounded = size + uint32(4095) + ((size >> uint32(13)) & uint32(1))
    normal = (rounded - uint32(939524096)) >> uint32(13)
    a = fabs(x)
    tiny = a < float32(6.103515625e-05)
    small = uint32(rint((a if tiny else float32(0)) * float32(16777216)))
    half = small if tiny else normal
    half = uint32(31744) if a >= float32(65520) else half
    half = half if x == x else uint32(32256)
    return uint16(sign | half)
"""


@cache
def written() -> dict[str, ast.FunctionDef]:
    """Name -> the text that is put where the function is called."""
    text = BOTH + SPLIT + HALVES + TRIGONOMETRY
    return {f.name: f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)}
