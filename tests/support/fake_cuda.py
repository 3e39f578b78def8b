"""The fake driver of fake_cuda.c: built with the C compiler, its kernels emulated."""

import ctypes
import functools
import os
import subprocess
import tempfile

import numpy as np
from cuda_emulator import Pointer, launch

from staticgrad.compiler.cuda.cuda_compile import DeviceCode
from staticgrad.compiler.cuda.driver import Driver, _words
from staticgrad.compiler.cuda.source.cuda_loops import CudaSource

KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint,
    ctypes.POINTER(ctypes.c_uint64),
)  # fmt: skip


@functools.cache
def library_path():
    folder = tempfile.mkdtemp(prefix="fake_cuda")
    source = os.path.join(os.path.dirname(__file__), "fake_cuda.c")
    path = os.path.join(folder, "libcuda.so.1")
    command = ["cc", "-O1", "-shared", "-fPIC", "-w", "-o", path, source]
    subprocess.run(command, check=True)
    return path


class FakeGpu:
    """The library, the kernels that were loaded, and what they raised."""

    def __init__(self):
        self.library = ctypes.CDLL(library_path())
        self.library.fake_extent.restype = ctypes.c_int64
        self.library.fake_extent.argtypes = [ctypes.c_uint64]
        self.library.fake_memory.argtypes = [ctypes.c_uint64]
        self.sources = {}
        self.errors = []
        self.launched = 0
        self.seed = 0
        self._callback = KERNEL(self._run)
        self.library.fake_reset(self._callback)

    def driver(self):
        driver = Driver(library_path(), library_path(), self.compile)
        driver.block = 64
        driver.most_blocks = 2
        return driver

    def compile(self, source: CudaSource, capability) -> DeviceCode:
        assert capability == (9, 0)
        entry = f"kernel_{len(self.sources)}_{id(self)}"
        words = len(_words(source.kinds, [0] * len(source.kinds)))
        number = self.library.fake_register(entry.encode(), words)
        assert number >= 0
        self.sources[number] = source
        return DeviceCode(b"\x7fELF", entry, {})

    def _run(self, number, x, y, block, words):
        self.launched += 1
        self.seed += 1
        try:
            source = self.sources[number]
            arguments = list(self._arguments(source.kinds, words))
            text, functions = source.canonical, source.functions
            launch(text, (x, y), block, arguments, self.seed, functions)
        except Exception as error:  # noqa: BLE001  # C cannot raise it
            self.errors.append(error)

    def _arguments(self, kinds, words):
        at = 0
        for kind in kinds:
            if kind == "status":
                assert words[at + 2] == words[at + 5] == 8 == words[at + 6]
                yield self._view(words[at + 4], np.dtype("int64"), 8)
                at += 7
                continue
            if kind.startswith("*"):
                yield Pointer(self._view(words[at], np.dtype(kind[1:])))
            else:
                dtype = np.dtype(kind)
                yield np.array([words[at]], np.uint64).view(dtype)[0]
            at += 1

    def _view(self, address, dtype, count=None):
        size = self.library.fake_extent(address)
        assert size >= 0, f"{address} is in no allocation"
        assert address % dtype.itemsize == 0
        count = size // dtype.itemsize if count is None else count
        memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, dtype)
