"""Code: a Schedule with its native kernels, for all sizes.

What has to be known about each kernel is collected here once, as arrays over all
kernels: instructions.py then makes the instruction table for given sizes with array
operations, so that thousands of kernels take milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.codegen.kernel_source import NativeKernel, native
from staticgrad.compiler.kernel_ir.combine_partials import loop_of
from staticgrad.compiler.kernel_ir.flat import Flat, flatten
from staticgrad.compiler.kernel_ir.kernels import (
    FinishKernel,
    GemmKernel,
    LoopKernel,
    Site,
    is_polled,
)
from staticgrad.compiler.kernel_ir.schedule import ControlKernel, Schedule, Step
from staticgrad.errors import CompilerBug
from staticgrad.ir.alignment import aligned_copy
from staticgrad.ir.size import Dim

Words = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NativeCode:
    """Schedule and its native kernels, for all sizes.

    `loops` are the schedule's kernels with FinishKernels as loops; `functions` their
    addresses (0 for products). `buffers` lists the buffer of every operand of every
    kernel in order, `first` where those of each kernel begin. `dims` are the different
    dimensions that kernels read, each with the finish kernel whose symbols it is about
    or -1; `table` lists for all size tables which dim each word is, `table_first` where
    each begins. `fixed` are the addresses of stored and constant buffers. `checked`
    says what the user calls each scalar that has to be finite, `polls` whether some
    kernel polls the stop cell. `root` is the schedule
    that was given; `schedule` is `flat`'s, with the kernels of all bodies in one row.
    """

    root: Schedule
    flat: Flat
    schedule: Schedule
    loops: tuple[LoopKernel | GemmKernel, ...]
    natives: tuple[NativeKernel, ...]
    functions: Words
    site_base: Words
    buffers: Words
    first: Words
    dims: tuple[tuple[Dim, int], ...]
    extents: Words
    costs: Words
    table: Words
    table_first: Words
    constants: tuple[npt.NDArray[Any], ...]
    fixed: Words
    checked: tuple[Site, ...]
    polls: bool


def compile_schedule(schedule: Schedule, checked: Sequence[Site] = ()) -> NativeCode:
    """Compile native kernels for `schedule`, for all sizes.

    `checked` names the scalars of ``schedule.finite`` for people.
    """
    root, flat = schedule, flatten(schedule)
    schedule = flat.schedule
    loops = tuple(_leaf(kernel) for kernel in schedule.kernels)
    compiled = native([k for k in loops if isinstance(k, LoopKernel)])
    remaining = iter(compiled)
    made = [next(remaining) if isinstance(k, LoopKernel) else None for k in loops]
    dims = _Dims()
    extents, costs, tables = _number_dims(schedule, loops, made, dims)
    constants, fixed = _fixed_addresses(schedule)
    return NativeCode(
        root=root,
        flat=flat,
        schedule=schedule,
        loops=loops,
        natives=tuple(compiled),
        # Which function computes a matrix product depends on its sizes.
        functions=as_words([0 if m is None else m.address for m in made]),
        site_base=starts([len(k.sites) for k in loops]),
        buffers=as_words([o.buffer for k in loops for o in k.operands]),
        first=starts([len(k.operands) for k in loops]),
        dims=tuple(dims.found),
        extents=extents,
        costs=costs,
        table=as_words([word for table in tables for word in table]),
        table_first=starts([len(table) for table in tables]),
        constants=constants,
        fixed=fixed,
        checked=named(schedule, checked),
        polls=any(isinstance(k, LoopKernel) and is_polled(k) for k in loops),
    )


def named(schedule: Schedule, checked: Sequence[Site]) -> tuple[Site, ...]:
    """Return `checked`, or the names of the buffers that have to be finite."""
    return tuple(checked) or tuple(
        Site(schedule.buffers[b].name, None) for b in schedule.finite
    )


def _leaf(kernel: Step) -> LoopKernel | GemmKernel:
    if isinstance(kernel, FinishKernel):
        return loop_of(kernel)
    if isinstance(kernel, ControlKernel):
        raise CompilerBug(f"{kernel.name} has bodies where kernels stand in a row")
    return kernel


class _Dims:
    """Numbers for distinct dimensions."""

    def __init__(self) -> None:
        self.found: dict[tuple[Dim, int], int] = {}

    def number(self, dim: Dim, finish: int = -1) -> int:
        return self.found.setdefault((dim, finish), len(self.found))


def _number_dims(
    schedule: Schedule,
    loops: Sequence[LoopKernel | GemmKernel],
    made: Sequence[NativeKernel | None],
    dims: _Dims,
) -> tuple[Words, Words, list[list[int]]]:
    extents: list[int] = []
    costs: list[int] = []
    tables: list[list[int]] = []
    for number, (kernel, code) in enumerate(zip(loops, made, strict=True)):
        if isinstance(kernel, GemmKernel) or code is None:
            extents.append(dims.number(0))
            costs.append(dims.number(0))
            tables.append([])
            continue
        finish = number if isinstance(schedule.kernels[number], FinishKernel) else -1
        extents.append(dims.number(kernel.axes[0], finish))
        costs.append(dims.number(kernel.row_cost, finish))
        tables.append([dims.number(dim, finish) for dim in code.sizes])
    return as_words(extents), as_words(costs), tables


def _fixed_addresses(
    schedule: Schedule,
) -> tuple[tuple[npt.NDArray[Any], ...], Words]:
    """Return aligned constants, and the address of each stored or constant buffer."""
    constants: list[npt.NDArray[Any]] = []
    fixed = np.zeros(len(schedule.buffers), np.int64)
    for buffer in schedule.buffers:
        if buffer.value is not None:
            constants.append(aligned_copy(buffer.value))
            fixed[buffer.number] = constants[-1].ctypes.data
        elif buffer.leaf is not None:
            fixed[buffer.number] = buffer.leaf.storage.address
    return tuple(constants), fixed


def as_words(numbers: npt.ArrayLike, columns: int = 0) -> Words:
    """`numbers` as a vector, or as rows of so many `columns`."""
    found: Words = np.array(numbers, np.int64)
    return found.reshape(-1, columns) if columns else found


def starts(lengths: Sequence[int]) -> Words:
    """Return the offsets of consecutive parts of the given lengths."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)[:-1])).astype(
        np.int64
    )[: len(lengths)]
