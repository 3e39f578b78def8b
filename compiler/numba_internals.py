"""Everything that is used of Numba beyond its documentation, one function each.

Numba's documented ``cfunc`` compiles a kernel, but gives no access to its object code.
These functions take it out, put it back, and say for which processor it was made. Each
has a test of its own (tests/test_numba_internals.py), and the dependency on Numba has
an upper bound: a new release of Numba is checked here first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite.binding import ffi
from numba import cfunc, types
from numba.core import config
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

_OPTIONS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT", "CPU_NAME")


@dataclass(frozen=True, slots=True)
class Target:
    """The processor for which Numba compiles: LLVM's triple, CPU name and features."""

    triple: str
    cpu: str
    features: str


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """Machine code of one library: what Numba's own cache would keep.

    `symbol` is the function to call; `name` is the library's; `bitcode` lists the
    symbols that `code` defines.
    """

    name: str
    symbol: str
    code: bytes
    bitcode: bytes


def target() -> Target:
    """The target of Numba's CPU backend; NUMBA_CPU_NAME and _FEATURES are respected."""
    triple, cpu, features = _codegen().magic_tuple()
    return Target(triple, cpu, features)


def options() -> tuple[str, ...]:
    """Numba's settings that change the code which it makes."""
    return tuple(f"{name}={getattr(config, name, None)}" for name in _OPTIONS)


def compile_callback(function: Callable[..., Any], arguments: int) -> Any:
    """A C callback ``void f(intp, ...)`` of a Python function."""
    signature = types.void(*[types.intp] * arguments)
    return cfunc(signature, error_model="numpy")(function)


def object_code(callback: Any) -> ObjectCode:
    """The machine code of a compiled C callback."""
    name, _, (code, bitcode) = callback._library.serialize_using_object_code()
    return ObjectCode(name, callback._wrapper_name, code, bitcode)


def load_object_code(stored: ObjectCode) -> tuple[int, Any]:
    """Link machine code into this process: its address, and what keeps it alive."""
    state = (stored.name, "object", (stored.code, stored.bitcode))
    with global_compiler_lock:
        library = _codegen().unserialize_library(state)
        address = library.get_pointer_to_function(stored.symbol)
    if not address:
        raise ValueError(f"object code defines no {stored.symbol}")
    return address, library


def assembly(callback: Any) -> str:
    """The assembly text of a compiled C callback, for tests of what vectorises."""
    return str(callback._library.get_asm_str())


def hold_compiler_over_fork() -> None:
    """Let a fork wait until no thread compiles, so that the child can compile too.

    llvmlite has a lock of its own, which is also taken without Numba's, such as when
    object code is taken out of a library.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_hold, after_in_parent=_release, after_in_child=_release
        )


def _hold() -> None:
    global_compiler_lock.acquire()
    ffi.lib._lock.__enter__()


def _release() -> None:
    ffi.lib._lock.__exit__()
    global_compiler_lock.release()


def _codegen() -> Any:
    return cpu_target.target_context.codegen()
