"""Mapping of a kernel's loops to the threads, warps and blocks of a GPU.

An axis is *free* if different indices of it touch different memory: then it may be
spread over threads. A *chain* is a nest of loops with nothing between them but values;
its free axes are spread, the others are walked in order by each thread. Seven ways:

* thread: every index of the outer free axes is one thread's (elementwise; rows whose
  neighbours lie side by side);
* warp: a row is one warp's, whose lanes share the loops inside (softmax, layer norm);
* column: a chunk of axis 0 times a free axis inside it (sums over rows);
* block: a chunk of axis 0 is one block's (sums of everything);
* row: a chunk is one warp's, which walks its rows and shares what is inside of them
  (cross entropy together with the gradient of a bias);
* tile: a copy that turns axes, in tiles of shared memory, each a block's;
* alone: a chunk is one thread's, for what has no free axis at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Accumulate,
    CheckIndex,
    Compute,
    Index,
    Initial,
    Load,
    Loop,
    LoopKernel,
    Number,
    Statement,
    Store,
    Tiles,
    When,
)
from staticgrad.compiler.kernel_ir.schemes import Transposed
from staticgrad.compiler.kernel_ir.walks import statements_of, with_axes

Body: TypeAlias = tuple[Statement, ...]
Worker: TypeAlias = Literal["thread", "warp", "column", "block", "row", "alone", "tile"]

CHUNKED: tuple[Worker, ...] = ("column", "block", "row", "alone")
"""Workers that have a chunk of axis 0 each."""

_VALUES = (Number, Load, Compute, Index, CheckIndex)


@dataclass(frozen=True, slots=True)
class Chain:
    """Nested loops over `axes`, the values `before` their bodies, and the last body."""

    axes: tuple[int, ...]
    before: Body
    body: Body


@dataclass(frozen=True, slots=True)
class Mapping:
    """Mapping of a kernel: its worker, spread axes and sequential axes.

    `spread` are spread over all workers; `walked` are the other loops of the outer
    chain, inside of which the worker runs `body`, with the values `before` it.
    """

    worker: Worker
    spread: tuple[int, ...]
    walked: tuple[int, ...]
    before: Body
    body: Body


def chain_of(body: Body) -> Chain:
    """Return the chain at the start of `body`; no axes if it is not a single loop."""
    axes: list[int] = []
    before: list[Statement] = []
    while True:
        *values, last = body
        values_only = all(isinstance(s, _VALUES) for s in values)
        if not isinstance(last, Loop) or not values_only:
            return Chain(tuple(axes), tuple(before), body)
        before += values
        axes.append(last.axis)
        body = last.body
        if not body:
            return Chain(tuple(axes), tuple(before), body)


def bound_axes(kernel: LoopKernel, scratch: bool) -> frozenset[int]:
    """Return axes whose indices share memory that is written; `scratch` counts too."""
    found = [
        (s, axes)
        for s, axes in with_axes(kernel.body)
        if isinstance(s, Load | Store) and (scratch or s.access.operand >= 0)
    ]
    bound: set[int] = set()
    for store, axes in found:
        if isinstance(store, Store):
            bound.update(a for a in axes if _shared(kernel, store.access, a))
    for store, axes in found:
        for other, others in found:
            same = store.access.operand == other.access.operand
            if isinstance(store, Store) and same and _place(store) != _place(other):
                bound.update(axes, others)
    return frozenset(bound)


def _place(statement: Load | Store) -> tuple[object, ...]:
    access = statement.access
    return access.strides, access.offset, access.dynamic


def _shared(kernel: LoopKernel, access: Access, axis: int) -> bool:
    """Whether two indices of `axis` may write the same element."""
    stride = access.strides[axis]
    if kernel.axes[axis] == 1:
        return False
    return stride == 0 or (access.dynamic is not None and stride == access.dynamic[1])


def outer_registers(body: Body) -> dict[int, Accumulate]:
    """Return the accumulations of `body` into registers that it does not initialise."""
    own = {s.register for s in statements_of(body) if isinstance(s, Initial)}
    return {
        s.register: s
        for s in statements_of(body)
        if isinstance(s, Accumulate) and s.register not in own
    }


def exchanged(kernel: LoopKernel) -> frozenset[int]:
    """Return operands and scratch that the kernel both writes and reads."""
    every = list(statements_of(kernel.body))
    read = {s.access.operand for s in every if isinstance(s, Load)}
    return frozenset(
        s.access.operand
        for s in every
        if isinstance(s, Store) and s.access.operand in read
    )


def mapping_of(kernel: LoopKernel, lanes: bool = False) -> Mapping:
    """Return the mapping of `kernel`; `lanes` forces sharing loops inside rows."""
    if _turns(kernel.body):
        every = tuple(range(len(kernel.axes)))
        return Mapping("tile", every, (), (), kernel.body)
    chain = chain_of(kernel.body)
    bound = bound_axes(kernel, scratch=False)
    spread = tuple(a for a in chain.axes if a not in bound)
    if spread and not outer_registers(chain.body):
        walked = tuple(a for a in chain.axes if a in bound)
        rowwise = lanes or _wants_lanes(kernel, chain.body, spread)
        rowwise = rowwise and not _branches(kernel)
        worker: Worker = "warp" if rowwise and not walked else "thread"
        return Mapping(worker, spread, walked, chain.before, chain.body)
    columns = () if _branches(kernel) else _columns(kernel)
    if columns:
        return Mapping("column", columns, (), (), kernel.body)
    return Mapping(_of_chunks(kernel), (), (), (), kernel.body)


def _turns(body: Body) -> bool:
    """Whether the body is only a copy that transposes axes."""
    return any(isinstance(s, Tiles) and isinstance(s.scheme, Transposed) for s in body)


def _of_chunks(kernel: LoopKernel) -> Worker:
    """Return the worker of a chunk: a block, if its rows are independent."""
    if _branches(kernel):
        return "alone"
    bound = bound_axes(kernel, scratch=True)
    chains = [chain_of((s,)) for s in kernel.body if isinstance(s, Loop)]
    free = (set(chain.axes) - bound for chain in chains if 0 in chain.axes)
    if any(free):
        return "block"
    return "row" if _loop_axes(kernel.body) - bound else "alone"


def _branches(kernel: LoopKernel) -> bool:
    """Whether threads may diverge, so that lanes could not synchronise."""
    return any(isinstance(s, When) for s in statements_of(kernel.body))


def _columns(kernel: LoopKernel) -> tuple[int, ...]:
    """Return axes that every loop of a chunk has free, if there are only loops."""
    loops = [s for s in kernel.body if isinstance(s, Loop)]
    stores = any(isinstance(s, Store) for s in kernel.body)
    if kernel.scratch or stores or any(outer_registers((s,)) for s in loops):
        return ()
    bound = bound_axes(kernel, scratch=True)
    free = {
        tuple(a for a in chain_of((loop,)).axes if a not in bound) for loop in loops
    }
    axes = free.pop() if len(free) == 1 else ()
    return () if 0 in axes else axes


def _loop_axes(body: Body) -> set[int]:
    return {s.axis for s in statements_of(body) if isinstance(s, Loop)}


def _wants_lanes(kernel: LoopKernel, body: Body, spread: Sequence[int]) -> bool:
    """Whether accesses coalesce along an inner axis at least as often as by rows."""
    bound = bound_axes(kernel, scratch=True)
    inner = [a for a in _loop_axes(body) if a not in bound]
    if not inner:
        return False
    accesses = [
        s.access
        for s in statements_of(body)
        if isinstance(s, Load | Store) and s.access.operand >= 0
    ]
    along = sum(any(a.strides[axis] in (1, -1) for axis in inner) for a in accesses)
    beside = sum(a.strides[spread[-1]] in (1, -1) for a in accesses)
    return along >= beside


def by_warps(kernel: LoopKernel, chain: Chain, free: Sequence[int]) -> bool:
    """Whether warps should share the rows of a chunk, rather than threads."""
    loops = any(isinstance(s, Loop) for s in chain.body)
    return loops and bool(free) and _wants_lanes(kernel, chain.body, free)
