"""A Schedule with everything nested in it, in one row of instructions.

Control flow becomes instructions between the calls of kernels: begin and end of a loop,
a jump, a copy. Kernels of bodies name buffers of one list, which starts with those of
the schedule itself. A buffer that moves through a sequence is a *window*: it
begins where its origin does, and the loop moves the words that hold its address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from staticgrad.compiler.kernel_ir.instruction_set import (
    Again,
    CallKernel,
    Clear,
    CommitPoint,
    Copy,
    Enter,
    Instruction,
    Jump,
    JumpTarget,
    Limit,
    Next,
    Note,
    Slot,
    Unless,
)
from staticgrad.compiler.kernel_ir.kernels import FinishKernel, Kernel
from staticgrad.compiler.kernel_ir.plan import Plan, Region
from staticgrad.compiler.kernel_ir.schedule import (
    Buffer,
    ControlKernel,
    Port,
    Schedule,
    with_buffers,
)
from staticgrad.errors import CompilerBug
from staticgrad.ir.size import Dim, evaluate

Path: TypeAlias = tuple[tuple[int, int], ...]
"""Kernel and body, from the outermost schedule inwards."""


@dataclass(frozen=True, slots=True)
class Flat:
    """A Schedule of kernels only, with the instructions that run them.

    ``origin[b]`` is the buffer at whose address b begins; ``moves[b]`` are pairs of a
    loop and the elements by which each step moves b. ``homes[b]`` is where a plan has
    b: the path to a body and the number there. ``ends[p]`` is the place of the last
    instruction of a kernel, given by the path to its body and its number there.
    """

    schedule: Schedule
    instructions: tuple[Instruction | JumpTarget, ...]
    origin: tuple[int, ...]
    moves: tuple[tuple[tuple[int, Dim], ...], ...]
    homes: tuple[tuple[Path, int] | None, ...]
    kernel_homes: tuple[tuple[Path, int], ...]
    ends: Mapping[tuple[Path, int], int]


def flatten(schedule: Schedule) -> Flat:
    """Return `schedule` and all that is nested in it."""
    flattening = _Flattening(schedule)
    flattening.walk(schedule, list(range(len(schedule.buffers))), ())
    return flattening.finish()


class _Flattening:
    """Kernels, instructions and buffers found so far."""

    def __init__(self, root: Schedule) -> None:
        self.root = root
        self.buffers: list[Buffer] = list(root.buffers)
        count = len(root.buffers)
        self.origin = list(range(count))
        self.moves: list[tuple[tuple[int, Dim], ...]] = [()] * count
        self.homes: list[tuple[Path, int] | None] = [((), b) for b in range(count)]
        self.kernels: list[Kernel] = []
        self.kernel_homes: list[tuple[Path, int]] = []
        self.instructions: list[Instruction | JumpTarget] = []
        self.ends: dict[tuple[Path, int], int] = {}
        self.loops = self.labels = self.limits = 0
        self.commit = -1

    def walk(self, schedule: Schedule, numbers: Sequence[int], path: Path) -> None:
        """Add the kernels of a schedule whose buffers have these `numbers`."""
        flat_of: dict[int, int] = {}
        for position, kernel in enumerate(schedule.kernels):
            if not path and position == schedule.commit:
                self._commit()
            if isinstance(kernel, ControlKernel):
                buffers = [numbers[o.buffer] for o in kernel.operands]
                self._control(kernel, buffers, path, position)
            else:
                flat_of[position] = len(self.kernels)
                self._kernel(kernel, numbers, flat_of, (path, position))
            self.ends[path, position] = len(self.instructions) - 1
        if not path and self.commit < 0:
            self._commit()

    def finish(self) -> Flat:
        """Return the flattened schedule."""
        schedule = replace(
            self.root,
            buffers=tuple(self.buffers),
            kernels=tuple(self.kernels),
            commit=self.commit,
        )
        return Flat(
            schedule=schedule,
            instructions=tuple(self.instructions),
            origin=tuple(self.origin),
            moves=tuple(self.moves),
            homes=tuple(self.homes),
            kernel_homes=tuple(self.kernel_homes),
            ends=self.ends,
        )

    def _commit(self) -> None:
        self.commit = len(self.kernels)
        self.instructions.append(CommitPoint())

    def _kernel(
        self,
        kernel: Kernel,
        numbers: Sequence[int],
        flat_of: Mapping[int, int],
        home: tuple[Path, int],
    ) -> None:
        moved = with_buffers(kernel, numbers.__getitem__)
        if isinstance(moved, FinishKernel):
            moved = replace(moved, chunks_of=flat_of[moved.chunks_of])
        self.instructions.append(CallKernel(len(self.kernels)))
        self.kernels.append(moved)
        self.kernel_homes.append(home)

    def _new_label(self) -> int:
        self.labels += 1
        return self.labels - 1

    def _place(self, *labels: int) -> None:
        """Jumps to `labels` go on behind the last instruction."""
        self.instructions += map(JumpTarget, labels)

    # Control flow

    def _control(
        self, kernel: ControlKernel, buffers: Sequence[int], path: Path, position: int
    ) -> None:
        for source, target in kernel.starts:
            self.instructions.append(Copy(buffers[source], buffers[target]))
        parts = {
            "branch": self._branch,
            "loop": self._loop,
            "repeat": self._repeat,
            "replay": self._replay,
        }
        if kernel.form not in parts:
            raise CompilerBug(f"control flow of the unknown form {kernel.form}")
        parts[kernel.form](kernel, buffers, path, position)

    def _branch(
        self, kernel: ControlKernel, buffers: Sequence[int], path: Path, position: int
    ) -> None:
        join, last = self._new_label(), len(kernel.bodies) - 1
        for body in range(last):
            other = self._new_label()
            self._unless(buffers[kernel.counter], body, other)
            self._body(kernel, buffers, (*path, (position, body)))
            self.instructions.append(Jump(join))
            self._place(other)
        self._body(kernel, buffers, (*path, (position, last)))
        self.instructions.append(Jump(join))
        self._place(join)

    def _loop(
        self, kernel: ControlKernel, buffers: Sequence[int], path: Path, position: int
    ) -> None:
        loop, start, end = self._new_loop(), self._new_label(), self._new_label()
        turn = (buffers[kernel.counter], loop, kernel.length, kernel.reverse)
        self.instructions.append(Enter(*turn, end))
        self._place(start)
        self._body(kernel, buffers, (*path, (position, 0)), loop)
        self.instructions.append(Again(*turn, start))
        self._place(end)

    def _repeat(
        self, kernel: ControlKernel, buffers: Sequence[int], path: Path, position: int
    ) -> None:
        steps, start, end = (
            buffers[kernel.counter],
            self._new_label(),
            self._new_label(),
        )
        if kernel.kept:
            self.instructions.append(Clear(buffers[kernel.state]))
        # A loop that moves nothing, and that its condition ends.
        turn = (steps, self._new_loop(), None, False)
        self.instructions.append(Enter(*turn, end))
        self._place(start)
        self._body(kernel, buffers, (*path, (position, 0)))
        self._unless(buffers[kernel.going], 1, end)
        if kernel.limit >= 0:
            site = kernel.sites[0]
            limit = Limit(steps, kernel.limit, self.limits, site, end)
            self.instructions.append(limit)
            self.limits += 1
        if kernel.kept:
            self._keep(kernel, buffers)
        self._body(kernel, buffers, (*path, (position, 1)))
        self.instructions.append(Again(*turn, start))
        self._place(end)

    def _unless(self, buffer: int, value: int, target: int) -> None:
        dtype = self.buffers[buffer].dtype
        self.instructions.append(Unless(buffer, dtype, value, target))

    def _keep(self, kernel: ControlKernel, buffers: Sequence[int]) -> None:
        """Snapshots of a loop while it runs forward."""
        past = self._new_label()
        note = Note(buffers[kernel.state], kernel.snapshots, past)
        self.instructions.append(note)
        self._slots(kernel, buffers, back=False)
        self._place(past)

    def _slots(self, kernel: ControlKernel, buffers: Sequence[int], back: bool) -> None:
        state = buffers[kernel.state]
        for carry, room in kernel.kept:
            self.instructions.append(Slot(buffers[carry], buffers[room], state, back))

    def _replay(
        self, kernel: ControlKernel, buffers: Sequence[int], path: Path, position: int
    ) -> None:
        loop, state = self._new_loop(), buffers[kernel.state]
        decide, *targets = (self._new_label() for _ in range(5))
        # the state is cleared unless it is that of a loop which noted snapshots
        begin = Jump(decide) if kernel.noted else Clear(state)
        self.instructions.append(begin)
        self._place(decide)
        steps, counter = buffers[kernel.steps], buffers[kernel.counter]
        self.instructions.append(
            Next(
                state, steps, counter, loop, kernel.snapshots, kernel.noted,
                tuple(targets),
            )
        )  # fmt: skip
        parts = (
            partial(self._body, kernel, buffers, (*path, (position, 0)), loop),
            partial(self._body, kernel, buffers, (*path, (position, 1)), loop),
            partial(self._slots, kernel, buffers, back=False),
            partial(self._slots, kernel, buffers, back=True),
        )
        for part, behind in zip(parts, targets, strict=True):
            part()
            self.instructions.append(Jump(decide))
            self._place(behind)

    def _new_loop(self) -> int:
        self.loops += 1
        return self.loops - 1

    def _body(
        self, kernel: ControlKernel, buffers: Sequence[int], path: Path, loop: int = -1
    ) -> None:
        body = path[-1][1]
        schedule = kernel.bodies[body]
        ports = {port.inner: port for port in kernel.ports[body]}
        numbers = [
            self._port(ports[b.number], b, buffers, loop)
            if b.number in ports
            else self._add(b, (path, b.number))
            for b in schedule.buffers
        ]
        self.walk(schedule, numbers, path)

    def _port(
        self, port: Port, inner: Buffer, buffers: Sequence[int], loop: int
    ) -> int:
        outer = buffers[port.operand]
        if port.step == 0:
            return outer
        window = self._add(replace(inner, kind="temporary", position=-1), None)
        self.origin[window] = self.origin[outer]
        self.moves[window] = (*self.moves[outer], (loop, port.step))
        return window

    def _add(self, buffer: Buffer, home: tuple[Path, int] | None) -> int:
        number = len(self.buffers)
        self.buffers.append(replace(buffer, number=number))
        self.origin.append(number)
        self.moves.append(())
        self.homes.append(home)
        return number


@dataclass(frozen=True, slots=True)
class FlatPlan:
    """Plan over the buffers and kernels of a Flat.

    `offsets` count from the start of the whole arena, -1 for what is not in it;
    `last[b]` is the place of the last instruction that uses b. `regions` are those of
    all plans, each with its first kernel and the one behind its last.
    """

    chunks: tuple[tuple[int, int], ...]
    bytes: tuple[int, ...]
    offsets: tuple[int, ...]
    last: tuple[int, ...]
    regions: tuple[tuple[int, int, Region], ...]


def flat_plan(flat: Flat, plan: Plan) -> FlatPlan:
    """`plan`, with the plans of bodies, for `flat`."""
    plans: dict[Path, tuple[Plan, int]] = {}
    _find_plans(plan, (), 0, plans)
    values = dict(plan.values)
    chunks = tuple(plans[path][0].chunks[k] for path, k in flat.kernel_homes)
    sizes, offsets, last = [], [], []
    for buffer, home in zip(flat.schedule.buffers, flat.homes, strict=True):
        if home is None:
            sizes.append(evaluate(buffer.elements, values) * buffer.dtype.itemsize)
            offsets.append(-1)
            last.append(-1)
            continue
        path, number = home
        own, start = plans[path]
        sizes.append(own.bytes[number])
        inside = own.offsets[number]
        offsets.append(-1 if inside < 0 else start + inside)
        end = own.last[number]
        last.append(-1 if end < 0 else flat.ends[path, end])
    kernels = {home: number for number, home in enumerate(flat.kernel_homes)}
    regions = tuple(
        (kernels[path, region.first], kernels[path, region.stop - 1] + 1, region)
        for path, (own, _) in plans.items()
        for region in own.regions
    )
    return FlatPlan(chunks, tuple(sizes), tuple(offsets), tuple(last), regions)


def _find_plans(
    plan: Plan, path: Path, start: int, found: dict[Path, tuple[Plan, int]]
) -> None:
    """Collect the plan of each body, and the offset of its arena."""
    found[path] = (plan, start)
    for position, bodies in enumerate(plan.bodies):
        kernel = plan.schedule.kernels[position]
        if not isinstance(kernel, ControlKernel):
            continue
        arena = kernel.operands[kernel.arena].buffer
        for number, body in enumerate(bodies):
            place = start + plan.offsets[arena]
            _find_plans(body, (*path, (position, number)), place, found)
