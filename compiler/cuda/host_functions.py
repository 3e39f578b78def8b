"""Host functions between kernels: taps, callbacks, users' array functions.

A graph cannot wait for Python, so what holds such a call is launched kernel by kernel,
as a branch is. The arrays are copied to the host and results back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from staticgrad.compiler.cuda.device import Device
from staticgrad.compiler.kernel_ir.kernels import Invoke, LoopKernel, Site
from staticgrad.compiler.kernel_ir.walks import statements_of
from staticgrad.compiler.runtime.failures import raised_by
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.size import evaluate
from staticgrad.ir.types import DType


@dataclass(frozen=True, slots=True)
class Seen:
    """Array of a call: its first byte in `buffer`, for each position."""

    buffer: int
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class HostCall:
    """Call ``function(*reads, *writes)``, once for each position."""

    function: Foreign
    reads: tuple[Seen, ...]
    writes: tuple[Seen, ...]
    positions: int
    site: Site


def is_hosted(kernel: LoopKernel) -> bool:
    """Whether a kernel only calls a function on whole arrays."""
    return any(isinstance(s, Invoke) for s in statements_of(kernel.body))


def host_call(kernel: LoopKernel, values: Mapping[str, int]) -> HostCall:
    """Return the call that a kernel stands for, for given sizes."""
    (call,) = (s for s in statements_of(kernel.body) if isinstance(s, Invoke))
    axes = tuple(evaluate(dim, values) for dim in kernel.axes)
    places = list(np.ndindex(axes))
    seen: list[Seen] = []
    for block in call.arrays:
        first, size = block.first, block.dtype.itemsize
        strides = [evaluate(dim, values) * size for dim in first.strides]
        offset = evaluate(first.offset, values) * size
        starts = tuple(
            offset + sum(i * s for i, s in zip(place, strides, strict=True))
            for place in places
        )
        shape = tuple(evaluate(dim, values) for dim in block.shape)
        buffer = kernel.operands[first.operand].buffer
        seen.append(Seen(buffer, starts, shape, block.dtype))
    read = len(seen) - call.results
    return HostCall(
        call.function, tuple(seen[:read]), tuple(seen[read:]), len(places),
        kernel.sites[call.site],
    )  # fmt: skip


def run_on_host(call: HostCall, device: Device, address: Callable[[int], int]) -> None:
    """Run `call` on arrays at ``address(buffer)``; raise what it raises."""
    target, start = call.function.target, time.perf_counter()
    try:
        for position in range(call.positions):
            _at(call, position, device, address)
    finally:
        if target is not None:
            target.calls += call.positions
            target.seconds += time.perf_counter() - start


def _at(
    call: HostCall, position: int, device: Device, address: Callable[[int], int]
) -> None:
    given = []
    for seen in call.reads:
        array: np.ndarray[Any, Any] = np.empty(seen.shape, seen.dtype)
        if array.size:
            device.read(address(seen.buffer) + seen.starts[position], array)
        array.flags.writeable = False
        given.append(array)
    results = [np.empty(seen.shape, seen.dtype) for seen in call.writes]
    try:
        call.function.function(*given, *results)
    except BaseException as error:  # noqa: BLE001  raised by the call
        site = call.site
        found = raised_by(call.function, error, position, site.op, site.source)
        raise found from error.__cause__
    for seen, result in zip(call.writes, results, strict=True):
        if math.prod(seen.shape):
            device.write(address(seen.buffer) + seen.starts[position], result)
