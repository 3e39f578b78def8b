"""List scheduling of a long loop body's instructions, for out-of-order execution.

A body of several functions is written one function after the other. A processor that
looks ahead over a hundred or so instructions then sees one or two chains of
instructions that wait for each other, while others, which could run beside them, are
too far ahead. So each instruction is put halfway between the earliest time at which its
operands are there and the latest at which nothing waits for it. Values do not change.
Measured on a Zen 4: tanh, sigmoid, exp and log1p with their gradients 4 % faster; one
function by itself no different.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from llvmlite import ir

LONG_BODY = 100  # instructions: shorter bodies fit the out-of-order window

_CYCLES = {
    "load": 7, "fdiv": 11, "call": 4, "fmul": 3, "fadd": 3, "fsub": 3, "fcmp": 4,
    "icmp": 4, "sitofp": 3, "uitofp": 3, "fptosi": 3, "fpext": 3, "fptrunc": 3,
    "bitcast": 0, "inttoptr": 0, "getelementptr": 0, "sext": 0, "zext": 0,
}  # fmt: skip
"""From operands to result, about; one where nothing is said."""

_NAMES = "fma sqrt fabs copysign rint floor ceil trunc smax smin umax umin"
PURE = frozenset(f"llvm.{name}" for name in _NAMES.split())


def overlapped(body: Sequence[Any]) -> list[Any]:
    """Reorder the instructions of one block, phis first.

    Short ones stay as they are, and so does what was written in vectors, register by
    register.
    """
    if len(body) < LONG_BODY or any(isinstance(x.type, ir.VectorType) for x in body):
        return list(body)
    phis = [one for one in body if one.opname == "phi"]
    rest = body[len(phis) :]
    start, left = times([one.opname for one in rest], _waits(rest))
    order = sorted(range(len(rest)), key=lambda place: start[place] - left[place])
    return phis + [rest[place] for place in order]


def times(
    names: Sequence[str], waits: Sequence[Collection[int]]
) -> tuple[list[int], list[int]]:
    """Return the earliest start of each instruction, and the time from it to the end.

    In cycles; `names` are operations, `waits` the places of those that come before.
    """
    cycles = [_CYCLES.get(name, 1) for name in names]
    start, left = [0] * len(cycles), list(cycles)
    for place, before in enumerate(waits):
        start[place] = max((start[k] + cycles[k] for k in before), default=0)
    for place in reversed(range(len(cycles))):
        for k in waits[place]:
            left[k] = max(left[k], cycles[k] + left[place])
    return start, left


def _waits(body: Sequence[Any]) -> list[set[int]]:
    """Return, for each instruction, those that have to precede it.

    Besides its operands: for what may write to memory all that uses memory, for a load
    the last that may write.
    """
    places = {id(one): place for place, one in enumerate(body)}
    found: list[set[int]] = []
    last: set[int] = set()
    loads: set[int] = set()
    for place, one in enumerate(body):
        waits = {places[id(x)] for x in one.operands if id(x) in places}
        if one.opname == "load":
            waits |= last
            loads.add(place)
        elif _may_write(one):
            waits |= last | loads
            last, loads = {place}, set()
        found.append(waits)
    return found


def _family(callee: Any) -> str:
    """Return llvm.fma of llvm.fma.f32."""
    return ".".join(str(getattr(callee, "name", "")).split(".")[:2])


def _may_write(one: Any) -> bool:
    if one.opname == "call":
        return _family(one.callee) not in PURE
    return one.opname in ("store", "atomicrmw", "cmpxchg", "fence")
