"""Proof that the parts of a region are disjoint.

For each part of each kernel the elements are enclosed that it reads and writes of every
buffer: from the least to the greatest index, over all loops. Nothing that one part
writes may lie between what another part reads or writes, whichever kernels do it. The
search for regions (regions.py) reasons about rows instead; nothing is shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from staticgrad.compiler.kernel_ir.kernels import (
    GemmKernel,
    Invoke,
    Load,
    LoopKernel,
    Store,
    Tiles,
)
from staticgrad.compiler.kernel_ir.plan import Plan, Region
from staticgrad.compiler.kernel_ir.schedule import Schedule
from staticgrad.compiler.kernel_ir.walks import statements_of
from staticgrad.errors import CompilerBug
from staticgrad.ir.size import Dim, evaluate

Span = tuple[int, int]
"""The least and the greatest index of elements."""


def check_regions(plan: Plan) -> None:
    """Raise CompilerBug if parts of a region overlap, or regions each other."""
    end = 0
    for region in plan.regions:
        where = f"plan: region {region.first}..{region.stop - 1}"
        commit = plan.schedule.commit
        inside = end <= region.first < region.stop <= len(plan.schedule.kernels)
        if not inside or region.first < commit < region.stop:
            raise CompilerBug(f"{where} meets another one, the commit or the end")
        if region.rows < 1 or len(region.per_row) != region.stop - region.first:
            raise CompilerBug(f"{where} has parts of {region.rows} rows")
        _check_apart(plan, region, where)
        end = region.stop


def _check_apart(plan: Plan, region: Region, where: str) -> None:
    touched: dict[int, dict[int, Span]] = {}
    written: set[int] = set()
    for position in range(region.first, region.stop):
        for part in range(region.parts):
            for buffer, writes, (low, high) in _spans(plan, region, position, part):
                parts = touched.setdefault(buffer, {})
                known = parts.get(part, (low, high))
                parts[part] = min(known[0], low), max(known[1], high)
                written.update((buffer,) if writes else ())
    for buffer in written:
        spans = sorted(touched[buffer].values())
        if any(low <= high for (_, high), (low, _) in pairwise(spans)):
            raise CompilerBug(f"{where} has parts that meet in buffer {buffer}")


def _spans(
    plan: Plan, region: Region, position: int, part: int
) -> Iterator[tuple[int, bool, Span]]:
    """Yield (buffer, whether it writes, span) for each access of a kernel's part."""
    kernel = plan.schedule.kernels[position]
    values = dict(plan.values)
    if isinstance(kernel, LoopKernel):
        yield from _of_loop(plan, kernel, position, part)
    elif isinstance(kernel, GemmKernel):
        yield from _of_product(kernel, values, region.rows, part)
    else:
        raise CompilerBug(f"plan: {kernel.name} cannot be part of a region")


def _of_loop(
    plan: Plan, kernel: LoopKernel, position: int, part: int
) -> Iterator[tuple[int, bool, Span]]:
    values = dict(plan.values)
    if kernel.axes[0] == 1:  # its loop is no loop: it has no empty range
        raise CompilerBug(f"plan: {kernel.name} of one index is part of a region")
    chunks, size = plan.chunks[position]
    bounds = [(0, evaluate(axis, values) - 1) for axis in kernel.axes]
    bounds[0] = part * size, min((part + 1) * size - 1, bounds[0][1])
    if part >= chunks or any(low > high for low, high in bounds):
        return
    if any(operand.per_chunk for operand in kernel.operands):
        raise CompilerBug(f"plan: {kernel.name} keeps slots inside of a region")
    for statement in statements_of(kernel.body):
        if isinstance(statement, Invoke):
            raise CompilerBug(f"plan: {kernel.name} calls a function inside a region")
        if isinstance(statement, Tiles):
            yield from _of_tiles(kernel, statement, bounds[0], values)
        if not isinstance(statement, Load | Store):
            continue
        access = statement.access
        if access.operand < 0:  # scratch is private to each worker
            continue
        buffer = kernel.operands[access.operand].buffer
        writes = isinstance(statement, Store)
        if access.dynamic is not None:
            yield buffer, writes, _all_of(plan.schedule, buffer, values)
            continue
        start = evaluate(access.offset, values)
        yield buffer, writes, _reach(start, access.strides, bounds, values)


def _of_tiles(
    kernel: LoopKernel, tiles: Tiles, rows: Span, values: Mapping[str, int]
) -> Iterator[tuple[int, bool, Span]]:
    for operand, reach in zip(kernel.operands, tiles.reaches, strict=True):
        step, low, high = (
            evaluate(d, values) for d in (reach.step, reach.first, reach.last)
        )
        ends = step * rows[0], step * rows[1]
        span = low + min(ends), high + max(ends)
        if operand.mode != "write":
            yield operand.buffer, False, span
        if operand.mode != "read":
            yield operand.buffer, True, span


def _reach(
    start: int, strides: tuple[Dim, ...], bounds: list[Span], values: Mapping[str, int]
) -> Span:
    low = high = start
    for stride, (first, last) in zip(strides, bounds, strict=True):
        ends = evaluate(stride, values) * first, evaluate(stride, values) * last
        low, high = low + min(ends), high + max(ends)
    return low, high


def _of_product(
    kernel: GemmKernel, values: Mapping[str, int], rows: int, part: int
) -> Iterator[tuple[int, bool, Span]]:
    m, n, k = (evaluate(d, values) for d in (kernel.m, kernel.n, kernel.k))
    first, last = part * rows, min((part + 1) * rows, m) - 1
    if kernel.transposed[0] or evaluate(kernel.batch, values) != 1:
        raise CompilerBug(f"plan: {kernel.name} has no rows of its own in a region")
    spans = ((first, last, k), (0, (n if kernel.transposed[1] else k) - 1, None))
    for number, (low, high, width) in enumerate((*spans, (first, last, n))):
        ld = evaluate(kernel.ld[number], values)
        start = evaluate(kernel.offsets[number], values)
        if width is None:
            width = k if kernel.transposed[1] else n
        span = start + low * ld, start + high * ld + width - 1
        operand = kernel.operands[number]
        if low <= high:
            yield operand.buffer, number == 2, span


def _all_of(schedule: Schedule, buffer: int, values: Mapping[str, int]) -> Span:
    return 0, evaluate(schedule.buffers[buffer].elements, values) - 1
