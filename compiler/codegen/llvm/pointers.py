"""Access to memory by address in compiled code, for the virtual machine.

Addresses are int64. Indices count elements, byte counts say so in their names. Nothing
here is checked; callers own the bounds.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from staticgrad.compiler.codegen.llvm.half_precision import WIDEN
from staticgrad.compiler.codegen.llvm.intrinsics import lowers

I8 = ir.IntType(8)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
F32 = ir.FloatType()
F64 = ir.DoubleType()
PAUSES = platform.machine().lower() in ("x86_64", "amd64")
ORDERING = "seq_cst"

Emit = Callable[..., Any]


def pointer(builder: Any, address: Any, kind: ir.Type, index: Any = None) -> Any:
    """Return `address` as a pointer to `kind`, moved on by `index` elements."""
    base = builder.inttoptr(address, kind.as_pointer())
    return base if index is None else builder.gep(base, [index], inbounds=True)


def _loader(kind: ir.Type, result: types.Type) -> Any:
    @lowers(result(types.int64, types.int64))
    def load(b: Any, address: Any, index: Any) -> Any:
        return b.load(pointer(b, address, kind, index))

    return load


def _half_loader(stored: str) -> Any:
    """Return a loader of 16 bits as their float32 value."""

    @lowers(types.float32(types.int64, types.int64))
    def load(b: Any, address: Any, index: Any) -> Any:
        return WIDEN[stored](b, b.load(pointer(b, address, ir.IntType(16), index)))

    return load


def _storer(kind: ir.Type, value: types.Type) -> Any:
    @lowers(types.void(types.int64, types.int64, value))
    def store(b: Any, address: Any, index: Any, number: Any) -> Any:
        b.store(number, pointer(b, address, kind, index))

    return store


load_int64 = _loader(I64, types.int64)
load_int32 = _loader(I32, types.int32)
load_float64 = _loader(F64, types.float64)
load_float32 = _loader(F32, types.float32)
load_float16 = _half_loader("float16")
load_bfloat16 = _half_loader("bfloat16")
store_int64 = _storer(I64, types.int64)
store_float64 = _storer(F64, types.float64)


@lowers(types.int8(types.int64, types.int64))
def load_int8(b: Any, address: Any, index: Any) -> Any:
    """The byte at `address` + `index`."""
    return b.load(pointer(b, address, I8, index))


@lowers(types.int64(types.int64))
def atomic_load(b: Any, address: Any) -> Any:
    """The int64 at `address`, which another thread may write at any time."""
    return b.load_atomic(pointer(b, address, I64), ORDERING, 8)


@lowers(types.int64(types.int64, types.int64))
def atomic_exchange(b: Any, address: Any, value: Any) -> Any:
    """Write `value` to the int64 at `address`; returns what was there."""
    place = pointer(b, address, I64)
    return b.atomic_rmw("xchg", place, value, ORDERING)


@lowers(types.int64(types.int64, types.int64))
def atomic_add(b: Any, address: Any, value: Any) -> Any:
    """Add `value` to the int64 at `address`; returns what was there."""
    place = pointer(b, address, I64)
    return b.atomic_rmw("add", place, value, ORDERING)


@lowers(types.void(*[types.int64] * 6))
def call_kernel(
    b: Any, function: Any, operands: Any, sizes: Any, begin: Any, end: Any, context: Any
) -> Any:
    """Call a function of five words by address: a kernel, or the parallel launch."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * 5)
    b.call(
        b.inttoptr(function, kind.as_pointer()), [operands, sizes, begin, end, context]
    )


@lowers(types.int64(types.int64))
def call_get(b: Any, function: Any) -> Any:
    """The int that a C function without arguments returns."""
    kind = ir.FunctionType(I32, [])
    result = b.call(b.inttoptr(function, kind.as_pointer()), [])
    return b.sext(result, I64)


@lowers(types.void(types.int64, types.int64))
def call_set(b: Any, function: Any, value: Any) -> Any:
    """Call a C function that takes an int and returns nothing."""
    kind = ir.FunctionType(ir.VoidType(), [I32])
    place = b.inttoptr(function, kind.as_pointer())
    b.call(place, [b.trunc(value, I32)])


@lowers(types.void(types.int64, types.int64, types.int64))
def fill_bytes(b: Any, address: Any, byte: Any, count: Any) -> Any:
    """Set `count` bytes to the low eight bits of `byte`."""
    byte = b.trunc(byte, I8)
    cgutils.memset(b, pointer(b, address, I8), count, byte)


@lowers(types.void(types.int64, types.int64, types.int64))
def copy_bytes(b: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes between areas that do not overlap."""
    to, origin = (pointer(b, a, I8) for a in (target, source))
    cgutils.raw_memcpy(b, to, origin, count, 1)


@lowers(types.int64(types.float64))
def float64_bits(b: Any, value: Any) -> Any:
    """The bits of a float64 as an int64."""
    return b.bitcast(value, I64)


@lowers(types.uint64(types.uint64, types.uint64))
def multiply_high(b: Any, left: Any, right: Any) -> Any:
    """The upper 64 bits of the product of two uint64."""
    wide = ir.IntType(128)
    product = b.mul(*(b.zext(a, wide) for a in (left, right)))
    return b.trunc(b.lshr(product, ir.Constant(wide, 64)), I64)


STACK_WORDS = 64


@lowers(types.int64())
def local_words(b: Any) -> Any:
    """The address of STACK_WORDS int64 that live as long as the calling function."""
    count = ir.Constant(I64, STACK_WORDS)
    return b.ptrtoint(cgutils.alloca_once(b, I64, count), I64)


@lowers(types.void())
def pause(b: Any) -> Any:
    """Tell the processor that a loop waits for another thread."""
    if PAUSES:
        kind, name = ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"
        function = cgutils.get_or_insert_function(b.module, kind, name)
        b.call(function, [])


def caller(count: int) -> Any:
    """Return a call of a C function of so many words, given in a tuple, by address."""

    @lowers(types.void(types.int64, types.UniTuple(types.int64, count)))
    def call(b: Any, function: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * count)
        given = [b.extract_value(arguments, i) for i in range(count)]
        b.call(b.inttoptr(function, kind.as_pointer()), given)

    return call
