"""Emission of tile code: indices are Python ints where they are known.

An *index* is an int or an int64 of LLVM. Sums and products of ints are made while the
code is emitted, loops of one step are no loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from llvmlite import ir
from numba.core import cgutils

from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.llvm.vectors import VectorLanes

At: TypeAlias = "int | Value"
_LONG = ir.IntType(64)


class IndexCode(VectorLanes):
    """Emitter of vector code: registers, indices, and memory by pointer and index."""

    __slots__ = ()

    def number_of(self, x: At) -> Value:
        """Return an index as an LLVM value."""
        return ir.Constant(_LONG, x) if isinstance(x, int) else x

    def plus(self, *terms: At) -> At:
        """Add indices."""
        known = sum(t for t in terms if isinstance(t, int))
        total: At = known
        for term in terms:
            if isinstance(term, int):
                continue
            if isinstance(total, int):
                total = term
            else:
                total = self.b.add(total, term)
        others = any(not isinstance(t, int) for t in terms)
        return self.b.add(total, self.number_of(known)) if others and known else total

    def minus(self, x: At, y: At) -> At:
        """Subtract indices."""
        if isinstance(x, int) and isinstance(y, int):
            return x - y
        return self.b.sub(self.number_of(x), self.number_of(y))

    def times(self, x: At, factor: int) -> At:
        """Multiply an index by a number."""
        if isinstance(x, int):
            return x * factor
        return x if factor == 1 else self.b.mul(x, self.number_of(factor))

    def over(self, x: At, divisor: int) -> At:
        """Divide a nonnegative index."""
        if isinstance(x, int):
            return x // divisor
        return x if divisor == 1 else self.b.udiv(x, self.number_of(divisor))

    def smaller(self, x: At, y: At) -> At:
        """Return the smaller index."""
        if isinstance(x, int) and isinstance(y, int):
            return min(x, y)
        return self.least(self.number_of(x), self.number_of(y))

    def larger(self, x: At, y: At) -> At:
        """Return the larger index."""
        if isinstance(x, int) and isinstance(y, int):
            return max(x, y)
        left, right = self.number_of(x), self.number_of(y)
        return self.b.select(self.b.icmp_signed(">", left, right), left, right)

    @contextmanager
    def loop(self, count: At, step: int = 1, start: At = 0) -> Iterator[At]:
        """Loop from `start` to below `count`; a known single step is no loop."""
        known = isinstance(count, int) and isinstance(start, int)
        if known and 0 < count - start <= step:
            yield start
            return
        first, last = self.number_of(start), self.number_of(count)
        with cgutils.for_range_slice(
            self.b, first, last, self.number_of(step), _LONG
        ) as (index, _):
            yield index

    @contextmanager
    def only_if(self, condition: Value | None) -> Iterator[None]:
        """Emit the body under a condition; without one if it is None."""
        if condition is None:
            yield
            return
        with self.b.if_then(condition):
            yield

    # Memory

    def pointer(self, address: Value) -> Value:
        """Convert an address to a pointer to elements."""
        return self.b.inttoptr(address, self.element.as_pointer())

    def _place(self, base: Value, index: At, kind: Any) -> Value:
        place = self.b.gep(base, [self.number_of(index)], inbounds=True)
        return self.b.bitcast(place, kind.as_pointer())

    def vector(self, base: Value, index: At, mask: Value | None = None) -> Value:
        """Load a register; zero in lanes that the mask leaves out."""
        place = self._place(base, index, self.type)
        if mask is None:
            value = self.b.load(place)
            value.align = self.size
            return value
        size = ir.Constant(ir.IntType(32), self.size)
        return self._masked("load", self.type, (place, size, mask, self.zeros()))

    def put(
        self, value: Value, base: Value, index: At, mask: Value | None = None
    ) -> None:
        """Store a register, or those of its lanes that the mask has."""
        place = self._place(base, index, self.type)
        if mask is None:
            self.b.store(value, place).align = self.size
            return
        size = ir.Constant(ir.IntType(32), self.size)
        self._masked("store", ir.VoidType(), (value, place, size, mask))

    def repeated(self, base: Value, index: At) -> Value:
        """Load one element into all lanes."""
        value = self.b.load(self._place(base, index, self.element))
        value.align = self.size
        return self.splat(value)

    def mask_of(self, count: At) -> Value | None:
        """Return the mask of the first `count` lanes; None for all of them."""
        if isinstance(count, int) and count >= self.count:
            return None
        return self.below(self.number_of(count))

    def sums_of(self, keys: Any) -> dict[Any, Value]:
        """Return a variable of zeros for each key."""
        return {key: self.variable(self.zeros()) for key in keys}

    def add_product(self, place: Value, x: Value, y: Value) -> None:
        """Emit ``place += x * y``."""
        self.b.store(self.fma(x, y, self.b.load(place)), place)

    @contextmanager
    def parts(
        self, begin: Value, end: Value, rows: int
    ) -> Iterator[tuple[At, Value, Value]]:
        """Loop over [begin, end) of `rows` per image, as (image, first row, end row).

        One turn for each image that the range touches.
        """
        if rows == 1:
            with self.loop(end, start=begin) as image:
                yield image, self.number_of(0), self.number_of(1)
            return
        height = self.number_of(rows)
        item = cgutils.alloca_once_value(self.b, begin)
        head = self.b.append_basic_block("part")
        body = self.b.append_basic_block("rows")
        done = self.b.append_basic_block("done")
        self.b.branch(head)
        self.b.position_at_end(head)
        now = self.b.load(item)
        self.b.cbranch(self.b.icmp_signed("<", now, end), body, done)
        self.b.position_at_end(body)
        image = self.b.udiv(now, height)
        first = self.b.urem(now, height)
        last = self.least(height, self.b.add(first, self.b.sub(end, now)))
        yield image, first, last
        self.b.store(self.b.add(now, self.b.sub(last, first)), item)
        self.b.branch(head)
        self.b.position_at_end(done)
