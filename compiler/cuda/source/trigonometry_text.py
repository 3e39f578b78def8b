"""float32 sin, cos and tan for the CUDA target, without float64.

libdevice reduces far arguments with a float64 multiplication. Here it is Payne and
Hanek's method in integers: 2/pi as words of 32 bits, shifted by the exponent, times the
mantissa; the fraction of the product is the angle in quadrants. Near arguments lose
multiples of pi/2 in three parts (Cody and Waite). Largest errors found in units of the
last place: sin 1.24, cos 1.21, tan 2.4. After N. Juffa, "Argument reduction for
single-precision trigonometric functions", NVIDIA developer forum.
"""

from __future__ import annotations

_WORDS = """
def two_over_pi(word):
    low = uint32(0)
    low = uint32(683565275) if word == int32(0) else low
    low = uint32(2475754826) if word == int32(1) else low
    low = uint32(2131351028) if word == int32(2) else low
    low = uint32(2102212464) if word == int32(3) else low
    low = uint32(920167782) if word == int32(4) else low
    low = uint32(1326507024) if word == int32(5) else low
    low = uint32(2140428522) if word == int32(6) else low
    return low
"""

_REDUCED = """    n = rint(x * T(0.6366197466850281))
    q = int32(n)
    r = fma(n, T(-1.5707963705062866), x)
    r = fma(n, T(4.371138828673793e-08), r)
    r = fma(n, T(1.7151245e-15), r)
    far = not_at_least(T(100000), fabs(x))
    while far:
        bits = uint32(float_bits(x))
        e = int32(bits >> uint32(23) & uint32(255)) - int32(126)
        m = bits << uint32(8) | uint32(2147483648)
        word = e >> int32(5)
        s = uint32(e & int32(31))
        w0 = two_over_pi(word - int32(1))
        w1 = two_over_pi(word)
        w2 = two_over_pi(word + int32(1))
        w3 = two_over_pi(word + int32(2))
        left = uint64(uint32(32) - s)
        high = uint32((uint64(w0) << uint64(32) | uint64(w1)) >> left)
        middle = uint32((uint64(w1) << uint64(32) | uint64(w2)) >> left)
        low = uint32((uint64(w2) << uint64(32) | uint64(w3)) >> left)
        p = uint64(m) * uint64(low) >> uint64(32)
        p = p + uint64(m) * uint64(middle)
        p = p + (uint64(m * high) << uint64(32))
        q = int32(p >> uint64(62))
        p = p & uint64(4611686018427387903)
        up = p >= uint64(2305843009213693952)
        q = q + int32(1) if up else q
        size = uint64(4611686018427387904) - p if up else p
        f = T(size) * T(2.168404344971009e-19)
        f = fma(f, T(1.5707963705062866), f * T(-4.371138828673793e-08))
        f = -f if up else f
        below = x < T(0)
        r = -f if below else f
        q = int32(0) - q if below else q
        far = False
    r = r if fabs(x) < T(inf) else T(nan)
    s2 = r * r
    a = T(-0.00019515296)
    a = fma(a, s2, T(0.008332161))
    a = fma(a, s2, T(-0.16666655))
    sine = fma(a * s2, r, r)
    b = T(2.4433157e-05)
    b = fma(b, s2, T(-0.0013887316))
    b = fma(b, s2, T(0.041666646))
    b = fma(b, s2, T(-0.5))
    cosine = fma(b, s2, T(1))
"""
"""Lines that make `sine`, `cosine` and the quadrant `q` of x."""

TRIGONOMETRY = (
    _WORDS
    + "\ndef sin32(x):\n"
    + _REDUCED
    + """    turned = (q & int32(1)) != int32(0)
    value = cosine if turned else sine
    value = -value if (q & int32(2)) != int32(0) else value
    return x if x == T(0) else value
"""
    + "\ndef cos32(x):\n"
    + _REDUCED
    + """    turned = (q & int32(1)) != int32(0)
    value = sine if turned else cosine
    return -value if ((q + int32(1)) & int32(2)) != int32(0) else value
"""
    + "\ndef tan32(x):\n"
    + _REDUCED
    + """    turned = (q & int32(1)) != int32(0)
    value = -cosine / sine if turned else sine / cosine
    return x if x == T(0) else value
"""
)
