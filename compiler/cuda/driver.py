"""CUDA driver through ctypes: one device, one stream, graphs.

Only functions that libcuda has had since CUDA 12 are used, by their names of today, so
that no CUDA package is needed to run. Code is loaded and memory allocated outside of
captures. Memory that Python gives back is freed at the next allocation, because a
finalizer may run in the middle of a capture.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy.typing as npt

from staticgrad.compiler.cuda.conditional_nodes import SETTER, SETTING
from staticgrad.compiler.cuda.cublas import Blas
from staticgrad.compiler.cuda.cuda_compile import DeviceCode, compile_kernel
from staticgrad.compiler.cuda.device import Product
from staticgrad.compiler.cuda.source.cuda_loops import CudaSource
from staticgrad.compiler.runtime.vm import STATUS_WORDS
from staticgrad.errors import DeviceError

Array = npt.NDArray[Any]
Compile = Callable[[CudaSource, tuple[int, int]], DeviceCode]

LIBRARY = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
OLDEST_DRIVER = 13000
"""CUDA 13.0: older drivers refuse the code that its compiler makes."""

_MAJOR, _MINOR, _MULTIPROCESSORS = 75, 76, 16  # CU_DEVICE_ATTRIBUTE_...
_NON_BLOCKING = 1  # the legacy stream cannot be captured
_THREAD_LOCAL = 1  # capture mode: calls of other threads are not captured
_CONDITIONAL = 13  # CU_GRAPH_NODE_TYPE_CONDITIONAL
_OUT_OF_MEMORY, _NO_DEVICE = 2, 100
_BLOCKS_PER_MULTIPROCESSOR = 8

_TEXTS = {
    _OUT_OF_MEMORY: "out of device memory",
    _NO_DEVICE: "no GPU",
    900: "an operation that must not be captured",
    901: "a capture that was broken off",
}


class NodeParameters(ctypes.Structure):
    """CUgraphNodeParams of a conditional node; 256 bytes."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("reserved", ctypes.c_int32 * 3),
        ("handle", ctypes.c_uint64),
        ("kind", ctypes.c_int32),  # 0: if, 1: while
        ("size", ctypes.c_uint32),  # of `graphs`
        ("graphs", ctypes.POINTER(ctypes.c_void_p)),  # written by the driver
        ("context", ctypes.c_void_p),
        ("unused", ctypes.c_uint64 * 26),
    )


class ReadyGraph:
    """Captured graph that can be run."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self.handle = handle


class Driver:
    """Driver of the first visible GPU."""

    block = 256
    conditionals = True

    def __init__(
        self, library: str = LIBRARY, cublas: str | None = None,
        compile_it: Compile = compile_kernel,
    ) -> None:  # fmt: skip
        self._library = _loaded(library)
        self._compile = compile_it
        self._process = os.getpid()
        self._entered = threading.local()
        self._functions: dict[tuple[str, tuple[str, ...]], ctypes.c_void_p] = {}
        self._freed: list[int] = []
        self._dropped: list[ctypes.c_void_p] = []
        self._capturing = False
        self._setter: ctypes.c_void_p | None = None
        self._call("cuInit", 0)
        self._check_version()
        self._open()
        self._cublas_path = cublas
        self._cublas: Blas | None = None

    def _check_version(self) -> None:
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        if version.value < OLDEST_DRIVER:
            raise DeviceError(
                "target 'cuda' requires a driver for CUDA 13.0 or newer, got one for "
                f"{version.value // 1000}.{version.value % 1000 // 10}; "
                "install a newer driver or use target='cpu'"
            )

    def _open(self) -> None:
        count, device = ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if not count.value:
            raise DeviceError(_message("cuDeviceGetCount", _NO_DEVICE))
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        name = ctypes.create_string_buffer(128)
        self._call("cuDeviceGetName", name, len(name), device)
        self.name = name.value.decode(errors="replace")
        self.capability = (
            self._attribute(_MAJOR, device), self._attribute(_MINOR, device),
        )  # fmt: skip
        multiprocessors = self._attribute(_MULTIPROCESSORS, device)
        self.most_blocks = _BLOCKS_PER_MULTIPROCESSOR * multiprocessors
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._enter()
        self.stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(self.stream), _NON_BLOCKING)

    @property
    def stream_number(self) -> int | None:
        """Handle of the stream, for other libraries."""
        return self.stream.value

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DeviceError(_message(name, code))

    def _enter(self) -> None:
        """Make the context current in this thread."""
        if getattr(self._entered, "process", None) == self._process:
            return
        if os.getpid() != self._process:
            raise DeviceError(
                "target 'cuda' requires the process that opened the GPU, got one "
                "forked from it; start processes with the method 'spawn'"
            )
        self._call("cuCtxSetCurrent", self._context)
        self._entered.process = self._process

    # Memory

    def allocate(self, size: int) -> int:
        """Allocate bytes and return their address; DeviceError if there are too few."""
        self._enter()
        self._free_now()
        address = ctypes.c_uint64()
        name = "cuMemAlloc_v2"
        code = getattr(self._library, name)(ctypes.byref(address), _size(max(size, 1)))
        if code == _OUT_OF_MEMORY:
            raise DeviceError(
                f"target 'cuda' requires {size} bytes more of device memory, got "
                f"{_TEXTS[code]} on {self.name}; use a smaller batch or target='cpu'"
            )
        if code:
            raise DeviceError(_message(name, code))
        return address.value

    def free(self, address: int) -> None:
        """Free bytes for reuse by the next allocation."""
        self._freed.append(address)

    def _free_now(self) -> None:
        while self._freed and not self._capturing:
            self._call("cuMemFree_v2", ctypes.c_uint64(self._freed.pop()))
        while self._dropped and not self._capturing:
            self._call("cuGraphExecDestroy", self._dropped.pop())

    def write(self, address: int, array: Array) -> None:
        """Copy a contiguous host array to the device."""
        self._enter()
        self._call(
            "cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address),
            ctypes.c_void_p(array.ctypes.data), _size(array.nbytes), self.stream,
        )  # fmt: skip

    def read(self, address: int, array: Array) -> None:
        """Copy from the device into a contiguous host array, after all work."""
        self._enter()
        self._call(
            "cuMemcpyDtoHAsync_v2", ctypes.c_void_p(array.ctypes.data),
            ctypes.c_uint64(address), _size(array.nbytes), self.stream,
        )  # fmt: skip
        self.synchronise()

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes on the device."""
        self._enter()
        if size:
            self._call(
                "cuMemcpyDtoDAsync_v2", ctypes.c_uint64(target),
                ctypes.c_uint64(source), _size(size), self.stream,
            )  # fmt: skip

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set bytes."""
        self._enter()
        if size:
            self._call(
                "cuMemsetD8Async", ctypes.c_uint64(address), ctypes.c_ubyte(byte),
                _size(size), self.stream,
            )  # fmt: skip

    # Work

    def load(self, source: CudaSource) -> tuple[ctypes.c_void_p, tuple[str, ...]]:
        """Return the function of a kernel, loaded once, and its parameters."""
        key = (source.canonical, source.kinds)
        if key not in self._functions:
            self._enter()
            image = self._compile(source, self.capability)
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self._call("cuModuleLoadData", ctypes.byref(module), image.code)
            self._call(
                "cuModuleGetFunction", ctypes.byref(function), module,
                image.entry.encode(),
            )  # fmt: skip
            self._functions[key] = function
        return self._functions[key], source.kinds

    def launch(
        self, kernel: tuple[ctypes.c_void_p, tuple[str, ...]], grid: tuple[int, int],
        block: int, arguments: Sequence[int],
    ) -> None:  # fmt: skip
        """Run a kernel; an argument per kind of its source."""
        self._enter()
        function, kinds = kernel
        words = _words(kinds, arguments)
        values = (ctypes.c_uint64 * len(words))(*words)
        start = ctypes.addressof(values)
        places = (ctypes.c_void_p * len(words))(
            *(start + 8 * number for number in range(len(words)))
        )
        self._call(
            "cuLaunchKernel", function, grid[0], grid[1], 1, block, 1, 1, 0,
            self.stream, places, None,
        )  # fmt: skip

    def multiply(self, product: Product, a: int, b: int, c: int) -> None:
        """Run a matrix product."""
        self._enter()
        if self._cublas is None:
            self._cublas = Blas(self.stream, self.allocate, self._cublas_path)
        self._cublas.multiply(product, a, b, c)

    def begin_capture(self) -> None:
        """Begin to record work instead of running it."""
        self._enter()
        self._call("cuStreamBeginCapture_v2", self.stream, _THREAD_LOCAL)
        self._capturing = True

    def end_capture(self) -> ReadyGraph:
        """End the recording and return its graph, ready to run."""
        self._capturing = False
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, _size(0))
        self._call("cuGraphDestroy", graph)
        self._call("cuGraphUpload", ready, self.stream)
        graph_ready = ReadyGraph(ready)
        weakref.finalize(graph_ready, self._dropped.append, ready)
        return graph_ready

    @property
    def recording(self) -> bool:
        """Whether work is recorded."""
        return self._capturing

    # Conditional nodes

    def condition(self) -> int:
        """Return a new condition of the recording; outside, load what it needs."""
        if not self._capturing:
            self._load_setter()
            return 0
        graph, _ = self._so_far()
        handle = ctypes.c_uint64()
        self._conditional(
            "cuGraphConditionalHandleCreate", ctypes.byref(handle), graph,
            self._context, 0, 0,
        )  # fmt: skip
        return handle.value

    def _load_setter(self) -> None:
        if self._setter is None:
            self._enter()
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            text = SETTING.encode()
            self._conditional("cuModuleLoadData", ctypes.byref(module), text)
            self._call(
                "cuModuleGetFunction", ctypes.byref(function), module, SETTER.encode()
            )
            self._setter = function

    def _conditional(self, name: str, *arguments: Any) -> None:
        """Call the driver for conditionals; without them branches ask the host."""
        try:
            self._call(name, *arguments)
        except (AttributeError, DeviceError) as error:
            self.conditionals = False
            raise DeviceError(f"no conditional nodes in graphs: {error}") from error

    def _so_far(self) -> tuple[ctypes.c_void_p, Any]:
        """Return the recorded graph, and the nodes that the next one follows."""
        status, number = ctypes.c_int(), ctypes.c_uint64()
        graph, count = ctypes.c_void_p(), ctypes.c_size_t()
        nodes, edges = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
        self._conditional(
            "cuStreamGetCaptureInfo_v3", self.stream, *map(
                ctypes.byref, (status, number, graph, nodes, edges, count)
            ),
        )  # fmt: skip
        found = (ctypes.c_void_p * count.value)(*(nodes[n] for n in range(count.value)))
        return graph, found

    def set_condition(self, condition: int, flag: int) -> None:
        """Set the condition to the int64 at `flag` at that time, 0 or 1."""
        assert self._setter is not None
        self.launch((self._setter, ("int64", "*int64")), (1, 1), 1, (condition, flag))

    def conditional(self, condition: int, loop: bool, body: Callable[[], None]) -> None:
        """Record `body` to run if, or while, the condition is 1."""
        graph, before = self._so_far()
        self._stop_recording()
        node = ctypes.c_void_p()
        asked = NodeParameters(
            type=_CONDITIONAL, handle=condition, kind=int(loop), size=1,
            context=self._context.value,
        )  # fmt: skip
        self._conditional(
            "cuGraphAddNode_v2", ctypes.byref(node), graph, before, None,
            _size(len(before)), ctypes.byref(asked),
        )  # fmt: skip
        self._record_into(ctypes.c_void_p(asked.graphs[0]), None)
        body()
        self._stop_recording()
        self._record_into(graph, node)

    def _stop_recording(self) -> None:
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", self.stream, ctypes.byref(graph))

    def _record_into(
        self, graph: ctypes.c_void_p, after: ctypes.c_void_p | None
    ) -> None:
        self._conditional(
            "cuStreamBeginCaptureToGraph", self.stream, graph,
            None if after is None else ctypes.byref(after), None,
            _size(after is not None), _THREAD_LOCAL,
        )  # fmt: skip

    def replay(self, graph: ReadyGraph) -> None:
        """Run a recorded graph."""
        self._enter()
        self._call("cuGraphLaunch", graph.handle, self.stream)

    def synchronise(self) -> None:
        """Wait for all work; DeviceError if some of it has failed."""
        self._call("cuStreamSynchronize", self.stream)

    def wait_for(self, stream: int) -> None:
        """Wait for all work of another stream."""
        self._enter()
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))


def _size(size: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(size)


def _words(kinds: Sequence[str], arguments: Sequence[int]) -> list[int]:
    """Pack kernel parameters in words of 8 bytes; smaller ones use the low part.

    A status is an array as Numba passes it: two owners, elements, bytes of one, data,
    extent and stride.
    """
    words: list[int] = []
    for kind, argument in zip(kinds, arguments, strict=True):
        if kind == "status":
            words += [0, 0, STATUS_WORDS, 8, argument, STATUS_WORDS, 8]
        else:
            words.append(argument & 0xFFFF_FFFF_FFFF_FFFF)
    return words


def _message(name: str, code: int) -> str:
    text = _TEXTS.get(code, "an error")
    return (
        f"target 'cuda' requires a working GPU, got {text} (CUDA error {code} of "
        f"{name}); use target='cpu'"
    )


def _loaded(library: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(library)
    except OSError as error:
        raise DeviceError(
            f"target 'cuda' requires an NVIDIA driver, got {error}; "
            "install one or use target='cpu'"
        ) from None


@cache
def open_device() -> Driver:
    """Return the default GPU, opened once."""
    return Driver()
