"""Kernel language: the names that kernel source may use.

Formulas of ops are expressions over these names; so is the source of a kernel.
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
from staticgrad.compiler.codegen.llvm.conversions import NUMBERS, constructor, convert
from staticgrad.compiler.codegen.llvm.float_bits import BITS
from staticgrad.compiler.codegen.llvm.half_precision import rounding
from staticgrad.compiler.codegen.llvm.integer_division import DIVISION
from staticgrad.compiler.codegen.llvm.intrinsics import lowers, taking
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
from staticgrad.compiler.codegen.math.function_table import ELEMENTARY
from staticgrad.compiler.codegen.math.vector_trigonometry import distance_bits
from staticgrad.compiler.codegen.random import draws_ir, gamma_ir, philox_ir, poisson_ir
from staticgrad.compiler.codegen.scalar_functions import (
    OWN,
    Bound,
    ScalarFunction,
    at_most_one,
    kept,
    table,
    unbounded,
)
from staticgrad.compiler.codegen.status import check_index
from staticgrad.compiler.codegen.tiles.tile_calls import SCHEMES, emitted
from staticgrad.ir.types import HALF, SUPPORTED, DType, computed, is_float


def numba_type(dtype: DType) -> Any:
    """Return Numba's type of the values of a NumPy dtype in registers."""
    return getattr(types, type_name(dtype))


@cache
def type_name(dtype: DType) -> str:
    """Return the type of a dtype's values in kernels, which is their constructor.

    >>> type_name(np.dtype("int8")), type_name(np.dtype("float16"))
    ('int8', 'float32')
    """
    return stored_name(computed(dtype))


@cache
def stored_name(dtype: DType) -> str:
    """Return the type of a dtype's elements in memory, which also rounds to them."""
    return "boolean" if dtype == np.bool_ else str(dtype.name)


@lowers(lambda far, x: far(far, x))
def farther(b: Any, far: Any, x: Any) -> Value:
    """``farther(far, x)``: the larger of `far` and the bits of |x|, an integer."""
    bits = distance_bits(IREmitter(b, x.type), x)
    return b.select(b.icmp_signed(">", bits, far), bits, far)


def _key(b: Any, args: Any, kinds: Any) -> list[Value]:
    return [
        convert(b, value, types.unliteral(kind), types.uint32)
        for value, kind in zip(args, kinds, strict=True)
    ]


def _of_key(result: Any, emit: Callable[..., Value], *more: Any) -> Any:
    """An intrinsic of four key words and arguments of the types `more`."""

    def definition(_typing: Any, *kinds: Any) -> Any:
        def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
            return emit(b, _key(b, args[:4], kinds[:4]), *args[4:])

        return result(*kinds[:4], *more), generate

    return taking(4 + len(more), definition)


def _draw(draw: draws_ir.Draw) -> Any:
    """One element of a draw, by its index."""

    def emit(b: Any, key: Any, index: Value) -> Value:
        return draws_ir.element(b, draw, key, index)

    return _of_key(numba_type(draw.dtype), emit, types.int64)


def _fill(name: str) -> Any:
    """Return an intrinsic of an area, four key words, a first index and a count."""

    def definition(_typing: Any, area: Any, *kinds: Any) -> Any:
        def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
            key = _key(b, args[1:5], kinds[:4])
            return draws_ir.fill(b, name, args[0], (*key, *args[5:]))

        return types.int64(area, *kinds[:4], types.int64, types.int64), generate

    return taking(7, definition)


@intrinsic
def philox_word(
    typing: Any, k0: Any, k1: Any, k2: Any, k3: Any, counter: Any, number: Any
) -> Any:
    """Emit ``philox_word(k0, k1, k2, k3, c0, j)``: word j of block (c0, 0, k2, k3)."""
    kinds = (k0, k1, k2, k3, counter, number)

    def generate(_context: Any, b: Any, _signature: Any, args: Any) -> Value:
        words = _key(b, args, kinds)
        return philox_ir.word(b, words[:4], words[4], words[5])

    return types.uint32(*kinds), generate


def _by_rejection(draw: Callable[..., Value]) -> Any:
    """``name(k0, k1, k2, k3, i, a)``: element i of a draw with parameter a."""
    return _of_key(types.float64, draw, types.int64, types.float64)


@lowers(types.uint64(types.uint64, types.uint64))
def high_product(b: Any, x: Any, y: Any) -> Any:
    """``high_product(x, y)``: the upper half of a product of two uint64."""
    return draws_ir.high_product(b, x, y)


@lowers(types.int64(types.int64, types.int64))
def inside(b: Any, x: Any, extent: Any) -> Any:
    """``inside(x, n)``: x, or n - 1 where x is not in 0..n-1."""
    last = b.sub(extent, extent.type(1))
    return b.select(b.icmp_unsigned("<", x, extent), x, last)


def _function(
    name: str, make: Callable[[], Any], operations: int = 1, bound: Bound = unbounded
) -> ScalarFunction:
    return ScalarFunction(name, make, OWN, operations, bound)


def _constructor(dtype: DType) -> ScalarFunction:
    name, bound = stored_name(dtype), kept if is_float(dtype) else unbounded
    if dtype in HALF:
        return _function(name, partial(rounding, name), bound=bound)
    return _function(name, lambda: constructor(numba_type(dtype)), bound=bound)


def _drawn(name: str, draw: draws_ir.Draw) -> ScalarFunction:
    bound = at_most_one if name.startswith("uniform") else unbounded
    return _function(name, partial(_draw, draw), IN_BLOCKS, bound)


IN_BLOCKS = 0  # operations of a draw, which is made ahead of a loop

SCALAR_FUNCTIONS = ELEMENTARY | NUMBERS | BITS | DIVISION | table(
    *map(_constructor, SUPPORTED),
    *(_drawn(name, draw) for name, draw in draws_ir.DRAWS.items()),
    _function("gamma", partial(_by_rejection, gamma_ir.gamma)),
    _function("poisson", partial(_by_rejection, poisson_ir.poisson)),
    _function("philox_word", lambda: philox_word, 80),
    _function("high_product", lambda: high_product),
    _function("inside", lambda: inside),
    _function("order_bits", lambda: order_bits),
    _function("order_float", lambda: order_float),
)  # fmt: skip
"""What formulas of ops, and expressions of kernels, may call."""


class _Names(Mapping[str, Any]):
    """Lazy table of the language: a name's function is made when it is used."""

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
    """Return every name of the kernel language."""
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
        "running_sum": running_sum,
        "place_of_extreme": place_of_extreme,
        "emitted": emitted,
    }
    makers = {name: function.make for name, function in SCALAR_FUNCTIONS.items()}
    makers |= {f"fill_{name}": partial(_fill, name) for name in draws_ir.DRAWS}
    return _Names(made | SCHEMES, makers)
