"""Source of a LoopKernel for Numba.

The source has the kernel's name, shapes and the user's lines as comments, and nothing
of them elsewhere: without its comments (writer.canonical) it is equal for kernels that
do the same. Sizes that are not literals are read from the table `sizes`, in the order
of ``KernelSource.sizes``. The calling convention:

``kernel(operands, sizes, begin, end, context)``, all int64. ``operands``: the address
of one absolute address per operand. ``sizes``: the address of [indices of axis 0 per
chunk, base of the sites, those sizes...]. ``[begin, end)``: the range of axis 0.
``context``: the address of [status, scratch].
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from staticgrad.compiler.codegen.language import stored_name, type_name
from staticgrad.compiler.codegen.loops.blocked_draws import (
    draw_name,
    drawn_in_blocks,
    first_index,
    key_loads,
)
from staticgrad.compiler.codegen.loops.running_sums import Running, running_of
from staticgrad.compiler.codegen.loops.search_text import Searches
from staticgrad.compiler.codegen.loops.shifted_values import Shifted, shifted
from staticgrad.compiler.codegen.loops.split_bodies import (
    BLOCK,
    BodySection,
    Pieces,
    is_tied,
    pieces_of,
    repeats,
)
from staticgrad.compiler.codegen.loops.statements import (
    ValueNames,
    access_text,
    expression_text,
    index_text,
    statement_text,
)
from staticgrad.compiler.codegen.loops.trigonometric_loops import (
    FAR,
    any_argument,
    arguments,
    arguments_ahead,
    guarded_arguments,
    near_statements,
    uses_guarded,
)
from staticgrad.compiler.codegen.scratch import AREA_BYTES, aligned, most_areas
from staticgrad.compiler.codegen.text_emitter import Writer, canonical
from staticgrad.compiler.kernel_ir.kernels import (
    Blocks,
    CheckIndex,
    Compute,
    Invoke,
    Loop,
    LoopKernel,
    Operand,
    Rest,
    Statement,
    Tiles,
    When,
    result_of,
)
from staticgrad.ir.alignment import ALIGNMENT
from staticgrad.ir.size import Dim
from staticgrad.ir.source import at

SIGNATURE = ("operands", "sizes", "begin", "end", "context")
"""The arguments of a kernel."""

SIZES_BEFORE_TABLE = 2
"""Entries of `sizes` ahead of the symbolic ones: chunk length and site base."""

POLLED = 4096
"""Steps of a loop between two polls: a few ms of the largest, 4 us of the smallest."""

_VALUE = re.compile(r"\bv\d+\b")
_DEFINED = re.compile(r"^ *(v\d+) = ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Text of a kernel, the sizes that it reads and its areas of scratch.

    `areas` carry values between the pieces of a loop or hold draws: they are the most
    that one loop has.
    """

    text: str
    sizes: tuple[Dim, ...]
    areas: int


def kernel_source(kernel: LoopKernel) -> KernelSource:
    """Return the source of a kernel; equal kernels have equal text but for comments."""
    return _Kernel(kernel).source()


class _Kernel:
    """Writer of one kernel."""

    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel
        self.names = ValueNames()
        self.writer = Writer(depth=1)
        self.near = near_statements(kernel)
        self.pieces = pieces_of(kernel)
        self.areas = most_areas(kernel, self.pieces)
        self.searches = Searches(kernel)
        self.drawn: dict[int, tuple[int, str]] = {}  # result -> area, index
        self.spans: dict[int, tuple[str, str]] = {0: ("begin", "end")}
        self.wholes: dict[int, str] = {}  # axis -> where its whole blocks end
        self.after_scratch = "0"

    def source(self) -> KernelSource:
        self.operands()
        self.scratch()
        self.statements(self.kernel.body, exact=True)
        head = self.head()
        head.extend(self.writer)
        return KernelSource(head.text(), tuple(self.names.sizes), self.areas)

    def head(self) -> Writer:
        """Write comments, signature and sizes, last, when the sizes are known."""
        kernel, head = self.kernel, Writer()
        head.comment(kernel.name)
        for axis, extent in enumerate(kernel.axes):
            head.comment(f"i{axis}: {extent}")
        for statement in kernel.body:
            if isinstance(statement, Tiles):
                head.line(f"tiles = emitted({statement.scheme!r})")
        head.line(f"def kernel({', '.join(SIGNATURE)}):")
        with head.indented():
            if any(operand.per_chunk for operand in kernel.operands):
                head.line("chunk = floor_divide(begin, word(sizes, 0))")
            if kernel.fails:
                head.line("site = word(sizes, 1)")
                head.line("status = word(context, 0)")
            for place, (dim, name) in enumerate(self.names.sizes.items()):
                position = SIZES_BEFORE_TABLE + place
                head.line(f"{name} = word(sizes, {position})", comment=str(dim))
        return head

    def operands(self) -> None:
        """Write pointers: read-only ones share scope 0, each other has its own."""
        scope = 0
        scopes = self._scope_count()
        for number, operand in enumerate(self.kernel.operands):
            own = operand.mode != "read"
            scope += own
            kind = f'"{stored_name(operand.dtype)}"'
            arguments = f"operands, {number}, {kind}, {scope if own else 0}, {scopes}"
            self.writer.line(f"p{number} = operand({arguments})", comment=operand.mode)
            if operand.per_chunk:
                self._slot(number, operand)

    def _slot(self, number: int, operand: Operand) -> None:
        slot = self.names.dim(operand.slot)
        self.writer.line(f"p{number} = shifted(p{number}, chunk * {slot})")

    def _scope_count(self) -> int:
        return 1 + self._written() + len(self.kernel.scratch) + self.areas

    def _written(self) -> int:
        return sum(operand.mode != "read" for operand in self.kernel.operands)

    def scratch(self) -> None:
        """Write pointers to scratch, each area after the one before, rounded up."""
        first, scopes = 1 + self._written(), self._scope_count()
        offset, sizes = 0, ""
        for number, area in enumerate(self.kernel.scratch):
            place = f"{offset}{sizes}"
            kind = f'"{stored_name(area.dtype)}"'
            arguments = f"context, {place}, {kind}, {first + number}, {scopes}"
            self.writer.line(f"s{number} = scratch({arguments})")
            if isinstance(area.extent, int):
                offset += aligned(area.extent * area.dtype.itemsize)
            else:
                extent = self.names.dim(area.extent)
                rounded = f"{extent} * {area.dtype.itemsize} + {ALIGNMENT - 1}"
                sizes += f" + ({rounded} & -{ALIGNMENT})"
        self.after_scratch = f"{offset}{sizes}"

    def statements(self, body: tuple[Statement, ...], exact: bool) -> None:
        """Write `body`; `exact` says that sin and cos must be right everywhere."""
        for statement in body:
            if isinstance(statement, Loop):
                self.loop(statement)
                continue
            if isinstance(statement, Rest):
                self.rest(statement)
                continue
            if isinstance(statement, Blocks):
                self.in_blocks(statement)
                continue
            if isinstance(statement, When):
                self.when(statement, exact)
                continue
            self._statement(statement, exact)

    def when(self, when: When, exact: bool) -> None:
        """Write a body under its condition."""
        self.writer.line(f"if {self.names.value(when.condition)}:")
        with self.writer.indented():
            self.statements(when.body, exact)

    def _statement(self, statement: Statement, exact: bool = False) -> None:
        if isinstance(statement, Tiles):
            self.writer.line(self.tiles(statement))
            return
        if exact and isinstance(statement, Compute) and self.guarded(statement):
            statement = replace(statement, expr=any_argument(statement.expr))
        text = statement_text(statement, self.names)
        if result_of(statement) in self.drawn:
            text = self._read_draw(statement)
        if text:
            self.writer.line(text, comment=self.origin(statement))

    def tiles(self, tiles: Tiles) -> str:
        """Write the call of a scheme's code."""
        kernel = self.kernel
        names = [f"p{k}" for k, _ in enumerate(kernel.operands)]
        names += [f"s{k}" for k, _ in enumerate(kernel.scratch)]
        numbers = ["begin", "end", *(self.names.dim(size) for size in tiles.sizes)]
        return f"tiles(({', '.join(names)}), ({', '.join(numbers)}))"

    def origin(self, statement: Statement) -> str:
        """Return the op and the user's line of a statement that has a site."""
        if not isinstance(statement, Compute | CheckIndex | Invoke):
            return ""
        if statement.site < 0:
            return ""
        site = self.kernel.sites[statement.site]
        return f"{site.op}{at(site.source)}"

    def loop(self, loop: Loop) -> None:
        """Write a loop over an axis, or over the current block of it."""
        first, last = self._range(loop.axis)
        running = running_of(loop, self.kernel.axes[loop.axis])
        if running is not None:
            self.running(running, last)
            return
        pieces = self.pieces.get(id(loop))
        ahead = self._looks_ahead(loop.body) and not is_tied(loop)
        if pieces is None and (ahead or drawn_in_blocks(loop)):
            pieces = Pieces((BodySection(loop.body, (), ()),), ())
        if pieces is not None:
            self.blocks(loop, pieces, first, last)
            return
        if self.kernel.axes[loop.axis] == 1 and not loop.polled:
            self.writer.line(f"i{loop.axis} = 0")  # as a loop, LLVM takes twice as long
            self.statements(loop.body, exact=True)
            return
        if self.searches.write(self, loop, first, last):
            return
        keeping = shifted(loop, self.kernel)
        if keeping is not None:
            self._first_kept(loop, keeping, first, last)
        if loop.polled:
            self._between_polls(loop, keeping, first, last)
        else:
            self.steps(loop, first, last, keeping)

    def _between_polls(
        self, loop: Loop, keeping: Shifted | None, first: str, last: str
    ) -> None:
        """Write a loop in parts, with a poll of the stop cell ahead of each."""
        line, part, end = self.writer.line, f"part{loop.axis}", f"end{loop.axis}"
        line(f"for {part} in range({first}, {last}, {POLLED}):")
        with self.writer.indented():
            line(f"{end} = minimum({part} + {POLLED}, {last})")
            line(f"{end} = unless_stopped(context, {part}, {end})")
            self.steps(loop, part, end, keeping)

    def steps(
        self, loop: Loop, first: str, last: str, keeping: Shifted | None = None
    ) -> None:
        """Write a plain loop from one index to another."""
        span = last if first == "0" else f"{first}, {last}"
        self.writer.line(f"for i{loop.axis} in range({span}):")
        with self.writer.indented():
            self.statements(keeping.body if keeping else loop.body, exact=True)
            if not loop.body:
                self.writer.line("pass")
            for pair in keeping.kept if keeping else ():
                value, later = map(self.names.value, pair)
                self.writer.line(f"{value} = {later}")

    def _range(self, axis: int) -> tuple[str, str]:
        """Return the first index of an axis and its end."""
        if axis in self.spans:
            return self.spans[axis]
        return "0", self.names.dim(self.kernel.axes[axis])

    def rest(self, rest: Rest) -> None:
        """Write the body for the remainder behind the whole blocks of an axis."""
        axis, unit = rest.axis, rest.unit
        first, last = self._range(axis)
        if first == "0" and last.isdecimal():
            self.wholes[axis] = str(int(last) // unit * unit)
        else:
            self.wholes[axis] = f"whole{axis}"
            whole = f"{last} - ({last} - {first} & {unit - 1})"
            self.writer.line(f"whole{axis} = {whole}")
        self.spans[axis] = self.wholes[axis], last
        self.statements(rest.body, exact=True)
        self.spans[axis] = first, last

    def in_blocks(self, blocks: Blocks) -> None:
        """Write the body for each block of an axis; the smallest ones are whole."""
        axis, size = blocks.axis, blocks.size
        span = self._range(axis)
        first, last = span[0], self.wholes.pop(axis, span[1])
        start, stop = f"first{axis}_{size}", f"last{axis}_{size}"
        self.writer.line(f"for {start} in range({first}, {last}, {size}):")
        with self.writer.indented():
            if size == blocks.unit:
                stop = f"{start} + {size}"
            else:
                self.writer.line(f"{stop} = minimum({start} + {size}, {last})")
            self.spans[axis] = start, stop
            self.statements(blocks.body, exact=True)
        self.spans[axis] = span

    def _first_kept(self, loop: Loop, keeping: Shifted, first: str, last: str) -> None:
        """Write the initial values kept from the index before the first."""
        self.writer.line(f"if {first} < {last}:")
        with self.writer.indented():
            self.writer.line(f"i{loop.axis} = {first}")
            self.statements(keeping.first, exact=True)

    def running(self, found: Running, count: str) -> None:
        """Write a cumulative sum as one call; see running_sums.py."""
        state, source, target = (
            access_text(place, self.names)
            for place in (found.state, found.source, found.target)
        )
        form = f"{int(found.exclusive)}, {int(found.turned)}"
        arguments = f"{source}, {target}, {count}, {form}"
        line = f"store({state}, running_sum({arguments}, load({state})))"
        self.writer.line(line, comment=self.origin(found.step))

    def guarded(self, statement: Statement) -> bool:
        """Whether the statement may call sin or cos of far arguments."""
        if not isinstance(statement, Compute) or not uses_guarded(statement):
            return False
        return statement.result not in self.near

    def _looks_ahead(self, body: tuple[Statement, ...]) -> bool:
        if not any(map(self.guarded, body)):
            return False
        return arguments_ahead(body, self.guarded) is not None

    def blocks(self, loop: Loop, pieces: Pieces, first: str, last: str) -> None:
        """Write a loop in blocks, a loop per piece in each; see split_bodies.py."""
        line = self.writer.line
        drawn = drawn_in_blocks(loop)
        kinds = (*pieces.areas, *(statement.dtype for statement in drawn))
        scope = 1 + self._written() + len(self.kernel.scratch)
        for number, dtype in enumerate(kinds):
            place = f"{self.after_scratch} + {number * AREA_BYTES}"
            arguments = f'{place}, "{type_name(dtype)}", {scope + number}'
            line(f"c{number} = scratch(context, {arguments}, {self._scope_count()})")
        line(f"for block in range({first}, {last}, {BLOCK}):")
        with self.writer.indented():
            line(f"stop = minimum(block + {BLOCK}, {last})")
            for area, statement in enumerate(drawn, len(pieces.areas)):
                self._draw(loop, statement, area)
            texts = [self._text_of(loop, piece) for piece in pieces.pieces]
            for start, count, times in repeats([_renamed(text) for text in texts]):
                self._again(texts[start : start + count], times)

    def _again(self, texts: Sequence[Writer], times: int) -> None:
        if times == 1:
            for text in texts:
                self.writer.nest(text)
            return
        self.writer.line(f"for again in range({times}):")
        with self.writer.indented():
            self._again(texts, 1)

    def _text_of(self, loop: Loop, piece: BodySection) -> Writer:
        whole, self.writer = self.writer, Writer()
        self.piece(loop, piece)
        text, self.writer = self.writer, whole
        return text

    def _draw(self, loop: Loop, draw: Compute, area: int) -> None:
        """Write the fill of an area with the block's elements of a draw."""
        index = first_index(loop, draw)
        self.writer.line(f"i{loop.axis} = block")
        for load in key_loads(loop, draw):
            self._statement(load)
        start = index_text(index.strides, index.offset, self.names)
        key = ", ".join(self.names.value(number) for number in draw.args[:4])
        filled = f"fill_{draw_name(draw)}(c{area}, {key}, {start}, stop - block)"
        self.writer.line(f"b{area} = block - {filled}", comment=self.origin(draw))
        self.drawn[draw.result] = (area, f"i{loop.axis} - b{area}")

    def _read_draw(self, statement: Statement) -> str:
        assert isinstance(statement, Compute)
        area, index = self.drawn[statement.result]
        name = self.names.define(statement.result, statement.dtype)
        return f"{name} = load(c{area}, {index})"

    def piece(self, loop: Loop, piece: BodySection) -> None:
        """Write the loop over one piece; see trigonometric_loops.py for sin and cos."""
        if not any(map(self.guarded, piece.body)):
            self._walk(loop, piece, exact=False)
            return
        ahead = arguments_ahead(piece.body, self.guarded)
        if ahead is None:
            self._walk(loop, piece, exact=True)
            return
        line = self.writer.line
        guarded = [s for s in ahead if isinstance(s, Compute) and self.guarded(s)]
        kinds = sorted({type_name(s.dtype) for s in guarded})
        for kind in kinds:
            line(f"far_{kind} = {FAR[kind][0]}(0)")
        self._span(f"i{loop.axis}")
        with self.writer.indented():
            self._take(loop, piece)
            self._look_ahead(ahead)
        tests = (f"far_{k} < {FAR[k][0]}({FAR[k][1]})" for k in kinds)
        line(f"if {' and '.join(tests)}:")
        with self.writer.indented():
            self._walk(loop, piece, exact=False)
        line("else:")
        with self.writer.indented():
            self._walk(loop, piece, exact=True)

    def _walk(self, loop: Loop, piece: BodySection, exact: bool) -> None:
        self._span(f"i{loop.axis}")
        with self.writer.indented():
            self._take(loop, piece)
            self.statements(piece.body, exact)
            for value, area in piece.given:
                place = f"c{area}, i{loop.axis} - block"
                self.writer.line(f"store({place}, {self.names.value(value)})")

    def _take(self, loop: Loop, piece: BodySection) -> None:
        for value, area in piece.taken:
            name = self.names.value(value)
            self.writer.line(f"{name} = load(c{area}, i{loop.axis} - block)")

    def _span(self, index: str) -> None:
        self.writer.line(f"for {index} in range(block, stop):")

    def _look_ahead(self, ahead: tuple[Statement, ...]) -> None:
        needed = {number for statement in ahead for number in arguments(statement)}
        for statement in ahead:
            if self.guarded(statement):
                self._keep_farthest(statement)
            if result_of(statement) in needed:
                self._statement(statement)

    def _keep_farthest(self, statement: Statement) -> None:
        assert isinstance(statement, Compute)
        kind = type_name(statement.dtype)
        for argument in dict.fromkeys(guarded_arguments(statement.expr)):
            found = expression_text(argument, statement, self.names)
            self.writer.line(f"far_{kind} = farther(far_{kind}, {kind}({found}))")


def _renamed(text: Writer) -> str:
    """Renumber the values of a piece's text, comments aside."""
    source = canonical(text.text())
    names: dict[str, str] = {}
    for name in _DEFINED.findall(source):
        names.setdefault(name, f"w{len(names)}")
    return _VALUE.sub(lambda found: names.get(found[0], found[0]), source)
