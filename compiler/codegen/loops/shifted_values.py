"""Reuse of values from the index before, in stencil loops.

In ``f(x[i + 1]) - f(x[i])`` the second term is the first at the index before. Such a
loop keeps it in a variable, which LLVM makes a shift between two vectors ("fixed order
recurrence", https://llvm.org/docs/Vectorizers.html), with the same bits.

Two values match if one has the form that the other would have at the next index: the
same operations of elements that are one step of the loop further on. Forms are numbered
as they are met, so a value that is used often is compared once. What is kept has to be
computed anew in each iteration: LLVM knows no chain of kept values.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from staticgrad.compiler.codegen.loops.split_bodies import operations, read_by
from staticgrad.compiler.kernel_ir.kernels import (
    Compute,
    Index,
    Load,
    Loop,
    LoopKernel,
    Number,
    Statement,
    Store,
    calls_of,
    result_of,
)

LEAST_SAVED = 2  # operations for each value that is kept: a shift takes one or two


@dataclass(frozen=True, slots=True)
class Shifted:
    """Loop that keeps values: pairs of one and of its value at the next index.

    `first` computes them for the first index.
    """

    first: tuple[Statement, ...]
    body: tuple[Statement, ...]
    kept: tuple[tuple[int, int], ...]


def shifted(loop: Loop, kernel: LoopKernel) -> Shifted | None:
    """Return the values that a loop can keep for its next step; None if none pay."""
    kinds = Number | Load | Compute | Index | Store
    if not all(isinstance(s, kinds) and not calls_of(s) for s in loop.body):
        return None
    if not _reads_neighbours(loop):
        return None
    matches = _matches(loop, kernel)
    made = {result_of(s): s for s in loop.body}
    ends = [v for s in loop.body if result_of(s) is None for v in read_by(s)]
    chosen = {v for v in matches if _depth(v, matches) % 2}
    live = _needed(ends, made, matches, chosen)
    kept = {value: matches[value] for value in chosen & live}
    source = _needed(kept.values(), made, matches, chosen)
    rest = (live - source - kept.keys()) | {None}
    gone = [s for s in loop.body if result_of(s) not in rest | source]
    saved = sum(operations(s) for s in gone if isinstance(s, Compute))
    if not kept or kept.keys() & source or saved < LEAST_SAVED * len(kept):
        return None
    before = _needed(kept, made, {}, ())
    return Shifted(
        first=_of(loop.body, before),
        body=_of(loop.body, source) + _of(loop.body, rest),
        kept=tuple(kept.items()),
    )


def _reads_neighbours(loop: Loop) -> bool:
    """Whether anything is read at two places; a quick rejection of most loops."""
    places = [s.access for s in loop.body if isinstance(s, Load)]
    moving = [(a.operand, a.strides) for a in places if a.strides[loop.axis] != 0]
    return len(set(moving)) < len(moving)


def _matches(loop: Loop, kernel: LoopKernel) -> dict[int, int]:
    """Return computed values -> their values at the next index."""
    forms: dict[Hashable, int] = {}
    now: dict[int, int] = {}
    then: dict[int, int] = {}
    for statement in loop.body:
        value = result_of(statement)
        if value is None:
            continue
        here = _form(statement, loop.axis, 0, now, kernel)
        there = _form(statement, loop.axis, 1, then, kernel)
        now[value] = forms.setdefault(here, len(forms))
        then[value] = forms.setdefault(there, len(forms))
    found: dict[int, int] = {}
    for value, form in now.items():
        found.setdefault(form, value)
    return {
        s.result: found[then[s.result]]
        for s in loop.body
        if isinstance(s, Compute)
        and then[s.result] in found
        and then[s.result] != now[s.result]
    }


def _form(
    statement: Statement, axis: int, steps: int, known: Mapping[int, int],
    kernel: LoopKernel,
) -> Hashable:  # fmt: skip
    """Return the form of a value `steps` indices on; equal forms are equal values."""
    match statement:
        case Number(_, value, dtype):
            return repr(value), dtype
        case Compute(_, expr, args, dtype):
            values = tuple(known.get(a, ("outside", a)) for a in args)
            return expr, dtype, values
        case Index(_, strides, offset):
            return strides, offset + steps * strides[axis]
        case Load(_, access, dtype):
            place = access.operand
            if place >= 0 and kernel.operands[place].mode == "read":
                moved = access.offset + steps * access.strides[axis]
                if access.dynamic is None:
                    return place, access.strides, moved, dtype
    return "own", result_of(statement), steps


def _depth(value: int, matches: Mapping[int, int]) -> int:
    depth = 0
    while value in matches:
        value, depth = matches[value], depth + 1
    return depth


def _needed(
    ends: Collection[int],
    made: Mapping[int | None, Statement],
    matches: Mapping[int, int],
    kept: Collection[int],
) -> set[int]:
    """Return the values that `ends` depend on; `kept` ones need their successors."""
    found: set[int] = set()
    left = list(ends)
    while left:
        value = left.pop()
        if value in found or value not in made:
            continue
        found.add(value)
        left += [matches[value]] if value in kept else read_by(made[value])
    return found


def _of(
    body: Sequence[Statement], values: Collection[int | None]
) -> tuple[Statement, ...]:
    return tuple(s for s in body if result_of(s) in values)
