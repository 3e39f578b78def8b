"""Chunks of a kernel's outer loop on a GPU: more and smaller than on a CPU.

As on the cpu, chunks depend on sizes alone. Kernels that are spread over threads or
warps walk over their work and need none.
"""

from __future__ import annotations

from collections.abc import Mapping

from staticgrad.compiler.cuda.source.grid_mapping import CHUNKED, mapping_of
from staticgrad.compiler.kernel_ir.kernels import LoopKernel
from staticgrad.ir.size import evaluate

MOST_CHUNKS = {"block": 256, "column": 64, "row": 1024, "alone": 4096}
"""A few per multiprocessor; each leaves a slot that has to be combined."""

ADDITIONS_PER_BLOCK = 8192  # 32 per thread
ROWS = {"column": 32, "row": 8, "alone": 8}
"""Rows of a chunk at least: slots are then small beside the data."""


def chunks_on_gpu(kernel: LoopKernel, values: Mapping[str, int]) -> tuple[int, int]:
    """Return (number of chunks, indices of axis 0 per chunk) of `kernel`."""
    rows = evaluate(kernel.axes[0], values)
    worker = mapping_of(kernel).worker
    if not kernel.parallel or rows <= 1 or worker not in CHUNKED:
        return 1, max(rows, 1)
    if worker == "block":
        work = rows * max(evaluate(kernel.row_cost, values), 1)
        wanted = min(work // ADDITIONS_PER_BLOCK, rows // kernel.least_rows)
    else:
        wanted = rows // ROWS[worker]
    size = -(-rows // max(min(wanted, MOST_CHUNKS[worker]), 1))
    return -(-rows // size), size
