"""Conversion of a status word to the exception with op, value and user's line.

Also the one bad index that has to be found before a run: one into an axis of size 0,
where there is nothing to read in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.codegen.status import (
    INDEX_OUT_OF_RANGE,
    RAISED,
    RAISED_IN_PYTHON,
)
from staticgrad.compiler.host import numba_internals
from staticgrad.compiler.kernel_ir.flat import Flat
from staticgrad.compiler.kernel_ir.instruction_set import Limit
from staticgrad.compiler.kernel_ir.kernels import (
    CheckIndex,
    GemmKernel,
    Kernel,
    LoopKernel,
    Site,
    calls_of,
)
from staticgrad.compiler.kernel_ir.walks import statements_of, with_axes
from staticgrad.compiler.runtime import vm
from staticgrad.errors import (
    CompilerBug,
    IndexOutOfRange,
    LoopLimitError,
    NonFiniteError,
)
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.size import evaluate
from staticgrad.ir.source import Source, at, called

Checks = Iterator[tuple[CheckIndex, tuple[int, ...]]]


class FailingCode(Protocol):
    """Protocol of the code a status refers to: Code of the CPU, CudaCode of a GPU."""

    @property
    def flat(self) -> Flat:
        """Flattened kernels with the marks between them."""

    @property
    def loops(self) -> tuple[LoopKernel | GemmKernel, ...]:
        """Kernels as loops."""

    @property
    def site_base(self) -> npt.NDArray[np.int64]:
        """Number of each kernel's first site."""

    @property
    def checked(self) -> tuple[Site, ...]:
        """Names of the scalars that have to be finite."""


def failure(
    code: FailingCode, status: npt.NDArray[np.int64], key: int = 0
) -> BaseException:
    """Return the exception for the `status` of the run called `key`."""
    kind = int(status[vm.STATUS_CODE])
    if kind == vm.NON_FINITE:
        return _not_finite(code, status)
    if kind in (RAISED, RAISED_IN_PYTHON):
        return _raised(code, status, key)
    if kind == vm.LOOP_LIMIT:
        return _past_limit(code, status)
    if kind != INDEX_OUT_OF_RANGE:
        return CompilerBug(f"a kernel reported the unknown code {kind}")
    kernel, local = _kernel_of(code, int(status[vm.STATUS_SITE]))
    value, extent = int(status[vm.STATUS_VALUE]), int(status[vm.STATUS_EXTENT])
    wrap = any(c.wrap for c, _ in checks(kernel) if c.site == local)
    where = f"{value} at position {int(status[vm.STATUS_POSITION])}"
    return out_of_range(kernel.sites[local], extent, where, wrap)


def refuse_empty_extents(
    kernels: Sequence[LoopKernel | GemmKernel], values: Mapping[str, int]
) -> None:
    """Raise IndexOutOfRange if a kernel would check indices of an axis of size 0."""
    for kernel in kernels:
        if not kernel.fails or isinstance(kernel, GemmKernel):
            continue
        extents = [evaluate(dim, values) for dim in kernel.axes]
        for check, axes in checks(kernel):
            count = int(np.prod([extents[axis] for axis in axes], dtype=np.int64))
            if count and evaluate(check.extent, values) == 0:
                where = f"{count} of them for an axis of size 0"
                raise out_of_range(kernel.sites[check.site], 0, where, check.wrap)


def checks(kernel: Kernel) -> Checks:
    """The CheckIndex statements of `kernel`, each with the axes it is inside of."""
    if isinstance(kernel, LoopKernel):
        for statement, axes in with_axes(kernel.body):
            if isinstance(statement, CheckIndex):
                yield statement, axes


def out_of_range(site: Site, extent: int, where: str, wrap: bool) -> IndexOutOfRange:
    """Return the error for an index outside of its axis."""
    least = f"-{extent}" if wrap and extent else "0"
    advice = "look at the indices" if wrap else "look at the labels or indices"
    return IndexOutOfRange(
        f"{called(site.source, site.op)} requires "
        f"{least} <= index < {extent}, got {where}; "
        f"{advice}{at(site.source)}"
    )


def _past_limit(code: FailingCode, status: npt.NDArray[np.int64]) -> LoopLimitError:
    limits = (i for i in code.flat.instructions if isinstance(i, Limit))
    limit = next(i for i in limits if i.number == status[vm.STATUS_SITE])
    text = limit_text("while_loop", limit.value)
    return LoopLimitError(f"{text}{at(limit.site.source)}")


def limit_text(name: str, limit: int) -> str:
    """Return the message of a loop whose condition stays true after `limit` steps."""
    return (
        f"{name} requires its condition to become false within max_steps={limit}, got "
        "true after them; raise max_steps or look at the condition"
    )


def _not_finite(code: FailingCode, status: npt.NDArray[np.int64]) -> NonFiniteError:
    value = float(status[vm.STATUS_VALUE : vm.STATUS_VALUE + 1].view(np.float64)[0])
    site = code.checked[int(status[vm.STATUS_POSITION])]
    return not_finite(site.op, value, site.source)


def not_finite(
    op: str, value: float, source: Source | None, advice: str | None = None
) -> NonFiniteError:
    """Return the error for a result that has to be finite and is not."""
    advice = advice or "look for NaN in the data or lower the learning rate"
    return NonFiniteError(
        f"{op} requires a finite result, got {value}; {advice}{at(source)}"
    )


def _raised(
    code: FailingCode, status: npt.NDArray[np.int64], key: int
) -> BaseException:
    """Return the exception that a user's function raised; forget those of others."""
    kernel, local = _kernel_of(code, int(status[vm.STATUS_SITE]))
    site, position = kernel.sites[local], int(status[vm.STATUS_POSITION])
    found: BaseException | None = None
    for other in code.loops:
        for function in foreign(other):
            error = function.target.taken(key) if function.target else None
            found = error if other is kernel and error is not None else found
    if found is not None:
        return noted(found, site.op, site.source)
    record = int(status[vm.STATUS_VALUE])
    if int(status[vm.STATUS_CODE]) == RAISED_IN_PYTHON:
        return CompilerBug(f"{site.op} reported an exception that is not there")
    if not record:  # a GPU keeps none
        said = ("of a kind that target='cpu' tells",)
        return user_error(site.op, RuntimeError, said, position, site.source)
    kind, arguments, place = numba_internals.raised(record)
    return user_error(site.op, kind, arguments, position, site.source, place)


def foreign(kernel: LoopKernel | GemmKernel) -> Iterator[Foreign]:
    """Yield the users' functions that `kernel` calls."""
    if isinstance(kernel, LoopKernel):
        for statement in statements_of(kernel.body):
            yield from (function for function, _ in calls_of(statement))


def noted(error: BaseException, op: str, source: Source | None) -> BaseException:
    """Return `error` with the op and the user's line as a note."""
    error.add_note(f"raised in {op}{at(source)}")
    return error


def raised_by(
    function: Foreign, error: BaseException, position: int, op: str,
    source: Source | None,
) -> BaseException:  # fmt: skip
    """Return the exception to raise for `error`: for Python functions the same."""
    if function.target is not None:
        return noted(error, op, source)
    return user_error(op, type(error), error.args, position, source)


def user_error(
    op: str, kind: type[BaseException], arguments: tuple[Any, ...], position: int,
    source: Source | None, place: tuple[str, str, int] | None = None,
) -> BaseException:  # fmt: skip
    """Return an exception of a user's compiled function, of the same class.

    `place` is (function, file, line) of where it was raised.
    """
    said = ", ".join(map(str, arguments))
    where = f" ({place[0]}, {Path(place[1]).name}:{place[2]})" if place else ""
    text = (
        f"{op} requires its function not to raise, got {kind.__name__}"
        f"{': ' if said else ''}{said}{where} at position {position}; look at what it "
        f"is given{at(source)}"
    )
    try:
        return kind(text)
    except Exception:  # noqa: BLE001  a class of the user's with other arguments
        return RuntimeError(text)


def _kernel_of(code: FailingCode, site: int) -> tuple[LoopKernel, int]:
    """Return the kernel that has the site, and the site's number in it."""
    for kernel, base in zip(code.loops, code.site_base.tolist(), strict=True):
        if base <= site < base + len(kernel.sites) and isinstance(kernel, LoopKernel):
            return kernel, site - base
    raise CompilerBug(f"no kernel has the site {site}")
