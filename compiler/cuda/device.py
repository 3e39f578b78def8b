"""Protocol of the device that the CUDA target runs on, and the choice of one.

The driver (driver.py) is one; the tests have another that runs kernels in an emulator.
All work goes through one stream, in order. Addresses are device addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from staticgrad.compiler.cuda.source.cuda_loops import CudaSource
from staticgrad.ir.types import DType

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Product:
    """Product ``C = alpha * A @ B + beta * C``, row-major, `batch` times, by address.

    Strides and row lengths are in elements.
    """

    dtype: DType
    m: int
    n: int
    k: int
    transposed: tuple[bool, bool]
    ld: tuple[int, int, int]
    batch: int
    batch_strides: tuple[int, int, int]
    alpha: float
    beta: float


class Device(Protocol):
    """Protocol of a GPU."""

    name: str
    block: int  # threads per block
    most_blocks: int  # of a kernel with a grid-stride loop
    conditionals: bool  # whether graphs can hold branches and loops

    @property
    def stream_number(self) -> int | None:
        """Number of the stream, for other libraries."""

    def allocate(self, size: int) -> int:
        """Allocate bytes and return their address."""

    def free(self, address: int) -> None:
        """Free bytes of `allocate`, after all earlier work."""

    def write(self, address: int, array: Array) -> None:
        """Copy a contiguous host array to the device."""

    def read(self, address: int, array: Array) -> None:
        """Copy from the device into a contiguous host array, after all work."""

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes on the device."""

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set bytes."""

    def load(self, source: CudaSource) -> Any:
        """Return the handle that `launch` takes for a kernel; compiled once."""

    def launch(
        self, kernel: Any, grid: tuple[int, int], block: int, arguments: Sequence[int]
    ) -> None:
        """Run a kernel; an argument per kind of its source."""

    def multiply(self, product: Product, a: int, b: int, c: int) -> None:
        """Run a matrix product."""

    def begin_capture(self) -> None:
        """Begin to record work instead of running it."""

    def end_capture(self) -> Any:
        """End the recording and return its graph."""

    @property
    def recording(self) -> bool:
        """Whether work is recorded."""

    def condition(self) -> Any:
        """Return a new condition of the recording; outside, load what it needs."""

    def set_condition(self, condition: Any, flag: int) -> None:
        """Set the condition to the int64 at `flag` at that time, 0 or 1."""

    def conditional(self, condition: Any, loop: bool, body: Callable[[], None]) -> None:
        """Record `body` to run if, or while, the condition is 1."""

    def replay(self, graph: Any) -> None:
        """Run a recorded graph."""

    def synchronise(self) -> None:
        """Wait for all work."""

    def wait_for(self, stream: int) -> None:
        """Wait for all work of another stream, by the number that its driver gives."""


def captured(device: Device, work: Callable[[], None]) -> Any:
    """Capture the graph of `work`; recording ends even where it raises."""
    device.begin_capture()
    try:
        work()
    finally:
        graph = device.end_capture()
    return graph


_open: list[Callable[[], Device]] = []


@contextmanager
def using(device: Device) -> Iterator[None]:
    """Context in which executables use `device`, for tests and other drivers."""
    _open.append(lambda: device)
    try:
        yield
    finally:
        _open.pop()


def current(default: Callable[[], Device]) -> Device:
    """Return the device to use: that of `using`, else `default`'s."""
    return _open[-1]() if _open else default()
