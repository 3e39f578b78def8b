"""Calls of users' functions from kernels.

A compiled function is called by Numba's own convention, without Numba's propagation of
errors, which under a C callback would print the exception and continue. Instead, an
exception is reported in the status word, with the address of Numba's record of it. LLVM
inlines small functions; where it sees that one never raises, nothing of the check is
left and the loop around it vectorises.

A Python function is called through an address in memory (python_callbacks.py) with a
table of addresses and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from staticgrad.compiler.codegen.llvm.intrinsics import taking
from staticgrad.compiler.codegen.status import RAISED, RAISED_IN_PYTHON, report
from staticgrad.compiler.host import numba_internals as internals
from staticgrad.ir.foreign import Foreign

_LONG = ir.IntType(64)


def caller(foreign: Foreign, count: int) -> Any:
    """Return the function bound to a Foreign's symbol in kernel source.

    ``symbol(*arguments, position, site, status)``, with `count` arguments, gives its
    result, or nothing.
    """
    if foreign.target is not None:
        return taking(count, _invoke)

    def call(typing: Any, *arguments: Any) -> Any:
        kinds = tuple(types.unliteral(kind) for kind in arguments[:-3])
        compiled = internals.overload(foreign.function, kinds)
        result = compiled.signature.return_type

        def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
            status, value = internals.call_without_raising(
                context, b, compiled, args[:-3]
            )
            position, site, word = args[-3:]
            with b.if_then(status.is_error, likely=False):
                raised = b.ptrtoint(status.excinfoptr, _LONG)
                report(b, RAISED, word, site, position, raised)
            if result == types.none:
                return context.get_dummy_value()
            nothing = cgutils.get_null_value(value.type)
            return b.select(status.is_error, nothing, value)

        return result(*kinds, types.int64, types.int64, types.int64), generate

    return taking(count, call)


def _invoke(typing: Any, target: Any, *words: Any) -> Any:
    """Emit ``symbol(target, *words, position, site, status)``: a Python function.

    It is given the address of a table of status, position and words; its exception is
    reported if it returns anything but 0.
    """

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        address, *given, position, site, status = args
        table = [status, position, *given]
        place = cgutils.alloca_once(b, ir.ArrayType(_LONG, len(table)))
        start = b.bitcast(place, _LONG.as_pointer())
        for number, word in enumerate(table):
            b.store(word, b.gep(start, [ir.Constant(_LONG, number)]))
        kind = ir.FunctionType(_LONG, [_LONG]).as_pointer()
        code = b.call(b.inttoptr(address, kind), [b.ptrtoint(start, _LONG)])
        bad = b.icmp_signed("!=", code, ir.Constant(_LONG, 0))
        with b.if_then(bad, likely=False):
            report(b, RAISED_IN_PYTHON, status, site, position, code)
        return _context.get_dummy_value()

    return types.void(types.int64, *(types.int64 for _ in words)), generate


@intrinsic
def address_of(typing: Any, pointer: Any, index: Any) -> Any:
    """Emit ``address_of(p, i)``: the address of element i."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Any:
        size = ir.Constant(_LONG, internals.element_bytes(pointer.dtype))
        return b.add(args[0], b.mul(args[1], size))

    return types.int64(pointer, types.int64), generate


def _view(writable: bool) -> Any:
    @intrinsic
    def view(typing: Any, pointer: Any, index: Any, shape: Any) -> Any:
        rank = 0 if shape == types.none else shape.count
        kind = array_type(pointer.dtype, rank, writable)
        dims = shape if rank == 0 else types.UniTuple(types.int64, rank)

        def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
            size = internals.element_bytes(pointer.dtype)
            start = b.add(args[0], b.mul(args[1], ir.Constant(_LONG, size)))
            extents = cgutils.unpack_tuple(b, args[2], rank) if rank else []
            return internals.array_value(context, b, kind, start, extents, size)

        return kind(pointer, types.int64, dims), generate

    return view


seen, filled = _view(False), _view(True)
"""``seen(p, i, shape)``: the array at element i, to be read; ``filled``: to write."""


def array_type(dtype: Any, rank: int, writable: bool) -> Any:
    """Return Numba's type of an array that a function of the user's is given."""
    return types.Array(dtype, rank, "C", readonly=not writable)


def jitted(function: Callable[..., Any]) -> Any:
    """Return a new dispatcher: Numba's earlier compilations may be out of date."""
    if not numba.extending.is_jitted(function):
        return numba.njit(function)
    dispatcher: Any = function
    return numba.jit(**dispatcher.targetoptions)(dispatcher.py_func)


def numba_type(dtype: np.dtype[Any]) -> Any:
    """Return Numba's scalar type of a dtype."""
    return numba.from_dtype(dtype)


def unliteral(kind: Any) -> Any:
    """Return the type of a number without its literal value."""
    return types.unliteral(kind)


def returned(function: Any, kinds: Sequence[Any]) -> Any:
    """Return the type that a compiled function returns for arguments of `kinds`.

    Raises numba.errors.NumbaError where it cannot be compiled for them.
    """
    return internals.overload(function, tuple(kinds)).signature.return_type


def defined(source: str, **names: Any) -> Any:
    """Return the function `it` that `source` defines over `names`, compiled."""
    scope: dict[str, Any] = dict(names)
    exec(compile(source, "<custom_op>", "exec"), scope)  # noqa: S102  our own text
    return numba.njit(scope["it"])
