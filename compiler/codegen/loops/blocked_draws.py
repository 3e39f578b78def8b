"""Choice of the draws that a loop makes a block at a time.

A loop that walks along a draw, from one element to the next and with one key, runs in
blocks: for each block the draw fills an area of scratch (draws_ir.py), and the loop
reads it. A word then costs a quarter of a block of Philox, and the loop vectorises as
it would without the draw. Other loops make each element from a block of its own.
"""

from __future__ import annotations

from staticgrad.compiler.codegen.random.draws_ir import DRAWS
from staticgrad.compiler.kernel_ir.kernels import (
    Compute,
    Index,
    Load,
    Loop,
    Statement,
    result_of,
)
from staticgrad.compiler.kernel_ir.walks import is_flat
from staticgrad.ir.expression import Apply, function_of


def draw_name(statement: Statement) -> str | None:
    """The draw that a statement is an element of."""
    match statement:
        case Compute(_, Apply(name) as expr) if name in DRAWS:
            return function_of(expr) or None
    return None


def drawn_in_blocks(loop: Loop) -> tuple[Compute, ...]:
    """Return the draws of an innermost loop that walks along them."""
    if not is_flat(loop.body):
        return ()
    made = {result_of(s): s for s in loop.body}
    return tuple(
        s
        for s in loop.body
        if isinstance(s, Compute)
        and draw_name(s) is not None
        and all(_stays(made.get(word), loop.axis) for word in s.args[:4])
        and _walks(made.get(s.args[4]), loop.axis)
    )


def _stays(word: Statement | None, axis: int) -> bool:
    """Whether a word of the key is loop-invariant."""
    if word is None:
        return True
    if not isinstance(word, Load) or word.access.dynamic is not None:
        return False
    return word.access.operand >= 0 and word.access.strides[axis] == 0


def _walks(index: Statement | None, axis: int) -> bool:
    return isinstance(index, Index) and index.strides[axis] == 1


def first_index(loop: Loop, draw: Compute) -> Index:
    """Return the statement that counts the elements of a draw."""
    return next(
        s for s in loop.body if isinstance(s, Index) and s.result == draw.args[4]
    )


def key_loads(loop: Loop, draw: Compute) -> tuple[Load, ...]:
    """Return the loads of a draw's key in the loop."""
    return tuple(
        s for s in loop.body if isinstance(s, Load) and s.result in draw.args[:4]
    )
