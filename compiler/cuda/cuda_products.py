"""Matrix products on a GPU: cuBLAS for floats, a loop nest for everything else."""

from __future__ import annotations

from collections.abc import Mapping

from staticgrad.compiler.cuda.device import Product
from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Accumulate,
    Combine,
    Compute,
    GemmKernel,
    Initial,
    Load,
    Loop,
    LoopKernel,
    Operand,
    Statement,
    Store,
)
from staticgrad.ir.expression import parse
from staticgrad.ir.size import evaluate
from staticgrad.ir.types import kind_of

_A, _B, _TERM, _TOTAL, _OLD, _NEW = range(6)


def product_of(kernel: GemmKernel, values: Mapping[str, int]) -> Product:
    """Return the Product of `kernel` for given sizes."""
    ld = tuple(evaluate(dim, values) for dim in kernel.ld)
    steps = tuple(evaluate(dim, values) for dim in kernel.batch_strides)
    return Product(
        dtype=kernel.operands[2].dtype,
        m=evaluate(kernel.m, values),
        n=evaluate(kernel.n, values),
        k=evaluate(kernel.k, values),
        transposed=kernel.transposed,
        ld=(ld[0], ld[1], ld[2]),
        batch=evaluate(kernel.batch, values),
        batch_strides=(steps[0], steps[1], steps[2]),
        alpha=kernel.alpha,
        beta=kernel.beta,
    )


def loop_of_product(kernel: GemmKernel) -> LoopKernel:
    """Return the loop nest over (batch, m, n, k) of a product."""
    a, b, c = kernel.operands
    dtype, (lda, ldb, ldc) = c.dtype, kernel.ld
    transposed_a, transposed_b = kernel.transposed
    step_a, step_b, step_c = kernel.batch_strides
    left = (step_a, 1, 0, lda) if transposed_a else (step_a, lda, 0, 1)
    right = (step_b, 0, ldb, 1) if transposed_b else (step_b, 0, 1, ldb)
    first, second, third = kernel.offsets
    combine: Combine = "or" if kind_of(dtype) == "b" else "add"
    terms: tuple[Statement, ...] = (
        Load(_A, Access(0, left, first), a.dtype),
        Load(_B, Access(1, right, second), b.dtype),
        Compute(_TERM, parse("{0} * {1}"), (_A, _B), dtype),
        Accumulate(_TOTAL, combine, _TERM, dtype),
    )
    out = Access(2, (step_c, ldc, 1, 0), third)
    added: tuple[Statement, ...] = (Store(out, _TOTAL),)
    if kernel.beta:
        added = (
            Load(_OLD, out, dtype),
            Compute(_NEW, parse("{0} + {1}"), (_OLD, _TOTAL), dtype),
            Store(out, _NEW),
        )
    body: tuple[Statement, ...] = (
        Initial(_TOTAL, combine, dtype), Loop(3, terms), *added,
    )  # fmt: skip
    for axis in (2, 1, 0):
        body = (Loop(axis, body),)
    return LoopKernel(
        name=kernel.name,
        axes=(kernel.batch, kernel.m, kernel.n, kernel.k),
        operands=(
            Operand(a.buffer, "read", a.dtype),
            Operand(b.buffer, "read", b.dtype),
            Operand(c.buffer, c.mode, c.dtype),
        ),
        scratch=(),
        body=body,
        sites=kernel.sites,
        row_cost=kernel.m * kernel.n * kernel.k,
    )
