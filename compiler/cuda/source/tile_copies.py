"""Tiled transposing copies through shared memory.

A block reads a tile of 32 x 32 elements row by row and writes it column by column, so
that neighbouring threads touch neighbouring elements on both sides. Rows of the tile
are one element longer than they need be: columns then lie in different banks.
"""

from __future__ import annotations

from staticgrad.compiler.cuda.source.statement_lines import Statements
from staticgrad.compiler.cuda.source.typed_text import memory_name
from staticgrad.compiler.kernel_ir.schemes import Transposed

EDGE = 32
ROW = EDGE + 1
ELEMENTS = EDGE * ROW
"""Of the shared array, which is called `tile`."""


def write_transposed(statements: Statements, scheme: Transposed) -> str:
    """Write the lines of such a copy; return the type of the elements of `tile`."""
    kernel, line = statements.kernel, statements.line
    temporary = statements.expressions.temporary
    across, down = scheme.across, scheme.down
    others = [a for a in range(len(kernel.axes)) if a not in (across, down)]
    counts = {a: statements.count(kernel.axes[a]) for a in range(len(kernel.axes))}
    line("thread = uint32(cuda.threadIdx.x)")
    line("column = uint32(thread & uint32(31))")
    line("first = uint32(thread >> uint32(5))")
    line("rows = uint32(uint32(cuda.blockDim.x) >> uint32(5))")
    wide, high = (
        temporary(f"uint32(uint32({counts[axis]} + uint32(31)) >> uint32(5))")
        for axis in (across, down)
    )
    total = " * ".join([wide, high, *(counts[axis] for axis in others)])
    tiles = temporary(f"uint32({total})")
    line("at = uint32(cuda.blockIdx.x)")
    line(f"while at < {tiles}:")
    with statements.writer.indented():
        rest = temporary(f"uint32(at // {wide})")
        left = temporary(f"uint32(uint32(at - {rest} * {wide}) << uint32(5))")
        outer = temporary(f"uint32({rest} // {high})")
        top = temporary(f"uint32(uint32({rest} - {outer} * {high}) << uint32(5))")
        if others:
            statements.decode(others, outer)
        read = statements.index(scheme.read, scheme.read_start, None)
        written = statements.index(scheme.written, scheme.written_start, None)
        fits = f"(i{across} < {counts[across]}) & (i{down} < {counts[down]})"
        passes = (
            ("column", "row", f"{_place('row', 'column')} = p0[{read}]"),
            ("row", "column", f"p1[{written}] = {_place('column', 'row')}"),
        )
        for along, beside, move in passes:
            line("row = first")
            line(f"while row < uint32({EDGE}):")
            with statements.writer.indented():
                line(f"i{across} = uint32({left} + {along})")
                line(f"i{down} = uint32({top} + {beside})")
                line(f"if {fits}:")
                line(f"    {move}")
                line("row = uint32(row + rows)")
            line("cuda.syncthreads()")
        line("at = uint32(at + uint32(cuda.gridDim.x))")
    return memory_name(kernel.operands[0].dtype)


def _place(row: str, column: str) -> str:
    return f"tile[uint32({row} * uint32({ROW}) + {column})]"
