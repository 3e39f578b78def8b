"""Steps of a Plan on a device: work, and control flow followed by the host.

Addresses are not known yet: a BufferAddress is a buffer, and bytes from where it
begins. What kernels do is for the device alone, other instructions are as they are on
the cpu.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from staticgrad.compiler.cuda.device import Product
from staticgrad.compiler.cuda.host_functions import HostCall
from staticgrad.compiler.cuda.source.cuda_loops import CudaSource
from staticgrad.compiler.kernel_ir.instruction_set import Copy, Flow, Slot

STATUS = -1
"""The buffer that stands for the status."""


@dataclass(frozen=True, slots=True)
class BufferAddress:
    """Address of `buffer`, `offset` bytes further.

    Buffer -2 - k is the scratch area k.
    """

    buffer: int
    offset: int = 0


Argument: TypeAlias = int | BufferAddress


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch of one kernel over `grid` blocks of `block` threads."""

    source: CudaSource
    grid: tuple[int, int]
    block: int
    arguments: tuple[Argument, ...]
    scratch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Multiply:
    """Product by cuBLAS."""

    product: Product
    a: BufferAddress
    b: BufferAddress
    c: BufferAddress


@dataclass(frozen=True, slots=True)
class Zero:
    """Zeroing of a buffer."""

    target: BufferAddress
    size: int


Work: TypeAlias = Launch | Multiply | Copy | Zero | HostCall | Slot
Step: TypeAlias = Work | Flow
