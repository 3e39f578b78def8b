"""Verifier of Schedules. It shares no code with what it checks.

The kernels are walked in order: every buffer read has been written, the commit rule
holds, slots are finished, every kernel keeps its own rules (wellformed.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn
from zlib import crc32

from staticgrad.compiler.kernel_ir.kernels import FinishKernel, LoopKernel
from staticgrad.compiler.kernel_ir.schedule import Buffer, ControlKernel, Schedule, Step
from staticgrad.compiler.verify.body_operands import check_control
from staticgrad.compiler.verify.wellformed import check_kernel
from staticgrad.errors import CompilerBug
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Stored
from staticgrad.ir.size import Dim, symbols
from staticgrad.ir.types import is_float

ARENA_KINDS = ("temporary", "slots", "arena")
TRIAL_SIZE = 1_000_003
TRIAL_STEP = 10_007


def fail(text: str) -> NoReturn:
    """Raise CompilerBug."""
    raise CompilerBug(text)


def trial_size(name: str) -> int:
    """Return the trial value of a symbol: large, and far from others.

    >>> trial_size("n"), trial_size("m")
    (35544167, 6403783)
    """
    return TRIAL_SIZE + TRIAL_STEP * (crc32(name.encode()) % TRIAL_STEP)


def verify_schedule(
    schedule: Schedule, graph: Graph | None = None, kernels: bool = True
) -> None:
    """Raise CompilerBug if `schedule` violates a rule, or does not compute `graph`.

    Without `kernels`, theirs are left to verify_plan: trial sizes do not suit `graph`.
    """
    _check_buffers(schedule)
    if kernels:
        check_kernels(schedule, _trial_values(schedule))
    _Order(schedule).run()
    for body in _bodies(schedule):
        verify_schedule(body, kernels=kernels)
    if graph is not None:
        _check_graph(schedule, graph)


def check_kernels(schedule: Schedule, values: Mapping[str, int]) -> None:
    """Check each kernel's own rules, for symbols of `values`."""
    for position, kernel in enumerate(schedule.kernels):
        try:
            if isinstance(kernel, ControlKernel):
                check_control(kernel, schedule.buffers, values)
            else:
                check_kernel(kernel, schedule.buffers, values)
        except CompilerBug as error:
            fail(f"schedule, position {position}: {error}")


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
            fail(f"schedule: buffer {number} has number {buffer.number}")
        if buffer.kind == "stored" and buffer.leaf is None:
            fail(f"schedule: stored buffer {number} has no leaf")
        if buffer.kind == "constant" and buffer.value is None:
            fail(f"schedule: constant buffer {number} has no value")
    for what, numbers in (("output", schedule.outputs), ("finite", schedule.finite)):
        for number in numbers:
            if not 0 <= number < count:
                fail(f"schedule: {what} is buffer {number}: none such")
    if not 0 <= schedule.commit <= len(schedule.kernels):
        fail(f"schedule: commit at {schedule.commit} of {len(schedule.kernels)}")
    _check_positions(schedule)
    _check_again(schedule)
    for number in schedule.finite:
        buffer = schedule.buffers[number]
        if buffer.elements != 1 or not is_float(buffer.dtype):
            fail(f"schedule: finite buffer {number} is not a float scalar")


def _check_again(schedule: Schedule) -> None:
    """Check that recomputing kernels write only the arena, after their first run."""
    if list(schedule.again) != sorted(set(schedule.again)):
        fail(f"schedule: kernels that run again at {schedule.again}, out of order")
    again = set(schedule.again)
    first = {k.name for p, k in enumerate(schedule.kernels) if p not in again}
    for position in schedule.again:
        if not 0 <= position < len(schedule.kernels):
            fail(f"schedule: a kernel that runs again at {position}: none such")
        kernel = schedule.kernels[position]
        if kernel.name not in first:
            fail(f"schedule, position {position}: {kernel.name} runs again only")
        for operand in kernel.operands:
            kind = schedule.buffers[operand.buffer].kind
            if operand.mode != "read" and kind not in ARENA_KINDS:
                fail(
                    f"schedule, position {position}: {kernel.name} runs again, but "
                    f"writes {kind} buffer {operand.buffer}"
                )


def _check_positions(schedule: Schedule) -> None:
    seen: set[tuple[str, int]] = set()
    leaves: set[int] = set()
    for buffer in schedule.buffers:
        if buffer.kind == "stored" and id(buffer.leaf) in leaves:
            fail(f"schedule: two buffers for the leaf of buffer {buffer.number}")
        leaves.add(id(buffer.leaf))
        if buffer.kind not in ("input", "output"):
            continue
        place = (buffer.kind, buffer.position)
        if buffer.position < 0 or place in seen:
            fail(f"schedule: two buffers for {buffer.kind} {buffer.position}, or none")
        seen.add(place)
        if buffer.kind == "output":
            outputs = schedule.outputs
            if buffer.number not in outputs[buffer.position : buffer.position + 1]:
                fail(
                    f"schedule: output {buffer.position} is not buffer {buffer.number}"
                )


class _Order:
    """Walk over the kernels in order, with what has been written so far."""

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
                fail(f"schedule: buffer {number} is checked at commit, written later")

    def _check_kernel(self, position: int, kernel: Step) -> None:
        where = f"schedule, position {position}: kernel {kernel.name}"
        if kernel.fails and position >= self.schedule.commit:
            fail(f"{where} can fail after the commit at {self.schedule.commit}")
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
            fail(f"{where} reads buffer {buffer.number} before it is written")
        if buffer.kind in ("stored", "carry") and buffer.number in self.written:
            what = f"{buffer.kind} buffer {buffer.number}"
            fail(f"{where} reads {what}, already overwritten")

    def _check_write(
        self, where: str, position: int, buffer: Buffer, per_chunk: bool
    ) -> None:
        if buffer.kind in ("input", "constant"):
            fail(f"{where} writes {buffer.kind} buffer {buffer.number}")
        if buffer.kind == "stored" and position < self.schedule.commit:
            fail(
                f"{where} writes stored buffer {buffer.number} before the commit "
                f"at {self.schedule.commit}"
            )
        if per_chunk != (buffer.kind == "slots"):
            fail(f"{where}: slots and buffer {buffer.number} do not go together")
        if buffer.kind in ("slots", "carry") and buffer.number in self.written:
            fail(f"{where} writes {buffer.kind} {buffer.number} a second time")

    def _check_finish(self, where: str, position: int, kernel: FinishKernel) -> None:
        slots, out = (operand.buffer for operand in kernel.operands)
        maker = kernel.chunks_of
        if not 0 <= maker < position or self.writer.get(slots) != maker:
            fail(f"{where} finishes slots {slots} of kernel {maker}, which has none")
        if slots in self.finished:
            fail(f"{where} finishes slots {slots} a second time")
        self.finished.add(slots)
        made = self.schedule.kernels[maker]
        for operand in made.operands:
            if operand.buffer == slots and operand.slot != kernel.extent:
                fail(f"{where}: slots of {operand.slot} elements, not {kernel.extent}")
        # With one chunk the maker writes `out` itself.
        if self.touched.get(out, -1) >= maker:
            fail(f"{where}: buffer {out} is used between the slots and their finish")
        stored = self.schedule.buffers[out].kind == "stored"
        if stored and maker < self.schedule.commit:
            fail(f"{where}: its slots are made before the commit, {out} is stored")

    def _check_end(self, buffer: Buffer) -> None:
        number = buffer.number
        if buffer.kind == "output" and number not in self.written:
            fail(f"schedule: output buffer {number} is never written")
        if buffer.kind == "slots" and number in self.written - self.finished:
            fail(f"schedule: slots {number} are never finished")
        if number not in self.schedule.outputs:
            return
        if buffer.kind == "slots":
            fail(f"schedule: slots {number} are an output")
        if buffer.kind == "temporary" and number not in self.written:
            fail(f"schedule: output buffer {number} is never written")
        if buffer.kind == "stored" and number in self.written:
            fail(f"schedule: output is stored buffer {number}, which is overwritten")


def _check_graph(schedule: Schedule, graph: Graph) -> None:
    """Check that outputs, inputs and updates of the graph have their buffers."""
    if len(schedule.outputs) != len(graph.outputs):
        fail(f"schedule: {len(schedule.outputs)} outputs of {len(graph.outputs)}")
    for number, tensor in zip(schedule.outputs, graph.outputs, strict=True):
        buffer = schedule.buffers[number]
        if (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            fail(f"schedule: output buffer {number} does not have type {tensor.type}")
    for buffer in schedule.buffers:
        if buffer.kind == "input":
            _check_input(buffer, graph)
    _check_updates(schedule, {leaf for leaf, _ in graph.updates})


def _check_input(buffer: Buffer, graph: Graph) -> None:
    if buffer.position >= len(graph.inputs):
        fail(f"schedule: buffer {buffer.number} is input {buffer.position}: none such")
    leaf = graph.inputs[buffer.position]
    if (buffer.shape, buffer.dtype) != (leaf.shape, leaf.dtype):
        fail(f"schedule: input buffer {buffer.number} does not have type {leaf.type}")


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
        fail(f"schedule: {leaf.name} {what}")
