"""Bounds of magnitudes: which arguments of sin and cos need no guard.

``|tanh(x)| <= 1``, ``|a + b| <= |a| + |b|``... along the statements of a kernel. What
is loaded, divided or unknown has no bound. NaN is no matter: every function passes it
on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from staticgrad.compiler.codegen.language import SCALAR_FUNCTIONS
from staticgrad.compiler.kernel_ir.kernels import Compute, Load, Number, Statement
from staticgrad.compiler.kernel_ir.walks import statements_of
from staticgrad.ir.expression import Apply, Arg, Expr, Literal
from staticgrad.ir.types import kind_of


def magnitudes(body: Sequence[Statement]) -> dict[int, float]:
    """Return a bound of ``|value|`` for every value of `body`, or infinity."""
    found: dict[int, float] = {}
    for statement in statements_of(body):
        if isinstance(statement, Number):
            found[statement.result] = abs(float(statement.value))
        elif isinstance(statement, Load):
            found[statement.result] = (
                1.0 if kind_of(statement.dtype) == "b" else math.inf
            )
        elif isinstance(statement, Compute):
            kind = kind_of(statement.dtype)
            known = 1.0 if kind == "b" else math.inf
            found[statement.result] = (
                bound(statement.expr, statement, found) if kind == "f" else known
            )
    return found


def bound(expr: Expr, statement: Compute, found: Mapping[int, float]) -> float:
    """The bound of an expression of what a statement computes from."""
    match expr:
        case Arg(place):
            return found.get(statement.args[place], math.inf)
        case Literal(str() | int() as value) if value != "nan":
            return abs(float(value))
        case Apply(str(name), args):
            return _of_call(name, [bound(x, statement, found) for x in args])
    return math.inf


def _of_call(name: str, args: Sequence[float]) -> float:
    if name in ("+", "-"):
        return sum(args)
    if name == "*":
        return 0.0 if 0.0 in args else math.prod(args)
    if name in ("T", "S"):
        return args[0]
    known = SCALAR_FUNCTIONS.get(name)
    return known.bound(args) if known else math.inf
