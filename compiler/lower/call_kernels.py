"""Kernels that call a user's function on whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Block,
    Index,
    Invoke,
    Kernel,
    Load,
    LoopKernel,
    Mode,
    Operand,
    Statement,
    site_of,
)
from staticgrad.compiler.kernel_ir.layouts import base_of, layout_of
from staticgrad.compiler.kernel_ir.walks import loops
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Layout
from staticgrad.ir.size import Dim, product
from staticgrad.ir.types import INT64
from staticgrad.ops.leaves import frozen

POSITION, TARGET = 0, 1  # values of the kernel


def called(node: Node, buffer_of: Callable[[Tensor], int]) -> list[Kernel]:
    """Return one kernel that calls the function for each place of the leading axes.

    The places are chunks of work for threads, those of a Python function aside.
    """
    function: Foreign = node.attrs["function"]
    call = _Call(node, buffer_of)
    body = loops(range(len(call.axes)), tuple(call.statements(function)))
    work = sum((product(t.shape) for t in (*node.inputs, *node.outputs)), 0)
    leading = node.outputs[0].shape[: node.attrs["lead"]] if node.outputs else ()
    kernel = LoopKernel(
        name=node.op.name,
        axes=call.axes,
        operands=tuple(call.operands),
        scratch=(),
        body=body,
        sites=(site_of(node),),
        row_cost=work if not leading else _behind(node),
        parallel=function.target is None and bool(leading),
        fails=True,
    )
    return [kernel]


def _behind(node: Node) -> Dim:
    """Return the number of elements that an index of the first axis stands for."""
    return sum((product(t.shape[1:]) for t in (*node.inputs, *node.outputs)), 0)


class _Call:
    """Operands and statements of the call that `node` is."""

    def __init__(self, node: Node, buffer_of: Callable[[Tensor], int]) -> None:
        lead: int = node.attrs["lead"]
        shape = node.outputs[0].shape[:lead]
        self.node = node
        self.buffer_of = buffer_of
        self.lead = lead
        self.axes: tuple[Dim, ...] = shape or (1,)
        self.operands: list[Operand] = []

    def statements(self, function: Foreign) -> list[Statement]:
        """Return the call, and the values that it needs."""
        arrays = [self._block(t, "read") for t in self.node.inputs]
        arrays += [self._block(t, "write") for t in self.node.outputs]
        places = Layout.contiguous(self.axes).strides
        strides = places if self.lead else (0,)
        body: list[Statement] = [Index(POSITION, strides)]
        target = -1
        if function.target is not None:
            address = frozen(np.array([function.target.address], INT64))
            operand = self._operand(self.buffer_of(address), "read", address)
            nowhere: tuple[Dim, ...] = (0,) * len(self.axes)
            body.append(Load(TARGET, Access(operand, nowhere), INT64))
            target = TARGET
        results = len(self.node.outputs)
        body.append(Invoke(function, tuple(arrays), results, POSITION, 0, target))
        return body

    def _block(self, tensor: Tensor, mode: Mode) -> Block:
        base = base_of(tensor)
        layout = layout_of(tensor)
        operand = self._operand(self.buffer_of(base), mode, tensor)
        strides: Sequence[Dim] = layout.strides[: self.lead] or (0,)
        sizes = tensor.shape[: self.lead]
        steps = tuple(0 if n == 1 else s for n, s in zip(sizes, strides, strict=False))
        first = Access(operand, steps or (0,), layout.offset)
        return Block(first, tensor.shape[self.lead :], tensor.dtype)

    def _operand(self, buffer: int, mode: Mode, tensor: Tensor) -> int:
        new = Operand(buffer, mode, tensor.dtype)
        if new in self.operands:
            return self.operands.index(new)
        self.operands.append(new)
        return len(self.operands) - 1
