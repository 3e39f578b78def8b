"""Functions of the kernel language on CUDA: libdevice, and text of our own.

NVIDIA's libdevice has the elementary functions, each for one type (`expf`, `exp`). Its
largest errors in float32 (CUDA C++ Programming Guide, mathematical functions) are 1-2
units in the last place, 3 for sinh, asinh, atanh, atan2 and hypot, 4 for tan, acosh,
erfc and pow, 6 for lgamma away from its zeros; in float64 they are 1-2, 5 for erfc.

What it has not is written here, in the kernel language itself: expression_text.py puts
the text where it is called, since device functions would need a device to be compiled.
`T` is the type of the first argument. A body is assignments, while loops without
calls in their conditions, and one return at its end, of several values where the call
stands alone behind as many names.

Own, too, are sin, cos and tan of float32 (trigonometry_text.py), and lgamma of float64,
which spills registers in libdevice. digamma and zeta are computed in float64 whatever
their type, as on the cpu.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache

import numpy as np

from staticgrad.compiler.codegen.math.vector_gamma import (
    DIGAMMA,
    LGAMMA,
    MACLAURIN,
    STIRLING,
)
from staticgrad.compiler.cuda.source.draw_text import DRAWS
from staticgrad.compiler.cuda.source.trigonometry_text import TRIGONOMETRY
from staticgrad.ir.types import FLOAT32, FLOAT64, DType

LIBDEVICE = frozenset("cospi erfcx fabs fma sinpi".split())
"""Functions of libdevice that only texts call."""

BOTH = """
def settled(x):
    return c_not(c_and(fabs(x) > T(0), fabs(x) < T(inf)))

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

def float_parts(x, y):
    rest = fmod(x, y)
    signs = c_xor(rest < T(0), y < T(0))
    return rest, c_and(rest != T(0), signs)

def floor_divide_float(x, y):
    rest, moved = float_parts(x, y)
    plain = (x - rest) / y
    quotient = plain - T(1) if moved else plain
    down = floor(quotient)
    rounded = down + T(1) if quotient - down > T(0.5) else down
    whole = copysign(T(0), x / y) if quotient == T(0) else rounded
    return x / y if y == T(0) else whole

def remainder_float(x, y):
    rest, moved = float_parts(x, y)
    turned = rest + y if moved else rest
    signed = copysign(T(0), y) if rest == T(0) else turned
    return rest if y == T(0) else signed

def divisor(x, y):
    bad = c_or(y == T(0), overflows(x, y))
    return T(1) if bad else y

def int_parts(x, y):
    d = divisor(x, y)
    quotient = quotient_of(x, d)
    rest = x - quotient * d
    return d, quotient, rest, c_and(rest != T(0), opposite(rest, d))

def floor_divide_int(x, y):
    d, quotient, rest, moved = int_parts(x, y)
    down = quotient - T(1) if moved else quotient
    return T(0) if y == T(0) else down

def remainder_int(x, y):
    d, quotient, rest, moved = int_parts(x, y)
    up = rest + d if moved else rest
    return T(0) if y == T(0) else up

def fmod_int(x, y):
    d, quotient, rest, moved = int_parts(x, y)
    return T(0) if y == T(0) else rest

def gcd(x, y):
    a = U(absolute(x))
    b = U(absolute(y))
    while b != U(0):
        rest = a - quotient_of(a, b) * b
        a = b
        b = rest
    return T(a)

def ipower_uint(x, y):
    total = T(1)
    base = x
    left = U(y)
    going = True
    while going:
        total = total * base if (left & U(1)) != U(0) else total
        base = base * base
        left = left >> U(1)
        going = left != U(0)
    return total

def ipower(x, y):
    total = ipower_uint(x, y)
    flipped = T(-1) if (y & T(1)) != T(0) else T(1)
    unit = T(1) if x == T(1) else T(0)
    inverse = flipped if x == T(-1) else unit
    return inverse if y < T(0) else total

def high_product(x, y):
    mask = uint64(4294967295)
    low = (x & mask) * (y & mask)
    middle = (x >> uint64(32)) * (y & mask) + (low >> uint64(32))
    other = (x & mask) * (y >> uint64(32)) + (middle & mask)
    top = (x >> uint64(32)) * (y >> uint64(32))
    return top + (middle >> uint64(32)) + (other >> uint64(32))

def inside(x, extent):
    return x if c_and(x >= int64(0), x < extent) else extent - int64(1)
"""

GAMMAS = """
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
{lgamma}
    fit = (u + T(1)) * u * p
    value = fit - logarithm if small else fit + logarithm
    i = T(1) / size
    z = i * i
{stirling}
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
{digamma}
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
    series = float64(0)
{maclaurin}
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
def frexp_exponent{bits}(x):
    tiny = fabs(x) < T({least})
    value = x * T({up}) if tiny else x
    biased = (float_bits(value) >> int{bits}({fraction})) & int{bits}({mask})
    shift = int{bits}({far}) if tiny else int{bits}({near})
    return int32(0) if settled(x) else int32(biased - shift)

def frexp_fraction{bits}(x):
    value = x * T({up}) if fabs(x) < T({least}) else x
    bits = (float_bits(value) & int{bits}({rest})) | int{bits}({half})
    return x if settled(x) else {back}(bits)
"""

ORDER = """
def order_bits{bits}(x):
    bits = float_bits(x)
    turned = bits ^ int{bits}({largest}) if bits < int{bits}(0) else bits
    known = int{bits}({largest}) if x != x else turned
    return uint{bits}(known) ^ uint{bits}({sign})

def order_float{bits}(u):
    ranked = int{bits}(u ^ uint{bits}({sign}))
    turned = ranked ^ int{bits}({largest})
    return {back}(turned if ranked < int{bits}(0) else ranked)
"""


def _order(bits: int, back: str) -> str:
    """Map floats to unsigned integers that sort alike."""
    sign = 1 << (bits - 1)
    return ORDER.format(bits=bits, back=back, sign=sign, largest=sign - 1)


def _split(dtype: DType, back: str) -> str:
    """Split a number into fraction times 2 ** exponent; tiny ones are scaled first."""
    info, bits = np.finfo(dtype), 8 * dtype.itemsize
    fraction, up = info.nmant, info.nmant + 3
    mask, near = (1 << info.iexp) - 1, int(-info.minexp)
    exponents = mask << fraction
    return SPLIT.format(
        bits=bits, least=float(info.tiny) * 4, up=1 << up, fraction=fraction,
        mask=mask, far=near + up, near=near, rest=~exponents,
        half=near << fraction, back=back,
    )  # fmt: skip


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
    quiet = (bits >> uint32(16)) | uint32(64)
    return uint16((rounded >> uint32(16)) if x == x else quiet)

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
    """Return the text to inline for each function, by name."""
    gammas = GAMMAS.format(
        lgamma=_polynomial("p", "u", LGAMMA, "T"),
        stirling=_polynomial("s", "z", STIRLING, "T"),
        digamma=_polynomial("p", "s", DIGAMMA, "float64"),
        maclaurin="\n".join(
            f"    series = fma(f{k}, float64({value!r}), series)"
            for k, value in reversed(tuple(enumerate(MACLAURIN)))
        ),
    )
    halves = _split(FLOAT32, "float_of") + _split(FLOAT64, "double_of")
    orders = _order(32, "float_of") + _order(64, "double_of")
    text = BOTH + DRAWS + gammas + halves + HALVES + orders + TRIGONOMETRY
    return {f.name: f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)}


def _polynomial(name: str, at: str, coefficients: Sequence[float], kind: str) -> str:
    """Return the lines of Horner's rule, the lowest coefficient first."""
    *rest, top = coefficients
    lines = [f"    {name} = {kind}({top!r})"]
    lines += [f"    {name} = fma({name}, {at}, {kind}({c!r}))" for c in reversed(rest)]
    return "\n".join(lines)
