"""Encoding of a Schedule in numbers, for eviction.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from staticgrad.compiler.budget.eviction import Facts
from staticgrad.compiler.budget.rematerialise import Recipe, Uses
from staticgrad.compiler.kernel_ir.kernels import FinishKernel
from staticgrad.compiler.kernel_ir.run_costs import work
from staticgrad.compiler.kernel_ir.schedule import Schedule, reads, writes
from staticgrad.compiler.memory import planner
from staticgrad.compiler.memory.in_place import shareable
from staticgrad.ir.alignment import ALIGNMENT


def facts_of(
    uses: Uses,
    recipes: Mapping[int, Recipe],
    values: Mapping[str, int],
    cutting: planner.Cutting,
) -> Facts:
    """Return the Facts for `simulate`, when symbols have `values`.

    Chunks are those of `cutting`.
    """
    schedule, kernels = uses.schedule, uses.schedule.kernels
    count = range(len(schedule.buffers))
    sizes = planner.arena_sizes(schedule, values, cutting)
    passing = [
        -(-size // ALIGNMENT) * ALIGNMENT if uses.arena[b] else 0
        for b, size in enumerate(sizes)
    ]
    padded = list(passing)
    works = [work(kernel, schedule.buffers, values) for kernel in kernels]
    pairs = [shareable(schedule, kernel) for kernel in kernels]
    for position, (slots, result) in _finishes(schedule):
        if not sizes[slots]:
            padded[slots] = padded[result]  # its maker writes the result already
            pairs[position].append((slots, result))
    again = [recipes.get(b) for b in count]
    users: list[list[int]] = [[] for _ in count]
    for b, recipe in recipes.items():
        for source in recipe.sources:
            users[source].append(b)
    sharing = [*pairs, *(_pairs_again(uses, recipe, pairs) for recipe in again)]
    born = [b for b in uses.written if uses.arena[b]]
    read_at, read = _joined([
        *(_of_arena(uses, reads(kernel)) for kernel in kernels),
        *(recipe.sources if recipe else () for recipe in again),
    ])  # fmt: skip
    write_at, write = _joined([
        *(_of_arena(uses, writes(kernel)) for kernel in kernels),
        *(recipe.results if recipe else () for recipe in again),
    ])  # fmt: skip
    pair_at, pair_from = _joined([[read for read, _ in shared] for shared in sharing])
    _, pair_to = _joined([[written for _, written in shared] for shared in sharing])
    touch_at, touch = _joined([uses.touched.get(b, ()) for b in count])
    user_at, user = _joined(users)
    return Facts(
        read_at=read_at, read=read, write_at=write_at, write=write, pair_at=pair_at,
        pair_from=pair_from, pair_to=pair_to, touch_at=touch_at, touch=touch,
        user_at=user_at, user=user, bytes=_whole(padded),
        passing=_whole([
            *(0 for _ in kernels),
            *(sum(passing[o] for o in r.others) if r else 0 for r in again),
        ]),
        work=np.array([
            *works, *(sum(works[p] for p in r.kernels) if r else 0 for r in again)
        ], np.float64),
        made=_whole([max(uses.written.get(b, (-1,))) for b in count]),
        stays=np.array([b in uses.ends for b in count], np.bool_),
        deadline=_whole([-1 if r is None else r.deadline for r in again]),
        clock=np.array([0, *accumulate(works)], np.float64),
        births=_whole(sorted(born, key=lambda b: (uses.written[b][-1], b))),
    )  # fmt: skip


def _finishes(schedule: Schedule) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield positions of finishes, with the buffers of slots and result."""
    for position, kernel in enumerate(schedule.kernels):
        if isinstance(kernel, FinishKernel):
            slots, result = (operand.buffer for operand in kernel.operands)
            yield position, (slots, result)


def bound(facts: Facts) -> tuple[int, int]:
    """Return the most bytes that any kernel touches at once, and that kernel.

    Every order needs them. What may be written over something counts once.
    """
    most, largest = 0, 0
    for kernel in range(len(facts.clock) - 1):
        touched = {
            *_part(facts.read_at, facts.read, kernel),
            *_part(facts.write_at, facts.write, kernel),
        } - set(_part(facts.pair_at, facts.pair_to, kernel))
        size = sum(int(facts.bytes[b]) for b in touched)
        if size > most:
            most, largest = size, kernel
    return most, largest


def _part(at: Any, items: Any, number: int) -> list[int]:
    found: list[int] = items[at[number] : at[number + 1]].tolist()
    return found


def _of_arena(uses: Uses, buffers: Sequence[int]) -> list[int]:
    """Return those that lie in the arena and are written there, each once."""
    found = dict.fromkeys(buffers)
    return [b for b in found if uses.arena[b] and b in uses.written]


def _pairs_again(
    uses: Uses, recipe: Recipe | None, pairs: Sequence[list[tuple[int, int]]]
) -> list[tuple[int, int]]:
    """Return pairs of a recipe's first kernel whose source no later kernel reads."""
    if recipe is None:
        return []
    first, *rest = recipe.kernels
    later = {b for p in rest for b in reads(uses.schedule.kernels[p])}
    return [
        (read, written)
        for read, written in pairs[first]
        if read not in later and written in recipe.results
    ]


def _joined(parts: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """Return the offset of each part, and their concatenation."""
    at = _whole([0, *accumulate(len(part) for part in parts)])
    return at, _whole([item for part in parts for item in part])


def _whole(numbers: Sequence[int]) -> Any:
    return np.array(numbers, np.int64)
