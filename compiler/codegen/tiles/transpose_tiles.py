"""Transposing copies by squares of registers.

Rows of a square are read along the axis `across`, one for each index of the axis
`down`; its columns are written along `down`. At the ends of the axes registers are
masked: where there are fewer rows, the last stands in for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from staticgrad.compiler.codegen.llvm.index_code import At, IndexCode
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.kernel_ir.schemes import Transposed


def transposing(
    c: IndexCode, s: Transposed, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit a Transposed scheme: (source, target)."""
    begin, end = numbers
    spans: list[tuple[At, At]] = [(begin, end), *((0, n) for n in s.sizes)]
    read: At = s.read_start
    written: At = s.written_start
    with ExitStack() as loops:
        for axis, (first, last) in enumerate(spans):
            if axis in (s.across, s.down):
                continue
            index = loops.enter_context(c.loop(last, start=first))
            read = c.plus(read, c.times(index, s.read[axis]))
            written = c.plus(written, c.times(index, s.written[axis]))
        for i, wide in _blocks(c, *spans[s.across]):
            for j, high in _blocks(c, *spans[s.down]):
                places = (
                    c.plus(read, i, c.times(j, s.read[s.down])),
                    c.plus(written, j, c.times(i, s.written[s.across])),
                )
                _square(c, s, memory, places, wide, high)


def _blocks(c: IndexCode, first: At, last: At) -> Iterator[tuple[At, At]]:
    """Yield starts and lengths of blocks of as many indices as there are lanes."""
    if not isinstance(first, int) or not isinstance(last, int):
        with c.loop(last, c.count, start=first) as index:
            yield index, c.smaller(c.count, c.minus(last, index))
        return
    whole = last - last % c.count
    if whole:
        with c.loop(whole, c.count) as index:
            yield index, c.count
    if whole < last:
        yield whole, last - whole


def _square(
    c: IndexCode, s: Transposed, memory: list[Value], places: tuple[At, At], wide: At,
    high: At,
) -> None:  # fmt: skip
    """Transpose `wide` elements of each of `high` rows."""
    source, target = memory
    read, written = places
    mask = c.mask_of(wide)
    rows = []
    for number in range(c.count):
        row = c.smaller(number, c.minus(high, 1))
        start = c.plus(read, c.times(row, s.read[s.down]))
        rows.append(c.vector(source, start, mask))
    mask = c.mask_of(high)
    for number, column in enumerate(c.transposed(rows)):
        there = None
        if not isinstance(wide, int):
            there = c.b.icmp_signed("<", c.number_of(number), wide)
        elif number >= wide:
            break
        with c.only_if(there):
            start = c.plus(written, number * s.written[s.across])
            c.put(column, target, start, mask)
