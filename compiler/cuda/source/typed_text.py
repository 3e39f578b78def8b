"""Typed values of the CUDA subset: text with its type, literals, conversions.

Numba promotes int32 + int32 to int64, has no C conversions and raises where we want a
value, so every expression is typed here and the text says which type each result has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from staticgrad.compiler.codegen.language import type_name
from staticgrad.compiler.codegen.text_emitter import Writer
from staticgrad.ir.types import BOOL, INT64, DType, is_half

_UINT64 = np.dtype(np.uint64)


@dataclass(frozen=True, slots=True)
class TypedText:
    """Text and the type of its value; a number without a type is not `dtype` yet."""

    text: str
    dtype: DType | None
    number: float | int | bool | None = None


class NotInSubset(Exception):
    """Error for code that the CUDA target cannot express."""


def number(value: float | int | bool, dtype: DType) -> str:
    """Return a literal of `dtype`.

    >>> from staticgrad.ir.types import BOOL, FLOAT32, INT64
    >>> number(0.1, FLOAT32), number(-1, INT64), number(True, BOOL)
    ('float32(0.1)', 'int64(-1)', 'True')
    """
    if dtype == BOOL:
        return str(bool(value))
    kind = type_name(dtype)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            short = str(dtype.type(value))
        exact = dtype.type(float(short)) == dtype.type(value)
        return f"{kind}({short if exact or value != value else repr(float(value))})"
    bits = 8 * dtype.itemsize
    whole = int(value) & ((1 << bits) - 1)
    if dtype.kind == "i" and whole >> (bits - 1):
        whole -= 1 << bits
    return f"{kind}({whole})"


def signed(dtype: DType) -> DType:
    """Return the signed integer type of the same width."""
    return np.dtype(f"int{8 * dtype.itemsize}")


def unsigned(dtype: DType) -> DType:
    """Return the unsigned integer type of the same width."""
    return np.dtype(f"uint{8 * dtype.itemsize}")


def memory_name(dtype: DType) -> str:
    """Return the type of elements in memory: bools as bytes, halves as their bits.

    >>> from staticgrad.ir.types import BOOL, FLOAT32
    >>> memory_name(BOOL), memory_name(FLOAT32)
    ('uint8', 'float32')
    """
    if is_half(dtype):
        return "uint16"
    return "uint8" if dtype == BOOL else type_name(dtype)


def binary(sign: str, x: TypedText, y: TypedText) -> TypedText:
    """Return ``x sign y`` of two values of one type."""
    dtype = x.dtype
    assert dtype is not None
    if dtype == BOOL:
        joined = {"+": "|", "*": "&", "-": "^"}.get(sign, sign)
        return TypedText(f"({x.text} {joined} {y.text})", BOOL)
    text = f"({x.text} {sign} {y.text})"
    return TypedText(text if dtype.kind == "f" else f"{type_name(dtype)}{text}", dtype)


class Lines:
    """Writer of the lines that precede an expression."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._temporaries = 0

    def converted(self, x: TypedText, target: DType) -> str:
        """Return the text of x as `target`; floats become integers as on x86."""
        if x.number is not None and x.dtype is None:
            return number(x.number, target)
        source = x.dtype
        assert source is not None
        if source == target:
            return x.text
        kind = type_name(target)
        if target == BOOL:
            return f"({x.text} != {number(0, source)})"
        if source == BOOL:
            return f"({number(1, target)} if {x.text} else {number(0, target)})"
        if source.kind != "f" or target.kind == "f":
            return f"{kind}({x.text})"
        return self._whole(self.named(x), source, target)

    def named(self, x: TypedText) -> TypedText:
        """Return the same value as a name or a literal, usable twice."""
        if x.text.isidentifier() or x.number is not None:
            return x
        return TypedText(self.temporary(x.text), x.dtype)

    def temporary(self, text: str) -> str:
        """Write a new name for a value and return it."""
        name = f"t{self._temporaries}"
        self._temporaries += 1
        self.writer.line(f"{name} = {text}")
        return name

    def _whole(self, x: TypedText, source: DType, target: DType) -> str:
        """Truncate a float; the least integer where it does not fit."""
        if target == _UINT64:
            limit = number(2.0**63, source)
            large = self.temporary(f"({x.text} >= {limit})")
            moved = self.named(
                TypedText(f"(({x.text} - {limit}) if {large} else {x.text})", source)
            )
            low = self.temporary(self._truncated(moved, source, INT64))
            top = "uint64(9223372036854775808)"
            return f"(uint64(uint64({low}) ^ {top}) if {large} else uint64({low}))"
        narrow = target.itemsize < 4 or target == np.dtype(np.int32)
        wide = np.dtype(np.int32) if narrow else INT64
        text = self._truncated(x, source, wide)
        return text if wide == target else f"{type_name(target)}({text})"

    def _truncated(self, x: TypedText, source: DType, target: DType) -> str:
        limit = 2.0 ** (8 * target.itemsize - 1)
        low, high = number(-limit, source), number(limit, source)
        fits = f"({x.text} >= {low}) & ({x.text} < {high})"
        inside = self.temporary(f"({x.text} if {fits} else {number(0, source)})")
        least = number(-int(limit), target)
        return f"({type_name(target)}({inside}) if {fits} else {least})"
