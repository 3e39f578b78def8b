"""Launches: steps in order for given sizes, before addresses are known.

Order, as on the cpu: copies of outputs that are leaves, the kernels before the commit,
the check of what has to be finite, the guarded kernels, copies of outputs that are
named twice. A failed check or a bad index leaves a code in the status, and nothing
guarded writes any more, in this run or a later one, until the status is cleared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

import numpy as np

from staticgrad.compiler.codegen.text_emitter import Writer
from staticgrad.compiler.cuda.cuda_code import CudaCode
from staticgrad.compiler.cuda.cuda_products import product_of
from staticgrad.compiler.cuda.device import Device
from staticgrad.compiler.cuda.frame_steps import (
    Argument,
    BufferAddress,
    Launch,
    Multiply,
    Step,
    Zero,
)
from staticgrad.compiler.cuda.host_functions import host_call
from staticgrad.compiler.cuda.source.cuda_loops import CudaSource
from staticgrad.compiler.cuda.source.expression_text import Expressions
from staticgrad.compiler.cuda.source.statement_lines import CODE, POSITION, VALUE
from staticgrad.compiler.cuda.source.tile_copies import EDGE
from staticgrad.compiler.cuda.source.typed_text import memory_name
from staticgrad.compiler.kernel_ir.combine_partials import finish_values, stands_for
from staticgrad.compiler.kernel_ir.flat import FlatPlan, flat_plan
from staticgrad.compiler.kernel_ir.instruction_set import (
    CallKernel,
    CommitPoint,
    Copy,
    Flow,
    JumpTarget,
    Slot,
)
from staticgrad.compiler.kernel_ir.kernels import FinishKernel, GemmKernel, LoopKernel
from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.kernel_ir.schedule import output_targets
from staticgrad.compiler.runtime.failures import refuse_empty_extents
from staticgrad.compiler.runtime.vm import NON_FINITE
from staticgrad.errors import GraphError
from staticgrad.ir.size import evaluate

LANES = 32
MOST_BESIDE = 65535  # blocks along the second axis of a grid
MOST_ELEMENTS = 2**32 - 1
"""Indices are uint32."""

Values: TypeAlias = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Launches:
    """The steps of a Plan on a device; label l is ahead of step ``labels[l]``.

    `scratch` are the bytes of each scratch area, the most that any kernel needs.
    Output p is at buffer ``output_buffers[p]``; numbers past the schedule's buffers are
    outputs without a buffer of their own.
    """

    code: CudaCode
    plan: Plan
    spread: FlatPlan
    steps: tuple[Step, ...]
    labels: Mapping[int, int]
    scratch: tuple[int, ...]
    output_buffers: tuple[int, ...]


def launches(code: CudaCode, plan: Plan, device: Device) -> Launches:
    """Return the steps of `plan`; IndexOutOfRange for checks of an empty axis."""
    values, flat = dict(plan.values), code.flat
    refuse_empty_extents(code.loops, values)
    _refuse_large(code, values)
    places = flat_plan(flat, plan)
    targets, copies = output_targets(code.schedule)
    instead = stands_for(code.schedule.kernels, places.chunks)
    steps: list[Step] = [Copy(*buffers) for at_start, *buffers in copies if at_start]
    labels: dict[int, int] = {}
    for instruction in flat.instructions:
        if isinstance(instruction, JumpTarget):
            labels[instruction.number] = len(steps)
        elif isinstance(instruction, CallKernel):
            number = instruction.kernel
            steps += _kernel(code, values, places, number, instead, device)
        elif isinstance(instruction, CommitPoint):
            steps += _finite(code)
        else:
            assert isinstance(instruction, Copy | Slot | Flow)
            steps.append(instruction)
    steps += [Copy(*buffers) for at_start, *buffers in copies if not at_start]
    return Launches(code, plan, places, tuple(steps), labels, _scratch(steps), targets)


def _scratch(steps: Sequence[Step]) -> tuple[int, ...]:
    """Return the most that any step needs of each scratch area."""
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


def _kernel(
    code: CudaCode, values: Values, plan: FlatPlan, number: int,
    instead: Mapping[int, int], device: Device,
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
    pointers = [BufferAddress(instead.get(o.buffer, o.buffer)) for o in loop.operands]
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
    """Yield the launch of one thread that checks scalars required to be finite."""
    schedule = code.schedule
    if not schedule.finite:
        return
    kinds = tuple(schedule.buffers[b].dtype.name for b in schedule.finite)
    source = finite_source(kinds)
    places = [BufferAddress(b) for b in schedule.finite]
    yield Launch(source, (1, 1), LANES, (*places, BufferAddress(-1)))


def finite_source(kinds: Sequence[str]) -> CudaSource:
    """Return the kernel that reports the first scalar that is not finite."""
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
