"""How Python calls the machine: a built-in function that releases the GIL.

A few instructions of LLVM, compiled once and kept like a kernel: two ints in, the
machine, an int out, in the convention METH_FASTCALL of CPython's C interface
(https://docs.python.org/3/c-api/structures.html). It costs 0.08 us, where Numba's
dispatcher takes 0.2 and ctypes 0.4. What llvmlite cannot make, ctypes calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeAlias

import llvmlite.binding as llvm
from llvmlite import ir

from staticgrad.compiler import numba_internals as internals
from staticgrad.compiler.cache import default_cache, kernel_key
from staticgrad.compiler.codegen.native import symbol_of

Machine: TypeAlias = Callable[[int, int], int]
"""``machine(pc, stop)``: the code with which the program at `pc` ends."""

SYMBOL = "staticgrad_machine"
"""What LLVM calls the machine, ``void (int64 pc, int64 stop, int64 *result)``."""

_FASTCALL = 0x0080
_LONG, _NONE = ir.IntType(64), ir.VoidType()
_ADDRESS = _LONG.as_pointer()


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    )


_methods: list[_Method] = []  # built-in functions point to theirs


def callable_machine(address: int) -> Machine:
    """The machine at `address`, for Python."""
    llvm.add_symbol(SYMBOL, address)
    try:
        text = _text("name")
        key = kernel_key(f"call from Python\n{text}")
        return _built_in(default_cache().get(key, lambda: _compiled(key)).address)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return by_ctypes(address)


def by_ctypes(address: int) -> Machine:
    """The same without code of our own."""
    kind = ctypes.CFUNCTYPE(
        None, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
    )
    function = kind(address)

    def machine(pc: int, stop: int) -> int:
        result = ctypes.c_int64()
        function(pc, stop, result)
        return result.value

    return machine


def _built_in(address: int) -> Machine:
    method = _Method(b"machine", address, _FASTCALL, None)
    _methods.append(method)
    kinds = ctypes.py_object, ctypes.POINTER(_Method), ctypes.c_void_p, ctypes.c_void_p
    make = ctypes.PYFUNCTYPE(*kinds)(("PyCFunction_NewEx", ctypes.pythonapi))
    machine: Machine = make(method, None, None)
    return machine


def _compiled(key: str) -> internals.Linked:
    symbol = symbol_of(key)
    module = internals.Module(symbol, _text(symbol))
    return internals.load_object_code(internals.compile_module(module))


def _text(symbol: str) -> str:
    """``PyObject *call(PyObject *self, PyObject **arguments, Py_ssize_t count)``."""
    module = ir.Module(symbol)
    module.triple, module.data_layout = internals.module_header()
    kind = ir.FunctionType(_LONG, [_LONG, _ADDRESS, _LONG])
    function = ir.Function(module, kind, symbol)
    b = ir.IRBuilder(function.append_basic_block())

    def call(name: str, result: Any, *arguments: Any) -> Any:
        kinds = [argument.type for argument in arguments]
        known = ir.Function(module, ir.FunctionType(result, kinds), name)
        return b.call(known, arguments)

    result = b.alloca(_LONG)
    given = [b.load(b.gep(function.args[1], [_LONG(n)])) for n in range(2)]
    read = ir.Function(module, ir.FunctionType(_LONG, [_LONG]), "PyLong_AsLongLong")
    words = [b.call(read, [number]) for number in given]
    thread = call("PyEval_SaveThread", _LONG)
    call(SYMBOL, _NONE, *words, result)
    call("PyEval_RestoreThread", _NONE, thread)
    b.ret(call("PyLong_FromLongLong", _LONG, b.load(result)))
    return str(module)
