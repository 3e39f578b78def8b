"""Gamma draws by rejection, and their derivative: scalar loops in float64.

gamma_draw.py has the method, its words and the sources, in NumPy; this
is the same, operation by operation. Both are functions of their own in a kernel, since
a loop of unknown length keeps a loop around it from vectorising anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value, declared
from staticgrad.compiler.codegen.math.vector_exponential import exp
from staticgrad.compiler.codegen.math.vector_gamma import digamma, in_float64
from staticgrad.compiler.codegen.math.vector_logarithm import log
from staticgrad.compiler.codegen.math.vector_roots import cbrt
from staticgrad.compiler.codegen.random.draws_ir import normal_of
from staticgrad.compiler.codegen.random.philox_ir import block

TRIES_BITS = 4  # sixteen tries an element
LARGE = 1e4
MOST = 20000.0

_LONG, _DOUBLE = ir.IntType(64), ir.DoubleType()


def gamma(b: Any, key: Sequence[Value], index: Value, a: Value) -> Value:
    """Emit element `index` of a draw with the float64 shape parameter a."""
    return called(b, "staticgrad_gamma", _define_gamma, [*key, index, a])


def gamma_slope(m: IREmitter, a: Value, x: Value) -> Value:
    """Emit dx/da at a constant distribution function."""
    return in_float64(_slope, m, a, x)


def _slope(m: IREmitter, a: Value, x: Value) -> Value:
    return called(m.b, "staticgrad_gamma_slope", _define_slope, [a, x])


def called(
    b: Any, name: str, define: Callable[[Any], None], args: Sequence[Value]
) -> Value:
    """Call the float64 function that `define` emits once per module."""
    kind = ir.FunctionType(_DOUBLE, [value.type for value in args])
    function = declared(b.module, name, kind)
    if not function.blocks:
        function.linkage = "internal"
        function.attributes.add("noinline")
        define(function)
    return b.call(function, args)


def _define_gamma(function: Any) -> None:
    *key, index, a = function.args
    entry, tries, done = (function.append_basic_block(n) for n in ("", "try", "done"))
    b: Any = ir.IRBuilder(entry)
    m = IREmitter(b, _DOUBLE)
    small = m.lt(a, 1.0)
    d = m.sub(m.select(small, m.add(a, 1.0), a), 1 / 3)
    c = m.div(1.0, m.sqrt(m.mul(d, 9.0)))
    first = b.shl(index, ir.Constant(_LONG, TRIES_BITS))
    b.branch(tries)
    b.position_at_end(tries)
    turn = b.phi(_LONG)
    words = block(b, key, b.add(first, turn))
    x = normal_of(m, _unit(m, words[0]), words[1])
    y = m.add(m.mul(c, x), 1.0)
    v = m.mul(m.mul(y, y), y)
    rest = m.add(m.sub(1.0, v), log(m, v))
    bound = m.add(m.mul(m.mul(x, 0.5), x), m.mul(d, rest))
    fits = b.and_(m.gt(v, 0.0), m.lt(log(m, _unit(m, words[2])), bound))
    last = b.icmp_signed("==", turn, ir.Constant(_LONG, (1 << TRIES_BITS) - 1))
    turn.add_incoming(ir.Constant(_LONG, 0), entry)
    turn.add_incoming(b.add(turn, ir.Constant(_LONG, 1)), tries)
    b.cbranch(b.or_(fits, last), done, tries)
    b.position_at_end(done)
    boost = exp(m, m.div(log(m, _unit(m, words[3])), a))
    scaled = m.mul(m.mul(d, v), m.select(small, boost, 1.0))
    b.ret(m.select(m.compare(">=", a, 0.0), scaled, math.nan))


def _unit(m: IREmitter, word: Value) -> Value:
    """Convert a word to a number inside (0, 1)."""
    return m.mul(m.add(m.b.uitofp(word, m.type), 0.5), 2.0**-32)


def _define_slope(function: Any) -> None:
    a, x = function.args
    names = ("", "far", "start", "term", "end")
    entry, far, start, term, end = map(function.append_basic_block, names)
    b: Any = ir.IRBuilder(entry)
    m = IREmitter(b, _DOUBLE)
    inside = b.and_(m.gt(a, 0.0), b.and_(m.gt(x, 0.0), m.lt(x, math.inf)))
    b.cbranch(b.and_(inside, m.lt(a, LARGE)), start, far)
    b.position_at_end(far)
    cube = _of_cube(m, a, x)
    b.ret(m.select(inside, cube, m.mul(x, 0.0)))
    b.position_at_end(start)
    power, factor = m.div(1.0, a), m.sub(log(m, x), digamma(m, m.add(a, 1.0)))
    firsts = (power, factor, m.mul(power, factor), m.number(0.0))
    b.branch(term)
    b.position_at_end(term)
    phis = [b.phi(_DOUBLE) for _ in firsts]
    power, factor, total, steps = phis
    steps = m.add(steps, 1.0)
    step = m.add(a, steps)
    power = m.div(m.mul(power, x), step)
    factor = m.sub(factor, m.div(1.0, step))
    added = m.mul(power, factor)
    total = m.add(total, added)
    for phi, first, again in zip(
        phis, firsts, (power, factor, total, steps), strict=True
    ):
        phi.add_incoming(first, start)
        phi.add_incoming(again, term)
    small = m.compare("<=", m.abs(added), m.mul(m.abs(total), 1e-17))
    over = b.and_(small, m.gt(steps, m.sub(x, a)))
    b.cbranch(b.or_(over, m.compare(">=", steps, MOST)), end, term)
    b.position_at_end(end)
    b.ret(m.neg(m.mul(x, total)))


def _of_cube(m: IREmitter, a: Value, x: Value) -> Value:
    y = cbrt(m, m.div(x, m.sub(a, 1 / 3)))
    return m.mul(m.mul(m.mul(y, y), m.sub(3.0, y)), 0.5)
