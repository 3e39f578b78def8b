"""Calls of the machine from Python: built-in functions that release the GIL.

A few instructions of LLVM each, compiled once and kept like kernels, in the conventions
of CPython's C interface (https://docs.python.org/3/c-api/structures.html):

* `callable_machine`, METH_FASTCALL: two ints in, the machine, an int out. It costs
  0.08 us, where Numba's dispatcher takes 0.2 and ctypes 0.4;
* `bound_call`, METH_NOARGS: all of a bound call, from the lock to the results. It costs
  0.1 us, where the same in Python takes 0.35.

What llvmlite cannot make, ctypes and Python do.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import llvmlite.binding as llvm
from llvmlite import ir

from staticgrad.compiler.codegen.native_compile import symbol_of
from staticgrad.compiler.host import numba_internals as internals
from staticgrad.compiler.host.cache import default_cache, kernel_key
from staticgrad.compiler.host.disk import stamp_of
from staticgrad.ir.storage import AWAY, bring_home

Emit: TypeAlias = Callable[["_Calls"], None]

Machine: TypeAlias = Callable[[int, int], int]
"""``machine(pc, stop)``: the code with which the program at `pc` ends."""

SYMBOL = "staticgrad_machine"
"""LLVM symbol of the machine, ``void (int64 pc, int64 stop, int64 *result)``."""

_FASTCALL, _NOARGS = 0x0080, 0x0004
_LONG, _NONE = ir.IntType(64), ir.VoidType()
_ADDRESS = _LONG.as_pointer()

_CHANGED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of untested llvmlite versions."""


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    )


def callable_machine(address: int) -> Machine:
    """Return the machine at `address` as a function of Python.

    What `bound_call` needs is made too: both are compiled once, with the machine.
    """
    llvm.add_symbol(SYMBOL, address)
    try:
        machine: Machine = _built_in("machine", _machine, _FASTCALL, None)
        _method("bound", _bound, _NOARGS)
    except _CHANGED:
        return by_ctypes(address)
    return machine


def bound_call(
    pc: int,
    stop: int,
    lock: threading.Lock,
    failed: Callable[[], Any],
    result: Any,
    make: Callable[[], Any] | None,
) -> Callable[[], Any] | None:
    """Return a function without arguments that runs the program at `pc` under `lock`.

    It gives `result`, or what `make` gives, if there is one; what `failed` does, where
    a kernel reported something. None where it cannot be made.
    """
    last = result if make is None else make
    given = (
        pc, stop, AWAY, bring_home, lock.acquire, lock.release, failed, last,
        result,
    )  # fmt: skip
    try:
        call: Callable[[], Any] = _built_in("bound", _bound, _NOARGS, given)
    except _CHANGED:
        return None
    return call


def by_ctypes(address: int) -> Machine:
    """Return the machine as a ctypes function."""
    kind = ctypes.CFUNCTYPE(
        None, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
    )
    function = kind(address)

    def machine(pc: int, stop: int) -> int:
        result = ctypes.c_int64()
        function(pc, stop, result)
        return result.value

    return machine


def _built_in(name: str, emit: Emit, flags: int, given: Any) -> Any:
    """Make a built-in whose C function is `emit` and whose `self` holds `given`."""
    kinds = ctypes.py_object, ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p
    make = ctypes.PYFUNCTYPE(*kinds)(("PyCFunction_NewEx", ctypes.pythonapi))
    return make(_method(name, emit, flags), given, None)


@cache
def _method(name: str, emit: Emit, flags: int) -> _Method:
    """Make a method record, kept for good: built-in functions point to theirs."""
    key = kernel_key(f"{name} called from Python {stamp_of(__file__)}")
    address = default_cache().get(key, lambda: _compiled(emit, key)).address
    return _Method(name.encode(), address, flags, None)


def _compiled(emit: Emit, key: str) -> internals.Linked:
    symbol = symbol_of(key)
    module = internals.IRModule(symbol, _text(emit, symbol))
    return internals.load_object_code(internals.compile_module(module))


def _text(emit: Emit, symbol: str) -> str:
    module = ir.Module(symbol)
    module.triple, module.data_layout = internals.module_header()
    kind = ir.FunctionType(_LONG, [_LONG, _ADDRESS, _LONG])
    function = ir.Function(module, kind, symbol)
    emit(_Calls(function))
    return str(module)


class _Calls:
    """Emission of a C function; objects are addresses."""

    def __init__(self, function: ir.Function) -> None:
        self.arguments = function.args
        self.module = function.module
        self.b: Any = ir.IRBuilder(function.append_basic_block())

    def call(self, name: str, *arguments: Any, result: Any = _LONG) -> Any:
        """Call a C function by its name."""
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        known = self.module.globals.get(name) or ir.Function(self.module, kind, name)
        return self.b.call(known, arguments)

    def given(self, number: int) -> Any:
        """Return one of the objects that the function was made with."""
        return self.call("PyTuple_GetItem", self.arguments[0], _LONG(number))

    def long(self, number: Any) -> Any:
        """Convert a Python int to int64."""
        return self.call("PyLong_AsLongLong", number)

    def machine(self, pc: Any, stop: Any) -> Any:
        """Emit a call of the machine without the GIL; return its exit code."""
        result = self.b.alloca(_LONG)
        thread = self.call("PyEval_SaveThread")
        self.call(SYMBOL, pc, stop, result, result=_NONE)
        self.call("PyEval_RestoreThread", thread, result=_NONE)
        return self.b.load(result)

    def python(self, function: Any) -> None:
        """Emit a call of a Python function without arguments; return if it raises."""
        found = self.call("PyObject_CallNoArgs", function)
        with self.b.if_then(self.b.icmp_unsigned("==", found, _LONG(0)), likely=False):
            self.b.ret(_LONG(0))
        self.call("Py_DecRef", found, result=_NONE)

    def return_called(self, condition: Any, function: Any) -> None:
        """Emit, under a condition, the return of a Python function's result."""
        with self.b.if_then(condition):
            self.b.ret(self.call("PyObject_CallNoArgs", function))


def _machine(c: _Calls) -> None:
    """Emit ``machine(pc, stop)``."""
    words = [c.b.load(c.b.gep(c.arguments[1], [_LONG(n)])) for n in range(2)]
    code = c.machine(*map(c.long, words))
    c.b.ret(c.call("PyLong_FromLongLong", code))


def _bound(c: _Calls) -> None:
    """Emit ``bound()``; its objects are listed in `bound_call`."""
    pc, stop, away, home, acquire, release, failed, last, result = map(
        c.given, range(9)
    )
    is_away = c.b.icmp_signed("!=", c.call("PyDict_Size", away), _LONG(0))
    with c.b.if_then(is_away, likely=False):
        c.python(home)
    c.python(acquire)
    code = c.machine(c.long(pc), c.long(stop))
    c.python(release)
    c.return_called(c.b.icmp_signed(">", code, _LONG(0)), failed)
    c.return_called(c.b.icmp_unsigned("!=", last, result), last)
    c.call("Py_IncRef", result, result=_NONE)
    c.b.ret(result)
