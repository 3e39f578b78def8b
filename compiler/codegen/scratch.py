"""Scratch memory of a kernel: private to each thread.

First the areas that the kernel asks for, then those of its loops that run in blocks,
which share them: an area of a block carries values from piece to piece
(split_bodies.py) or holds a draw (blocked_draws.py). Each area starts at a cache line.
"""

from __future__ import annotations

from collections.abc import Mapping

from staticgrad.compiler.codegen.loops.blocked_draws import drawn_in_blocks
from staticgrad.compiler.codegen.loops.split_bodies import BLOCK, Pieces
from staticgrad.compiler.codegen.random.draws_ir import OVERHANG
from staticgrad.compiler.kernel_ir.kernels import LoopKernel
from staticgrad.compiler.kernel_ir.walks import loops_of
from staticgrad.ir.alignment import ALIGNMENT
from staticgrad.ir.size import evaluate


def aligned(size: int) -> int:
    """Return the multiple of ALIGNMENT that holds so many bytes.

    >>> aligned(1), aligned(64)
    (64, 64)
    """
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


AREA_BYTES = aligned(8 * BLOCK + OVERHANG)
"""An area that carries the values of a block from piece to piece, or holds a draw."""


def scratch_bytes(kernel: LoopKernel, areas: int, values: Mapping[str, int]) -> int:
    """Return the bytes of scratch that each thread needs when symbols have `values`.

    `areas` are those of the kernel's source.
    """
    rows = sum(
        aligned(evaluate(area.extent, values) * area.dtype.itemsize)
        for area in kernel.scratch
    )
    return rows + areas * AREA_BYTES


def most_areas(kernel: LoopKernel, pieces: Mapping[int, Pieces]) -> int:
    """Return the largest number of areas of any loop, by its `pieces`."""
    counts = (
        len(drawn_in_blocks(loop))
        + (len(pieces[id(loop)].areas) if id(loop) in pieces else 0)
        for loop in loops_of(kernel.body)
    )
    return max(counts, default=0)
