"""Templates of the kernel language as typed text of the CUDA subset.

Every expression is typed (typed_text.py). What is no single expression becomes lines
ahead of it; functions that libdevice does not have are put in as text
(function_text.py).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from staticgrad.compiler.codegen.language import stored_name, type_name
from staticgrad.compiler.cuda.source.function_text import LIBDEVICE, written
from staticgrad.compiler.cuda.source.operator_text import SIMPLE
from staticgrad.compiler.cuda.source.typed_text import (
    Lines,
    NotInSubset,
    TypedText,
    binary,
    unsigned,
)
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


@cache
def parsed(text: str) -> ast.expr:
    """The tree of an expression."""
    return ast.parse(text, mode="eval").body


class Expressions(Lines):
    """Translates expressions, writing what has to be ahead of them to `writer`."""

    # From outside

    def template(
        self, template: str, args: Sequence[TypedText], attrs: Mapping[str, str],
        dtype: DType,
    ) -> str:  # fmt: skip
        """The text of a template, as a value of `dtype`."""
        places = [f"arg{position}" for position in range(len(args))]
        kinds = {"T": type_name(dtype), "S": stored_name(dtype)}
        text = template.format(*places, **kinds, **attrs)
        names = dict(zip(places, args, strict=True))
        return self.converted(self.visit(parsed(text), names), computed(dtype))

    def combined(self, combine: str, x: TypedText, y: TypedText) -> str:
        """``combine(x, y)`` of two values of one type."""
        if combine in ("add", "multiply"):
            return binary("+" if combine == "add" else "*", x, y).text
        name = f"c_{combine}" if combine in ("and", "or") else combine
        return self.call(name, [x, y]).text

    def to_half(self, x: TypedText, name: str) -> TypedText:
        """The 16 bits of x as a float16 or bfloat16, rounded once."""
        if x.dtype == FLOAT64:
            x = self.call("to_odd", [x])
        single = TypedText(self.converted(x, FLOAT32), FLOAT32)
        return self.call(f"to_{name}", [single])

    def from_half(self, bits: TypedText, name: str) -> TypedText:
        """The float32 that 16 bits stand for."""
        return self.call(f"from_{name}", [bits])

    # Memory

    def loaded(self, place: str, dtype: DType) -> str:
        """The value of what lies at a place: a bool is one byte, a half is its bits."""
        if dtype == BOOL:
            return f"({place} != uint8(0))"
        if is_half(dtype):
            bits = TypedText(self.temporary(place), np.dtype(np.uint16))
            return self.from_half(bits, stored_name(dtype)).text
        return place

    def stored(self, x: TypedText, dtype: DType) -> str:
        """A value as it lies in memory."""
        if dtype == BOOL:
            return f"(uint8(1) if {x.text} else uint8(0))"
        if is_half(dtype):
            return self.to_half(x, stored_name(dtype)).text
        return x.text

    def as_float64(self, place: str, dtype: DType) -> str:
        """What lies at a place, as a float64."""
        value = TypedText(self.loaded(place, dtype), computed(dtype))
        return self.converted(value, FLOAT64)

    # Trees

    def visit(self, node: ast.expr, names: Mapping[str, TypedText]) -> TypedText:
        """The value of a tree; `names` are those that it may use."""
        match node:
            case ast.Name(name):
                return self._name(name, names)
            case ast.Constant(value) if isinstance(value, bool | int | float):
                return TypedText(repr(value), BOOL if value is True else None, value)
            case ast.UnaryOp(ast.USub(), operand):
                return self._negative(self.visit(operand, names))
            case ast.BinOp(left, op, right):
                x, y = self._unified(self.visit(left, names), self.visit(right, names))
                return binary(_SIGNS[type(op)], x, y)
            case ast.Compare(left, [op], [right]):
                x, y = self._unified(self.visit(left, names), self.visit(right, names))
                return TypedText(f"({x.text} {_SIGNS[type(op)]} {y.text})", BOOL)
            case ast.IfExp(test, body, orelse):
                arms = self.visit(body, names), self.visit(orelse, names)
                return self._select(self.visit(test, names), *arms)
            case ast.Call(ast.Name(name), args):
                values = [self.visit(arg, names) for arg in args]
                return self._called(name, values, names)
        raise NotInSubset(f"the expression {ast.unparse(node)}")

    def _name(self, name: str, names: Mapping[str, TypedText]) -> TypedText:
        if name in names:
            return names[name]
        if name in _WEAK:
            return TypedText(name, None, _WEAK[name])
        if name[0] == "n" and name[1:].isdecimal():
            return TypedText(name, INT64)
        raise NotInSubset(f"the name {name}")

    def _called(
        self, name: str, values: list[TypedText], names: Mapping[str, TypedText]
    ) -> TypedText:
        if name in ("T", "U") and "T" in names:
            own = names["T"].dtype
            assert own is not None
            target = own if name == "T" else unsigned(own)
            return TypedText(self.converted(values[0], target), target)
        if name in _HALVES:
            return self.from_half(self.to_half(values[0], name), name)
        if name in _TYPES:
            return TypedText(self.converted(values[0], _TYPES[name]), _TYPES[name])
        return self.call(name, values)

    def _unified(self, x: TypedText, y: TypedText) -> tuple[TypedText, TypedText]:
        """Numbers take the type of what they meet; the others have one."""
        dtype = x.dtype or y.dtype
        if dtype is None:
            raise NotInSubset("an expression of numbers alone")
        if x.dtype is not None and y.dtype is not None and x.dtype != y.dtype:
            raise NotInSubset(f"{x.dtype} together with {y.dtype}")
        return TypedText(self.converted(x, dtype), dtype), TypedText(
            self.converted(y, dtype), dtype
        )

    def _negative(self, x: TypedText) -> TypedText:
        if x.dtype is None and x.number is not None:
            return TypedText(f"-{x.text}", None, -x.number)
        return self.call("negative", [x])

    def _select(self, test: TypedText, x: TypedText, y: TypedText) -> TypedText:
        x, y = self._unified(x, y)
        return TypedText(f"({x.text} if {test.text} else {y.text})", x.dtype)

    # Functions

    def call(self, name: str, values: Sequence[TypedText]) -> TypedText:
        """A call of a function of the kernel language."""
        if name == "select":
            return self._select(*values)
        if name == "divide":
            return binary("/", *self._unified(*values))
        dtype = next((v.dtype for v in values if v.dtype is not None), FLOAT64)
        name = _BY_KIND.get((name, dtype.kind), _BY_KIND.get((name, dtype.name), name))
        if name in LIBDEVICE:
            return self._libdevice(LIBDEVICE[name], values, dtype)
        if name in SIMPLE:
            typed = [TypedText(self.converted(v, dtype), dtype) for v in values]
            return SIMPLE[name](self, [self.named(v) for v in typed], dtype)
        if name in written():
            (found,) = self._inlined(written()[name], values, dtype)
            return found
        raise NotInSubset(f"the function {name} of {dtype}")

    def _libdevice(
        self, name: str, values: Sequence[TypedText], dtype: DType
    ) -> TypedText:
        if dtype.kind != "f":
            raise NotInSubset(f"the function {name} of {dtype}")
        suffix = "f" if dtype == FLOAT32 else ""
        arguments = ", ".join(self.converted(v, dtype) for v in values)
        return TypedText(f"libdevice.{name}{suffix}({arguments})", dtype)

    def _inlined(
        self, function: ast.FunctionDef, values: Sequence[TypedText], dtype: DType
    ) -> list[TypedText]:
        """What a function returns, its body written ahead."""
        parameters = [arg.arg for arg in function.args.args]
        names: dict[str, TypedText] = {"T": TypedText("", dtype)}
        changed = {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for parameter, value in zip(parameters, values, strict=True):
            held = value.dtype or dtype
            typed = TypedText(self.converted(value, held), held)
            own = parameter in changed
            names[parameter] = (
                TypedText(self.temporary(typed.text), held)
                if own
                else self.named(typed)
            )
        *body, last = function.body
        self._block(body, names)
        assert isinstance(last, ast.Return)
        assert last.value is not None
        if not isinstance(last.value, ast.Tuple):
            return [self.visit(last.value, names)]
        return [self.named(self.visit(part, names)) for part in last.value.elts]

    def _block(self, body: Sequence[ast.stmt], names: dict[str, TypedText]) -> None:
        for statement in body:
            match statement:
                case ast.Assign([ast.Name(target)], value):
                    self._assign(target, self.visit(value, names), names)
                case ast.Assign([ast.Tuple(targets)], ast.Call(ast.Name(name), args)):
                    given = [self.visit(arg, names) for arg in args]
                    dtype = given[0].dtype
                    assert dtype is not None
                    found = self._inlined(written()[name], given, dtype)
                    for place, part in zip(targets, found, strict=True):
                        self._assign(ast.unparse(place), part, names)
                case ast.While(test, inside):
                    self.writer.line(f"while {self.visit(test, names).text}:")
                    with self.writer.indented():
                        self._block(inside, names)
                case _:
                    raise CompilerBug(f"no text for {ast.unparse(statement)}")

    def _assign(
        self, target: str, value: TypedText, names: dict[str, TypedText]
    ) -> None:
        if target in names:
            known = names[target]
            assert known.dtype is not None
            self.writer.line(f"{known.text} = {self.converted(value, known.dtype)}")
            return
        dtype = value.dtype or FLOAT64
        names[target] = TypedText(self.temporary(self.converted(value, dtype)), dtype)


_BY_KIND: dict[tuple[str, str], str] = {
    ("sin", "float32"): "sin32",
    ("cos", "float32"): "cos32",
    ("tan", "float32"): "tan32",
    ("lgamma", "float64"): "lgamma64",
    ("frexp_exponent", "float32"): "frexp_exponent32",
    ("frexp_exponent", "float64"): "frexp_exponent64",
    ("frexp_fraction", "float32"): "frexp_fraction32",
    ("frexp_fraction", "float64"): "frexp_fraction64",
    ("order_bits", "float32"): "order_bits32",
    ("order_bits", "float64"): "order_bits64",
    ("order_float", "uint32"): "order_float32",
    ("order_float", "uint64"): "order_float64",
    ("sign", "f"): "sign_float",
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
