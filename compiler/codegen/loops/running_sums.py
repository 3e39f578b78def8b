"""Cumulative sums of floats, a register at a time.

One addition after the other waits four cycles for each element. Here the lanes of a
register are added up within it, by shifting it by 1, 2, 4, ... lanes, and only one
addition per register waits for the one before: 1.5 ns an element became 0.3 (float32,
Zen 4).

Elements are added in another order than one by one, by pairs within a register: the
order depends on the number of lanes alone. What came before a register is float64, of
float32 too, so a sum is off by the roundings of one register and no more: 1e-7 instead
of 1e-2 for 2^24 equal numbers, for a tenth more time. Known weakness: where partial
sums of neighbours overflow, so does the result, though one by one it may not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from staticgrad.compiler.codegen.llvm.index_code import At, IndexCode
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.llvm.kernel_pointers import Pointer
from staticgrad.compiler.host import processor
from staticgrad.compiler.kernel_ir.kernels import (
    CONVERTED,
    Access,
    Compute,
    Load,
    Loop,
    Store,
    result_of,
)
from staticgrad.ir.expression import Apply, Arg
from staticgrad.ir.size import Dim

LEAST = 32  # elements from which registers pay
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


@dataclass(frozen=True, slots=True)
class Running:
    """Cumulative sum of a loop: where it begins to read and write, and its state.

    `exclusive` says that the sum is written before the element is added to it,
    `turned` that elements are read from the last one to the first: a derivative.
    """

    state: Access
    source: Access
    target: Access
    exclusive: bool
    turned: bool
    step: Compute


def running_of(loop: Loop, extent: Dim) -> Running | None:
    """Match ``state = state + x; y = state`` along a contiguous axis; else None."""
    casts = {
        s.result: s.args[0]
        for s in loop.body
        if isinstance(s, Compute) and s.expr == CONVERTED
    }
    match [s for s in loop.body if result_of(s) not in casts]:
        case [
            Load(old, state),
            Load(x, source, dtype),
            Compute(new, Apply("+", (Arg(0), Arg(1))), args) as step,
            Store(kept, stored),
            Store(target, shown),
        ]:
            pass
        case _:
            return None
    args = tuple(casts.get(value, value) for value in args)
    shown = casts.get(shown, shown)
    few = isinstance(extent, int) and extent < LEAST
    wide = np.dtype(np.float64) if casts else dtype
    if few or loop.axis == 0 or dtype not in FLOATS or step.dtype != wide:
        return None
    sums = args == (old, x) and stored == new and shown in (old, new)
    places = (state, source, target)
    fixed = all(place.dynamic is None for place in places)
    if not sums or not fixed or kept != state or state.operand >= 0:
        return None
    steps = [place.strides[loop.axis] for place in places]
    if steps not in ([0, 1, 1], [0, -1, 1]):
        return None
    return Running(
        state,
        _at_start(source, loop.axis),
        _at_start(target, loop.axis),
        shown == old,
        steps[1] == -1,
        step,
    )


def _at_start(access: Access, axis: int) -> Access:
    strides = (*access.strides[:axis], 0, *access.strides[axis + 1 :])
    return replace(access, strides=strides)


@intrinsic(prefer_literal=True)
def running_sum(
    typing: Any,
    source: Any,
    first: Any,
    target: Any,
    start: Any,
    count: Any,
    exclusive: Any,
    turned: Any,
    carry: Any,
) -> Any:
    """Emit ``running_sum(p, i, q, j, n, exclusive, turned, carry)``; return the total.

    ``q[j + k]`` becomes `carry` and the sum of ``p[i], ..., p[i + k]``, without the
    last one if `exclusive` is 1; if `turned` (reversed) is 1, of ``p[i], ..., p[i -
    k]``.
    """
    if not isinstance(source, Pointer) or not isinstance(target, Pointer):
        return None
    form = bool(exclusive.literal_value), bool(turned.literal_value)
    bits = source.dtype.bitwidth

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
        lanes = processor.vector_bytes() * 8 // bits
        c = IndexCode(b, bits, lanes)
        places = [
            c.pointer(c.at(address, index))
            for address, index in ((args[0], args[1]), (args[2], args[3]))
        ]
        return _emit(c, places[0], places[1], args[4], form, args[7])

    signature = carry(
        source, types.int64, target, types.int64, types.int64, exclusive, turned, carry
    )
    return signature, generate


def _emit(
    c: IndexCode,
    source: Value,
    target: Value,
    count: Value,
    form: tuple[bool, bool],
    carry: Value,
) -> Value:
    exclusive, turned = form
    state = c.variable(carry)
    rest = c.b.and_(count, c.number_of(c.count - 1))
    whole = c.b.sub(count, rest)

    def block(index: At, mask: Value | None) -> None:
        if turned:
            x = _turned(c, source, index, mask)
        else:
            x = c.vector(source, index, mask)
        parts = _within(c, x)
        total = c.b.load(state)
        before = c.splat(_as(c, total, c.type.element))
        shown = c.b.fadd(parts, before)
        last = c.b.extract_element(parts, ir.Constant(ir.IntType(32), c.count - 1))
        c.b.store(c.b.fadd(_as(c, last, total.type), total), state)
        if exclusive:
            behind = range(c.count, 2 * c.count - 1)
            shown = c.shuffle(before, shown, [0, *behind])
        c.put(shown, target, index, mask)

    with c.loop(whole, c.count) as index:
        block(index, None)
    with c.only_if(c.b.icmp_signed(">", rest, c.number_of(0))):
        block(whole, c.mask_of(rest))
    return c.b.load(state)


def _as(c: IndexCode, x: Value, kind: Any) -> Value:
    """Convert a float to the precision of another type."""
    if x.type == kind:
        return x
    is_wide = kind == ir.DoubleType()
    return c.b.fpext(x, kind) if is_wide else c.b.fptrunc(x, kind)


def _turned(c: IndexCode, source: Value, index: At, mask: Value | None) -> Value:
    """Load the elements before a place, the nearest in the first lane."""
    order = list(reversed(range(c.count)))
    if mask is not None:
        mask = c.shuffle(mask, mask, order)
    start = c.minus(1 - c.count, index)
    x = c.vector(source, start, mask)
    return c.shuffle(x, x, order)


def _within(c: IndexCode, x: Value) -> Value:
    """Accumulate over the lanes; -0.0 is added where there is no lane before."""
    nothing = ir.Constant(c.type, [-0.0] * c.count)
    step = 1
    while step < c.count:
        order = [
            c.count + lane - step if lane >= step else 0 for lane in range(c.count)
        ]
        x = c.b.fadd(x, c.shuffle(nothing, x, order))
        step *= 2
    return x
