"""Memory by address inside compiled code: what the virtual machine is made of.

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
from numba.extending import intrinsic

from staticgrad.compiler.codegen.llvm.half_precision import WIDEN

I8 = ir.IntType(8)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
F32 = ir.FloatType()
F64 = ir.DoubleType()
PAUSES = platform.machine().lower() in ("x86_64", "amd64")
ORDERING = "seq_cst"

Emit = Callable[..., Any]


def pointer(builder: Any, address: Any, kind: ir.Type, index: Any = None) -> Any:
    """IR: `address` as a pointer to `kind`, moved on by `index` elements."""
    base = builder.inttoptr(address, kind.as_pointer())
    return base if index is None else builder.gep(base, [index], inbounds=True)


def _loader(kind: ir.Type, result: types.Type) -> Any:
    @intrinsic
    def load(typing: Any, address: Any, index: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(pointer(builder, args[0], kind, args[1]))

        return result(types.int64, types.int64), emit

    return load


def _half_loader(stored: str) -> Any:
    """Loads 16 bits as the float32 that they are."""

    @intrinsic
    def load(typing: Any, address: Any, index: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            bits = builder.load(pointer(builder, args[0], ir.IntType(16), args[1]))
            return WIDEN[stored](builder, bits)

        return types.float32(types.int64, types.int64), emit

    return load


def _storer(kind: ir.Type, value: types.Type) -> Any:
    @intrinsic
    def store(typing: Any, address: Any, index: Any, number: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[2], pointer(builder, args[0], kind, args[1]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, value), emit

    return store


load_int64 = _loader(I64, types.int64)
load_int32 = _loader(I32, types.int32)
load_float64 = _loader(F64, types.float64)
load_float32 = _loader(F32, types.float32)
load_float16 = _half_loader("float16")
load_bfloat16 = _half_loader("bfloat16")
store_int64 = _storer(I64, types.int64)
store_float64 = _storer(F64, types.float64)


@intrinsic
def load_int8(typing: Any, address: Any, index: Any) -> Any:
    """The byte at `address` + `index`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(pointer(builder, args[0], I8, args[1]))

    return types.int8(types.int64, types.int64), emit


@intrinsic
def atomic_load(typing: Any, address: Any) -> Any:
    """The int64 at `address`, which another thread may write at any time."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(pointer(builder, args[0], I64), ORDERING, 8)

    return types.int64(types.int64), emit


@intrinsic
def atomic_exchange(typing: Any, address: Any, value: Any) -> Any:
    """Write `value` to the int64 at `address`; returns what was there."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(builder, args[0], I64)
        return builder.atomic_rmw("xchg", place, args[1], ORDERING)

    return types.int64(types.int64, types.int64), emit


@intrinsic
def atomic_add(typing: Any, address: Any, value: Any) -> Any:
    """Add `value` to the int64 at `address`; returns what was there."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(builder, args[0], I64)
        return builder.atomic_rmw("add", place, args[1], ORDERING)

    return types.int64(types.int64, types.int64), emit


@intrinsic
def call_kernel(
    typing: Any, function: Any, operands: Any, sizes: Any, begin: Any, end: Any,
    context_address: Any,
) -> Any:  # fmt: skip
    """Call a function of five words by address: a kernel, or the parallel launch."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64] * 5)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), emit


@intrinsic
def call_get(typing: Any, function: Any) -> Any:
    """The int that a C function without arguments returns."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I32, [])
        result = builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])
        return builder.sext(result, I64)

    return types.int64(types.int64), emit


@intrinsic
def call_set(typing: Any, function: Any, value: Any) -> Any:
    """Call a C function that takes an int and returns nothing."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I32])
        place = builder.inttoptr(args[0], kind.as_pointer())
        builder.call(place, [builder.trunc(args[1], I32)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def fill_bytes(typing: Any, address: Any, byte: Any, count: Any) -> Any:
    """Set `count` bytes to the low eight bits of `byte`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = builder.trunc(args[1], I8)
        cgutils.memset(builder, pointer(builder, args[0], I8), args[2], byte)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic
def copy_bytes(typing: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes between areas that do not overlap."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, origin = (pointer(builder, a, I8) for a in args[:2])
        cgutils.raw_memcpy(builder, to, origin, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic
def float64_bits(typing: Any, value: Any) -> Any:
    """The bits of a float64 as an int64."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], I64)

    return types.int64(types.float64), emit


@intrinsic
def multiply_high(typing: Any, left: Any, right: Any) -> Any:
    """The upper 64 bits of the product of two uint64."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(a, wide) for a in args))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), I64)

    return types.uint64(types.uint64, types.uint64), emit


STACK_WORDS = 64


@intrinsic
def local_words(typing: Any) -> Any:
    """The address of STACK_WORDS int64 that live as long as the calling function."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        count = ir.Constant(I64, STACK_WORDS)
        return builder.ptrtoint(cgutils.alloca_once(builder, I64, count), I64)

    return types.int64(), emit


@intrinsic
def pause(typing: Any) -> Any:
    """Tell the processor that a loop waits for another thread."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if PAUSES:
            kind, name = ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), emit


def caller(count: int) -> Any:
    """A call of a C function of so many words, given in a tuple, by address."""

    @intrinsic
    def call(typing: Any, function: Any, arguments: Any) -> Any:
        def emit(context: Any, b: Any, _signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(ir.VoidType(), [I64] * count)
            given = [b.extract_value(args[1], i) for i in range(count)]
            b.call(b.inttoptr(args[0], kind.as_pointer()), given)
            return context.get_dummy_value()

        numbers = types.UniTuple(types.int64, count)
        return types.void(types.int64, numbers), emit

    return call
