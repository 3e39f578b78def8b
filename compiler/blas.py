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
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy_openblas32
from llvmlite import ir
from numba import cfunc, njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from staticgrad.compiler import pointers
from staticgrad.compiler.disk import cached_or_not, stamp_of
from staticgrad.compiler.kernels import GemmKernel
from staticgrad.compiler.pointers import (
    F32,
    F64,
    I8,
    I32,
    fill_bytes,
    load_float64,
    load_int64,
    pointer,
)
from staticgrad.ir.size import evaluate

FLOPS_PER_PART = 8_000_000  # about 50 us on one core: packing stays a small share
MOST_PARTS = 32
PART_ALIGNMENT = 32  # rows or columns: whole register tiles
FLOPS_PER_ADDITION = 15  # a product does about 100 GF/s, an addition takes 0.15 ns
WORDS = 24

(M, N, K, A_TRANSPOSED, B_TRANSPOSED, LDA, LDB, LDC, BATCH, STRIDE_A, STRIDE_B,
 STRIDE_C, OFFSET_A, OFFSET_B, OFFSET_C, ALPHA, BETA, BY_COLUMNS, PART, PARTS, ITEMS,
 GROUP, BYTES, FUNCTION) = range(WORDS)  # fmt: skip

_loading = threading.Lock()
_kernels: list[Any] = []


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """scipy-openblas32, loaded with one thread and kept for the process."""
    folder = Path(scipy_openblas32.get_lib_dir())
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
    """The address of sgemm or dgemm."""
    symbol = "scipy_sgemm_" if dtype.itemsize == 4 else "scipy_dgemm_"
    with _loading:
        function = getattr(library(), symbol)
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def parts_of(m: int, n: int, k: int) -> tuple[bool, int, int]:
    """(cut along columns?, rows or columns per part, parts), from sizes alone."""
    by_columns = n > m
    length = n if by_columns else m
    wanted = min(2 * m * n * k // FLOPS_PER_PART, MOST_PARTS)
    if wanted <= 1:
        return by_columns, max(length, 1), 1
    part = -(-length // wanted)
    part += -part % PART_ALIGNMENT
    return by_columns, part, -(-length // part)


def describe(kernel: GemmKernel, values: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """The table that the kernel reads for `kernel`, sizes given."""
    table = np.zeros(WORDS, np.int64)

    def number(dim: Any) -> int:
        return evaluate(dim, values)

    m, n, k = number(kernel.m), number(kernel.n), number(kernel.k)
    dtype = kernel.operands[2].dtype
    by_columns, part, parts = parts_of(m, n, k)
    batch = number(kernel.batch)
    group = max(1, min(batch, FLOPS_PER_PART // max(2 * m * n * k, 1)))
    table[:LDA] = m, n, k, *kernel.transposed
    table[LDA : LDC + 1] = [max(number(ld), 1) for ld in kernel.ld]
    table[BATCH] = batch
    table[STRIDE_A : STRIDE_C + 1] = [number(s) for s in kernel.batch_strides]
    table[OFFSET_A : OFFSET_C + 1] = [number(o) for o in kernel.offsets]
    table[ALPHA : BETA + 1] = np.array((kernel.alpha, kernel.beta), np.float64).view(
        np.int64
    )
    table[BY_COLUMNS : PARTS + 1] = by_columns, part, parts
    table[ITEMS] = parts * -(-batch // group) if m * n else 0
    table[GROUP : BYTES + 1] = group, dtype.itemsize
    table[FUNCTION] = address_of(dtype)
    if max(m, n, k, *table[LDA : LDC + 1]) >= 2**31:
        raise ValueError(
            f"{kernel.name} requires sizes below 2**31, got {m} x {n} x {k}; "
            "split the matrices"
        )
    return table


def additions(tables: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The work of each product in additions, as the launcher counts it."""
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
    """One product of m x n, from the addresses of the first elements."""
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


@njit(nogil=True)
def _item(table: int, operands: int, item: int) -> None:
    """Part `item` of the product: some rows or columns of C, or some of the batch."""
    parts = load_int64(table, PARTS)
    size = load_int64(table, BYTES)
    m, n = load_int64(table, M), load_int64(table, N)
    start = item % parts * load_int64(table, PART)
    a_start = b_start = c_start = 0
    if load_int64(table, BY_COLUMNS):
        n = min(load_int64(table, PART), n - start)
        b_start = start * (
            load_int64(table, LDB) if load_int64(table, B_TRANSPOSED) else 1
        )
        c_start = start
    else:
        m = min(load_int64(table, PART), m - start)
        a_start = start * (
            1 if load_int64(table, A_TRANSPOSED) else load_int64(table, LDA)
        )
        c_start = start * load_int64(table, LDC)
    group = load_int64(table, GROUP)
    first = item // parts * group
    for index in range(first, min(first + group, load_int64(table, BATCH))):
        a = a_start + load_int64(table, OFFSET_A) + index * load_int64(table, STRIDE_A)
        b = b_start + load_int64(table, OFFSET_B) + index * load_int64(table, STRIDE_B)
        c = c_start + load_int64(table, OFFSET_C) + index * load_int64(table, STRIDE_C)
        _one(
            table,
            load_int64(operands, 0) + a * size,
            load_int64(operands, 1) + b * size,
            load_int64(operands, 2) + c * size,
            m,
            n,
        )


def _build(stamp: str, cache: bool) -> Any:
    @cfunc(types.void(*[types.int64] * 5), cache=cache)
    def gemm(operands: int, table: int, begin: int, end: int, context: int) -> None:
        stamp  # noqa: B018  # a free variable: Numba's key of the cached object code
        for item in range(begin, end):
            _item(table, operands, item)

    return gemm


def kernel_address() -> int:
    """The address of the kernel that computes products, compiled at the first call.

    It is called like any other: `sizes` is the table, the chunked axis counts items.
    """
    with _loading:
        if not _kernels:
            stamp = stamp_of(__file__, pointers.__file__)
            _kernels.append(cached_or_not(_build, stamp))
    return int(_kernels[0].address)
