"""Choice of products with so few columns that tiles would leave registers empty.

A tile of 8 columns leaves half of a register of float32 empty, one of 2 columns seven
eighths. With A stored by rows, C is made of dot products instead; with A stored by
columns, rows of C^T are computed and transposed back (narrow_tiles.py).

The choice is a function of sizes and strides alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.codegen.tiles.product_tiles import plan_of
from staticgrad.compiler.gemm import blas
from staticgrad.compiler.gemm.product_leaves import EIGHTS, FOURS, PAIRS
from staticgrad.compiler.host.processor import vector_bytes

MOST_COLUMNS = 8
LEAST = 4096  # numbers of A: with fewer, one call of a small kernel is as fast
ADDING = 4  # cost of a sum over lanes, in registers of terms
B_BYTES = 1 << 14  # of B^T at a time: half of an L1 cache
TILES, DOTS, TURNED_BACK, TWO_ROWS = range(4)


def strategy(table: npt.NDArray[np.int64]) -> int:
    """Return the strategy of a product: by tiles, or one of those here."""
    m, n, k = (int(size) for size in table[: blas.K + 1])
    lanes = vector_bytes() // int(table[blas.BYTES])
    if m == 2 and n >= 2 * lanes and n * k >= LEAST and plan_of().masks:
        return TILES if table[blas.B_TRANSPOSED] else TWO_ROWS
    if not 2 <= n <= MOST_COLUMNS or m * k < LEAST or not plan_of().masks:
        return TILES
    more_rows = lanes // columns_of(n) - 1
    if more_rows < 1:
        return TILES
    if table[blas.A_TRANSPOSED]:
        return TURNED_BACK if m >= 2 * lanes and k >= MOST_COLUMNS else TILES
    return DOTS if k * more_rows >= ADDING * lanes else TILES


def columns_of(n: int) -> int:
    """Return the columns of the kernel for `n` columns.

    >>> [columns_of(n) for n in (2, 3, 4, 5, 8)]
    [2, 4, 4, 8, 8]
    """
    return 1 << (n - 1).bit_length()


def piece_of(n: int) -> int:
    """Return the kernel for `n` columns."""
    return {2: PAIRS, 4: FOURS, 8: EIGHTS}[columns_of(n)]


def depth_of(n: int, k: int, itemsize: int) -> int:
    """Return the terms summed at a time, so that their part of B^T stays in cache."""
    most = B_BYTES // (columns_of(n) * itemsize)
    return blas.even_part(k, most, 64 // itemsize) if k > most else max(k, 1)


def block_of(n: int, itemsize: int) -> int:
    """Return the columns of C^T at a time that stay in cache until transposed."""
    return B_BYTES // (columns_of(n) * itemsize)
