"""Memory planning: offsets of a Schedule's temporaries in the arena.

A buffer lives from the first kernel that touches it to the last, inclusive; outputs
live to the end, scalars to be checked until `commit`. A kernel in one chunk needs no
slots: it writes the result of the FinishKernel, which is then dropped.

Offsets are multiples of 64 bytes. Several ways to find them are tried, the cheapest
first, until the arena is no larger than the most padded bytes alive at one kernel
("bound"); for a few buffers exact search proves the rest ("exact"). See offsets.py and
exact_search.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.kernel_ir.chunks import chunking
from staticgrad.compiler.kernel_ir.combine_partials import stands_for
from staticgrad.compiler.kernel_ir.kernels import FinishKernel, LoopKernel
from staticgrad.compiler.kernel_ir.plan import Plan, Region
from staticgrad.compiler.kernel_ir.schedule import ControlKernel, Schedule, Step
from staticgrad.compiler.memory.exact_search import search
from staticgrad.compiler.memory.offsets import Compiled, improve
from staticgrad.compiler.memory.regions import find
from staticgrad.ir.alignment import ALIGNMENT
from staticgrad.ir.size import evaluate

# Up to FEW buffers a few rounds in Python take up to 10 ms and reach the bound in 19
# of 20 graphs; compiled code takes 40 ms to load, and seconds to compile once. The
# offsets are the same.
FEW = 256
FEW_ROUNDS = 20
# Exact search ends within the limit for nearly all sets of 12 buffers and most of 30.
EXACT_BUFFERS = 48
EXACT_BRANCHES = 20_000
# All sets of up to SMALL buffers are searched to the end.
SMALL = 12
# A round of hill climbing takes about 1 ns per pair of buffers: 25 ms in all.
ROUND_PAIRS = 25_000_000
ROUNDS = 2_000
# Above this an order by size takes seconds: buffers are placed in order of birth.
SORTED = 30_000

_improve = Compiled(improve)
_search = Compiled(search)

Cutting = Callable[[LoopKernel, Mapping[str, int]], tuple[int, int]]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Offsets and size of an arena in bytes, and the proof as in Plan."""

    offsets: tuple[int, ...]
    arena_bytes: int
    proof: str


@dataclass(frozen=True, slots=True)
class Lives:
    """First and last kernel of each buffer, -1 for those outside the arena."""

    first: tuple[int, ...]
    last: tuple[int, ...]


def plan(
    schedule: Schedule, values: Mapping[str, int], cutting: Cutting = chunking
) -> Plan:
    """Return the Plan of `schedule` for symbols of `values`, chunked by `cutting`.

    Regions are for the CPU's own chunks.
    """
    shared = cutting is chunking and not schedule.tight
    regions = find(schedule, values) if shared else ()
    chunks = _chunks(schedule, values, cutting, regions)
    lives = _lives(schedule, chunks, regions)
    bodies = tuple(_bodies(kernel, values, cutting) for kernel in schedule.kernels)
    sizes = _sizes(schedule, chunks, bodies, values)
    arena = [b for b, first in enumerate(lives.first) if first >= 0]
    lying = (
        [sizes[b] for b in arena],
        [lives.first[b] for b in arena],
        [lives.last[b] for b in arena],
    )
    found = arrange(*lying)
    offsets = [-1] * len(sizes)
    for b, offset in zip(arena, found.offsets, strict=True):
        offsets[b] = offset
    return Plan(
        schedule=schedule,
        values=tuple(sorted(values.items())),
        chunks=chunks,
        bytes=sizes,
        first=lives.first,
        last=lives.last,
        offsets=tuple(offsets),
        arena_bytes=found.arena_bytes,
        lower_bound_bytes=live_peak(*lying),
        unplanned_bytes=sum(evaluate(size, values) for size in schedule.unplanned),
        proof=found.proof,
        bodies=bodies,
        regions=regions,
    )


def _bodies(
    kernel: Step, values: Mapping[str, int], cutting: Cutting
) -> tuple[Plan, ...]:
    if not isinstance(kernel, ControlKernel):
        return ()
    return tuple(plan(body, values, cutting) for body in kernel.bodies)


def arena_sizes(
    schedule: Schedule, values: Mapping[str, int], cutting: Cutting
) -> tuple[int, ...]:
    """Return the bytes that each buffer takes of the arena without regions."""
    chunks = _chunks(schedule, values, cutting, ())
    bodies = tuple(_bodies(kernel, values, cutting) for kernel in schedule.kernels)
    lives = _lives(schedule, chunks, ())
    sizes = _sizes(schedule, chunks, bodies, values)
    return tuple(
        size if first >= 0 else 0
        for size, first in zip(sizes, lives.first, strict=True)
    )


def _chunks(
    schedule: Schedule,
    values: Mapping[str, int],
    cutting: Cutting,
    regions: Sequence[Region],
) -> tuple[tuple[int, int], ...]:
    """Return the chunks of each kernel: (1, 0) for none, (0, 0) for a dropped one."""
    chunks: list[tuple[int, int]] = []
    for kernel in schedule.kernels:
        if isinstance(kernel, LoopKernel):
            chunks.append(cutting(kernel, values))
        elif isinstance(kernel, FinishKernel):
            chunks.append((0, 0) if chunks[kernel.chunks_of][0] == 1 else (1, 0))
        else:
            chunks.append((1, 0))
    for region in regions:
        for position, per_row in enumerate(region.per_row, region.first):
            if per_row:
                chunks[position] = region.parts, region.rows * per_row
    return tuple(chunks)


def _lives(
    schedule: Schedule, chunks: Sequence[tuple[int, int]], regions: Sequence[Region]
) -> Lives:
    count = len(schedule.buffers)
    first, last = [-1] * count, [-1] * count
    dropped = stands_for(schedule.kernels, chunks)
    for step, kernel in enumerate(schedule.kernels):
        for number in _touched(kernel, chunks[step], dropped):
            if first[number] < 0:
                first[number] = step
            last[number] = step
    for region in regions:
        for number, (begin, end) in enumerate(zip(first, last, strict=True)):
            if begin < region.stop and end >= region.first:
                first[number] = min(begin, region.first)
                last[number] = max(end, region.stop - 1)
    for number in schedule.outputs:
        last[number] = len(schedule.kernels) - 1
    for number in schedule.finite:
        commit = min(schedule.commit, len(schedule.kernels) - 1)
        last[number] = max(last[number], commit)
    for number, buffer in enumerate(schedule.buffers):
        if buffer.kind not in ("temporary", "slots", "arena") or first[number] < 0:
            first[number] = last[number] = -1
    return Lives(tuple(first), tuple(last))


def _touched(
    kernel: Step, chunk: tuple[int, int], dropped: Mapping[int, int]
) -> Iterator[int]:
    if isinstance(kernel, FinishKernel) and chunk == (0, 0):
        return
    for operand in kernel.operands:
        yield dropped.get(operand.buffer, operand.buffer)


def _sizes(
    schedule: Schedule,
    chunks: Sequence[tuple[int, int]],
    bodies: Sequence[tuple[Plan, ...]],
    values: Mapping[str, int],
) -> tuple[int, ...]:
    """Return the bytes of each buffer.

    A buffer of slots has as many as its kernel has chunks, an arena what the largest of
    the bodies needs.
    """
    slots = {b.number: 0 for b in schedule.buffers if b.kind == "slots"}
    for step, kernel in enumerate(schedule.kernels):
        if isinstance(kernel, FinishKernel) and chunks[step] != (0, 0):
            slots[kernel.operands[0].buffer] = chunks[kernel.chunks_of][0]
        if isinstance(kernel, ControlKernel):
            most = max((body.arena_bytes for body in bodies[step]), default=0)
            slots[kernel.operands[kernel.arena].buffer] = most
    return tuple(
        slots.get(b.number, 1) * b.dtype.itemsize * evaluate(b.elements, values)
        for b in schedule.buffers
    )


def live_peak(sizes: Sequence[int], first: Sequence[int], last: Sequence[int]) -> int:
    """Return the largest sum of `sizes` alive at one step."""
    change: dict[int, int] = {}
    for size, begin, end in zip(sizes, first, last, strict=True):
        change[begin] = change.get(begin, 0) + size
        change[end + 1] = change.get(end + 1, 0) - size
    live = peak = 0
    for step in sorted(change):
        live += change[step]
        peak = max(peak, live)
    return peak


def arrange(
    sizes: Sequence[int], first: Sequence[int], last: Sequence[int]
) -> Arrangement:
    """Return offsets for buffers of `sizes` bytes, alive from step first to last."""
    units = [-(-size // ALIGNMENT) for size in sizes]
    real = [b for b, size in enumerate(units) if size]
    bound = live_peak(units, first, last)
    offsets = [0] * len(units)
    proof = "bound"
    if real:
        found, proof = _arrange(
            [units[b] for b in real],
            [first[b] for b in real],
            [last[b] for b in real],
            bound,
        )
        for b, offset in zip(real, found, strict=True):
            offsets[b] = offset
    arena = max(map(sum, zip(offsets, units, strict=True)), default=0)
    return Arrangement(
        tuple(offset * ALIGNMENT for offset in offsets), arena * ALIGNMENT, proof
    )


def _arrange(
    units: list[int], first: list[int], last: list[int], bound: int
) -> tuple[Sequence[int], str]:
    """Return offsets in units, and the proof; all buffers have at least one unit."""
    offsets = _in_time(units, first, last, sum(units))
    if max(map(sum, zip(offsets, units, strict=True))) == bound:
        return offsets, "bound"
    from_both_ends = _in_time(units, first, last, bound, from_both_ends=True)
    if from_both_ends:
        return from_both_ends, "bound"
    items = _Items.of(units, first, last)
    found = np.array(offsets, np.int64)[items.by_birth]
    items.improve(found, bound)
    proof = items.prove(found, bound)
    result = np.empty(len(units), np.int64)
    result[items.by_birth] = found
    return result.tolist(), proof


def _in_time(
    units: list[int],
    first: list[int],
    last: list[int],
    arena: int,
    from_both_ends: bool = False,
) -> list[int]:
    """Place each buffer at its birth, in the lowest hole that is large enough.

    From both ends, every second one lies in the highest hole: the best for chains, in
    which only neighbours live at one time. Empty if `arena` is too small.
    """
    count = len(units)
    births = sorted(range(count), key=first.__getitem__)
    deaths = sorted(range(count), key=last.__getitem__)
    low, high = [0], [arena]
    offsets = [0] * count
    dead = 0
    for number, b in enumerate(births):
        while last[deaths[dead]] < first[b]:
            gone = deaths[dead]
            _release(low, high, offsets[gone], offsets[gone] + units[gone])
            dead += 1
        top = from_both_ends and number % 2 == 1
        holes = range(len(low) - 1, -1, -1) if top else range(len(low))
        hole = next((h for h in holes if high[h] - low[h] >= units[b]), -1)
        if hole < 0:
            return []
        offsets[b] = high[hole] - units[b] if top else low[hole]
        _take(low, high, hole, units[b], top)
    return offsets


def _take(low: list[int], high: list[int], hole: int, size: int, top: bool) -> None:
    if top:
        high[hole] -= size
    else:
        low[hole] += size
    if low[hole] == high[hole]:
        del low[hole], high[hole]


def _release(low: list[int], high: list[int], begin: int, end: int) -> None:
    """Add a hole to sorted holes, merged with those that it touches."""
    hole = bisect_left(low, begin)
    if hole < len(low) and low[hole] == end:
        low[hole] = begin
    else:
        low.insert(hole, begin)
        high.insert(hole, end)
    if hole and high[hole - 1] == begin:
        high[hole - 1] = high[hole]
        del low[hole], high[hole]


@dataclass(frozen=True, slots=True)
class _Items:
    """Buffers in order of birth, without steps without a birth."""

    by_birth: IntArray
    units: IntArray
    first: IntArray
    last: IntArray
    born: IntArray

    @staticmethod
    def of(units: list[int], first: list[int], last: list[int]) -> _Items:
        by_birth = np.argsort(np.array(first), kind="stable")
        births = np.unique(first)
        begin = np.searchsorted(births, first)[by_birth]
        end = np.searchsorted(births, last, side="right")[by_birth] - 1
        born = np.searchsorted(begin, np.arange(len(births) + 1))
        return _Items(by_birth, np.array(units)[by_birth], begin, end, born)

    @property
    def count(self) -> int:
        return len(self.units)

    def improve(self, found: IntArray, bound: int) -> None:
        """Improve on the offsets `found`, if that is easy."""
        if self.count > SORTED:
            return
        area = self.units * (self.last - self.first + 1)
        keys = (self.units, area, self._conflicts())
        orders = np.array([np.argsort(-key, kind="stable") for key in keys])
        life = self.last - self.first + 1.0
        starts = np.array(
            [area, self.units * np.sqrt(life), area * life, self.units], np.float64
        )
        lives = (self.units, self.first, self.last, self.born)
        if self.count <= FEW and not _improve.is_ready:
            lists = [array.tolist() for array in (orders, starts, *lives, found)]
            improve(*(*lists, bound, FEW_ROUNDS))
            found[:] = lists[-1]
        if np.max(found + self.units) > bound and self.count > SMALL:
            rounds = min(ROUNDS, ROUND_PAIRS // self.count**2)
            _improve(orders, starts, *lives, found, bound, rounds)

    def _conflicts(self) -> IntArray:
        """Return, for each buffer, the units of all whose lives overlap its life."""
        begun = np.concatenate(([0], np.cumsum(self.units)))[self.born]
        by_death = np.argsort(self.last, kind="stable")
        over = np.concatenate(([0], np.cumsum(self.units[by_death])))
        dead = np.searchsorted(self.last[by_death], self.first)
        return begun[self.last + 1] - over[dead]

    def prove(self, found: IntArray, bound: int) -> str:
        """Return the proof that `found` is optimal, if buffers are few."""
        if np.max(found + self.units) == bound:
            return "bound"
        if self.count > EXACT_BUFFERS:
            return ""
        limit = 2**62 if self.count <= SMALL else EXACT_BRANCHES
        proven = _search(self.units, self.first, self.last, found, bound, limit)
        if np.max(found + self.units) == bound:
            return "bound"
        return "exact" if proven else ""
