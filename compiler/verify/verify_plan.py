"""Verifier of Plans. It shares no code with what it checks.

What every buffer needs and when is worked out again; then a sweep over the kernels,
with the live buffers sorted by offset, finds those that overlap: it takes n log n.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from staticgrad.compiler.kernel_ir.kernels import FinishKernel, LoopKernel
from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.kernel_ir.schedule import ControlKernel, Schedule
from staticgrad.compiler.verify.disjoint import check_regions
from staticgrad.compiler.verify.verify_schedule import ARENA_KINDS, check_kernels, fail
from staticgrad.ir.size import evaluate


def verify_plan(plan: Plan, kernels: bool = False) -> None:
    """Raise CompilerBug if live buffers overlap or anything else in `plan` is off.

    With `kernels`, each one's rules too, for the sizes of the plan.
    """
    schedule = plan.schedule
    if kernels:
        check_kernels(schedule, dict(plan.values))
    _check_lengths(plan)
    _check_bodies(plan, kernels)
    _check_chunks(plan)
    chunks = [count for count, _ in plan.chunks]
    gone = _replaced(schedule, chunks)
    _check_bytes(plan, gone)
    check_regions(plan)
    lives = _lives(plan, gone)
    for buffer in schedule.buffers:
        _check_place(plan, buffer.number, lives.get(buffer.number))
    _check_overlap(plan)
    _check_totals(plan)


def _check_bodies(plan: Plan, kernels: bool) -> None:
    """Check that the plans of bodies are right, and made for the same sizes."""
    for position, kernel in enumerate(plan.schedule.kernels):
        bodies = kernel.bodies if isinstance(kernel, ControlKernel) else ()
        found = plan.bodies[position] if plan.bodies else ()
        same = all(a.schedule is b for a, b in zip(found, bodies, strict=False))
        if len(found) != len(bodies) or not same:
            fail(f"plan: kernel {position} ({kernel.name}) lacks plans of its bodies")
        for inner in found:
            if inner.values != plan.values:
                fail(
                    f"plan: kernel {position} ({kernel.name}) has bodies of other sizes"
                )
            verify_plan(inner, kernels)


def _check_lengths(plan: Plan) -> None:
    schedule = plan.schedule
    wanted = len(schedule.buffers)
    for name in ("bytes", "first", "last", "offsets"):
        if len(getattr(plan, name)) != wanted:
            fail(f"plan: {name} of {len(getattr(plan, name))} buffers, not {wanted}")
    if len(plan.chunks) != len(schedule.kernels):
        fail(f"plan: chunks of {len(plan.chunks)} kernels")


def _check_chunks(plan: Plan) -> None:
    values = dict(plan.values)
    for position, kernel in enumerate(plan.schedule.kernels):
        chunks, size = plan.chunks[position]
        where = f"plan: kernel {position} ({kernel.name}) in {chunks} chunks of {size}"
        if isinstance(kernel, FinishKernel):
            needed = plan.chunks[kernel.chunks_of][0] != 1
            if (chunks, size) != (int(needed), 0):
                fail(f"{where}, its slots in {plan.chunks[kernel.chunks_of][0]}")
        elif not isinstance(kernel, LoopKernel):
            if (chunks, size) != (1, 0):
                fail(f"{where}, a matrix product")
        else:
            extent = evaluate(kernel.axes[0], values)
            if chunks < 1 or size < 1 or chunks * size < extent:
                fail(f"{where} do not cover {extent} indices")
            if chunks > 1 and (chunks - 1) * size >= extent:
                fail(f"{where} are too many for {extent} indices")
            if chunks > 1 and not kernel.parallel:
                fail(f"{where}, but its chunks depend on each other")


def _replaced(schedule: Schedule, chunks: Sequence[int]) -> dict[int, int]:
    """Return the buffers written instead of slots that are not needed."""
    gone: dict[int, int] = {}
    for kernel in schedule.kernels:
        if isinstance(kernel, FinishKernel) and chunks[kernel.chunks_of] == 1:
            slots, out = kernel.operands
            gone[slots.buffer] = out.buffer
    return gone


def _check_bytes(plan: Plan, gone: dict[int, int]) -> None:
    values = dict(plan.values)
    slots: dict[int, int] = {}
    arenas: dict[int, int] = {}
    for position, kernel in enumerate(plan.schedule.kernels):
        chunks, _ = plan.chunks[position]
        if isinstance(kernel, ControlKernel):
            needs = (body.arena_bytes for body in plan.bodies[position])
            arenas[kernel.operands[kernel.arena].buffer] = max(needs, default=0)
        for operand in kernel.operands:
            if operand.per_chunk:
                slots[operand.buffer] = chunks * evaluate(operand.slot, values)
    for buffer in plan.schedule.buffers:
        elements = evaluate(buffer.elements, values)
        if buffer.kind == "slots":
            elements = 0 if buffer.number in gone else slots.get(buffer.number, 0)
        if buffer.kind == "arena":
            elements = arenas.get(buffer.number, 0)
        if plan.bytes[buffer.number] != elements * buffer.dtype.itemsize:
            fail(
                f"plan: buffer {buffer.number} of {plan.bytes[buffer.number]} bytes, "
                f"needs {elements} x {buffer.dtype.itemsize}"
            )


def _lives(plan: Plan, gone: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Return the first and last kernel of every touched buffer of the arena.

    What a region touches is touched by all of its kernels.
    """
    schedule = plan.schedule
    steps: dict[int, list[int]] = {}
    ends = {
        position: (region.first, region.stop - 1)
        for region in plan.regions
        for position in range(region.first, region.stop)
    }
    for position, kernel in enumerate(schedule.kernels):
        if isinstance(kernel, FinishKernel) and kernel.operands[0].buffer in gone:
            continue
        for operand in kernel.operands:
            buffer = gone.get(operand.buffer, operand.buffer)
            if schedule.buffers[buffer].kind in ARENA_KINDS:
                at = ends.get(position, (position,))
                steps.setdefault(buffer, []).extend(at)
    end = len(schedule.kernels) - 1
    for buffer in set(schedule.finite) & set(steps):
        steps[buffer].append(min(schedule.commit, end))
    for buffer in set(schedule.outputs) & set(steps):
        steps[buffer].append(end)
    return {buffer: (min(at), max(at)) for buffer, at in steps.items()}


def _check_place(plan: Plan, number: int, life: tuple[int, int] | None) -> None:
    place = (plan.first[number], plan.last[number])
    offset, end = plan.offsets[number], plan.offsets[number] + plan.bytes[number]
    if life is None:
        if (*place, offset) != (-1, -1, -1):
            fail(f"plan: buffer {number} is not in the arena, but has a place there")
        return
    if place != life:
        fail(f"plan: buffer {number} lives {life[0]}..{life[1]}, not {place}")
    if offset < 0 or offset % 64:
        fail(f"plan: buffer {number} at {offset}, not a multiple of 64")
    if end > plan.arena_bytes:
        fail(f"plan: buffer {number} ends at {end} of {plan.arena_bytes} bytes")


def _check_overlap(plan: Plan) -> None:
    """Check by a sweep over kernels that live buffers do not overlap."""
    sized = [b for b, size in enumerate(plan.bytes) if size and plan.first[b] >= 0]
    events = [(plan.first[b], 1, b) for b in sized]
    events += [(plan.last[b] + 1, 0, b) for b in sized]
    live: list[tuple[int, int]] = []
    for step, begins, buffer in sorted(events):
        entry = (plan.offsets[buffer], buffer)
        index = bisect_left(live, entry)
        if not begins:
            del live[index]
            continue
        live.insert(index, entry)
        for (low, one), (high, other) in zip(
            live[max(index - 1, 0) :], live[max(index, 1) : index + 2], strict=False
        ):
            if low + plan.bytes[one] > high:
                fail(f"plan: buffers {one} and {other} overlap at kernel {step}")


def _check_totals(plan: Plan) -> None:
    placed = [b for b, offset in enumerate(plan.offsets) if offset >= 0]
    padded = {b: -(-plan.bytes[b] // 64) * 64 for b in placed}
    arena = max((plan.offsets[b] + padded[b] for b in placed), default=0)
    if plan.arena_bytes != arena:
        fail(f"plan: an arena of {plan.arena_bytes} bytes, buffers end at {arena}")
    bound = _most_live(plan, {b: plan.bytes[b] for b in placed})
    if plan.lower_bound_bytes != bound:
        fail(f"plan: a lower bound of {plan.lower_bound_bytes} bytes, not {bound}")
    least = _most_live(plan, padded)
    if plan.proof not in ("bound", "exact", ""):
        fail(f"plan: unknown proof {plan.proof!r}")
    if (plan.proof == "bound") != (arena == least):
        fail(f"plan: proof {plan.proof!r}, arena {arena}, padded bound {least}")
    values = dict(plan.values)
    unplanned = sum(evaluate(size, values) for size in plan.schedule.unplanned)
    if plan.unplanned_bytes != unplanned:
        fail(f"plan: unplanned bytes {plan.unplanned_bytes}, not {unplanned}")


def _most_live(plan: Plan, sizes: dict[int, int]) -> int:
    change = [0] * (len(plan.schedule.kernels) + 1)
    for buffer, size in sizes.items():
        change[plan.first[buffer]] += size
        change[plan.last[buffer] + 1] -= size
    live = most = 0
    for difference in change:
        live += difference
        most = max(most, live)
    return most
