"""Early exit: search loops that stop once nothing can change, or are one call.

A loop that does nothing but reduce bools by "or" is done at the first True, one by
"and" at the first False. One that takes the least of ``select(condition, index,
largest)``, which is how argmax finds a place, is done at the first index where the
condition holds. Such a loop is walked in blocks, so that each is still one loop of
vectors, and blocks behind the end are empty. Indices are wide and conditions are not:
a block is first asked whether anything holds in it, and only then where.

Where elements lie side by side, the loop that finds an extreme and the one that then
looks for it are one walk instead (extremes.py).

Where a loop is cut into chunks, each ends on its own, so results and bits are those of
the whole loop. Known weakness: a chunk knows nothing of what others have found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from staticgrad.compiler.codegen.loops.extremes import LARGEST
from staticgrad.compiler.codegen.loops.split_bodies import read_by
from staticgrad.compiler.kernel_ir.kernels import (
    ADD_UP,
    CONVERTED,
    Accumulate,
    Compute,
    Index,
    Load,
    Loop,
    LoopKernel,
    Number,
    Statement,
    calls_of,
    result_of,
)
from staticgrad.compiler.kernel_ir.walks import loops_of, statements_of
from staticgrad.ir.expression import Apply, Arg, function_of
from staticgrad.ir.types import BOOL, INT64, kind_of

BLOCK_FOUND, BLOCK_FIRST = 2048, 128  # elements between two checks
LEAST_FOUND, LEAST_FIRST = 4096, 512  # of a loop: below, a check does not pay
LEAST_EXTREME = 320  # of a row: the lanes of all registers are compared in the end
COMPARED = tuple(
    np.dtype(name)
    for name in ("float32", "float64", "int32", "int64", "uint32", "uint64")
)
"""Dtypes that `extremes` compares: as wide as the numbers of their registers."""

Numbers = Mapping[int | None, Statement]
"""Numbers of a kernel, by the values that they are."""


@dataclass(frozen=True, slots=True)
class Search:
    """Condition on which a loop ends early.

    `registers` are those that settle it, each with the value that it then has or, for a
    place, does not have any more. `look` computes the values of `finds` and nothing
    else, if there are places to find; each finds something if it is as the bool beside.
    """

    registers: tuple[tuple[int, bool | None], ...]
    look: tuple[Statement, ...]
    finds: tuple[tuple[int, bool], ...]

    @property
    def block(self) -> int:
        """Number of indices between two checks."""
        return BLOCK_FIRST if self.look else BLOCK_FOUND


@dataclass(frozen=True, slots=True)
class Extreme:
    """Loop that searches the place of an extreme, and the location of its elements.

    `sign` is 1 for a maximum, `place` the register of the place. `alone` says that
    nothing but the search reads the extreme.
    """

    search: Loop
    elements: Load
    sign: int
    place: int
    alone: bool


def search_of(loop: Loop, kernel: LoopKernel, known: Numbers) -> Search | None:
    """Return the early exit of a loop; None if it has none, or is short."""
    ends = [s for s in loop.body if isinstance(s, Accumulate)]
    made = {result_of(s): s for s in loop.body if _is_pure(s)}
    if loop.polled or not ends or len(ends) + len(made) < len(loop.body):
        return None
    found = [_found(end, {**known, **made}, loop.axis) for end in ends]
    finds = tuple(find for find in found if find is not None)
    places = any(end.dtype != BOOL for end in ends)
    extent, least = kernel.axes[loop.axis], LEAST_FIRST if places else LEAST_FOUND
    if len(finds) < len(ends) or (isinstance(extent, int) and extent < least):
        return None
    return Search(
        registers=tuple(
            (end.register, find[1] if end.dtype == BOOL else None)
            for end, find in zip(ends, finds, strict=True)
        ),
        look=_needed(loop, [value for value, _ in finds]) if places else (),
        finds=finds,
    )


def _is_pure(statement: Statement) -> bool:
    if isinstance(statement, Compute) and statement.expr == ADD_UP:
        return False
    kinds = Number | Load | Compute | Index
    return isinstance(statement, kinds) and not calls_of(statement)


def _found(
    end: Accumulate, made: Mapping[int | None, Statement], axis: int
) -> tuple[int, bool] | None:
    """Return the bool that settles a register, and its value then."""
    if end.dtype == BOOL:
        return end.value, end.combine in ("or", "maximum")
    match made.get(end.value):
        case Compute(_, Apply("select"), (condition, index, other), dtype):
            pass
        case _:
            return None
    last = made.get(other)
    same = end.combine == "minimum" and dtype == end.dtype == INT64
    if not same or not isinstance(last, Number) or last.value != LARGEST:
        return None
    place = made.get(index)
    while isinstance(place, Compute) and place.expr == CONVERTED:
        place = made.get(place.args[0]) if place.dtype == INT64 else None
    if not isinstance(place, Index):
        return None
    step = place.strides[axis]
    return (condition, True) if isinstance(step, int) and step > 0 else None


def _needed(loop: Loop, values: list[int]) -> tuple[Statement, ...]:
    """Return the statements of a loop on which some values depend."""
    needed: set[int | None] = {*values}
    found: list[Statement] = []
    for statement in reversed(loop.body):
        if result_of(statement) in needed:
            found.append(statement)
            needed.update(read_by(statement))
    return tuple(reversed(found))


def extremes_of(kernel: LoopKernel, known: Numbers) -> dict[int, Extreme]:
    """Return the extremes of a kernel, by the identity of the loop that finds each."""
    found: dict[int, Extreme] = {}
    for body in (kernel.body, *(loop.body for loop in loops_of(kernel.body))):
        for first, loop in enumerate(body):
            if isinstance(loop, Loop):
                extreme = _extreme(loop, body[first + 1 :], kernel, known)
                if extreme is not None:
                    found[id(loop)] = extreme
    return found


def _extreme(
    loop: Loop, behind: Sequence[Statement], kernel: LoopKernel, known: Numbers
) -> Extreme | None:
    """Return the extreme that a loop computes, if its place is searched for later."""
    match loop.body:
        case (Load(x, access, dtype) as load, Accumulate(register, combine, value)):
            pass
        case _:
            return None
    extent = kernel.axes[loop.axis]
    short = isinstance(extent, int) and extent < LEAST_EXTREME
    plain = access.strides[loop.axis] == 1 and access.dynamic is None
    if loop.axis == 0 or loop.polled or short or not plain or dtype not in COMPARED:
        return None
    if access.operand < 0 or kernel.operands[access.operand].mode != "read":
        return None
    if x != value or combine not in ("maximum", "minimum"):
        return None
    for other in behind:
        place = _place_in(other, load, register, known)
        if place is not None and isinstance(other, Loop) and other.axis == loop.axis:
            inside = {id(s) for s in (*loop.body, *other.body)}
            alone = not any(
                register in read_by(s)
                for s in statements_of(kernel.body)
                if id(s) not in inside
            )
            sign = 1 if combine == "maximum" else -1
            return Extreme(other, load, sign, place, alone)
    return None


def _place_in(
    loop: Statement, element: Load, register: int, known: Numbers
) -> int | None:
    """Return the register of a place, if a loop finds the first extreme element.

    That is ``x == extreme``, or of floats that or ``x != x``, at the loop's own index.
    """
    if not isinstance(loop, Loop) or loop.polled or not loop.body:
        return None
    *rest, end = loop.body
    if not isinstance(end, Accumulate) or not all(map(_is_pure, rest)):
        return None
    made = {result_of(s): s for s in rest}
    found = _found(end, {**known, **made}, loop.axis)
    strides = {s.strides for s in rest if isinstance(s, Index)}
    offsets = {s.offset for s in rest if isinstance(s, Index)}
    own = tuple(int(axis == loop.axis) for axis in range(len(element.access.strides)))
    if found is None or strides != {own} or offsets != {0}:
        return None
    same = {result_of(s) for s in rest if isinstance(s, Load)
            and replace(s, result=element.result) == element}  # fmt: skip
    test = made.get(found[0])
    tests = [test]
    if isinstance(test, Compute) and function_of(test.expr) == "c_or":
        tests = [made.get(value) for value in test.args]
    wanted = {"equal", "nan"} if kind_of(element.dtype) == "f" else {"equal"}
    kinds = {_kind_of_test(test, same, register) for test in tests}
    return end.register if kinds == wanted else None


def _kind_of_test(
    test: Statement | None, elements: set[int | None], register: int
) -> str:
    """Return the kind of a condition on an element: equal to the extreme, or NaN."""
    match test:
        case Compute(_, Apply("==", (Arg(0), Arg(1))), (x, y)):
            pair = (x, y) if y == register else (y, x)
            return "equal" if pair[0] in elements and pair[1] == register else ""
        case Compute(_, Apply("!=", (Arg(0), Arg(1))), (x, y)):
            return "nan" if elements >= {x, y} else ""
    return ""
