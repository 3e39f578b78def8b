"""Compilation of kernels to native code: source, cache, compiler.

Kernels with equal source are compiled once. A cached kernel is loaded in about 0.1 ms;
compiling one takes 3-60 ms.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from staticgrad.compiler.codegen.foreign_calls import caller
from staticgrad.compiler.codegen.loops.loop_source import kernel_source
from staticgrad.compiler.codegen.native_compile import compiled
from staticgrad.compiler.codegen.text_emitter import canonical
from staticgrad.compiler.host.cache import Cache, default_cache, kernel_key
from staticgrad.compiler.kernel_ir.kernels import LoopKernel, Number, calls_of
from staticgrad.compiler.kernel_ir.walks import statements_of
from staticgrad.ir.size import Dim


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """Kernel that can be called.

    `cached` says that nothing was compiled for it, and `reason` why: "in memory",
    "on disk", or what made it necessary to compile. `seconds` is what getting it took.
    `sizes` are the symbolic ones that it reads, `areas` those of its scratch.
    """

    kernel: LoopKernel
    address: int
    sizes: tuple[Dim, ...]
    cached: bool
    seconds: float
    reason: str = ""
    areas: int = 0

    @property
    def source(self) -> str:
        """Readable source of the kernel, with names, shapes and the user's lines."""
        return kernel_source(self.kernel).text


@dataclass(frozen=True, slots=True)
class _Text:
    """Canonical source, its key, the symbolic sizes that it reads, and its areas."""

    text: str
    key: str
    sizes: tuple[Dim, ...]
    areas: int


def native(kernels: Sequence[LoopKernel]) -> list[NativeKernel]:
    """Return the native code of each kernel; equal sources are compiled once."""
    cache, known = default_cache(), dict[Hashable, _Text]()
    return [_native(kernel, cache, known) for kernel in kernels]


def _native(
    kernel: LoopKernel, cache: Cache, known: dict[Hashable, _Text]
) -> NativeKernel:
    start = time.perf_counter()
    form = form_of(kernel)
    written = known.get(form)
    if written is None:
        written = known[form] = _written(kernel)
    text, key = written.text, written.key
    found = cache.get(key, lambda: compiled(text, key, foreign_names(kernel)))
    seconds = time.perf_counter() - start
    return NativeKernel(
        kernel, found.address, written.sizes, found.hit, seconds, found.reason,
        written.areas,
    )  # fmt: skip


def _written(kernel: LoopKernel) -> _Text:
    source = kernel_source(kernel)
    text = canonical(source.text)
    return _Text(text, kernel_key(text), source.sizes, source.areas)


def form_of(kernel: LoopKernel) -> Hashable:
    """Return the key of kernels of equal source: all but names, lines and buffers.

    Writing the source of each of many equal layers would take longer than all else.
    Numbers are distinguished as they are written: 0.0 from -0.0, 1 from 1.0 and True.
    """
    statements = list(statements_of(kernel.body))
    if any(calls_of(statement) for statement in statements):
        return id(kernel)
    operands = tuple(replace(operand, buffer=0) for operand in kernel.operands)
    numbers = tuple(repr(s.value) for s in statements if isinstance(s, Number))
    return kernel.axes, operands, kernel.scratch, kernel.body, kernel.fails, numbers


def foreign_names(kernel: LoopKernel) -> dict[str, Any]:
    """Return the functions bound to the user functions' symbols in the source."""
    found: dict[str, Any] = {}
    for statement in statements_of(kernel.body):
        for function, count in calls_of(statement):
            found[function.symbol] = caller(function, count)
    return found
