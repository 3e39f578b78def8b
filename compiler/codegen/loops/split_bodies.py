"""Loop fission: long loop bodies in pieces that the processor can overlap.

A body whose many vector operations wait for each other is limited by the out-of-order
window: few iterations are in flight at a time. So it runs in blocks: for each block one
loop per piece, and what a later piece needs of an earlier one is carried in scratch, in
first-level cache.

A cut is made where few values cross it. Values that can be loaded again are not
carried. Pieces that follow each other and do the same, alone or by turns, are written
once, in a loop. Measured (Zen 4, ns per element of float32): eight times sin 8.3 in one
piece, 5.3 in pieces; eight times tanh 7.0 and 4.4; a body of four functions whose
values are needed far away 1.9 and 2.3: hence the limit on crossing values.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from staticgrad.compiler.codegen.language import SCALAR_FUNCTIONS
from staticgrad.compiler.codegen.loops.blocked_draws import drawn_in_blocks
from staticgrad.compiler.codegen.loops.trigonometric_loops import arguments
from staticgrad.compiler.kernel_ir.kernels import (
    Accumulate,
    Compute,
    Index,
    Load,
    Loop,
    LoopKernel,
    Statement,
    Store,
    Value,
    dtype_of,
    result_of,
)
from staticgrad.compiler.kernel_ir.walks import is_flat, loops_of
from staticgrad.ir.expression import Apply, Expr, walk
from staticgrad.ir.types import DType

BLOCK = 512  # indices per block: a carried float32 takes 2 KB of first-level cache
LONGEST = 48  # vector operations that may wait for each other in one loop
PIECE = 24  # vector operations of a piece, about: one elementary function
MOST_REPEATED = 4  # different pieces that repeat together
MOST_CROSSING = 2  # values live at a cut; more cost as much as a cut gains


@dataclass(frozen=True, slots=True)
class BodySection:
    """Statements that run in one loop.

    `taken` are values that earlier pieces have put into scratch, `given` those that
    this one puts there: pairs of a value and its area.
    """

    body: tuple[Statement, ...]
    taken: tuple[tuple[int, int], ...]
    given: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of a loop's body; `areas` are the dtypes of the values carried."""

    pieces: tuple[BodySection, ...]
    areas: tuple[DType, ...]


def operations(statement: Statement) -> int:
    """Estimate the vector operations of a statement."""
    if not isinstance(statement, Compute):
        return 1
    return 1 + _operations(statement.expr)


@cache
def _operations(expr: Expr) -> int:
    called = (part.name for part in walk(expr) if isinstance(part, Apply))
    named = [name for name in called if isinstance(name, str) and name.islower()]
    return sum(SCALAR_FUNCTIONS[name].operations for name in named)


def in_pieces(loop: Loop, kernel: LoopKernel) -> Pieces | None:
    """Split the body of an innermost loop into pieces; None if it stays whole."""
    body = loop.body
    if not is_flat(body):
        return None
    drawn = frozenset(s.result for s in drawn_in_blocks(loop))
    weights = [1 if result_of(s) in drawn else operations(s) for s in body]
    if sum(weights) <= LONGEST or is_tied(loop):
        return None
    longest = _longest_wait(body, weights)
    if longest <= LONGEST or 2 * longest < sum(weights):
        return None
    cuts = _cuts(body, weights)
    if not cuts:
        return None
    return _carried(body, cuts, kernel, drawn)


def pieces_of(kernel: LoopKernel) -> dict[int, Pieces]:
    """Return the loops of `kernel` that run in pieces, by identity."""
    found = ((id(loop), in_pieces(loop, kernel)) for loop in loops_of(kernel.body))
    return {number: pieces for number, pieces in found if pieces is not None}


def _longest_wait(body: Sequence[Statement], weights: Sequence[int]) -> int:
    """Return the operations of the longest dependence chain of statements."""
    depth: dict[int, int] = {}
    for statement, weight in zip(body, weights, strict=True):
        before = max((depth.get(number, 0) for number in read_by(statement)), default=0)
        result = result_of(statement)
        if result is not None:
            depth[result] = before + weight
    return max(depth.values(), default=0)


def is_tied(loop: Loop) -> bool:
    """Whether an iteration reads what the one before it wrote."""
    return any(
        isinstance(s, Store)
        and (s.access.strides[loop.axis] == 0 or s.access.dynamic is not None)
        for s in loop.body
    )


def read_by(statement: Statement) -> tuple[int, ...]:
    """Return the values that a statement reads."""
    if isinstance(statement, Store | Accumulate):
        return (statement.value,)
    return arguments(statement)


def _cuts(body: Sequence[Statement], weights: Sequence[int]) -> list[int]:
    """Return places between statements at which few values are live."""
    crossing = _crossing(body)
    cuts: list[int] = []
    start, weight = 0, 0
    left = sum(weights)
    best: tuple[int, int] | None = None
    for place, own in enumerate(weights):
        weight += own
        left -= own
        if weight >= PIECE // 2 and crossing[place] <= MOST_CROSSING:
            best = min(best or (crossing[place], -place), (crossing[place], -place))
        if weight >= PIECE and left > PIECE // 2 and best is not None:
            cuts.append(1 - best[1])
            start = 1 - best[1]
            weight = sum(weights[start : place + 1])
            best = None
    return cuts


def _crossing(body: Sequence[Statement]) -> list[int]:
    """Return, after each statement, the number of live computed values."""
    last: dict[int, int] = {}
    for place, statement in enumerate(body):
        last.update((number, place) for number in read_by(statement))
    changes = [0] * (len(body) + 1)
    for place, statement in enumerate(body):
        result = result_of(statement)
        if result is None or isinstance(statement, Index | Load):
            continue
        if last.get(result, place) > place:
            changes[place] += 1
            changes[last[result]] -= 1
    counts: list[int] = []
    live = 0
    for change in changes[: len(body)]:
        live += change
        counts.append(live)
    return counts


def _carried(
    body: Sequence[Statement],
    cuts: list[int],
    kernel: LoopKernel,
    drawn: frozenset[int],
) -> Pieces:
    bounds = [0, *cuts, len(body)]
    made = {s.result: (n, s) for n, s in enumerate(body) if isinstance(s, Value)}
    taken: list[list[int]] = [[] for _ in bounds[1:]]
    given: list[dict[int, DType]] = [{} for _ in bounds[1:]]
    again: list[dict[int, Statement]] = [{} for _ in bounds[1:]]
    for number, (first, last) in enumerate(pairwise(bounds)):
        wanted = [value for s in body[first:last] for value in read_by(s)]
        for value in dict.fromkeys(wanted):
            place, statement = made.get(value, (first, None))
            if statement is None or place >= first:
                continue
            if value in drawn or _can_repeat(statement, kernel):
                again[number][value] = statement
                continue
            owner = next(n for n, end in enumerate(bounds[1:]) if place < end)
            given[owner][value] = dtype_of(statement)
            taken[number].append(value)
    areas, dtypes = _areas(taken, given)
    pieces = tuple(
        BodySection(
            (*again[n].values(), *body[first:last]),
            tuple((value, areas[value]) for value in taken[n]),
            tuple((value, areas[value]) for value in given[n]),
        )
        for n, (first, last) in enumerate(pairwise(bounds))
    )
    return Pieces(pieces, tuple(dtypes))


def _areas(
    taken: Sequence[Sequence[int]], given: Sequence[Mapping[int, DType]]
) -> tuple[dict[int, int], list[DType]]:
    """Return an area for each value that is carried, and the dtypes of the areas.

    An area is free again in the piece that takes its value last: an element is read
    before one is written in its place. So few areas stay in first-level cache, and
    pieces that do the same are the same text.
    """
    last = {value: number for number, values in enumerate(taken) for value in values}
    areas: dict[int, int] = {}
    dtypes: list[DType] = []
    idle: list[int] = []
    for number, values in enumerate(given):
        idle.extend(areas[value] for value in taken[number] if last[value] == number)
        for value, dtype in values.items():
            area = next((a for a in idle if dtypes[a] == dtype), len(dtypes))
            if area == len(dtypes):
                dtypes.append(dtype)
            else:
                idle.remove(area)
            areas[value] = area
    return areas, dtypes


def repeats(texts: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """Return runs of texts: (first, how many, how often those follow each other).

    >>> repeats(["a", "b", "c", "b", "c", "d"])
    [(0, 1, 1), (1, 2, 2), (5, 1, 1)]
    """
    found: list[tuple[int, int, int]] = []
    place = 0
    while place < len(texts):
        # The fewest texts that stand for the most.
        count, times = max(
            ((n, _times(texts, place, n)) for n in range(1, MOST_REPEATED + 1)),
            key=lambda run: (run[0] * (run[1] - 1), -run[0]),
        )
        found.append((place, count, times))
        place += count * times
    return found


def _times(texts: Sequence[Hashable], place: int, count: int) -> int:
    """Return the number of repetitions of the `count` texts from `place` on."""
    times, unit = 1, texts[place : place + count]
    while texts[place + times * count : place + (times + 1) * count] == unit:
        times += 1
    return times


def _can_repeat(statement: Statement, kernel: LoopKernel) -> bool:
    """Whether a statement can be recomputed for the price of carrying its value."""
    if isinstance(statement, Index):
        return True
    if not isinstance(statement, Load) or statement.access.dynamic is not None:
        return False
    number = statement.access.operand
    return number >= 0 and kernel.operands[number].mode == "read"
