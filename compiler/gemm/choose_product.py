"""Choice between our own tiles and OpenBLAS for matrix products.

The rule looks at sizes alone, so that a product has the same bits on every run. Its
constant comes from ``python -m benchmarks gemm``; on an AMD EPYC (family 25, model 17:
Zen 4, AVX-512 at half rate), one core beside other load, GF/s:

| product                | OpenBLAS | in parts | ours | the same in float64 |
|------------------------|----------|----------|------|---------------------|
| NN 32x64x64            | 103      | 104      | 112  | 53, 53, 56          |
| NT 32x64x64            | 67       | 73       | 107  | 39, 39, 55          |
| TN 64x64x32            | 106      | 106      | 114  | 53, 53, 56          |
| NN 64x256x784          | 96       | 93       | 114  | 48, 44, 57          |
| NT 64x784x256          | 93       | 91       | 106  | 49, 47, 52          |
| TN 784x256x64          | 102      | 101      | 111  | 51, 51, 52          |
| NN 64x10x256           | 63       | 63       | 73   | 50, 50, 36          |
| TN 256x10x64           | 62       | 62       | 69   | 51, 52, 36          |
| NT 64x64x16, 32 times  | 64       | 65       | 102  | 34, 34, 51          |
| NN 1000x1x20           | 3.3      | 3.3      | 27   | 10, 10, 22          |
| NN 1x1024x1024         | 6.1      | 6        | 32   | 6.8, 6.8, 18        |
| NN 4x3000x3000         | 17       | 15       | 39   | 11, 9.3, 20         |
| NN 256x256x256         | 103      | 98       | 114  | 52, 48, 55          |
| NT 256x256x256         | 101      | 96       | 113  | 51, 47, 56          |
| NN 512x512x512         | 105      | 88       | 106  |                     |
| NT 512x512x512         | 101      | 84       | 106  |                     |
| TN 512x512x512         | 103      | 86       | 101  |                     |

Graphs run large products in parts. Beyond about 512^3 (float32) B no longer stays in
cache and OpenBLAS, which packs it, is faster or equal. On a Zen 5 core (AVX-512 at full
rate) a prototype of these tiles was ahead up to about a third of that.

Known weakness: ten columns of float64 fill one register and a quarter of the next.
"""

from __future__ import annotations

MOST_BYTES = 560_000_000
"""Of terms: 140 million of float32, 70 million of float64."""

MOST_THIN = 8
"""Rows of A for all of which B is read once (few_rows.py). 1, 2, 4 and 8 rows
times 3000 x 3000 of float32 take 1.0, 1.1, 1.0 and 1.8 ms; NumPy's OpenBLAS 1.1, 4.0,
4.0 and 5.0, tiles 2.4, 4.4, 4.4 and 8.6 (Zen 4, one core)."""


def ours(m: int, n: int, k: int, itemsize: int) -> bool:
    """Whether tile_driver.py computes C = A B of m x n and k terms.

    A vector always is, and so are a few rows: OpenBLAS treats them as matrices.

    >>> ours(512, 512, 512, 4), ours(1024, 512, 512, 4), ours(8, 20_000, 20_000, 8)
    (True, False, True)
    """
    return m <= MOST_THIN or n == 1 or m * n * k * itemsize <= MOST_BYTES
