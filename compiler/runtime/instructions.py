"""The instruction table of a Plan: everything that depends on sizes but on no address.

`size(code, plan)` gives a `Sized`: instructions, size tables and tables of products,
which all running copies share, and a list of references, the words that hold the
address of a buffer. frame.py makes a running copy of it.

Order: COPY of outputs that are leaves (so that they show the values before the step),
the kernels before the commit point, COMMIT, the other kernels, COPY of outputs that
are named twice, END. With `poison` temporary memory is filled with 0xFF (NaN, -1) at
the start and wherever a buffer's life ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from staticgrad.compiler.codegen.scratch import scratch_bytes
from staticgrad.compiler.gemm import blas, tile_driver
from staticgrad.compiler.kernel_ir.chunks import chunking
from staticgrad.compiler.kernel_ir.combine_partials import finish_values, slots_and_out
from staticgrad.compiler.kernel_ir.flat import Flat, FlatPlan, Mark, spread
from staticgrad.compiler.kernel_ir.kernels import (
    FinishKernel,
    GemmKernel,
    LoopKernel,
    is_polled,
)
from staticgrad.compiler.kernel_ir.plan import Plan, Region
from staticgrad.compiler.kernel_ir.schedule import Schedule, output_targets
from staticgrad.compiler.runtime import revolve, vm
from staticgrad.compiler.runtime.failures import refuse_empty_extents
from staticgrad.compiler.runtime.native_code import NativeCode, Words
from staticgrad.compiler.runtime.scalar_reads import CODES
from staticgrad.errors import CompilerBug
from staticgrad.ir.alignment import ALIGNMENT
from staticgrad.ir.size import evaluate

OPCODES = {
    "enter": vm.ENTER, "again": vm.AGAIN, "unless": vm.UNLESS, "limit": vm.LIMIT,
    "jump": vm.JUMP, "next": vm.NEXT, "slot": vm.KEEP,
    "note": vm.NOTE,
}  # fmt: skip
TARGET_WORD, STATUS_WORD = vm.TARGET_WORD, vm.STATUS_WORD

HEADER = 2  # words of a size table before the sizes: indices per chunk and site base

Values = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Sized:
    """Code for given sizes.

    `rows` are the instructions, with 0 where the address of a frame belongs. Kernel k
    of those that run is ``running[k]`` of the code; it has row ``kernel_rows[k]``, and
    its operands stand in the pointer table where the code says, whose entry i is the
    address of buffer ``pointers[i]``. `references` are (row, word, buffer) of further
    words that hold an address. `jumps` are (row, word, row) of words that hold the
    address of a row, `statuses` (row, word) of those with the address of the status,
    `loops` (row, word, move) of those with the address of the first of a loop's
    `moves`; a move is a word, counted from the first of the rows and on through the
    pointers, and the bytes by which a step moves the address in it. `offsets` are those
    of all buffers, nested ones too. Output p is written at the address of buffer
    ``output_buffers[p]``; numbers past the schedule's buffers are outputs without a
    buffer of their own. `finite` are (buffer, dtype code) of what COMMIT checks.
    `listen_rows` is the row, if any, that names the stop cell to kernels which poll it.
    """

    code: NativeCode
    plan: Plan
    offsets: tuple[int, ...]
    rows: Words
    kernel_rows: Words
    running: Words
    spread_rows: Words
    pointers: Words
    references: Words
    jumps: Words
    statuses: Words
    moves: Words
    loops: Words
    output_buffers: tuple[int, ...]
    commit_row: int
    listen_rows: tuple[int, ...]
    finite: tuple[tuple[int, int], ...]
    scratch_bytes: int
    parallel: bool
    tables: tuple[Words, ...]


def size(code: NativeCode, plan: Plan, poison: bool = False) -> Sized:
    """Instructions for `plan`; IndexOutOfRange if an index has nothing to point at."""
    values = dict(plan.values)
    refuse_empty_extents(code.loops, values)
    places = spread(code.flat, plan)
    finishes = dict(_finishes(code, places, values))
    numbers = np.array(
        [
            evaluate(dim, values if finish < 0 else finishes[finish])
            for dim, finish in code.dims
        ],
        np.int64,
    )
    chunks = _chunks(code, places, finishes)
    sizes = _size_tables(code, numbers, chunks)
    products = _products(code, values, places)
    rows = _kernel_rows(code, numbers, chunks, sizes, products)
    dropped = [k for k, values in finishes.items() if values["chunks"] <= 1]
    kept = np.delete(np.arange(len(code.loops)), dropped)
    output_buffers, copies = output_targets(code.schedule)
    table = _Table(rows, kept, copies, code, places, values, poison)
    pointers, origin = _pointers(code, dropped), np.array(code.flat.origin, np.int64)
    moves, loops = _moves(code, table, pointers, values)
    references = table.references.copy()
    references[:, 2] = _origins(origin, references[:, 2])
    return Sized(
        code=code,
        plan=plan,
        offsets=places.offsets,
        rows=table.rows,
        kernel_rows=table.kernel_rows,
        running=kept,
        spread_rows=table.spread_rows,
        pointers=origin[pointers],
        references=references,
        jumps=table.jumps,
        statuses=table.statuses,
        moves=moves,
        loops=loops,
        output_buffers=output_buffers,
        commit_row=table.commit_row,
        listen_rows=table.listen_rows,
        finite=tuple(_finite(code.schedule)),
        scratch_bytes=_scratch_bytes(code, values),
        parallel=bool((table.rows[table.kernel_rows, 6] > 1).any()),
        tables=(sizes, products),
    )


def _finishes(
    code: NativeCode, plan: FlatPlan, values: Values
) -> Iterator[tuple[int, dict[str, int]]]:
    for number, kernel in enumerate(code.schedule.kernels):
        if isinstance(kernel, FinishKernel):
            _check_slots(code.schedule, kernel)
            chunks = plan.chunks[kernel.chunks_of][0]
            yield number, finish_values(kernel, chunks, values)


def _check_slots(schedule: Schedule, kernel: FinishKernel) -> None:
    slots, _ = slots_and_out(kernel)
    writer = schedule.kernels[kernel.chunks_of] if kernel.chunks_of >= 0 else None
    written = writer.operands if writer else ()
    if not any(o.per_chunk and o.buffer == slots.buffer for o in written):
        raise CompilerBug(f"{kernel.name} does not know which kernel wrote its slots")


def _chunks(code: NativeCode, plan: FlatPlan, finishes: Mapping[int, Values]) -> Words:
    chunks = np.array(plan.chunks, np.int64).reshape(-1, 2)
    for number, values in finishes.items():
        loop = code.loops[number]
        if isinstance(loop, LoopKernel):
            chunks[number] = chunking(loop, values)
    return chunks


def _size_tables(code: NativeCode, numbers: Words, chunks: Words) -> Words:
    """All size tables one after the other, each with its header."""
    kernels = np.arange(len(code.loops))
    lengths = np.diff(np.append(code.table_first, len(code.table)))
    tables = np.zeros(len(code.table) + HEADER * len(kernels), np.int64)
    starts = code.table_first + HEADER * kernels
    tables[starts] = chunks[:, 1]
    tables[starts + 1] = code.site_base
    owner = np.repeat(kernels, lengths)
    tables[np.arange(len(code.table)) + HEADER * (owner + 1)] = numbers[code.table]
    return tables


def _products(code: NativeCode, values: Values, plan: FlatPlan) -> Words:
    """One table per matrix product, in order; in a region's parts in a region."""
    rows = {k: r.rows for first, stop, r in plan.regions for k in range(first, stop)}
    tables = [
        tile_driver.describe(kernel, values, rows.get(number, 0))
        for number, kernel in enumerate(code.loops)
        if isinstance(kernel, GemmKernel)
    ]
    return np.array(tables, np.int64).reshape(-1, blas.WORDS)


def _kernel_rows(
    code: NativeCode, numbers: Words, chunks: Words, sizes: Words, products: Words
) -> Words:
    """One CALL per kernel, without the addresses of a frame."""
    rows = np.zeros((len(code.loops), vm.WORDS), np.int64)
    extents = numbers[code.extents]
    starts = code.table_first + HEADER * np.arange(len(rows))
    rows[:, 0] = vm.CALL
    rows[:, 1] = code.functions
    rows[:, 3] = sizes.ctypes.data + 8 * starts
    rows[:, 4] = extents
    rows[:, 5] = chunks[:, 1]
    rows[:, 6] = chunks[:, 0]
    rows[:, 10] = extents * numbers[code.costs]
    (where,) = np.nonzero([isinstance(k, GemmKernel) for k in code.loops])
    rows[where, 1] = tile_driver.addresses(products)
    rows[where, 3] = products.ctypes.data + products.strides[0] * np.arange(len(where))
    rows[where, 4] = rows[where, 6] = products[:, blas.ITEMS]
    rows[where, 5] = 1
    rows[where, 10] = blas.additions(products)
    return rows


def _pointers(code: NativeCode, dropped: list[int]) -> Words:
    """The buffer behind each operand.

    A kernel of one chunk writes its result where the dropped finish would have.
    """
    stands_for = np.arange(len(code.schedule.buffers))
    for number in dropped:
        kernel = code.schedule.kernels[number]
        if isinstance(kernel, FinishKernel):
            slots, out = slots_and_out(kernel)
            stands_for[slots.buffer] = out.buffer
    pointers: Words = stands_for[code.buffers]
    return pointers


def _finite(schedule: Schedule) -> Iterator[tuple[int, int]]:
    for number in schedule.finite:
        yield number, CODES[schedule.buffers[number].dtype.name]


def _scratch_bytes(code: NativeCode, values: Values) -> int:
    loops = (scratch_bytes(n.kernel, n.areas, values) for n in code.natives)
    has_products = len(code.natives) < len(code.loops)
    most = max(loops, default=0)
    most = max(most, tile_driver.PANEL_BYTES) if has_products else most
    return most + -most % ALIGNMENT


def _origins(origin: Words, buffers: Words) -> Words:
    """The origin of each buffer; numbers past the buffers are outputs."""
    known = buffers < len(origin)
    return np.where(known, origin[np.where(known, buffers, 0)], buffers)


def _moves(
    code: NativeCode, table: _Table, pointers: Words, values: Values
) -> tuple[Words, Words]:
    """The moves of all loops, and which of them belong to which row."""
    of_loop: dict[int, list[tuple[int, int]]] = {}
    first = len(table.rows) * vm.WORDS
    words = [(first + n, b) for n, b in enumerate(pointers.tolist())]
    words += [(row * vm.WORDS + w, b) for row, w, b in table.references.tolist()]
    buffers, moves = code.schedule.buffers, code.flat.moves
    for word, buffer in words:
        for loop, step in moves[buffer] if buffer < len(moves) else ():
            distance = evaluate(step, values) * buffers[buffer].dtype.itemsize
            of_loop.setdefault(loop, []).append((word, distance))
    found: list[tuple[int, int]] = []
    places: list[tuple[int, int, int]] = []
    for row, loop in table.loop_rows:
        own = of_loop.get(loop, [])
        places.append((row, 3, len(found)))
        table.rows[row, 4] = len(own)
        found += own
    return (
        np.array(found, np.int64).reshape(-1, 2),
        np.array(places, np.int64).reshape(-1, 3),
    )


class _Table:
    """Merges the rows of kernels with the others, in order of their places."""

    def __init__(
        self, kernel_rows: Words, kept: Words, copies: list[tuple[bool, int, int]],
        code: NativeCode, plan: FlatPlan, values: Values, poison: bool,
    ) -> None:  # fmt: skip
        self._rows: list[list[int]] = []
        self._places: list[float] = []
        self._addresses: list[tuple[int, int, int]] = []
        self._dtypes = [buffer.dtype for buffer in code.schedule.buffers]
        self._limits = 0
        flat = code.flat
        marks = [self._add_mark(mark, plan, values) for mark in flat.marks]
        end = flat.size
        for at_start, source, target in copies:
            row = [vm.COPY, 0, 0, plan.bytes[source]]
            self._add(-1.0 if at_start else end, row, (1, target), (2, source))
        spreads = [
            self._add_spread(region, kernel_rows, flat) for region in plan.regions
        ]
        if poison:
            self._add_poison(plan)
        commit = self._add(flat.commit - 0.25, [vm.COMMIT])
        polled = any(isinstance(k, LoopKernel) and is_polled(k) for k in code.loops)
        listens = [self._add(-3.0, [vm.LISTEN])] if polled else []
        self._add(end + 1, [vm.END])
        others = np.zeros((len(self._rows), vm.WORDS), np.int64)
        for number, row in enumerate(self._rows):
            others[number, : len(row)] = row
        own = np.array(flat.places, float)[kept]
        places = np.concatenate([np.array(self._places), own])
        order = np.argsort(places, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.rows: Words = np.concatenate([others, kernel_rows[kept]])[order]
        self.kernel_rows: Words = rank[len(others) :]
        self.commit_row = int(rank[commit])
        self.listen_rows = tuple(int(rank[number]) for number in listens)
        self.spread_rows: Words = rank[np.array(spreads, np.int64)]
        references = np.array(self._addresses, np.int64).reshape(-1, 3)
        references[:, 0] = rank[references[:, 0]]
        self.references: Words = references
        self._rank = rank
        self._link(flat.marks, marks)

    def _link(self, marks: Sequence[Mark], numbers: Sequence[int]) -> None:
        """Where jumps go, which rows read the status, which ones move windows."""
        rows = [int(self._rank[number]) for number in numbers]
        jumps = [
            (rows[n], 1 if mark.kind == "jump" else TARGET_WORD, rows[mark.target] + 1)
            for n, mark in enumerate(marks)
            if mark.target >= 0
        ]
        jumps += [
            (rows[n], word, rows[target] + 1)
            for n, mark in enumerate(marks)
            for word, target in zip(vm.NEXT_TARGETS, mark.targets, strict=False)
        ]
        self.jumps = np.array(jumps, np.int64).reshape(-1, 3)
        statuses = [
            (rows[n], STATUS_WORD)
            for n, mark in enumerate(marks)
            if mark.kind in ("again", "limit", "next")
        ]
        self.statuses = np.array(statuses, np.int64).reshape(-1, 2)
        self.loop_rows = [
            (rows[n], mark.loop) for n, mark in enumerate(marks) if mark.loop >= 0
        ]

    def _add_spread(
        self, region: tuple[int, int, Region], kernel_rows: Words, flat: Flat
    ) -> int:
        """SPREAD ahead of the kernels of a region, with the work of all of them."""
        first, stop, shape = region
        row = [0] * vm.WORDS
        row[0], row[1], row[6] = vm.SPREAD, stop - first, shape.parts
        row[10] = int(kernel_rows[first:stop, 10].sum())
        return self._add(flat.places[first] - 0.1, row)

    def _add_mark(self, mark: Mark, plan: FlatPlan, values: Values) -> int:
        if mark.kind == "copy":
            row = [vm.COPY, 0, 0, plan.bytes[mark.other]]
            return self._add(mark.place, row, (1, mark.other), (2, mark.buffer))
        if mark.kind == "clear":
            row = [vm.FILL, 0, 0, 8 * revolve.HEADER]
            return self._add(mark.place, row, (1, mark.buffer))
        row = [OPCODES[mark.kind], 0]
        if mark.kind == "slot":
            row += [0, 0, plan.bytes[mark.buffer], int(mark.reverse)]
            buffers = (mark.buffer, mark.other, mark.third)
            return self._add(mark.place, row, *zip((1, 2, 3), buffers, strict=True))
        if mark.kind == "next":
            row += [mark.value, 0, 0, 0, 0, 0, 0, int(mark.early)]
            buffers = (mark.buffer, mark.other, mark.third)
            return self._add(mark.place, row, *zip((1, 12, 13), buffers, strict=True))
        if mark.kind in ("enter", "again"):
            length = evaluate(mark.length, values)
            steps = max(length, 0)
            first, last = (steps - 1, 0) if mark.reverse else (0, steps - 1)
            step = -1 if mark.reverse else 1
            row += [first, 0, 0, 0, step, -1 if mark.endless else last]
            row += [0, int(mark.early), int(steps == 0 and not mark.endless)]
        elif mark.kind == "note":
            row.append(mark.value)
        elif mark.kind == "unless":
            row += [mark.value, self._dtypes[mark.buffer].itemsize]
        elif mark.kind == "limit":
            row += [mark.value, self._limits]
            self._limits += 1
        if mark.kind == "jump":
            return self._add(mark.place, row)
        return self._add(mark.place, row, (1, mark.buffer))

    def _add(self, place: float, row: list[int], *addresses: tuple[int, int]) -> int:
        number = len(self._rows)
        self._rows.append(row)
        self._places.append(place)
        self._addresses += [(number, word, buffer) for word, buffer in addresses]
        return number

    def _add_poison(self, plan: FlatPlan) -> None:
        for number, offset in enumerate(plan.offsets):
            if offset < 0:
                continue
            row = [vm.FILL, 0, 0xFF, plan.bytes[number]]
            self._add(-2.0, row, (1, number))
            self._add(plan.last[number] + 0.5, row, (1, number))
