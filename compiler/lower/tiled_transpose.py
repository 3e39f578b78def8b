"""Tiled transposition: copies between axis orders, as tiles.

A loop would touch a cache line for every element, on one side or the other; a tile
reads a square of whole registers, transposes it in registers and writes it.

``store[.., i, .., j, ..] = load[.., j, .., i, ..]`` -> Tiles(Transposed)
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from staticgrad.compiler.conv.convolution_layout import lanes_for, span
from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Compute,
    Load,
    Loop,
    LoopKernel,
    Reach,
    Store,
    Tiles,
)
from staticgrad.compiler.kernel_ir.layouts import COPIED
from staticgrad.compiler.kernel_ir.schedule import Step
from staticgrad.compiler.kernel_ir.schemes import Transposed
from staticgrad.ir.size import Dim

LEAST_EDGE = 3  # elements along either axis: smaller tiles do not pay
LEAST_ELEMENTS = 256  # per index of axis 0, or in all
BITS = (32, 64)
LONG = 64  # elements: at least a register's
LEAST_ROWS = 64  # of a chunk whose axis is cut into tiles


def transposed(kernel: Step) -> Step:
    """Return the kernel as tiles, if it is such a copy; else itself."""
    if not isinstance(kernel, LoopKernel):
        return kernel
    pair = _copy_of(kernel)
    if pair is None:
        return kernel
    load, store = pair
    sizes, read, written = kernel.axes[1:], load.strides, store.strides
    across, down = _unit(read, kernel.axes), _unit(written, kernel.axes)
    if across < 0 or down < 0 or across == down or read[down] == 1:
        return kernel
    scheme = _scheme(kernel, load, store, (across, down))
    if scheme is None:
        return kernel
    first = kernel.axes[0]
    elements = prod(n for n in sizes if isinstance(n, int))
    if elements * (first if isinstance(first, int) else LEAST_ROWS) < LEAST_ELEMENTS:
        return kernel
    reaches = tuple(_reach(access, kernel.axes) for access in (load, store))
    order = (load.operand, store.operand)
    operands = tuple(kernel.operands[number] for number in order)
    least = LEAST_ROWS if 0 in (across, down) else kernel.least_rows
    tiles = Tiles(scheme, reaches)
    return replace(kernel, operands=operands, body=(tiles,), least_rows=least)


def _copy_of(kernel: LoopKernel) -> tuple[Access, Access] | None:
    """Return the load and the store of a kernel that only copies; else None."""
    body, axis = kernel.body, 0
    while len(body) == 1 and isinstance(body[0], Loop) and body[0].axis == axis:
        body, axis = body[0].body, axis + 1
    if axis != len(kernel.axes) or len(body) not in (2, 3) or axis < 2:
        return None
    load, *between, store = body
    if not isinstance(load, Load) or not isinstance(store, Store):
        return None
    value = load.result
    for step in between:
        if not isinstance(step, Compute) or step.expr != COPIED:
            return None
        value = step.result
    source, target = load.access, store.access
    plain = source.dynamic is None and target.dynamic is None
    if store.value != value or not plain or min(source.operand, target.operand) < 0:
        return None
    modes = tuple(kernel.operands[a.operand].mode for a in (source, target))
    alone = modes == ("read", "write") and len(kernel.operands) == 2
    apart = not any(o.per_chunk for o in kernel.operands)
    return (source, target) if alone and apart else None


def _unit(strides: tuple[Dim, ...], axes: tuple[Dim, ...]) -> int:
    """Return the axis of contiguous elements; -1 if it is too short."""
    for axis, (stride, size) in enumerate(zip(strides, axes, strict=True)):
        if stride == 1 and (not isinstance(size, int) or size >= LEAST_EDGE):
            return axis
    return -1


def _scheme(
    kernel: LoopKernel, load: Access, store: Access, axes: tuple[int, int]
) -> Transposed | None:
    """Return the scheme; None for unknown sizes or strides, or other widths."""
    dtype = kernel.operands[load.operand].dtype
    bits = 8 * dtype.itemsize
    sizes = tuple(n for n in kernel.axes[1:] if isinstance(n, int))
    read = tuple(n for n in load.strides if isinstance(n, int))
    written = tuple(n for n in store.strides if isinstance(n, int))
    known = len(sizes) + 1 == len(read) == len(written) == len(kernel.axes)
    starts = (load.offset, store.offset)
    if not known or bits not in BITS or kernel.operands[store.operand].dtype != dtype:
        return None
    if not isinstance(starts[0], int) or not isinstance(starts[1], int):
        return None
    return Transposed(
        bits=bits,
        lanes=lanes_for(_longest([kernel.axes[axis] for axis in axes]), bits),
        sizes=sizes,
        read=read,
        read_start=starts[0],
        written=written,
        written_start=starts[1],
        across=axes[0],
        down=axes[1],
    )


def _longest(edges: list[Dim]) -> int:
    """Return the longer edge; an unknown one counts as long."""
    return max(n if isinstance(n, int) else LONG for n in edges)


def _reach(access: Access, axes: tuple[Dim, ...]) -> Reach:
    ends = span(access.offset, access.strides[1:], axes[1:])
    return Reach(access.strides[0], *ends)
