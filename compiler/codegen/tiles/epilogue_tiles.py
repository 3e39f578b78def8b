"""Fused updates: rows of a product are applied while the next ones are summed.

A tile has 16 rows of one register. Its sums go to the scratch area, which has room for
two blocks of rows: between the terms of a block's tiles the block before is taken from
there, from its beginning to its end, and goes through the steps of the update. The
divider then works beside the multiply-adds, and memory is walked along rows.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from staticgrad.compiler.codegen.llvm.conversions import NUMBERS
from staticgrad.compiler.codegen.llvm.index_code import At, IndexCode
from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value
from staticgrad.compiler.codegen.math.function_table import ELEMENTARY
from staticgrad.compiler.codegen.tiles.few_rows import prefetch
from staticgrad.compiler.codegen.tiles.product_tiles import LONG_ROWS
from staticgrad.compiler.kernel_ir.schemes import Update

DEPTH = 512  # terms, as in product_tiles.py, where their number is not known
RELATIONS = frozenset("< <= > >= == !=".split())
FUNCTIONS = {
    name: function.lanes
    for name, function in (ELEMENTARY | NUMBERS).items()
    if function.lanes is not None
}
"""Operations of steps: comparisons and functions."""


def updating(
    c: IndexCode, s: Update, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit an Update scheme: (A, B, operands of the update, scratch)."""
    _Updating(c, s, memory, numbers).emit()


class _Updating:
    def __init__(
        self, c: IndexCode, s: Update, memory: list[Value], numbers: list[Value]
    ) -> None:
        self.c, self.s = c, s
        self.a, self.b, *self.own, self.sums, self.totals = memory
        self.begin, self.end, *sizes = numbers
        self.k: At = sizes[0] if sizes else s.terms
        self.known = self._known()
        self.waiting = cgutils.alloca_once_value(c.b, c.number_of(-1))
        self.column = cgutils.alloca_once_value(c.b, c.number_of(0))

    def emit(self) -> None:
        """Emit all tiles, then the last one's update."""
        c, s = self.c, self.s
        with c.loop(self.end, start=self.begin) as index:
            blocks: tuple[At, At] = (index, c.plus(index, 1))
            columns: tuple[At, At] = (0, s.columns)
            if s.part:
                first = c.times(index, s.part)
                blocks, columns = (
                    (0, s.rows // LONG_ROWS),
                    (first, c.plus(first, s.part)),
                )
            with (
                c.loop(blocks[1], start=blocks[0]) as block,
                c.loop(columns[1], c.count, start=columns[0]) as column,
            ):
                self._tile(block, column)
        with c.b.if_then(self._waits()), c.loop(LONG_ROWS) as row:
            self._apply(row)

    def _waits(self) -> Value:
        """Test whether a tile has not been applied yet."""
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
        waits, first = self._waits(), min(s.depth, s.terms) if s.terms >= 0 else self.k
        every = c.over(first, LONG_ROWS)
        deep = None if s.terms >= 0 else self._prepare()
        with c.loop(LONG_ROWS) as row:
            with c.b.if_then(waits):
                self._apply(row)
            self._ask_for(c.plus(place, c.times(row, s.columns)))
            start = c.b.mul(c.number_of(row), c.number_of(every))
            self._add_terms(sums, left, right, (start, c.plus(start, every)), deep)
        self._add_terms(sums, left, right, (c.times(every, LONG_ROWS), first), deep)
        for start in range(s.depth, s.terms, s.depth):
            self._keep_totals(sums, add=start > s.depth)
            stop = min(start + s.depth, s.terms)
            self._add_terms(sums, left, right, (start, stop), None)
        if s.terms > s.depth:
            self._take_totals(sums)
        if deep is not None:
            with c.b.if_then(deep):
                self._take_totals(sums)
        for row, total in sums.items():
            c.put(c.b.load(total), self.sums, row * c.count)
        c.b.store(c.number_of(place), self.waiting)
        c.b.store(c.number_of(column), self.column)

    def _prepare(self) -> Value:
        """Clear the totals if there are more than `depth` terms; return whether."""
        c = self.c
        deep = c.b.icmp_signed(">", c.number_of(self.k), c.number_of(self.s.depth))
        with c.b.if_then(deep), c.loop(LONG_ROWS) as row:
            c.put(c.zeros(), self.totals, c.times(row, c.count))
        return deep

    def _add_terms(
        self, sums: dict[Any, Value], left: At, right: At, terms: tuple[At, At],
        deep: Value | None,
    ) -> None:  # fmt: skip
        """Add a range of terms, at most `depth` of them one by one if `deep`."""
        c, depth = self.c, self.s.depth
        first, last = terms
        if deep is None:
            with c.loop(last, start=first) as term:
                self._add(sums, left, right, term)
            return
        with c.loop(last, depth, start=first) as begin:
            end = c.smaller(c.plus(begin, depth), last)
            with c.loop(end, start=begin) as term:
                self._add(sums, left, right, term)
            with c.b.if_then(deep):
                self._keep_totals(sums, add=True)

    def _keep_totals(self, sums: dict[Any, Value], add: bool) -> None:
        """Store sums, or add them to those stored, and restart."""
        c = self.c
        if add:
            self._take_totals(sums)
        for row, total in sums.items():
            c.put(c.b.load(total), self.totals, row * c.count)
            c.b.store(c.zeros(), total)
        # Else LLVM would keep stored sums in registers, and current ones in memory.
        c.b.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)

    def _take_totals(self, sums: dict[Any, Value]) -> None:
        """Add the stored sums."""
        c = self.c
        for row, total in sums.items():
            before = c.vector(self.totals, row * c.count)
            c.b.store(c.b.fadd(before, c.b.load(total)), total)

    def _ask_for(self, index: At) -> None:
        """Prefetch the elements to which a row will be applied."""
        c, steps = self.c, self.s.program
        for number in sorted(
            {step.args[0] for step in steps if step.name == "element"}
        ):
            place = c.b.gep(self.own[number], [c.number_of(index)])
            prefetch(c, c.b.ptrtoint(place, ir.IntType(64)))

    def _add(self, sums: dict[Any, Value], left: At, right: At, term: At) -> None:
        """Add one term to every sum."""
        c, s = self.c, self.s
        y = c.vector(self.b, c.plus(right, c.times(term, s.b_row)))
        start = c.plus(left, c.times(term, s.a_term))
        for row, total in sums.items():
            x = c.repeated(self.a, c.plus(start, row * s.a_row))
            c.add_product(total, x, y)

    def _known(self) -> dict[int, Value]:
        """Return the values that are the same for all elements."""
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
        """Round a float64 number to an element."""
        b, wide = self.c.b, ir.DoubleType()
        place = b.gep(b.bitcast(base, wide.as_pointer()), [self.c.number_of(index)])
        return b.fptrunc(b.load(place), self.c.element)

    def _apply(self, row: At) -> None:
        """Apply a row of the pending tile."""
        c = self.c
        index = c.plus(c.b.load(self.waiting), c.times(row, self.s.columns))
        values = dict(self.known)
        for number, step in enumerate(self.s.program):
            if step.name == "product":
                values[number] = c.vector(self.sums, c.times(row, c.count))
            elif step.name == "element":
                values[number] = c.vector(self.own[step.args[0]], index)
            elif step.name == "column":
                values[number] = c.vector(self.own[step.args[0]], c.b.load(self.column))
            elif step.name == "store":
                c.put(values[step.args[1]], self.own[step.args[0]], index)
            elif step.name == "mark":
                self._mark(values[step.args[1]], self.own[step.args[0]], index)
            elif number not in values:
                args = [values[arg] for arg in step.args]
                values[number] = self._result(step.name, args)

    def _mark(self, truths: Value, base: Value, index: At) -> None:
        """Store a bool of each lane."""
        b, kind = self.c.b, ir.VectorType(ir.IntType(8), self.c.count)
        place = b.gep(b.bitcast(base, ir.IntType(8).as_pointer()), [index])
        b.store(b.zext(truths, kind), b.bitcast(place, kind.as_pointer())).align = 1

    def _result(self, name: str, args: list[Value]) -> Value:
        b = self.c.b
        if name in RELATIONS:
            compare = b.fcmp_unordered if name == "!=" else b.fcmp_ordered
            return compare(name, *args)
        made = {"add": b.fadd, "subtract": b.fsub, "multiply": b.fmul, "divide": b.fdiv,
                "negative": b.fneg, "select": b.select}  # fmt: skip
        if name in made:
            return made[name](*args)
        return FUNCTIONS[name](IREmitter(b, self.c.type), *args)
