"""Rematerialisation by running kernels again, so that results need not be kept.

A Recipe lists the kernels that make a buffer again, the buffers that they read, and the
last position in the Schedule at which they can. `rerun` builds the Schedule of given
tasks: task k is kernel k, for the first time; past the kernels, task ``count + b`` runs
those that make buffer b, into a new buffer, which whoever comes later reads.

The same Kernel runs, hence the same bits, of random numbers too. Nothing runs again
that can fail behind the commit, that writes a leaf, or that reads a leaf which has been
overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from staticgrad.compiler.kernel_ir.kernels import FinishKernel
from staticgrad.compiler.kernel_ir.schedule import (
    Schedule,
    Step,
    reads,
    with_buffers,
    with_makers,
    writes,
)

ARENA = ("temporary", "slots", "arena")
FIXED = ("stored", "carry")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe for recomputing a buffer.

    `kernels` run, each with the finishes of its slots; they read `sources`, of the
    arena, and make `results` anew, and in passing `others`, which nobody reads.
    `deadline` is the last kernel before which they may, if the sources are there.
    """

    kernels: tuple[int, ...]
    sources: tuple[int, ...]
    results: tuple[int, ...]
    others: tuple[int, ...]
    deadline: int


class Uses:
    """Makers and users of each buffer of a Schedule, by position.

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
        kinds = [b.kind for b in schedule.buffers]
        self.arena = [kinds[b] in ARENA for b in range(len(kinds))]
        self.ends = {*schedule.outputs, *schedule.finite}
        fixed = {b for b in self.makers if kinds[b] in FIXED}
        self.writes_leaf = {
            maker for b in fixed for maker in (*self.makers[b], *self.written[b])
        }

    def recipes(self) -> dict[int, Recipe]:
        """Return the recipes of reproducible buffers, in the order of their making."""
        found: dict[int, Recipe] = {}
        able = (b for b in self.written if self._can_repeat(b))
        for buffer in sorted(able, key=lambda b: (self.written[b][-1], b)):
            recipe = self._recipe(buffer)
            if recipe is not None:
                found[buffer] = recipe
        return found

    def _can_repeat(self, buffer: int) -> bool:
        """Whether the makers of a temporary may run again at all.

        They write no leaf, and all of them ran before anybody else read the buffer.
        """
        if self.schedule.buffers[buffer].kind != "temporary" or buffer in self.ends:
            return False
        places = self.written[buffer]
        if self.writes_leaf.intersection(self.makers[buffer]):
            return False
        others = [p for p in self.touched[buffer] if p not in places]
        return not others or min(others) > max(places)

    def _recipe(self, buffer: int) -> Recipe | None:
        """Return a recipe; None where a kernel changes buffers made by others."""
        makers = dict.fromkeys(self.makers[buffer])
        places = [p for m in makers for p in (m, *self.finishes.get(m, ()))]
        kernels = [self.schedule.kernels[p] for p in places]
        written = dict.fromkeys(b for kernel in kernels for b in writes(kernel))
        results = [b for b in written if self._is_result(b, makers)]
        changed = {o.buffer for k in kernels for o in k.operands if o.mode == "update"}
        if not changed <= set(results):
            return None
        outside = dict.fromkeys(
            b for kernel in kernels for b in reads(kernel) if b not in written
        )
        sources = [b for b in outside if self.arena[b] and b in self.written]
        last = [
            min(*self.makers[b], *self.written[b])
            for b in outside
            if self.schedule.buffers[b].kind in FIXED and b in self.written
        ]
        if any(kernel.fails for kernel in kernels):
            last.append(self.schedule.commit - 1)
        others = (b for b in written if b not in results)
        return Recipe(
            kernels=tuple(places),
            sources=tuple(sources),
            results=tuple(results),
            others=tuple(others),
            deadline=min(last, default=len(self.schedule.kernels)),
        )

    def _is_result(self, buffer: int, makers: Iterable[int]) -> bool:
        """Whether `makers` make all of a temporary."""
        kind = self.schedule.buffers[buffer].kind
        return kind == "temporary" and set(self.makers[buffer]) <= set(makers)


def rerun(uses: Uses, recipes: dict[int, Recipe], tasks: Sequence[int]) -> Schedule:
    """Return the schedule that runs `tasks`."""
    made = _Rerun(uses, recipes)
    for task in tasks:
        made.run(task)
    return made.schedule()


class _Rerun:
    """Construction of the schedule; `name[b]` is the current copy of b."""

    def __init__(self, uses: Uses, recipes: dict[int, Recipe]) -> None:
        self.uses = uses
        self.recipes = recipes
        self.given = uses.schedule
        self.buffers = list(self.given.buffers)
        self.kernels: list[Step] = []
        self.again: list[int] = []
        self.name: dict[int, int] = {}
        self.commit: int | None = None
        self.place = 0

    def run(self, task: int) -> None:
        """Run a kernel for the first time, or make a buffer again."""
        if task >= len(self.given.kernels):
            self._make(task - len(self.given.kernels))
            return
        if task == self.given.commit:
            self.commit = len(self.kernels)
        self.kernels.append(_renamed(self.given.kernels[task], self.name))
        self.place = task + 1

    def _make(self, buffer: int) -> None:
        recipe = self.recipes[buffer]
        own = {b: self._new_buffer(b) for b in (*recipe.results, *recipe.others)}
        names = self.name | own
        for position in recipe.kernels:
            self.again.append(len(self.kernels))
            self.kernels.append(_renamed(self.given.kernels[position], names))
        for result in recipe.results:
            if self.uses.written[result][-1] < self.place:
                self.name[result] = own[result]

    def _new_buffer(self, like: int) -> int:
        old, number = self.given.buffers[like], len(self.buffers)
        kind = "temporary" if old.kind == "output" else old.kind
        self.buffers.append(replace(old, number=number, kind=kind, position=-1))
        return number

    def schedule(self) -> Schedule:
        """Return the schedule of all that has run."""
        return replace(
            self.given,
            buffers=tuple(self.buffers),
            kernels=with_makers(self.kernels),
            commit=len(self.kernels) if self.commit is None else self.commit,
            again=tuple(self.again),
        )


def _renamed(kernel: Step, name: dict[int, int]) -> Step:
    if not any(o.buffer in name for o in kernel.operands):
        return kernel
    return with_buffers(kernel, lambda buffer: name.get(buffer, buffer))
