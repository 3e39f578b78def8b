"""Launches: what runs in which order for given sizes, before addresses are known.

Order, as on the cpu: copies of outputs that are leaves, the kernels before the commit,
the check of what has to be finite, the guarded kernels, copies of outputs that are
named twice. A failed check or a bad index leaves a code in the status, and nothing
guarded writes any more, in this run or a later one, until the status is cleared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeAlias

import numpy as np

from staticgrad.compiler.codegen.text_emitter import Writer
from staticgrad.compiler.cuda.cuda_code import CudaCode
from staticgrad.compiler.cuda.cuda_products import product_of
from staticgrad.compiler.cuda.device import Device
from staticgrad.compiler.cuda.frame_steps import (
    Again,
    Argument,
    BufferAddress,
    Clear,
    Control,
    Copy,
    Enter,
    Jump,
    Launch,
    Limit,
    Multiply,
    Next,
    Note,
    Slot,
    Step,
    Unless,
    Zero,
)
from staticgrad.compiler.cuda.host_functions import host_call
from staticgrad.compiler.cuda.source.cuda_loops import CudaSource
from staticgrad.compiler.cuda.source.expression_text import Expressions
from staticgrad.compiler.cuda.source.statement_lines import CODE, POSITION, VALUE
from staticgrad.compiler.cuda.source.tile_copies import EDGE
from staticgrad.compiler.cuda.source.typed_text import memory_name
from staticgrad.compiler.kernel_ir.combine_partials import finish_values, slots_and_out
from staticgrad.compiler.kernel_ir.flat import FlatPlan, Mark, spread
from staticgrad.compiler.kernel_ir.kernels import FinishKernel, GemmKernel, LoopKernel
from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.kernel_ir.schedule import output_targets
from staticgrad.compiler.runtime.failures import refuse_empty_extents
from staticgrad.compiler.runtime.vm import NON_FINITE
from staticgrad.errors import CompilerBug, GraphError
from staticgrad.ir.size import evaluate
from staticgrad.ir.types import INT64

LANES = 32
MOST_BESIDE = 65535  # blocks along the second axis of a grid
MOST_ELEMENTS = 2**32 - 1
"""Indices are uint32."""

Values: TypeAlias = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Launches:
    """The steps of a Plan on a device; targets of control are numbers of steps.

    `scratch` are the bytes of each scratch area, the most that any kernel needs.
    Output p is at buffer ``output_buffers[p]``; numbers past the schedule's buffers are
    outputs without a buffer of their own.
    """

    code: CudaCode
    plan: Plan
    spread: FlatPlan
    steps: tuple[Step, ...]
    scratch: tuple[int, ...]
    output_buffers: tuple[int, ...]


def launches(code: CudaCode, plan: Plan, device: Device) -> Launches:
    """The steps of `plan`; IndexOutOfRange if an index has nothing to point at."""
    values, flat = dict(plan.values), code.flat
    refuse_empty_extents(code.loops, values)
    _refuse_large(code, values)
    places = spread(flat, plan)
    targets, copies = output_targets(code.schedule)
    placed: list[tuple[float, Step]] = [
        (-1.0 if at_start else float(flat.size), _copy(source, target, places))
        for at_start, source, target in copies
    ]
    placed += [(flat.commit - 0.25, step) for step in _finite(code)]
    stands_for = _stands_for(code, places)
    for number, place in enumerate(flat.places):
        steps = _kernel(code, values, places, number, stands_for, device)
        placed += [(float(place), step) for step in steps]
    marks = [_control(mark, code, places, values) for mark in flat.marks]
    placed += [(float(m.place), s) for m, s in zip(flat.marks, marks, strict=True)]
    placed.sort(key=lambda pair: pair[0])
    ordered = [step for _, step in placed]
    return Launches(
        code, plan, places, tuple(_aimed(ordered, flat.marks, marks)),
        _scratch(ordered), targets,
    )  # fmt: skip


def _control(
    mark: Mark, code: CudaCode, places: FlatPlan, values: Values
) -> Control | Copy | Slot:
    buffers = code.schedule.buffers
    place = BufferAddress(mark.buffer)
    length = None if mark.endless else evaluate(mark.length, values)
    match mark.kind:
        case "copy":
            return _copy(mark.buffer, mark.other, places)
        case "enter":
            return Enter(mark.loop, place, length, mark.reverse)
        case "again":
            return Again(mark.loop, place, length, mark.reverse)
        case "unless":
            return Unless(place, buffers[mark.buffer].dtype, mark.value)
        case "limit":
            source = mark.site.source if mark.site else None
            limits = [m for m in code.flat.marks if m.kind == "limit"]
            number = next(n for n, limit in enumerate(limits) if limit is mark)
            return Limit(place, mark.value, source, number)
        case "jump":
            return Jump()
        case "clear":
            return Clear(place, _words(mark, places))
        case "note":
            return Note(place, mark.value)
        case "slot":
            size = places.bytes[mark.buffer]
            return Slot(place, BufferAddress(mark.other), size, mark.reverse)
        case "next":
            return _next(mark, code, places)
    raise CompilerBug(f"control flow has the unknown mark {mark.kind}")


def _next(mark: Mark, code: CudaCode, places: FlatPlan) -> Next:
    known = code.schedule.buffers[mark.other].value
    count = BufferAddress(mark.other) if known is None else int(known)
    begun = any(m.kind == "clear" and m.buffer == mark.buffer for m in code.flat.marks)
    return Next(
        BufferAddress(mark.buffer), _words(mark, places), count,
        BufferAddress(mark.third), mark.loop, mark.value, not begun,
    )  # fmt: skip


def _words(mark: Mark, places: FlatPlan) -> int:
    """The int64 of a loop's state."""
    return places.bytes[mark.buffer] // INT64.itemsize


def _copy(source: int, target: int, places: FlatPlan) -> Copy:
    return Copy(BufferAddress(target), BufferAddress(source), places.bytes[source])


def _aimed(
    ordered: Sequence[Step], marks: Sequence[Mark], controls: Sequence[Step]
) -> Iterator[Step]:
    """Steps whose targets are the steps that marks aim at."""
    number = {id(step): position for position, step in enumerate(ordered)}
    mark_of = {id(step): mark for mark, step in zip(marks, controls, strict=True)}

    def place(mark: int) -> int:
        return number[id(controls[mark])]

    for step in ordered:
        if isinstance(step, Next):
            targets = tuple(map(place, mark_of[id(step)].targets))
            yield replace(step, targets=targets)
        elif isinstance(step, Control) and not isinstance(step, Clear):
            yield replace(step, target=place(mark_of[id(step)].target))
        else:
            yield step


def _scratch(steps: Sequence[Step]) -> tuple[int, ...]:
    """The most that any step needs of each scratch area."""
    sizes = [step.scratch for step in steps if isinstance(step, Launch)]
    return tuple(max(column) for column in zip_longest(*sizes, fillvalue=0))


def _refuse_large(code: CudaCode, values: Values) -> None:
    for buffer in code.schedule.buffers:
        if evaluate(buffer.elements, values) > MOST_ELEMENTS:
            raise GraphError(
                f"target 'cuda' requires tensors of less than 2**32 elements, got "
                f"{buffer.name} with {evaluate(buffer.elements, values)}; "
                "use target='cpu'"
            )


def _stands_for(code: CudaCode, plan: FlatPlan) -> dict[int, int]:
    """A kernel of one chunk writes its result where the dropped finish would have."""
    found: dict[int, int] = {}
    for kernel, (chunks, _) in zip(code.schedule.kernels, plan.chunks, strict=True):
        if isinstance(kernel, FinishKernel) and chunks == 0:
            slots, out = slots_and_out(kernel)
            found[slots.buffer] = out.buffer
    return found


def _kernel(
    code: CudaCode, values: Values, plan: FlatPlan, number: int,
    stands_for: Mapping[int, int], device: Device,
) -> Iterator[Step]:  # fmt: skip
    kernel, loop, source = (
        code.schedule.kernels[number], code.loops[number], code.sources[number],
    )  # fmt: skip
    if isinstance(kernel, FinishKernel):
        if plan.chunks[number] == (0, 0):
            return
        values = finish_values(kernel, plan.chunks[kernel.chunks_of][0], values)
    if isinstance(loop, GemmKernel):
        yield from _product(loop, values)
        return
    if source is None:
        yield host_call(loop, values)
        return
    shape = _Shape(loop, source, plan.chunks[number], values, device)
    if not shape.runs:
        return
    pointers = [
        BufferAddress(stands_for.get(o.buffer, o.buffer)) for o in loop.operands
    ]
    areas = [BufferAddress(-2 - n) for n in range(len(loop.scratch))]
    arguments: list[Argument] = [*pointers, *areas]
    arguments += [evaluate(dim, values) for dim in source.sizes]
    if source.chunked:
        arguments += [shape.rows, shape.step]
    if loop.fails:
        arguments.append(int(code.site_base[number]))
    if loop.fails or source.guarded:
        arguments.append(BufferAddress(-1))
    yield Launch(source, shape.grid, shape.block, tuple(arguments), shape.scratch)


class _Shape:
    """Blocks and threads of a launch."""

    def __init__(
        self, loop: LoopKernel, source: CudaSource, chunks: tuple[int, int],
        values: Values, device: Device,
    ) -> None:  # fmt: skip
        extents = [evaluate(dim, values) for dim in loop.axes]
        self.rows = extents[0] if extents else 0
        self.step = max(chunks[1], 1)
        mapping = source.mapping
        assert mapping is not None
        worker, total = mapping.worker, 1
        for axis in mapping.spread:
            total *= extents[axis]
        if total > MOST_ELEMENTS:
            raise GraphError(
                f"target 'cuda' requires loops of less than 2**32 steps, got {total} "
                f"in {loop.name}; use target='cpu'"
            )
        self.block = 1 if worker == "alone" else device.block
        warps = max(device.block // LANES, 1)
        per_block = {
            "thread": device.block, "warp": warps, "column": device.block,
            "tile": EDGE * EDGE,
        }  # fmt: skip
        blocks = -(-total // per_block.get(worker, 1))
        self.runs = source.chunked or total > 0
        self.grid = (max(min(blocks, device.most_blocks), 1), 1)
        workers = self.grid[0] * per_block.get(worker, 1)
        if source.chunked:
            count = max(chunks[0], 1)
            workers = count * (warps if worker == "block" else 1)
            beside = min(max(blocks, 1), MOST_BESIDE) if worker == "column" else 1
            self.grid = (count, beside)
            if worker == "row":
                self.grid = (-(-count // warps), 1)
                workers = self.grid[0] * warps
        self.scratch = tuple(
            workers * evaluate(area.extent, values) * area.dtype.itemsize
            for area in loop.scratch
        )


def _product(kernel: GemmKernel, values: Values) -> Iterator[Step]:
    product = product_of(kernel, values)
    size = kernel.operands[2].dtype.itemsize
    a, b, c = (
        BufferAddress(operand.buffer, evaluate(offset, values) * size)
        for operand, offset in zip(kernel.operands, kernel.offsets, strict=True)
    )
    elements = product.m * product.n * product.batch
    if not elements:
        return
    if not product.k:
        if product.beta == 0:
            yield Zero(c, elements * size)
        return
    yield Multiply(product, a, b, c)


def _finite(code: CudaCode) -> Iterator[Step]:
    """One thread looks at every scalar that has to be finite."""
    schedule = code.schedule
    if not schedule.finite:
        return
    kinds = tuple(schedule.buffers[b].dtype.name for b in schedule.finite)
    source = finite_source(kinds)
    places = [BufferAddress(b) for b in schedule.finite]
    yield Launch(source, (1, 1), LANES, (*places, BufferAddress(-1)))


def finite_source(kinds: Sequence[str]) -> CudaSource:
    """A kernel that reports the first scalar that is not finite."""
    dtypes = [np.dtype(kind) for kind in kinds]
    names = [f"p{n}" for n in range(len(kinds))]
    writer = Writer()
    expressions = Expressions(writer)
    writer.line(f"def kernel({', '.join(names)}, status):")
    with writer.indented():
        writer.line("if cuda.grid(1) == 0:")
        with writer.indented():
            for number, dtype in enumerate(dtypes):
                place = f"p{number}[uint32(0)]"
                x = expressions.temporary(expressions.as_float64(place, dtype))
                bad = f"(libdevice.fabs({x}) < float64(inf)) ^ True"
                writer.line(f"if (status[{CODE}] == 0) & ({bad}):")
                with writer.indented():
                    writer.line(f"status[{CODE}] = {NON_FINITE}")
                    writer.line(f"status[{POSITION}] = {number}")
                    writer.line(f"status[{VALUE}] = libdevice.double_as_longlong({x})")
    pointers = [f"*{memory_name(dtype)}" for dtype in dtypes]
    return CudaSource(writer.text(), (*pointers, "status"), (), None, False, True)
