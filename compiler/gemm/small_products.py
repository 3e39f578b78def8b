"""Choice of products that one small kernel computes alone, and the table that it reads.

The driver's overhead before and between tiles exceeds the arithmetic of small products.
A call of 16 x 16 with 4 terms of float32 takes 25 ns so, by the driver 65; of 16 x 1
with 16 terms 25 and 55; of 16 x 16 with 1 term 16 and 52; of 32 x 32 with 32 terms 570
and 631 (Zen 4, one core, minima). By tiles in one call 32 x 64 with 64 terms took 2260
ns and by the driver 2339 (the arithmetic alone 2220), 64 x 64 with 32 terms and A
transposed 2288 and 2413, with 16 terms 1199 and 1343. From 4,096 terms in all on tiles
are faster than rows or dots: 32 x 32 with 32 terms 440 ns against 540 (Sapphire Rapids,
AVX-512), compiled for AVX2 830 against 930.

The choice is a function of sizes and strides alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.codegen.tiles.product_tiles import plan_of
from staticgrad.compiler.gemm import blas, narrow_products
from staticgrad.compiler.gemm.small_kernels import (
    BY_DOTS,
    BY_ROWS,
    TILED,
    TURNED,
    small_address,
)
from staticgrad.compiler.host.processor import vector_bytes

MOST_TERMS = 1 << 11  # of all sums: with more, tiles are faster
MOST_VECTOR_TERMS = 1 << 15  # of a row or a column
DEEPEST = 256  # terms of one sum: B stays in the L1 cache
WIDE = 4  # registers of a row: beyond, and with more than
FEW_TERMS = 16  # beyond, a row is faster with tiles of several registers

MOST_BYTES = 1 << 15  # of transposed B: an L1 cache, half of the scratch memory
DEPTH_PER_ROW = 9  # as in tile_driver.py: with fewer rows dots are faster

MOST_TILED = 1 << 20  # terms: beyond, the driver's overhead is negligible
MOST_DEPTH, DEEPEST_STRIDED, FLAT = 512, 256, 8  # as in tile_driver.py

ODD = (1, 3, 5, 7)  # multiples of a stride that are words of the table

Side = tuple[int, int]


def describe_small(table: npt.NDArray[np.int64], in_parts: bool = False) -> bool:
    """Fill in a table cut for one of these kernels, if the product suits one.

    Of products in parts, by rows, only those by tiles are.
    """
    kernel = small_kernel(table, in_parts)
    if kernel is None:
        return False
    known: list[int] = table.tolist()
    m, n, k = known[: blas.K + 1]
    a, b = _sides(known)
    left, right = 0, 1
    if n == 1 and known[blas.LDC] == 1:
        # A column is the row of the transposed product.
        left, right, m, n, a, b = 1, 0, n, m, b, a
    size = known[blas.BYTES]
    (a_row, a_step), (b_column, b_step) = a, b
    turns = kernel == TURNED or (kernel == TILED and b_column != 1)
    b_row = b_column if kernel == BY_DOTS else b_step
    if turns:
        b_row = n + -n % _lanes(known)
    starts = [size * known[blas.OFFSET_A + side] for side in (left, right)]
    steps = [size * step for step in (a_step, b_row, k * b_row)]
    strides = (a_row, known[blas.LDC], b_column)
    rows = [size * stride * odd for stride in strides for odd in ODD]
    strip = plan_of().high if k <= FLAT else m
    table[blas.OURS :] = (
        left, right, *starts, m, n, *steps, *rows, strip, turns,
    )  # fmt: skip
    table[blas.DIRECT] = small_address(kernel, size)
    return True


def small_kernel(table: npt.NDArray[np.int64], in_parts: bool = False) -> int | None:
    """Return the small kernel that computes a product, or None."""
    known: list[int] = table.tolist()
    m, n, k = known[: blas.K + 1]
    narrow = narrow_products.strategy(table) != narrow_products.TILES
    if narrow or m * n * k < 1 or not plan_of().masks:
        return None
    a, b = _sides(known)
    if n == 1 and known[blas.LDC] == 1:
        m, n, a, b = n, m, b, a
    lanes, alone = _lanes(known), known[blas.BATCH] == 1 and not in_parts
    kernel = None
    most = MOST_TERMS if min(m, n) > 1 else MOST_VECTOR_TERMS
    if alone and m * n * k <= most and k <= DEEPEST:
        kernel = _kernel(m, n, k, a, b, lanes)
    if kernel is None and min(m, n) > 1 and m * n * k <= MOST_TILED:
        return TILED if _is_tiled(m, n, k, a, b, lanes) else None
    return kernel


def _is_tiled(m: int, n: int, k: int, a: Side, b: Side, lanes: int) -> bool:
    """Whether one call computes a product by tiles."""
    most = MOST_DEPTH if a[1] == 1 or k <= FEW_TERMS else DEEPEST_STRIDED
    return k <= most and (b[0] == 1 or _turned_pays(m, n, k, lanes))


def _sides(known: list[int]) -> tuple[Side, Side]:
    """Return A's strides along rows and terms, B's along columns and terms."""
    a = (known[blas.LDA], 1)
    b = (known[blas.LDB], 1)
    if known[blas.A_TRANSPOSED]:
        a = a[::-1]
    return a, b if known[blas.B_TRANSPOSED] else b[::-1]


def _lanes(known: list[int]) -> int:
    return vector_bytes() // known[blas.BYTES]


def _kernel(m: int, n: int, k: int, a: Side, b: Side, lanes: int) -> int | None:
    """Return the kernel for these strides, of rows (or columns) and of terms."""
    if n == 1 or b[0] == 1:
        wide = m == 1 and k > FEW_TERMS and n >= WIDE * lanes
        return None if wide else BY_ROWS
    if m > 1:
        return TURNED if _turned_pays(m, n, k, lanes) else None
    return BY_DOTS if k == 1 or (a[1] == 1 and b[1] == 1) else None


def _turned_pays(m: int, n: int, k: int, lanes: int) -> bool:
    """Whether B is worth transposing: it is small, and dots would not be faster."""
    padded = (k + -k % lanes) * (n + -n % lanes) * (vector_bytes() // lanes)
    return padded <= MOST_BYTES and (k <= FEW_TERMS or k < DEPTH_PER_ROW * m)
