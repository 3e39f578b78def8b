"""Typed values: operators and intrinsics on values with Numba's types.

Types are those that Numba would infer. Instructions for two numbers of one type are
emitted here; operators of mixed types are left to Numba's own rules and lowering.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from staticgrad.compiler.codegen.llvm.conversions import (
    convert,
    is_float,
    is_signed,
    value_type,
)
from staticgrad.compiler.codegen.llvm.integer_division import DIVISION
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.host import numba_internals as internals

LONG_TYPE = ir.IntType(64)
INT = types.int64


class Unsupported(Exception):
    """Source outside the kernel language."""


@dataclass(frozen=True, slots=True)
class TypedValue:
    """Value and its Numba type; literals keep their literal type."""

    kind: Any
    value: Value


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

_DIVISIONS = {
    ast.FloorDiv: DIVISION["floor_divide"].make(),
    ast.Mod: DIVISION["remainder"].make(),
}

_OF_FLOATS = {
    ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv",
}  # fmt: skip
_OF_INTEGERS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and_",
    ast.BitOr: "or_", ast.BitXor: "xor",
}  # fmt: skip
_INSTRUCTIONS = {
    types.float32: _OF_FLOATS,
    types.float64: _OF_FLOATS,
    INT: _OF_INTEGERS,
    types.uint64: _OF_INTEGERS | {ast.LShift: "shl", ast.RShift: "lshr"},
}
"""Instructions for two numbers of one type."""

_COMPARISONS: dict[type, tuple[str, Callable[..., Any]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}


def long(value: int) -> Value:
    """Return a constant int64."""
    return ir.Constant(LONG_TYPE, value)


def _is_whole(x: TypedValue) -> bool:
    return isinstance(x.kind, types.IntegerLiteral)


def unliteral(x: TypedValue) -> TypedValue:
    """Return ``x`` as a value of its type and no literal."""
    kind = types.unliteral(x.kind)
    return x if kind is x.kind else TypedValue(kind, x.value)


def constant(value: Any) -> TypedValue:
    """Return a number or a name of a type in source."""
    if isinstance(value, bool | int | str):
        return _literal(value)
    if isinstance(value, np.uint64):
        return TypedValue(types.uint64, ir.Constant(LONG_TYPE, int(value)))
    if isinstance(value, float):
        return TypedValue(types.float64, ir.Constant(ir.DoubleType(), value))
    raise Unsupported(f"{value!r} as a number")


@lru_cache(4096, typed=True)
def _literal(value: bool | int | str) -> TypedValue:
    if isinstance(value, bool):
        return TypedValue(
            types.literal(value), ir.Constant(value_type(types.boolean), int(value))
        )
    if isinstance(value, int):
        return TypedValue(types.literal(value), long(value))
    return TypedValue(types.literal(value), None)


def negative(b: Any, x: TypedValue) -> TypedValue:
    """Emit ``-x``."""
    if isinstance(x.value, ir.Constant):
        literal = isinstance(x.kind, types.IntegerLiteral)
        number = -x.value.constant
        kind = types.literal(number) if literal else x.kind
        return TypedValue(kind, ir.Constant(x.value.type, number))
    if x.kind == INT:
        return TypedValue(x.kind, b.neg(x.value))
    if is_float(x.kind):
        return TypedValue(x.kind, b.fneg(x.value))
    raise Unsupported(f"the negative of {x.kind}")


def binary(b: Any, op: ast.operator, x: TypedValue, y: TypedValue) -> TypedValue:
    """Emit ``x op y``, by an instruction or Numba's operator."""
    function = _OPERATORS[type(op)]
    if _is_whole(x) and _is_whole(y):
        return constant(function(x.kind.literal_value, y.kind.literal_value))
    x, y = unliteral(x), unliteral(y)
    name = _INSTRUCTIONS.get(x.kind, {}).get(type(op))
    if x.kind == y.kind and name is not None:
        return TypedValue(x.kind, getattr(b, name)(x.value, y.value))
    if x.kind == y.kind == INT and type(op) in _DIVISIONS:
        definition = internals.definition_of(_DIVISIONS[type(op)])
        assert definition is not None
        return intrinsic(b, *definition, (x, y))
    return _by_numba(b, function, x, y)


def compare(b: Any, op: ast.cmpop, x: TypedValue, y: TypedValue) -> TypedValue:
    """Emit a comparison."""
    relation, function = _COMPARISONS[type(op)]
    if x.kind == y.kind and is_float(x.kind):
        # Only "not equal" is true of NaN.
        test = b.fcmp_unordered if relation == "!=" else b.fcmp_ordered
        return TypedValue(types.boolean, test(relation, x.value, y.value))
    if x.kind == y.kind and x.kind in (INT, types.int32):
        test = b.icmp_signed
        return TypedValue(types.boolean, test(relation, x.value, y.value))
    return _by_numba(b, function, x, y)


def _by_numba(
    b: Any, function: Callable[..., Any], x: TypedValue, y: TypedValue
) -> TypedValue:
    kind, emit = internals.operator_of(function, (x.kind, y.kind))
    return TypedValue(kind, emit(b, (x.value, y.value)))


def intrinsic(
    b: Any, define: Callable[..., Any], literal: bool, args: Sequence[TypedValue]
) -> TypedValue:
    """Emit an intrinsic; `literal` says whether it takes literal types."""
    if not literal:
        args = [unliteral(argument) for argument in args]
    kinds = [argument.kind for argument in args]
    found = define(internals.typing_context(), *kinds)
    if found is None:
        raise Unsupported(f"{define.__name__} of {kinds}")
    signature, emit = found
    values = [
        converted(b, argument, kind).value
        for argument, kind in zip(args, signature.args, strict=True)
    ]
    context = internals.target_context()
    return TypedValue(signature.return_type, emit(context, b, signature, values))


def converted(b: Any, x: TypedValue, kind: Any) -> TypedValue:
    """Convert ``x`` to another type of number."""
    if x.kind is kind:
        return x
    if x.kind == kind or types.unliteral(x.kind) == types.unliteral(kind):
        return TypedValue(kind, x.value)
    x = unliteral(x)
    number = isinstance(x.kind, types.Number | types.Boolean)
    if not number or not isinstance(kind, types.Number | types.Boolean):
        raise Unsupported(f"{x.kind} as {kind}")
    return TypedValue(kind, convert(b, x.value, x.kind, kind))


def together(x: TypedValue, y: TypedValue) -> Any:
    """Return the common type of two values: equal, or int64 of signed integers."""
    if x.kind == y.kind:
        return x.kind
    if is_signed(x.kind) and is_signed(y.kind):
        return INT
    raise Unsupported(f"either {x.kind} or {y.kind}")


def extreme(b: Any, relation: str, x: TypedValue, y: TypedValue) -> TypedValue:
    """Emit the smaller ("<") or larger (">") of two int64."""
    if x.kind != INT or y.kind != INT:
        raise Unsupported("an extreme of other numbers than int64")
    first = b.icmp_signed(relation, x.value, y.value)
    return TypedValue(INT, b.select(first, x.value, y.value))
