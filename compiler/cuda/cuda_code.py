"""CudaCode: a Schedule with the CUDA source of its kernels, for all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.cuda.cuda_products import loop_of_product
from staticgrad.compiler.cuda.host_functions import is_hosted
from staticgrad.compiler.cuda.source.cuda_loops import CudaSource, cuda_source
from staticgrad.compiler.kernel_ir.combine_partials import loop_of
from staticgrad.compiler.kernel_ir.flat import Flat, flatten
from staticgrad.compiler.kernel_ir.kernels import (
    FinishKernel,
    GemmKernel,
    Kernel,
    LoopKernel,
    Site,
)
from staticgrad.compiler.kernel_ir.schedule import ControlKernel, Schedule, stored_by
from staticgrad.compiler.runtime.native_code import named, starts
from staticgrad.errors import CompilerBug
from staticgrad.ir.types import kind_of


@dataclass(frozen=True, slots=True)
class CudaCode:
    """Schedule and the CUDA sources of its kernels.

    `root` is the Schedule; `schedule` has the kernels of nested ones, too, in a row,
    between which `flat` has marks. `loops` are the kernels as loop nests, but for
    products that cuBLAS computes; these have no source, nor have calls on the host.
    Kernels that write a parameter or a state are guarded.
    """

    root: Schedule
    flat: Flat
    schedule: Schedule
    loops: tuple[LoopKernel | GemmKernel, ...]
    sources: tuple[CudaSource | None, ...]
    site_base: npt.NDArray[np.int64]
    checked: tuple[Site, ...]

    @property
    def constants(self) -> dict[int, npt.NDArray[Any]]:
        """Values of constant buffers, by number."""
        return {
            b.number: np.ascontiguousarray(b.value)
            for b in self.schedule.buffers
            if b.value is not None
        }


def cuda_code(schedule: Schedule, checked: Sequence[Site] = ()) -> CudaCode:
    """Return sources for `schedule`; GraphError for what is not on cuda."""
    root, flat = schedule, flatten(schedule)
    schedule = flat.schedule
    loops: list[LoopKernel | GemmKernel] = []
    sources: list[CudaSource | None] = []
    for kernel in schedule.kernels:
        if isinstance(kernel, ControlKernel):
            raise CompilerBug(f"{kernel.name} has bodies where kernels stand in a row")
        guarded = bool(stored_by(schedule, kernel))
        loop = loop_on_gpu(kernel, guarded)
        loops.append(loop)
        lanes = isinstance(kernel, FinishKernel)
        written = isinstance(loop, LoopKernel) and not is_hosted(loop)
        sources.append(cuda_source(loop, guarded, lanes) if written else None)
    return CudaCode(
        root, flat, schedule, tuple(loops), tuple(sources),
        starts([len(kernel.sites) for kernel in loops]), named(schedule, checked),
    )  # fmt: skip


def loop_on_gpu(kernel: Kernel, guarded: bool) -> LoopKernel | GemmKernel:
    """Return the loop nest of a kernel, or the product itself for cuBLAS."""
    if isinstance(kernel, FinishKernel):
        return loop_of(kernel)
    if not isinstance(kernel, GemmKernel):
        return kernel
    # cuBLAS has no integers, and cannot leave a parameter alone after an error.
    plain = kind_of(kernel.operands[2].dtype) == "f" and not guarded
    return kernel if plain else loop_of_product(kernel)
