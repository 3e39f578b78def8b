"""Which products one small kernel computes alone, and the table that it reads.

What the driver does before and between tiles takes longer than the arithmetic of small
products. A call of 16 x 16 with 4 terms of float32 takes 25 ns so, by the driver 65; of
16 x 1 with 16 terms 25 and 55; of 16 x 16 with 1 term 16 and 52; of 32 x 32 with 32
terms 570 and 631 (Zen 4, one core, minima). The choice is a function of sizes and
strides alone.

Weakness: batches take the driver's road.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from staticgrad.compiler import blas
from staticgrad.compiler.codegen.gemm import WIDE, plan_of
from staticgrad.compiler.codegen.gemm_small import (
    BY_DOTS,
    BY_ROWS,
    TURNED,
    small_address,
)
from staticgrad.compiler.codegen.processor import vector_bytes

MOST_TERMS = 1 << 15  # of all sums
DEEPEST = 256  # terms of one sum: B stays in the L1 cache
FEW_TERMS = 16  # beyond, a row is faster with tiles of several registers

MOST_BYTES = 1 << 15  # of B turned: as large as an L1 cache, half of the scratch memory
DEPTH_PER_ROW = 9  # as in gemm.py: with fewer rows dots are faster

ODD = (1, 3, 5, 7)  # multiples of a stride that are words of the table

Side = tuple[int, int]


def describe_small(table: npt.NDArray[np.int64]) -> bool:
    """Fill in the table for one of these kernels, if the product is for them."""
    known: list[int] = table.tolist()
    m, n, k = known[: blas.K + 1]
    few = 0 < m * n * k <= MOST_TERMS and k <= DEEPEST
    if not few or known[blas.BATCH] != 1 or not plan_of().masks:
        return False
    a = (known[blas.LDA], 1)
    b = (known[blas.LDB], 1)
    if known[blas.A_TRANSPOSED]:
        a = a[::-1]
    if not known[blas.B_TRANSPOSED]:
        b = b[::-1]
    left, right = 0, 1
    if n == 1 and known[blas.LDC] == 1:
        # A column is the row of the transposed product.
        left, right, m, n, a, b = 1, 0, n, m, b, a
    size = known[blas.BYTES]
    lanes = vector_bytes() // size
    kernel = _kernel(m, n, k, a, b, lanes)
    if kernel is None:
        return False
    (a_row, a_step), (b_column, b_step) = a, b
    b_row = {BY_ROWS: b_step, BY_DOTS: b_column, TURNED: n + -n % lanes}[kernel]
    starts = [size * known[blas.OFFSET_A + side] for side in (left, right)]
    steps = [size * step for step in (a_step, b_row, k * b_row)]
    rows = [size * row * odd for row in (a_row, known[blas.LDC]) for odd in ODD]
    table[blas.OURS :] = left, right, *starts, m, n, *steps, *rows
    table[blas.DIRECT] = small_address(kernel, size)
    return True


def _kernel(m: int, n: int, k: int, a: Side, b: Side, lanes: int) -> int | None:
    """The kernel for these strides, of rows (or columns) and of terms."""
    if n == 1 or b[0] == 1:
        wide = m == 1 and k > FEW_TERMS and n >= WIDE * lanes
        return None if wide else BY_ROWS
    if m > 1:
        return TURNED if _turned_pays(m, n, k, lanes) else None
    return BY_DOTS if k == 1 or (a[1] == 1 and b[1] == 1) else None


def _turned_pays(m: int, n: int, k: int, lanes: int) -> bool:
    """Whether B may be turned: it is not large, and dots would not be faster."""
    padded = (k + -k % lanes) * (n + -n % lanes) * (vector_bytes() // lanes)
    return padded <= MOST_BYTES and (k <= FEW_TERMS or k < DEPTH_PER_ROW * m)
