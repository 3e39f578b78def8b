"""Verifiers of Schedule and Plan. They raise CompilerBug and share no code with what
they check.

verify_schedule walks the kernels in order: what is read has been written, the commit
rule holds, slots are finished, every kernel keeps its own rules (wellformed.py).
verify_plan works out again what every buffer needs and when, and sweeps over the
kernels with the live buffers sorted by offset, so it takes n log n.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn
from zlib import crc32

from staticgrad.compiler.apart import check_regions
from staticgrad.compiler.kernels import FinishKernel, LoopKernel
from staticgrad.compiler.plan import Plan
from staticgrad.compiler.ports import check_control
from staticgrad.compiler.schedule import Buffer, ControlKernel, Schedule, Step
from staticgrad.compiler.wellformed import check_kernel
from staticgrad.errors import CompilerBug
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Stored
from staticgrad.ir.size import Dim, evaluate, symbols
from staticgrad.ir.types import is_float

ARENA_KINDS = ("temporary", "slots", "arena")
TRIAL_SIZE = 1_000_003
TRIAL_STEP = 10_007


def _fail(text: str) -> NoReturn:
    raise CompilerBug(text)


# Schedule


def trial_size(name: str) -> int:
    """The value of a symbol with which kernels are tried: large, and far from others.

    >>> trial_size("n"), trial_size("m")
    (35544167, 6403783)
    """
    return TRIAL_SIZE + TRIAL_STEP * (crc32(name.encode()) % TRIAL_STEP)


def verify_schedule(
    schedule: Schedule, graph: Graph | None = None, kernels: bool = True
) -> None:
    """Raise CompilerBug if `schedule` breaks a rule, or does not compute `graph`.

    Without `kernels`, theirs are left to verify_plan: trial sizes do not suit `graph`.
    """
    _check_buffers(schedule)
    if kernels:
        _check_kernels(schedule, _trial_values(schedule))
    _Order(schedule).run()
    for body in _bodies(schedule):
        verify_schedule(body, kernels=kernels)
    if graph is not None:
        _check_graph(schedule, graph)


def _check_kernels(schedule: Schedule, values: Mapping[str, int]) -> None:
    for position, kernel in enumerate(schedule.kernels):
        try:
            if isinstance(kernel, ControlKernel):
                check_control(kernel, schedule.buffers, values)
            else:
                check_kernel(kernel, schedule.buffers, values)
        except CompilerBug as error:
            _fail(f"schedule, position {position}: {error}")


def _bodies(schedule: Schedule) -> Iterator[Schedule]:
    for kernel in schedule.kernels:
        if isinstance(kernel, ControlKernel):
            yield from kernel.bodies


def _trial_values(schedule: Schedule) -> dict[str, int]:
    dims: list[Dim] = [dim for buffer in schedule.buffers for dim in buffer.shape]
    for kernel in schedule.kernels:
        if isinstance(kernel, LoopKernel):
            dims.extend(kernel.axes)
        elif isinstance(kernel, ControlKernel):
            dims.append(kernel.length)
        elif not isinstance(kernel, FinishKernel):
            dims.extend((kernel.m, kernel.n, kernel.k, kernel.batch))
    return {name: trial_size(name) for name in symbols(tuple(set(dims)))}


def _check_buffers(schedule: Schedule) -> None:
    count = len(schedule.buffers)
    for number, buffer in enumerate(schedule.buffers):
        if buffer.number != number:
            _fail(f"schedule: buffer {number} has number {buffer.number}")
        if buffer.kind == "stored" and buffer.leaf is None:
            _fail(f"schedule: stored buffer {number} has no leaf")
        if buffer.kind == "constant" and buffer.value is None:
            _fail(f"schedule: constant buffer {number} has no value")
    for what, numbers in (("output", schedule.outputs), ("finite", schedule.finite)):
        for number in numbers:
            if not 0 <= number < count:
                _fail(f"schedule: {what} is buffer {number}: none such")
    if not 0 <= schedule.commit <= len(schedule.kernels):
        _fail(f"schedule: commit at {schedule.commit} of {len(schedule.kernels)}")
    _check_positions(schedule)
    _check_again(schedule)
    for number in schedule.finite:
        buffer = schedule.buffers[number]
        if buffer.elements != 1 or not is_float(buffer.dtype):
            _fail(f"schedule: finite buffer {number} is not a float scalar")


def _check_again(schedule: Schedule) -> None:
    """Kernels that run again write the arena only, and stand behind their first run."""
    if list(schedule.again) != sorted(set(schedule.again)):
        _fail(f"schedule: kernels that run again at {schedule.again}, out of order")
    again = set(schedule.again)
    first = {k.name for p, k in enumerate(schedule.kernels) if p not in again}
    for position in schedule.again:
        if not 0 <= position < len(schedule.kernels):
            _fail(f"schedule: a kernel that runs again at {position}: none such")
        kernel = schedule.kernels[position]
        if kernel.name not in first:
            _fail(f"schedule, position {position}: {kernel.name} runs again only")
        for operand in kernel.operands:
            kind = schedule.buffers[operand.buffer].kind
            if operand.mode != "read" and kind not in ARENA_KINDS:
                _fail(
                    f"schedule, position {position}: {kernel.name} runs again, but "
                    f"writes {kind} buffer {operand.buffer}"
                )


def _check_positions(schedule: Schedule) -> None:
    seen: set[tuple[str, int]] = set()
    leaves: set[int] = set()
    for buffer in schedule.buffers:
        if buffer.kind == "stored" and id(buffer.leaf) in leaves:
            _fail(f"schedule: two buffers for the leaf of buffer {buffer.number}")
        leaves.add(id(buffer.leaf))
        if buffer.kind not in ("input", "output"):
            continue
        place = (buffer.kind, buffer.position)
        if buffer.position < 0 or place in seen:
            _fail(f"schedule: two buffers for {buffer.kind} {buffer.position}, or none")
        seen.add(place)
        if buffer.kind == "output":
            outputs = schedule.outputs
            if buffer.number not in outputs[buffer.position : buffer.position + 1]:
                _fail(
                    f"schedule: output {buffer.position} is not buffer {buffer.number}"
                )


class _Order:
    """A walk over the kernels in order, with what has been written so far."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.written: set[int] = set()
        self.touched: dict[int, int] = {}
        self.writer: dict[int, int] = {}
        self.finished: set[int] = set()

    def run(self) -> None:
        schedule = self.schedule
        for position, kernel in enumerate(schedule.kernels):
            if position == schedule.commit:
                self._check_finite()
            self._check_kernel(position, kernel)
        if schedule.commit == len(schedule.kernels):
            self._check_finite()
        for buffer in schedule.buffers:
            self._check_end(buffer)

    def _check_finite(self) -> None:
        for number in self.schedule.finite:
            kind = self.schedule.buffers[number].kind
            if kind in ("temporary", "output") and number not in self.written:
                _fail(f"schedule: buffer {number} is checked at commit, written later")

    def _check_kernel(self, position: int, kernel: Step) -> None:
        where = f"schedule, position {position}: kernel {kernel.name}"
        if kernel.fails and position >= self.schedule.commit:
            _fail(f"{where} can fail after the commit at {self.schedule.commit}")
        if isinstance(kernel, FinishKernel):
            self._check_finish(where, position, kernel)
        for operand in kernel.operands:
            buffer = self.schedule.buffers[operand.buffer]
            if operand.mode != "write":
                self._check_read(where, buffer)
            if operand.mode != "read":
                self._check_write(where, position, buffer, operand.per_chunk)
        for operand in kernel.operands:
            self.touched[operand.buffer] = position
            if operand.mode != "read":
                self.written.add(operand.buffer)
                self.writer[operand.buffer] = position

    def _check_read(self, where: str, buffer: Buffer) -> None:
        made = buffer.kind in ("temporary", "output", "slots")
        if made and buffer.number not in self.written:
            _fail(f"{where} reads buffer {buffer.number} before it is written")
        if buffer.kind in ("stored", "carry") and buffer.number in self.written:
            what = f"{buffer.kind} buffer {buffer.number}"
            _fail(f"{where} reads {what}, already overwritten")

    def _check_write(
        self, where: str, position: int, buffer: Buffer, per_chunk: bool
    ) -> None:
        if buffer.kind in ("input", "constant"):
            _fail(f"{where} writes {buffer.kind} buffer {buffer.number}")
        if buffer.kind == "stored" and position < self.schedule.commit:
            _fail(
                f"{where} writes stored buffer {buffer.number} before the commit "
                f"at {self.schedule.commit}"
            )
        if per_chunk != (buffer.kind == "slots"):
            _fail(f"{where}: slots and buffer {buffer.number} do not go together")
        if buffer.kind in ("slots", "carry") and buffer.number in self.written:
            _fail(f"{where} writes {buffer.kind} {buffer.number} a second time")

    def _check_finish(self, where: str, position: int, kernel: FinishKernel) -> None:
        slots, out = (operand.buffer for operand in kernel.operands)
        maker = kernel.chunks_of
        if not 0 <= maker < position or self.writer.get(slots) != maker:
            _fail(f"{where} finishes slots {slots} of kernel {maker}, which has none")
        if slots in self.finished:
            _fail(f"{where} finishes slots {slots} a second time")
        self.finished.add(slots)
        made = self.schedule.kernels[maker]
        for operand in made.operands:
            if operand.buffer == slots and operand.slot != kernel.extent:
                _fail(f"{where}: slots of {operand.slot} elements, not {kernel.extent}")
        # With one chunk the maker writes `out` itself.
        if self.touched.get(out, -1) >= maker:
            _fail(f"{where}: buffer {out} is used between the slots and their finish")
        stored = self.schedule.buffers[out].kind == "stored"
        if stored and maker < self.schedule.commit:
            _fail(f"{where}: its slots are made before the commit, {out} is stored")

    def _check_end(self, buffer: Buffer) -> None:
        number = buffer.number
        if buffer.kind == "output" and number not in self.written:
            _fail(f"schedule: output buffer {number} is never written")
        if buffer.kind == "slots" and number in self.written - self.finished:
            _fail(f"schedule: slots {number} are never finished")
        if number not in self.schedule.outputs:
            return
        if buffer.kind == "slots":
            _fail(f"schedule: slots {number} are an output")
        if buffer.kind == "temporary" and number not in self.written:
            _fail(f"schedule: output buffer {number} is never written")
        if buffer.kind == "stored" and number in self.written:
            _fail(f"schedule: output is stored buffer {number}, which is overwritten")


def _check_graph(schedule: Schedule, graph: Graph) -> None:
    """Outputs, inputs and updates of the graph have their buffers."""
    if len(schedule.outputs) != len(graph.outputs):
        _fail(f"schedule: {len(schedule.outputs)} outputs of {len(graph.outputs)}")
    for number, tensor in zip(schedule.outputs, graph.outputs, strict=True):
        buffer = schedule.buffers[number]
        if (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            _fail(f"schedule: output buffer {number} does not have type {tensor.type}")
    for buffer in schedule.buffers:
        if buffer.kind == "input":
            _check_input(buffer, graph)
    _check_updates(schedule, {leaf for leaf, _ in graph.updates})


def _check_input(buffer: Buffer, graph: Graph) -> None:
    if buffer.position >= len(graph.inputs):
        _fail(f"schedule: buffer {buffer.number} is input {buffer.position}: none such")
    leaf = graph.inputs[buffer.position]
    if (buffer.shape, buffer.dtype) != (leaf.shape, leaf.dtype):
        _fail(f"schedule: input buffer {buffer.number} does not have type {leaf.type}")


def _check_updates(schedule: Schedule, leaves: set[Stored]) -> None:
    written = {
        operand.buffer
        for kernel in schedule.kernels
        for operand in kernel.operands
        if operand.mode != "read"
    }
    updated = {
        buffer.leaf
        for buffer in schedule.buffers
        if buffer.leaf is not None and buffer.number in written
    }
    for leaf in leaves ^ updated:
        what = "is never written" if leaf in leaves else "is written, but not updated"
        _fail(f"schedule: {leaf.name} {what}")


# Plan


def verify_plan(plan: Plan, kernels: bool = False) -> None:
    """Raise CompilerBug if live buffers overlap or anything else in `plan` is off.

    With `kernels`, each one's rules too, for the sizes of the plan.
    """
    schedule = plan.schedule
    if kernels:
        _check_kernels(schedule, dict(plan.values))
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
    """The plans of bodies are right, and made for the same sizes."""
    for position, kernel in enumerate(plan.schedule.kernels):
        bodies = kernel.bodies if isinstance(kernel, ControlKernel) else ()
        found = plan.bodies[position] if plan.bodies else ()
        same = all(a.schedule is b for a, b in zip(found, bodies, strict=False))
        if len(found) != len(bodies) or not same:
            _fail(f"plan: kernel {position} ({kernel.name}) lacks plans of its bodies")
        for inner in found:
            if inner.values != plan.values:
                _fail(
                    f"plan: kernel {position} ({kernel.name}) has bodies of other sizes"
                )
            verify_plan(inner, kernels)


def _check_lengths(plan: Plan) -> None:
    schedule = plan.schedule
    wanted = len(schedule.buffers)
    for name in ("bytes", "first", "last", "offsets"):
        if len(getattr(plan, name)) != wanted:
            _fail(f"plan: {name} of {len(getattr(plan, name))} buffers, not {wanted}")
    if len(plan.chunks) != len(schedule.kernels):
        _fail(f"plan: chunks of {len(plan.chunks)} kernels")


def _check_chunks(plan: Plan) -> None:
    values = dict(plan.values)
    for position, kernel in enumerate(plan.schedule.kernels):
        chunks, size = plan.chunks[position]
        where = f"plan: kernel {position} ({kernel.name}) in {chunks} chunks of {size}"
        if isinstance(kernel, FinishKernel):
            needed = plan.chunks[kernel.chunks_of][0] != 1
            if (chunks, size) != (int(needed), 0):
                _fail(f"{where}, its slots in {plan.chunks[kernel.chunks_of][0]}")
        elif not isinstance(kernel, LoopKernel):
            if (chunks, size) != (1, 0):
                _fail(f"{where}, a matrix product")
        else:
            extent = evaluate(kernel.axes[0], values) if kernel.axes else 1
            if chunks < 1 or size < 1 or chunks * size < extent:
                _fail(f"{where} do not cover {extent} indices")
            if chunks > 1 and (chunks - 1) * size >= extent:
                _fail(f"{where} are too many for {extent} indices")
            if chunks > 1 and not kernel.parallel:
                _fail(f"{where}, but its chunks depend on each other")


def _replaced(schedule: Schedule, chunks: Sequence[int]) -> dict[int, int]:
    """Slots that are not needed: the buffer that is written instead."""
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
            _fail(
                f"plan: buffer {buffer.number} of {plan.bytes[buffer.number]} bytes, "
                f"needs {elements} x {buffer.dtype.itemsize}"
            )


def _lives(plan: Plan, gone: dict[int, int]) -> dict[int, tuple[int, int]]:
    """The first and last kernel of every buffer of the arena that is touched.

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
            _fail(f"plan: buffer {number} is not in the arena, but has a place there")
        return
    if place != life:
        _fail(f"plan: buffer {number} lives {life[0]}..{life[1]}, not {place}")
    if offset < 0 or offset % 64:
        _fail(f"plan: buffer {number} at {offset}, not a multiple of 64")
    if end > plan.arena_bytes:
        _fail(f"plan: buffer {number} ends at {end} of {plan.arena_bytes} bytes")


def _check_overlap(plan: Plan) -> None:
    """Sweep over kernels; live buffers, sorted by offset, must not overlap."""
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
                _fail(f"plan: buffers {one} and {other} overlap at kernel {step}")


def _check_totals(plan: Plan) -> None:
    placed = [b for b, offset in enumerate(plan.offsets) if offset >= 0]
    padded = {b: -(-plan.bytes[b] // 64) * 64 for b in placed}
    arena = max((plan.offsets[b] + padded[b] for b in placed), default=0)
    if plan.arena_bytes != arena:
        _fail(f"plan: an arena of {plan.arena_bytes} bytes, buffers end at {arena}")
    bound = _most_live(plan, {b: plan.bytes[b] for b in placed})
    if plan.lower_bound_bytes != bound:
        _fail(f"plan: a lower bound of {plan.lower_bound_bytes} bytes, not {bound}")
    least = _most_live(plan, padded)
    if plan.proof not in ("bound", "exact", ""):
        _fail(f"plan: unknown proof {plan.proof!r}")
    if (plan.proof == "bound") != (arena == least):
        _fail(f"plan: proof {plan.proof!r}, arena {arena}, padded bound {least}")
    values = dict(plan.values)
    unplanned = sum(evaluate(size, values) for size in plan.schedule.unplanned)
    if plan.unplanned_bytes != unplanned:
        _fail(f"plan: unplanned bytes {plan.unplanned_bytes}, not {unplanned}")


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
