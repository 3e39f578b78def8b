"""Strided operands are copied ahead of a loop, transposed.

A kernel whose innermost loop steps far through memory touches a cache line for each
element, and no vector helps. Where another of its loops walks that operand element by
element, the two cross, as in ``x.T + y``: the operand is first copied in the order of
the loops, by tiles (tiled_transpose.py), and the kernel reads the copy. That pays from
where the operand fills an L1 cache on; smaller ones stay there until their lines are
used up.

Known weakness: sizes that are symbolic are read as they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Blocks,
    Compute,
    Invoke,
    Load,
    Loop,
    LoopKernel,
    Operand,
    Rest,
    Statement,
    Store,
    Tiles,
    When,
)
from staticgrad.compiler.kernel_ir.layouts import COPIED
from staticgrad.compiler.kernel_ir.schedule import BufferKind, Step
from staticgrad.compiler.kernel_ir.walks import each_statement, loops
from staticgrad.compiler.lower.tiled_transpose import transposed
from staticgrad.ir.op import Layout
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.types import DType

LINE_BYTES = 64  # from one element to the next: a line of the cache for each
LEAST_EDGE = 16  # elements along both of the axes that cross
LEAST_BYTES = 1 << 15

NewBuffer = Callable[[BufferKind, Shape, DType], int]


@dataclass(frozen=True, slots=True)
class _Order:
    """Axes that an access moves along, in the order of the loops."""

    axes: tuple[int, ...]
    sizes: tuple[int, ...]


def straightened(
    kernel: LoopKernel, new_buffer: NewBuffer
) -> tuple[LoopKernel, list[LoopKernel]]:
    """Return the kernel without strided reads, and the copies that precede it."""
    far = _far_reads(kernel) if len(kernel.axes) > 1 else {}
    if not far or _is_tiles(transposed(kernel)):
        return kernel, []
    copies: list[LoopKernel] = []
    changed: dict[Access, Access] = {}
    operands = list(kernel.operands)
    for access, order in far.items():
        operand = operands[access.operand]
        copy = _copy(kernel, operand, access, order)
        if not _is_tiles(transposed(copy)):
            continue
        buffer = new_buffer("temporary", order.sizes, operand.dtype)
        written = Operand(buffer, "write", operand.dtype)
        copies.append(replace(copy, operands=(copy.operands[0], written)))
        changed[access] = _of_copy(len(operands), access, order)
        operands.append(replace(written, mode="read"))
    if not changed:
        return kernel, []
    return _reading(kernel, operands, changed), copies


def _of_copy(number: int, access: Access, order: _Order) -> Access:
    """Return an access to the copy; axes walked backwards stay so."""
    strides: list[Dim] = [0] * len(access.strides)
    offset: Dim = 0
    plain = Layout.contiguous(order.sizes).strides
    for axis, size, stride in zip(order.axes, order.sizes, plain, strict=True):
        back = _is_backwards(access.strides[axis])
        strides[axis] = -stride if back else stride
        offset += stride * (size - 1) if back else 0
    return Access(number, tuple(strides), offset)


def _is_backwards(stride: Dim) -> bool:
    return isinstance(stride, int) and stride < 0


def _is_tiles(kernel: Step) -> bool:
    return isinstance(kernel, LoopKernel) and isinstance(kernel.body[0], Tiles)


def _reading(
    kernel: LoopKernel, operands: Sequence[Operand], changed: Mapping[Access, Access]
) -> LoopKernel:
    """Return the kernel with other accesses, without operands that nothing reads."""

    def read(statement: Statement) -> Statement:
        if isinstance(statement, Load) and statement.access in changed:
            return replace(statement, access=changed[statement.access])
        return statement

    body = each_statement(kernel.body, read)
    used = {access.operand for access in _accesses(body)}
    kept = [number for number in range(len(operands)) if number in used]
    place = {number: position for position, number in enumerate(kept)}

    def renumbered(statement: Statement) -> Statement:
        if not isinstance(statement, Load | Store) or statement.access.operand < 0:
            return statement
        moved = replace(statement.access, operand=place[statement.access.operand])
        return replace(statement, access=moved)

    return replace(
        kernel,
        operands=tuple(operands[number] for number in kept),
        body=each_statement(body, renumbered),
    )


def _accesses(body: Sequence[Statement]) -> Iterator[Access]:
    for statement, _ in _walk(body):
        if isinstance(statement, Load | Store):
            yield statement.access


def _walk(body: Sequence[Statement]) -> Iterator[tuple[Statement, tuple[int, ...]]]:
    """Yield every statement that is no loop, with the axes of the loops around it."""
    stack: list[tuple[Statement, tuple[int, ...]]] = [(s, ()) for s in reversed(body)]
    while stack:
        statement, around = stack.pop()
        if isinstance(statement, Loop | Blocks | Rest):
            inner = (*(a for a in around if a != statement.axis), statement.axis)
            stack += [(s, inner) for s in reversed(statement.body)]
        else:
            yield statement, around


def _far_reads(kernel: LoopKernel) -> dict[Access, _Order]:
    """Return accesses all of whose loads are strided, and the order of their copies."""
    found: dict[Access, _Order | None] = {}
    for statement, around in _walk(kernel.body):
        if isinstance(statement, When | Invoke | Tiles):
            return {}
        if isinstance(statement, Load):
            order = _far(kernel, statement.access, around)
            known = found.setdefault(statement.access, order)
            found[statement.access] = order if known == order else None
    return {access: order for access, order in found.items() if order is not None}


def _far(kernel: LoopKernel, access: Access, around: tuple[int, ...]) -> _Order | None:
    """Return the loop order around an access with a large innermost stride."""
    fixed = access.dynamic is not None or access.operand < 0
    if fixed or kernel.operands[access.operand].mode != "read" or not around:
        return None
    axes = tuple(axis for axis in around if access.strides[axis] != 0)
    sizes = tuple(n for axis in axes if isinstance(n := kernel.axes[axis], int))
    strides = {a: s for a, s in enumerate(access.strides) if s != 0}
    if len(sizes) < max(len(axes), 2) or len(strides) != len(axes):
        return None
    itemsize = kernel.operands[access.operand].dtype.itemsize
    last = strides[axes[-1]]
    near = [axis for axis in axes[:-1] if strides[axis] in (1, -1)]
    crosses = axes[-1] == around[-1] and len(near) == 1
    if not crosses or not isinstance(last, int) or abs(last) * itemsize < LINE_BYTES:
        return None
    edges = (kernel.axes[near[0]], sizes[-1])
    long = all(isinstance(n, int) and n >= LEAST_EDGE for n in edges)
    enough = prod(sizes) * itemsize >= LEAST_BYTES
    return _Order(axes, sizes) if long and enough else None


def _copy(
    kernel: LoopKernel, operand: Operand, access: Access, order: _Order
) -> LoopKernel:
    strides, offset = [], access.offset
    for axis, size in zip(order.axes, order.sizes, strict=True):
        stride = access.strides[axis]
        back = _is_backwards(stride)
        strides.append(-stride if back else stride)
        offset += stride * (size - 1) if back else 0
    read = Access(0, tuple(strides), offset)
    written = Access(1, Layout.contiguous(order.sizes).strides)
    body: tuple[Statement, ...] = (
        Load(0, read, operand.dtype),
        Compute(1, COPIED, (0,), operand.dtype),
        Store(written, 1),
    )
    return LoopKernel(
        name="copy",
        axes=order.sizes,
        operands=(operand, Operand(-1, "write", operand.dtype)),
        scratch=(),
        body=loops(range(len(order.sizes)), body),
        sites=kernel.sites[:1],
        row_cost=prod(order.sizes[1:]),
    )
