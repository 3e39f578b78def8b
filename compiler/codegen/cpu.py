"""Kernels to native code: source, cache, compiler.

Kernels with equal source are compiled once. A cached kernel is loaded in about 0.1 ms;
compiling one takes 3-60 ms.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from staticgrad.compiler.cache import Cache, default_cache, kernel_key
from staticgrad.compiler.codegen.foreign import caller
from staticgrad.compiler.codegen.loops import kernel_source
from staticgrad.compiler.codegen.native import compiled
from staticgrad.compiler.codegen.writer import canonical
from staticgrad.compiler.collapse import statements_of
from staticgrad.compiler.kernels import LoopKernel, calls_of
from staticgrad.ir.size import Dim


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """A kernel that can be called.

    `cached` says that nothing was compiled for it, and `reason` why: "in memory",
    "on disk", or what made it necessary to compile. `seconds` is what getting it took.
    `sizes` are the symbolic ones that it reads.
    """

    address: int
    source: str
    sizes: tuple[Dim, ...]
    cached: bool
    seconds: float
    reason: str = ""


def native(kernels: Sequence[LoopKernel]) -> list[NativeKernel]:
    """The native code of each kernel, in order; equal sources are compiled once."""
    cache = default_cache()
    return [_native(kernel, cache) for kernel in kernels]


def _native(kernel: LoopKernel, cache: Cache) -> NativeKernel:
    start = time.perf_counter()
    source = kernel_source(kernel)
    text = canonical(source.text)
    key = kernel_key(text)
    found = cache.get(key, lambda: compiled(text, key, foreign_names(kernel)))
    seconds = time.perf_counter() - start
    return NativeKernel(
        found.address, source.text, source.sizes, found.hit, seconds, found.reason
    )


def foreign_names(kernel: LoopKernel) -> dict[str, Any]:
    """What the symbols of the user's functions stand for in the kernel's source."""
    found: dict[str, Any] = {}
    for statement in statements_of(kernel.body):
        for function, count in calls_of(statement):
            found[function.symbol] = caller(function, count)
    return found
