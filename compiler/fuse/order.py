"""Ordering of tasks for a small peak of live bytes.

A task touches values; a value is alive from the first task that touches it to the last
(to the end if it is kept). Finding the order with the least peak is NP-hard, so several
simple orders are made, each is simulated, and the one with the least peak is kept:

- construction: the order in which the tasks were given;
- depth first: what a task needs right before it;
- breadth first: every task as soon as it can run;
- least bytes first: of the ready tasks the one that leaves the fewest bytes alive,
  with ties to the oldest or to the latest to become ready, forwards and backwards (an
  order read backwards has the same peak);
- reverse depth first in the later half, where gradients are: construction up to the
  middle, from there what has just become ready, so a weight gradient is consumed as
  soon as it is final.

Each is linear in tasks and touched values, the greedy ones times a logarithm. Weakness:
nothing looks ahead further than one task.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from staticgrad.errors import CompilerBug


@dataclass(frozen=True, slots=True)
class Task:
    """Work that reads and writes values, after the tasks in `after`."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Work:
    """Tasks as lists: the values with bytes that each touches, and its neighbours.

    `alive` are the values that exist before the first task, `kept` those that exist
    after the last.
    """

    sizes: Sequence[int]
    touched: list[list[int]]
    touching: dict[int, list[int]]
    before: list[list[int]]
    behind: list[list[int]]
    alive: frozenset[int]
    kept: frozenset[int]


def order(
    tasks: Sequence[Task], sizes: Sequence[int], keep: Sequence[int] = ()
) -> list[int]:
    """Return the numbers of `tasks` in an order with a small peak of live bytes.

    `sizes[v]` are the bytes of value v, 0 where it does not count; values in `keep`
    stay alive to the end. The peak is never above that of the order given. Raises
    CompilerBug if the tasks wait for each other in a circle.
    """
    work = _prepare(tasks, sizes, keep)
    least = _floor(work)
    best = _construction(work)
    best_peak = _peak(work, best)
    for candidate in CANDIDATES:
        if best_peak <= least:
            break
        found = candidate(work)
        peak = _peak(work, found)
        if peak < best_peak:
            best, best_peak = found, peak
    return best


def candidates(
    tasks: Sequence[Task], sizes: Sequence[int], keep: Sequence[int] = ()
) -> Iterator[list[int]]:
    """Return every order that `order` would choose from, but the one given."""
    work = _prepare(tasks, sizes, keep)
    return (candidate(work) for candidate in CANDIDATES)


def peak_bytes(
    tasks: Sequence[Task],
    sizes: Sequence[int],
    found: Sequence[int],
    keep: Sequence[int] = (),
) -> int:
    """Return the peak of live bytes when `tasks` run in the order `found`."""
    return _peak(_prepare(tasks, sizes, keep), found)


def _prepare(tasks: Sequence[Task], sizes: Sequence[int], keep: Sequence[int]) -> _Work:
    touched = [
        [v for v in dict.fromkeys(task.reads + task.writes) if sizes[v]]
        for task in tasks
    ]
    touching: dict[int, list[int]] = {}
    for number, values in enumerate(touched):
        for value in values:
            touching.setdefault(value, []).append(number)
    before = [list(dict.fromkeys(task.after)) for task in tasks]
    kept = frozenset(v for v in keep if sizes[v] and v in touching)
    return _Work(sizes, touched, touching, before, _flip(before), frozenset(), kept)


def _flip(edges: list[list[int]]) -> list[list[int]]:
    flipped: list[list[int]] = [[] for _ in edges]
    for number, others in enumerate(edges):
        for other in others:
            flipped[other].append(number)
    return flipped


def _backwards(work: _Work) -> _Work:
    """Return the same work with time reversed."""
    return _Work(
        work.sizes,
        work.touched,
        work.touching,
        work.behind,
        work.before,
        work.kept,
        work.alive,
    )


def _floor(work: _Work) -> int:
    """Return a lower bound of any peak: one task's own values, or all kept ones."""
    sizes = work.sizes
    own = (sum(sizes[v] for v in values) for values in work.touched)
    return max(max(own, default=0), sum(sizes[v] for v in work.kept))


def _peak(work: _Work, found: Sequence[int]) -> int:
    sizes = work.sizes
    left = {value: len(users) for value, users in work.touching.items()}
    started = set(work.alive)
    live = peak = sum(sizes[v] for v in work.alive)
    for number in found:
        values = work.touched[number]
        for value in values:
            if value not in started:
                started.add(value)
                live += sizes[value]
        peak = max(peak, live)
        for value in values:
            left[value] -= 1
            if not left[value] and value not in work.kept:
                live -= sizes[value]
    return peak


def _construction(work: _Work) -> list[int]:
    """Return the given order; a task ahead of what it needs waits."""
    waiting = [len(others) for others in work.before]
    ready = [number for number, count in enumerate(waiting) if not count]
    found: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        found.append(number)
        for later in work.behind[number]:
            waiting[later] -= 1
            if not waiting[later]:
                heapq.heappush(ready, later)
    if len(found) != len(waiting):
        raise CompilerBug(
            f"order requires tasks without a circle, got {len(waiting)} of which "
            f"{len(waiting) - len(found)} wait for each other"
        )
    return found


def _breadth_first(work: _Work) -> list[int]:
    waiting = [len(others) for others in work.before]
    ready = deque(number for number, count in enumerate(waiting) if not count)
    found: list[int] = []
    while ready:
        number = ready.popleft()
        found.append(number)
        for later in work.behind[number]:
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
    return found


def _depth_first(work: _Work) -> list[int]:
    """Return an order of last tasks as given, each right behind all that it needs."""
    done = [False] * len(work.before)
    found: list[int] = []
    ends = [number for number, later in enumerate(work.behind) if not later]
    stack = [(number, False) for number in reversed(ends)]
    while stack:
        number, expanded = stack.pop()
        if expanded:
            found.append(number)
            continue
        if done[number]:
            continue
        done[number] = True
        stack.append((number, True))
        stack.extend((n, False) for n in reversed(work.before[number]) if not done[n])
    return found


def _reverse_depth_first(work: _Work) -> list[int]:
    """Return construction order for the first half, then the last ready task first."""
    half = len(work.before) // 2
    found = _construction(work)[:half]
    waiting = [len(others) for others in work.before]
    for number in found:
        waiting[number] = -1
        for later in work.behind[number]:
            waiting[later] -= 1
    ready = [number for number, count in enumerate(waiting) if not count]
    ready.reverse()
    while ready:
        number = ready.pop()
        found.append(number)
        for later in reversed(work.behind[number]):
            waiting[later] -= 1
            if not waiting[later]:
                ready.append(later)
    return found


def _least_first(work: _Work, latest: bool = False) -> list[int]:
    """Return the greedy order: always the ready task that leaves the fewest bytes.

    Ties go to the fewest new bytes, then to the oldest task, or with `latest` to the
    one that became ready last. A task's cost changes only when a value of it comes to
    life or loses its last but one user; it is then queued again under its new cost.
    """
    state = _Costs(work)
    waiting = [len(others) for others in work.before]
    queue = [(*state.cost(n), n, n) for n, count in enumerate(waiting) if not count]
    heapq.heapify(queue)
    done = [False] * len(waiting)
    found: list[int] = []
    clock = len(waiting)
    while queue:
        change, grown, _, number = heapq.heappop(queue)
        if done[number] or (change, grown) != state.cost(number):
            continue
        done[number] = True
        found.append(number)
        changed = [n for n in state.run(number) if not waiting[n]]
        for later in work.behind[number]:
            waiting[later] -= 1
            if not waiting[later]:
                changed.append(later)
        for other in changed:
            clock += 1
            rank = -clock if latest else other
            if not done[other]:
                heapq.heappush(queue, (*state.cost(other), rank, other))
    return found


class _Costs:
    """Change of the live bytes that each task would cause, kept up to date."""

    def __init__(self, work: _Work) -> None:
        self.work = work
        self.left = {value: len(users) for value, users in work.touching.items()}
        self.started = set(work.alive)
        self.ran = [False] * len(work.touched)
        self.grown = [self._grown(values) for values in work.touched]
        self.freed = [self._freed(values) for values in work.touched]

    def _grown(self, values: list[int]) -> int:
        return sum(self.work.sizes[v] for v in values if v not in self.started)

    def _freed(self, values: list[int]) -> int:
        last = (v for v in values if self.left[v] == 1 and v not in self.work.kept)
        return sum(self.work.sizes[v] for v in last)

    def cost(self, number: int) -> tuple[int, int]:
        """Return the change of live bytes by the task, and the bytes that it adds."""
        return self.grown[number] - self.freed[number], self.grown[number]

    def run(self, number: int) -> list[int]:
        """Run the task and return the tasks whose cost changed."""
        self.ran[number] = True
        changed: list[int] = []
        for value in self.work.touched[number]:
            self.left[value] -= 1
            first = value not in self.started
            if not first and self.left[value] != 1:
                continue
            self.started.add(value)
            changed += self._update(value, first)
        return changed

    def _update(self, value: int, first: bool) -> list[int]:
        size = self.work.sizes[value]
        others = [n for n in self.work.touching[value] if not self.ran[n]]
        last = self.left[value] == 1 and value not in self.work.kept
        for other in others:
            self.grown[other] -= size if first else 0
            self.freed[other] += size if last else 0
        return others


def _least_latest(work: _Work) -> list[int]:
    return _least_first(work, latest=True)


def _least_backwards(work: _Work) -> list[int]:
    return _least_first(_backwards(work))[::-1]


def _least_latest_backwards(work: _Work) -> list[int]:
    return _least_first(_backwards(work), latest=True)[::-1]


CANDIDATES: tuple[Callable[[_Work], list[int]], ...] = (
    _depth_first,
    _breadth_first,
    _least_first,
    _least_latest,
    _least_backwards,
    _least_latest_backwards,
    _reverse_depth_first,
)
