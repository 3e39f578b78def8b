"""Calls of a single kernel from Python, for tests and measurements.

A compiled graph runs its kernels in the virtual machine; here one kernel is given
arrays, sizes and a range, and run through ctypes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.codegen.kernel_source import native
from staticgrad.compiler.codegen.llvm.kernel_pointers import STOP
from staticgrad.compiler.codegen.loops.loop_source import SIGNATURE, kernel_source
from staticgrad.compiler.codegen.scratch import scratch_bytes
from staticgrad.compiler.kernel_ir.kernels import LoopKernel, is_polled
from staticgrad.ir.alignment import ALIGNMENT
from staticgrad.ir.size import evaluate

STATUS_WORDS = 8
"""int64 in a status: lock, code, site, position, value, extent, stop cell, and 0."""

Array = npt.NDArray[Any]


class BoundKernel:
    """Kernel bound to arrays.

    `arrays` are the operands, contiguous or not: a kernel sees the address of the first
    element. `values` are the symbols' sizes, `per_chunk` the indices of axis 0 in one
    chunk (all of them by default), `site_base` what is added to the sites of a report.

    ``call.run()`` runs all chunks one after another; ``call.status`` is the status.
    """

    def __init__(
        self,
        kernel: LoopKernel,
        arrays: Sequence[Array],
        values: Mapping[str, int] | None = None,
        per_chunk: int | None = None,
        site_base: int = 0,
    ) -> None:
        known = dict(values or {})
        self.native = native([kernel])[0]
        source = kernel_source(kernel)
        self.extent = evaluate(kernel.axes[0], known)
        self.per_chunk = per_chunk or max(self.extent, 1)
        self.status = np.zeros(STATUS_WORDS, np.int64)
        if is_polled(kernel):
            self.status[STOP] = self.status.ctypes.data + 8 * (STATUS_WORDS - 1)
        sizes = [evaluate(dim, known) for dim in source.sizes]
        self._sizes = np.array([self.per_chunk, site_base, *sizes], np.int64)
        self._arrays = tuple(arrays)
        self._operands = np.array([a.ctypes.data for a in arrays], np.int64)
        needed = scratch_bytes(kernel, source.areas, known)
        self._scratch = np.zeros(needed + ALIGNMENT, np.uint8)
        start = -(-self._scratch.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._context = np.array([self.status.ctypes.data, start], np.int64)
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(SIGNATURE))
        self._function = kind(self.native.address)

    def run(self) -> BoundKernel:
        """Run every chunk in order; an empty axis 0 is one empty chunk."""
        for begin in range(0, max(self.extent, 1), self.per_chunk):
            self.run_range(begin, min(begin + self.per_chunk, self.extent))
        return self

    def run_range(self, begin: int, end: int) -> None:
        """Run one range of axis 0."""
        tables = (self._operands.ctypes.data, self._sizes.ctypes.data)
        self._function(*tables, begin, end, self._context.ctypes.data)
