"""Verification of a single kernel, independent of others.

Operands name buffers that exist, of their dtype, each buffer once if it is written. The
matrices of a product lie within their buffers, rows do not overlap. What combines the
slots of chunks has as many results as a slot has elements. The body of a LoopKernel has
rules of its own (wellformed_body.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from staticgrad.compiler.kernel_ir.kernels import (
    FinishKernel,
    GemmKernel,
    Kernel,
    LoopKernel,
)
from staticgrad.compiler.kernel_ir.schedule import Buffer, Step
from staticgrad.compiler.verify.wellformed_body import (
    Values,
    check_body,
    check_precision,
    fail,
)
from staticgrad.ir.size import evaluate
from staticgrad.ir.types import is_float


def check_kernel(kernel: Kernel, buffers: Sequence[Buffer], values: Values) -> None:
    """Raise CompilerBug if `kernel` breaks a rule when its symbols have `values`."""
    check_operands(kernel, buffers)
    if isinstance(kernel, LoopKernel):
        check_body(kernel, buffers, values)
    elif isinstance(kernel, GemmKernel):
        _check_gemm(kernel, buffers, values)
    else:
        _check_finish(kernel, buffers)


def check_operands(kernel: Step, buffers: Sequence[Buffer]) -> None:
    """Operands are buffers of their dtype, each once if it is written."""
    seen: dict[int, str] = {}
    for number, operand in enumerate(kernel.operands):
        if not 0 <= operand.buffer < len(buffers):
            fail(kernel, f"operand {number} is buffer {operand.buffer}: none such")
        buffer = buffers[operand.buffer]
        if operand.dtype != buffer.dtype:
            fail(
                kernel,
                f"operand {number} is {operand.dtype}, "
                f"buffer {buffer.number} is {buffer.dtype}",
            )
        mode = seen.get(operand.buffer, "read")
        if operand.buffer in seen and (mode, operand.mode) != ("read", "read"):
            fail(kernel, f"two operands for buffer {operand.buffer}, which it writes")
        seen[operand.buffer] = operand.mode


def _check_gemm(kernel: GemmKernel, buffers: Sequence[Buffer], values: Values) -> None:
    a, b, c = kernel.operands
    if (a.mode, b.mode) != ("read", "read"):
        fail(kernel, f"reads A and B, got modes {a.mode} and {b.mode}")
    if c.mode != ("write" if kernel.beta == 0 else "update"):
        fail(kernel, f"mode of C is {c.mode} with beta {kernel.beta}")
    if not a.dtype == b.dtype == c.dtype or not is_float(c.dtype):
        fail(kernel, f"needs one float dtype, got {a.dtype}, {b.dtype}, {c.dtype}")
    check_precision(kernel, "add", c.dtype)
    m, n, k, batch = (
        evaluate(d, values) for d in (kernel.m, kernel.n, kernel.k, kernel.batch)
    )
    shapes = [(m, k), (k, n), (m, n)]
    for number, transposed in enumerate((*kernel.transposed, False)):
        rows, columns = shapes[number][::-1] if transposed else shapes[number]
        if min(rows, columns, batch) <= 0:
            continue
        ld, offset, step = (
            evaluate(dims[number], values)
            for dims in (kernel.ld, kernel.offsets, kernel.batch_strides)
        )
        if ld < columns:
            fail(kernel, f"rows of operand {number} overlap: {columns} in {ld}")
        low = offset + min(0, step * (batch - 1))
        high = offset + max(0, step * (batch - 1)) + ld * (rows - 1) + columns - 1
        elements = evaluate(buffers[kernel.operands[number].buffer].elements, values)
        if low < 0 or high >= elements:
            fail(kernel, f"operand {number} spans {low}..{high} of {elements} elements")


def _check_finish(kernel: FinishKernel, buffers: Sequence[Buffer]) -> None:
    slots, out = kernel.operands
    if (slots.mode, out.mode) != ("read", "write"):
        fail(kernel, f"reads slots and writes, got {slots.mode} and {out.mode}")
    if buffers[slots.buffer].kind != "slots":
        fail(kernel, f"reads buffer {slots.buffer}, which has no slots")
    if not slots.dtype == out.dtype == kernel.dtype:
        fail(kernel, f"combines {kernel.dtype}, got {slots.dtype} and {out.dtype}")
    check_precision(kernel, kernel.combine, kernel.dtype)
    extents = (
        kernel.extent,
        buffers[slots.buffer].elements,
        buffers[out.buffer].elements,
    )
    if len(set(extents)) != 1:
        fail(kernel, "extent, slot and result differ: {}, {}, {}".format(*extents))
