"""Conversions, constructors and arithmetic beyond Numba's operators.

Every function is an ``@intrinsic`` typed by its arguments: it emits a few instructions,
never a branch or an exception, so that loops vectorise. Integer division by zero gives
0, as in NumPy; conversions of floats that do not fit give what x86's cvtt does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from staticgrad.compiler.codegen.llvm.intrinsics import lowers, taking
from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value
from staticgrad.compiler.codegen.scalar_functions import (
    OWN,
    Bound,
    ScalarFunction,
    at_most_one,
    kept,
    table,
    unbounded,
)
from staticgrad.compiler.host.processor import has_fma

_BIT = ir.IntType(1)


def is_float(kind: Any) -> bool:
    """Whether a type is float32 or float64."""
    return isinstance(kind, types.Float)


def is_signed(kind: Any) -> bool:
    """Whether a type is int8 to int64."""
    return isinstance(kind, types.Integer) and bool(kind.signed)


def value_type(kind: Any) -> Any:
    """Return the LLVM type of a number in a register."""
    if kind == types.boolean:
        return _BIT
    if is_float(kind):
        return ir.FloatType() if kind == types.float32 else ir.DoubleType()
    return ir.IntType(kind.bitwidth)


def same(count: int, emit: Callable[..., Value], result: Any = None) -> Any:
    """Return an intrinsic of `count` arguments of one type.

    ``emit(b, kind, *args)`` makes the value; its type is `result`, or the arguments'.
    """

    def make(_typing: Any, *kinds: Any) -> Any:
        kind = kinds[0]
        if any(other != kind for other in kinds):
            return None

        def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
            return emit(b, kind, *args)

        return (result or kind)(*kinds), generate

    return taking(count, make)


def simple(
    name: str, count: int, emit: Callable[..., Value], result: Any = None, *,
    cuda: str | None = OWN, operations: int = 1, bound: Bound = unbounded,
    lanes: Callable[..., Value] | None = None,
) -> ScalarFunction:  # fmt: skip
    """The record of a function whose intrinsic `same` makes."""
    make = partial(same, count, emit, result)
    return ScalarFunction(name, make, cuda, operations, bound, lanes)


def elementary(emit: Callable[..., Value], count: int) -> Any:
    """Return an intrinsic of floats from an emitter of mathlib."""
    return same(count, lambda b, kind, *args: emit(IREmitter(b, args[0].type), *args))


def constructor(kind: Any) -> Any:
    """Return ``float32(x)`` and the like: a conversion from any number."""

    @intrinsic
    def convert_to(typing: Any, x: Any) -> Any:
        def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
            return convert(b, args[0], x, kind)

        return kind(x), generate

    return convert_to


def convert(b: Any, x: Value, source: Any, target: Any) -> Value:
    """Convert ``x`` from type `source` to `target`."""
    if source == target:
        return x
    if target == types.boolean:
        return nonzero(b, x, source)
    if is_float(source):
        return _from_float(b, x, source, target)
    if is_float(target):
        signed = is_signed(source)
        change = b.sitofp if signed else b.uitofp
        return change(x, value_type(target))
    return _resized(b, x, is_signed(source), value_type(target))


def nonzero(b: Any, x: Value, kind: Any) -> Value:
    """Emit ``x != 0``, true for NaN."""
    if is_float(kind):
        return b.fcmp_unordered("!=", x, ir.Constant(x.type, 0.0))
    return b.icmp_unsigned("!=", x, ir.Constant(x.type, 0))


def _resized(b: Any, x: Value, signed: bool, target: Any) -> Value:
    if x.type.width == target.width:
        return x
    if x.type.width > target.width:
        return b.trunc(x, target)
    return b.sext(x, target) if signed else b.zext(x, target)


def _from_float(b: Any, x: Value, source: Any, target: Any) -> Value:
    if is_float(target):
        widens = target.bitwidth > source.bitwidth
        return (b.fpext if widens else b.fptrunc)(x, value_type(target))
    if target == types.uint64:
        return _to_uint64(b, x)
    width = 32 if target.bitwidth < 32 or target == types.int32 else 64
    return _resized(b, _truncated(b, x, width), True, value_type(target))


def _truncated(b: Any, x: Value, width: int) -> Value:
    """Truncate x to a signed integer; its least value where x does not fit."""
    m, integer = IREmitter(b, x.type), ir.IntType(width)
    limit = 2.0 ** (width - 1)
    fits = b.and_(m.compare(">=", x, -limit), m.lt(x, limit))
    inside = b.fptosi(m.select(fits, x, 0.0), integer)
    return b.select(fits, inside, ir.Constant(integer, -(1 << (width - 1))))


def _to_uint64(b: Any, x: Value) -> Value:
    """Convert as int64, and from 2^63 on as the distance to it with the top bit set."""
    m = IREmitter(b, x.type)
    large = m.compare(">=", x, 2.0**63)
    low = _truncated(b, m.select(large, m.sub(x, 2.0**63), x), 64)
    top = ir.Constant(low.type, -(1 << 63))
    return b.select(large, b.xor(low, top), low)


def _extreme(name: str, relation: str) -> Callable[..., Value]:
    def emit(b: Any, kind: Any, x: Value, y: Value) -> Value:
        if is_float(kind):
            return IREmitter(b, x.type).llvm(name, x, y)
        compare = b.icmp_signed if is_signed(kind) else b.icmp_unsigned
        return b.select(compare(relation, x, y), x, y)

    return emit


def _negative(b: Any, kind: Any, x: Value) -> Value:
    return b.fneg(x) if is_float(kind) else b.neg(x)


def _absolute(b: Any, kind: Any, x: Value) -> Value:
    if is_float(kind):
        return IREmitter(b, x.type).abs(x)
    if not is_signed(kind):
        return x
    below = b.icmp_signed("<", x, ir.Constant(x.type, 0))
    return b.select(below, b.neg(x), x)


def _sign(b: Any, kind: Any, x: Value) -> Value:
    if is_float(kind):
        m = IREmitter(b, x.type)
        rest = m.select(m.eq(x, 0.0), 0.0, x)
        return m.select(m.gt(x, 0.0), 1.0, m.select(m.lt(x, 0.0), -1.0, rest))
    one, zero = ir.Constant(x.type, 1), ir.Constant(x.type, 0)
    result = b.select(b.icmp_unsigned("!=", x, zero), one, zero)
    if is_signed(kind):
        minus = ir.Constant(x.type, -1)
        result = b.select(b.icmp_signed("<", x, zero), minus, result)
    return result


def _add(b: Any, kind: Any, x: Value, y: Value) -> Value:
    return b.fadd(x, y, flags=("reassoc",)) if is_float(kind) else b.add(x, y)


def _multiply(b: Any, kind: Any, x: Value, y: Value) -> Value:
    return b.fmul(x, y, flags=("reassoc",)) if is_float(kind) else b.mul(x, y)


def _invert(b: Any, _kind: Any, x: Value) -> Value:
    return b.xor(x, ir.Constant(x.type, -1))


def _shift(left: bool) -> Callable[..., Value]:
    """Return a shift; counts outside [0, width) shift everything out, as in NumPy."""

    def emit(b: Any, kind: Any, x: Value, y: Value) -> Value:
        width, zero = x.type.width, ir.Constant(x.type, 0)
        inside = b.icmp_unsigned("<", y, ir.Constant(y.type, width))
        arithmetic = is_signed(kind) and not left
        shift = b.shl if left else b.ashr if arithmetic else b.lshr
        outside = b.ashr(x, ir.Constant(x.type, width - 1)) if arithmetic else zero
        return b.select(inside, shift(x, b.select(inside, y, zero)), outside)

    return emit


def _signbit(b: Any, _kind: Any, x: Value) -> Value:
    m = IREmitter(b, x.type)
    return b.icmp_signed("<", m.bits(x), m.whole(0))


def _isnan(b: Any, _kind: Any, x: Value) -> Value:
    return b.fcmp_unordered("uno", x, x)


def _isinf(b: Any, _kind: Any, x: Value) -> Value:
    m = IREmitter(b, x.type)
    return m.eq(m.abs(x), math.inf)


def _isfinite(b: Any, _kind: Any, x: Value) -> Value:
    m = IREmitter(b, x.type)
    return m.lt(m.abs(x), math.inf)


def _logical(name: str) -> Callable[..., Value]:
    def emit(b: Any, kind: Any, x: Value, y: Value) -> Value:
        return getattr(b, name)(x, y)

    return emit


def _not(b: Any, kind: Any, x: Value) -> Value:
    return b.xor(x, ir.Constant(x.type, 1))


def _lanes(name: str) -> Callable[..., Value]:
    return lambda m, *args: m.llvm(name, *args)


def _llvm(name: str) -> Callable[..., Value]:
    def emit(b: Any, kind: Any, *args: Value) -> Value:
        return (
            args[0]
            if not is_float(kind)
            else IREmitter(b, args[0].type).llvm(name, *args)
        )

    return emit


@lowers(lambda c, x, y: x(types.boolean, x, y) if x == y else None)
def select(b: Any, condition: Any, x: Any, y: Any) -> Value:
    """Emit ``select(c, x, y)``: x where c holds, else y."""
    return b.select(condition, x, y)


def _multiply_add(b: Any, kind: Any, x: Value, y: Value, z: Value) -> Value:
    """Emit ``x * y + z`` of matrix products, rounded once where the processor can."""
    if not is_float(kind):
        return b.add(b.mul(x, y), z)
    if has_fma():
        return IREmitter(b, x.type).fma(x, y, z)
    return b.fadd(b.fmul(x, y), z)


NUMBERS = table(
    ScalarFunction("select", lambda: select, OWN, 1, lambda args: max(args[1:])),
    simple("maximum", 2, _extreme("maximum", ">"), bound=max, lanes=_lanes("maximum")),
    simple("minimum", 2, _extreme("minimum", "<"), bound=max, lanes=_lanes("minimum")),
    simple("negative", 1, _negative, bound=kept),
    simple("absolute", 1, _absolute, bound=kept, lanes=IREmitter.abs),
    simple("sign", 1, _sign, bound=at_most_one),
    simple("copysign", 2, _llvm("copysign"), cuda="copysign"),
    simple("floor", 1, _llvm("floor"), cuda="floor", bound=kept),
    simple("ceil", 1, _llvm("ceil"), cuda="ceil", bound=kept),
    simple("rint", 1, _llvm("rint"), cuda="rint", bound=kept),
    simple("trunc", 1, _llvm("trunc"), cuda="trunc"),
    simple("signbit", 1, _signbit, types.boolean),
    simple("bitwise_and", 2, _logical("and_")),
    simple("bitwise_or", 2, _logical("or_")),
    simple("bitwise_xor", 2, _logical("xor")),
    simple("invert", 1, _invert),
    simple("left_shift", 2, _shift(left=True)),
    simple("right_shift", 2, _shift(left=False)),
    simple("isnan", 1, _isnan, types.boolean, bound=at_most_one),
    simple("isinf", 1, _isinf, types.boolean, bound=at_most_one),
    simple("isfinite", 1, _isfinite, types.boolean, bound=at_most_one),
    simple("c_and", 2, _logical("and_")),
    simple("c_or", 2, _logical("or_")),
    simple("c_xor", 2, _logical("xor")),
    simple("c_not", 1, _not),
    simple("multiply_add", 3, _multiply_add, cuda=None),
    simple("accumulate_add", 2, _add),
    simple("accumulate_multiply", 2, _multiply, cuda=None),
)
