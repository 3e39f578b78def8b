"""Narrow products: few columns, as dot products of several rows.

A tile keeps a register for each row of C, and fills of its lanes as many as there are
columns. Here lanes are terms: a register of each row of A meets one of each row of B^T,
as many sums as a register has lanes are added up at once, and that register is some
whole rows of C. B is transposed first where it is stored by columns.

Where A is stored by columns, rows of C^T are computed, by tiles or as in `gemm_thin`,
and transposed back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types

from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.llvm.pointers import load_float64
from staticgrad.compiler.codegen.llvm.vectors import VectorLanes
from staticgrad.compiler.codegen.tiles.few_rows import prefetch
from staticgrad.compiler.codegen.tiles.product_tiles import (
    WIDE,
    Dots,
    constant,
    edge_two,
    element_bytes,
    lanes_of,
    on_lanes,
    tile_two,
    write_tile,
)

MOST_AHEAD = 4  # rows that prefetch those below: more are streams enough
_LONG = types.int64
_compiled = njit(nogil=True, error_model="numpy", inline="always")


class _Rows(Dots):
    """Emitter of so many columns of C for as many rows as fill a register of sums."""

    def __init__(self, v: VectorLanes, columns: int, args: Any) -> None:
        super().__init__(v, _height(v, columns), columns, args)

    def add(self, start: Value, mask: Value | None, sums: list[Any]) -> None:
        """Add the next terms; where rows are few, prefetch those of the rows below."""
        super().add(start, mask, sums)
        if self.rows > MOST_AHEAD:
            return
        below = self.v.b.mul(self.a_row, self.v.whole(self.rows))
        for place in self.a:
            prefetch(self.v, self.v.at(place, self.v.b.add(start, below)))

    def write(self, total: Value) -> None:
        """Store the sums, as one register where they are contiguous in C."""
        v, b = self.v, self.v.b
        whole = b.icmp_signed("==", self.columns, v.whole(self.across))
        close = b.icmp_signed("==", self.c_row, v.whole(self.across))
        full = b.icmp_signed(">=", self.left, v.whole(self.rows))
        with b.if_else(b.and_(b.and_(whole, close), full)) as (piece, apart):
            with piece:
                write_tile(
                    v, [total], [self.c], [None], self.alpha, self.beta, clipped=False
                )
            with apart:
                super().write(total)


def _height(v: VectorLanes, columns: int) -> int:
    """Return the rows of C in a register; one where columns exceed its lanes."""
    return max(v.count // columns, 1)


def _rows(columns: int) -> Any:
    """Compute ``C = A B^T`` for up to so many columns, both contiguous along k."""
    return on_lanes("iiiiiiinnii", lambda v, args: _Rows(v, columns, args).emit())


def narrow(columns: int) -> Callable[[Callable[[float], Any]], Callable[..., None]]:
    """Return the kernel of products of so many columns, with arguments of dots."""
    rows, height_of = _rows(columns), constant(lambda v: _height(v, columns))

    def leaf(number: Callable[[float], Any]) -> Callable[..., None]:
        def product(a, a_row, b, b_row, c, c_row, m, n, k, scale, more):
            """Compute C = A B^T, both contiguous along k."""
            alpha = number(load_float64(scale, 0))
            beta = number(1.0) if more else number(load_float64(scale, 1))
            size, height = element_bytes(alpha), height_of(alpha)
            while m > 0:
                rows(a, a_row, b, b_row, c, c_row, k, alpha, beta, n, m)
                m -= height
                a += height * a_row * size
                c += height * c_row * size

        return product

    return leaf


def two(number: Callable[[float], Any]) -> Callable[..., None]:
    """Return the kernel of products with two rows, with the arguments of tiles."""

    def product(a, a_row, a_step, b, b_step, c, c_row, m, n, k, scale, more):
        """Compute both rows of C from contiguous rows of B, by some registers."""
        alpha = number(load_float64(scale, 0))
        beta = number(1.0) if more else number(load_float64(scale, 1))
        size, lanes = element_bytes(alpha), lanes_of(alpha)
        while n >= WIDE * lanes:
            tile_two(a, a_row, a_step, b, b_step, c, c_row, k, alpha, beta, n, m)
            n -= WIDE * lanes
            b += WIDE * lanes * size
            c += WIDE * lanes * size
        while n > 0:
            edge_two(a, a_row, a_step, b, b_step, c, c_row, k, alpha, beta, n, m)
            n -= lanes
            b += lanes * size
            c += lanes * size

    return product


def _copied(v: VectorLanes, args: Any) -> None:
    """Copy the number at `source` to `target`."""
    source, target, _ = args
    v.b.store(v.number(source), v.b.inttoptr(target, v.element.as_pointer()))


def _scaled_sum(v: VectorLanes, args: Any) -> None:
    """``target = alpha * source + beta * target``, which is not read if beta is 0."""
    b, (source, target, alpha, beta) = v.b, args
    place = b.inttoptr(target, v.element.as_pointer())
    found = b.fmul(v.number(source), alpha)
    with b.if_else(b.fcmp_ordered("==", beta, v.element(0.0))) as (first, more):
        with first:
            b.store(found, place)
        with more:
            old = b.fmul(b.load(place), beta)
            b.store(b.fadd(found, old), place)


_move, _add_scaled = on_lanes("iin", _copied), on_lanes("iinn", _scaled_sum)


def turn(number: Callable[[float], Any]) -> Callable[..., None]:
    """Return the kernel that transposes a few columns of B to rows, `k` apart."""

    def columns_to_rows(b, b_row, panel, k, columns):
        zero = number(0.0)
        size = element_bytes(zero)
        for j in range(columns):
            for i in range(k):
                _move(b + (i * b_row + j) * size, panel + (j * k + i) * size, zero)

    return columns_to_rows


def back(number: Callable[[float], Any]) -> Callable[..., None]:
    """Return the kernel that transposes rows of C^T to a few columns of C."""

    def rows_to_columns(panel, panel_row, c, c_row, m, n, scale):
        alpha = number(load_float64(scale, 0))
        beta = number(load_float64(scale, 1))
        size = element_bytes(alpha)
        for _ in range(m):
            for j in range(n):
                source, target = panel + j * panel_row * size, c + j * size
                _add_scaled(source, target, alpha, beta)
            panel += size
            c += c_row * size

    return rows_to_columns
