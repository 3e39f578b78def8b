"""Kernels written by hand, for the tests of the code generator."""

import numpy as np

from staticgrad.compiler.codegen.call_kernel import BoundKernel
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
    Operand,
    Scratch,
    Site,
    Store,
)
from staticgrad.ir.expression import parse
from staticgrad.ir.size import Size
from staticgrad.ir.source import Source
from staticgrad.ir.types import FLOAT32, INT64

N, M = Size.symbol("n"), Size.symbol("m")


def kernel(axes, operands, body, scratch=(), sites=(), name="kernel", fails=False):
    kinds = tuple(
        operand
        if isinstance(operand, Operand)
        else Operand(number, operand[0], np.dtype(operand[1]))
        for number, operand in enumerate(operands)
    )
    return LoopKernel(name, axes, kinds, scratch, body, sites, row_cost=1, fails=fails)


def elementwise(template, dtypes, result, extent=N):
    """result[i] = template(x0[i], x1[i]...)."""
    count = len(dtypes)
    loads = tuple(Load(k, Access(k, (1,)), np.dtype(d)) for k, d in enumerate(dtypes))
    expr = parse(template)
    compute = Compute(count, expr, tuple(range(count)), np.dtype(result))
    store = Store(Access(count, (1,)), count)
    operands = [("read", d) for d in dtypes] + [("write", result)]
    return kernel((extent,), operands, (Loop(0, (*loads, compute, store)),))


def apply(template, *arrays, result=None):
    dtype = np.dtype(result or arrays[0].dtype)
    out = np.zeros(arrays[0].shape, dtype)
    made = elementwise(template, [a.dtype for a in arrays], dtype)
    BoundKernel(made, [*arrays, out], {"n": len(out)}).run()
    return out


def reduction(combine, dtype):
    """out = combine over x[n]."""
    body = (
        Initial(0, combine, dtype),
        Loop(0, (Load(1, Access(0, (1,)), dtype), Accumulate(0, combine, 1, dtype))),
        Store(Access(1, (0,)), 0),
    )
    return kernel((N,), [("read", dtype), ("write", dtype)], body)


def row_softmax(dtype=FLOAT32):
    """y[n, m] = softmax over m, with the exponentials in scratch."""
    x = Access(0, (M, 1))
    largest = Loop(1, (Load(2, x, dtype), Accumulate(0, "maximum", 2, dtype)))
    total = Loop(
        1,
        (
            Load(3, x, dtype),
            Compute(4, parse("exp({0} - {1})"), (3, 0), dtype),
            Store(Access(-1, (0, 1)), 4),
            Accumulate(1, "add", 4, dtype),
        ),
    )
    divide = Loop(
        1,
        (
            Load(5, Access(-1, (0, 1)), dtype),
            Compute(6, parse("divide({0}, {1})"), (5, 1), dtype),
            Store(Access(1, (M, 1)), 6),
        ),
    )
    first, second = Initial(0, "maximum", dtype), Initial(1, "add", dtype)
    rows = Loop(0, (first, largest, second, total, divide))
    operands = [("read", dtype), ("write", dtype)]
    return kernel((N, M), operands, (rows,), (Scratch(dtype, M),), name="softmax")


def column_sums(dtype=FLOAT32):
    """Per chunk: slot[m] = sum over the chunk's rows of x[n, m]."""
    slot = Operand(1, "update", dtype, per_chunk=True, slot=M)
    clear = Loop(1, (Number(0, 0, dtype), Store(Access(1, (0, 1)), 0)))
    add = (
        Load(1, Access(0, (M, 1)), dtype),
        Load(2, Access(1, (0, 1)), dtype),
        Compute(3, parse("{0} + {1}"), (1, 2), dtype),
        Store(Access(1, (0, 1)), 3),
    )
    body = (clear, Loop(0, (Loop(1, add),)))
    return kernel((N, M), [("read", dtype), slot], body)


def gather(wrap=True, dtype=INT64):
    """y[n, m] = table[index[n], m] for a table of 10 rows."""
    rows = (
        Load(0, Access(1, (1, 0)), dtype),
        Index(1, (1, 0)),
        CheckIndex(2, 0, 10, 1, site=0, wrap=wrap),
        Loop(
            1,
            (
                Load(3, Access(0, (0, 1), dynamic=(2, M)), FLOAT32),
                Store(Access(2, (M, 1)), 3),
            ),
        ),
    )
    operands = [("read", FLOAT32), ("read", dtype), ("write", FLOAT32)]
    sites = (Site("take", Source("train.py", 41, "f")),)
    return kernel((N, M), operands, (Loop(0, rows),), sites=sites, fails=True)
