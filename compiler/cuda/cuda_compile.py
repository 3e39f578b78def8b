"""Kernel source to machine code for a GPU, without a GPU: Numba, then nvJitLink.

Everything that knows Numba's CUDA compiler is in `ptx_of` and cuda_foreign.py, so that
another compiler of the same subset can replace it. Code is kept on disk beside the
cpu's kernels, since Numba cannot cache source without a file.

numba-cuda 0.30 uses a name that NumPy 2.5 has not any more; it is put back. CUDA
packages newer than the driver make code that the driver refuses, hence the pins of the
extra ``staticgrad[cuda]``.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from staticgrad.compiler.cuda.cuda_foreign import calls, compiling_for
from staticgrad.compiler.cuda.source.cuda_loops import NAME, CudaSource
from staticgrad.compiler.cuda.source.typed_text import NotInSubset
from staticgrad.compiler.host.cache import default_cache, generator_hash, read_entry
from staticgrad.compiler.host.numba_internals import ObjectCode
from staticgrad.errors import DeviceError

INSTALL = "pip install 'staticgrad[cuda]'"
OLDEST = (7, 5)
"""The oldest compute capability that CUDA 13 compiles for."""

_NUMBERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64"
_ENTRY = re.compile(r"\.entry\s+(\S+?)\s*\(")
_FLOAT64 = re.compile(r"^\s.*\.f64\b", re.MULTILINE)
_FIGURES = {
    "registers": re.compile(r"Used (\d+) registers"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
    "spill_bytes": re.compile(r"(\d+) bytes spill stores"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
}


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """Machine code of one kernel for one compute capability.

    `figures` are registers, shared_bytes, spill_bytes, stack_bytes and how many
    float64 instructions there are.
    """

    code: bytes
    entry: str
    figures: dict[str, int]


def compile_kernel(source: CudaSource, capability: tuple[int, int]) -> DeviceCode:
    """Return the machine code of `source`, from the disk if it is there.

    DeviceError if the CUDA packages are missing or `capability` is too old.
    """
    if capability < OLDEST:
        raise DeviceError(
            f"target 'cuda' requires compute capability {_dotted(OLDEST)} or newer, "
            f"got {_dotted(capability)}; use target='cpu'"
        )
    key = _key(source, capability)
    cache = default_cache()
    stored, _ = read_entry(cache.path(key), key)
    if stored is None:
        ptx, entry = ptx_of(source, capability, f"sg_{key[:16]}")
        code, log = linked(ptx, entry, capability)
        figures = figures_of(ptx, log)
        stored = ObjectCode(entry, json.dumps(figures).encode() + b"\n" + code)
        cache.write(key, stored)
    line, _, code = bytes(stored.code).partition(b"\n")
    return DeviceCode(code, stored.symbol, json.loads(line))


def figures_of(ptx: str, log: str) -> dict[str, int]:
    """Return the figures of an Image, from PTX and what the assembler says of it."""
    figures = {name: _largest(what, log) for name, what in _FIGURES.items()}
    return figures | {"float64_instructions": len(_FLOAT64.findall(ptx))}


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _largest(what: re.Pattern[str], log: str) -> int:
    return max(map(int, what.findall(log)), default=0)


def _key(source: CudaSource, capability: tuple[int, int]) -> str:
    _package("numba.cuda")
    versions = (version(name) for name in ("numba-cuda", "nvidia-nvjitlink"))
    parts = (
        "cuda", source.canonical, *source.kinds, _dotted(capability), *versions,
        generator_hash(),
    )  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _package(name: str) -> Any:
    """Return a module of the CUDA packages."""
    if not hasattr(np, "row_stack"):
        np.row_stack = np.vstack
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DeviceError(
            f"target 'cuda' requires the CUDA packages, got {error}; {INSTALL}"
        ) from None


def ptx_of(
    source: CudaSource, capability: tuple[int, int], entry: str
) -> tuple[str, str]:
    """Return PTX of a kernel that is called `entry` there.

    NotInSubset if Numba cannot compile the functions that it calls for a GPU.
    """
    cuda, types = _package("numba.cuda"), _package("numba.cuda.types")
    names: dict[str, Any] = {
        "cuda": cuda,
        "libdevice": _package("numba.cuda.libdevice"),
        "nan": np.nan,
        "inf": np.inf,
    }
    names |= {name: getattr(types, name) for name in _NUMBERS.split()}
    names |= calls(source.functions, cuda, _package("numba.cuda.extending"))
    exec(compile(source.canonical, "<kernel>", "exec"), names)  # noqa: S102  our text
    kinds = types.void(*(_type(types, kind) for kind in source.kinds))
    with compiling_for(_package("numba.cuda.dispatcher"), capability):
        try:
            ptx, _ = cuda.compile_ptx(names[NAME], kinds, cc=capability)
        except Exception as error:
            if not source.functions:
                raise
            called = ", ".join(function.name for function in source.functions)
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise NotInSubset(f"the function {called} ({said})") from error
    found = _ENTRY.search(ptx)
    if found is None:
        raise DeviceError("target 'cuda' requires PTX with an entry, got none")
    return str(ptx).replace(found.group(1), entry), entry


def _type(types: Any, kind: str) -> Any:
    if kind == "status":
        return types.Array(types.int64, 1, "C")
    if kind.startswith("*"):
        return types.CPointer(getattr(types, kind[1:]))
    return getattr(types, kind)


def linked(ptx: str, name: str, capability: tuple[int, int]) -> tuple[bytes, str]:
    """Return machine code of PTX, and what the assembler says about it."""
    linker = _package("cuda.bindings.nvjitlink")
    options = [f"-arch=sm_{capability[0]}{capability[1]}", "-verbose"]
    handle = linker.create(len(options), options)
    try:
        data = ptx.encode()
        linker.add_data(handle, linker.InputType.PTX, data, len(data), name)
        linker.complete(handle)
        code = bytearray(linker.get_linked_cubin_size(handle))
        linker.get_linked_cubin(handle, code)
        log = bytearray(linker.get_info_log_size(handle))
        linker.get_info_log(handle, log)
    finally:
        linker.destroy(handle)
    return bytes(code), log.decode(errors="replace")
