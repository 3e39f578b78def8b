"""Instruction table of a Plan: all that depends on sizes but on no address.

`size(code, plan)` gives a `Sized`: instructions, size tables and tables of products,
which all running copies share, and a list of references, the words that hold the
address of a buffer. frame.py makes a running copy of it.

Order: COPY of outputs that are leaves (so that they show the values before the step),
the kernels before the commit point, COMMIT, the other kernels, COPY of outputs that
are named twice, END. With `poison` temporary memory is filled with 0xFF (NaN, -1) at
the start and wherever a buffer's life ends. `_in_order` gives them, encoding.py
makes rows of them; those of kernels are made by array operations before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from staticgrad.compiler.codegen.scratch import scratch_bytes
from staticgrad.compiler.gemm import blas, tile_driver
from staticgrad.compiler.kernel_ir.chunks import chunking
from staticgrad.compiler.kernel_ir.combine_partials import (
    finish_values,
    slots_and_out,
    stands_for,
)
from staticgrad.compiler.kernel_ir.flat import FlatPlan, flat_plan
from staticgrad.compiler.kernel_ir.instruction_set import (
    CallKernel,
    Copy,
    End,
    Fill,
    Instruction,
    JumpTarget,
    Listen,
    RunRegion,
)
from staticgrad.compiler.kernel_ir.kernels import FinishKernel, GemmKernel, LoopKernel
from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.kernel_ir.schedule import Schedule, output_targets
from staticgrad.compiler.runtime import vm
from staticgrad.compiler.runtime.encoding import Table
from staticgrad.compiler.runtime.failures import refuse_empty_extents
from staticgrad.compiler.runtime.native_code import NativeCode, Words, as_words
from staticgrad.compiler.runtime.scalar_reads import CODES
from staticgrad.errors import CompilerBug
from staticgrad.ir.alignment import ALIGNMENT
from staticgrad.ir.size import evaluate

HEADER = 2  # words of a size table before the sizes: indices per chunk and site base

Values = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Sized:
    """Code for given sizes.

    Kernel k of those that run has its operands in the pointer table where the code says
    it of ``table.called[k]``; entry i of that is the address of buffer ``pointers[i]``.
    `references` are as the table's, with the buffers that those are part of. `loops`
    are (row, word, move) of words with the address of the first of a loop's `moves`; a
    move is a word, counted from the first of the rows and on through the pointers, and
    the bytes by which a step moves the address in it. `offsets` are those of all
    buffers, nested ones too. Output p is written at the address of buffer
    ``output_buffers[p]``; numbers past the schedule's buffers are outputs without a
    buffer of their own. `finite` are (buffer, dtype code) of what COMMIT checks;
    `owned` is what rows point at.
    """

    code: NativeCode
    plan: Plan
    offsets: tuple[int, ...]
    table: Table
    pointers: Words
    references: Words
    moves: Words
    loops: Words
    output_buffers: tuple[int, ...]
    finite: tuple[tuple[int, int], ...]
    scratch_bytes: int
    parallel: bool
    owned: tuple[Words, ...]


def size(code: NativeCode, plan: Plan, poison: bool = False) -> Sized:
    """Return instructions for `plan`; IndexOutOfRange for checks of an empty axis."""
    values = dict(plan.values)
    refuse_empty_extents(code.loops, values)
    places = flat_plan(code.flat, plan)
    finishes = dict(_finishes(code, places, values))
    dims = ((d, values if n < 0 else finishes[n]) for d, n in code.dims)
    numbers = as_words([evaluate(dim, known) for dim, known in dims])
    chunks = _chunks(code, places, finishes)
    sizes = _size_tables(code, numbers, chunks)
    products = _products(code, values, places)
    rows = _kernel_rows(code, numbers, chunks, sizes, products)
    output_buffers, copies = output_targets(code.schedule)
    in_order = _in_order(code, places, copies, poison)
    table = Table(in_order, places, values, rows)
    pointers, origin = _pointers(code, places.chunks), as_words(code.flat.origin)
    moves, loops = _moves(code, table, pointers, values)
    references = table.references.copy()
    references[:, 2] = _origins(origin, references[:, 2])
    return Sized(
        code=code,
        plan=plan,
        offsets=places.offsets,
        table=table,
        pointers=origin[pointers],
        references=references,
        moves=moves,
        loops=loops,
        output_buffers=output_buffers,
        finite=tuple(_finite(code.schedule)),
        scratch_bytes=_scratch_bytes(code, values),
        parallel=bool((table.rows[table.kernel_rows, 6] > 1).any()),
        owned=(sizes, products),
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
    """Return all size tables in a row, each with its header."""
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
    """Return one table per matrix product; whole or by parts within a region."""
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
    """Return one CALL per kernel, without the addresses of a frame."""
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


def _pointers(code: NativeCode, chunks: Sequence[tuple[int, int]]) -> Words:
    """The buffer behind each operand."""
    found = np.arange(len(code.schedule.buffers))
    for slots, out in stands_for(code.schedule.kernels, chunks).items():
        found[slots] = out
    return as_words(found[code.buffers])


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
    """Return the origin of each buffer; numbers past the buffers are outputs."""
    known = buffers < len(origin)
    return np.where(known, origin[np.where(known, buffers, 0)], buffers)


def _moves(
    code: NativeCode, table: Table, pointers: Words, values: Values
) -> tuple[Words, Words]:
    """The moves of all loops, and which of them belong to which row."""
    if not table.loops:
        return as_words([], 2), as_words([], 3)
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
    for row, word, loop in table.loops:
        own = of_loop.get(loop, [])
        places.append((row, word, len(found)))
        table.rows[row, word + 1] = len(own)
        found += own
    return as_words(found, 2), as_words(places, 3)


def _in_order(
    code: NativeCode, plan: FlatPlan, copies: Sequence[tuple[bool, int, int]],
    poison: bool,
) -> Iterator[Instruction | JumpTarget]:  # fmt: skip
    """All instructions, in the order in which they run."""
    if code.polls:
        yield Listen()
    dying = _dying(plan) if poison else {}
    yield from sorted(chain(*dying.values()), key=lambda fill: fill.buffer)
    yield from (Copy(*buffers) for at_start, *buffers in copies if at_start)
    yield from dying.get(-1, ())
    regions = {
        first: RunRegion(first, stop, r.parts) for first, stop, r in plan.regions
    }
    chunks = plan.chunks
    for place, instruction in enumerate(code.flat.instructions):
        if type(instruction) is not CallKernel:
            yield instruction
        elif chunks[instruction.kernel][0]:  # a finish that is dropped has 0
            if instruction.kernel in regions:
                yield regions[instruction.kernel]
            yield instruction
        if place in dying:
            yield from dying[place]
    yield from (Copy(*buffers) for at_start, *buffers in copies if not at_start)
    yield End()


def _dying(plan: FlatPlan) -> dict[int, list[Fill]]:
    """By the place behind which a buffer in the arena ends, what fills it."""
    found: dict[int, list[Fill]] = {}
    for number, offset in enumerate(plan.offsets):
        if offset >= 0:
            found.setdefault(plan.last[number], []).append(Fill(number))
    return found
