"""Compilation of source and functions of the kernel language to machine code.

Most is translated to LLVM IR and compiled by llvmlite (translate.py). What is not in
the kernel language, or not to be had from another release of Numba than the tested
ones, is compiled by Numba: four times slower to compile, the same to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, cast

from numba.core.errors import NumbaError

from staticgrad.compiler.codegen.language import namespace
from staticgrad.compiler.codegen.llvm.translate import translated, translated_function
from staticgrad.compiler.codegen.llvm.typed import Unsupported
from staticgrad.compiler.host import numba_internals as internals
from staticgrad.compiler.host.cache import default_cache
from staticgrad.compiler.host.gc_pause import collect_young

_NOT_TRANSLATED = (
    Unsupported,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    NumbaError,
)


def symbol_of(key: str) -> str:
    """Return the name of a kernel in machine code, unique to its key."""
    return f"kernel_{key[:24]}"


def compiled(text: str, key: str, foreign: Mapping[str, Any] | None = None) -> Any:
    """Return the native function of kernel source.

    `foreign` are the functions of the user's that it calls. Numba compiled those, so it
    compiles what calls them.
    """
    if foreign:
        return compiled_by_numba(python_function(text, foreign), key)
    try:
        return _linked(text, key)
    except _NOT_TRANSLATED:
        return compiled_by_numba(python_function(text), key)


def compiled_function(function: Callable[..., None], key: str) -> Any:
    """Return the native function of a Python function in the kernel language."""
    try:
        return _linked(function, key)
    except _NOT_TRANSLATED:
        return compiled_by_numba(function, key)


def compiled_once(function: Callable[..., None], key: str) -> int:
    """Return the address of a function for all graphs, cached or compiled."""
    return default_cache().get(key, lambda: compiled_function(function, key)).address


def compiled_by_numba(function: Callable[..., None], key: str) -> Any:
    """Return a C callback of a function; its symbol contains that of `key`."""
    name, given = symbol_of(key), cast(FunctionType, function)
    copy = FunctionType(
        given.__code__, given.__globals__, name, None, given.__closure__
    )
    copy.__qualname__ = name
    return internals.compile_callback(copy, given.__code__.co_argcount)


def python_function(
    text: str, foreign: Mapping[str, Any] | None = None
) -> Callable[..., None]:
    """Return the function that kernel source defines."""
    names: dict[str, Any] = {**namespace(), **(foreign or {})}
    exec(compile(text, "<kernel>", "exec"), names)  # noqa: S102  our own text
    function: Callable[..., None] = names["kernel"]
    return function


def ir_of(source: str | Callable[..., None], symbol: str) -> internals.IRModule:
    """Return the IR of kernel source or of a function."""
    if isinstance(source, str):
        return translated(source, namespace(), symbol)
    return translated_function(source, symbol)


def _linked(source: str | Callable[..., None], key: str) -> internals.Linked:
    module = ir_of(source, symbol_of(key))
    collect_young()  # the objects behind `module`
    return internals.load_object_code(internals.compile_module(module))
