"""Reordering of a Schedule's kernels, for a memory budget.

Without a budget all values wait from the forward pass for the backward pass, and an
order matters little that keeps some of the backward pass waiting beside them. With one
it decides: values made before the peak of live bytes may be evicted and do not count
here, and orders are made (order.py) in which little of the rest is alive.

Kernels that write leaves stay behind the commit. That they come no sooner than they did
keeps leaves for kernels that run again; that they only wait for the turn lets go of
gradients sooner. Which is better differs, so there are orders of both kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from staticgrad.compiler.budget.rematerialise import Recipe, Uses
from staticgrad.compiler.fuse.order import Task, candidates, peak_bytes
from staticgrad.compiler.kernel_ir.kernels import FinishKernel
from staticgrad.compiler.kernel_ir.schedule import (
    Schedule,
    reads,
    stored_by,
    with_makers,
    writes,
)

MOST = 1.25  # times the live bytes of the given order, for a candidate


def reordered(
    uses: Uses, recipes: dict[int, Recipe], sizes: Sequence[int]
) -> Iterator[Schedule]:
    """Yield Schedules of the same kernels; `sizes` are the bytes of each buffer."""
    schedule = uses.schedule
    turn = _turn(uses, sizes)
    counted = [
        0 if b in recipes and uses.written[b][-1] <= turn else size
        for b, size in enumerate(sizes)
    ]
    gate = len(schedule.kernels)
    seen = {tuple(range(gate))}
    ends = sorted(uses.ends)
    for first in dict.fromkeys((schedule.commit, turn + 1)):
        tasks = _tasks(schedule, first)
        most = MOST * peak_bytes(tasks, counted, range(gate), ends)
        for found in candidates(tasks, counted, ends):
            kernels = tuple(number for number in found if number != gate)
            little = peak_bytes(tasks, counted, found, ends) <= most
            if little and kernels not in seen:
                seen.add(kernels)
                yield replace(
                    schedule,
                    kernels=with_makers([schedule.kernels[k] for k in kernels]),
                    commit=found.index(gate),
                )


def _turn(uses: Uses, sizes: Sequence[int]) -> int:
    """Return the first kernel at the peak of live bytes."""
    change = [0] * (len(uses.schedule.kernels) + 1)
    for b, touched in uses.touched.items():
        change[touched[0]] += sizes[b]
        change[-1 if b in uses.ends else touched[-1] + 1] -= sizes[b]
    alive = list(accumulate(change))
    return alive.index(max(alive))


def _tasks(schedule: Schedule, first: int) -> list[Task]:
    """Return the kernels as tasks, and the commit as the last one.

    It comes when the first kernels have run, and all that have to run before it.
    """
    kernels, gate = schedule.kernels, len(schedule.kernels)
    late = {p for p, kernel in enumerate(kernels) if stored_by(schedule, kernel)}
    late |= {k.chunks_of for p, k in enumerate(kernels)
             if p in late and isinstance(k, FinishKernel)}  # fmt: skip
    checked = set(schedule.finite)
    early = {
        p
        for p, kernel in enumerate(kernels)
        if kernel.fails or not checked.isdisjoint(writes(kernel))
    }
    behind = set(late)  # and tasks that wait for them
    tasks: list[Task] = []
    wrote: dict[int, int] = {}
    touched: dict[int, list[int]] = {}
    for position, kernel in enumerate(kernels):
        read, written = reads(kernel), writes(kernel)
        after = {wrote[b] for b in (*read, *written) if b in wrote}
        after |= {p for b in written for p in touched.get(b, ())}
        after |= {gate} if position in late else set()
        tasks.append(Task(tuple(read), tuple(written), tuple(sorted(after))))
        behind |= {position} if not behind.isdisjoint(after) else set()
        for b in read:
            touched.setdefault(b, []).append(position)
        for b in written:
            wrote[b], touched[b] = position, []
    early |= set(range(first)) - behind
    return [*tasks, Task((), (), tuple(sorted(early)))]
