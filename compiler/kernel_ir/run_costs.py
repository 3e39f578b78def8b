"""Work of a kernel: its cost to run again, whatever the machine.

The unit is an addition in a loop whose values lie in a near cache, about 0.02 ns (Zen
4, float32): as long as a multiply and add of a product, or as moving a byte of the
arena.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from staticgrad.compiler.kernel_ir.kernels import (
    FinishKernel,
    GemmKernel,
    LoopKernel,
    Tiles,
)
from staticgrad.compiler.kernel_ir.schedule import Buffer, Step
from staticgrad.ir.size import evaluate

LAUNCH = 1000  # fixed work per kernel
# Chunks are made for additions of 0.15 ns, which vector code of tiles is counted in.
PER_ADDITION_OF_TILES = 8
IN_CALL = ("temporary", "output", "slots")


def work(kernel: Step, buffers: Sequence[Buffer], values: Mapping[str, int]) -> int:
    """Return the work of `kernel`, whose operands are among `buffers`, in additions."""
    if isinstance(kernel, GemmKernel):
        done = evaluate(kernel.m * kernel.n * kernel.k * kernel.batch, values)
    elif isinstance(kernel, LoopKernel):
        tiles = any(isinstance(statement, Tiles) for statement in kernel.body)
        done = evaluate(kernel.row_cost * kernel.axes[0], values)
        done *= PER_ADDITION_OF_TILES if tiles else 1
    elif isinstance(kernel, FinishKernel):
        done = evaluate(kernel.extent, values)
    else:
        done = max(evaluate(kernel.length, values), 1) * sum(
            work(inner, body.buffers, values)
            for body in kernel.bodies
            for inner in body.kernels
        )
    touched = (buffers[operand.buffer] for operand in kernel.operands)
    moved = sum(
        evaluate(b.elements, values) * b.dtype.itemsize
        for b in touched
        if b.kind in IN_CALL
    )
    return LAUNCH + max(done, moved)
