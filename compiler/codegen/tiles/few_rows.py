"""Products of few rows: rows of B are streamed in the order of memory.

B is used once for all of C then, and what takes time is to read it. A tile would read a
few hundred bytes of each row, and the processor foresees no access. So a few rows of B
pass side by side along their whole length, and the rows of C, which stay in the L1
cache, are added to. Where B comes from beyond the caches the rows after those are asked
for ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from staticgrad.compiler.codegen.llvm.ir_emitter import Value, declared
from staticgrad.compiler.codegen.llvm.pointers import fill_bytes, load_float64
from staticgrad.compiler.codegen.llvm.vectors import VectorLanes
from staticgrad.compiler.codegen.tiles.product_tiles import (
    constant,
    element_bytes,
    on_lanes,
    plan_of,
)

TERMS = 4  # rows of B streamed side by side: more exceed the address registers
COLUMNS = 1024  # streamed before the next rows of B
_LONG, _INT, _BYTE = types.int64, ir.IntType(32), ir.IntType(8)


def _several() -> int:
    """Return the rows of A whose terms stay in registers."""
    return 4 if plan_of().high == 16 else 2


def prefetch(v: VectorLanes, address: Value) -> None:
    """Prefetch the cache line at `address` to the L2 cache; it need not exist."""
    place = v.b.inttoptr(address, _BYTE.as_pointer())
    read, level, data = (ir.Constant(_INT, number) for number in (0, 2, 1))
    kind = ir.FunctionType(ir.VoidType(), [place.type, _INT, _INT, _INT])
    function = declared(v.b.module, "llvm.prefetch.p0", kind)
    v.b.call(function, (place, read, level, data))


class _Stream:
    """Emitter of ``C += A B`` for some rows of A and of B, and all `columns`."""

    def __init__(
        self, v: VectorLanes, rows: int, terms: int, ahead: bool, args: Any
    ) -> None:
        a, a_row, a_step, b, self.b_step, c, c_row, self.columns, _ = args
        self.v, self.ahead = v, ahead
        self.b = [v.at(b, v.b.mul(self.b_step, v.whole(g))) for g in range(terms)]
        self.c = [v.at(c, v.b.mul(c_row, v.whole(i))) for i in range(rows)]
        starts = [v.at(a, v.b.mul(a_row, v.whole(i))) for i in range(rows)]
        places = [v.b.mul(a_step, v.whole(g)) for g in range(terms)]
        self.a = [
            [v.splat(v.number(v.at(start, place))) for place in places]
            for start in starts
        ]

    def emit(self) -> None:
        v, b = self.v, self.v.b
        done = b.and_(self.columns, v.whole(-v.count))
        with cgutils.for_range_slice(b, v.whole(0), done, v.whole(v.count)) as (j, _):
            self._add(j, None)
        with b.if_then(b.icmp_signed("<", done, self.columns)):
            self._add(done, v.below(b.sub(self.columns, done)))

    def _add(self, column: Value, mask: Value | None) -> None:
        """Emit all terms of a register of columns."""
        v = self.v
        across = [v.load(v.at(row, column), mask) for row in self.b]
        if self.ahead:
            further = v.b.add(column, v.b.mul(self.b_step, v.whole(len(self.b))))
            for row in self.b:
                prefetch(v, v.at(row, further))
        for factors, start in zip(self.a, self.c, strict=True):
            place = v.at(start, column)
            total = v.load(place, mask)
            for x, y in zip(factors, across, strict=True):
                total = v.fma(x, y, total)
            v.store(total, place, mask)


def _stream(rows_of: Callable[[], int], terms: int, ahead: bool) -> Any:
    def emit(v: VectorLanes, args: Any) -> None:
        _Stream(v, rows_of(), terms, ahead, args).emit()

    return on_lanes("iiiiiiiin", emit)


several = constant(lambda _: _several())
_compiled = njit(nogil=True, error_model="numpy", inline="always")


def _strip(rows_of: Callable[[], int], ahead: bool) -> Any:
    """Return the intrinsic of some rows of A by a few rows of B."""
    many, one = _stream(rows_of, TERMS, ahead), _stream(rows_of, 1, ahead)

    @_compiled
    def strip(a, a_row, a_step, b, b_step, c, c_row, columns, deep, number):
        size = element_bytes(number)
        if deep == TERMS:
            many(a, a_row, a_step, b, b_step, c, c_row, columns, number)
            deep = 0
        while deep > 0:
            one(a, a_row, a_step, b, b_step, c, c_row, columns, number)
            deep -= 1
            a += a_step * size
            b += b_step * size

    return strip


def few_rows(ahead: bool) -> Callable[[Callable[[float], Any]], Callable[..., None]]:
    """Return the kernel of such products, with the arguments of tiles; alpha is 1."""
    strip_several = _strip(_several, ahead)
    strip_two, strip_one = _strip(lambda: 2, ahead), _strip(lambda: 1, ahead)

    def leaf(number: Callable[[float], Any]) -> Callable[..., None]:
        def product(a, a_row, a_step, b, b_step, c, c_row, m, n, k, scale, more):
            """Compute all of C from contiguous rows of B, some columns at a time."""
            zero = number(0.0)
            size, most = element_bytes(zero), several(zero)
            fresh = more == 0 and load_float64(scale, 1) == 0.0
            while n > 0:
                columns, done = min(n, COLUMNS), 0
                if fresh:
                    for i in range(m):
                        fill_bytes(c + i * c_row * size, 0, columns * size)
                while done < k:
                    deep, i = min(k - done, TERMS), 0
                    left = a + done * a_step * size
                    right = b + done * b_step * size
                    while i + most <= m:
                        strip_several(
                            left + i * a_row * size, a_row, a_step, right, b_step,
                            c + i * c_row * size, c_row, columns, deep, zero,
                        )  # fmt: skip
                        i += most
                    while i + 2 <= m:
                        strip_two(
                            left + i * a_row * size, a_row, a_step, right, b_step,
                            c + i * c_row * size, c_row, columns, deep, zero,
                        )  # fmt: skip
                        i += 2
                    if i < m:
                        strip_one(
                            left + i * a_row * size, a_row, a_step, right, b_step,
                            c + i * c_row * size, c_row, columns, deep, zero,
                        )  # fmt: skip
                    done += TERMS
                n -= columns
                b += columns * size
                c += columns * size

        return product

    return leaf
