"""Strict floating-point arithmetic as LLVM IR, for the mathlib files.

An Emitter is made for one builder and one type: float, double, or vectors of them (the
same functions give the same bits for all of these). No instruction carries a fast-math
flag, so what is compensated stays compensated. Numba's ``fastmath`` would add flags
behind our back; it is not used anywhere (a test shows what it would do).

Assumes round to nearest and subnormals on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir

Value: TypeAlias = Any

ESTRIN_FROM = 6
"""Polynomials with this many coefficients or more take Estrin's scheme: the dependency
chain is shorter (float64 erf 30 % faster); below, Horner's is."""


class IREmitter:
    """Emitter of arithmetic of one floating-point type."""

    __slots__ = ("b", "bias", "integer", "is32", "mantissa", "shift", "type", "width")

    def __init__(self, builder: Any, kind: Any) -> None:
        self.b = builder
        self.type = kind
        self.is32 = isinstance(_element(kind), ir.FloatType)
        self.width = 32 if self.is32 else 64
        self.mantissa = 23 if self.is32 else 52
        self.bias = 127 if self.is32 else 1023
        self.shift = 1.5 * 2.0**self.mantissa
        self.integer = _like(kind, ir.IntType(self.width))

    def pick(self, single: Any, double: Any) -> Any:
        """Return the alternative for this type, float32 or float64."""
        return single if self.is32 else double

    def number(self, value: float) -> Value:
        """Return a constant, rounded to this type."""
        exact = float(np.float32(value)) if self.is32 else float(value)
        return _constant(self.type, exact)

    def whole(self, value: int) -> Value:
        """Return a constant of the integer type of the same width."""
        half = 1 << (self.width - 1)
        return _constant(self.integer, (value + half) % (2 * half) - half)

    def _value(self, value: Any) -> Value:
        return value if isinstance(value, ir.Value) else self.number(value)

    def _bits(self, value: Any) -> Value:
        return value if isinstance(value, ir.Value) else self.whole(value)

    def add(self, x: Any, y: Any) -> Value:
        """Emit ``x + y``."""
        return self.b.fadd(self._value(x), self._value(y))

    def sub(self, x: Any, y: Any) -> Value:
        """Emit ``x - y``."""
        return self.b.fsub(self._value(x), self._value(y))

    def mul(self, x: Any, y: Any) -> Value:
        """Emit ``x * y``."""
        return self.b.fmul(self._value(x), self._value(y))

    def div(self, x: Any, y: Any) -> Value:
        """Emit ``x / y``, which never raises."""
        return self.b.fdiv(self._value(x), self._value(y))

    def neg(self, x: Value) -> Value:
        """Emit ``-x``, the sign of zero included."""
        return self.b.fneg(x)

    def fma(self, x: Any, y: Any, z: Any) -> Value:
        """Emit ``x * y + z``, rounded once."""
        return self.llvm("fma", self._value(x), self._value(y), self._value(z))

    def llvm(self, name: str, *args: Value) -> Value:
        """Return the LLVM intrinsic of that name, for this type."""
        lanes = f"v{self.type.count}" if isinstance(self.type, ir.VectorType) else ""
        full = f"llvm.{name}.{lanes}f{self.width}"
        kind = ir.FunctionType(self.type, [self.type] * len(args))
        return self.b.call(declared(self.b.module, full, kind), args)

    def sqrt(self, x: Value) -> Value:
        """Emit the square root."""
        return self.llvm("sqrt", x)

    def rint(self, x: Value) -> Value:
        """Emit the nearest whole number, ties to even."""
        return self.llvm("rint", x)

    def abs(self, x: Value) -> Value:
        """Emit ``x`` without its sign bit."""
        return self.llvm("fabs", x)

    def copysign(self, size: Any, sign: Value) -> Value:
        """Emit `size` with the sign of `sign`."""
        return self.llvm("copysign", self._value(size), sign)

    def signed(self, size: Value, sign: Value) -> Value:
        """Emit `size`, neither negative nor -0, with the sign of `sign`.

        By integers, of which a Zen 4 starts four where it starts two of `copysign`.
        """
        bit = self.iand(self.bits(sign), -(1 << (self.width - 1)))
        return self.from_bits(self.iadd(self.bits(size), bit))

    def compare(self, relation: str, x: Any, y: Any) -> Value:
        """Emit an ordered comparison: false where either is NaN."""
        return self.b.fcmp_ordered(relation, self._value(x), self._value(y))

    def compare_or_nan(self, relation: str, x: Any, y: Any) -> Value:
        """Emit an unordered comparison: true where either is NaN."""
        return self.b.fcmp_unordered(relation, self._value(x), self._value(y))

    def lt(self, x: Any, y: Any) -> Value:
        """Emit ``x < y``."""
        return self.compare("<", x, y)

    def gt(self, x: Any, y: Any) -> Value:
        """Emit ``x > y``."""
        return self.compare(">", x, y)

    def eq(self, x: Any, y: Any) -> Value:
        """Emit ``x == y``."""
        return self.compare("==", x, y)

    def select(self, condition: Value, x: Any, y: Any) -> Value:
        """Emit the choice of ``x`` where the condition holds, else ``y``."""
        return self.b.select(condition, self._value(x), self._value(y))

    def at_most(self, x: Value, bound: float) -> Value:
        """Emit the smaller of both; NaN stays NaN."""
        return self.select(self.compare_or_nan("<", x, bound), x, bound)

    def at_least(self, x: Value, bound: float) -> Value:
        """Emit the larger of both; NaN stays NaN."""
        return self.select(self.compare_or_nan(">", x, bound), x, bound)

    def bits(self, x: Value) -> Value:
        """Return the bit pattern as an integer."""
        return self.b.bitcast(x, self.integer)

    def from_bits(self, x: Value) -> Value:
        """Return the number of a bit pattern."""
        return self.b.bitcast(x, self.type)

    def iadd(self, x: Value, y: Any) -> Value:
        """Emit integer ``x + y``."""
        return self.b.add(x, self._bits(y))

    def isub(self, x: Any, y: Any) -> Value:
        """Emit integer ``x - y``."""
        return self.b.sub(self._bits(x), self._bits(y))

    def iand(self, x: Value, y: Any) -> Value:
        """Emit bitwise and."""
        return self.b.and_(x, self._bits(y))

    def ior(self, x: Value, y: Any) -> Value:
        """Emit bitwise or."""
        return self.b.or_(x, self._bits(y))

    def ixor(self, x: Value, y: Any) -> Value:
        """Emit bitwise exclusive or."""
        return self.b.xor(x, self._bits(y))

    def shl(self, x: Value, count: int) -> Value:
        """Emit a left shift."""
        return self.b.shl(x, self.whole(count))

    def shr(self, x: Value, count: int) -> Value:
        """Emit a logical right shift: AVX2 has no arithmetic one for 64 bits."""
        return self.b.lshr(x, self.whole(count))

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Emit a polynomial, lowest coefficient first.

        Estrin's scheme leaves the lowest coefficient for last, so that its rounding
        error stays the only large one.
        """
        if len(coefficients) < ESTRIN_FROM:
            return self.horner(x, coefficients)
        lowest, *terms = [self.number(c) for c in coefficients]
        power = x
        while len(terms) > 1:
            terms = self._paired(terms, power)
            power = self.mul(power, power) if len(terms) > 1 else power
        return self.fma(terms[0], x, lowest)

    def horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Emit a polynomial by Horner's rule: fewest operations, all in sequence."""
        total = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = self.fma(total, x, coefficient)
        return total

    def _paired(self, terms: list[Value], power: Value) -> list[Value]:
        pairs = zip(terms[0::2], terms[1::2], strict=False)
        odd = [terms[-1]] if len(terms) % 2 else []
        return [self.fma(high, power, low) for low, high in pairs] + odd

    def wide(self) -> IREmitter:
        """Return the emitter of float64 beside this one of float32."""
        return IREmitter(self.b, _like(self.type, ir.DoubleType()))

    def widen(self, x: Value) -> Value:
        """Convert float32 to float64."""
        return self.b.fpext(x, _like(self.type, ir.DoubleType()))

    def narrow(self, x: Value) -> Value:
        """Convert float64 to float32."""
        return self.b.fptrunc(x, self.type)


def declared(module: Any, name: str, kind: Any) -> Any:
    """Return the function `name` of the module, declared on first use."""
    return module.globals.get(name) or ir.Function(module, kind, name)


def _element(kind: Any) -> Any:
    return kind.element if isinstance(kind, ir.VectorType) else kind


def _like(kind: Any, element: Any) -> Any:
    vector = isinstance(kind, ir.VectorType)
    return ir.VectorType(element, kind.count) if vector else element


def _constant(kind: Any, value: float | int) -> Value:
    vector = isinstance(kind, ir.VectorType)
    return ir.Constant(kind, [value] * kind.count if vector else value)
