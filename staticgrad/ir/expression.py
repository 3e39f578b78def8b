"""Expressions of the kernel language: what one element of a result is made of.

An expression is read once, when an op is defined, and from then on a value: it is
compared, matched and hashed by its structure. As text it is Python::

    select({0} == {T}(0), {T}(0), divide({0}, {1}))

``{0}`` is an argument; ``{T}`` is the constructor of the result's dtype and ``{S}``
that which rounds to what is stored; other names in braces are attributes of a node,
which `filled` puts in. Expressions are shallow, so they are walked by recursion.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from staticgrad.ir.foreign import Foreign
from staticgrad.ir.size import Dim


@dataclass(frozen=True, slots=True)
class Arg:
    """An argument, by its place."""

    place: int


@dataclass(frozen=True, slots=True)
class Name:
    """An attribute that is still to be filled in, or a variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """Text that stands for itself, so 0.0 is not -0.0; a whole number or a size."""

    value: str | Dim


@dataclass(frozen=True, slots=True)
class Apply:
    """A function of the language or of the user's, or an operator, with arguments.

    The conditional expression is the function "if" of (test, then, otherwise).
    """

    name: str | Foreign
    args: tuple[Expr, ...]


Leaf: TypeAlias = Arg | Name | Literal
Expr: TypeAlias = Leaf | Apply

_BRACES = re.compile(r"\{(\w+)\}")
_MARKED = re.compile(r"__(\w+?)__")  # braces where Python reads a name
_OPERATORS: dict[type, tuple[str, int]] = {
    ast.Eq: ("==", 1), ast.NotEq: ("!=", 1), ast.Lt: ("<", 1), ast.LtE: ("<=", 1),
    ast.Gt: (">", 1), ast.GtE: (">=", 1), ast.BitOr: ("|", 2), ast.BitXor: ("^", 3),
    ast.BitAnd: ("&", 4), ast.LShift: ("<<", 5), ast.RShift: (">>", 5),
    ast.Add: ("+", 6), ast.Sub: ("-", 6), ast.Mult: ("*", 7), ast.Div: ("/", 7),
}  # fmt: skip
PRECEDENCE = dict(_OPERATORS.values())
"""Operators of two arguments, and how strongly each binds."""

COMPARISON, _UNARY, _ATOM = 1, 8, 9


@cache
def parse(template: str) -> Expr:
    """The expression that a text is.

    >>> parse("divide({0}, 2)")
    Apply(name='divide', args=(Arg(place=0), Literal(value=2)))
    """
    marked = _BRACES.sub(r"__\1__", template)
    return expression(ast.parse(marked, mode="eval").body)


def expression(node: ast.expr) -> Expr:
    """The expression that a tree of Python is."""
    match node:
        case ast.Name(name) if found := _MARKED.fullmatch(name):
            return Arg(int(found[1])) if found[1].isdecimal() else Name(found[1])
        case ast.Name(name):
            return Literal(name) if name in ("nan", "inf") else Name(name)
        case ast.Constant(bool() | int() | float() as value):
            return _literal(value)
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return _literal(-value)
        case ast.UnaryOp(ast.USub(), operand):
            return Apply("-", (expression(operand),))
        case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]) if (
            type(op) in _OPERATORS
        ):
            name, _ = _OPERATORS[type(op)]
            return Apply(name, (expression(left), expression(right)))
        case ast.IfExp(test, then, otherwise):
            return Apply("if", tuple(map(expression, (test, then, otherwise))))
        case ast.Call(ast.Name(name), args, []):
            head = {"__T__": "T", "__S__": "S"}.get(name, name)
            return Apply(_MARKED.sub(r"{\1}", head), tuple(map(expression, args)))
    raise ValueError(f"{ast.unparse(node)} is no expression of the kernel language")


def _literal(value: Any) -> Literal:
    plain = value.item() if hasattr(value, "item") else value
    return Literal(repr(plain) if isinstance(plain, bool | float) else plain)


def walk(expr: Expr) -> Iterator[Expr]:
    """An expression and all that is in it, from the outside inwards."""
    yield expr
    for argument in expr.args if isinstance(expr, Apply) else ():
        yield from walk(argument)


def function_of(expr: Expr) -> str:
    """The function that is applied to all arguments, in order; else "".

    >>> function_of(parse("{0} + {1}")), function_of(parse("{1} + {0}"))
    ('+', '')
    """
    match expr:
        case Apply(str(name), args) if args == tuple(map(Arg, range(len(args)))):
            return name
    return ""


def filled(expr: Expr, values: Mapping[str, Any]) -> Expr:
    """An expression with values for names: numbers, sizes, functions, expressions.

    >>> filled(parse("word{bits}({0}, {scale})"), {"bits": 32, "scale": 0.5})
    Apply(name='word32', args=(Arg(place=0), Literal(value='0.5')))
    """
    match expr:
        case Name(name) if name in values:
            value = values[name]
            return value if isinstance(value, Expr) else _literal(value)
        case Apply(name, args):
            if isinstance(name, str) and "{" in name:
                own = values.get(name[1:-1])
                head = _BRACES.sub(lambda m: str(values.get(m[1], m[0])), name)
                name = own if isinstance(own, Foreign) else head
            return Apply(name, tuple(filled(x, values) for x in args))
    return expr


def missing(expr: Expr, count: int) -> str:
    """The name of what has no value yet, of `count` arguments; "" if all have one.

    >>> missing(parse("maximum({0}, {low})"), 1)
    'low'
    """
    for part in walk(expr):
        match part:
            case Arg(place) if place >= count:
                return str(place)
            case Name(name):
                return name
            case Apply(str(name)) if found := _BRACES.search(name):
                return found[1]
    return ""


def text(expr: Expr, show: Callable[[Leaf | str | Foreign], str]) -> str:
    """The source of an expression; `show` gives that of leaves and names of functions.

    >>> text(parse("-({0} * {1}) - {0}"), lambda leaf: f"v{leaf.place}")
    '-(v0 * v1) - v0'
    """
    if not isinstance(expr, Apply):
        return show(expr)
    own, args = _strength(expr), expr.args
    parts = [text(x, show) for x in args]
    if own == _ATOM:
        return f"{show(expr.name)}({', '.join(parts)})"
    for place, x in enumerate(args):  # a == b == c would be another thing
        if _strength(x) < own + (place > 0 or own == COMPARISON):
            parts[place] = f"({parts[place]})"
    return f"-{parts[0]}" if len(args) == 1 else f" {expr.name} ".join(parts)


def _strength(expr: Expr) -> int:
    match expr:
        case Apply("-", (_,)):
            return _UNARY
        case Apply(str(name), (_, _)):
            return PRECEDENCE.get(name, _ATOM)
    return _ATOM
