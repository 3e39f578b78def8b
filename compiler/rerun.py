"""Kernels that run again, so that what they make need not be kept meanwhile.

`rerun` takes a Schedule whose kernels do not write in place yet, and a Choice: up to
the kernel `turn` everything runs as before; behind it, whoever reads a dropped buffer
finds the kernels that make it run again right before, into a new buffer. What those
read is, in this order: still alive; kept, that is, alive for this purpose; or made
again in the same way. A buffer that was made again serves all that follows until its
last use.

The same Kernel runs, hence the same bits, of random numbers too. Nothing runs again
that can fail behind the commit, that writes a leaf, or that reads a leaf which has been
overwritten: `rerun` then raises Stuck, with the buffer that has to be kept.
"""

from __future__ import annotations

from dataclasses import replace

from staticgrad.compiler.kernels import FinishKernel
from staticgrad.compiler.lower import with_makers
from staticgrad.compiler.schedule import (
    Schedule,
    Step,
    reads,
    with_buffers,
    writes,
)
from staticgrad.ir.values import dataclass

ARENA = ("temporary", "slots", "arena")
FIXED = ("stored", "carry")


@dataclass(frozen=True, slots=True)
class Choice:
    """What is dropped and what is kept at the kernel `turn`."""

    dropped: frozenset[int]
    kept: frozenset[int]
    turn: int


class Stuck(Exception):
    """A buffer cannot be made again."""

    def __init__(self, buffer: int) -> None:
        super().__init__(f"buffer {buffer}")
        self.buffer = buffer


class TooLong(Exception):
    """More kernels would run than are allowed."""


class Uses:
    """Who makes and who reads each buffer of a Schedule, by position.

    `makers[b]` are the kernels that have to run to make b: for the result of a
    FinishKernel the one that writes its slots, whose finishes run with it.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.makers: dict[int, list[int]] = {}
        self.written: dict[int, list[int]] = {}
        self.touched: dict[int, list[int]] = {}
        self.finishes: dict[int, list[int]] = {}
        for position, kernel in enumerate(schedule.kernels):
            maker = position
            if isinstance(kernel, FinishKernel):
                maker = kernel.chunks_of
                self.finishes.setdefault(maker, []).append(position)
            for buffer in dict.fromkeys(writes(kernel)):
                self.makers.setdefault(buffer, []).append(maker)
                self.written.setdefault(buffer, []).append(position)
            for buffer in dict.fromkeys(o.buffer for o in kernel.operands):
                self.touched.setdefault(buffer, []).append(position)
        fixed = {b.number for b in schedule.buffers if b.kind in FIXED}
        self.writes_leaf = {
            maker
            for b in fixed & self.makers.keys()
            for maker in (*self.makers[b], *self.written[b])
        }

    def can_repeat(self, buffer: int) -> bool:
        """Whether the makers of a temporary may run again at all.

        They write no leaf, and all of them ran before anybody else read the buffer.
        """
        if self.schedule.buffers[buffer].kind != "temporary":
            return False
        places = self.written.get(buffer)
        if not places or self.writes_leaf.intersection(self.makers[buffer]):
            return False
        others = [p for p in self.touched[buffer] if p not in places]
        return not others or min(others) > max(places)


def rerun(uses: Uses, choice: Choice, most: int = 1 << 30) -> Schedule:
    """The schedule of `uses` with kernels that make dropped buffers when needed.

    Raises Stuck for a dropped buffer that cannot be made again, TooLong past `most`
    kernels.
    """
    return _Rerun(uses, choice, most).run()


class _Rerun:
    """The new schedule while it is made; `name[b]` is what serves as b now."""

    def __init__(self, uses: Uses, choice: Choice, most: int) -> None:
        self.most = most
        self.uses = uses
        self.schedule = schedule = uses.schedule
        self.choice = choice
        self.buffers = list(schedule.buffers)
        self.kernels: list[Step] = []
        self.again: list[int] = []
        self.name: dict[int, int] = {}
        self.burst: set[int] = set()

    def run(self) -> Schedule:
        commit, old = len(self.schedule.kernels), set(self.schedule.again)
        for position, kernel in enumerate(self.schedule.kernels):
            if position > self.choice.turn:
                self.burst = set()
                for buffer in dict.fromkeys(reads(kernel)):
                    try:
                        self._ensure(buffer, position)
                    except Stuck as inner:
                        raise Stuck(buffer) from inner
            if position == self.schedule.commit:
                commit = len(self.kernels)
            if position in old:
                self.again.append(len(self.kernels))
            self.kernels.append(_renamed(kernel, self.name))
        if self.schedule.commit == len(self.schedule.kernels):
            commit = len(self.kernels)
        return replace(
            self.schedule,
            buffers=tuple(self.buffers),
            kernels=with_makers(self.kernels),
            commit=commit,
            again=tuple(self.again),
        )

    def _ensure(self, buffer: int, position: int) -> None:
        """Let `buffer` be there for the kernel at `position`."""
        stack = [buffer]
        entered: set[int] = set()
        while stack:
            top = stack[-1]
            there = self._is_there(top, position)
            missing = [] if there else self._missing(top, position)
            if there:
                stack.pop()
            elif not missing:
                self._make(top)
            elif top in entered:
                raise Stuck(top)
            else:
                entered.add(top)
                stack += missing

    def _is_there(self, buffer: int, position: int) -> bool:
        kind = self.schedule.buffers[buffer].kind
        if kind in FIXED:
            if any(p < position for p in self.uses.written.get(buffer, ())):
                raise Stuck(buffer)
            return True
        if kind not in ARENA or buffer in self.burst:
            return True
        if self.uses.touched[buffer][0] > self.choice.turn:
            return True  # made behind the turn, by its own kernel
        if buffer not in self.name and buffer in self.choice.kept:
            return True
        gone = buffer in self.choice.dropped and buffer not in self.name
        return not gone and self.uses.touched[buffer][-1] >= position

    def _missing(self, buffer: int, position: int) -> list[int]:
        """What has to be made before `buffer` can be."""
        if not self.uses.can_repeat(buffer):
            raise Stuck(buffer)
        makers = self.uses.makers[buffer]
        kernels = [self.schedule.kernels[k] for k in makers]
        if any(k.fails for k in kernels) and position >= self.schedule.commit:
            raise Stuck(buffer)
        wanted = dict.fromkeys(b for k in kernels for b in reads(k) if b != buffer)
        return [b for b in wanted if not self._is_there(b, position)]

    def _make(self, buffer: int) -> None:
        """Run the makers of `buffer` again."""
        if len(self.kernels) > self.most:
            raise TooLong
        own: dict[int, int] = {}
        makers = self.uses.makers[buffer]
        for maker in dict.fromkeys(makers):
            outputs = list(writes(self.schedule.kernels[maker]))
            finishes = self.uses.finishes.get(maker, [])
            outputs += [b for p in finishes for b in writes(self.schedule.kernels[p])]
            for output in outputs:
                if output not in own:
                    own[output] = self._new_buffer(output)
            for place in (maker, *finishes):
                self.again.append(len(self.kernels))
                names = self.name | own
                self.kernels.append(_renamed(self.schedule.kernels[place], names))
        for output, number in own.items():
            if set(self.uses.makers[output]) <= set(makers) and self._is_early(output):
                self.name[output] = number
                self.burst.add(output)

    def _is_early(self, buffer: int) -> bool:
        """Whether its own kernels, with the finishes of slots, all ran by the turn.

        Where the turn is between the two, the finish behind it writes what it did.
        """
        slots = self.schedule.buffers[buffer].kind == "slots"
        places = self.uses.touched if slots else self.uses.written
        return places[buffer][-1] <= self.choice.turn

    def _new_buffer(self, like: int) -> int:
        old, number = self.schedule.buffers[like], len(self.buffers)
        kind = "temporary" if old.kind == "output" else old.kind
        self.buffers.append(replace(old, number=number, kind=kind, position=-1))
        return number


def _renamed(kernel: Step, name: dict[int, int]) -> Step:
    if not any(o.buffer in name for o in kernel.operands):
        return kernel
    return with_buffers(kernel, lambda buffer: name.get(buffer, buffer))
