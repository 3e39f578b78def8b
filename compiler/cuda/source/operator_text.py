"""Functions of the kernel language that are one CUDA expression."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from staticgrad.compiler.codegen.language import type_name
from staticgrad.compiler.cuda.source.typed_text import (
    Lines,
    TypedText,
    binary,
    number,
    signed,
    unsigned,
)
from staticgrad.ir.types import BOOL, FLOAT32, FLOAT64, DType

Simple = Callable[[Lines, list[TypedText], DType], TypedText]


def _extreme(sign: str) -> Simple:
    """Return a function to the larger or smaller; NaN is passed on."""

    def text(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
        x, y = (v.text for v in values)
        if dtype == BOOL:
            return TypedText(f"({x} {'|' if sign == '>' else '&'} {y})", BOOL)
        nan = f" | ({x} != {x})" if dtype.kind == "f" else ""
        return TypedText(f"({x} if ({x} {sign} {y}){nan} else {y})", dtype)

    return text


def _shift(sign: str) -> Simple:
    """Return a shift; counts outside of [0, width) shift everything out."""

    def text(e: Lines, values: list[TypedText], dtype: DType) -> TypedText:
        x, y = (v.text for v in values)
        width, kind = 8 * dtype.itemsize, type_name(dtype)
        inside = e.temporary(
            f"({y} >= {number(0, dtype)}) & ({y} < {number(width, dtype)})"
        )
        count = e.temporary(f"({y} if {inside} else {number(0, dtype)})")
        outside = number(0, dtype)
        if sign == ">>" and dtype.kind == "i":
            outside = f"{kind}({x} >> {number(width - 1, dtype)})"
        shifted = f"{kind}({x} {sign} {count})"
        return TypedText(f"({shifted} if {inside} else {outside})", dtype)

    return text


def _negated(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    (x,) = values
    if dtype == BOOL:
        return x
    if dtype.kind == "f":
        return TypedText(f"(-{x.text})", dtype)
    return TypedText(f"{type_name(dtype)}({number(0, dtype)} - {x.text})", dtype)


def _absolute(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    (x,) = values
    if dtype.kind == "f":
        return TypedText(_size(x.text, dtype), dtype)
    if dtype.kind != "i":
        return x
    below = f"{type_name(dtype)}({number(0, dtype)} - {x.text})"
    return TypedText(f"({below} if {x.text} < {number(0, dtype)} else {x.text})", dtype)


def _size(text: str, dtype: DType) -> str:
    """Return the absolute value of a float."""
    return f"libdevice.fabs{'f' if dtype == FLOAT32 else ''}({text})"


def _sign(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    (x,) = values
    if dtype == BOOL:
        return x
    zero, one = number(0, dtype), number(1, dtype)
    rest = f"({one} if {x.text} > {zero} else {zero})"
    if dtype.kind == "i":
        rest = f"({number(-1, dtype)} if {x.text} < {zero} else {rest})"
    return TypedText(rest, dtype)


def _invert(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    (x,) = values
    if dtype == BOOL:
        return TypedText(f"({x.text} ^ True)", BOOL)
    return TypedText(f"{type_name(dtype)}({x.text} ^ {number(-1, dtype)})", dtype)


def _bitwise(sign: str) -> Simple:
    return lambda e, values, dtype: binary(sign, *values)


def _float_bits(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    bits = "float_as_int" if dtype == FLOAT32 else "double_as_longlong"
    return TypedText(f"libdevice.{bits}({values[0].text})", signed(dtype))


def _float_of(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    return TypedText(f"libdevice.int_as_float({values[0].text})", FLOAT32)


def _double_of(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    return TypedText(f"libdevice.longlong_as_double({values[0].text})", FLOAT64)


def _count(e: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    """Count the one bits of a number's magnitude."""
    size = _absolute(e, values, dtype)
    wide = f"int64(uint64({type_name(unsigned(dtype))}({size.text})))"
    return TypedText(f"libdevice.popcll({wide})", np.dtype(np.int32))


def _signbit(e: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    bits = _float_bits(e, values, dtype).text
    return TypedText(f"({bits} < {number(0, signed(dtype))})", BOOL)


def _isnan(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    x = values[0].text
    return TypedText(f"({x} != {x})", BOOL)


def _compared(sign: str) -> Simple:
    def text(e: Lines, values: list[TypedText], dtype: DType) -> TypedText:
        size = _size(values[0].text, dtype)
        return TypedText(f"({size} {sign} {number(math.inf, dtype)})", BOOL)

    return text


def _not(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    return TypedText(f"({values[0].text} ^ True)", BOOL)


def _not_at_least(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    x, y = (v.text for v in values)
    return TypedText(f"(({x} >= {y}) ^ True)", BOOL)


def _overflows(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    """Test for the least integer divided by -1, whose quotient overflows."""
    if dtype.kind != "i":
        return TypedText("False", BOOL, False)
    least = number(-(1 << (8 * dtype.itemsize - 1)), dtype)
    x, y = (v.text for v in values)
    return TypedText(f"(({x} == {least}) & ({y} == {number(-1, dtype)}))", BOOL)


def _opposite(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    if dtype.kind != "i":
        return TypedText("False", BOOL, False)
    x, y = (v.text for v in values)
    return TypedText(f"(({x} ^ {y}) < {number(0, dtype)})", BOOL)


def _quotient(_: Lines, values: list[TypedText], dtype: DType) -> TypedText:
    """Divide truncating towards zero, by magnitudes: Python's division rounds down."""
    x, y = (v.text for v in values)
    kind = type_name(dtype)
    if dtype.kind != "i":
        return TypedText(f"{kind}({x} // {y})", dtype)
    zero = number(0, dtype)
    own = type_name(unsigned(dtype))
    a = f"{own}({kind}({zero} - {x}) if {x} < {zero} else {x})"
    b = f"{own}({kind}({zero} - {y}) if {y} < {zero} else {y})"
    size = f"{kind}({own}({a} // {b}))"
    turned = f"{kind}({zero} - {size})"
    return TypedText(f"({turned} if ({x} ^ {y}) < {zero} else {size})", dtype)


SIMPLE: dict[str, Simple] = {
    "maximum": _extreme(">"),
    "minimum": _extreme("<"),
    "negative": _negated,
    "absolute": _absolute,
    "sign": _sign,
    "invert": _invert,
    "accumulate_add": _bitwise("+"),
    "bitwise_and": _bitwise("&"),
    "bitwise_or": _bitwise("|"),
    "bitwise_xor": _bitwise("^"),
    "left_shift": _shift("<<"),
    "right_shift": _shift(">>"),
    "float_bits": _float_bits,
    "float_of": _float_of,
    "double_of": _double_of,
    "bitwise_count": _count,
    "signbit": _signbit,
    "isnan": _isnan,
    "isinf": _compared("=="),
    "isfinite": _compared("<"),
    "c_and": _bitwise("&"),
    "c_or": _bitwise("|"),
    "c_xor": _bitwise("^"),
    "c_not": _not,
    "not_at_least": _not_at_least,
    "overflows": _overflows,
    "opposite": _opposite,
    "quotient_of": _quotient,
}
