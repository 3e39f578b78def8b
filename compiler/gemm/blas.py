"""Matrix products through OpenBLAS, called by address.

The library is scipy-openblas32's own instance: NumPy and SciPy load others, so their
thread settings stay as they are. Here it computes with one thread; parallelism is ours,
over fixed parts of the result. Parts are functions of sizes alone, so a product has the
same bits for any number of threads.

Row-major C = A B is column-major C^T = B^T A^T, so B is passed first. A product is
described by a table of int64 (see `describe`), which one kernel reads: C is cut along
its longer axis into items, and the kernel computes a range of them.

Weakness: OpenBLAS packs one operand anew for every part.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from math import isqrt
from pathlib import Path
from struct import pack, unpack
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import cfunc, njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from staticgrad.compiler.codegen.llvm import pointers
from staticgrad.compiler.codegen.llvm.pointers import (
    F32,
    F64,
    I8,
    I32,
    fill_bytes,
    load_float64,
    load_int64,
    pointer,
)
from staticgrad.compiler.host.disk import cached_or_not, stamp_of
from staticgrad.compiler.host.locks import fork_safe_lock
from staticgrad.compiler.kernel_ir.costs import FLOPS_PER_ADDITION
from staticgrad.compiler.kernel_ir.kernels import GemmKernel
from staticgrad.ir.size import evaluate

FLOPS_PER_BLAS_PART = 8_000_000  # about 50 us on one core: packing stays a small share
MOST_BLAS_PARTS = 32
PART_ALIGNMENT = 32  # rows or columns: whole register tiles
WORDS = 49

(M, N, K, A_TRANSPOSED, B_TRANSPOSED, LDA, LDB, LDC, BATCH, STRIDE_A, STRIDE_B,
 STRIDE_C, OFFSET_A, OFFSET_B, OFFSET_C, ALPHA, BETA, PART_ROWS, PART_COLUMNS,
 ACROSS, PARTS, ITEMS, GROUP, BYTES, FUNCTION, DIRECT) = range(26)  # fmt: skip
"""FUNCTION is OpenBLAS's, or 0; DIRECT the kernel of a small product, or 0."""
OURS = 26
"""The words from here on are for tile_driver.py and small_products.py."""

_loading = fork_safe_lock()
_kernels: list[Any] = []


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Load scipy-openblas32 with one thread; it is kept for the process."""
    # Found, not imported: the package loads the library when it is imported, with as
    # many threads as there are processors.
    package = find_spec("scipy_openblas32")
    if package is None or package.origin is None:
        raise ImportError("staticgrad requires scipy-openblas32, which is missing")
    folder = Path(package.origin).parent / "lib"
    names = ("libscipy_openblas.so", "libscipy_openblas.dylib", "libscipy_openblas.dll")
    path = next(folder / name for name in names if (folder / name).exists())
    # The library starts its threads when it is loaded, as many as this variable says.
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        loaded = ctypes.CDLL(str(path))
    finally:
        _restore("OPENBLAS_NUM_THREADS", before)
    loaded.scipy_openblas_set_num_threads(1)
    return loaded


def _restore(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value


def address_of(dtype: np.dtype[Any]) -> int:
    """Return the address of sgemm or dgemm."""
    symbol = "scipy_sgemm_" if dtype.itemsize == 4 else "scipy_dgemm_"
    with _loading:
        function = getattr(library(), symbol)
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def parts_of(m: int, n: int, k: int) -> tuple[int, int]:
    """Return (rows, columns) per part of C, from sizes alone.

    Parts are about square: OpenBLAS packs some of A and of B for each.
    """
    wanted = min(2 * m * n * k // FLOPS_PER_BLAS_PART, MOST_BLAS_PARTS)
    if wanted <= 1:
        return max(m, 1), max(n, 1)
    area = m * n // wanted
    rows = even_part(m, max(isqrt(area), area // n), PART_ALIGNMENT)
    return rows, even_part(n, area // rows, PART_ALIGNMENT)


def even_part(length: int, about: int, unit: int) -> int:
    """Return a whole number of units that cuts `length` into parts of about that size.

    >>> even_part(1000, 300, 32), even_part(20, 300, 32)
    (352, 20)
    """
    parts = max(round(length / max(about, 1)), 1)
    part = -(-length // parts)
    return length if parts == 1 else part + -part % unit


def describe(kernel: GemmKernel, values: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the table that OpenBLAS's kernel reads for `kernel`, sizes given."""
    return described(shape_of(kernel, values))


def described(table: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Cut the table into parts for OpenBLAS and fill in its address."""
    m, n, k = (int(size) for size in table[: K + 1])
    cut(table, parts_of(m, n, k), FLOPS_PER_BLAS_PART)
    table[FUNCTION] = address_of(np.dtype(f"f{table[BYTES]}"))
    return table


def cut(
    table: npt.NDArray[np.int64], part: tuple[int, int], flops_per_part: int
) -> None:
    """Fill in which parts of the result, or matrices of the batch, are items."""
    m, n, k, batch = (int(size) for size in table[[M, N, K, BATCH]])
    rows, columns = part
    down, across = -(-m // rows), -(-n // columns)
    group = max(1, min(batch, flops_per_part // max(2 * m * n * k, 1)))
    table[PART_ROWS : PARTS + 1] = rows, columns, across, down * across
    table[ITEMS] = down * across * -(-batch // group)
    table[GROUP] = group


def shape_of(kernel: GemmKernel, values: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the table of a product before it is cut, sizes given."""
    dims = (kernel.m, kernel.n, kernel.k, *kernel.ld, kernel.batch)
    m, n, k, *lds, batch = (evaluate(dim, values) for dim in dims)
    lds = [max(ld, 1) for ld in lds]
    if max(m, n, k, *lds) >= 2**31:
        raise ValueError(
            f"{kernel.name} requires sizes below 2**31, got {m} x {n} x {k}; "
            "split the matrices"
        )
    others = [evaluate(d, values) for d in (*kernel.batch_strides, *kernel.offsets)]
    factors = unpack("=2q", pack("=2d", kernel.alpha, kernel.beta))
    table = np.zeros(WORDS, np.int64)
    table[:PART_ROWS] = m, n, k, *kernel.transposed, *lds, batch, *others, *factors
    table[BYTES] = kernel.operands[2].dtype.itemsize
    return table


def additions(tables: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the work of each product in additions, as the launcher counts it."""
    flops: npt.NDArray[np.int64] = 2 * tables[:, [M, N, K, BATCH]].prod(axis=1)
    return flops // FLOPS_PER_ADDITION


def _product(element: ir.Type, number: types.Type) -> Any:
    @intrinsic
    def product(
        typing: Any, function: Any, a_letter: Any, b_letter: Any, m: Any, n: Any,
        k: Any, alpha: Any, a: Any, lda: Any, b: Any, ldb: Any, beta: Any, c: Any,
        ldc: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            def place(value: Any, kind: ir.Type) -> Any:
                where = cgutils.alloca_once(builder, kind)
                builder.store(value, where)
                return where

            def letter(value: Any) -> Any:
                return place(builder.trunc(value, I8), I8)

            def size(value: Any) -> Any:
                return place(builder.trunc(value, I32), I32)

            def matrix(value: Any) -> Any:
                return pointer(builder, value, element)

            kinds = (
                letter, letter, size, size, size,
                lambda value: place(value, element), matrix, size, matrix, size,
                lambda value: place(value, element), matrix, size,
            )  # fmt: skip
            given = [kind(a) for kind, a in zip(kinds, args[1:], strict=True)]
            kind = ir.FunctionType(ir.VoidType(), [g.type for g in given])
            builder.call(builder.inttoptr(args[0], kind.as_pointer()), given)
            return context.get_dummy_value()

        i64 = types.int64
        return (
            types.void(
                i64, i64, i64, i64, i64, i64, number, i64, i64, i64, i64, number, i64,
                i64,
            ),
            emit,
        )  # fmt: skip

    return product


_sgemm = _product(F32, types.float32)
_dgemm = _product(F64, types.float64)

_LETTER_N = 78
_LETTER_T = 84


@njit(nogil=True)
def _one(table: int, a: int, b: int, c: int, m: int, n: int) -> None:
    """Compute one product of m x n, from the addresses of the first elements."""
    k = load_int64(table, K)
    size = load_int64(table, BYTES)
    beta = load_float64(table, BETA)
    if beta == 0.0:
        # OpenBLAS may multiply what is in C by beta, and that may be a NaN.
        for row in range(m):
            fill_bytes(c + row * load_int64(table, LDC) * size, 0, n * size)
        beta = 1.0
    first = _LETTER_T if load_int64(table, B_TRANSPOSED) else _LETTER_N
    second = _LETTER_T if load_int64(table, A_TRANSPOSED) else _LETTER_N
    function, alpha = load_int64(table, FUNCTION), load_float64(table, ALPHA)
    lda, ldb = load_int64(table, LDA), load_int64(table, LDB)
    ldc = load_int64(table, LDC)
    if size == 4:
        _sgemm(
            function, first, second, n, m, k, np.float32(alpha), b, ldb, a, lda,
            np.float32(beta), c, ldc,
        )  # fmt: skip
    else:
        _dgemm(function, first, second, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc)


@njit(nogil=True, error_model="numpy", inline="always")
def part(table: int, item: int) -> tuple[int, int, int, int, int, int, int]:
    """Compute part `item` of a product: rows or columns of C for some of the batch.

    Rows and columns; where A, B and C begin, in elements; first and last of the batch.
    """
    m, n, parts = load_int64(table, M), load_int64(table, N), load_int64(table, PARTS)
    a, b, c = (
        load_int64(table, OFFSET_A), load_int64(table, OFFSET_B),
        load_int64(table, OFFSET_C),
    )  # fmt: skip
    group = item
    if parts > 1:
        across, group = load_int64(table, ACROSS), item // parts
        rows, columns = load_int64(table, PART_ROWS), load_int64(table, PART_COLUMNS)
        i, j = item % parts // across * rows, item % across * columns
        m, n = min(rows, m - i), min(columns, n - j)
        a += i * (1 if load_int64(table, A_TRANSPOSED) else load_int64(table, LDA))
        b += j * (load_int64(table, LDB) if load_int64(table, B_TRANSPOSED) else 1)
        c += i * load_int64(table, LDC) + j
    first = group * load_int64(table, GROUP)
    last = min(first + load_int64(table, GROUP), load_int64(table, BATCH))
    return m, n, a, b, c, first, last


@njit(nogil=True)
def addresses(
    table: int, operands: int, a: int, b: int, c: int, index: int
) -> tuple[int, int, int]:
    """Return the addresses of A, B and C of one product of a batch."""
    size = load_int64(table, BYTES)
    a += index * load_int64(table, STRIDE_A)
    b += index * load_int64(table, STRIDE_B)
    c += index * load_int64(table, STRIDE_C)
    return (
        load_int64(operands, 0) + a * size,
        load_int64(operands, 1) + b * size,
        load_int64(operands, 2) + c * size,
    )


@njit(nogil=True)
def _item(table: int, operands: int, item: int) -> None:
    m, n, a, b, c, first, last = part(table, item)
    for index in range(first, last):
        left, right, place = addresses(table, operands, a, b, c, index)
        _one(table, left, right, place, m, n)


def _build(stamp: str, cache: bool) -> Any:
    @cfunc(types.void(*[types.int64] * 5), cache=cache)
    def gemm(operands: int, table: int, begin: int, end: int, context: int) -> None:
        stamp  # noqa: B018  # a free variable: Numba's key of the cached object code
        for item in range(begin, end):
            _item(table, operands, item)

    return gemm


def kernel_address() -> int:
    """Return the address of the products' kernel, compiled at the first call.

    It is called like any other: `sizes` is the table, the chunked axis counts items.
    """
    with _loading:
        if not _kernels:
            stamp = stamp_of(__file__, pointers.__file__)
            _kernels.append(cached_or_not(_build, stamp))
    return int(_kernels[0].address)
