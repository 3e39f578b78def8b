"""From a status word to the exception that names op, rule, value and the user's line.

Also the one bad index that has to be found before a run: one into an axis of size 0,
where there is nothing to read in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from staticgrad.compiler import vm
from staticgrad.compiler.kernels import (
    CheckIndex,
    GemmKernel,
    Kernel,
    Loop,
    LoopKernel,
    Site,
    Statement,
)
from staticgrad.compiler.program import Code
from staticgrad.errors import CompilerBug, IndexOutOfRange, NonFiniteError
from staticgrad.ir.size import evaluate
from staticgrad.ir.source import Source, at

INDEX_OUT_OF_RANGE = 1

Checks = Iterator[tuple[CheckIndex, tuple[int, ...]]]


def failure(code: Code, status: npt.NDArray[np.int64]) -> Exception:
    """The exception for what a run left in `status`."""
    kind = int(status[vm.STATUS_CODE])
    if kind == vm.NON_FINITE:
        return _not_finite(code, status)
    if kind != INDEX_OUT_OF_RANGE:
        return CompilerBug(f"a kernel reported the unknown code {kind}")
    kernel, local = _kernel_of(code, int(status[vm.STATUS_SITE]))
    value, extent = int(status[vm.STATUS_VALUE]), int(status[vm.STATUS_EXTENT])
    wrap = any(c.wrap for c, _ in checks(kernel) if c.site == local)
    where = f"{value} at position {int(status[vm.STATUS_POSITION])}"
    return _out_of_range(kernel.sites[local], extent, where, wrap)


def refuse_empty_extents(
    kernels: Sequence[LoopKernel | GemmKernel], values: Mapping[str, int]
) -> None:
    """IndexOutOfRange if a kernel would check indices against an axis of size 0."""
    for kernel in kernels:
        if not kernel.fails or isinstance(kernel, GemmKernel):
            continue
        extents = [evaluate(dim, values) for dim in kernel.axes]
        for check, axes in checks(kernel):
            count = int(np.prod([extents[axis] for axis in axes], dtype=np.int64))
            if count and evaluate(check.extent, values) == 0:
                where = f"{count} of them for an axis of size 0"
                raise _out_of_range(kernel.sites[check.site], 0, where, check.wrap)


def checks(kernel: Kernel) -> Checks:
    """The CheckIndex statements of `kernel`, each with the axes it is inside of."""
    if not isinstance(kernel, LoopKernel):
        return
    left: list[tuple[Statement, tuple[int, ...]]] = [(s, ()) for s in kernel.body]
    while left:
        statement, axes = left.pop(0)
        if isinstance(statement, CheckIndex):
            yield statement, axes
        if isinstance(statement, Loop):
            left = [(s, (*axes, statement.axis)) for s in statement.body] + left


def _out_of_range(site: Site, extent: int, where: str, wrap: bool) -> IndexOutOfRange:
    least = f"-{extent}" if wrap and extent else "0"
    advice = "look at the indices" if wrap else "look at the labels or indices"
    return IndexOutOfRange(
        f"{site.op} requires {least} <= index < {extent}, got {where}; "
        f"{advice}{at(site.source)}"
    )


def _not_finite(code: Code, status: npt.NDArray[np.int64]) -> NonFiniteError:
    value = float(status[vm.STATUS_VALUE : vm.STATUS_VALUE + 1].view(np.float64)[0])
    site = code.checked[int(status[vm.STATUS_POSITION])]
    return not_finite(site.op, value, site.source)


def not_finite(
    op: str, value: float, source: Source | None, advice: str | None = None
) -> NonFiniteError:
    """The error for a result that has to be finite and is not."""
    advice = advice or "look for NaN in the data or lower the learning rate"
    return NonFiniteError(
        f"{op} requires a finite result, got {value}; {advice}{at(source)}"
    )


def _kernel_of(code: Code, site: int) -> tuple[LoopKernel, int]:
    """The kernel that has the site, and the site's number in it."""
    for kernel, base in zip(code.loops, code.site_base.tolist(), strict=True):
        if base <= site < base + len(kernel.sites) and isinstance(kernel, LoopKernel):
            return kernel, site - base
    raise CompilerBug(f"no kernel has the site {site}")
