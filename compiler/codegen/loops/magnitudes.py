"""How large values can be: which arguments of sin and cos need no guard.

``|tanh(x)| <= 1``, ``|a + b| <= |a| + |b|``... along the statements of a kernel. What
is loaded, divided or unknown has no bound. NaN is no matter: every function passes it
on.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence

from staticgrad.compiler.kernel_ir.kernels import Compute, Load, Number, Statement
from staticgrad.compiler.kernel_ir.walks import statements_of
from staticgrad.ir.types import kind_of

_AT_MOST_ONE = frozenset(
    "sin cos sin_any cos_any tanh erf sigmoid sign uniform32 uniform64 isnan isinf "
    "isfinite".split()
)
_KEEPS = frozenset(
    "negative absolute floor ceil rint float32 float64 float16 bfloat16".split()
)
_LARGEST = frozenset(("maximum", "minimum"))


def magnitudes(body: Sequence[Statement]) -> dict[int, float]:
    """A bound of ``|value|`` for every value of `body`; infinity if there is none."""
    found: dict[int, float] = {}
    for statement in statements_of(body):
        if isinstance(statement, Number):
            found[statement.result] = abs(float(statement.value))
        elif isinstance(statement, Load):
            found[statement.result] = (
                1.0 if kind_of(statement.dtype) == "b" else math.inf
            )
        elif isinstance(statement, Compute):
            found[statement.result] = _of_compute(statement, found)
    return found


def arguments_at_most(
    statement: Compute, found: Mapping[int, float], functions: Sequence[str]
) -> float:
    """The largest bound of what `functions` are called with in a statement."""
    tree, names = _parsed(statement, found)
    calls = [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in functions
    ]
    return max((_bound(argument, names) for argument in calls), default=0.0)


def _of_compute(statement: Compute, found: Mapping[int, float]) -> float:
    if kind_of(statement.dtype) != "f":
        return 1.0 if kind_of(statement.dtype) == "b" else math.inf
    tree, names = _parsed(statement, found)
    return _bound(tree, names)


def _parsed(
    statement: Compute, found: Mapping[int, float]
) -> tuple[ast.expr, dict[str, float]]:
    arguments = [f"a{place}" for place in range(len(statement.args))]
    attrs = {name: "unknown" for name, _ in statement.attrs}
    name = statement.dtype.name
    text = statement.template.format(*arguments, T=name, S=name, **attrs)
    bounds = [found.get(number, math.inf) for number in statement.args]
    names = dict(zip(arguments, bounds, strict=True))
    return ast.parse(text, mode="eval").body, names


def _bound(node: ast.expr, names: Mapping[str, float]) -> float:
    """The bound of an expression; expressions of templates are shallow."""
    match node:
        case ast.Name(id=name):
            return names.get(name, math.inf)
        case ast.Constant(value=int() | float() as value):
            return abs(float(value))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            return _bound(left, names) + _bound(right, names)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _product(_bound(left, names), _bound(right, names))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _of_call(name, args, names)
    return math.inf


def _of_call(name: str, args: Sequence[ast.expr], names: Mapping[str, float]) -> float:
    if name in _AT_MOST_ONE:
        return 1.0
    if name in _KEEPS:
        return _bound(args[0], names)
    if name in _LARGEST:
        return max(_bound(argument, names) for argument in args)
    if name == "select":
        return max(_bound(argument, names) for argument in args[1:])
    return math.inf


def _product(left: float, right: float) -> float:
    return 0.0 if 0.0 in (left, right) else left * right
