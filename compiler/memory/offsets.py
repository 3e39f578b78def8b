"""Offsets of buffers with limited lives in one arena.

Buffer b has sizes[b] units and lives from step first[b] to last[b], inclusive; two
buffers that live at one step must not overlap. This is dynamic storage allocation,
which is NP-hard, so there are several ways of placing:

- `place`: each buffer of a given order at the lowest offset free for its whole life;
- `skyline`: always in the lowest gap; of the buffers that fit into its steps the one
  with the greatest key, and if there is none the gap is filled up to the lower wall
  (Sekiyama et al., "Profile-guided memory optimization for deep neural networks",
  2018);
- `improve`: hill climbing over the keys of `skyline`: the keys of buffers above the
  bound grow, so that they are placed earlier (Joslin and Clements, "Squeaky wheel
  optimization", 1999). On dense random graphs this ends at 1.003 times the bound on
  average, where the best of `place` by size, area and conflicts is at 1.042.

They are Python that Numba can compile too (`Compiled`): for a few buffers Python is
faster than loading what has been compiled. Nothing reads a clock: a plan is a function
of its input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numba import njit
from numba.extending import register_jitable

from staticgrad.compiler.host.disk import cached_or_not

# Whole numbers by position: arrays where compiled, lists or arrays in Python.
Ints: TypeAlias = Any

# So many rounds without success, and it starts again: from the best keys, or others.
RESTART = 60
# A key of a buffer above the bound grows by a random part of this.
GAIN = 3.0


class Compiled:
    """Function that Numba compiles at its first call, or loads from its cache."""

    __slots__ = ("_function", "_native")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._native: Any = None

    @property
    def is_ready(self) -> bool:
        """Whether a call need not compile or load anything."""
        return self._native is not None

    def __call__(self, *args: Any) -> Any:
        """Call the function with `args`."""
        if self._native is None:
            return self._first_call(*args)
        return self._native(*args)

    def _first_call(self, *args: Any) -> Any:
        def build(_stamp: str, cache: bool) -> tuple[Any, Any]:
            native = njit(self._function, nogil=True, cache=cache)
            return native, native(*args)

        self._native, result = cached_or_not(build, "")
        return result


@register_jitable
def place(order: Ints, sizes: Ints, first: Ints, last: Ints, offsets: Ints) -> int:
    """Place each buffer of `order` at the lowest free offset; return the units."""
    placed = np.empty(len(order), np.int64)
    top = 0
    for count in range(len(order)):
        b = order[count]
        low = 0
        for p in range(count):
            other = placed[p]
            if first[other] > last[b] or first[b] > last[other]:
                continue
            if offsets[other] >= low + sizes[b]:
                break
            low = max(low, offsets[other] + sizes[other])
        offsets[b] = low
        top = max(top, low + sizes[b])
        p = count
        while p > 0 and offsets[placed[p - 1]] > low:
            placed[p] = placed[p - 1]
            p -= 1
        placed[p] = b
    return top


@register_jitable
def skyline(
    keys: Ints, sizes: Ints, first: Ints, last: Ints, born: Ints, offsets: Ints
) -> int:
    """Fill the lowest gap first, by the greatest key; return the units needed.

    Buffers are in order of `first`; those with ``first == t`` are born[t]..born[t + 1].
    A gap is a run of steps [a, end[a]] of one height; gaps are a list linked by
    `before` and `behind`, -1 at the ends.
    """
    steps = len(born) - 1
    height = np.zeros(steps, np.int64)
    end = np.full(steps, steps - 1, np.int64)
    before = np.full(steps, -1, np.int64)
    behind = np.full(steps, -1, np.int64)
    placed = np.zeros(len(sizes), np.bool_)
    done = 0
    top = 0
    while done < len(sizes):
        gap = _lowest(height, behind)
        b = _fitting(gap, end[gap], keys, last, born, placed)
        if b < 0:
            _fill(gap, height, end, before, behind)
            continue
        placed[b] = True
        done += 1
        offsets[b] = height[gap]
        top = max(top, height[gap] + sizes[b])
        gap = _cut(gap, first[b], height, end, before, behind)
        if last[b] < end[gap]:
            _cut(gap, last[b] + 1, height, end, before, behind)
        height[gap] += sizes[b]
        _join(gap, height, end, before, behind)
    return top


@register_jitable
def _lowest(height: Ints, behind: Ints) -> int:
    lowest = 0
    gap = behind[0]
    while gap >= 0:
        if height[gap] < height[lowest]:
            lowest = gap
        gap = behind[gap]
    return lowest


@register_jitable
def _fitting(
    gap: int, end: int, keys: Ints, last: Ints, born: Ints, placed: Ints
) -> int:
    found = -1
    for b in range(born[gap], born[end + 1]):
        if placed[b] or last[b] > end:
            continue
        if found < 0 or keys[b] > keys[found]:
            found = b
    return found


@register_jitable
def _fill(gap: int, height: Ints, end: Ints, before: Ints, behind: Ints) -> None:
    """Raise a gap to the lower of its walls; one wall exists while buffers are left."""
    left, right = before[gap], behind[gap]
    if right < 0 or (left >= 0 and height[left] < height[right]):
        height[gap] = height[left]
    else:
        height[gap] = height[right]
    _join(gap, height, end, before, behind)


@register_jitable
def _cut(
    gap: int, step: int, height: Ints, end: Ints, before: Ints, behind: Ints
) -> int:
    """Split a gap at `step` and return the gap that begins there."""
    if step == gap:
        return gap
    end[step] = end[gap]
    height[step] = height[gap]
    before[step] = gap
    behind[step] = behind[gap]
    if behind[gap] >= 0:
        before[behind[gap]] = step
    end[gap] = step - 1
    behind[gap] = step
    return step


@register_jitable
def _join(gap: int, height: Ints, end: Ints, before: Ints, behind: Ints) -> None:
    """Merge a gap with the neighbours of its height."""
    right = behind[gap]
    left = before[gap]
    if right >= 0 and height[right] == height[gap]:
        _absorb(gap, right, end, before, behind)
    if left >= 0 and height[left] == height[gap]:
        _absorb(left, gap, end, before, behind)


@register_jitable
def _absorb(left: int, right: int, end: Ints, before: Ints, behind: Ints) -> None:
    end[left] = end[right]
    behind[left] = behind[right]
    if behind[right] >= 0:
        before[behind[right]] = left


def improve(
    orders: Ints,
    starts: Ints,
    sizes: Ints,
    first: Ints,
    last: Ints,
    born: Ints,
    offsets: Ints,
    bound: int,
    rounds: int,
) -> int:
    """Store the best of `offsets`, `orders` and `rounds` skylines; return the units.

    `starts` are keys to climb from. `offsets` is overwritten if a better one is found.
    """
    trial = np.empty(len(sizes), np.int64)
    keys = np.empty(len(sizes), np.float64)
    best_keys = np.empty(len(sizes), np.float64)
    best: int = _top(offsets, sizes)
    for n in range(len(orders)):
        if best > bound:
            top = place(orders[n], sizes, first, last, trial)
            if top < best:
                best = top
                _copy(trial, offsets, 1)
    _copy(starts[0], keys, 1.0)
    least = 2**62
    since = restarts = 0
    draw = 1
    for _ in range(rounds):
        if best <= bound:
            break
        top = skyline(keys, sizes, first, last, born, trial)
        since += 1
        if top < best:
            best = top
            _copy(trial, offsets, 1)
        if top < least:
            least = top
            _copy(keys, best_keys, 1.0 / max(keys[0], 1.0))
            since = 0
        if since % RESTART == RESTART - 1:
            restarts += 1
            other = starts[restarts // 2 % len(starts)]
            _copy(other if restarts % 2 else best_keys, keys, 1.0)
        for b in range(len(sizes)):
            if trial[b] + sizes[b] > bound:
                draw = (draw * 1103515245 + 12345) & 0x7FFFFFFF
                keys[b] *= 1.0 + GAIN * (draw / 0x7FFFFFFF)
    return best


@register_jitable
def _top(offsets: Ints, sizes: Ints) -> int:
    """Return the units that offsets need."""
    top = 0
    for b in range(len(sizes)):
        top = max(top, offsets[b] + sizes[b])
    return top


# A loop: Numba takes two seconds to compile an assignment to a slice.
@register_jitable
def _copy(source: Ints, target: Ints, scale: float) -> None:
    for n in range(len(source)):
        target[n] = source[n] * scale
