"""Exact search for the smallest arena of a few buffers, by branch and bound.

In a smallest arrangement every buffer can sink until it lies at 0 or on one that it
conflicts with. So it is enough to place buffers in order of offset, each on the highest
placed one that it conflicts with (its floor). Branches are cut where

- an unplaced buffer, or all unplaced ones that live at one step, no longer fit below
  the best arena known;
- an unplaced buffer fits entirely below the floor of the one to be placed: it could
  sink there, so it comes first (Moffitt, "MiniMalloc", ASPLOS 2023).

Buffers are as in offsets.py. The number of branches is exponential at worst, so it has
a limit.
"""

from __future__ import annotations

import numpy as np
from numba.extending import register_jitable

from staticgrad.compiler.memory.offsets import Ints

FAR = 2**62


def search(
    sizes: Ints, first: Ints, last: Ints, offsets: Ints, bound: int, limit: int
) -> bool:
    """Improve `offsets`; return whether they are proven optimal.

    Stops at an arena of `bound` units, which is proof too, or after `limit` branches.
    Of several buffers that could come next, the lowest comes first.
    """
    count = len(sizes)
    best = _top(offsets, sizes)
    found = np.zeros(count, np.int64)
    left = np.ones(count, np.bool_)
    waiting = np.zeros(max(last) + 1, np.int64)
    for b in range(count):
        _add(waiting, first[b], last[b], sizes[b])
    # by depth: floor of each buffer, those still to try, and the one that was placed
    floors = np.zeros((count + 1, count), np.int64)
    untried = np.ones((count + 1, count), np.bool_)
    placed = np.zeros(count + 1, np.int64)
    depth = 0
    branches = 0
    while best > bound:
        floor = floors[depth]
        b = -1
        if _fits(floor, left, sizes, first, last, waiting, best):
            previous = placed[depth] if depth else -1
            b = _next(floor, untried[depth], left, sizes, found, previous)
        if b < 0:
            if depth == 0:
                return True
            b = placed[depth]
            depth -= 1
            left[b] = True
            _add(waiting, first[b], last[b], sizes[b])
            continue
        if branches == limit:
            return False
        branches += 1
        left[b] = False
        _add(waiting, first[b], last[b], -sizes[b])
        untried[depth, b] = False
        found[b] = floor[b]
        depth += 1
        placed[depth] = b
        _raise(floor, floors[depth], untried[depth], b, sizes, first, last)
        if depth == count:
            best = _top(found, sizes)
            for n in range(count):
                offsets[n] = found[n]
    return True


# As in offsets.py, but here: Numba's cache notices changes of a function's own file.
@register_jitable
def _top(offsets: Ints, sizes: Ints) -> int:
    top = 0
    for b in range(len(sizes)):
        top = max(top, offsets[b] + sizes[b])
    return top


@register_jitable
def _add(waiting: Ints, begin: int, end: int, size: int) -> None:
    for step in range(begin, end + 1):
        waiting[step] += size


@register_jitable
def _fits(
    floor: Ints,
    left: Ints,
    sizes: Ints,
    first: Ints,
    last: Ints,
    waiting: Ints,
    best: int,
) -> bool:
    """Whether the buffers left may all end below `best`."""
    lowest = np.full(len(waiting), FAR, np.int64)
    for b in range(len(sizes)):
        if not left[b]:
            continue
        if floor[b] + sizes[b] >= best:
            return False
        for step in range(first[b], last[b] + 1):
            lowest[step] = min(lowest[step], floor[b])
    for step in range(len(waiting)):
        if waiting[step] > 0 and lowest[step] + waiting[step] >= best:
            return False
    return True


@register_jitable
def _next(
    floor: Ints, untried: Ints, left: Ints, sizes: Ints, found: Ints, previous: int
) -> int:
    """Return the lowest untried buffer next in order of (offset, number)."""
    ceiling = FAR
    for b in range(len(sizes)):
        if left[b]:
            ceiling = min(ceiling, floor[b] + sizes[b])
    lowest = 0 if previous < 0 else found[previous]
    chosen = -1
    for b in range(len(sizes)):
        allowed = left[b] and untried[b] and lowest <= floor[b] < ceiling
        if not allowed or (floor[b] == lowest and b < previous):
            continue
        if chosen < 0 or floor[b] < floor[chosen]:
            chosen = b
    return chosen


@register_jitable
def _raise(
    before: Ints,
    after: Ints,
    untried: Ints,
    placed: int,
    sizes: Ints,
    first: Ints,
    last: Ints,
) -> None:
    """Raise the floors above a buffer; all may be tried again."""
    top = before[placed] + sizes[placed]
    for b in range(len(sizes)):
        untried[b] = True
        after[b] = before[b]
        if first[b] <= last[placed] and first[placed] <= last[b]:
            after[b] = max(before[b], top)
