"""Plan: offsets of a Schedule's buffers, for given sizes.

Made by planner.py, checked by verify_plan.py. A buffer of kind "temporary" or "slots"
has an offset into the arena; the others have -1.
"""

from __future__ import annotations

from dataclasses import dataclass

from staticgrad.compiler.kernel_ir.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Region:
    """Kernels first..stop-1, of which part p computes rows from ``p * rows`` on.

    There are `parts`; the index of axis 0 of a loop counts ``per_row[k]`` times as fast
    as rows (0 for a product).
    """

    first: int
    stop: int
    rows: int
    parts: int
    per_row: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Schedule with its sizes and offsets.

    `values` are the symbols' values; `chunks[k]` = (number of chunks, indices of axis 0
    per chunk) of kernel k, (1, 0) without chunks, (0, 0) for a FinishKernel that is
    dropped; `bytes` the unpadded size of each buffer; `first` and `last`
    the kernels between which each arena buffer lives (inclusive).
    ``bodies[k]`` are the Plans of the bodies of kernel k, whose offsets count from the
    start of its arena. `regions` are kernels that workers run together; whatever one
    of them touches lives through all of it. `proof` says why the arena is as small as
    it is: "bound" (equal to the bound of the padded sizes), "exact" (equal to exact
    search), or "" (a heuristic's best).
    """

    schedule: Schedule
    values: tuple[tuple[str, int], ...]
    chunks: tuple[tuple[int, int], ...]
    bytes: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    offsets: tuple[int, ...]
    arena_bytes: int
    lower_bound_bytes: int
    unplanned_bytes: int
    proof: str
    bodies: tuple[tuple[Plan, ...], ...] = ()
    regions: tuple[Region, ...] = ()
