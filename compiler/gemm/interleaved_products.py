"""Small products with B transposed between the arithmetic of the tiles.

B^T is transposed by panels of one register of columns. The transposition of the next
panel is interleaved with the terms of the tiles of the current one, a few rows at a
time: shuffles and loads use pipes that multiply-adds leave idle. So only the first
panel takes time of its own. The panels are double-buffered.

Tiles are 16 rows of one register, which together with four registers that are being
transposed needs more registers than processors without AVX-512 have. The terms of every
sum have the order that they have in small_kernels.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import types

from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.llvm.pointers import load_int64
from staticgrad.compiler.codegen.llvm.vectors import VectorLanes
from staticgrad.compiler.codegen.native_compile import compiled_once
from staticgrad.compiler.codegen.tiles.product_tiles import (
    LONG_ROWS,
    constant,
    element_bytes,
    lanes_of,
    on_lanes,
    square_edge,
)
from staticgrad.compiler.gemm import blas
from staticgrad.compiler.gemm.product_leaves import as_float32, as_float64
from staticgrad.compiler.gemm.small_kernels import (
    A_ROW,
    B_COLUMN,
    C_ROW,
    DEPTH,
    EIGHT,
    SmallTile,
    column_of_tiles,
    in_parts,
    until,
)
from staticgrad.compiler.host.cache import kernel_key

_LONG = types.int64
_compiled = njit(nogil=True, error_model="numpy", inline="always")
_terms_of = constant(lambda v: v.turned_at_once)


class _WovenTile(SmallTile):
    """Emitter of a tile of one register, its terms interleaved with transposing B^T.

    `source` and `target` are the addresses of the next part to transpose, `turned` the
    end of the last one, `every` the terms between two parts, in bytes of the panel.
    """

    def __init__(self, v: VectorLanes, args: Any) -> None:
        super().__init__(v, LONG_ROWS, 1, args[:9], masked=False)
        self.b_row = v.whole(v.count * v.size)
        self.source, self.target, self.turned, self.every = args[9:]

    def _all_rows(self) -> list[Value]:
        v, b = self.v, self.v.b
        offsets = self._places(v.whole(0), A_ROW)[:EIGHT]
        sums = [v.variable(v.zeros()) for _ in range(self.rows)]
        lefts, right = self._lefts(), v.variable(self.b)
        source, target = v.variable(self.source), v.variable(self.target)
        with until(v, right, self.stop):
            more = b.icmp_signed("!=", b.load(target), self.turned)
            with b.if_then(more):
                self._turn(source, target)
            enough = v.least(b.add(b.load(right), self.every), self.stop)
            with until(v, right, enough):
                self._add_terms(lefts, offsets, [v.load(b.load(right))], sums)
                for left in lefts:
                    b.store(v.own(b.add(b.load(left), self.a_step)), left)
                b.store(b.add(b.load(right), self.b_row), right)
        return [b.load(total) for total in sums]

    def _lefts(self) -> list[Any]:
        """Return the addresses of A and of its ninth row.

        With one address there would be a register for every offset, and none for the
        elements that are transposed.
        """
        v, b = self.v, self.v.b
        ninth = b.add(self.a, b.shl(self._word(A_ROW), v.whole(3)))
        return [v.variable(self.a), v.variable(v.own(ninth))]

    def _turn(self, source: Any, target: Any) -> None:
        """Transpose a few terms of all rows of a panel."""
        v, b = self.v, self.v.b
        start, place = b.load(source), b.load(target)
        rows = self._places(start, B_COLUMN)[: v.count]
        for column in v.turned(rows):
            v.store(column, place)
            place = b.add(place, self.b_row)
        b.store(place, target)
        b.store(b.add(start, v.whole(v.turned_at_once * v.size)), source)


_tile = on_lanes("iiiiinniiiiii", lambda v, args: _WovenTile(v, args).emit())


@_compiled
def _turn(table, source, rows, panel, begin, end, alpha):
    """Transpose terms `begin` to `end` of a panel of `rows` rows of B^T."""
    size, lanes = element_bytes(alpha), lanes_of(alpha)
    column = load_int64(table, blas.LDB)
    while begin < end:
        square = source + begin * size
        target = panel + begin * lanes * size
        square_edge(square, column, rows, end - begin, target, lanes, alpha)
        begin += lanes


@_compiled
def _column(table, a, b, c, m, n, alpha, beta, panel, other, own):
    """Compute all rows of a register of columns, transposing the next panel meanwhile.

    The first tile transposes its `own` panel instead, always a square ahead of its
    terms.
    """
    size, lanes, at_once = element_bytes(alpha), lanes_of(alpha), _terms_of(alpha)
    k, row = load_int64(table, blas.K), lanes * size
    stop, after = panel + k * row, b + load_int64(table, B_COLUMN) * lanes
    parts, done = k // at_once if n >= 2 * lanes else 0, 0
    share = -(-parts // max(m // LONG_ROWS - own, 1))
    every = k // max(share, 1) * row
    while m >= LONG_ROWS and n >= lanes:
        source, target = after + done * at_once * size, other + done * at_once * row
        done = min(done + share, parts)
        turned, pace = other + done * at_once * row, every
        if own:
            source, target, done = b + row, panel + lanes * row, 0
            turned, pace, own = stop - k % at_once * row, at_once * row, 0
        _tile(table, a, panel, stop, c, alpha, beta, n, m, source, target, turned, pace)
        m -= LONG_ROWS
        a += LONG_ROWS * load_int64(table, A_ROW)
        c += LONG_ROWS * load_int64(table, C_ROW)
    if m > 0:
        column_of_tiles(table, a, panel, c, m, alpha, beta, n)
    if n > lanes:
        _turn(table, after, n - lanes, other, done * at_once, k, alpha)


@_compiled
def _product(table, a, b, c, m, n, alpha, beta, panel):
    """Compute one register of columns after the other, for all rows."""
    lanes, at_once, k = lanes_of(alpha), _terms_of(alpha), load_int64(table, blas.K)
    other, own = panel + load_int64(table, DEPTH), 0
    if m >= LONG_ROWS and n >= lanes and k >= lanes:
        own = 1
        _turn(table, b, n, panel, k - k % at_once, k, alpha)
    _turn(table, b, n, panel, 0, lanes if own else k, alpha)
    while n > 0:
        _column(table, a, b, c, m, n, alpha, beta, panel, other, own)
        panel, other, own = other, panel, 0
        n -= lanes
        b += lanes * load_int64(table, B_COLUMN)
        c += lanes * element_bytes(alpha)


_interleaved = in_parts(_product)


@cache
def interleaved_address(itemsize: int) -> int:
    """Return the kernel's address for float32 (4) or float64 (8)."""
    words = Path(str(blas.__file__)).read_text("utf-8")
    key = kernel_key(f"woven product, {itemsize} bytes an element\0{words}")
    return compiled_once(_interleaved(as_float32 if itemsize == 4 else as_float64), key)
