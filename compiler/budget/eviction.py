"""Eviction: buffers that leave the arena to make room, and are recomputed later.

The kernels of a Schedule run in order, in an arena of given bytes. Before one runs, its
evicted inputs are made again, recursively: the sources of that first, the one that
takes the most work first of all, since those made after it wait beside it. Where a task
does not fit, values are evicted until it does: dead ones first, then the one that is
cheapest by

    work to make it again / (bytes * time until it is needed ** power)

Work includes that of sources which have been evicted as well; a value is needed by the
next kernel that reads it, or as a source of an evicted one. What a task reads stays
until it has run, but for what it may write over (in_place.py). Nothing leaves sooner
than it must, so all of the arena is used at any time, and values that were made again
are evicted and made once more where that is worth it.

Source: M. Kirisame et al., "Dynamic tensor rematerialization" (2021), whose heuristic
this is, except that here the next use is known. Weakness: greedy; `climb` repairs some
of it by other weights for single values, as in offsets.py.

Like there, this is Python that Numba can compile. A task is the number of a kernel, or
the number of kernels plus a buffer that is to be made again.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba.extending import register_jitable

Array: TypeAlias = Any  # of int64 unless said otherwise

NEVER = 1 << 40
ENDLESS = 1e300
MOST_CHANGED = 0.05  # of all weights, in one step of climbing


class Facts(NamedTuple):
    """Schedule in numbers; ``x_at[i] : x_at[i + 1]`` is the part of x for i.

    By task: the buffers that it reads and writes, the pairs that may share a place, the
    bytes of what it writes in passing, its work (float64). By buffer: the kernels that
    touch it, the evicted ones that would need it, its padded bytes, the kernel that
    completes it, whether it stays to the end (bool), and the last kernel before which
    its makers can run again, or -1. `clock` is the work before each kernel (float64),
    `births` are the buffers as they are completed.
    """

    read_at: Array
    read: Array
    write_at: Array
    write: Array
    pair_at: Array
    pair_from: Array
    pair_to: Array
    passing: Array
    work: Array
    touch_at: Array
    touch: Array
    user_at: Array
    user: Array
    bytes: Array
    made: Array
    stays: Array
    deadline: Array
    clock: Array
    births: Array


class Residency(NamedTuple):
    """By buffer: whether it is GONE, THERE or being MADE, how many tasks hold it, the
    next kernel that touches it (a position in touch), when it is needed, marks of a
    walk, whether its sources are held (bool), whether the task at hand writes it over
    another (bool), its weight and what is lost if it leaves (float64). `leaving` are
    buffers that may leave, with `works`; `stack` is of a walk, `waiting` of buffers to
    be made; `now` is (kernel, bytes used, mark, how many wait).
    """

    there: Array
    held: Array
    coming: Array
    need: Array
    marks: Array
    entered: Array
    over: Array
    weight: Array
    worth: Array
    leaving: Array
    works: Array
    stack: Array
    waiting: Array
    now: Array


KERNEL, USED, MARK, DEPTH = range(4)
GONE, THERE, MADE = range(3)


@register_jitable
def start(facts: Facts, weight: Array) -> Residency:
    """Initialise the state before the first kernel."""
    count = len(facts.bytes)
    return Residency(
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        facts.touch_at[:-1].copy(),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.bool_),
        np.zeros(count, np.bool_),
        weight,
        np.zeros(count, np.float64),
        np.zeros(count, np.int64),
        np.zeros(count, np.float64),
        np.zeros(count, np.int64),
        np.zeros(len(facts.read) + count, np.int64),
        np.zeros(4, np.int64),
    )


@register_jitable
def find_works(
    facts: Facts, state: Residency, buffers: Array, needs: Array, works: Array
) -> None:
    """Compute the work to make each of `buffers` again, with all missing sources.

    ENDLESS where that is not possible as late as the kernel that ``needs[b]`` is.
    """
    kernels = len(facts.clock) - 1
    mark = state.now[MARK]
    for place in range(len(buffers)):
        mark += 1
        state.stack[0] = buffers[place]
        need = needs[buffers[place]]
        depth = 1
        total = 0.0
        while depth:
            depth -= 1
            if need > facts.deadline[state.stack[depth]]:
                total = ENDLESS
                break
            task = kernels + state.stack[depth]
            total += facts.work[task]
            for i in range(facts.read_at[task], facts.read_at[task + 1]):
                source = facts.read[i]
                if not state.there[source] and state.marks[source] != mark:
                    state.marks[source] = mark
                    state.stack[depth] = source
                    depth += 1
        works[place] = total
    state.now[MARK] = mark


@register_jitable
def find_needs(facts: Facts, state: Residency, task: int) -> None:
    """Compute when each buffer is needed next, by a kernel or to make another."""
    kernel = state.now[KERNEL]
    first_kernel = kernel + 1 if task == kernel else kernel
    for i in range(len(facts.births) - 1, -1, -1):
        b = facts.births[i]
        k, end = state.coming[b], facts.touch_at[b + 1]
        while k < end and facts.touch[k] < first_kernel:
            k += 1
        state.coming[b] = k
        need = facts.touch[k] if k < end else NEVER
        first, last = facts.user_at[b], facts.user_at[b + 1]
        for j in range(first, last if facts.made[b] < kernel else first):
            user = facts.user[j]
            gone = not state.there[user] and facts.made[user] < kernel
            if gone and state.need[user] < need:
                need = state.need[user]
        state.need[b] = need


@register_jitable
def find_worths(facts: Facts, state: Residency, task: int, power: float) -> None:
    """Compute the cost of evicting each buffer for `task`; ENDLESS if it must stay."""
    kernel, count = state.now[KERNEL], 0
    for b in range(len(facts.bytes)):
        state.worth[b] = ENDLESS
        if state.there[b] != THERE or not facts.bytes[b] or facts.stays[b]:
            continue
        if state.held[b] > 1:
            continue
        if state.held[b] and place_of(facts, state, task, b) < 0:
            continue
        if state.need[b] == NEVER:
            state.worth[b] = -float(facts.bytes[b])
        elif facts.made[b] < kernel:
            state.leaving[count] = b
            count += 1
    leaving, works = state.leaving[:count], state.works[:count]
    find_works(facts, state, leaving, state.need, works)
    for place in range(count):
        b = leaving[place]
        if works[place] < ENDLESS:
            time = facts.clock[state.need[b]] - facts.clock[kernel] + 1.0
            lost = works[place] / (facts.bytes[b] * time**power)
            state.worth[b] = state.weight[b] * lost


@register_jitable
def hold(facts: Facts, state: Residency, task: int) -> int:
    """Hold what `task` reads; missing buffers wait. Return their number."""
    bottom = state.now[DEPTH]
    depth = bottom
    for i in range(facts.read_at[task], facts.read_at[task + 1]):
        b = facts.read[i]
        state.held[b] += 1
        if not state.there[b]:
            state.waiting[depth] = b
            depth += 1
    state.now[DEPTH] = depth
    if depth - bottom > 1:
        sort_by_work(facts, state, bottom, depth)
    return depth - bottom


@register_jitable
def sort_by_work(facts: Facts, state: Residency, bottom: int, depth: int) -> None:
    """Sort by work, the largest last, so that it is made first."""
    waiting = state.waiting[bottom:depth]
    works = np.empty(len(waiting), np.float64)
    needs = np.zeros(len(facts.bytes), np.int64)  # at once
    find_works(facts, state, waiting, needs, works)
    for i in range(1, len(waiting)):
        b, work, j = waiting[i], works[i], i
        while j and works[j - 1] > work:
            works[j], waiting[j] = works[j - 1], waiting[j - 1]
            j -= 1
        works[j], waiting[j] = work, b


@register_jitable
def next_task(facts: Facts, state: Residency) -> int:
    """Return the next task: the maker of the last waiting buffer, or the kernel."""
    kernels = len(facts.clock) - 1
    while state.now[DEPTH]:
        b = state.waiting[state.now[DEPTH] - 1]
        if state.there[b]:
            state.now[DEPTH] -= 1
        elif state.entered[b]:
            return kernels + b
        else:
            state.entered[b] = True
            if not hold(facts, state, kernels + b):
                return kernels + b
    return state.now[KERNEL]


@register_jitable
def place_of(facts: Facts, state: Residency, task: int, b: int) -> int:
    """Return the buffer that `task` may write in place of b; -1 for none."""
    for i in range(facts.pair_at[task], facts.pair_at[task + 1]):
        target = facts.pair_to[i]
        free = state.there[target] == MADE and not state.over[target]
        if facts.pair_from[i] == b and free:
            return target
    return -1


@register_jitable
def make_room(
    facts: Facts, state: Residency, task: int, wanted: int, capacity: int, power: float
) -> None:
    """Evict values until `wanted` bytes fit, or none may leave."""
    while state.now[USED] + wanted > capacity:
        find_needs(facts, state, task)
        find_worths(facts, state, task, power)
        best = int(np.argmin(state.worth))
        if state.worth[best] == ENDLESS:
            break
        if state.held[best]:
            state.over[place_of(facts, state, task, best)] = True
        state.there[best] = GONE
        state.now[USED] -= facts.bytes[best]
    for i in range(facts.pair_at[task], facts.pair_at[task + 1]):
        state.over[facts.pair_to[i]] = False


@register_jitable
def begin(facts: Facts, state: Residency, task: int) -> int:
    """Note what `task` makes; return the bytes that it needs in addition.

    What has not been completed for the first time is not there if it is made again.
    """
    kernel = state.now[KERNEL]
    wanted = facts.passing[task]
    for i in range(facts.write_at[task], facts.write_at[task + 1]):
        b = facts.write[i]
        appears = task == kernel or facts.made[b] < kernel
        if not appears or state.there[b] == GONE:
            wanted += facts.bytes[b]
        if appears and state.there[b] == GONE:
            state.there[b] = MADE
    return wanted


@register_jitable
def finish(facts: Facts, state: Residency, task: int) -> None:
    """Mark the results of `task` as present and release what it read."""
    kernel = state.now[KERNEL]
    for i in range(facts.write_at[task], facts.write_at[task + 1]):
        b = facts.write[i]
        if state.there[b] == MADE:
            state.there[b] = THERE
            state.now[USED] += facts.bytes[b]
    for i in range(facts.read_at[task], facts.read_at[task + 1]):
        state.held[facts.read[i]] -= 1
    if task != kernel:
        state.entered[task - len(facts.clock) + 1] = False
        state.now[DEPTH] -= 1


@register_jitable
def simulate(
    facts: Facts, capacity: int, power: float, weight: Array, tasks: Array
) -> tuple[int, float, int]:
    """Return (peak bytes, work done again, number of tasks); fill in `tasks`.

    The first is NEVER where something does not fit, or more tasks than have a place
    would run.
    """
    state = start(facts, weight)
    count, peak, again = 0, 0, 0.0
    for kernel in range(len(facts.clock) - 1):
        state.now[KERNEL] = kernel
        hold(facts, state, kernel)
        task = -1
        while task != kernel:
            task = next_task(facts, state)
            wanted = begin(facts, state, task)
            if state.now[USED] + wanted > capacity:
                make_room(facts, state, task, wanted, capacity, power)
            peak = max(peak, state.now[USED] + wanted)
            if peak > capacity or count == len(tasks):
                return NEVER, again, count
            finish(facts, state, task)
            tasks[count] = task
            count += 1
            if task != kernel:
                again += facts.work[task]
    return peak, again, count


@register_jitable
def draw(seed: Array, below: int) -> int:
    """Return the next random number in 0..below-1 (Knuth's linear congruence)."""
    seed[0] = (seed[0] * 6364136223846793005 + 1442695040888963407) & ((1 << 63) - 1)
    return (seed[0] >> 33) % below


@register_jitable
def climb(
    facts: Facts, capacity: int, power: float, rounds: int, tasks: Array
) -> tuple[int, float, int]:
    """Simulate with the best weights found in so many rounds; 0 are even ones."""
    weight = np.ones(len(facts.bytes))
    other = np.empty(len(tasks), np.int64)
    peak, again, count = simulate(facts, capacity, power, weight, tasks)
    seed = np.array([1], np.int64)
    most = max(2, int(MOST_CHANGED * len(weight)))
    for _ in range(rounds):
        changed = weight.copy()
        for _ in range(1 + draw(seed, most)):
            b = draw(seed, len(weight))
            changed[b] *= 2.0 ** (draw(seed, 5) - 2)
        new_peak, new_again, length = simulate(facts, capacity, power, changed, other)
        if new_peak <= capacity and new_again <= again:
            peak, again, count, weight = new_peak, new_again, length, changed
            tasks[:length] = other[:length]
    return peak, again, count
