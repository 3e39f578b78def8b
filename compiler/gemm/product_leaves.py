"""Compiled parts of matrix products, made and cached on demand per dtype.

Each is a C callback of addresses and counts that runs tiles over a part of a product.
The driver (tile_driver.py) calls them by address, so that the large
code of the tiles is optimised once, and what no product needs is never compiled.

`scale` is the address of alpha and beta as float64; `more` says that C has been begun,
so that beta is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from staticgrad.compiler.codegen.llvm.pointers import load_float64
from staticgrad.compiler.codegen.native_compile import compiled_once
from staticgrad.compiler.codegen.tiles.few_rows import few_rows
from staticgrad.compiler.codegen.tiles.product_tiles import (
    FEW,
    copy_row,
    dots_1,
    dots_2,
    dots_4,
    dots_long,
    dots_pair,
    edge_few,
    edge_full,
    edge_one,
    element_bytes,
    high_of,
    lanes_of,
    rows_of,
    square_edge,
    square_full,
    tile_few,
    tile_full,
    tile_one,
    vectors_of,
)
from staticgrad.compiler.gemm.narrow_tiles import back, narrow, turn, two
from staticgrad.compiler.host.cache import kernel_key

(TILES, TRANSPOSE, COPY, DOTS, STREAMED, STREAMED_FAR, TURN, BACK, PAIRS, FOURS, EIGHTS,
 TWO) = range(12)  # fmt: skip

LONG = 512  # terms: with more, fewer rows of B^T are read side by side

_compiled = njit(nogil=True, error_model="numpy", inline="always")


@_compiled
def _tile_column(a, a_row, a_step, b, b_step, c, c_row, m, k, alpha, beta, columns):
    size, most = element_bytes(alpha), rows_of(alpha)
    while m >= most:
        tile_full(a, a_row, a_step, b, b_step, c, c_row, k, alpha, beta, columns, m)
        m -= most
        a += most * a_row * size
        c += most * c_row * size
    while m > 1:
        tile_few(a, a_row, a_step, b, b_step, c, c_row, k, alpha, beta, columns, m)
        m -= FEW
        a += FEW * a_row * size
        c += FEW * c_row * size
    if m == 1:
        tile_one(a, a_row, a_step, b, b_step, c, c_row, k, alpha, beta, columns, m)


@_compiled
def _edge_column(a, a_row, a_step, b, b_step, c, c_row, m, k, alpha, beta, columns):
    size, most = element_bytes(alpha), high_of(alpha)
    while m >= most:
        edge_full(a, a_row, a_step, b, b_step, c, c_row, k, alpha, beta, columns, m)
        m -= most
        a += most * a_row * size
        c += most * c_row * size
    while m > 1:
        edge_few(a, a_row, a_step, b, b_step, c, c_row, k, alpha, beta, columns, m)
        m -= FEW
        a += FEW * a_row * size
        c += FEW * c_row * size
    if m == 1:
        edge_one(a, a_row, a_step, b, b_step, c, c_row, k, alpha, beta, columns, m)


def _tiles(number: Callable[[float], Any]) -> Callable[..., None]:
    def tiles(a, a_row, a_step, b, b_step, c, c_row, m, n, k, scale, more):
        """Compute all of C from contiguous rows of B, one column of tiles at a time."""
        alpha = number(load_float64(scale, 0))
        beta = number(1.0) if more else number(load_float64(scale, 1))
        size, lanes = element_bytes(alpha), lanes_of(alpha)
        width = vectors_of(alpha) * lanes
        while n >= width:
            _tile_column(a, a_row, a_step, b, b_step, c, c_row, m, k, alpha, beta, n)
            n -= width
            b += width * size
            c += width * size
        while n > 0:
            _edge_column(a, a_row, a_step, b, b_step, c, c_row, m, k, alpha, beta, n)
            n -= lanes
            b += lanes * size
            c += lanes * size

    return tiles


def _transpose(number: Callable[[float], Any]) -> Callable[..., None]:
    def transpose(b, b_row, panel, k, columns):
        """Transpose rows of B^T into a panel as wide as a tile."""
        alpha = number(0.0)
        size, lanes = element_bytes(alpha), lanes_of(alpha)
        width = vectors_of(alpha) * lanes
        for j in range(0, columns, lanes):
            source, target = b + j * b_row * size, panel + j * size
            rows = columns - j
            left = k
            while left >= lanes:
                square_full(source, b_row, rows, lanes, target, width, alpha)
                left -= lanes
                source += lanes * size
                target += lanes * width * size
            if left > 0:
                square_edge(source, b_row, rows, left, target, width, alpha)

    return transpose


def _copy(number: Callable[[float], Any]) -> Callable[..., None]:
    def copy(b, b_row, panel, k, columns):
        """Copy columns of B into a zero-padded panel as wide as a tile."""
        alpha = number(0.0)
        size = element_bytes(alpha)
        width = vectors_of(alpha) * lanes_of(alpha)
        for _ in range(k):
            copy_row(b, panel, columns, alpha)
            b += b_row * size
            panel += width * size

    return copy


def _dots(number: Callable[[float], Any]) -> Callable[..., None]:
    def dots(a, a_row, b, b_row, c, c_row, m, n, k, scale, more):
        """Compute C = A B^T, both contiguous along k, a few rows at a time."""
        alpha = number(load_float64(scale, 0))
        beta = number(1.0) if more else number(load_float64(scale, 1))
        size, lanes = element_bytes(alpha), lanes_of(alpha)
        while m > 0:
            rows = min(1 if m == 1 else (2 if m == 2 else FEW), lanes)
            across, j = lanes // rows, 0
            long = rows == 1 and k >= LONG
            if long:
                across = min(lanes, FEW)
            while j < n:
                row, place = b + j * b_row * size, c + j * size
                if long and n - j == 1:
                    dots_pair(
                        a, a_row, row, b_row, place, c_row, k, alpha, beta, n - j, m
                    )
                elif long:
                    dots_long(
                        a, a_row, row, b_row, place, c_row, k, alpha, beta, n - j, m
                    )
                elif rows == 1:
                    dots_1(a, a_row, row, b_row, place, c_row, k, alpha, beta, n - j, m)
                elif rows == 2:
                    dots_2(a, a_row, row, b_row, place, c_row, k, alpha, beta, n - j, m)
                else:
                    dots_4(a, a_row, row, b_row, place, c_row, k, alpha, beta, n - j, m)
                j += across
            m -= rows
            a += rows * a_row * size
            c += rows * c_row * size

    return dots


_LEAVES = {
    TILES: _tiles,
    TRANSPOSE: _transpose,
    COPY: _copy,
    DOTS: _dots,
    STREAMED: few_rows(ahead=False),
    STREAMED_FAR: few_rows(ahead=True),
    TURN: turn,
    BACK: back,
    PAIRS: narrow(2),
    FOURS: narrow(4),
    EIGHTS: narrow(8),
    TWO: two,
}


@njit(inline="always")
def as_float32(x):
    """Return x as float32, from which the tiles take their type."""
    return np.float32(x)


@njit(inline="always")
def as_float64(x):
    """Return `x`, a float64, from which the tiles take their type."""
    return x


@cache
def leaf_address(leaf: int, itemsize: int) -> int:
    """Return the address of a compiled part, for float32 (4) or float64 (8)."""
    number = as_float32 if itemsize == 4 else as_float64
    key = kernel_key(f"matrix product: piece {leaf}, {itemsize} bytes an element")

    return compiled_once(_LEAVES[leaf](number), key)
