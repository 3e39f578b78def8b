"""Revolve: which step of a loop to run, keep or reverse next, with few kept states.

The steps of a loop are reversed one by one, from the last to the first. The state at a
step is found again from the nearest snapshot before it; snapshots that are no longer
needed are taken again in between, so that s of them serve n steps with the fewest
forward steps that are possible: ``r n - C(s + r, r - 1)``, r the smallest with ``n <=
C(s + r, s)``. The state before the first step is one of the snapshots.

`decide` is one decision, taken when it is needed: the number of steps may be known when
the program runs only. It is run by the virtual machine, and by tests.

Source: Griewank and Walther, "Algorithm 799: revolve", ACM TOMS 26 (2000).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from staticgrad.compiler.pointers import load_int64, store_int64

(STARTED, POSITION, END, GOAL, TOP, PENDING, WINDOW, SLOT, ADVANCES) = range(9)
HEADER = 16
"""Words of the state ahead of the positions of the snapshots."""

NOTHING, FORWARD, BACK, STORE, RESTORE, DONE = range(6)
UNSET = -1


@njit(nogil=True)
def binomial(n: int, k: int) -> int:
    """``n! / (k! (n - k)!)``; 0 for k < 0."""
    if k < 0 or k > n:
        return 0
    result = 1
    for i in range(min(k, n - k)):
        result = result * (n - i) // (i + 1)
    return result


@njit(nogil=True)
def split(steps: int, snapshots: int) -> int:
    """How far to go before the next snapshot, with so many left, this one included."""
    repeats, reach = 0, 1
    while reach < steps:
        repeats += 1
        reach = reach * (snapshots + repeats) // repeats
    most = binomial(snapshots + repeats - 1, snapshots)
    rest = binomial(snapshots + repeats - 2, snapshots - 1)
    return max(min(most, steps - rest, steps - 1), 1)


@njit(nogil=True)
def _store(state: int, slot: int) -> int:
    """Note a snapshot of where the loop is."""
    store_int64(state, HEADER + slot, load_int64(state, POSITION))
    store_int64(state, SLOT, slot)
    store_int64(state, TOP, slot)
    store_int64(state, GOAL, UNSET)
    return STORE


@njit(nogil=True)
def _restore(state: int) -> int:
    """Go back to the last snapshot ahead of the step that was reversed."""
    end, top = load_int64(state, POSITION), load_int64(state, TOP)
    store_int64(state, END, end)
    if end == 0:
        return DONE
    if load_int64(state, HEADER + top) == end:
        top -= 1
    store_int64(state, TOP, top)
    store_int64(state, SLOT, top)
    store_int64(state, POSITION, load_int64(state, HEADER + top))
    store_int64(state, GOAL, UNSET)
    return RESTORE


@njit(nogil=True)
def _goal(state: int, snapshots: int) -> int:
    """Where to run to: to the next snapshot, or to the step to be reversed."""
    goal = load_int64(state, GOAL)
    if goal != UNSET:
        return goal
    position = load_int64(state, POSITION)
    left = load_int64(state, END) - position
    free = snapshots - load_int64(state, TOP)
    ahead = left - 1 if free <= 1 or left == 1 else split(left, free)
    store_int64(state, GOAL, position + ahead)
    return position + ahead


@njit(nogil=True)
def decide(state: int, count: int, snapshots: int) -> int:
    """What to do next; the words at `state` are zero at the start.

    FORWARD: run a step; BACK: reverse the step at POSITION; STORE and RESTORE: the
    snapshot in SLOT; DONE.
    """
    if load_int64(state, STARTED) == 0:
        store_int64(state, STARTED, 1)
        store_int64(state, END, count)
        return DONE if count <= 0 else _store(state, 0)
    pending = load_int64(state, PENDING)
    store_int64(state, PENDING, NOTHING)
    if pending == BACK:
        return _restore(state)
    if pending == FORWARD:
        store_int64(state, POSITION, load_int64(state, POSITION) + 1)
        store_int64(state, ADVANCES, load_int64(state, ADVANCES) + 1)
    goal, position = _goal(state, snapshots), load_int64(state, POSITION)
    if position < goal:
        store_int64(state, PENDING, FORWARD)
        return FORWARD
    if position == load_int64(state, END) - 1:
        store_int64(state, PENDING, BACK)
        return BACK
    return _store(state, load_int64(state, TOP) + 1)


def forward_steps(count: int, snapshots: int) -> int:
    """How many forward steps reversing takes.

    >>> forward_steps(100, 10), forward_steps(1000, 10), forward_steps(1000, 64)
    (222, 3636, 1934)
    """
    state = np.zeros(HEADER + snapshots, np.int64)
    address = int(state.ctypes.data)
    while decide(address, count, snapshots) != DONE:
        pass
    return int(state[ADVANCES])
