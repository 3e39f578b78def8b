"""Kernels in the shadow of products: which there are, and graphs compiled without."""

from contextlib import contextmanager

import pytest

from staticgrad.compiler import compile as compiler
from staticgrad.compiler.gemm.product_epilogues import fuse_into_products
from staticgrad.compiler.kernel_ir.kernels import LoopKernel, Tiles
from staticgrad.compiler.kernel_ir.schemes import Update


def schemes(f):
    """The schemes of such kernels in an executable."""
    return [
        part.scheme
        for kernel in f.memory.plan.schedule.kernels
        if isinstance(kernel, LoopKernel)
        for part in kernel.body
        if isinstance(part, Tiles) and isinstance(part.scheme, Update)
    ]


@contextmanager
def kernels_apart():
    """Context in which no such kernels are compiled."""
    with pytest.MonkeyPatch.context() as patched:
        left = tuple(
            s for s in compiler.SCHEDULE_PASSES if s.run is not fuse_into_products
        )
        patched.setattr(compiler, "SCHEDULE_PASSES", left)
        yield
