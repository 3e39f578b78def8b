"""Philox4x32-10: random words as a pure function of key and counter.

The rounds are in philox_rounds.py. A key of staticgrad is four words (k0, k1, k2,
k3): Philox's key (k0, k1) and the upper half of its counter. Word i of a key is word
i % 4 of the block with counter i // 4 (draws_ir.py says what is made of them).

Many blocks at once lie in 64-bit lanes: a round then is two products of the lower
halves (vpmuludq), two shifts and two exclusive ors of three. What the upper halves hold
besides is dropped by the next product.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from llvmlite import ir

from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.ir.philox_rounds import philox_rounds

LANES = 8
"""Blocks at a time: one vector of AVX-512, two of AVX2."""

_WORD, _LONG = ir.IntType(32), ir.IntType(64)
_WIDE = ir.VectorType(_LONG, LANES)
_LOW = 0xFFFFFFFF


def _word(value: int) -> Value:
    return ir.Constant(_WORD, value - (1 << 32) if value >> 31 else value)


def philox(b: Any, counter: Sequence[Value], key: Sequence[Value]) -> Sequence[Value]:
    """The four words of one block."""

    def multiply(x: Value, constant: int) -> tuple[Value, Value]:
        product = b.mul(b.zext(x, _LONG), ir.Constant(_LONG, constant))
        high = b.trunc(b.lshr(product, ir.Constant(_LONG, 32)), _WORD)
        return high, b.trunc(product, _WORD)

    def mix(x: Value, y: Value, k: Value) -> Value:
        return b.xor(b.xor(x, y), k)

    return philox_rounds(counter, key, multiply, mix, partial(_add, b))


def _add(b: Any, x: Value, constant: int) -> Value:
    return b.add(x, _word(constant))


def block(b: Any, key: Sequence[Value], number: Value) -> Sequence[Value]:
    """The four words of block `number`, an int64, of a key."""
    low = b.trunc(number, _WORD)
    high = b.trunc(b.lshr(number, ir.Constant(_LONG, 32)), _WORD)
    return philox(b, (low, high, key[2], key[3]), key[:2])


def word(b: Any, key: Sequence[Value], counter: Value, number: Value) -> Value:
    """Emit word `number` of the block with counter (counter, 0, k2, k3)."""
    words = philox(b, (counter, _word(0), key[2], key[3]), key[:2])
    return chosen(b, words, number)


def chosen(b: Any, words: Sequence[Value], number: Value) -> Value:
    """Emit words[number], without a branch."""
    result = words[0]
    for position, value in enumerate(words[1:], 1):
        here = b.icmp_unsigned("==", number, ir.Constant(number.type, position))
        result = b.select(here, value, result)
    return result


def lanes(b: Any, key: Sequence[Value], number: Value) -> tuple[Value, Value]:
    """Emit blocks `number`, ...: words (0, 1) and words (2, 3) of each lane."""
    counts = ir.Constant(_WIDE, list(range(LANES)))
    blocks = b.add(_spread(b, number), counts)
    upper = [_spread(b, b.zext(part, _LONG)) for part in key[2:]]

    def multiply(x: Value, constant: int) -> tuple[Value, Value]:
        product = b.mul(b.and_(x, _splat(_LOW)), _splat(constant))
        return b.lshr(product, _splat(32)), product

    def mix(x: Value, y: Value, k: Value) -> Value:
        return b.xor(b.xor(x, y), _spread(b, b.zext(k, _LONG)))

    counter = (blocks, b.lshr(blocks, _splat(32)), *upper)
    c = philox_rounds(counter, key[:2], multiply, mix, partial(_add, b))
    return _paired(b, c[0], c[1]), _paired(b, c[2], c[3])


def _paired(b: Any, low: Value, high: Value) -> Value:
    """Return the lower halves of both; a shift would fuse with the product before."""
    halves = ir.VectorType(_WORD, 2 * LANES)
    order = [2 * lane + k for lane in range(LANES) for k in (0, 2 * LANES)]
    mask = ir.Constant(halves, order)
    words = b.shuffle_vector(b.bitcast(low, halves), b.bitcast(high, halves), mask)
    return b.bitcast(words, _WIDE)


def _splat(value: int) -> Value:
    return ir.Constant(_WIDE, [value] * LANES)


def _spread(b: Any, x: Value) -> Value:
    """Broadcast the scalar x to every lane."""
    one = b.insert_element(ir.Constant(_WIDE, ir.Undefined), x, ir.Constant(_WORD, 0))
    zeros = ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES)
    return b.shuffle_vector(one, ir.Constant(_WIDE, ir.Undefined), zeros)
