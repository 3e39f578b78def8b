"""Draws: conversion of random words, one by one or in vectors.

Element i of a draw is a function of the key and of i alone (philox_ir.py has the
words):

* word32, uniform32: word i; its top 24 bits over 2^24.
* word64, uniform64: words 2i and 2i + 1, the first one low; the top 27 bits of the
  first and the top 26 of the second over 2^53.
* normal32: elements 2j and 2j + 1 come from words 2j and 2j + 1 by Box and Muller:
  radius sqrt(-2 log u), u from the first, times cosine and sine of an angle, the second
  as a fraction of a turn. normal64 takes two words where normal32 takes one.

``fill_NAME(area, k0, k1, k2, k3, first, count)`` writes whole blocks of words, eight of
them in the lanes of vectors at a time, so a word costs a quarter of a block;
loop_source.py uses it where a loop walks along a draw. Both forms are the same
operations, hence the same bits. u of normal32 keeps all 32 bits, so its tails reach
6.66 deviations (8.57 for normal64).

Source: G. E. P. Box, M. E. Muller, "A note on the generation of random normal
deviates", Annals of Mathematical Statistics 29, 1958.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value, declared
from staticgrad.compiler.codegen.math.vector_logarithm import log_inside
from staticgrad.compiler.codegen.math.vector_trigonometry import sine_and_cosine
from staticgrad.compiler.codegen.random.philox_ir import LANES, block, chosen, lanes
from staticgrad.ir.types import DType

_LONG = ir.IntType(64)


@dataclass(frozen=True, slots=True)
class Draw:
    """Construction of elements from random words.

    ``emit(b, x)`` makes an element of one word, or of two as one 64-bit number; with
    `pairs`, ``emit(b, x, y)`` makes two elements of two of them. Values may be vectors.
    """

    dtype: DType
    pairs: bool
    emit: Callable[..., Any]

    @property
    def bits(self) -> int:
        """Bits of words per element."""
        return 8 * self.dtype.itemsize

    @property
    def per_block(self) -> int:
        """Elements per block of four words."""
        return 128 // self.bits


def _like(x: Value, element: Any) -> Any:
    vector = isinstance(x.type, ir.VectorType)
    return ir.VectorType(element, x.type.count) if vector else element


def _whole(x: Value, value: int) -> Value:
    """Return `value` as a constant of the type of x."""
    vector = isinstance(x.type, ir.VectorType)
    return ir.Constant(x.type, [value] * x.type.count if vector else value)


def _uniform32(b: Any, x: Value) -> Value:
    m = IREmitter(b, _like(x, ir.FloatType()))
    return m.mul(b.sitofp(b.lshr(x, _whole(x, 8)), m.type), 2.0**-24)


def uniform64(b: Any, x: Value) -> Value:
    """Convert 53 bits of two joined words to numbers in [0, 1)."""
    m = IREmitter(b, _like(x, ir.DoubleType()))
    first = b.lshr(b.and_(x, _whole(x, 0xFFFFFFFF)), _whole(x, 5))
    high, low = _as_double(m, first), _as_double(m, b.lshr(x, _whole(x, 38)))
    return m.mul(m.add(m.mul(high, 2.0**26), low), 2.0**-53)


def _as_double(m: IREmitter, x: Value) -> Value:
    """Convert a whole number below 2^52; AVX2 converts no 64-bit integers."""
    exponent = (m.bias + m.mantissa) << m.mantissa
    return m.sub(m.from_bits(m.ior(x, exponent)), 2.0**m.mantissa)


def _normal32(b: Any, x: Value, y: Value) -> tuple[Value, Value]:
    m = IREmitter(b, _like(x, ir.FloatType()))
    u = m.mul(m.add(b.uitofp(x, m.type), 0.5), 2.0**-32)
    return _box_muller(m, u, y)


def _normal64(b: Any, x: Value, y: Value) -> tuple[Value, Value]:
    m = IREmitter(b, _like(x, ir.DoubleType()))
    return _box_muller(m, m.sub(1.0, uniform64(b, x)), y)


def _box_muller(m: IREmitter, u: Value, turn: Value) -> tuple[Value, Value]:
    """Return two normal numbers from u in (0, 1] and an angle, an integer / 2^width.

    The quarter turn that is nearest is taken off while the angle is an integer, so
    sine and cosine are right near their zeros too.
    """
    radius = m.sqrt(m.mul(log_inside(m, u), -2.0))
    r, quadrant = _turned(m, turn, m.width)
    sine, cosine = sine_and_cosine(m, r, quadrant)
    return m.mul(radius, cosine), m.mul(radius, sine)


def _turned(m: IREmitter, turn: Value, width: int) -> tuple[Value, Value]:
    """Return (r, q): the angle of a `width`-bit integer is r + q pi/2, |r| <= pi/4."""
    b, quarter = m.b, _whole(turn, width - 2)
    quadrant = b.lshr(b.add(turn, _whole(turn, 1 << (width - 3))), quarter)
    rest = b.sub(turn, b.shl(quadrant, quarter))
    r = m.mul(b.sitofp(rest, m.type), 2 * math.pi * 2.0**-width)
    return r, quadrant


def normal_of(m: IREmitter, u: Value, word: Value) -> Value:
    """Return a float64 normal number from u in (0, 1] and a word, by the cosine."""
    r, quadrant = _turned(m, word, 32)
    _, cosine = sine_and_cosine(m, r, m.b.zext(quadrant, _LONG))
    return m.mul(m.sqrt(m.mul(log_inside(m, u), -2.0)), cosine)


def _itself(_b: Any, x: Value) -> Value:
    return x


DRAWS: dict[str, Draw] = {
    "word32": Draw(np.dtype("uint32"), False, _itself),
    "word64": Draw(np.dtype("uint64"), False, _itself),
    "uniform32": Draw(np.dtype("float32"), False, _uniform32),
    "uniform64": Draw(np.dtype("float64"), False, uniform64),
    "normal32": Draw(np.dtype("float32"), True, _normal32),
    "normal64": Draw(np.dtype("float64"), True, _normal64),
}


def high_product(b: Any, x: Value, y: Value) -> Value:
    """Return the upper 64 bits of x * y, from products of halves, which vectorise."""
    low, shift = ir.Constant(_LONG, 0xFFFFFFFF), ir.Constant(_LONG, 32)
    x0, x1 = b.and_(x, low), b.lshr(x, shift)
    y0, y1 = b.and_(y, low), b.lshr(y, shift)
    middle = b.add(b.mul(x1, y0), b.lshr(b.mul(x0, y0), shift))
    other = b.add(b.mul(x0, y1), b.and_(middle, low))
    upper = b.add(b.lshr(middle, shift), b.lshr(other, shift))
    return b.add(b.mul(x1, y1), upper)


def element(b: Any, draw: Draw, key: Sequence[Value], index: Value) -> Value:
    """Return element `index` of a draw, from a block of its own."""
    shift = draw.per_block.bit_length() - 1
    words = block(b, key, b.lshr(index, _whole(index, shift)))
    stream = (
        words if draw.bits == 32 else [joined(b, *words[:2]), joined(b, *words[2:])]
    )
    if not draw.pairs:
        place = b.and_(index, _whole(index, draw.per_block - 1))
        value: Value = draw.emit(b, chosen(b, stream, place))
        return value
    half = b.and_(b.lshr(index, _whole(index, 1)), _whole(index, 1))
    several = draw.per_block > 2
    x = chosen(b, stream[0::2], half) if several else stream[0]
    y = chosen(b, stream[1::2], half) if several else stream[1]
    first, second = draw.emit(b, x, y)
    odd = b.icmp_unsigned("!=", b.and_(index, _whole(index, 1)), _whole(index, 0))
    return b.select(odd, second, first)


def joined(b: Any, low: Value, high: Value) -> Value:
    """Join two words into a 64-bit number."""
    wide = _like(low, _LONG)
    upper = b.shl(b.zext(high, wide), ir.Constant(_LONG, 32))
    return b.or_(b.zext(low, wide), upper)


def fill(b: Any, name: str, address: Value, args: Sequence[Value]) -> Value:
    """Emit the call that writes a draw; return its offset in its first block.

    `args` are the four words of the key, the first index and the count. What is written
    begins with the whole block of the first index and ends with whole vectors: up to
    `OVERHANG` bytes more than the elements asked for.
    """
    kinds = [_LONG, *(value.type for value in args)]
    kind = ir.FunctionType(_LONG, kinds)
    function = declared(b.module, f"staticgrad_fill_{name}", kind)
    if not function.blocks:
        function.linkage = "internal"
        _define_fill(function, DRAWS[name])
    return b.call(function, [address, *args])


OVERHANG = 16 * LANES + 16
"""Bytes: a last vector of blocks of which one element is needed, and a first block."""


def _define_fill(function: Any, draw: Draw) -> None:
    b = ir.IRBuilder(function.append_basic_block())
    address, *key, first, count = function.args
    shift = ir.Constant(_LONG, draw.per_block.bit_length() - 1)
    start = b.lshr(first, shift)
    last = b.add(b.add(first, count), ir.Constant(_LONG, draw.per_block - 1))
    blocks = b.sub(b.lshr(last, shift), start)
    vectors = b.lshr(b.add(blocks, ir.Constant(_LONG, LANES - 1)), _log2(LANES))
    with cgutils.for_range(b, vectors) as loop:
        number = b.shl(loop.index, _log2(LANES))
        stream = _stream(b, draw, key, b.add(start, number))
        whole = stream if draw.pairs else draw.emit(b, stream)
        b.store(whole, _target(b, address, number, whole.type), draw.dtype.itemsize)
    if draw.pairs:
        _transform(b, draw, address, vectors)
    b.ret(b.and_(first, ir.Constant(_LONG, draw.per_block - 1)))


def _transform(b: Any, draw: Draw, address: Value, vectors: Value) -> None:
    """Transform words to pairs of elements, in place.

    A loop of its own, because too few iterations of a longer one are in flight: in one
    loop a normal number took three times as long as a uniform one, not twice.
    """
    words = ir.VectorType(ir.IntType(draw.bits), LANES * draw.per_block)
    with cgutils.for_range(b, vectors) as loop:
        number = b.shl(loop.index, _log2(LANES))
        source = _target(b, address, number, words)
        stream = b.load(source, align=draw.dtype.itemsize)
        count = words.count
        even, odd = (_shuffled(b, stream, stream, range(k, count, 2)) for k in (0, 1))
        values = _interleaved(b, *draw.emit(b, even, odd))
        target = _target(b, address, number, values.type)
        b.store(values, target, draw.dtype.itemsize)


def _target(b: Any, address: Value, number: Value, kind: Any) -> Value:
    """Return the pointer to block `number` of the area; blocks have 16 bytes."""
    place = b.add(address, b.shl(number, ir.Constant(_LONG, 4)))
    return b.inttoptr(place, kind.as_pointer())


def _log2(value: int) -> Value:
    return ir.Constant(_LONG, value.bit_length() - 1)


def _stream(b: Any, draw: Draw, key: Sequence[Value], number: Value) -> Value:
    """Emit the words of LANES blocks, from block `number` on, as wide as elements."""
    stream = _interleaved(b, *lanes(b, key, number))
    if draw.bits == 64:
        return stream
    return b.bitcast(stream, ir.VectorType(ir.IntType(32), 4 * LANES))


def _interleaved(b: Any, x: Value, y: Value) -> Value:
    count = x.type.count
    order = [place + k * count for place in range(count) for k in (0, 1)]
    return _shuffled(b, x, y, order)


def _shuffled(b: Any, x: Value, y: Value, order: Sequence[int]) -> Value:
    mask = ir.VectorType(ir.IntType(32), len(order))
    return b.shuffle_vector(x, y, ir.Constant(mask, list(order)))
