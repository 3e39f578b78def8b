"""Kernels in the shadow of products: which there are, and graphs compiled without."""

from contextlib import contextmanager

import pytest

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
    """What is compiled meanwhile has none of them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "staticgrad.compiling.fuse_into_products", lambda schedule: schedule
        )
        yield
