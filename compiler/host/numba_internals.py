"""Private parts of Numba, one function each.

Numba's documented ``cfunc`` compiles a kernel, but gives no access to its object code.
These functions take it out, link it, and say for which processor it was made. Others
compile LLVM IR with llvmlite for that processor, and give what intrinsics and operators
emit. Each has a test of its own (test_numba_internals.py), and the dependency on
Numba has an upper bound: a new release of Numba is checked here first.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from llvmlite.binding import ffi
from numba import cfunc, types
from numba.core import cgutils, config, serialize
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import Environment
from numba.core.extending import _Intrinsic
from numba.core.registry import cpu_target
from numba.core.runtime import _nrt_python
from numba.np import arrayobj
from numba.np.numpy_support import as_dtype
from numba.np.ufunc.dufunc import DUFunc

_OPTIONS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT", "CPU_NAME")


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """The processor for which Numba compiles: LLVM's triple, CPU name and features."""

    triple: str
    cpu: str
    features: str


@dataclass(frozen=True, slots=True)
class IRModule:
    """LLVM IR, and the symbol of the function in it that is called.

    `unrolls` says that it has loops which are worth unrolling.
    """

    symbol: str
    text: str
    unrolls: bool = False


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """Machine code, and the symbol of the function in it that is called."""

    symbol: str
    code: bytes


@dataclass(frozen=True, slots=True)
class Linked:
    """Machine code in this process, and the address of its function."""

    address: int
    stored: ObjectCode


def target() -> CompileTarget:
    """The target of Numba's CPU backend; NUMBA_CPU_NAME and _FEATURES are respected."""
    triple, cpu, features = _codegen().magic_tuple()
    return CompileTarget(triple, cpu, features)


def options() -> tuple[str, ...]:
    """Return Numba's settings that affect its code."""
    return tuple(f"{name}={getattr(config, name, None)}" for name in _OPTIONS)


def compile_callback(function: Callable[..., Any], arguments: int) -> Any:
    """Compile a Python function to a C callback ``void f(intp, ...)``."""
    signature = types.void(*[types.intp] * arguments)
    return cfunc(signature, error_model="numpy")(function)


def object_code(callback: Any) -> ObjectCode:
    """Return the machine code of a compiled function or C callback."""
    if isinstance(callback, Linked):
        return callback.stored
    _, _, (code, _) = callback._library.serialize_using_object_code()
    return ObjectCode(callback._wrapper_name, code)


def load_object_code(stored: ObjectCode) -> Linked:
    """Link machine code into this process, for good."""
    with global_compiler_lock:
        engine = _engine()
        if b"NRT_" in stored.code or b"_nrt_" in stored.code:
            _make_runtime_known()
        engine.add_object_file(llvm.ObjectFileRef.from_data(stored.code))
        engine.finalize_object()
        address = engine.get_function_address(stored.symbol)
    if not address:
        raise ValueError(f"object code defines no {stored.symbol}")
    return Linked(address, stored)


@cache
def _make_runtime_known() -> None:
    """Register Numba's runtime with LLVM, which would end the process otherwise.

    Numba does so only where it compiles, and code that calls it may come from disk.
    """
    for name, address in _nrt_python.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


@cache
def module_header() -> tuple[str, str]:
    """Return triple and data layout of modules for the target."""
    return llvm.get_process_triple(), _codegen()._data_layout


def compile_module(module: IRModule) -> ObjectCode:
    """Compile LLVM IR to machine code."""
    with global_compiler_lock:
        code = _codegen()._tm.emit_object(_optimised(module))
    return ObjectCode(module.symbol, code)


def assembly(module: IRModule) -> str:
    """Compile LLVM IR to assembly text, for tests of what vectorises."""
    with global_compiler_lock:
        return str(_codegen()._tm.emit_assembly(_optimised(module)))


def _optimised(source: IRModule) -> Any:
    """Run LLVM's pipeline once."""
    machine = _codegen()._tm
    module = llvm.parse_assembly(source.text)
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=min(int(config.OPT), 3))
    tuning.loop_vectorization = bool(config.LOOP_VECTORIZE)
    tuning.slp_vectorization = False
    tuning.loop_unrolling = source.unrolls
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    return module


def definition_of(function: Any) -> tuple[Callable[..., Any], bool] | None:
    """Return an intrinsic's typing function, and whether it takes literals."""
    if isinstance(function, _Intrinsic):
        return function._defn, function._prefer_literal
    return None


def of_numbers(function: Any) -> Any:
    """Return the function inside a ufunc of numba.vectorize, anything else as it is."""
    return function._dispatcher.py_func if isinstance(function, DUFunc) else function


def typing_context() -> Any:
    """Return Numba's CPU typing context."""
    return cpu_target.typing_context


def target_context() -> Any:
    """Return Numba's CPU target context."""
    return cpu_target.target_context


@cache
def _refresh() -> None:
    """Load Numba's operators into both contexts, as compiling a function would."""
    typing_context().refresh()
    target_context().refresh()


@cache
def operator_of(
    function: Callable[..., Any], kinds: tuple[Any, ...]
) -> tuple[Any, Callable[..., Any]]:
    """Return the Numba type of an operator's result, and ``emit(builder, values)``.

    Raises TypeError for types that the operator does not take; `emit` LookupError where
    Numba calls a function for it.
    """
    _refresh()
    signature = typing_context().resolve_function_type(function, kinds, {})
    if signature is None:
        raise TypeError(f"{function} does not take {kinds}")
    context = target_context()
    implementation = context.get_function(function, signature)

    def emit(builder: Any, values: Any) -> Any:
        wanted = zip(values, kinds, signature.args, strict=True)
        given = [context.cast(builder, v, kind, want) for v, kind, want in wanted]
        if getattr(implementation, "libs", ()):
            raise LookupError(f"{function} of {kinds} is a call")
        return implementation._imp(context, builder, signature, given, loc=None)

    return signature.return_type, emit


@cache
def _engine() -> Any:
    """Return an engine that only links; what it has linked stays.

    The module that llvmlite wants goes again, or the first link would compile it.
    """
    target_context()  # which starts LLVM and tells it the symbols of Numba's helpers
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(jit=True)
    module = llvm.parse_assembly("")
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.remove_module(module)
    return engine


def overload(function: Any, kinds: tuple[Any, ...]) -> Any:
    """Return the compilation of a dispatcher for arguments of `kinds`."""
    if kinds not in function.overloads:
        function.compile(kinds)
    return function.overloads[kinds]


def call_without_raising(
    context: Any, builder: Any, compiled: Any, args: Sequence[Any]
) -> tuple[Any, Any]:
    """Emit a call of `compiled`; return its status and result."""
    context.add_linking_libs((compiled.library,))
    signature = compiled.signature
    status, value = context.call_internal_no_propagate(
        builder, compiled.fndesc, signature, args
    )
    return status, value


def array_value(
    context: Any, builder: Any, kind: Any, address: Any, extents: Sequence[Any],
    item_bytes: int,
) -> Any:  # fmt: skip
    """Emit an array over memory that is not its own, in C order."""
    word = ir.IntType(64)
    array = arrayobj.make_array(kind)(context, builder)
    steps: list[Any] = []
    step: Any = ir.Constant(word, item_bytes)
    for extent in reversed(extents):
        steps.insert(0, step)
        step = builder.mul(step, extent)
    arrayobj.populate_array(
        array,
        data=builder.inttoptr(address, array.data.type),
        shape=cgutils.pack_array(builder, list(extents), word),
        strides=cgutils.pack_array(builder, steps, word),
        itemsize=ir.Constant(word, item_bytes),
        meminfo=None,
    )
    return array._getvalue()


def element_bytes(kind: Any) -> int:
    """Return the size in memory of a number of Numba's type `kind`."""
    return int(as_dtype(kind).itemsize)


class _Raised(ctypes.Structure):
    """Numba's record of an exception: pickled (class, arguments, place), and more.

    With `alloc` some of the arguments were computed: `unwrap` makes a tuple of them.
    """

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_int32),
        ("extra", ctypes.c_void_p),
        ("unwrap", ctypes.c_void_p),
        ("alloc", ctypes.c_int32),
    )


def raised(address: int) -> tuple[type[BaseException], tuple[Any, ...], Any]:
    """Return class, arguments and (function, file, line) of the record at `address`."""
    record = _Raised.from_address(address)
    pickled = ctypes.string_at(record.data, record.size)
    if record.alloc > 0:
        made = serialize.runtime_build_excinfo_struct(pickled, _unwrapped(record))
    else:
        made = serialize.loads(pickled)
    kind, arguments, place = made
    return kind, tuple(arguments or ()), place


def _unwrapped(record: _Raised) -> tuple[Any, ...]:
    """Return the computed arguments; code of another process has no environment yet."""
    unwrap = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(record.unwrap)
    try:
        found: tuple[Any, ...] = unwrap(record.extra)
    except RuntimeError as error:
        name = str(error).rpartition("missing Environment: ")[2]
        place = _engine().get_global_value_address(name)
        if not place:
            raise
        ctypes.c_void_p.from_address(place).value = id(_ENVIRONMENT)
        found = unwrap(record.extra)
    return found


_ENVIRONMENT = Environment({})
"""Numba boxes numbers with one; that of code from disk is in the process before."""


def hold_compiler_over_fork() -> None:
    """Make a fork wait until no thread compiles, so that the child can compile too.

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
