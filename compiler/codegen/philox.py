"""Philox4x32-10: random words as a pure function of key and counter.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011. A key of staticgrad is four words (k0, k1, k2, k3): Philox's key
(k0, k1) and the upper half of its counter. Element i of a float32 draw is word i % 4 of
block i // 4, its top 24 bits; float64 takes two words, 53 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from staticgrad.compiler.codegen.emitter import Emitter, Value

_WORD, _LONG = ir.IntType(32), ir.IntType(64)
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def _word(value: int) -> Value:
    return ir.Constant(_WORD, value - (1 << 32) if value >> 31 else value)


def philox(b: Any, counter: Sequence[Value], key: Sequence[Value]) -> list[Value]:
    """The four words of one block."""
    c, k = list(counter), list(key)
    for number in range(_ROUNDS):
        if number:
            k = [b.add(part, _word(step)) for part, step in zip(k, _WEYL, strict=True)]
        high0, low0 = _multiply(b, c[0], _MULTIPLIERS[0])
        high1, low1 = _multiply(b, c[2], _MULTIPLIERS[1])
        first = b.xor(b.xor(high1, c[1]), k[0])
        third = b.xor(b.xor(high0, c[3]), k[1])
        c = [first, low1, third, low0]
    return c


def _multiply(b: Any, x: Value, constant: int) -> tuple[Value, Value]:
    """The high and the low word of a product."""
    product = b.mul(b.zext(x, _LONG), ir.Constant(_LONG, constant))
    high = b.trunc(b.lshr(product, ir.Constant(_LONG, 32)), _WORD)
    return high, b.trunc(product, _WORD)


def word(b: Any, key: Sequence[Value], counter: Value, number: Value) -> Value:
    """Word `number` of the block with counter (counter, 0, k2, k3)."""
    block = philox(b, (counter, _word(0), key[2], key[3]), key[:2])
    return chosen(b, block, number)


def chosen(b: Any, words: Sequence[Value], number: Value) -> Value:
    """words[number], without a branch."""
    result = words[0]
    for position, value in enumerate(words[1:], 1):
        here = b.icmp_unsigned("==", number, ir.Constant(number.type, position))
        result = b.select(here, value, result)
    return result


def uniform32(b: Any, key: Sequence[Value], index: Value) -> Value:
    """Element `index` of a float32 draw from [0, 1)."""
    m = Emitter(b, ir.FloatType())
    block = _block(b, key, b.lshr(index, ir.Constant(_LONG, 2)))
    number = b.and_(index, ir.Constant(_LONG, 3))
    top = b.lshr(chosen(b, block, number), _word(8))
    return m.mul(b.sitofp(top, m.type), 2.0**-24)


def uniform64(b: Any, key: Sequence[Value], index: Value) -> Value:
    """Element `index` of a float64 draw from [0, 1)."""
    m = Emitter(b, ir.DoubleType())
    block = _block(b, key, b.lshr(index, ir.Constant(_LONG, 1)))
    odd = b.icmp_unsigned("!=", b.and_(index, ir.Constant(_LONG, 1)), _zero())
    first = b.select(odd, block[2], block[0])
    second = b.select(odd, block[3], block[1])
    high = b.sitofp(b.lshr(first, _word(5)), m.type)
    low = b.sitofp(b.lshr(second, _word(6)), m.type)
    return m.mul(m.add(m.mul(high, 2.0**26), low), 2.0**-53)


def _zero() -> Value:
    return ir.Constant(_LONG, 0)


def _block(b: Any, key: Sequence[Value], number: Value) -> list[Value]:
    low = b.trunc(number, _WORD)
    high = b.trunc(b.lshr(number, ir.Constant(_LONG, 32)), _WORD)
    return philox(b, (low, high, key[2], key[3]), key[:2])
