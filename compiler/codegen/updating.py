"""Rows of a product, each applied to what it updates while the next ones are summed.

A tile has 16 rows of one register. Its sums go to the scratch area, which has room for
two blocks of rows: between the terms of a block's tiles the block before is taken from
there, from its beginning to its end, and goes through the steps of the update. The
divider then works beside the multiply-adds, and memory is walked along rows.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from staticgrad.compiler.codegen.code import At, Code
from staticgrad.compiler.codegen.emitter import Value, declared
from staticgrad.compiler.codegen.gemm import LONG_ROWS
from staticgrad.compiler.codegen.gemm_thin import prefetch
from staticgrad.compiler.schemes import Update

DEPTH = 512  # terms, as in gemm.py: more are added up in parts


def updating(c: Code, s: Update, memory: list[Value], numbers: list[Value]) -> None:
    """Emit an Update scheme: (A, B, operands of the update, scratch)."""
    _Updating(c, s, memory, numbers).emit()


class _Updating:
    def __init__(
        self, c: Code, s: Update, memory: list[Value], numbers: list[Value]
    ) -> None:
        self.c, self.s = c, s
        self.a, self.b, *self.own, self.sums, self.totals = memory
        self.begin, self.end, *sizes = numbers
        self.k: At = sizes[0] if sizes else s.terms
        self.known = self._known()
        self.is_deep = self._is_deep()
        self.waiting = cgutils.alloca_once_value(c.b, c.number_of(-1))

    def _is_deep(self) -> Value | None:
        """Whether terms are added up in parts; None where that is known not to be."""
        if isinstance(self.k, int) and self.k <= DEPTH:
            return None
        k, depth = self.c.number_of(self.k), self.c.number_of(DEPTH)
        return self.c.b.icmp_signed(">", k, depth)

    def emit(self) -> None:
        """All tiles, then the last one's update."""
        c, s = self.c, self.s
        with c.loop(self.end, start=self.begin) as index:
            blocks: tuple[At, At] = (index, c.plus(index, 1))
            columns: tuple[At, At] = (0, s.columns)
            if s.part:
                first = c.times(index, s.part)
                blocks, columns = (0, s.rows // LONG_ROWS), (first, c.plus(first, s.part))
            with (
                c.loop(blocks[1], start=blocks[0]) as block,
                c.loop(columns[1], c.count, start=columns[0]) as column,
            ):
                self._tile(block, column)
        with c.b.if_then(self._waits()), c.loop(LONG_ROWS) as row:
            self._apply(row)

    def _waits(self) -> Value:
        """Whether a tile has not been applied yet."""
        waiting = self.c.b.load(self.waiting)
        return self.c.b.icmp_signed(">=", waiting, self.c.number_of(0))

    def _tile(self, block: At, column: At) -> None:
        c, s = self.c, self.s
        sums = c.sums_of(range(LONG_ROWS))
        for total in sums.values():
            c.b.store(c.zeros(), total)
        left = c.plus(s.a_start, c.times(block, LONG_ROWS * s.a_row))
        right = c.plus(s.b_start, column)
        place = c.plus(c.times(block, LONG_ROWS * s.columns), column)
        every, waits = c.over(self.k, LONG_ROWS), self._waits()
        if self.is_deep:
            with c.b.if_then(self.is_deep), c.loop(LONG_ROWS) as row:
                c.put(c.zeros(), self.totals, c.times(row, c.count))
        with c.loop(LONG_ROWS) as row:
            with c.b.if_then(waits):
                self._apply(row)
            self._ask_for(c.plus(place, c.times(row, s.columns)))
            first = c.b.mul(c.number_of(row), c.number_of(every))
            self._add_terms(sums, left, right, (first, c.plus(first, every)))
        self._add_terms(sums, left, right, (c.times(every, LONG_ROWS), self.k))
        if self.is_deep:
            with c.b.if_then(self.is_deep):
                self._take_totals(sums)
        for row, total in sums.items():
            c.put(c.b.load(total), self.sums, row * c.count)
        c.b.store(c.number_of(place), self.waiting)

    def _add_terms(
        self, sums: dict[Any, Value], left: At, right: At, terms: tuple[At, At]
    ) -> None:
        """A range of terms, of which at most DEPTH are added one by one."""
        c, deep = self.c, self.is_deep
        first, last = terms
        if deep is None:
            with c.loop(last, start=first) as term:
                self._add(sums, left, right, term)
            return
        with c.loop(last, DEPTH, start=first) as begin:
            end = c.smaller(c.plus(begin, DEPTH), last)
            with c.loop(end, start=begin) as term:
                self._add(sums, left, right, term)
            with c.b.if_then(deep):
                self._take_totals(sums)
                for row, total in sums.items():
                    c.put(c.b.load(total), self.totals, row * c.count)
                    c.b.store(c.zeros(), total)

    def _take_totals(self, sums: dict[Any, Value]) -> None:
        """Add what is already summed."""
        c = self.c
        for row, total in sums.items():
            before = c.vector(self.totals, row * c.count)
            c.b.store(c.b.fadd(before, c.b.load(total)), total)

    def _ask_for(self, index: At) -> None:
        """Have what a row will be applied to fetched from far."""
        c, steps = self.c, self.s.program
        for number in sorted(
            {step.args[0] for step in steps if step.name == "element"}
        ):
            place = c.b.gep(self.own[number], [c.number_of(index)])
            prefetch(c, c.b.ptrtoint(place, ir.IntType(64)))

    def _add(self, sums: dict[Any, Value], left: At, right: At, term: At) -> None:
        """One term of every sum."""
        c, s = self.c, self.s
        y = c.vector(self.b, c.plus(right, c.times(term, s.b_row)))
        start = c.plus(left, c.times(term, s.a_term))
        for row, total in sums.items():
            x = c.repeated(self.a, c.plus(start, row * s.a_row))
            c.add_product(total, x, y)

    def _known(self) -> dict[int, Value]:
        """What is the same for all elements."""
        c = self.c
        found: dict[int, Value] = {}
        for number, step in enumerate(self.s.program):
            if step.name == "number":
                found[number] = c.splat(c.element(step.number))
            elif step.name == "single":
                found[number] = c.repeated(self.own[step.args[0]], step.args[1])
            elif step.name == "rounded":
                base, place = self.own[step.args[0]], step.args[1]
                found[number] = c.splat(self._rounded(base, place))
        return found

    def _rounded(self, base: Value, index: int) -> Value:
        """A number of float64 as an element."""
        b, wide = self.c.b, ir.DoubleType()
        place = b.gep(b.bitcast(base, wide.as_pointer()), [self.c.number_of(index)])
        return b.fptrunc(b.load(place), self.c.element)

    def _apply(self, row: At) -> None:
        """A row of the tile that waits."""
        c = self.c
        index = c.plus(c.b.load(self.waiting), c.times(row, self.s.columns))
        values = dict(self.known)
        for number, step in enumerate(self.s.program):
            if step.name == "product":
                values[number] = c.vector(self.sums, c.times(row, c.count))
            elif step.name == "element":
                values[number] = c.vector(self.own[step.args[0]], index)
            elif step.name == "store":
                c.put(values[step.args[1]], self.own[step.args[0]], index)
            elif number not in values:
                args = [values[arg] for arg in step.args]
                values[number] = self._result(step.name, args)

    def _result(self, name: str, args: list[Value]) -> Value:
        b = self.c.b
        if name == "sqrt":
            kind = args[0].type
            full = f"llvm.sqrt.v{self.c.count}f{self.c.bits}"
            root = declared(b.module, full, ir.FunctionType(kind, [kind]))
            return b.call(root, args)
        made = {"add": b.fadd, "subtract": b.fsub, "multiply": b.fmul, "divide": b.fdiv,
                "negative": b.fneg}  # fmt: skip
        return made[name](*args)
