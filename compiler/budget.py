"""A memory budget: what is computed again so that the arena is small enough.

Where most bytes are alive (the turn: the end of the forward pass) lie values that have
been used and will be used again. The kernels before the turn are cut into segments:
what lives at a cut is kept, what else waits for its second use is dropped and made
again (rerun.py) when the first kernel behind the turn asks for it. A segment may be so
long that its values fit beside all that earlier cuts keep: the first ones are longer
than the last. For a chain of n equal layers that keeps about sqrt(2 n) of them, where
equal segments keep 2 sqrt(n). A cut is made where few bytes live (a small cut of the
graph), and what fits into the budget in the end is kept after all, the most expensive
per byte first.

Little values (statistics of a batch) are kept in any case, copies of leaves (packed
weights) never: the first would cost all before them to make again, the second nothing.
The size of segments is found by trying, since the bytes that are alive go up and down
with it; what is chosen is planned, and refused if its arena is larger than the budget.
Where segments of a size cannot reach the turn, a front of any length comes first, which
has a turn of its own when it runs again: the same is done there, and kernels then run a
third time.

Sources: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear
memory cost" (2016), for segments of given bytes; A. Griewank, A. Walther, "Algorithm
799: revolve", ACM TOMS 26, 2000, for uneven ones. Weakness: the order of kernels stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

from staticgrad.compiler import memory
from staticgrad.compiler.alias import in_place, sharing
from staticgrad.compiler.kernels import FinishKernel, GemmKernel, LoopKernel
from staticgrad.compiler.launch import chunking
from staticgrad.compiler.rerun import Choice, Stuck, TooLong, Uses, rerun
from staticgrad.compiler.schedule import Buffer, Schedule, Step, reads
from staticgrad.errors import MemoryBudgetError
from staticgrad.ir.node import ALIGNMENT
from staticgrad.ir.size import evaluate
from staticgrad.ir.values import dataclass

SHRINK = 0.95  # from one size of segments that is tried to the next
LEAST = 1 / 64  # of all that waits, the smallest size of segments
LITTLE = 1 / 64  # of all that waits, what small buffers may take together
STRIDE = 4  # of sizes with a front that are tried first
HOPELESS = 1.25  # times the lowest peak so far, with a front
PATIENCE = 8  # so many sizes of hopeless peaks end the search
LEVELS = 6  # turns, one after the other
MOST_KERNELS = 4  # kernels that run, for each that there was
PRODUCTS_PER_ADDITION = 16  # of a matrix product, in the time of one addition


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule before in-place writing, the bytes alive at its peak, its work."""

    schedule: Schedule
    peak_bytes: int
    again: int


def within(
    schedule: Schedule, values: Mapping[str, int], budget: int,
    cutting: memory.Cutting = chunking,
) -> Schedule:  # fmt: skip
    """`schedule` (not in place yet), in place, with an arena of at most `budget` bytes.

    Kernels run in chunks of `cutting`. Raises MemoryBudgetError naming the least arena
    that was found.
    """
    return in_place(_Search(schedule, values, budget, cutting).found().schedule)


class _Search:
    """The longest segments with which the arena meets the budget."""

    def __init__(
        self, schedule: Schedule, values: Mapping[str, int], budget: int,
        cutting: memory.Cutting,
    ) -> None:  # fmt: skip
        self.values = values
        self.budget = budget
        self.cutting = cutting
        self.given = schedule
        self.first = _Level(replace(schedule, tight=True), values)
        self.plain = self._measured(self.first.schedule)
        self.sizes = self._sizes()
        self.segments = [self.first.segments(size) for size in self.sizes]
        self.tried: dict[int, Found] = {}
        self.chosen: dict[tuple[Choice, int], Found] = {}

    def _sizes(self) -> list[int]:
        total = sum(self.first.bytes[b] for b in self.first.waiting)
        sizes, size = list[int](), total * SHRINK
        while size > total * LEAST:
            sizes.append(int(size))
            size *= SHRINK
        return sizes

    def found(self) -> Found:
        """What meets the budget with the least work; MemoryBudgetError if nothing."""
        given = replace(self.plain, schedule=self.given)
        for found in (given, self.plain):
            if self._fits(found):
                return found
        last = self._last()
        best = min(self.tried, key=self._rank, default=0)
        for n in range(max(best - STRIDE, 0), min(best + STRIDE, last)):
            self._tried(n)
        return self._chosen() or self._least(last)

    def _last(self) -> int:
        """Where smaller sizes only run more kernels again; tries some up to there."""
        above = 0
        for n, (_, front) in enumerate(self.segments):
            if front and n % STRIDE:
                continue
            peak = self._tried(n).peak_bytes
            lowest = min(one.peak_bytes for one in self.tried.values())
            above = above + STRIDE if front and peak > HOPELESS * lowest else 0
            if above > PATIENCE:
                return n
        return len(self.segments)

    def _rank(self, n: int) -> tuple[bool, int]:
        """Low for little work within the budget, else for a low peak."""
        one = self.tried[n]
        fits = one.peak_bytes <= self.budget
        return not fits, one.again if fits else one.peak_bytes

    def _chosen(self) -> Found | None:
        """Of all that was tried and fits the one with the least work."""
        fits = [n for n, one in self.tried.items() if one.peak_bytes <= self.budget]
        for n in sorted(fits, key=lambda n: (self.tried[n].again, n)):
            if self._fits(self.tried[n]):
                return self._kept_after_all(n)
        return None

    def _fits(self, found: Found) -> bool:
        if found.peak_bytes > self.budget:
            return False
        return self._arena_bytes(found) <= self.budget

    def _least(self, last: int) -> Found:
        """The smallest arena of all sizes before `last`."""
        for n in range(last):
            self._tried(n)
        every = [self.plain, *self.chosen.values()]
        best, arena = self.plain, self._arena_bytes(self.plain)
        for one in sorted(every, key=lambda one: (one.peak_bytes, one.again)):
            if one.peak_bytes >= arena:
                break
            other = self._arena_bytes(one)
            if other < arena:
                best, arena = one, other
        if arena <= self.budget:
            return best
        raise MemoryBudgetError(
            f"memory_budget requires at least {arena:,} bytes"
            f"{_of_sizes(self.values)}, got {self.budget:,}; raise it, or compute less "
            "at once"
        )

    def _tried(self, n: int) -> Found:
        if n not in self.tried:
            size = self.sizes[n]
            choice, front = self.segments[n]
            key = choice, size if front else 0
            if key not in self.chosen:
                self.chosen[key] = self._of_size(size)
            self.tried[n] = self.chosen[key]
        return self.tried[n]

    def _of_size(self, size: int) -> Found:
        """Segments of `size`, and again at the turn of a front that is longer."""
        level = self.first
        most = MOST_KERNELS * len(level.schedule.kernels)
        for _ in range(LEVELS):
            choice, front = level.segments(size)
            schedule = level.rerun(choice, most)
            if schedule is None:
                return replace(self.plain, again=most)
            level = _Level(schedule, self.values)
            if not front:
                break
        return self._measured(level.schedule)

    def _kept_after_all(self, n: int) -> Found:
        """The found schedule with more that is kept, as long as the budget is met."""
        found = self._tried(n)
        choice, front = self.segments[n]
        dropped_bytes = sum(self.first.bytes[b] for b in choice.dropped)
        room = self.budget - self.plain.peak_bytes + dropped_bytes  # at the turn
        room = 0 if front else room
        while room > 0:
            more = self.first.worth_keeping(choice, room)
            if not more:
                break
            dropped, kept = choice.dropped - more, choice.kept | more
            other = replace(choice, dropped=dropped, kept=kept)
            schedule = self.first.rerun(other, 2 * len(found.schedule.kernels))
            better = schedule and self._measured(schedule)
            if better and self._fits(better):
                return better
            room //= 2
        return found

    def _arena_bytes(self, found: Found) -> int:
        """The arena that the planner gives it."""
        placed = in_place(found.schedule)
        return memory.plan(placed, self.values, self.cutting).arena_bytes

    def _measured(self, schedule: Schedule) -> Found:
        """The peak if kernels write in place, which is what a good plan needs."""
        _, lives = sharing(schedule)
        sizes = memory.arena_sizes(schedule, self.values, self.cutting)
        change = [0] * (len(schedule.kernels) + 1)
        for b, (first, last) in lives.items():
            padded = -(-sizes[b] // ALIGNMENT) * ALIGNMENT
            change[first] += padded
            change[last + 1] -= padded
        again = sum(work(schedule.kernels[p], self.values) for p in schedule.again)
        return Found(schedule, max(accumulate(change)), again)


def _of_sizes(values: Mapping[str, int]) -> str:
    sizes = ", ".join(f"{name}={value}" for name, value in values.items())
    return f" for {sizes}" if sizes else ""


def _bytes(buffer: Buffer, values: Mapping[str, int]) -> int:
    """What is saved without a buffer; slots and arenas of bodies are never dropped."""
    if buffer.kind != "temporary":
        return 0
    return evaluate(buffer.elements, values) * buffer.dtype.itemsize


class _Level:
    """What may be dropped at the turn of one schedule."""

    def __init__(self, schedule: Schedule, values: Mapping[str, int]) -> None:
        self.schedule = schedule
        self.values = values
        self.uses = Uses(schedule)
        self.bytes = [_bytes(b, values) for b in schedule.buffers]
        self.turn = self._turn()
        waiting = self._waiting()
        self.small = self._small(sum(self.bytes[b] for b in waiting))
        self.waiting = waiting - self.small
        self.made: list[tuple[int, int]] = sorted(
            (self.uses.written[b][-1], b) for b in self.waiting
        )
        self.forward = self._forward()
        self.cut = self._cuts()

    def _turn(self) -> int:
        """The first kernel at which most bytes are alive."""
        change = [0] * (len(self.schedule.kernels) + 1)
        ends = {*self.schedule.outputs, *self.schedule.finite}
        for b, touched in self.uses.touched.items():
            change[touched[0]] += self.bytes[b]
            last = len(self.schedule.kernels) - 1 if b in ends else touched[-1]
            change[last + 1] -= self.bytes[b]
        alive = list(accumulate(change[:-1]))
        return alive.index(max(alive)) if alive else 0

    def _waiting(self) -> frozenset[int]:
        """Buffers that are used before and behind the turn, and can be made again."""
        ends = {*self.schedule.outputs, *self.schedule.finite}
        return frozenset(
            b
            for b, touched in self.uses.touched.items()
            if self.bytes[b]
            and b not in ends
            and touched[0] < self.turn < touched[-1]
            and self.turn not in touched
            and self.uses.written[b][-1] < self.turn
            and self.uses.can_repeat(b)
        )

    def _small(self, total: int) -> frozenset[int]:
        """Buffers before the turn that are kept in any case: all of them are little.

        Statistics of a batch, for one: to make them again is to make again what they
        are the statistics of, and all before it.
        """
        made = [
            (self.bytes[b], b)
            for b, places in self.uses.written.items()
            if self.bytes[b] and places[-1] < self.turn
        ]
        made.sort()
        taken = accumulate(size for size, _ in made)
        few = [b for (_, b), t in zip(made, taken, strict=True) if t <= total * LITTLE]
        return frozenset(few)

    def _is_copy(self, buffer: int) -> bool:
        """Whether it is made of stored leaves alone, by loops: packed weights are."""
        kernels = [self.schedule.kernels[p] for p in self.uses.makers[buffer]]
        kinds = (self.schedule.buffers[b].kind for k in kernels for b in reads(k))
        return all(isinstance(k, LoopKernel) for k in kernels) and (
            all(kind == "stored" for kind in kinds)
        )

    def _cuts(self) -> list[int]:
        """For each kernel up to the turn the bytes that a cut behind it keeps.

        What is not waiting counts twice: it would live on for the cut alone.
        """
        change = [0] * (self.turn + 2)
        for b, (first, last) in self.forward.items():
            weight = self.bytes[b] * (1 if b in self.waiting else 2)
            change[first] += weight
            change[last] -= weight
        return list(accumulate(change[: self.turn + 1]))

    def _forward(self) -> dict[int, tuple[int, int]]:
        """Where each buffer of the arena is written, and last used before the turn.

        Without what needs no cut: it is kept anyway, or copied from a leaf again.
        """
        found: dict[int, tuple[int, int]] = {}
        for b, touched in self.uses.touched.items():
            inside = [p for p in touched if p <= self.turn]
            if self.bytes[b] and inside and b in self.uses.written:
                found[b] = (self.uses.written[b][0], inside[-1])
        return {
            b: (a, e)
            for b, (a, e) in found.items()
            if a < e and b not in self.small and not self._is_copy(b)
        }

    def _alive(self, place: int) -> set[int]:
        """What a cut behind the kernel at `place` keeps."""
        forward = self.forward.items()
        return {b for b, (first, last) in forward if first <= place < last}

    # Segments

    def segments(self, size: int) -> tuple[Choice, bool]:
        """Cuts such that a segment and all that is kept before it are `size` bytes.

        Where that does not reach the turn, a front of any length comes first, of which
        nothing is kept; then the second result is true.
        """
        kept = self._reaching(-1, size)
        if kept is not None:
            return self._choice(kept), False
        places = [place for place, _ in self.made]
        low, high = 0, len(places)
        while low < high:  # the shortest front
            middle = (low + high) // 2
            if self._reaching(places[middle], size) is None:
                low = middle + 1
            else:
                high = middle
        start = places[low] if low < len(places) else self.turn - 1
        kept = self._reaching(start, size) or set()
        return self._choice(kept), True

    def _choice(self, kept: set[int]) -> Choice:
        return Choice(self.waiting - kept, self.small | kept, self.turn)

    def _reaching(self, start: int, size: int) -> set[int] | None:
        """What cuts from the one behind `start` on keep; None if they are too many."""
        kept = self._alive(start)
        taken = sum(self.bytes[b] for b in kept)
        while True:
            end = self._reach(start, size - taken, kept)
            if end >= self.turn:
                return kept | {b for place, b in self.made if place > start}
            if end <= start:
                return None
            halfway = start + 1 + (end - start) // 2
            places = range(min(halfway, end), end + 1)
            start = min(places, key=lambda p: (self.cut[p], -p))
            new = self._alive(start) - kept
            kept |= new
            taken += sum(self.bytes[b] for b in new)

    def _reach(self, start: int, room: int, kept: set[int]) -> int:
        """How far a segment behind `start` may go."""
        total, place = 0, start
        for place, b in self.made[bisect_left(self.made, (start + 1, -1)) :]:
            total += 0 if b in kept else self.bytes[b]
            if total > room:
                return place - 1
        # Most temporaries live at the turn itself: the last segment leaves them room.
        largest = max((self.bytes[b] for b in self.waiting), default=0)
        return self.turn if total + largest <= room or not total else place - 1

    # Schedules

    def rerun(self, choice: Choice, most: int) -> Schedule | None:
        """The schedule of `choice`, less what turns out to be impossible.

        None if it would have more than `most` kernels.
        """
        while True:
            try:
                return rerun(self.uses, choice, most)
            except TooLong:
                return None
            except Stuck as stuck:
                dropped = choice.dropped - {stuck.buffer}
                kept = choice.kept | {stuck.buffer}
                choice = replace(choice, dropped=dropped, kept=kept)

    def worth_keeping(self, choice: Choice, room: int) -> frozenset[int]:
        """Dropped buffers of at most `room` bytes, the dearest per byte first.

        Of equal ones the latest: earlier segments run again without them.
        """
        rates = {b: self._cost_of(b) / self.bytes[b] for b in choice.dropped}
        late = {b: self.uses.written[b][-1] for b in choice.dropped}
        more: set[int] = set()
        for b in sorted(rates, key=lambda b: (-rates[b], -late[b])):
            if self.bytes[b] <= room:
                more.add(b)
                room -= self.bytes[b]
        return frozenset(more)

    def _cost_of(self, buffer: int) -> int:
        makers = dict.fromkeys(self.uses.makers[buffer])
        kernels = (self.schedule.kernels[k] for k in makers)
        return sum(work(kernel, self.values) for kernel in kernels)


def work(kernel: Step, values: Mapping[str, int]) -> int:
    """The work of a kernel, in additions."""
    if isinstance(kernel, LoopKernel):
        return evaluate(kernel.row_cost * kernel.axes[0], values)
    if isinstance(kernel, GemmKernel):
        products = kernel.m * kernel.n * kernel.k * kernel.batch
        return evaluate(products, values) // PRODUCTS_PER_ADDITION + 1
    if isinstance(kernel, FinishKernel):
        return evaluate(kernel.extent, values)
    return sum(work(inner, values) for body in kernel.bodies for inner in body.kernels)
