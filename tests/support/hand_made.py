"""Schedules written by hand, for tests of what runs them."""

from __future__ import annotations

import numpy as np

from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Accumulate,
    CheckIndex,
    Compute,
    FinishKernel,
    GemmKernel,
    Initial,
    Load,
    Loop,
    LoopKernel,
    Operand,
    Site,
    Store,
)
from staticgrad.compiler.kernel_ir.schedule import Buffer, Schedule
from staticgrad.compiler.memory import planner
from staticgrad.compiler.runtime.frame import Frame
from staticgrad.compiler.runtime.instructions import size
from staticgrad.compiler.runtime.native_code import compile_schedule
from staticgrad.ir.expression import parse
from staticgrad.ir.node import Input, Node
from staticgrad.ir.op import OPS
from staticgrad.ir.size import Size
from staticgrad.ir.source import Source
from staticgrad.ir.types import TensorType

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int64)
N = Size.symbol("n")
LINE = Source("train.py", 41, "main")


def input_leaf(name, shape, dtype=FLOAT):
    """An input as `sg.input` makes it."""
    kind = TensorType(shape, dtype)
    node = Node(OPS["input"], (), {"name": name}, (kind,), leaf=Input)
    return node.outputs[0]


def elementwise(template, source, target, row_cost=20, dtype=FLOAT, size=N):
    """``target[i] = template(source[i])``."""
    body = (
        Load(0, Access(0, (1,)), dtype),
        Compute(1, parse(template), (0,), dtype),
        Store(Access(1, (1,)), 1),
    )
    operands = (Operand(source, "read", dtype), Operand(target, "write", dtype))
    site = Site("elementwise", LINE)
    return LoopKernel(
        "elementwise", (size,), operands, (), (Loop(0, body),), (site,), row_cost
    )


def total(source, slots, out, position, dtype=FLOAT):
    """``out = sum(source)``: the kernel with slots and the one that finishes."""
    body = (
        Initial(1, "add", dtype),
        Loop(0, (Load(0, Access(0, (1,)), dtype), Accumulate(1, "add", 0, dtype))),
        Store(Access(1, (0,)), 1),
    )
    operands = (
        Operand(source, "read", dtype),
        Operand(slots, "write", dtype, per_chunk=True, slot=1),
    )
    first = LoopKernel("sum", (N,), operands, (), body, (Site("sum", LINE),), 20)
    ends = (Operand(slots, "read", dtype), Operand(out, "write", dtype))
    second = FinishKernel(
        "finish", ends, 1, "add", dtype, (Site("sum", LINE),), chunks_of=position
    )
    return first, second


def take(source, index, target, extent, wrap=True):
    """``target[i] = source[check(index[i])]``."""
    body = (
        Load(0, Access(1, (1,)), INT),
        CheckIndex(1, 0, extent, 0, 0, wrap),
        Load(2, Access(0, (0,), 0, (1, 1)), FLOAT),
        Store(Access(2, (1,)), 2),
    )
    operands = (
        Operand(source, "read", FLOAT),
        Operand(index, "read", INT),
        Operand(target, "write", FLOAT),
    )
    site = Site("check_index", LINE)
    return LoopKernel(
        "take", (N,), operands, (), (Loop(0, body),), (site,), 1, fails=True
    )


def product(m, n, k, dtype=FLOAT, operands=(0, 1, 2), **changes):
    """A product of contiguous matrices; `changes` replace fields of the kernel."""
    a, b, c = operands
    fields = {
        "name": "matmul",
        "operands": (
            Operand(a, "read", dtype),
            Operand(b, "read", dtype),
            Operand(c, "write", dtype),
        ),
        "m": m,
        "n": n,
        "k": k,
        "transposed": (False, False),
        "ld": (k, n, n),
        "offsets": (0, 0, 0),
        "batch": 1,
        "batch_strides": (0, 0, 0),
        "alpha": 1.0,
        "beta": 0.0,
        "sites": (Site("matmul", LINE),),
    }
    return GemmKernel(**{**fields, **changes})


def sums_of_exponentials():
    """y = exp(x), t = sum(y), and the outputs (y, t, x, y)."""
    buffers = (
        Buffer(0, "input", (N,), FLOAT, "x", 0),
        Buffer(1, "output", (N,), FLOAT, "y", 0),
        Buffer(2, "slots", (), FLOAT, "slots"),
        Buffer(3, "output", (), FLOAT, "t", 1),
        Buffer(4, "temporary", (N,), FLOAT, "h"),
    )
    kernels = (
        elementwise("exp({0})", 0, 4),
        elementwise("{0}", 4, 1),
        *total(4, 2, 3, 2),
    )
    return Schedule(buffers, kernels, 4, (1, 3, 0, 1), finite=(3,))


def frame_of(schedule, inputs=(), poison=True, **values):
    """A frame of `schedule` that owns its inputs and outputs."""
    plan = planner.plan(schedule, values)
    return Frame(size(compile_schedule(schedule), plan, poison)).own(inputs)
