"""Poisson draws by inversion and by rejection: scalar loops in float64.

poisson_draw.py has the method, its words and the sources, in NumPy; this
is the same, operation by operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from staticgrad.compiler.codegen.llvm.ir_emitter import IREmitter, Value
from staticgrad.compiler.codegen.math.vector_exponential import exp
from staticgrad.compiler.codegen.math.vector_logarithm import log
from staticgrad.compiler.codegen.random.draws_ir import joined, uniform64
from staticgrad.compiler.codegen.random.gamma_ir import called
from staticgrad.compiler.codegen.random.philox_ir import block

TRIES_BITS = 5  # 32 tries an element
LARGE = 10.0
MOST = 2.0**62
LEAST_TERM = 1e-17

_LONG, _DOUBLE = ir.IntType(64), ir.DoubleType()


def poisson(b: Any, key: Sequence[Value], index: Value, lam: Value) -> Value:
    """Emit element `index` of a draw with the float64 mean lam."""
    return called(b, "staticgrad_poisson", _define, [*key, index, lam])


def _define(function: Any) -> None:
    *key, index, lam = function.args
    names = ("", "known", "small", "large", "wrong")
    entry, known, small, large, wrong = map(function.append_basic_block, names)
    b: Any = ir.IRBuilder(entry)
    m = IREmitter(b, _DOUBLE)
    first = b.shl(index, ir.Constant(_LONG, TRIES_BITS))
    inside = b.and_(m.compare(">=", lam, 0.0), m.compare("<=", lam, MOST))
    b.cbranch(inside, known, wrong)
    b.position_at_end(wrong)
    b.ret(m.number(-1.0))
    b.position_at_end(known)
    b.cbranch(m.lt(lam, LARGE), small, large)
    b.position_at_end(small)
    u, _ = _fractions(m, key, first)
    _invert(function, m, u, lam)
    b.position_at_end(large)
    _reject(function, m, key, first, lam)


def _fractions(m: IREmitter, key: Sequence[Value], number: Value) -> list[Value]:
    """Emit two numbers of 53 bits in [0, 1) from a block."""
    words = block(m.b, key, number)
    return [uniform64(m.b, joined(m.b, *pair)) for pair in (words[:2], words[2:])]


def _invert(function: Any, m: IREmitter, u: Value, lam: Value) -> None:
    """Emit the first k at which the distribution function exceeds u."""
    b, entry = m.b, m.b.block
    names = ("look", "step", "found")
    look, step, found = map(function.append_basic_block, names)
    start = exp(m, m.neg(lam))
    b.branch(look)
    b.position_at_end(look)
    term, total, k = (b.phi(_DOUBLE) for _ in range(3))
    above = m.compare(">=", u, total)
    b.cbranch(b.and_(above, m.gt(term, LEAST_TERM)), step, found)
    b.position_at_end(step)
    following = m.add(k, 1.0)
    smaller = m.div(m.mul(term, lam), following)
    more = (smaller, m.add(total, smaller), following)
    firsts = (start, start, m.number(0.0))
    for phi, one, other in zip((term, total, k), firsts, more, strict=True):
        phi.add_incoming(one, entry)
        phi.add_incoming(other, step)
    b.branch(look)
    b.position_at_end(found)
    b.ret(k)


def _reject(
    function: Any, m: IREmitter, key: Sequence[Value], first: Value, lam: Value
) -> None:
    """Emit the first number that is accepted."""
    b, entry = m.b, m.b.block
    names = ("try", "look", "decide", "again", "done")
    tries, look, decide, again, done = map(function.append_basic_block, names)
    width = m.add(m.mul(m.sqrt(lam), 2.53), 0.931)
    a = m.add(m.mul(width, 0.02483), -0.059)
    bound = m.sub(0.9277, m.div(3.6224, m.sub(width, 2.0)))
    scale = m.add(m.div(1.1328, m.sub(width, 3.4)), 1.1239)
    b.branch(tries)
    b.position_at_end(tries)
    turn = b.phi(_LONG)
    u, v = _fractions(m, key, b.add(first, turn))
    u = m.sub(u, 0.5)
    us = m.sub(0.5, m.abs(u))
    slope = m.add(m.div(m.mul(a, 2.0), us), width)
    k = m.llvm("floor", m.add(m.add(m.mul(slope, u), lam), 0.43))
    quick = b.and_(m.compare(">=", us, 0.07), m.compare("<=", v, bound))
    last = b.icmp_signed("==", turn, ir.Constant(_LONG, (1 << TRIES_BITS) - 1))
    b.cbranch(b.or_(quick, last), done, look)
    b.position_at_end(look)
    outside = b.or_(m.lt(k, 0.0), b.and_(m.lt(us, 0.013), m.gt(v, us)))
    b.cbranch(outside, again, decide)
    b.position_at_end(decide)
    hat = m.add(m.div(a, m.mul(us, us)), width)
    height = log(m, m.div(m.mul(v, scale), hat))
    taken = m.compare("<=", height, _log_probability(m, k, lam))
    b.cbranch(taken, done, again)
    b.position_at_end(again)
    turn.add_incoming(ir.Constant(_LONG, 0), entry)
    turn.add_incoming(b.add(turn, ir.Constant(_LONG, 1)), again)
    b.branch(tries)
    b.position_at_end(done)
    b.ret(m.select(m.gt(k, 0.0), k, 0.0))


def _log_probability(m: IREmitter, k: Value, lam: Value) -> Value:
    factorial = m.number(1.0)
    for factor in range(2, 10):
        more = m.select(m.compare(">=", k, float(factor)), float(factor), 1.0)
        factorial = m.mul(factorial, more)
    few = m.sub(m.sub(m.mul(k, log(m, lam)), lam), log(m, factorial))
    z = m.div(1.0, m.mul(k, k))
    rest = m.sub(1 / 1260, m.div(z, 1680.0))
    rest = m.sub(1 / 360, m.mul(z, rest))
    rest = m.div(m.sub(1 / 12, m.mul(z, rest)), k)
    many = m.add(m.mul(k, log(m, m.div(lam, k))), m.sub(k, lam))
    many = m.sub(m.sub(many, m.mul(log(m, m.mul(k, 2 * math.pi)), 0.5)), rest)
    return m.select(m.lt(k, 10.0), few, many)
