"""Templates of the kernel language as typed text of the CUDA subset.

Numba promotes int32 + int32 to int64, has no C conversions and raises where we want a
value, so every expression is typed here and the text says which type each result has.
What is no single expression becomes lines ahead of it; functions that libdevice does
not have are put in as text (cuda_functions.py).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from staticgrad.compiler.codegen.cuda_functions import LIBDEVICE, written
from staticgrad.compiler.codegen.language import stored_name, type_name
from staticgrad.compiler.codegen.writer import Writer
from staticgrad.errors import CompilerBug
from staticgrad.ir.types import (
    BOOL,
    FLOAT32,
    FLOAT64,
    HALF,
    INT64,
    SUPPORTED,
    DType,
    computed,
    is_half,
)

_TYPES = {type_name(dtype): computed(dtype) for dtype in SUPPORTED}
_HALVES = frozenset(stored_name(dtype) for dtype in HALF)
_WEAK = {"nan": math.nan, "inf": math.inf}
_SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.BitAnd: "&",
    ast.BitOr: "|", ast.BitXor: "^", ast.RShift: ">>", ast.LShift: "<<",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==",
    ast.NotEq: "!=",
}  # fmt: skip
_UINT64 = np.dtype(np.uint64)


@dataclass(frozen=True, slots=True)
class Typed:
    """Text and the type of its value; a number without a type is not `dtype` yet."""

    text: str
    dtype: DType | None
    number: float | int | bool | None = None


class NotInSubset(Exception):
    """What the CUDA target has no text for."""


def number(value: float | int | bool, dtype: DType) -> str:
    """A literal of `dtype`.

    >>> number(0.1, FLOAT32), number(-1, INT64), number(True, BOOL)
    ('float32(0.1)', 'int64(-1)', 'True')
    """
    if dtype == BOOL:
        return str(bool(value))
    kind = type_name(dtype)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            short = str(dtype.type(value))
        exact = dtype.type(float(short)) == dtype.type(value)
        return f"{kind}({short if exact or value != value else repr(float(value))})"
    bits = 8 * dtype.itemsize
    whole = int(value) & ((1 << bits) - 1)
    if dtype.kind == "i" and whole >> (bits - 1):
        whole -= 1 << bits
    return f"{kind}({whole})"


def signed(dtype: DType) -> DType:
    """The signed integer type of the same width."""
    return np.dtype(f"int{8 * dtype.itemsize}")


def unsigned(dtype: DType) -> DType:
    """The unsigned integer type of the same width."""
    return np.dtype(f"uint{8 * dtype.itemsize}")


def memory_name(dtype: DType) -> str:
    """How elements lie in memory: bools as bytes, halves as their bits.

    >>> memory_name(BOOL), memory_name(FLOAT32)
    ('uint8', 'float32')
    """
    if is_half(dtype):
        return "uint16"
    return "uint8" if dtype == BOOL else type_name(dtype)


@cache
def parsed(text: str) -> ast.expr:
    """The tree of an expression."""
    return ast.parse(text, mode="eval").body


class Expressions:
    """Translates expressions, writing what has to be ahead of them to `writer`."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._temporaries = 0

    # From outside

    def template(
        self, template: str, args: Sequence[Typed], attrs: Mapping[str, str],
        dtype: DType,
    ) -> str:  # fmt: skip
        """The text of a template, as a value of `dtype`."""
        places = [f"arg{position}" for position in range(len(args))]
        kinds = {"T": type_name(dtype), "S": stored_name(dtype)}
        text = template.format(*places, **kinds, **attrs)
        names = dict(zip(places, args, strict=True))
        return self.converted(self.visit(parsed(text), names), computed(dtype))

    def converted(self, x: Typed, target: DType) -> str:
        """The text of x as `target`: floats to integers as x86 does it."""
        if x.number is not None and x.dtype is None:
            return number(x.number, target)
        source = x.dtype
        assert source is not None
        if source == target:
            return x.text
        kind = type_name(target)
        if target == BOOL:
            return f"({x.text} != {number(0, source)})"
        if source == BOOL:
            return f"({number(1, target)} if {x.text} else {number(0, target)})"
        if source.kind != "f" or target.kind == "f":
            return f"{kind}({x.text})"
        return self._whole(self.named(x), source, target)

    def named(self, x: Typed) -> Typed:
        """The same value as a name or a literal, so that it can be used twice."""
        if x.text.isidentifier() or x.number is not None:
            return x
        return Typed(self.temporary(x.text), x.dtype)

    def temporary(self, text: str) -> str:
        """A new name with that value."""
        name = f"t{self._temporaries}"
        self._temporaries += 1
        self.writer.line(f"{name} = {text}")
        return name

    def combined(self, combine: str, x: Typed, y: Typed) -> str:
        """``combine(x, y)`` of two values of one type."""
        if combine in ("add", "multiply"):
            return self._binary("+" if combine == "add" else "*", x, y).text
        name = f"c_{combine}" if combine in ("and", "or") else combine
        return self.call(name, [x, y]).text

    def to_half(self, x: Typed, name: str) -> Typed:
        """The 16 bits of x as a float16 or bfloat16, rounded once."""
        if x.dtype == FLOAT64:
            x = self.call("to_odd", [x])
        single = Typed(self.converted(x, FLOAT32), FLOAT32)
        return self.call(f"to_{name}", [single])

    def from_half(self, bits: Typed, name: str) -> Typed:
        """The float32 that 16 bits stand for."""
        return self.call(f"from_{name}", [bits])

    # Memory

    def loaded(self, place: str, dtype: DType) -> str:
        """The value of what lies at a place: a bool is one byte, a half is its bits."""
        if dtype == BOOL:
            return f"({place} != uint8(0))"
        if is_half(dtype):
            bits = Typed(self.temporary(place), np.dtype(np.uint16))
            return self.from_half(bits, stored_name(dtype)).text
        return place

    def stored(self, x: Typed, dtype: DType) -> str:
        """A value as it lies in memory."""
        if dtype == BOOL:
            return f"(uint8(1) if {x.text} else uint8(0))"
        if is_half(dtype):
            return self.to_half(x, stored_name(dtype)).text
        return x.text

    def as_float64(self, place: str, dtype: DType) -> str:
        """What lies at a place, as a float64."""
        value = Typed(self.loaded(place, dtype), computed(dtype))
        return self.converted(value, FLOAT64)

    # Trees

    def visit(self, node: ast.expr, names: Mapping[str, Typed]) -> Typed:
        """The value of a tree; `names` are those that it may use."""
        match node:
            case ast.Name(name):
                return self._name(name, names)
            case ast.Constant(value) if isinstance(value, bool | int | float):
                return Typed(repr(value), BOOL if value is True else None, value)
            case ast.UnaryOp(ast.USub(), operand):
                return self._negative(self.visit(operand, names))
            case ast.BinOp(left, op, right):
                x, y = self._unified(self.visit(left, names), self.visit(right, names))
                return self._binary(_SIGNS[type(op)], x, y)
            case ast.Compare(left, [op], [right]):
                x, y = self._unified(self.visit(left, names), self.visit(right, names))
                return Typed(f"({x.text} {_SIGNS[type(op)]} {y.text})", BOOL)
            case ast.IfExp(test, body, orelse):
                arms = self.visit(body, names), self.visit(orelse, names)
                return self._select(self.visit(test, names), *arms)
            case ast.Call(ast.Name(name), args):
                values = [self.visit(arg, names) for arg in args]
                return self._called(name, values, names)
        raise NotInSubset(f"the expression {ast.unparse(node)}")

    def _name(self, name: str, names: Mapping[str, Typed]) -> Typed:
        if name in names:
            return names[name]
        if name in _WEAK:
            return Typed(name, None, _WEAK[name])
        if name[0] == "n" and name[1:].isdecimal():
            return Typed(name, INT64)
        raise NotInSubset(f"the name {name}")

    def _called(
        self, name: str, values: list[Typed], names: Mapping[str, Typed]
    ) -> Typed:
        if name in ("T", "U") and "T" in names:
            own = names["T"].dtype
            assert own is not None
            target = own if name == "T" else unsigned(own)
            return Typed(self.converted(values[0], target), target)
        if name in _HALVES:
            return self.from_half(self.to_half(values[0], name), name)
        if name in _TYPES:
            return Typed(self.converted(values[0], _TYPES[name]), _TYPES[name])
        return self.call(name, values)

    def _unified(self, x: Typed, y: Typed) -> tuple[Typed, Typed]:
        """Numbers take the type of what they meet; the others have one."""
        dtype = x.dtype or y.dtype
        if dtype is None:
            raise NotInSubset("an expression of numbers alone")
        if x.dtype is not None and y.dtype is not None and x.dtype != y.dtype:
            raise NotInSubset(f"{x.dtype} together with {y.dtype}")
        return Typed(self.converted(x, dtype), dtype), Typed(
            self.converted(y, dtype), dtype
        )

    def _binary(self, sign: str, x: Typed, y: Typed) -> Typed:
        dtype = x.dtype
        assert dtype is not None
        if dtype == BOOL:
            joined = {"+": "|", "*": "&", "-": "^"}.get(sign, sign)
            return Typed(f"({x.text} {joined} {y.text})", BOOL)
        text = f"({x.text} {sign} {y.text})"
        return Typed(text if dtype.kind == "f" else f"{type_name(dtype)}{text}", dtype)

    def _negative(self, x: Typed) -> Typed:
        if x.dtype is None and x.number is not None:
            return Typed(f"-{x.text}", None, -x.number)
        return self.call("negative", [x])

    def _select(self, test: Typed, x: Typed, y: Typed) -> Typed:
        x, y = self._unified(x, y)
        return Typed(f"({x.text} if {test.text} else {y.text})", x.dtype)

    # Functions

    def call(self, name: str, values: Sequence[Typed]) -> Typed:
        """A call of a function of the kernel language."""
        if name == "select":
            return self._select(*values)
        if name == "divide":
            return self._binary("/", *self._unified(*values))
        dtype = next((v.dtype for v in values if v.dtype is not None), FLOAT64)
        name = _BY_KIND.get((name, dtype.kind), _BY_KIND.get((name, dtype.name), name))
        if name in LIBDEVICE:
            return self._libdevice(LIBDEVICE[name], values, dtype)
        if name in _SIMPLE:
            typed = [Typed(self.converted(v, dtype), dtype) for v in values]
            return _SIMPLE[name](self, [self.named(v) for v in typed], dtype)
        if name in written():
            return self._inlined(written()[name], values, dtype)
        raise NotInSubset(f"the function {name} of {dtype}")

    def _libdevice(self, name: str, values: Sequence[Typed], dtype: DType) -> Typed:
        if dtype.kind != "f":
            raise NotInSubset(f"the function {name} of {dtype}")
        suffix = "f" if dtype == FLOAT32 else ""
        arguments = ", ".join(self.converted(v, dtype) for v in values)
        return Typed(f"libdevice.{name}{suffix}({arguments})", dtype)

    def _inlined(
        self, function: ast.FunctionDef, values: Sequence[Typed], dtype: DType
    ) -> Typed:
        parameters = [arg.arg for arg in function.args.args]
        names: dict[str, Typed] = {"T": Typed("", dtype)}
        changed = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for parameter, value in zip(parameters, values, strict=True):
            held = value.dtype or dtype
            typed = Typed(self.converted(value, held), held)
            own = parameter in changed
            names[parameter] = (
                Typed(self.temporary(typed.text), held) if own else self.named(typed)
            )
        *body, last = function.body
        self._block(body, names)
        assert isinstance(last, ast.Return)
        assert last.value is not None
        return self.visit(last.value, names)

    def _block(self, body: Sequence[ast.stmt], names: dict[str, Typed]) -> None:
        for statement in body:
            match statement:
                case ast.Assign([ast.Name(target)], value):
                    self._assign(target, self.visit(value, names), names)
                case ast.While(test, inside):
                    self.writer.line(f"while {self.visit(test, names).text}:")
                    with self.writer.indented():
                        self._block(inside, names)
                case _:
                    raise CompilerBug(f"no text for {ast.unparse(statement)}")

    def _assign(self, target: str, value: Typed, names: dict[str, Typed]) -> None:
        if target in names:
            known = names[target]
            assert known.dtype is not None
            self.writer.line(f"{known.text} = {self.converted(value, known.dtype)}")
            return
        dtype = value.dtype or FLOAT64
        names[target] = Typed(self.temporary(self.converted(value, dtype)), dtype)

    def _whole(self, x: Typed, source: DType, target: DType) -> str:
        """A float towards zero; the least integer where it does not fit."""
        if target == _UINT64:
            limit = number(2.0**63, source)
            large = self.temporary(f"({x.text} >= {limit})")
            moved = self.named(
                Typed(f"(({x.text} - {limit}) if {large} else {x.text})", source)
            )
            low = self.temporary(self._truncated(moved, source, INT64))
            top = "uint64(9223372036854775808)"
            return f"(uint64(uint64({low}) ^ {top}) if {large} else uint64({low}))"
        narrow = target.itemsize < 4 or target == np.dtype(np.int32)
        wide = np.dtype(np.int32) if narrow else INT64
        text = self._truncated(x, source, wide)
        return text if wide == target else f"{type_name(target)}({text})"

    def _truncated(self, x: Typed, source: DType, target: DType) -> str:
        limit = 2.0 ** (8 * target.itemsize - 1)
        low, high = number(-limit, source), number(limit, source)
        fits = f"({x.text} >= {low}) & ({x.text} < {high})"
        inside = self.temporary(f"({x.text} if {fits} else {number(0, source)})")
        least = number(-int(limit), target)
        return f"({type_name(target)}({inside}) if {fits} else {least})"


Simple = Callable[[Expressions, list[Typed], DType], Typed]


def _extreme(sign: str) -> Simple:
    """The larger or smaller; NaN is passed on."""

    def text(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
        x, y = (v.text for v in values)
        if dtype == BOOL:
            return Typed(f"({x} {'|' if sign == '>' else '&'} {y})", BOOL)
        nan = f" | ({x} != {x})" if dtype.kind == "f" else ""
        return Typed(f"({x} if ({x} {sign} {y}){nan} else {y})", dtype)

    return text


def _shift(sign: str) -> Simple:
    """Counts outside of [0, width) shift everything out."""

    def text(e: Expressions, values: list[Typed], dtype: DType) -> Typed:
        x, y = (v.text for v in values)
        width, kind = 8 * dtype.itemsize, type_name(dtype)
        inside = e.temporary(
            f"({y} >= {number(0, dtype)}) & ({y} < {number(width, dtype)})"
        )
        count = e.temporary(f"({y} if {inside} else {number(0, dtype)})")
        outside = number(0, dtype)
        if sign == ">>" and dtype.kind == "i":
            outside = f"{kind}({x} >> {number(width - 1, dtype)})"
        shifted = f"{kind}({x} {sign} {count})"
        return Typed(f"({shifted} if {inside} else {outside})", dtype)

    return text


def _negated(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
    (x,) = values
    if dtype == BOOL:
        return x
    if dtype.kind == "f":
        return Typed(f"(-{x.text})", dtype)
    return Typed(f"{type_name(dtype)}({number(0, dtype)} - {x.text})", dtype)


def _absolute(e: Expressions, values: list[Typed], dtype: DType) -> Typed:
    (x,) = values
    if dtype.kind == "f":
        return e.call("fabs", values)
    if dtype.kind != "i":
        return x
    below = f"{type_name(dtype)}({number(0, dtype)} - {x.text})"
    return Typed(f"({below} if {x.text} < {number(0, dtype)} else {x.text})", dtype)


def _sign(e: Expressions, values: list[Typed], dtype: DType) -> Typed:
    (x,) = values
    if dtype.kind == "f":
        return e._inlined(written()["sign_float"], values, dtype)
    if dtype == BOOL:
        return x
    zero, one = number(0, dtype), number(1, dtype)
    rest = f"({one} if {x.text} > {zero} else {zero})"
    if dtype.kind == "i":
        rest = f"({number(-1, dtype)} if {x.text} < {zero} else {rest})"
    return Typed(rest, dtype)


def _invert(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
    (x,) = values
    if dtype == BOOL:
        return Typed(f"({x.text} ^ True)", BOOL)
    return Typed(f"{type_name(dtype)}({x.text} ^ {number(-1, dtype)})", dtype)


def _bitwise(sign: str) -> Simple:
    return lambda e, values, dtype: e._binary(sign, *values)


def _float_bits(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
    bits = "float_as_int" if dtype == FLOAT32 else "double_as_longlong"
    return Typed(f"libdevice.{bits}({values[0].text})", signed(dtype))


def _float_of(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
    return Typed(f"libdevice.int_as_float({values[0].text})", FLOAT32)


def _double_of(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
    return Typed(f"libdevice.longlong_as_double({values[0].text})", FLOAT64)


def _count(e: Expressions, values: list[Typed], dtype: DType) -> Typed:
    """The bits that are one in the size of a number."""
    size = _absolute(e, values, dtype)
    wide = f"int64(uint64({type_name(unsigned(dtype))}({size.text})))"
    return Typed(f"libdevice.popcll({wide})", np.dtype(np.int32))


def _signbit(e: Expressions, values: list[Typed], dtype: DType) -> Typed:
    bits = _float_bits(e, values, dtype).text
    return Typed(f"({bits} < {number(0, signed(dtype))})", BOOL)


def _isnan(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
    x = values[0].text
    return Typed(f"({x} != {x})", BOOL)


def _compared(sign: str) -> Simple:
    def text(e: Expressions, values: list[Typed], dtype: DType) -> Typed:
        size = e.call("fabs", values).text
        return Typed(f"({size} {sign} {number(math.inf, dtype)})", BOOL)

    return text


def _not(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
    return Typed(f"({values[0].text} ^ True)", BOOL)


def _not_at_least(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
    x, y = (v.text for v in values)
    return Typed(f"(({x} >= {y}) ^ True)", BOOL)


def _overflows(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
    """The least integer divided by -1 has no result."""
    if dtype.kind != "i":
        return Typed("False", BOOL, False)
    least = number(-(1 << (8 * dtype.itemsize - 1)), dtype)
    x, y = (v.text for v in values)
    return Typed(f"(({x} == {least}) & ({y} == {number(-1, dtype)}))", BOOL)


def _opposite(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
    if dtype.kind != "i":
        return Typed("False", BOOL, False)
    x, y = (v.text for v in values)
    return Typed(f"(({x} ^ {y}) < {number(0, dtype)})", BOOL)


def _quotient(_: Expressions, values: list[Typed], dtype: DType) -> Typed:
    """Truncated towards zero, from the sizes: Python's division rounds down."""
    x, y = (v.text for v in values)
    kind = type_name(dtype)
    if dtype.kind != "i":
        return Typed(f"{kind}({x} // {y})", dtype)
    zero = number(0, dtype)
    own = type_name(unsigned(dtype))
    a = f"{own}({kind}({zero} - {x}) if {x} < {zero} else {x})"
    b = f"{own}({kind}({zero} - {y}) if {y} < {zero} else {y})"
    size = f"{kind}({own}({a} // {b}))"
    turned = f"{kind}({zero} - {size})"
    return Typed(f"({turned} if ({x} ^ {y}) < {zero} else {size})", dtype)


_SIMPLE: dict[str, Simple] = {
    "maximum": _extreme(">"),
    "minimum": _extreme("<"),
    "negative": _negated,
    "absolute": _absolute,
    "sign": _sign,
    "invert": _invert,
    "bitwise_and": _bitwise("&"),
    "bitwise_or": _bitwise("|"),
    "bitwise_xor": _bitwise("^"),
    "left_shift": _shift("<<"),
    "right_shift": _shift(">>"),
    "float_bits": _float_bits,
    "float_of": _float_of,
    "double_of": _double_of,
    "bitwise_count": _count,
    "signbit": _signbit,
    "isnan": _isnan,
    "isinf": _compared("=="),
    "isfinite": _compared("<"),
    "c_and": _bitwise("&"),
    "c_or": _bitwise("|"),
    "c_xor": _bitwise("^"),
    "c_not": _not,
    "not_at_least": _not_at_least,
    "overflows": _overflows,
    "opposite": _opposite,
    "quotient_of": _quotient,
}

_BY_KIND: dict[tuple[str, str], str] = {
    ("sin", "float32"): "sin32",
    ("cos", "float32"): "cos32",
    ("tan", "float32"): "tan32",
    ("lgamma", "float64"): "lgamma64",
    ("frexp_exponent", "float32"): "frexp_exponent32",
    ("frexp_exponent", "float64"): "frexp_exponent64",
    ("frexp_fraction", "float32"): "frexp_fraction32",
    ("frexp_fraction", "float64"): "frexp_fraction64",
    ("floor_divide", "f"): "floor_divide_float",
    ("floor_divide", "i"): "floor_divide_int",
    ("floor_divide", "u"): "floor_divide_int",
    ("remainder", "f"): "remainder_float",
    ("remainder", "i"): "remainder_int",
    ("remainder", "u"): "remainder_int",
    ("fmod", "f"): "float_rest",
    ("fmod", "i"): "fmod_int",
    ("fmod", "u"): "fmod_int",
    ("ipower", "u"): "upower",
}
