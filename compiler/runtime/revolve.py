"""Revolve: checkpointing schedule of a reversed loop with few kept states.

The steps of a loop are reversed one by one, from the last to the first. The state at a
step is found again from the nearest snapshot before it; snapshots that are no longer
needed are taken again in between, so that s of them serve n steps with the fewest
forward steps that are possible: ``r n - C(s + r, r - 1)``, r the smallest with ``n <=
C(s + r, s)``. The state before the first step is one of the snapshots.

`decide` is one decision, taken when it is needed: the number of steps may be known when
the program runs only. It is run by the virtual machine, and by tests.

A loop that ends when a condition says so keeps snapshots as it runs forward (`note`):
every state, and where there is no room, in the place of one that is dispensable: one of
a lower level than a later one. Where none is, the last snapshot moves on and its level
rises by one. No step is then run again more often than is needed for so many snapshots,
and in all hardly more steps than if their number had been known: 14,849 instead of
14,748 for 10,000 steps and 100 snapshots.

The snapshots that are held are a list from the last to the first; so are free places.

Sources: Griewank and Walther, "Algorithm 799: revolve", ACM TOMS 26 (2000); Wang, Moin
and Iaccarino, "Minimal repetition dynamic checkpointing algorithm for unsteady adjoint
calculation", SIAM J. Sci. Comput. 31 (2009).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from staticgrad.compiler.codegen.llvm.pointers import load_int64, store_int64
from staticgrad.ir.op import snapshot_words

(STARTED, POSITION, END, GOAL, TOP, PENDING, WINDOW, SLOT, ADVANCES, HELD, USED,
 FREE, PEAK) = range(13)  # fmt: skip
HEADER = snapshot_words(0)
"""Words of the state ahead of three for each snapshot: position, the one before, level.

FREE is one more than the place that is free first, 0 if none of those USED is.
"""

NOTHING, FORWARD, BACK, STORE, RESTORE, DONE = range(6)
UNSET = -1


@njit(nogil=True)
def binomial(n: int, k: int) -> int:
    """Return ``n! / (k! (n - k)!)``; 0 for k < 0."""
    if k < 0 or k > n:
        return 0
    result = 1
    for i in range(min(k, n - k)):
        result = result * (n - i) // (i + 1)
    return result


@njit(nogil=True)
def split(steps: int, snapshots: int) -> int:
    """Return the steps to the next snapshot, with `snapshots` left, it included."""
    repeats, reach = 0, 1
    while reach < steps:
        repeats += 1
        reach = reach * (snapshots + repeats) // repeats
    most = binomial(snapshots + repeats - 1, snapshots)
    rest = binomial(snapshots + repeats - 2, snapshots - 1)
    return max(min(most, steps - rest, steps - 1), 1)


@njit(nogil=True)
def _place(slot: int) -> int:
    return HEADER + 3 * slot


@njit(nogil=True)
def _before(state: int, slot: int) -> int:
    return load_int64(state, _place(slot) + 1)


@njit(nogil=True)
def _level(state: int, slot: int) -> int:
    return load_int64(state, _place(slot) + 2)


@njit(nogil=True)
def _hold(state: int, slot: int, position: int) -> None:
    """Append a snapshot of `position` to the list."""
    store_int64(state, _place(slot), position)
    store_int64(state, _place(slot) + 1, load_int64(state, TOP))
    store_int64(state, _place(slot) + 2, 0)
    store_int64(state, TOP, slot)
    store_int64(state, SLOT, slot)
    store_int64(state, HELD, load_int64(state, HELD) + 1)


@njit(nogil=True)
def _free_place(state: int) -> int:
    free = load_int64(state, FREE)
    if free > 0:
        store_int64(state, FREE, _before(state, free - 1))
        return free - 1
    used = load_int64(state, USED)
    store_int64(state, USED, used + 1)
    return used


@njit(nogil=True)
def _drop(state: int) -> None:
    """Remove the last snapshot from the list."""
    top = load_int64(state, TOP)
    store_int64(state, TOP, _before(state, top))
    store_int64(state, _place(top) + 1, load_int64(state, FREE))
    store_int64(state, FREE, top + 1)
    store_int64(state, HELD, load_int64(state, HELD) - 1)


@njit(nogil=True)
def note(state: int, snapshots: int) -> bool:
    """Whether to keep the state ahead of a loop's next step, in place SLOT.

    The words at `state` are zero at the start.
    """
    position = load_int64(state, POSITION)
    store_int64(state, POSITION, position + 1)
    if load_int64(state, HELD) < snapshots:
        _hold(state, _free_place(state), position)
        return True
    peak, top = load_int64(state, PEAK), load_int64(state, TOP)
    if top == 0:  # the first state, which stays
        return False
    spare = _before(state, peak) if peak > 0 else 0
    if spare > 0 and _level(state, spare) < _level(state, peak):
        store_int64(state, _place(peak) + 1, _before(state, spare))
        store_int64(state, HELD, snapshots - 1)
        _hold(state, spare, position)
        return True
    store_int64(state, _place(top), position)
    store_int64(state, _place(top) + 2, _level(state, top) + 1)
    store_int64(state, PEAK, top)
    store_int64(state, SLOT, top)
    return True


@njit(nogil=True)
def _store(state: int) -> int:
    """Record a snapshot of the current state."""
    _hold(state, _free_place(state), load_int64(state, POSITION))
    store_int64(state, GOAL, UNSET)
    return STORE


@njit(nogil=True)
def _restore(state: int, end: int) -> int:
    """Return to the last snapshot ahead of `end`, which is all that is left."""
    store_int64(state, END, end)
    if end == 0:
        return DONE
    while load_int64(state, _place(load_int64(state, TOP))) >= end:
        _drop(state)
    top = load_int64(state, TOP)
    store_int64(state, SLOT, top)
    store_int64(state, POSITION, load_int64(state, _place(top)))
    store_int64(state, GOAL, UNSET)
    return RESTORE


@njit(nogil=True)
def _goal(state: int, snapshots: int) -> int:
    """Return the position to run to: the next snapshot, or the step to reverse."""
    goal = load_int64(state, GOAL)
    if goal != UNSET:
        return goal
    position = load_int64(state, POSITION)
    left = load_int64(state, END) - position
    free = snapshots - load_int64(state, HELD) + 1
    ahead = left - 1 if free <= 1 or left == 1 else split(left, free)
    store_int64(state, GOAL, position + ahead)
    return position + ahead


@njit(nogil=True)
def decide(state: int, count: int, snapshots: int) -> int:
    """Return the next action; `state` is zeros at the start, or words of `note`.

    FORWARD: run a step; BACK: reverse the step at POSITION; STORE and RESTORE: the
    snapshot in SLOT; DONE.
    """
    if load_int64(state, STARTED) == 0:
        store_int64(state, STARTED, 1)
        if load_int64(state, HELD) > 0:
            return _restore(state, max(count, 0))
        store_int64(state, END, count)
        return DONE if count <= 0 else _store(state)
    pending = load_int64(state, PENDING)
    store_int64(state, PENDING, NOTHING)
    if pending == BACK:
        return _restore(state, load_int64(state, POSITION))
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
    return _store(state)


def forward_steps(count: int, snapshots: int, noted: bool = False) -> int:
    """Count the forward steps of a reversal; `noted` ones run once before.

    >>> forward_steps(100, 10), forward_steps(1000, 10), forward_steps(1000, 64)
    (222, 3636, 1934)
    >>> forward_steps(100, 10, noted=True)  # and 100 ahead of them
    134
    """
    state = np.zeros(snapshot_words(snapshots), np.int64)
    address = int(state.ctypes.data)
    for _ in range(count if noted else 0):
        note(address, snapshots)
    while decide(address, count, snapshots) != DONE:
        pass
    return int(state[ADVANCES])
