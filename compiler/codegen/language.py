"""The names that kernel source may use, all in one table.

Templates of ops are expressions over these names; so is the source of a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from staticgrad.compiler.codegen.foreign_calls import address_of, filled, seen
from staticgrad.compiler.codegen.llvm.conversions import (
    NUMBERS,
    constructor,
    convert,
    elementary,
)
from staticgrad.compiler.codegen.llvm.float_bits import BITS
from staticgrad.compiler.codegen.llvm.half_precision import rounding
from staticgrad.compiler.codegen.llvm.integer_division import DIVISION
from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value
from staticgrad.compiler.codegen.llvm.kernel_pointers import (
    load,
    operand,
    scratch,
    shifted,
    store,
    unless_stopped,
    word,
)
from staticgrad.compiler.codegen.loops.extremes import place_of_extreme
from staticgrad.compiler.codegen.loops.ranks import (
    from_rank,
    order_bits,
    order_float,
    rank_high,
    rank_low,
)
from staticgrad.compiler.codegen.loops.running_sums import running_sum
from staticgrad.compiler.codegen.math.function_table import functions
from staticgrad.compiler.codegen.math.vector_trigonometry import distance_bits
from staticgrad.compiler.codegen.random import draws_ir, gamma_ir, philox_ir, poisson_ir
from staticgrad.compiler.codegen.status import check_index
from staticgrad.compiler.codegen.tiles.tile_calls import SCHEMES, emitted
from staticgrad.ir.types import HALF, SUPPORTED, DType, computed

_BINARY = frozenset(("power", "atan2", "hypot", "zeta", "gamma_slope"))


def numba_type(dtype: DType) -> Any:
    """Numba's type of the values of a NumPy dtype in registers."""
    return getattr(types, type_name(dtype))


@cache
def type_name(dtype: DType) -> str:
    """What values of a dtype are in kernels, which is their constructor too.

    >>> type_name(np.dtype("int8")), type_name(np.dtype("float16"))
    ('int8', 'float32')
    """
    return stored_name(computed(dtype))


@cache
def stored_name(dtype: DType) -> str:
    """What elements of a dtype are in memory; also what rounds to one of them."""
    return "boolean" if dtype == np.bool_ else str(dtype.name)


@intrinsic
def farther(typing: Any, far: Any, x: Any) -> Any:
    """``farther(far, x)``: the larger of `far` and the bits of |x|, an integer."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
        bits = distance_bits(IREmitter(b, args[1].type), args[1])
        return b.select(b.icmp_signed(">", bits, args[0]), bits, args[0])

    kind = types.int32 if x == types.float32 else types.int64
    return kind(kind, x), generate


def _key(b: Any, args: Any, kinds: Any) -> list[Value]:
    return [
        convert(b, value, types.unliteral(kind), types.uint32)
        for value, kind in zip(args, kinds, strict=True)
    ]


def _draw(draw: draws_ir.Draw) -> Any:
    """An intrinsic of four key words and an int64 index: one element of a draw."""
    result = numba_type(draw.dtype)

    @intrinsic
    def drawn(typing: Any, k0: Any, k1: Any, k2: Any, k3: Any, index: Any) -> Any:
        kinds = (k0, k1, k2, k3)

        def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
            return draws_ir.element(b, draw, _key(b, args[:4], kinds), args[4])

        return result(*kinds, types.int64), generate

    return drawn


def _fill(name: str) -> Any:
    """An intrinsic of an area, four key words, a first index and a count."""

    @intrinsic
    def filled(
        typing: Any,
        area: Any,
        k0: Any,
        k1: Any,
        k2: Any,
        k3: Any,
        first: Any,
        count: Any,
    ) -> Any:
        kinds = (k0, k1, k2, k3)

        def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
            key = _key(b, args[1:5], kinds)
            return draws_ir.fill(b, name, args[0], (*key, *args[5:]))

        return types.int64(area, *kinds, types.int64, types.int64), generate

    return filled


@intrinsic
def philox_word(
    typing: Any, k0: Any, k1: Any, k2: Any, k3: Any, counter: Any, number: Any
) -> Any:
    """``philox_word(k0, k1, k2, k3, c0, j)``: word j of block (c0, 0, k2, k3)."""
    kinds = (k0, k1, k2, k3, counter, number)

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
        words = _key(b, args, kinds)
        return philox_ir.word(b, words[:4], words[4], words[5])

    return types.uint32(*kinds), generate


def _by_rejection(draw: Callable[..., Value]) -> Any:
    """``name(k0, k1, k2, k3, i, a)``: element i of a draw with parameter a."""

    @intrinsic
    def element(
        typing: Any, k0: Any, k1: Any, k2: Any, k3: Any, index: Any, a: Any
    ) -> Any:
        kinds = (k0, k1, k2, k3)

        def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
            return draw(b, _key(b, args[:4], kinds), *args[4:])

        return types.float64(*kinds, types.int64, types.float64), generate

    return element


@intrinsic
def high_product(typing: Any, x: Any, y: Any) -> Any:
    """``high_product(x, y)``: the upper half of a product of two uint64."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
        return draws_ir.high_product(b, *args)

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def inside(typing: Any, x: Any, extent: Any) -> Any:
    """``inside(x, n)``: x, or n - 1 where x is not in 0..n-1."""

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
        last = b.sub(args[1], args[1].type(1))
        return b.select(b.icmp_unsigned("<", args[0], args[1]), args[0], last)

    return types.int64(types.int64, types.int64), generate


class _Names(Mapping[str, Any]):
    """The language as a table; what is made for a name is made when it is used."""

    def __init__(
        self, made: dict[str, Any], makers: Mapping[str, Callable[[], Any]]
    ) -> None:
        self._made = made
        self._makers = makers

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made.keys() | self._makers)

    def __len__(self) -> int:
        return len(self._made.keys() | self._makers)


@cache
def namespace() -> Mapping[str, Any]:
    """Every name of the kernel language."""
    made = {
        "nan": math.nan,
        "inf": math.inf,
        "address_of": address_of,
        "filled": filled,
        "load": load,
        "operand": operand,
        "scratch": scratch,
        "seen": seen,
        "shifted": shifted,
        "store": store,
        "unless_stopped": unless_stopped,
        "word": word,
        "check_index": check_index,
        "farther": farther,
        "rank_high": rank_high,
        "rank_low": rank_low,
        "from_rank": from_rank,
        "order_bits": order_bits,
        "order_float": order_float,
        "running_sum": running_sum,
        "place_of_extreme": place_of_extreme,
        "philox_word": philox_word,
        "high_product": high_product,
        "inside": inside,
        "emitted": emitted,
    }
    tables = NUMBERS | BITS | DIVISION | SCHEMES
    return _Names(made | tables, {**_constructors(), **_elementary(), **_draws()})


def _constructors() -> dict[str, Callable[[], Any]]:
    full = {type_name(d): partial(_constructor, d) for d in SUPPORTED - HALF}
    return full | {stored_name(d): partial(rounding, stored_name(d)) for d in HALF}


def _constructor(dtype: DType) -> Any:
    return constructor(numba_type(dtype))


def _elementary() -> dict[str, Callable[[], Any]]:
    return {
        name: partial(elementary, emit, 2 if name in _BINARY else 1)
        for name, emit in functions().items()
    }


def _draws() -> dict[str, Callable[[], Any]]:
    made = draws_ir.DRAWS.items()
    found: dict[str, Callable[[], Any]] = {n: partial(_draw, draw) for n, draw in made}
    found |= {f"fill_{name}": partial(_fill, name) for name in draws_ir.DRAWS}
    found["gamma"] = partial(_by_rejection, gamma_ir.gamma)
    found["poisson"] = partial(_by_rejection, poisson_ir.poisson)
    return found
