"""Tiled matrix products of our own: the driver.

It cuts a product of any shape into calls of the pieces in product_leaves.py, which
know the dtype; itself it is compiled once and reads a table: that of blas.py, then the
pieces' addresses and sizes (see `describe`). The parts of C that may run in parallel
are cut as there, only smaller, because nothing is packed anew for each.

k is cut into blocks, so that the rows of B in use stay in cache; from the second block
on the result is added to. The order of every sum is a function of the shape, so results
have the same bits for any number of threads.

Which products come here and which go to OpenBLAS is in choose_product.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numba import njit

from staticgrad.compiler.codegen.llvm import pointers
from staticgrad.compiler.codegen.llvm.pointers import caller, load_int64
from staticgrad.compiler.codegen.native_compile import compiled_once
from staticgrad.compiler.codegen.tiles.product_tiles import plan_of
from staticgrad.compiler.gemm import blas, narrow_products
from staticgrad.compiler.gemm.choose_product import MOST_THIN, ours
from staticgrad.compiler.gemm.product_leaves import (
    BACK,
    COPY,
    DOTS,
    STREAMED,
    STREAMED_FAR,
    TILES,
    TRANSPOSE,
    TURN,
    TWO,
    leaf_address,
)
from staticgrad.compiler.gemm.small_kernels import TILED
from staticgrad.compiler.gemm.small_products import describe_small, small_kernel
from staticgrad.compiler.host import processor
from staticgrad.compiler.host.cache import kernel_key
from staticgrad.compiler.kernel_ir.chunks import longest_share
from staticgrad.compiler.kernel_ir.kernels import GemmKernel

FLOPS_PER_TILED_PART = 800_000  # 3-8 us on one core, by the processor
MOST_TILED_PARTS = 64
PART_ROWS, ROWS_MORE = 48, 16
"""At least so many rows, and more in such steps: whole tiles of 4, 8 and 16 rows."""
NARROW_ROWS = 256  # at least, to amortise the transposition of B
PART_COLUMNS = 32  # and more in such steps: whole tiles, and 128 bytes of float32
DEPTH_PLAIN, DEPTH_STRIDED, DEPTH_PANEL, DEPTH_DOTS = 512, 256, 256, 8192
# Dots cost about 1 + 44 / k of what a product has to, panels 1 + 5 / m.
FEW_ROWS, DEPTH_PER_ROW = 32, 9
FEW_IN_ALL = 1 << 15  # terms: parts of so small a product do not pay
FEW_TERMS = 16  # up to here B is small
FLAT = 8  # terms: up to here writing C takes the time, which is better done by rows
MOST_ROWS = 1 << 40
FEW_THIN = 4  # rows of A under which rows of B stream past; up to MOST_THIN where far:
FAR_B_BYTES = 12_000_000  # of B, which does not stay in a cache then
TWO_BYTES = 1 << 20  # of B, beyond which it streams under two rows as well
THIN_BYTES = 1024  # of a row at least: shorter streams end too soon
THIN_COLUMNS = 512  # of a part at least, so that rows are read at some length
CHUNK_BYTES = 1 << 18  # of B per pass over rows: a part of any L2 cache
DEPTH_UNIT = 16
PANEL_BYTES = (2 * DEPTH_PANEL + DEPTH_UNIT) * 128

(AT_TILES, AT_PACK, AT_DOTS, SWAPPED, WIDTH, DEPTH, STRIP, CHUNK, PANELS, AT_BACK,
 BLOCK, ALPHA, BETA) = range(blas.OURS, blas.OURS + 13)  # fmt: skip
"""Words of the table: addresses of pieces; whether C^T = B^T A^T is computed; columns
of a tile; terms summed at a time; rows and columns that pass at a time where B is read
in place; which columns of B come by panels (all, the rest that fills no tile, none);
the piece that turns C^T back, from a panel of so many columns; what tiles multiply
their sums and C by."""
NONE, REST, ALL = range(3)


def describe(
    kernel: GemmKernel, values: Mapping[str, int], rows: int = 0
) -> npt.NDArray[np.int64]:
    """Return the table of a product, for whichever kernel computes it.

    In parts of so many `rows`, if given.
    """
    table = blas.shape_of(kernel, values)
    m, n, k = (int(size) for size in table[: blas.K + 1])
    itemsize = int(table[blas.BYTES])
    if rows:
        return described(table, (rows, n))
    return described(table) if ours(m, n, k, itemsize) else blas.described(table)


def stands_alone(table: npt.NDArray[np.int64]) -> bool:
    """Whether a product is one item: whole, by OpenBLAS, or in its own parts."""
    m, n, k = (int(size) for size in table[: blas.K + 1])
    if not ours(m, n, k, int(table[blas.BYTES])) or parts_of(m, n, k) != (m, n):
        return True
    kernel = small_kernel(table)
    return kernel is not None and (kernel != TILED or m * n * k <= FEW_IN_ALL)


def work_of(table: npt.NDArray[np.int64]) -> int:
    """Return the work of a product in additions."""
    return int(blas.additions(table[None])[0])


def described(
    table: npt.NDArray[np.int64], part: tuple[int, int] | None = None
) -> npt.NDArray[np.int64]:
    """Return the table filled in for this kernel, whose parts are compiled."""
    m, n, k = (int(size) for size in table[: blas.K + 1])
    blas.cut(table, part or parts_of(m, n, k), FLOPS_PER_TILED_PART)
    table[blas.FUNCTION] = 0
    strategy = narrow_products.strategy(table)
    if strategy == narrow_products.TILES and describe_small(
        table, in_parts=part is not None
    ):
        return table
    lda, ldb, ldc = (int(ld) for ld in table[blas.LDA : blas.LDC + 1])
    itemsize = int(table[blas.BYTES])
    a_transposed, b_transposed = table[blas.A_TRANSPOSED], table[blas.B_TRANSPOSED]
    a_step = lda if a_transposed else 1
    table[ALPHA : BETA + 1] = table[blas.ALPHA : blas.BETA + 1]
    if strategy == narrow_products.DOTS:
        table[AT_DOTS] = leaf_address(narrow_products.piece_of(n), itemsize)
        table[AT_PACK] = 0 if b_transposed else leaf_address(TURN, itemsize)
        table[DEPTH] = narrow_products.depth_of(n, k, itemsize)
        return table
    if strategy == narrow_products.TURNED_BACK:
        table[AT_BACK] = leaf_address(BACK, itemsize)
        table[BLOCK] = narrow_products.block_of(n, itemsize)
        table[ALPHA : BETA + 1].view(np.float64)[:] = 1.0, 0.0
    if strategy == narrow_products.TURNED_BACK or (n == 1 and ldc == 1):
        # A column is the row of the transposed product.
        table[SWAPPED] = 1
        m, n, a_step = n, m, 1 if b_transposed else ldb
        b_transposed = not a_transposed
    far = n * k * itemsize >= FAR_B_BYTES
    if b_transposed and a_step == 1 and by_dots(m, k):
        table[AT_DOTS] = leaf_address(DOTS, itemsize)
        table[DEPTH] = dot_depth(k)
    elif not b_transposed and k > FEW_TERMS and _has_few_rows(table, m, n, k):
        table[AT_TILES] = leaf_address(STREAMED_FAR if far else STREAMED, itemsize)
        table[WIDTH : PANELS + 1] = n, k, m, n, NONE
    else:
        two = m == 2 and strategy != narrow_products.TILES
        table[AT_TILES] = leaf_address(TWO if two else TILES, itemsize)
        _choose_loops(table, m, n, k, bool(b_transposed), a_step)
    return table


def _has_few_rows(table: npt.NDArray[np.int64], m: int, n: int, k: int) -> bool:
    """Whether B is streamed: few rows of A, and C = A B or A B + C."""
    alpha, beta = table[ALPHA : BETA + 1].view(np.float64)
    row = n * int(table[blas.BYTES])
    most = MOST_THIN if k * row >= FAR_B_BYTES else FEW_THIN
    fits = m <= most and row >= THIN_BYTES and (m != 2 or k * row >= TWO_BYTES)
    return bool(fits and alpha == 1.0 and beta in (0.0, 1.0))


def _choose_loops(
    table: npt.NDArray[np.int64], m: int, n: int, k: int, b_transposed: bool,
    a_step: int,
) -> None:  # fmt: skip
    """Fill in the sizes of the loops over tiles."""
    plan, itemsize = plan_of(), int(table[blas.BYTES])
    width = plan.vectors * processor.vector_bytes() // itemsize
    depth = DEPTH_PLAIN if a_step == 1 else DEPTH_STRIDED
    panels = REST if not plan.masks and n % width else NONE
    if b_transposed:
        depth, panels = min(depth, DEPTH_PANEL), ALL
        table[AT_PACK] = leaf_address(TRANSPOSE, itemsize)
    elif panels == REST:
        table[AT_PACK] = leaf_address(COPY, itemsize)
    depth = blas.even_part(k, depth, DEPTH_UNIT) if k > depth else max(k, 1)
    reads_again = min(n, int(table[blas.PART_COLUMNS])) > PART_COLUMNS  # all of A
    in_strips = reads_again and (k <= FLAT or (a_step != 1 and k > depth))
    strip = plan.high if in_strips else MOST_ROWS
    chunk = max(CHUNK_BYTES // (itemsize * depth * width), 1) * width
    table[WIDTH : PANELS + 1] = width, depth, strip, chunk, panels


def by_dots(m: int, k: int) -> bool:
    """Whether dot products beat panels for A B^T with m rows."""
    return m <= FEW_ROWS and k >= DEPTH_PER_ROW * m


def dot_depth(k: int) -> int:
    """Return the terms that lanes accumulate before their sum is added to others.

    A sum then passes through about the square root of ``k / lanes`` additions, twice.

    >>> dot_depth(1000), dot_depth(1 << 24), dot_depth(1 << 28)
    (8192, 16384, 65536)
    """
    return max(DEPTH_DOTS, 1 << (k.bit_length() + 3) // 2)


def parts_of(m: int, n: int, k: int) -> tuple[int, int]:
    """Return (rows, columns) per part of C, from sizes alone.

    Cut along the axis whose parts two and four workers share more evenly, else along
    columns: what transposes B then does so once, and a worker that computes the same
    columns of a layer and of its weights' gradient keeps those weights in its cache.
    """
    rows, columns = max(m, 1), max(n, 1)
    wanted = min(2 * m * n * k // FLOPS_PER_TILED_PART, MOST_TILED_PARTS)
    if wanted <= 1:
        return rows, columns
    least = THIN_COLUMNS if m <= MOST_THIN else PART_COLUMNS
    few_columns = _shared_part(n, wanted, least, PART_COLUMNS)
    least = NARROW_ROWS if 1 < n <= narrow_products.MOST_COLUMNS else PART_ROWS
    few_rows = _shared_part(m, wanted, least, ROWS_MORE)
    if longest_share(n, few_columns) / n <= longest_share(m, few_rows) / m:
        return rows, few_columns
    return few_rows, columns


def _shared_part(length: int, wanted: int, least: int, step: int) -> int:
    """Return a chunk size that divides `length` evenly into about `wanted` chunks.

    From half as many parts to a third more.
    """
    about = -(-3 * length // (4 * wanted))
    first = max(about + -about % step, least)
    sizes = range(first, 3 * first, step)
    return min(min(sizes, key=lambda size: longest_share(length, size)), length)


def addresses(tables: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the kernel that computes the product of each table."""
    return np.array(
        [
            int(table[blas.DIRECT]) or _address(bool(table[blas.FUNCTION]))
            for table in tables
        ],
        np.int64,
    )


@cache
def _address(by_library: bool) -> int:
    return blas.kernel_address() if by_library else kernel_address()


_compiled = njit(nogil=True, error_model="numpy", inline="always")
_call_5, _call_7, _call_11, _call_12 = (caller(count) for count in (5, 7, 11, 12))


@_compiled
def _tiled(table, a, a_row, a_step, b, b_row, c, c_row, m, n, panel):
    """Compute one product; B is read in place up to column `whole`, then by panels.

    Where it lies, all columns of C pass under a strip of rows, or under all rows; a
    panel of columns passes under all rows.
    """
    size, width = load_int64(table, blas.BYTES), load_int64(table, WIDTH)
    k, b_step, b_column, whole, done = load_int64(table, blas.K), b_row, 1, n, 0
    if load_int64(table, PANELS) == REST:
        whole = n - n % width
    elif load_int64(table, PANELS) == ALL:
        b_step, b_column, whole = 1, b_row, 0
    while done < max(k, 1):
        deep, j = min(load_int64(table, DEPTH), k - done), 0
        while j < n:
            left = a + done * a_step * size
            right, step = b + (done * b_step + j * b_column) * size, b_row
            rows = min(load_int64(table, STRIP), m)
            columns = min(load_int64(table, CHUNK), whole - j)
            if j >= whole:
                rows, columns = m, min(width, n - j)
                pack = load_int64(table, AT_PACK)
                _call_5(pack, (right, b_row, panel, deep, columns))
                right, step = panel, width
            i = 0  # range() with a step may raise, and exceptions need Numba's memory
            while i < m:
                _call_12(
                    load_int64(table, AT_TILES),
                    (
                        left + i * a_row * size, a_row, a_step, right, step,
                        c + (i * c_row + j) * size, c_row, min(rows, m - i), columns,
                        deep, table + 8 * ALPHA, done,
                    ),
                )  # fmt: skip
                i += rows
            j += columns
        done += load_int64(table, DEPTH)


@_compiled
def _one(table, a, b, c, m, n, panel):
    """Compute one product of m x n, from the addresses of the first elements."""
    k, c_row = load_int64(table, blas.K), load_int64(table, blas.LDC)
    size = load_int64(table, blas.BYTES)
    a_row, b_row = load_int64(table, blas.LDA), load_int64(table, blas.LDB)
    a_transposed = load_int64(table, blas.A_TRANSPOSED) != 0
    if load_int64(table, SWAPPED):
        a, b, m, n, a_row, b_row = b, a, n, m, b_row, a_row
        a_transposed = load_int64(table, blas.B_TRANSPOSED) == 0
    a_step = 1
    if a_transposed:
        a_row, a_step = 1, a_row
    if load_int64(table, AT_DOTS):
        scale, pack = table + 8 * ALPHA, load_int64(table, AT_PACK)
        done, depth = 0, load_int64(table, DEPTH)
        while done < max(k, 1):
            left, right, step = a + done * size, b + done * size, b_row
            deep = min(depth, k - done)
            if pack:
                _call_5(pack, (b + done * b_row * size, b_row, panel, deep, n))
                right, step = panel, deep
            _call_11(
                load_int64(table, AT_DOTS),
                (left, a_row, right, step, c, c_row, m, n, deep, scale, done),
            )
            done += depth
        return
    i, turns, block = 0, load_int64(table, AT_BACK), n
    if turns:
        block = load_int64(table, BLOCK)
    while i < n:
        columns, place, row = min(block, n - i), c, c_row
        if turns:
            place, row = panel, columns
        _tiled(
            table, a, a_row, a_step, b + i * size, b_row, place, row, m, columns, panel
        )
        if turns:
            to, scale = c + i * c_row * size, table + 8 * blas.ALPHA
            _call_7(turns, (panel, columns, to, c_row, columns, m, scale))
        i += columns


def _gemm(operands, table, begin, end, context):
    """Compute items `begin` to `end` of the product that the table describes."""
    panel = load_int64(context, 1)
    for item in range(begin, end):
        m, n, a, b, c, first, last = blas.part(table, item)
        for index in range(first, last):
            left, right, place = blas.addresses(table, operands, a, b, c, index)
            _one(table, left, right, place, m, n, panel)


def kernel_address() -> int:
    """Return the address of the driver, compiled at the first call on a machine."""
    files = (__file__, str(blas.__file__), str(pointers.__file__))
    key = kernel_key("\0".join(Path(file).read_text("utf-8") for file in files))
    return compiled_once(_gemm, key)
