"""Which matrix products our own tiles compute, and which OpenBLAS.

The rule looks at sizes alone, so that a product has the same bits on every run. Its
constant comes from ``python -m benchmarks gemm``; on an AMD EPYC (family 25, model 17:
Zen 4, AVX-512 at half rate), one core beside other load, GF/s:

| product                | OpenBLAS | in parts | ours | the same in float64 |
|------------------------|----------|----------|------|---------------------|
| NN 32x64x64            | 105      | 105      | 108  | 52, 52, 55          |
| NT 32x64x64            | 71       | 72       | 97   | 37, 38, 50          |
| TN 64x64x32            | 106      | 106      | 107  | 54, 54, 54          |
| NN 64x256x784          | 96       | 93       | 113  | 49, 44, 57          |
| NT 64x784x256          | 93       | 90       | 105  | 50, 48, 54          |
| TN 784x256x64          | 101      | 100      | 109  | 51, 50, 54          |
| NN 64x10x256           | 63       | 63       | 72   | 50, 50, 36          |
| TN 256x10x64           | 63       | 63       | 69   | 49, 49, 35          |
| NT 64x64x16, 32 times  | 61       | 65       | 89   | 34, 34, 45          |
| NN 1000x1x20           | 3.4      | 3.4      | 26   | 10, 10, 20          |
| NN 1x1024x1024         | 5        | 5        | 29   | 7, 7, 18            |
| NN 4x3000x3000         | 12       | 11       | 46   | 11, 10, 20          |
| NN 256x256x256         | 104      | 100      | 115  | 52, 48, 57          |
| NT 256x256x256         | 102      | 97       | 103  | 51, 47, 52          |
| NN 512x512x512         | 104      | 88       | 111  |                     |
| NT 512x512x512         | 102      | 87       | 99   |                     |
| TN 512x512x512         | 103      | 87       | 103  |                     |

Graphs run large products in parts. Beyond about 512^3 (float32) B no longer stays near
and OpenBLAS, which packs it, is ahead or equal. On a Zen 5 core (AVX-512 at full rate)
a prototype of these tiles was ahead up to about a third of that.

Known weakness: ten columns of float64 fill one register and a quarter of the next.
"""

from __future__ import annotations

MOST_BYTES = 560_000_000
"""Of terms: 140 million of float32, 70 million of float64."""

MOST_THIN = 8
"""Rows of A for all of which B is read once (codegen/gemm_thin.py). 1, 2, 4 and 8 rows
times 3000 x 3000 of float32 take 1.0, 1.1, 1.0 and 1.8 ms; NumPy's OpenBLAS 1.1, 4.0,
4.0 and 5.0, tiles 2.4, 4.4, 4.4 and 8.6 (Zen 4, one core)."""


def ours(m: int, n: int, k: int, itemsize: int) -> bool:
    """Whether C = A B of m x n and k terms is computed by gemm.py.

    A vector always is, and so are a few rows: OpenBLAS takes its road for matrices.

    >>> ours(512, 512, 512, 4), ours(1024, 512, 512, 4), ours(8, 20_000, 20_000, 8)
    (True, False, True)
    """
    return m <= MOST_THIN or n == 1 or m * n * k * itemsize <= MOST_BYTES
