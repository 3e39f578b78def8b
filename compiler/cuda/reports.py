"""From a device's status to the exception that names op, rule, value and line."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from staticgrad.compiler import vm
from staticgrad.compiler.codegen.status import INDEX_OUT_OF_RANGE
from staticgrad.compiler.cuda.code import CudaCode
from staticgrad.compiler.failures import checks, not_finite, out_of_range
from staticgrad.compiler.kernels import LoopKernel
from staticgrad.errors import CompilerBug


def reported(code: CudaCode, status: npt.NDArray[np.int64]) -> Exception:
    """The exception for what kernels left in `status`."""
    kind, value = int(status[vm.STATUS_CODE]), int(status[vm.STATUS_VALUE])
    position = int(status[vm.STATUS_POSITION])
    if kind == vm.NON_FINITE:
        number = float(np.int64(value).view(np.float64))
        site = code.checked[position]
        return not_finite(site.op, number, site.source)
    if kind != INDEX_OUT_OF_RANGE:
        return CompilerBug(f"a kernel reported the unknown code {kind}")
    kernel, local = _kernel_of(code, int(status[vm.STATUS_SITE]))
    wrap = any(c.wrap for c, _ in checks(kernel) if c.site == local)
    where = f"{value} at position {position}"
    return out_of_range(kernel.sites[local], int(status[vm.STATUS_EXTENT]), where, wrap)


def _kernel_of(code: CudaCode, site: int) -> tuple[LoopKernel, int]:
    """The kernel that has the site, and the site's number in it."""
    for kernel, base in zip(code.loops, code.site_base.tolist(), strict=True):
        if base <= site < base + len(kernel.sites) and isinstance(kernel, LoopKernel):
            return kernel, site - base
    raise CompilerBug(f"no kernel has the site {site}")
