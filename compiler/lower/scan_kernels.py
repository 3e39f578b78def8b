"""Kernel of Scan: a cumulative reduction along one axis.

The state lies in scratch, one element for each index of the axes behind the scanned
one. Along the last axis that is a single element, which LLVM keeps in a register;
along another the innermost loop runs over those axes and vectorises. Without axes ahead
of the scanned one, chunks are of an axis behind it instead.

The state of a running sum of float32 is float64: what is shown is off by one rounding,
however many elements came before.

Along the last axis each step waits for the one before; of running sums of floats
running_sums.py makes vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from staticgrad.compiler.kernel_ir.kernels import (
    CONVERTED,
    Access,
    Compute,
    Kernel,
    Load,
    Loop,
    LoopKernel,
    Number,
    Operand,
    Scratch,
    Statement,
    Store,
    site_of,
)
from staticgrad.compiler.kernel_ir.layouts import base_of, layout_of
from staticgrad.compiler.kernel_ir.walks import loops
from staticgrad.ir.node import Node
from staticgrad.ir.op import Layout, Scan
from staticgrad.ir.size import Dim, Shape, product
from staticgrad.ir.types import FLOAT32, FLOAT64

STATE = -1  # the scratch area, as operands are numbered
COST = 4  # additions: a step waits for the one before


def scanned(node: Node, buffer_of: Callable[..., int]) -> list[Kernel]:
    """Return one kernel that walks the axis of a Scan."""
    code, result = node.op.code, node.outputs[0]
    assert isinstance(code, Scan)
    order = _Order(result.shape, node.attrs["axis"])
    last = len(node.inputs)
    reads = tuple(Operand(buffer_of(base_of(x)), "read", x.dtype) for x in node.inputs)
    write = Operand(buffer_of(result), "write", result.dtype)
    inner = order.inner_strides()
    state = Access(STATE, order.placed(inner))
    is_wide = code.wide and result.dtype == FLOAT32
    kept = FLOAT64 if is_wide else result.dtype
    step: list[Statement] = [Load(0, state, kept)]
    terms = [0]
    for number, x in enumerate(node.inputs):
        layout = layout_of(x)
        place = Access(number, order.placed(layout.strides), layout.offset)
        step.append(Load(number + 1, place, x.dtype))
        terms.append(number + 1)
        if is_wide:
            terms[-1] += last
            step.append(Compute(terms[-1], CONVERTED, (number + 1,), kept))
    new = 2 * last + 1
    plain = Layout.contiguous(result.shape).strides
    shown = 0 if node.attrs["exclusive"] else new
    step += [
        Compute(new, code.expr, tuple(terms), kept, site=0),
        Store(state, new),
    ]
    if is_wide:
        step.append(Compute(new + 1, CONVERTED, (shown,), result.dtype))
        shown = new + 1
    step.append(Store(Access(last, order.placed(plain)), shown))
    start = (Number(new + 2, code.initial, kept), Store(state, new + 2))
    kernel = LoopKernel(
        name=node.op.name,
        axes=order.axes(),
        operands=(*reads, write),
        scratch=(Scratch(kept, product(order.behind)),),
        body=order.nested(start, tuple(step)),
        sites=(site_of(node),),
        row_cost=product(order.axes()[1:]) * COST,
    )
    return [kernel]


class _Order:
    """Order of a scan's axes as the loops of a kernel."""

    def __init__(self, shape: Shape, axis: int) -> None:
        self.shape = shape
        self.axis = axis
        self.ahead = shape[:axis]
        self.behind = shape[axis + 1 :]
        self.transposed = not self.ahead and bool(self.behind)

    def _loops(self) -> list[int]:
        """Return the axes of the result in the order of the kernel's loops."""
        every = list(range(len(self.shape)))
        return every[1:] + every[:1] if self.transposed else every

    def axes(self) -> tuple[Dim, ...]:
        """Return the kernel's axes; the first is the one of chunks."""
        sizes = tuple(self.shape[k] for k in self._loops())
        return sizes if len(sizes) > 1 else (1, *sizes)

    def placed(self, strides: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return strides along the kernel's axes, from those along the result's."""
        steps = tuple(strides[k] for k in self._loops())
        return steps if len(steps) > 1 else (0, *steps)

    def inner_strides(self) -> tuple[Dim, ...]:
        """Return strides of the state: those of the axes behind the scanned one."""
        plain = Layout.contiguous(self.behind).strides
        return (*(0,) * (self.axis + 1), *plain)

    def nested(
        self, start: tuple[Statement, ...], step: tuple[Statement, ...]
    ) -> tuple[Statement, ...]:
        """Return loops over the axes ahead; inside `start`, then `step` along it."""
        rank = len(self.axes())
        if self.transposed:
            behind, along = range(rank - 1), rank - 1
        else:
            along = self.axis if self.ahead else 1 if rank == 2 else 0
            behind = range(along + 1, rank)
        body: tuple[Statement, ...] = (
            *loops(behind, start),
            Loop(along, loops(behind, step)),
        )
        return body if self.transposed else loops(range(along), body)
