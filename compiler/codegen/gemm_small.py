"""Products of a few tiles, each in one call: kernels that read the table themselves.

The driver's loops and the calls of its pieces take longer than the arithmetic of, say,
16 x 16 with 4 terms. For such shapes the table names one of these two kernels instead:
`rows`, with B read where it lies, a register of columns at a time, and `dots`, for one
row of A and a B whose rows are sums (a matrix times a vector).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from staticgrad.compiler import blas
from staticgrad.compiler import numba_internals as internals
from staticgrad.compiler.cache import default_cache, kernel_key
from staticgrad.compiler.codegen.gemm import (
    element_bytes,
    lanes_of,
    write_tile,
)
from staticgrad.compiler.codegen.emitter import Value
from staticgrad.compiler.codegen.gemm_leaves import _float32, _float64
from staticgrad.compiler.codegen.vectors import Lanes
from staticgrad.compiler.pointers import load_float64, load_int64

BY_ROWS, BY_DOTS = range(2)
(LEFT, RIGHT, LEFT_AT, RIGHT_AT, ROWS, COLUMNS, A_STEP, B_ROW, DEPTH, A_ROWS,
 _, _, _, C_ROWS, _, _, _) = range(blas.OURS, blas.WORDS)  # fmt: skip
"""Words of the table: which operand is A and which is B; where they begin in elements;
rows and columns of C; A's strides and B's, in elements."""

EIGHT, FEW = 8, 4  # rows of a tile: as many sums as are in flight, and a rest of them
_LONG = types.int64
_WORD = ir.IntType(64)
_FOUR = 4  # terms apart where there is one row


class _Rows:
    """Emits a tile of some rows by one register."""

    def __init__(self, v: Lanes, rows: int, args: Any) -> None:
        (self.table, self.a, self.b, self.stop, self.c, self.alpha, self.beta, columns,
         self.left) = args  # fmt: skip
        self.v, self.rows, self.mask = v, rows, _mask(v, columns)

    def _word(self, number: int) -> Value:
        v = self.v
        place = v.b.inttoptr(self.table, _WORD.as_pointer())
        return v.b.load(v.b.gep(place, [v.whole(number)]))

    def _places(self, start: Value, first_word: int) -> list[Value]:
        """Rows from `start` on; odd multiples of the stride are words of the table.

        Computed here they would be sums of each other, each waiting for the one before.
        """
        v, b = self.v, self.v.b
        odd = [self._word(first_word + i) for i in range((self.rows + 1) // 2)]
        found = [start]
        for i in range(1, self.rows):
            twos = (i & -i).bit_length() - 1
            offset = b.shl(odd[i >> twos + 1], v.whole(twos))
            found.append(b.add(start, offset))
        if self.rows == FEW:
            for i in range(1, FEW):
                there = b.icmp_signed(">", self.left, v.whole(i))
                found[i] = b.select(there, found[i], found[i - 1])
        return found

    def emit(self) -> None:
        v, b = self.v, self.v.b
        sums = [v.variable(v.zeros()) for _ in range(self.rows)]
        offsets = self._places(v.whole(0), A_ROWS)
        a_step, b_row = self._word(A_STEP), self._word(B_ROW)
        left, right = _place(v, self.a), _place(v, self.b)
        with _until(v, right, self.stop):
            start = b.load(left)
            y = v.load(b.load(right), self.mask)
            for offset, total in zip(offsets, sums, strict=True):
                x = v.splat(v.number(b.add(start, offset)))
                b.store(v.fma(x, y, b.load(total)), total)
            b.store(b.add(start, a_step), left)
            b.store(b.add(b.load(right), b_row), right)
        write_tile(
            v, [b.load(total) for total in sums], self._places(self.c, C_ROWS),
            [self.mask] * self.rows, self.alpha, self.beta, self.rows == FEW,
        )  # fmt: skip


def _mask(v: Lanes, columns: Value) -> Value:
    """The first so many lanes, as bits, because LLVM moves a comparison into loops."""
    b, most = v.b, v.whole(v.count)
    bits = b.sub(b.shl(v.whole(1), v.least(columns, most)), v.whole(1))
    lanes = b.trunc(bits, ir.IntType(v.count))
    return b.bitcast(lanes, ir.VectorType(ir.IntType(1), v.count))


def _place(v: Lanes, value: Value) -> Value:
    place = cgutils.alloca_once(v.b, value.type)
    v.b.store(value, place)
    return place


@contextmanager
def _until(v: Lanes, place: Value, stop: Value) -> Iterator[None]:
    """A loop whose body runs until the variable is `stop`, at least once.

    Counted by an address, because LLVM unrolls what counts terms.
    """
    body, after = v.b.append_basic_block(), v.b.append_basic_block()
    v.b.branch(body)
    v.b.position_at_end(body)
    yield
    again = v.b.icmp_unsigned("!=", v.b.load(place), stop)
    v.b.cbranch(again, body, after)
    v.b.position_at_end(after)


def _tile(rows: int) -> Any:
    @intrinsic
    def tile(
        typing: Any, table: Any, a: Any, b: Any, stop: Any, c: Any, alpha: Any,
        beta: Any, columns: Any, left: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            _Rows(Lanes(builder, alpha.bitwidth), rows, args).emit()
            return context.get_dummy_value()

        return types.void(*[_LONG] * 5, alpha, alpha, _LONG, _LONG), emit

    return tile


_eight, _few, _one = _tile(EIGHT), _tile(FEW), _tile(1)


def _rows(number: Callable[[float], Any]) -> Callable[..., None]:
    def rows(operands, table, begin, end, context):
        """B in place: all rows of C pass over a register of columns."""
        alpha = number(load_float64(table, blas.ALPHA))
        beta = number(load_float64(table, blas.BETA))
        size, lanes = element_bytes(alpha), lanes_of(alpha)
        n = load_int64(table, COLUMNS)
        a = load_int64(operands, load_int64(table, LEFT))
        a += load_int64(table, LEFT_AT)
        b = load_int64(operands, load_int64(table, RIGHT))
        b += load_int64(table, RIGHT_AT)
        c = load_int64(operands, 2) + load_int64(table, blas.OFFSET_C) * size
        stop = b + load_int64(table, DEPTH)
        while n > 0:
            m, x, y = load_int64(table, ROWS), a, c
            while m >= EIGHT:
                _eight(table, x, b, stop, y, alpha, beta, n, m)
                m -= EIGHT
                x += EIGHT * load_int64(table, A_ROWS)
                y += EIGHT * load_int64(table, C_ROWS)
            while m > 1:
                _few(table, x, b, stop, y, alpha, beta, n, m)
                m -= FEW
                x += FEW * load_int64(table, A_ROWS)
                y += FEW * load_int64(table, C_ROWS)
            if m == 1:
                _one(table, x, b, stop, y, alpha, beta, n, m)
            n -= lanes
            b += lanes * size
            stop += lanes * size
            c += lanes * size

    return rows


class _Dots:
    """Emits sums of one row of A with as many rows of B as a register has lanes."""

    def __init__(self, v: Lanes, args: Any) -> None:
        self.a, self.b, self.b_row, self.k, self.c, self.alpha, self.beta, self.n = args
        self.v = v

    def emit(self) -> None:
        v, b = self.v, self.v.b
        sums = [v.variable(v.zeros()) for _ in range(v.count)]
        last = b.mul(b.sub(self.n, v.whole(1)), self.b_row)
        offsets = [v.whole(0)]
        for i in range(1, v.count):
            there = b.icmp_signed(">", self.n, v.whole(i))
            offsets.append(b.select(there, b.mul(self.b_row, v.whole(i)), last))
        left, right, terms = (_place(v, x) for x in (self.a, self.b, self.k))
        width = v.whole(v.count * v.size)
        body, after = b.append_basic_block(), b.append_basic_block()
        b.branch(body)
        b.position_at_end(body)
        mask, start = v.below(b.load(terms)), b.load(right)
        x = v.load(b.load(left), mask)
        for offset, total in zip(offsets, sums, strict=True):
            y = v.load(b.add(start, offset), mask)
            b.store(v.fma(x, y, b.load(total)), total)
        b.store(b.add(b.load(left), width), left)
        b.store(b.add(start, width), right)
        rest = b.sub(b.load(terms), v.whole(v.count))
        b.store(rest, terms)
        b.cbranch(b.icmp_signed(">", rest, v.whole(0)), body, after)
        b.position_at_end(after)
        total = v.sums([b.load(place) for place in sums])
        mask = v.below(self.n)
        write_tile(v, [total], [self.c], [mask], self.alpha, self.beta, True)


@intrinsic
def _dots_of(
    typing: Any, a: Any, b: Any, b_row: Any, k: Any, c: Any, alpha: Any, beta: Any, n: Any,
) -> Any:  # fmt: skip
    def emit(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _Dots(Lanes(builder, alpha.bitwidth), args).emit()
        return context.get_dummy_value()

    return types.void(*[_LONG] * 5, alpha, alpha, _LONG), emit


def _dots(number: Callable[[float], Any]) -> Callable[..., None]:
    def dots(operands, table, begin, end, context):
        """One row of A with rows of B, as many as there are lanes at a time."""
        alpha = number(load_float64(table, blas.ALPHA))
        beta = number(load_float64(table, blas.BETA))
        size, lanes = element_bytes(alpha), lanes_of(alpha)
        k, n = load_int64(table, blas.K), load_int64(table, COLUMNS)
        a = load_int64(operands, load_int64(table, LEFT))
        a += load_int64(table, LEFT_AT)
        b = load_int64(operands, load_int64(table, RIGHT))
        b += load_int64(table, RIGHT_AT)
        c = load_int64(operands, 2) + load_int64(table, blas.OFFSET_C) * size
        b_row = load_int64(table, B_ROW)
        while n > 0:
            _dots_of(a, b, b_row, k, c, alpha, beta, n)
            n -= lanes
            b += lanes * b_row
            c += lanes * size

    return dots


_KERNELS = {BY_ROWS: _rows, BY_DOTS: _dots}


def small_address(kernel: int, itemsize: int) -> int:
    """The address of one of them for float32 (4) or float64 (8), compiled if new."""
    words = Path(str(blas.__file__)).read_text("utf-8")
    key = kernel_key(f"small product {kernel}, {itemsize} bytes an element\0{words}")

    def compiled() -> Any:
        function = _KERNELS[kernel](_float32 if itemsize == 4 else _float64)
        function.__name__ = function.__qualname__ = f"kernel_{key[:24]}"
        return internals.compile_callback(function, 5)

    return default_cache().get(key, compiled).address
