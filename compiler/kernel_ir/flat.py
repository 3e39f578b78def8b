"""A Schedule with everything nested in it, in one row: kernels and marks between them.

Control flow becomes marks, of which each is one instruction later: begin and end of a
loop, a jump, a copy. Kernels of bodies name buffers of one list, which starts with
those of the schedule itself. A buffer that moves through a sequence is a *window*: it
begins where its origin does, and the loop moves the words that hold its address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from staticgrad.compiler.kernel_ir.kernels import FinishKernel, Kernel, Site
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

MarkKind: TypeAlias = Literal[
    "copy",
    "enter",
    "again",
    "unless",
    "limit",
    "jump",
    "clear",
    "next",
    "slot",
    "note",
]
Path: TypeAlias = tuple[tuple[int, int], ...]
"""Kernel and body, from the outermost schedule inwards."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One instruction of control flow; `place` counts kernels and marks.

    "copy": buffer to buffer `other`. "enter": the counter in `buffer` and the windows
    of loop `loop` to the start, past `target` if there are no steps. "again": one step
    further, back behind `target`, until the end, if it is not `endless`. "unless": go
    behind `target` unless `buffer` holds `value`. "limit": report `site` and go behind
    `target` if `buffer` is `value`. "jump": go behind `target`. `early` marks stand
    before the commit.

    Of a replay: "clear" sets the beginning of the state `buffer` to zero. "next"
    decides by it, for as many steps as `other` says, and sets the position `third`: a
    step forward comes behind it, what else there is behind `targets` (back, store,
    restore, done).
    "slot" copies `buffer` to the place in `other` that the state `third` names, or with
    `reverse` from there. "note" decides by the state in `buffer` whether and where to
    keep the state of a repetition, and goes behind `target` if it is not kept.
    """

    kind: MarkKind
    place: int
    buffer: int = -1
    other: int = -1
    value: int = 0
    target: int = -1
    loop: int = -1
    length: Dim = 0
    reverse: bool = False
    endless: bool = False
    early: bool = True
    site: Site | None = None
    third: int = -1
    targets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Flat:
    """A Schedule of kernels only, with the marks between them.

    Kernel k has the place ``places[k]``, the commit lies before place `commit`.
    ``origin[b]`` is the buffer at whose address b begins; ``moves[b]`` are pairs of a
    loop and the elements by which each step moves b. ``homes[b]`` is where a plan has
    b: the path to a body and the number there. ``ends[p]`` is the last place of kernel
    p of the outermost schedule.
    """

    schedule: Schedule
    places: tuple[int, ...]
    marks: tuple[Mark, ...]
    commit: int
    origin: tuple[int, ...]
    moves: tuple[tuple[tuple[int, Dim], ...], ...]
    homes: tuple[tuple[Path, int] | None, ...]
    kernel_homes: tuple[tuple[Path, int], ...]
    ends: Mapping[tuple[Path, int], int]
    size: int


def flatten(schedule: Schedule) -> Flat:
    """`schedule` and all that is nested in it."""
    flattening = _Flattening(schedule)
    flattening.walk(schedule, list(range(len(schedule.buffers))), ())
    return flattening.finish()


class _Flattening:
    """Kernels, marks and buffers found so far."""

    def __init__(self, root: Schedule) -> None:
        self.root = root
        self.buffers: list[Buffer] = list(root.buffers)
        count = len(root.buffers)
        self.origin = list(range(count))
        self.moves: list[tuple[tuple[int, Dim], ...]] = [()] * count
        self.homes: list[tuple[Path, int] | None] = [((), b) for b in range(count)]
        self.kernels: list[Kernel] = []
        self.kernel_homes: list[tuple[Path, int]] = []
        self.places: list[int] = []
        self.marks: list[Mark] = []
        self.ends: dict[tuple[Path, int], int] = {}
        self.loops = 0
        self.place = 0
        self.commit = -1
        self.flat_commit = 0

    def walk(self, schedule: Schedule, numbers: Sequence[int], path: Path) -> None:
        """Add the kernels of a schedule whose buffers have these `numbers`."""
        flat_of: dict[int, int] = {}
        for position, kernel in enumerate(schedule.kernels):
            if not path and position == schedule.commit:
                self._note_commit()
            if isinstance(kernel, ControlKernel):
                buffers = [numbers[o.buffer] for o in kernel.operands]
                self._control(kernel, buffers, path, position)
            else:
                flat_of[position] = len(self.kernels)
                self._kernel(kernel, numbers, flat_of, (path, position))
            self.ends[path, position] = self.place - 1
        if not path and self.commit < 0:
            self._note_commit()

    def finish(self) -> Flat:
        """What was found."""
        schedule = replace(
            self.root,
            buffers=tuple(self.buffers),
            kernels=tuple(self.kernels),
            commit=self.flat_commit,
        )
        marks = tuple(
            replace(mark, early=mark.place < self.commit) for mark in self.marks
        )
        return Flat(
            schedule=schedule,
            places=tuple(self.places),
            marks=marks,
            commit=self.commit,
            origin=tuple(self.origin),
            moves=tuple(self.moves),
            homes=tuple(self.homes),
            kernel_homes=tuple(self.kernel_homes),
            ends=self.ends,
            size=self.place,
        )

    def _note_commit(self) -> None:
        self.commit, self.flat_commit = self.place, len(self.kernels)

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
        self.kernels.append(moved)
        self.kernel_homes.append(home)
        self.places.append(self.place)
        self.place += 1

    def _mark(self, kind: MarkKind, **fields: Any) -> int:
        """The number of a new mark."""
        self.marks.append(Mark(kind, self.place, **fields))
        self.place += 1
        return len(self.marks) - 1

    def _aim(self, mark: int, target: int) -> None:
        self.marks[mark] = replace(self.marks[mark], target=target)

    # Control flow

    def _control(
        self, kernel: ControlKernel, buffers: Sequence[int], path: Path, position: int
    ) -> None:
        for source, target in kernel.starts:
            self._mark("copy", buffer=buffers[source], other=buffers[target])
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
        index = buffers[kernel.counter]
        jumps: list[int] = []
        for body in range(len(kernel.bodies) - 1):
            test = self._mark("unless", buffer=index, value=body)
            self._body(kernel, buffers, (*path, (position, body)))
            jumps.append(self._mark("jump"))
            self._aim(test, jumps[-1])
        last = len(kernel.bodies) - 1
        self._body(kernel, buffers, (*path, (position, last)))
        join = self._mark("jump")
        for jump in (*jumps, join):
            self._aim(jump, join)

    def _loop(
        self, kernel: ControlKernel, buffers: Sequence[int], path: Path, position: int
    ) -> None:
        loop = self._new_loop()
        counter = buffers[kernel.counter]
        fields = {
            "buffer": counter, "loop": loop, "length": kernel.length,
            "reverse": kernel.reverse,
        }  # fmt: skip
        enter = self._mark("enter", **fields)
        self._body(kernel, buffers, (*path, (position, 0)), loop)
        again = self._mark("again", target=enter, **fields)
        self._aim(enter, again)

    def _repeat(
        self, kernel: ControlKernel, buffers: Sequence[int], path: Path, position: int
    ) -> None:
        steps = buffers[kernel.counter]
        if kernel.kept:
            self._mark("clear", buffer=buffers[kernel.state])
        # A loop that moves nothing, and that its condition ends.
        fields = {"buffer": steps, "loop": self._new_loop(), "endless": True}
        enter = self._mark("enter", **fields)
        self._body(kernel, buffers, (*path, (position, 0)))
        tests = [self._mark("unless", buffer=buffers[kernel.going], value=1)]
        if kernel.limit >= 0:
            site = kernel.sites[0]
            tests.append(
                self._mark("limit", buffer=steps, value=kernel.limit, site=site)
            )
        self._keep(kernel, buffers)
        self._body(kernel, buffers, (*path, (position, 1)))
        again = self._mark("again", target=enter, **fields)
        for test in (enter, *tests):
            self._aim(test, again)

    def _keep(self, kernel: ControlKernel, buffers: Sequence[int]) -> None:
        """Snapshots of a loop while it runs forward."""
        if not kernel.kept:
            return
        state = buffers[kernel.state]
        last = note = self._mark("note", buffer=state, value=kernel.snapshots)
        for carry, room in kernel.kept:
            last = self._mark(
                "slot", buffer=buffers[carry], other=buffers[room], third=state
            )
        self._aim(note, last)

    def _replay(
        self, kernel: ControlKernel, buffers: Sequence[int], path: Path, position: int
    ) -> None:
        loop, state = self._new_loop(), buffers[kernel.state]
        # the state is cleared unless it is that of a loop which noted snapshots
        noted = kernel.noted
        # what goes on behind `begin` decides next
        begin = self._mark("jump") if noted else self._mark("clear", buffer=state)
        if noted:
            self._aim(begin, begin)
        decide = self._mark(
            "next", buffer=state, other=buffers[kernel.steps],
            third=buffers[kernel.counter], loop=loop, value=kernel.snapshots,
        )  # fmt: skip
        self._body(kernel, buffers, (*path, (position, 0)), loop)
        ends = [self._mark("jump")]
        self._body(kernel, buffers, (*path, (position, 1)), loop)
        ends.append(self._mark("jump"))
        for reverse in (False, True):
            for carry, room in kernel.kept:
                self._mark(
                    "slot", buffer=buffers[carry], other=buffers[room], third=state,
                    reverse=reverse,
                )  # fmt: skip
            ends.append(self._mark("jump"))
        for end in ends:
            self._aim(end, begin)
        self.marks[decide] = replace(self.marks[decide], targets=tuple(ends))

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
    """A Plan over the buffers and kernels of a Flat.

    `offsets` count from the start of the whole arena, -1 for what is not in it;
    `last[b]` is the last place at which b is used. `regions` are those of all plans,
    each with its first kernel and the one behind its last.
    """

    chunks: tuple[tuple[int, int], ...]
    bytes: tuple[int, ...]
    offsets: tuple[int, ...]
    last: tuple[int, ...]
    regions: tuple[tuple[int, int, Region], ...]


def spread(flat: Flat, plan: Plan) -> FlatPlan:
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
    """The plan of each body, and where its arena begins."""
    found[path] = (plan, start)
    for position, bodies in enumerate(plan.bodies):
        kernel = plan.schedule.kernels[position]
        if not isinstance(kernel, ControlKernel):
            continue
        arena = kernel.operands[kernel.arena].buffer
        for number, body in enumerate(bodies):
            place = start + plan.offsets[arena]
            _find_plans(body, (*path, (position, number)), place, found)
