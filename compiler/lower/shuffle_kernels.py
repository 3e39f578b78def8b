"""Kernel of Shuffle: Fisher and Yates' inside-out shuffle of each row.

Position i takes what position j <= i holds, and j takes i; j is a random word scaled to
0..i. Loads and stores are of one operand, so each step sees what the one before wrote.

Weakness: one row is one chunk, walked by one thread.
"""

from __future__ import annotations

from collections.abc import Callable

from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Compute,
    Index,
    Kernel,
    Load,
    Loop,
    LoopKernel,
    Operand,
    Statement,
    Store,
    inside,
    site_of,
)
from staticgrad.compiler.kernel_ir.layouts import base_of, layout_of
from staticgrad.compiler.kernel_ir.walks import loops
from staticgrad.ir.expression import Apply, Arg, parse
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Layout, Shuffle
from staticgrad.ir.size import Dim, product
from staticgrad.ir.types import INT64, UINT32, UINT64

KEY, ORDER = 0, 1  # operands
COST = 12  # additions that a step takes: a draw, and two accesses anywhere


def shuffled(node: Node, buffer_of: Callable[[Tensor], int]) -> list[Kernel]:
    """Return one kernel that writes the orders of all keys."""
    code, result = node.op.code, node.outputs[0]
    assert isinstance(code, Shuffle)
    (key,) = node.inputs
    axes: tuple[Dim, ...] = result.shape if result.ndim > 1 else (1, *result.shape)
    rank = len(axes)
    words, steps = _key_words(key, rank), _steps(code, result, rank)
    row = (*words, Loop(rank - 1, steps))
    kernel = LoopKernel(
        name=node.op.name,
        axes=axes,
        operands=(
            Operand(buffer_of(base_of(key)), "read", UINT32),
            Operand(buffer_of(result), "write", INT64),
        ),
        scratch=(),
        body=loops(range(rank - 1), row),
        sites=(site_of(node),),
        row_cost=product(axes[1:]) * COST,
    )
    return [kernel]


def _key_words(key: Tensor, rank: int) -> tuple[Statement, ...]:
    """Return values 0 to 3, loaded once per row."""
    layout = layout_of(key)
    *own, along = layout.strides
    strides = (*own, 0) if len(own) == rank - 1 else (0,) * rank
    starts = (layout.offset + k * along for k in range(4))
    return tuple(
        Load(k, Access(KEY, strides, start), UINT32) for k, start in enumerate(starts)
    )


def _steps(code: Shuffle, result: Tensor, rank: int) -> tuple[Statement, ...]:
    """Return the statements for one position: values from 4 on."""
    position, word, count, below, place, found = range(4, 10)
    plain = Layout.contiguous(result.shape).strides
    strides = plain if result.ndim > 1 else (0, *plain)
    row, along = (*strides[:-1], 0), (*(0,) * (rank - 1), 1)
    here, there = Access(ORDER, strides), Access(ORDER, row, 0, (place, 1))
    draw = Apply(code.word, tuple(map(Arg, range(5))))
    return (
        Index(position, along),
        Compute(word, draw, (0, 1, 2, 3, position), UINT64, site=0),
        Compute(count, parse("uint64({0} + 1)"), (position,), UINT64),
        Compute(below, code.expr, (word, count), INT64),
        Compute(place, inside(result.shape[-1]), (below,), INT64),
        Store(here, position),
        Load(found, there, INT64),
        Store(here, found),
        Store(there, position),
    )
