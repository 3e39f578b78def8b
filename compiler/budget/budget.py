"""Memory budgets: rematerialisation until the arena is small enough.

The kernels run in an arena of the budget's size while it is simulated what has to leave
and be made again (eviction.py); the tasks that this gives are a Schedule again
(rematerialise.py), which is planned, and taken if its arena is no larger than the
budget. Of several orders of the kernels (reorder.py) and several powers of time in the
heuristic the one that does the least work is taken, and improved by changing the worth
of single values at random.

Where nothing meets the budget, the smallest arena is searched for in the same way, by
bisection, and either meets it or is named by the error, with what the largest kernel
touches: a lower bound for any choice. The result depends on the Schedule, the sizes and
the budget alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from staticgrad.compiler.budget.eviction import Facts, climb
from staticgrad.compiler.budget.eviction_problem import bound, facts_of
from staticgrad.compiler.budget.rematerialise import Uses, rerun
from staticgrad.compiler.budget.reorder import reordered
from staticgrad.compiler.kernel_ir.chunks import chunking
from staticgrad.compiler.kernel_ir.schedule import Schedule
from staticgrad.compiler.memory import planner
from staticgrad.compiler.memory.in_place import in_place
from staticgrad.compiler.memory.offsets import Compiled
from staticgrad.errors import MemoryBudgetError

POWERS = (0.35, 0.75, 0.0, 0.2, 0.5, 1.0, 2.0)
FIRST = 2  # powers tried with all orders
BEST = 2  # orders tried with all powers
ROUNDS, KERNEL_ROUNDS = 200, 80_000  # of climbing: at most, and times kernels
MOST_KERNELS = 8  # runs per kernel
SMALLER = 4  # retries with a smaller arena when a plan had holes
CLOSE = 1 / 64  # relative precision of bisection for the smallest arena
STEP = 64  # bytes

_climb = Compiled(climb)


@dataclass(frozen=True, slots=True)
class Simulation:
    """Result of a simulation: its peak bytes, recomputed work and tasks."""

    peak_bytes: int
    again: float
    tasks: tuple[int, ...]
    order: _Order
    power: float

    def schedule(self) -> Schedule:
        """The schedule of the tasks."""
        order = self.order
        return rerun(order.uses, order.recipes, self.tasks)


class _Order:
    """Schedule whose kernels run in one order."""

    def __init__(
        self, schedule: Schedule, values: Mapping[str, int], cutting: planner.Cutting
    ) -> None:
        self.uses = Uses(schedule)
        self.recipes = self.uses.recipes()
        self.facts: Facts = facts_of(self.uses, self.recipes, values, cutting)
        self.count = len(schedule.kernels)
        self.tasks = np.empty(MOST_KERNELS * self.count, np.int64)

    def simulated(self, capacity: int, power: float, rounds: int = 0) -> Simulation:
        """Simulate an arena of `capacity` bytes, after `rounds` of hill climbing."""
        tasks = self.tasks
        peak, again, count = _climb(self.facts, capacity, power, rounds, tasks)
        return Simulation(peak, again, tuple(tasks[:count].tolist()), self, power)


@dataclass(frozen=True, slots=True)
class ArenaLimit:
    """At most `budget` bytes of arena for symbols' `values`.

    Kernels run in chunks of `cutting`.
    """

    values: Mapping[str, int]
    budget: int
    cutting: planner.Cutting = chunking


def within(schedule: Schedule, limit: ArenaLimit) -> Schedule:
    """`schedule`, not in place yet, whose arena meets `limit` when it is.

    Raises MemoryBudgetError naming the least arena that was found.
    """
    return _Search(schedule, limit).found()


class _Search:
    """Search for the least work with which the arena meets the budget."""

    def __init__(self, schedule: Schedule, limit: ArenaLimit) -> None:
        self.given = schedule
        self.values = limit.values
        self.budget = limit.budget
        self.cutting = limit.cutting

    @cached_property
    def orders(self) -> list[_Order]:
        """Orders of kernels: the given one, and others."""
        first = self._order(replace(self.given, tight=True))
        sizes = first.facts.bytes.tolist()
        others = reordered(first.uses, first.recipes, sizes)
        return [first, *map(self._order, others)]

    def _order(self, schedule: Schedule) -> _Order:
        return _Order(schedule, self.values, self.cutting)

    def found(self) -> Schedule:
        """Return the schedule of least work within the budget, or MemoryBudgetError."""
        for schedule in (self.given, replace(self.given, tight=True)):
            if self._arena_bytes(schedule) <= self.budget:
                return schedule
        capacity = self.budget
        for _ in range(SMALLER):
            best = self._best(capacity)
            if best is None:
                break
            found = best.schedule()
            arena = self._arena_bytes(found)
            if arena <= self.budget:
                return found
            capacity -= arena - self.budget
        return self._least()

    def _arena_bytes(self, schedule: Schedule) -> int:
        """The arena that the planner gives it when it is in place."""
        placed = in_place(schedule)
        return planner.plan(placed, self.values, self.cutting).arena_bytes

    def _best(self, capacity: int) -> Simulation | None:
        """Return the least work within `capacity`, or None if nothing fits."""
        fits = self._fitting(capacity, POWERS[:FIRST], self.orders)
        found = sorted(fits, key=lambda one: one.again)
        orders = list(dict.fromkeys(one.order for one in found))[:BEST] or self.orders
        found += self._fitting(capacity, POWERS[FIRST:], orders)
        if not found:
            return None
        best = min(found, key=lambda one: one.again)
        rounds = min(ROUNDS, KERNEL_ROUNDS // best.order.count)
        climbed = best.order.simulated(capacity, best.power, rounds)
        return min(best, climbed, key=lambda one: one.again)

    def _fitting(
        self, capacity: int, powers: tuple[float, ...], orders: list[_Order]
    ) -> Iterator[Simulation]:
        for power in powers:
            for order in orders:
                found = order.simulated(capacity, power)
                if found.peak_bytes <= capacity:
                    yield found

    def _least(self) -> Schedule:
        """Return the smallest arena, if it is within the budget."""
        floor, largest = bound(self.orders[0].facts)
        best = self._smallest(floor)
        found = replace(self.given, tight=True)
        arena = self._arena_bytes(found)
        if best is not None:
            other = best.schedule()
            other_arena = self._arena_bytes(other)
            if other_arena < arena:
                found, arena = other, other_arena
        if arena <= self.budget:
            return found
        raise MemoryBudgetError(
            f"memory_budget requires at least {arena:,} bytes"
            f"{_of_sizes(self.values)}, got {self.budget:,}; raise it, or compute less "
            f"at once (no less than {floor:,} do for "
            f"{self.given.kernels[largest].name})"
        )

    def _smallest(self, floor: int) -> Simulation | None:
        """Return the smallest arena that can be simulated, `floor` or more."""
        facts = self.orders[0].facts
        low, high = floor, int(facts.bytes.sum())
        best: Simulation | None = None
        while high - low > max(CLOSE * high, STEP):
            middle = (low + high) // 2
            found = self._any(middle, POWERS[:FIRST])
            if found is None:
                low = middle
            else:
                best, high = found, found.peak_bytes
        found = best
        while found is not None:
            best = found
            found = self._any(best.peak_bytes - STEP, POWERS)
        return best

    def _any(self, capacity: int, powers: tuple[float, ...]) -> Simulation | None:
        return next(self._fitting(capacity, powers, self.orders), None)


def _of_sizes(values: Mapping[str, int]) -> str:
    sizes = ", ".join(f"{name}={value}" for name, value in values.items())
    return f" for {sizes}" if sizes else ""
