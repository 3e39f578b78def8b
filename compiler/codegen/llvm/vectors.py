"""Vector registers as LLVM IR: loads, stores, masks, shuffles.

A `Lanes` is made for one builder and one element type; a register has as many lanes as
the processor for which Numba compiles allows. Addresses are int64, indices count
elements, and nothing has to be aligned beyond the element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from staticgrad.compiler.codegen.llvm.ir_emitter import Value, declared
from staticgrad.compiler.host import processor

_BIT = ir.IntType(1)
_INT = ir.IntType(32)
_LONG = ir.IntType(64)
_LANE_BYTES = 16  # shuffles within 16 bytes are the cheap ones on x86


class VectorLanes:
    """Register kind: `count` lanes of `element`, `size` bytes each."""

    __slots__ = ("b", "bits", "count", "element", "size", "type")

    def __init__(self, builder: Any, bits: int, count: int = 0) -> None:
        """Make a kind with `count` lanes, by default as many as a register has."""
        self.b = builder
        self.bits = bits
        self.size = bits // 8
        self.element = ir.FloatType() if bits == 32 else ir.DoubleType()
        self.count = count or processor.vector_bytes() // self.size
        self.type = ir.VectorType(self.element, self.count)

    def whole(self, value: int) -> Value:
        """Return a constant int64."""
        return ir.Constant(_LONG, value)

    def least(self, x: Value, y: Value) -> Value:
        """Emit the smaller of two int64."""
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def own(self, value: Value) -> Value:
        """Keep an int64 in a register of its own, opaque to LLVM."""
        kind = ir.FunctionType(_LONG, [_LONG])
        return self.b.asm(kind, "", "=r,0", [value], False)

    def zeros(self) -> Value:
        """Return a register of zeros."""
        return ir.Constant(self.type, [0.0] * self.count)

    def variable(self, start: Value) -> Any:
        """Return a variable that holds a register; LLVM makes a register of it."""
        place = cgutils.alloca_once(self.b, start.type)
        self.b.store(start, place)
        return place

    def at(self, address: Value, index: Value) -> Value:
        """Return the address `index` elements further."""
        return self.b.add(address, self.b.mul(index, self.whole(self.size)))

    def number(self, address: Value) -> Value:
        """Return the element at `address`."""
        return self.b.load(self.b.inttoptr(address, self.element.as_pointer()))

    def load(self, address: Value, mask: Value | None = None) -> Value:
        """Load the register at `address`; zero in lanes that the mask leaves out."""
        place = self.b.inttoptr(address, self.type.as_pointer())
        if mask is None:
            value = self.b.load(place)
            value.align = self.size
            return value
        args = (place, ir.Constant(_INT, self.size), mask, self.zeros())
        return self._masked("load", self.type, args)

    def store(self, value: Value, address: Value, mask: Value | None = None) -> None:
        """Store a register, or those of its lanes that the mask has."""
        place = self.b.inttoptr(address, self.type.as_pointer())
        if mask is None:
            self.b.store(value, place).align = self.size
            return
        args = (value, place, ir.Constant(_INT, self.size), mask)
        self._masked("store", ir.VoidType(), args)

    def _masked(self, verb: str, result: Any, args: Sequence[Value]) -> Value:
        name = f"llvm.masked.{verb}.v{self.count}f{self.bits}.p0"
        kind = ir.FunctionType(result, [a.type for a in args])
        return self.b.call(declared(self.b.module, name, kind), args)

    def below(self, count: Value) -> Value:
        """Return the mask of the first `count` lanes."""
        lanes = ir.VectorType(_INT, self.count)
        limit = self.splat(self.b.trunc(count, _INT))
        numbers = ir.Constant(lanes, list(range(self.count)))
        return self.b.icmp_signed("<", numbers, limit)

    def splat(self, value: Value) -> Value:
        """Broadcast `value` to all lanes."""
        kind = ir.VectorType(value.type, self.count)
        empty = ir.Constant(kind, ir.Undefined)
        one = self.b.insert_element(empty, value, ir.Constant(_INT, 0))
        return self.b.shuffle_vector(one, empty, self._order([0] * self.count))

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """Emit ``x * y + z``, rounded once where the processor can."""
        if not processor.has_fma():
            return self.b.fadd(self.b.fmul(x, y), z)
        name = f"llvm.fma.v{self.count}f{self.bits}"
        kind = ir.FunctionType(self.type, [self.type] * 3)
        return self.b.call(declared(self.b.module, name, kind), (x, y, z))

    def shuffle(self, x: Value, y: Value, order: Sequence[int]) -> Value:
        """Shuffle lanes of x (numbered from 0) and y (from `count`) into that order."""
        return self.b.shuffle_vector(x, y, self._order(order))

    def _order(self, order: Sequence[int]) -> Value:
        return ir.Constant(ir.VectorType(_INT, len(order)), list(order))

    def sums(self, rows: list[Value]) -> Value:
        """Return a register whose lane j is the sum over the lanes of ``rows[j]``."""
        step = 1
        while step < self.count:
            rows = [
                self._half(x, y, step)
                for x, y in zip(rows[0::2], rows[1::2], strict=True)
            ]
            step *= 2
        return rows[0]

    def _half(self, x: Value, y: Value, step: int) -> Value:
        """Add lanes that differ in bit `step`: of x where it is 0, else of y."""
        lanes = range(self.count)
        second = [self.count if lane & step else 0 for lane in lanes]
        low = [(lane & ~step) + second[lane] for lane in lanes]
        high = [(lane | step) + second[lane] for lane in lanes]
        return self.b.fadd(self.shuffle(x, y, low), self.shuffle(x, y, high))

    def transposed(self, rows: list[Value]) -> list[Value]:
        """Transpose a square of registers.

        First squares within 16 bytes, then those squares are exchanged.
        """
        width = _LANE_BYTES // self.size
        squares = [
            self._square(rows[first : first + width], width)
            for first in range(0, self.count, width)
        ]
        columns = [
            self._blocks(list(blocks), width) for blocks in zip(*squares, strict=True)
        ]
        blocks = self.count // width
        return [columns[c][q] for q in range(blocks) for c in range(width)]

    @property
    def turned_at_once(self) -> int:
        """Number of elements that `turned` takes of each row."""
        return _LANE_BYTES // self.size

    def turned(self, places: Sequence[Value]) -> list[Value]:
        """Transpose the first columns of rows at those addresses, one row per lane.

        Rows are read by 16 bytes, which are put where they belong on the way.
        """
        width = self.turned_at_once
        rows = [self._gathered(places[first::width]) for first in range(width)]
        return self._square(rows, width)

    def _gathered(self, places: Sequence[Value]) -> Value:
        """Load 16 bytes from each address, one after the other in a register."""
        kind = ir.VectorType(self.element, self.turned_at_once)
        pieces = [self.b.load(self.b.inttoptr(p, kind.as_pointer())) for p in places]
        for piece in pieces:
            piece.align = self.size
        while len(pieces) > 1:
            lanes = list(range(2 * pieces[0].type.count))
            pairs = zip(pieces[0::2], pieces[1::2], strict=True)
            pieces = [self.b.shuffle_vector(x, y, self._order(lanes)) for x, y in pairs]
        return pieces[0]

    def _square(self, rows: list[Value], width: int) -> list[Value]:
        if width == 2:
            return self._interleaved(rows[0], rows[1], width, 1)
        low = self._interleaved(rows[0], rows[1], width, 1)
        high = self._interleaved(rows[2], rows[3], width, 1)
        return [
            pair
            for x, y in zip(low, high, strict=True)
            for pair in self._interleaved(x, y, width, 2)
        ]

    def _interleaved(self, x: Value, y: Value, width: int, unit: int) -> list[Value]:
        """Interleave units of lanes of x and y, of the lower and the upper halves."""

        def order(half: int) -> list[int]:
            found: list[int] = []
            for first in range(half, self.count, width):
                for start in range(first, first + width // 2, unit):
                    found += range(start, start + unit)
                    found += range(self.count + start, self.count + start + unit)
            return found

        return [self.shuffle(x, y, order(half)) for half in (0, width // 2)]

    def _blocks(self, rows: list[Value], width: int) -> list[Value]:
        """Return registers of which q has block q of every row, one after the other."""

        def pick(x: Value, y: Value, of_x: Sequence[int], of_y: Sequence[int]) -> Value:
            order = [q * width + i for q in of_x for i in range(width)]
            order += [self.count + q * width + i for q in of_y for i in range(width)]
            return self.shuffle(x, y, order)

        if len(rows) == 1:
            return rows
        if len(rows) == 2:
            return [pick(rows[0], rows[1], [q], [q]) for q in range(2)]
        found: list[Value] = []
        for half in ((0, 1), (2, 3)):
            x = pick(rows[0], rows[1], half, half)
            y = pick(rows[2], rows[3], half, half)
            found += [pick(x, y, [q, q + 2], [q, q + 2]) for q in range(2)]
        return found
