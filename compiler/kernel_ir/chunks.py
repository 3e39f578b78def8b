"""Chunks of a kernel's outer loop.

Chunks are functions of sizes alone, never of the number of threads, and serial runs
walk the same ones. So sums come out with the same bits however many threads run.
"""

from __future__ import annotations

from collections.abc import Mapping

from staticgrad.compiler.kernel_ir.kernels import LoopKernel
from staticgrad.ir.size import evaluate

MOST_CHUNKS = 64
ADDITIONS_PER_CHUNK = 133_000  # about 20 us at 0.15 ns per addition, vectorised
WHOLE_LINES = 64  # elements: a whole number of cache lines for every dtype
CUT_AT_LINES = 256  # indices per chunk from which the rounding costs little balance
FEW_CHUNKS = 16  # below, an uneven division among workers costs time
TEAMS = (2, 4)  # numbers of workers considered for few chunks


def chunking(kernel: LoopKernel, values: Mapping[str, int]) -> tuple[int, int]:
    """Return (number of chunks, indices of axis 0 per chunk) of `kernel`.

    There is at least one chunk and at least one index per chunk: a kernel over an empty
    axis is launched once, on the empty range, so that it can write its identities.
    """
    rows = evaluate(kernel.axes[0], values)
    if not kernel.parallel or rows <= 1:
        return 1, max(rows, 1)
    return cut(rows, evaluate(kernel.row_cost, values), kernel.least_rows)


def cut(rows: int, row_cost: int, least_rows: int = 1) -> tuple[int, int]:
    """Return (chunks, rows per chunk) for `rows` of `row_cost` additions each.

    A chunk has at least `least_rows`, the last one aside.

    >>> cut(10, 1), cut(1_000_000, 4), cut(28, 1_000_000, 5)
    ((1, 10), (30, 33344), (4, 7))
    """
    wanted = rows * max(row_cost, 1) // ADDITIONS_PER_CHUNK
    chunks = max(min(wanted, rows // least_rows, MOST_CHUNKS), 1)
    size = -(-rows // chunks)
    if size > CUT_AT_LINES:
        size += -size % WHOLE_LINES
    elif 1 < chunks < FEW_CHUNKS:
        size = min(range(size, 2 * size), key=lambda part: longest_share(rows, part))
    return -(-rows // size), size


def longest_share(length: int, size: int) -> int:
    """Return the longest share of any worker in such chunks, summed over teams.

    >>> longest_share(28, 7), longest_share(28, 8)
    (21, 24)
    """
    chunks = -(-length // size)
    last = length - (chunks - 1) * size
    total = 0
    for workers in TEAMS:
        rounds, others = divmod(chunks - 1, workers)
        total += rounds * size + (size if others else last)
    return total
