"""Small products in one call, from the table to the last tile.

`rows` reads B in place, a register of columns at a time; `turned` transposes B^T into
scratch first; `dots` computes sums of one row of A with rows of B^T, as many as a
register has lanes at a time. Compiling `rows` takes a fifth of the time that the driver
and its tiles take, and a graph of small products needs no more. `tiled` takes the
driver's tiles, for larger products, batches of them, and products in parts.

Addresses are as expensive as the arithmetic here, and LLVM is kept from improving them:
odd multiples of strides are words of the table, because LLVM would make each the sum of
the one before; loops end at an address, because a loop that counts would be unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import types

from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.llvm.pointers import load_float64, load_int64
from staticgrad.compiler.codegen.llvm.vectors import VectorLanes
from staticgrad.compiler.codegen.native_compile import compiled_once
from staticgrad.compiler.codegen.tiles.product_tiles import (
    FEW,
    constant,
    element_bytes,
    lanes_of,
    on_lanes,
    plan_of,
    square_edge,
    vectors_of,
    write_tile,
)
from staticgrad.compiler.gemm import blas
from staticgrad.compiler.gemm.product_leaves import as_float32, as_float64
from staticgrad.compiler.host.cache import kernel_key

EIGHT = 8  # rows of a tile: as many sums as a processor has in flight
APART = 4  # terms of one row that are summed apart

(LEFT, RIGHT, LEFT_AT, RIGHT_AT, ROWS, COLUMNS, A_STEP, B_ROW, DEPTH, A_ROW, _, _, _,
 C_ROW, _, _, _, B_COLUMN, _, _, _, STRIP,
 TURNS) = range(blas.OURS, blas.WORDS)  # fmt: skip
"""Words of the table: which operands A and B are, and where they begin; rows and
columns of C; A's stride along k, B's other stride, that times k; strides of the rows of
A and of C and of the columns of B, each followed by 3, 5 and 7 times as much. Strides
and starts in bytes.

For TILED: rows that pass at a time; whether B is turned first."""

BY_ROWS, BY_DOTS, TURNED, TILED = range(4)

_LONG, _WORD = types.int64, ir.IntType(64)
_compiled = njit(nogil=True, error_model="numpy", inline="always")


class SmallTile:
    """Emitter of a tile of rows by registers of columns; a single one may be masked.

    Where there may be fewer rows (FEW), the last of them stands in for the others.
    """

    def __init__(
        self, v: VectorLanes, rows: int, vectors: int, args: Any, masked: bool
    ) -> None:
        (self.table, self.a, self.b, self.stop, self.c, self.alpha, self.beta, columns,
         self.left) = args  # fmt: skip
        self.v, self.rows, self.vectors = v, rows, vectors
        self.mask = _mask(v, columns) if masked else None
        self.a_step, self.b_row = self._word(A_STEP), self._word(B_ROW)

    def emit(self) -> None:
        """Emit the sums, then the update of C."""
        v, b = self.v, self.v.b
        sums = self._one_row() if self.rows == 1 else self._all_rows()
        places = self._across(self._places(self.c, C_ROW))
        alpha, beta = self.alpha, self.beta
        # Else a fifth of the arithmetic of 4 terms would be products with 1.
        one = b.fcmp_ordered("==", alpha, alpha.type(1.0))
        zero = b.fcmp_ordered("==", beta, beta.type(0.0))
        with b.if_else(b.and_(one, zero)) as (plain, scaled):
            with plain:
                for total, place in zip(sums, places, strict=True):
                    v.store(total, place, self.mask)
            with scaled:
                self._add_scaled(sums, places, one)

    def _add_scaled(self, sums: list[Value], places: list[Value], one: Value) -> None:
        v, b, alpha, beta = self.v, self.v.b, self.alpha, self.beta
        clipped, masks = self.rows == FEW, [self.mask] * len(places)
        same = b.and_(one, b.fcmp_ordered("==", beta, beta.type(1.0)))
        if self.mask is not None or clipped:
            same = ir.Constant(same.type, 0)
        with b.if_else(same) as (plain, scaled):
            with plain:
                for total, place in zip(sums, places, strict=True):
                    v.store(b.fadd(v.load(place), total), place)
            with scaled:
                write_tile(v, sums, places, masks, alpha, beta, clipped)

    def _all_rows(self) -> list[Value]:
        v, b = self.v, self.v.b
        offsets = self._places(v.whole(0), A_ROW)
        sums = [v.variable(v.zeros()) for _ in range(self.rows * self.vectors)]
        left, right = v.variable(self.a), v.variable(self.b)
        with until(v, right, self.stop):
            across = [v.load(p, self.mask) for p in self._across([b.load(right)])]
            self._add_terms([left], offsets, across, sums)
            self._advance(left, right, 1)
        return [b.load(total) for total in sums]

    def _add_terms(
        self, lefts: list[Any], offsets: list[Value], across: list[Value],
        sums: list[Any],
    ) -> None:  # fmt: skip
        """Add the next term of every sum: rows of A at `offsets` from `lefts`."""
        v, b = self.v, self.v.b
        for i in range(self.rows):
            group, place = divmod(i, len(offsets))
            start = b.load(lefts[group])
            x = v.splat(v.number(b.add(start, offsets[place])))
            for j, row in enumerate(across):
                total = sums[i * self.vectors + j]
                b.store(v.fma(x, row, b.load(total)), total)

    def _across(self, starts: Sequence[Value]) -> list[Value]:
        """Return the registers of each row, from its start on."""
        v, width = self.v, self.v.count * self.v.size
        return [
            v.b.add(start, v.whole(j * width)) if j else start
            for start in starts
            for j in range(self.vectors)
        ]

    def _one_row(self) -> list[Value]:
        """Emit several terms at a time in separate sums, to hide latency."""
        v, b = self.v, self.v.b
        sums = [v.variable(v.zeros()) for _ in range(APART)]
        left, right = v.variable(self.a), v.variable(self.b)
        terms = b.and_(self._word(blas.K), v.whole(APART - 1))
        stop = b.sub(self.stop, b.mul(terms, self.b_row))
        with b.if_then(b.icmp_signed("!=", self.b, stop)), until(v, right, stop):
            for term, total in enumerate(sums):
                self._add_term(total, left, right, term)
            self._advance(left, right, APART)
        more = b.icmp_signed("!=", stop, self.stop)
        with b.if_then(more), until(v, right, self.stop):
            self._add_term(sums[0], left, right, 0)
            self._advance(left, right, 1)
        first, second, third, fourth = (b.load(total) for total in sums)
        return [b.fadd(b.fadd(first, second), b.fadd(third, fourth))]

    def _add_term(self, total: Value, left: Value, right: Value, term: int) -> None:
        v, b, number = self.v, self.v.b, self.v.whole(term)
        row = v.load(b.add(b.load(right), b.mul(self.b_row, number)), self.mask)
        x = v.splat(v.number(b.add(b.load(left), b.mul(self.a_step, number))))
        b.store(v.fma(x, row, b.load(total)), total)

    def _advance(self, left: Value, right: Value, terms: int) -> None:
        b, count = self.v.b, self.v.whole(terms)
        b.store(b.add(b.load(left), b.mul(self.a_step, count)), left)
        b.store(b.add(b.load(right), b.mul(self.b_row, count)), right)

    def _word(self, number: int) -> Value:
        b = self.v.b
        words = b.inttoptr(self.table, _WORD.as_pointer())
        return b.load(b.gep(words, [self.v.whole(number)]))

    def _places(self, start: Value, first_word: int) -> list[Value]:
        """Return addresses of rows as an odd multiple of the stride, doubled."""
        v, b, found = self.v, self.v.b, [start]
        for i in range(1, min(self.rows, EIGHT)):
            twos = (i & -i).bit_length() - 1
            odd = self._word(first_word + (i >> twos + 1))
            place = b.add(start, b.shl(odd, v.whole(twos)))
            if self.rows == FEW:
                there = b.icmp_signed(">", self.left, v.whole(i))
                place = b.select(there, place, found[-1])
            found.append(place)
        more = range(EIGHT, self.rows)
        eight = b.shl(self._word(first_word), v.whole(3)) if more else None
        return found + [b.add(found[i - EIGHT], eight) for i in more]


def _mask(v: VectorLanes, columns: Value) -> Value:
    """Return the first lanes as bits: LLVM would move a comparison into the loop."""
    b, most = v.b, v.whole(v.count)
    bits = b.sub(b.shl(v.whole(1), v.least(columns, most)), v.whole(1))
    lanes = b.trunc(bits, ir.IntType(v.count))
    return b.bitcast(lanes, ir.VectorType(ir.IntType(1), v.count))


@contextmanager
def until(v: VectorLanes, place: Value, stop: Value) -> Iterator[None]:
    """Loop until the variable is `stop`, at least once."""
    body, after = v.b.append_basic_block(), v.b.append_basic_block()
    v.b.branch(body)
    v.b.position_at_end(body)
    yield
    v.b.cbranch(v.b.icmp_signed("!=", v.b.load(place), stop), body, after)
    v.b.position_at_end(after)


def _tile(size_of: Callable[[], tuple[int, int]], masked: bool = False) -> Any:
    def emit(v: VectorLanes, args: Any) -> None:
        SmallTile(v, *size_of(), args, masked).emit()

    return on_lanes("iiiiinnii", emit)


def _columns(size_of: Callable[[], tuple[int, int]], masked: bool = False) -> Any:
    """Return the intrinsic of all rows of a tile's columns; one row by one register."""
    rows, registers = (constant(lambda _, i=i: size_of()[i]) for i in range(2))
    tile = _tile(size_of, masked)
    eight = _tile(lambda: (EIGHT, size_of()[1]), masked)
    few = _tile(lambda: (FEW, size_of()[1]), masked)

    @_compiled
    def columns(table, a, b, c, m, alpha, beta, n):
        stop, most = b + load_int64(table, DEPTH), rows(alpha)
        while m >= most:
            tile(table, a, b, stop, c, alpha, beta, n, m)
            m -= most
            a += most * load_int64(table, A_ROW)
            c += most * load_int64(table, C_ROW)
        if most > EIGHT and m >= EIGHT:
            eight(table, a, b, stop, c, alpha, beta, n, m)
            m -= EIGHT
            a += EIGHT * load_int64(table, A_ROW)
            c += EIGHT * load_int64(table, C_ROW)
        while m > 1:
            few(table, a, b, stop, c, alpha, beta, n, m)
            m -= FEW
            a += FEW * load_int64(table, A_ROW)
            c += FEW * load_int64(table, C_ROW)
        register = lanes_of(alpha) * element_bytes(alpha)
        across = registers(alpha) if m == 1 else 0
        while across > 0:
            _tile_one(table, a, b, stop, c, alpha, beta, n, m)
            across -= 1
            b += register
            stop += register
            c += register

    return columns


_tile_one = _tile(lambda: (1, 1), masked=True)
column_of_tiles = _columns(lambda: (EIGHT, 1), masked=True)
_wide_column = _columns(lambda: (plan_of().rows, plan_of().vectors))


@_compiled
def _product(table, a, b, c, alpha, beta):
    """Compute all rows of C, one register of columns after the other."""
    size, lanes = element_bytes(alpha), lanes_of(alpha)
    n, m = load_int64(table, COLUMNS), load_int64(table, ROWS)
    while n > 0:
        column_of_tiles(table, a, b, c, m, alpha, beta, n)
        n -= lanes
        b += lanes * size
        c += lanes * size


@_compiled
def _turn(table, b, rows, panel, alpha):
    """Transpose B into the scratch memory."""
    size, lanes = element_bytes(alpha), lanes_of(alpha)
    width = load_int64(table, B_ROW)
    ld = load_int64(table, blas.LDB)
    while rows > 0:
        k, source, square = load_int64(table, blas.K), b, panel
        while k > 0:
            square_edge(source, ld, rows, k, square, width // size, alpha)
            k -= lanes
            source += lanes * size
            square += lanes * width
        rows -= lanes
        b += lanes * ld * size
        panel += lanes * size


@_compiled
def _product_by_tiles(table, a, b, c, m, n, alpha, beta, panel):
    """Compute some rows at a time with all columns."""
    size, lanes = element_bytes(alpha), lanes_of(alpha)
    width = vectors_of(alpha) * lanes
    if load_int64(table, TURNS):
        _turn(table, b, n, panel, alpha)
        b = panel
    while m > 0:
        rows = min(load_int64(table, STRIP), m)
        left, right, place = n, b, c
        while left >= width:
            _wide_column(table, a, right, place, rows, alpha, beta, left)
            left -= width
            right += width * size
            place += width * size
        while left > 0:
            column_of_tiles(table, a, right, place, rows, alpha, beta, left)
            left -= lanes
            right += lanes * size
            place += lanes * size
        m -= rows
        a += rows * load_int64(table, A_ROW)
        c += rows * load_int64(table, C_ROW)


def in_parts(product: Callable[..., None]) -> Callable[..., Callable[..., None]]:
    """Return a kernel of products, or of parts of one, each computed by `product`."""

    def kernel(number: Callable[[float], Any]) -> Callable[..., None]:
        def parts(operands, table, begin, end, context):
            """Compute items of a batch, or parts of one product."""
            alpha = number(load_float64(table, blas.ALPHA))
            beta = number(load_float64(table, blas.BETA))
            panel = load_int64(context, 1)
            for item in range(begin, end):
                m, n, a, b, c, first, last = blas.part(table, item)
                for index in range(first, last):
                    left, right, place = blas.addresses(table, operands, a, b, c, index)
                    product(table, left, right, place, m, n, alpha, beta, panel)

        return parts

    return kernel


def _rows(number: Callable[[float], Any]) -> Callable[..., None]:
    def rows(operands, table, begin, end, context):
        """Compute a product with B in place."""
        alpha = number(load_float64(table, blas.ALPHA))
        beta = number(load_float64(table, blas.BETA))
        a = load_int64(operands, load_int64(table, LEFT)) + load_int64(table, LEFT_AT)
        b = load_int64(operands, load_int64(table, RIGHT)) + load_int64(table, RIGHT_AT)
        size = element_bytes(alpha)
        c = load_int64(operands, 2) + load_int64(table, blas.OFFSET_C) * size
        _product(table, a, b, c, alpha, beta)

    return rows


def _turned(number: Callable[[float], Any]) -> Callable[..., None]:
    def turned(operands, table, begin, end, context):
        """Compute a product after transposing B into the scratch memory."""
        alpha = number(load_float64(table, blas.ALPHA))
        beta = number(load_float64(table, blas.BETA))
        size, panel = element_bytes(alpha), load_int64(context, 1)
        a = load_int64(operands, load_int64(table, LEFT)) + load_int64(table, LEFT_AT)
        b = load_int64(operands, load_int64(table, RIGHT)) + load_int64(table, RIGHT_AT)
        c = load_int64(operands, 2) + load_int64(table, blas.OFFSET_C) * size
        _turn(table, b, load_int64(table, COLUMNS), panel, alpha)
        _product(table, a, panel, c, alpha, beta)

    return turned


def _row_sums(v: VectorLanes, args: Any) -> None:
    """A register of C: the row at `a` with rows `b_row` bytes apart, from `b` on."""
    a, b, b_row, k, place, alpha, beta, most = args
    total = v.sums(_lane_sums(v, (a, b, b_row, k), most))
    write_tile(v, [total], [place], [_mask(v, most)], alpha, beta, clipped=True)


_sums = on_lanes("iiiiinni", _row_sums)


def _lane_sums(v: VectorLanes, where: Sequence[Value], columns: Value) -> list[Value]:
    """Return for each row of B^T the products with A, summed lane by lane."""
    a, b, b_row, k = where
    builder, last = v.b, v.b.mul(v.b.sub(columns, v.whole(1)), b_row)
    offsets = [v.whole(0)]
    for i in range(1, v.count):
        there = builder.icmp_signed(">", columns, v.whole(i))
        offsets.append(builder.select(there, builder.mul(b_row, v.whole(i)), last))
    sums = [v.variable(v.zeros()) for _ in offsets]
    done, width = v.variable(v.whole(0)), v.whole(v.count)
    up = builder.add(k, v.whole(v.count - 1))
    with until(v, done, builder.and_(up, v.whole(-v.count))):
        start = builder.load(done)
        mask = v.below(builder.sub(k, start))
        x = v.load(v.at(a, start), mask)
        for offset, total in zip(offsets, sums, strict=True):
            y = v.load(v.at(builder.add(b, offset), start), mask)
            builder.store(v.fma(x, y, builder.load(total)), total)
        builder.store(builder.add(start, width), done)
    return [builder.load(total) for total in sums]


def _dots(number: Callable[[float], Any]) -> Callable[..., None]:
    def dots(operands, table, begin, end, context):
        """Compute one row of A with rows of B^T, both contiguous."""
        alpha = number(load_float64(table, blas.ALPHA))
        beta = number(load_float64(table, blas.BETA))
        size, lanes = element_bytes(alpha), lanes_of(alpha)
        a = load_int64(operands, load_int64(table, LEFT)) + load_int64(table, LEFT_AT)
        b = load_int64(operands, load_int64(table, RIGHT)) + load_int64(table, RIGHT_AT)
        c = load_int64(operands, 2) + load_int64(table, blas.OFFSET_C) * size
        k, n = load_int64(table, blas.K), load_int64(table, COLUMNS)
        while n > 0:
            _sums(a, b, load_int64(table, B_ROW), k, c, alpha, beta, n)
            n -= lanes
            b += lanes * load_int64(table, B_ROW)
            c += lanes * size

    return dots


_KERNELS = {
    BY_ROWS: _rows,
    BY_DOTS: _dots,
    TURNED: _turned,
    TILED: in_parts(_product_by_tiles),
}


@cache
def small_address(kernel: int, itemsize: int) -> int:
    """Return the address of a kernel for float32 (4) or float64 (8)."""
    words = Path(str(blas.__file__)).read_text("utf-8")
    key = kernel_key(f"small product {kernel}, {itemsize} bytes an element\0{words}")

    number = as_float32 if itemsize == 4 else as_float64
    return compiled_once(_KERNELS[kernel](number), key)
