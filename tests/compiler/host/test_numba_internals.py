"""Does Numba still behave as compiler/host/numba_internals.py needs it to?

One test for each symbol that is not documented by Numba.
"""

import ast
import ctypes
import operator
import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from llvmlite import ir
from numba import types
from numba.core.errors import NumbaError
from numba.extending import intrinsic

from staticgrad.compiler.codegen.language import namespace
from staticgrad.compiler.codegen.native_compile import (
    compiled,
    compiled_by_numba,
    ir_of,
    python_function,
)
from staticgrad.compiler.host import numba_internals as internals

SOURCE = """
def kernel(operands, sizes, begin, end, context):
    p0 = operand(operands, 0, "int64", 0, 1)
    store(p0, 0, begin + end)
"""


def call(address, begin, end):
    cell = ctypes.c_int64(0)
    table = ctypes.c_int64(ctypes.addressof(cell))
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(address)
    function(ctypes.addressof(table), 0, begin, end, 0)
    return cell.value


def test_target_names_the_processor():
    found = internals.target()
    assert found.triple
    assert found.cpu
    assert isinstance(found.features, str)


def test_target_respects_numbas_settings():
    program = (
        "from staticgrad.compiler.host.numba_internals import target\n"
        "print(target().cpu)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"NUMBA_CPU_NAME": "generic", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "generic"


def test_options_are_name_and_value():
    found = internals.options()
    assert any(text.startswith("OPT=") for text in found)
    assert all("=None" not in text for text in found if text.startswith("OPT"))


def test_a_callback_is_compiled_and_has_an_address():
    callback = compiled(SOURCE, "a" * 64)
    assert call(callback.address, 3, 4) == 7


def test_object_code_names_its_symbol():
    stored = internals.object_code(compiled(SOURCE, "b" * 64))
    assert "kernel_bbbb" in stored.symbol
    assert stored.code


def test_object_code_of_another_process_can_be_linked():
    program = (
        "import pickle, sys\n"
        "from staticgrad.compiler.host import numba_internals as internals\n"
        "from staticgrad.compiler.codegen.native_compile import compiled\n"
        f"stored = internals.object_code(compiled({SOURCE!r}, 'c' * 64))\n"
        "fields = stored.symbol, stored.code\n"
        "sys.stdout.buffer.write(repr(fields).encode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True
    )
    stored = internals.ObjectCode(*ast.literal_eval(done.stdout.decode()))
    assert call(internals.load_object_code(stored).address, 20, 22) == 42


def test_code_that_calls_numbas_runtime_can_be_linked_where_numba_compiled_nothing(
    tmp_path,
):
    def raising(operands, sizes, begin, end, context):
        if begin > end:
            raise ValueError(begin)

    callback = compiled_by_numba(raising, "h" * 64)
    stored = internals.object_code(callback)
    assert b"NRT_" in stored.code
    path = tmp_path / "code"
    path.write_bytes(stored.code)
    program = (
        "import pathlib\n"
        "from staticgrad.compiler.codegen.native_compile import compiled\n"
        "from staticgrad.compiler.host import numba_internals as internals\n"
        f"code = pathlib.Path({str(path)!r}).read_bytes()\n"
        f"stored = internals.ObjectCode({stored.symbol!r}, code)\n"
        "internals.load_object_code(stored)\n"
        f"compiled({SOURCE!r}, 'i' * 64)\n"  # LLVM looks for what is missing now
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_object_code_without_its_symbol_is_refused():
    stored = internals.object_code(compiled(SOURCE, "d" * 64))
    missing = internals.ObjectCode("nothing", stored.code)
    with pytest.raises(ValueError, match="defines no nothing"):
        internals.load_object_code(missing)


def test_assembly_can_be_read():
    assert "kernel_eeee:" in internals.assembly(ir_of(SOURCE, "kernel_eeee"))


def test_a_ufunc_gives_its_function():
    def half(x):
        return x / 2

    for ufunc in (numba.vectorize(half), numba.vectorize(["float64(float64)"])(half)):
        assert internals.of_numbers(ufunc) is half
    assert internals.of_numbers(half) is half


def test_numbas_own_code_can_be_taken_out_and_linked():
    function = python_function(SOURCE)
    stored = internals.object_code(compiled_by_numba(function, "f" * 64))
    assert call(internals.load_object_code(stored).address, 4, 5) == 9


def test_a_module_is_compiled_for_the_target():
    triple, layout = internals.module_header()
    text = f'target triple = "{triple}"\ntarget datalayout = "{layout}"\n'
    text += "define i64 @three() { ret i64 3 }"
    linked = internals.load_object_code(
        internals.compile_module(internals.IRModule("three", text))
    )
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(linked.address)() == 3


def test_a_module_that_is_wrong_is_refused():
    with pytest.raises(RuntimeError):
        internals.compile_module(
            internals.IRModule("f", "define i64 @f() { ret i32 3 }")
        )


def test_an_intrinsic_shows_its_definition():
    define, literal = internals.definition_of(namespace()["operand"])
    assert literal
    signature, _ = internals.definition_of(namespace()["exp"])[0](
        internals.typing_context(), types.float32
    )
    assert signature.return_type == types.float32
    assert internals.definition_of(len) is None


def test_operators_are_numbas():
    kind, emit = internals.operator_of(operator.add, (types.int64, types.float32))
    assert kind == types.float64
    function = ir.Function(ir.Module(), ir.FunctionType(ir.DoubleType(), []), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    given = ir.Constant(ir.IntType(64), 1), ir.Constant(ir.FloatType(), 2.0)
    assert emit(builder, given).type == ir.DoubleType()
    with pytest.raises((TypeError, NumbaError)):
        internals.operator_of(operator.add, (types.int64, types.none))


def test_a_fork_waits_for_the_compiler():
    program = (
        "import os, threading, time\n"
        "from numba.core.compiler_lock import global_compiler_lock as lock\n"
        "from staticgrad.compiler.host.numba_internals import hold_compiler_over_fork\n"
        "hold_compiler_over_fork()\n"
        "def compile_for_a_while():\n"
        "    with lock:\n"
        "        started.set()\n"
        "        time.sleep(0.2)\n"
        "started = threading.Event()\n"
        "thread = threading.Thread(target=compile_for_a_while)\n"
        "thread.start(); started.wait()\n"
        "child = os.fork()\n"
        "with lock:\n"
        "    pass\n"
        "if child == 0:\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    if hasattr(os, "fork"):
        subprocess.run(command, check=True, timeout=60)


def test_a_fork_waits_for_llvm():
    program = (
        "import os, threading, time\n"
        "from llvmlite.binding import ffi\n"
        "from staticgrad.compiler.host.numba_internals import hold_compiler_over_fork\n"
        "hold_compiler_over_fork()\n"
        "def call_llvm_for_a_while():\n"
        "    with ffi.lib._lock:\n"
        "        started.set()\n"
        "        time.sleep(0.2)\n"
        "started = threading.Event()\n"
        "thread = threading.Thread(target=call_llvm_for_a_while)\n"
        "thread.start(); started.wait()\n"
        "child = os.fork()\n"
        "with ffi.lib._lock:\n"
        "    pass\n"
        "if child == 0:\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    if hasattr(os, "fork"):
        subprocess.run(command, check=True, timeout=60)


def test_a_compiled_function_is_found_by_its_types() -> None:
    function = numba.njit(lambda x, y: x + y)
    kinds = (types.float32, types.int64)
    found = internals.overload(function, kinds)
    assert found.signature.return_type == types.float64
    assert internals.overload(function, kinds) is found


def test_the_record_of_an_exception_is_read() -> None:
    """As a kernel that reports it: static arguments, and ones that were computed."""
    for raising, want in ((_static, ("low",)), (_dynamic, ("low", -2.0))):
        address = np.zeros(1, np.int64)
        _call_and_keep(raising)(-2.0, address)
        kind, arguments, place = internals.raised(int(address[0]))
        assert (kind, arguments) == (ValueError, want)
        assert place[1] == __file__


def test_an_array_looks_at_memory_that_it_is_given() -> None:
    data = np.arange(6.0)

    @intrinsic
    def looking(typing, address):
        kind = types.Array(types.float64, 2, "C")

        def generate(context, b, signature, args):
            dims = [ir.Constant(ir.IntType(64), n) for n in (2, 3)]
            size = internals.element_bytes(types.float64)
            return internals.array_value(context, b, kind, args[0], dims, size)

        return kind(types.int64), generate

    total = numba.njit(lambda address: looking(address)[1].sum())
    assert total(data.ctypes.data) == 3 + 4 + 5
    assert internals.element_bytes(types.boolean) == 1


@numba.njit
def _static(x):
    if x < 0:
        raise ValueError("low")
    return x


@numba.njit
def _dynamic(x):
    if x < 0:
        raise ValueError("low", x)
    return x


def _call_and_keep(function):
    """A function that calls another and keeps the address of what it raised."""

    @intrinsic
    def call(typing, x):
        compiled = internals.overload(function, (types.float64,))

        def generate(context, b, signature, args):
            status, _ = internals.call_without_raising(context, b, compiled, args)
            return b.ptrtoint(status.excinfoptr, ir.IntType(64))

        return types.int64(types.float64), generate

    @numba.njit
    def keep(x, address):
        address[0] = call(x)

    return keep
