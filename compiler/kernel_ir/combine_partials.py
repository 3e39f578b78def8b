"""Final combination of a reduction over chunks, as a LoopKernel.

A kernel that reduces over its chunked axis leaves one slot per chunk. Combining them
is a loop nest like others, so it is generated like others: ``out[i]`` is the
combination of ``slots[chunk, i]`` over the chunks, in an order that depends on sizes
alone. Its sizes are symbols, so there is one native kernel per combination and dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Accumulate,
    FinishKernel,
    Initial,
    Load,
    Loop,
    LoopKernel,
    Operand,
    Store,
)
from staticgrad.compiler.kernel_ir.schedule import Step
from staticgrad.ir.size import Size, evaluate

EXTENT = Size.symbol("extent")
CHUNKS = Size.symbol("chunks")

_TOTAL, _ELEMENT = 0, 1


def slots_and_out(kernel: FinishKernel) -> tuple[Operand, Operand]:
    """Return the operand with a slot per chunk, and the one that is written."""
    first, second = kernel.operands
    return (first, second) if first.mode == "read" else (second, first)


def stands_for(
    kernels: Sequence[Step], chunks: Sequence[tuple[int, int]]
) -> dict[int, int]:
    """By the slots of finishes that are dropped, the buffer that is written instead.

    A kernel of one chunk writes its result where its finish would have.
    """
    pairs = (
        slots_and_out(kernel)
        for kernel, chunk in zip(kernels, chunks, strict=True)
        if isinstance(kernel, FinishKernel) and chunk == (0, 0)
    )
    return {slots.buffer: out.buffer for slots, out in pairs}


def loop_of(kernel: FinishKernel) -> LoopKernel:
    """Return the loop nest of a finish."""
    slots, out = slots_and_out(kernel)
    element = Load(_ELEMENT, Access(0, (1, EXTENT)), kernel.dtype)
    over_chunks = (
        element,
        Accumulate(_TOTAL, kernel.combine, _ELEMENT, kernel.dtype),
    )
    body = (
        Initial(_TOTAL, kernel.combine, kernel.dtype),
        Loop(1, over_chunks),
        Store(Access(1, (1, 0)), _TOTAL),
    )
    return LoopKernel(
        name=f"finish_{kernel.combine}",
        axes=(EXTENT, CHUNKS),
        operands=(
            Operand(slots.buffer, "read", slots.dtype),
            Operand(out.buffer, "write", out.dtype),
        ),
        scratch=(),
        body=(Loop(0, body),),
        sites=kernel.sites[:1],
        row_cost=8 * CHUNKS,  # strided loads
    )


def finish_values(
    kernel: FinishKernel, chunks: int, values: Mapping[str, int]
) -> dict[str, int]:
    """Return the values of the symbols of `loop_of(kernel)`."""
    return {"extent": evaluate(kernel.extent, values), "chunks": chunks}
