"""Expressions of the kernel language as typed text of the CUDA subset.

Every expression is typed (typed_text.py). What is no single expression becomes lines
ahead of it; functions that libdevice does not have are put in as text
(function_text.py).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from staticgrad.compiler.codegen.language import (
    SCALAR_FUNCTIONS,
    stored_name,
    type_name,
)
from staticgrad.compiler.codegen.scalar_functions import OWN
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
from staticgrad.ir.expression import (
    COMPARISON,
    PRECEDENCE,
    Apply,
    Arg,
    Expr,
    Leaf,
    Literal,
    Name,
    expression,
)
from staticgrad.ir.size import Size
from staticgrad.ir.types import (
    BOOL,
    FLOAT32,
    FLOAT64,
    HALF,
    SUPPORTED,
    DType,
    computed,
    is_half,
)

_TYPES = {type_name(dtype): computed(dtype) for dtype in SUPPORTED}
_HALVES = frozenset(stored_name(dtype) for dtype in HALF)
_OWN = Name("T")  # stands for the dtype of the result
_of_tree = cache(expression)  # for the bodies of functions, which stay


class Expressions(Lines):
    """Translator of expressions; lines that precede them go to `writer`."""

    # From outside

    def text(self, expr: Expr, leaves: Mapping[Leaf, TypedText], dtype: DType) -> str:
        """The text of an expression over `leaves`, as a value of `dtype`."""
        value = self.visit(expr, {**leaves, _OWN: TypedText("", dtype)})
        return self.converted(value, computed(dtype))

    def combined(self, combine: str, x: TypedText, y: TypedText) -> str:
        """Return ``combine(x, y)`` of two values of one type."""
        if combine in ("add", "multiply"):
            return binary("+" if combine == "add" else "*", x, y).text
        name = f"c_{combine}" if combine in ("and", "or") else combine
        return self.call(name, [x, y]).text

    def to_half(self, x: TypedText, name: str) -> TypedText:
        """Return the 16 bits of x as a float16 or bfloat16, rounded once."""
        if x.dtype == FLOAT64:
            x = self.call("to_odd", [x])
        single = TypedText(self.converted(x, FLOAT32), FLOAT32)
        return self.call(f"to_{name}", [single])

    def from_half(self, bits: TypedText, name: str) -> TypedText:
        """Return the float32 value of 16 bits."""
        return self.call(f"from_{name}", [bits])

    # Memory

    def loaded(self, place: str, dtype: DType) -> str:
        """Return the value at a place: a bool is one byte, a half is its bits."""
        if dtype == BOOL:
            return f"({place} != uint8(0))"
        if is_half(dtype):
            bits = TypedText(self.temporary(place), np.dtype(np.uint16))
            return self.from_half(bits, stored_name(dtype)).text
        return place

    def stored(self, x: TypedText, dtype: DType) -> str:
        """Return a value as stored in memory."""
        if dtype == BOOL:
            return f"(uint8(1) if {x.text} else uint8(0))"
        if is_half(dtype):
            return self.to_half(x, stored_name(dtype)).text
        return x.text

    def as_float64(self, place: str, dtype: DType) -> str:
        """Return the text of the element at a place, converted to float64."""
        value = TypedText(self.loaded(place, dtype), computed(dtype))
        return self.converted(value, FLOAT64)

    def visit(self, expr: Expr, names: Mapping[Leaf, TypedText]) -> TypedText:
        """The value of an expression; `names` are the leaves that it may use."""
        match expr:
            case Arg() | Name() | Literal(Size()):
                return names[expr]
            case Literal("True"):
                return TypedText("True", BOOL, True)
            case Literal("False"):
                return TypedText("False", None, False)
            case Literal(str(word)):
                return TypedText(word, None, float(word))
            case Literal(int(value)):
                return TypedText(str(value), None, value)
            case Apply("-", (x,)):
                return self.call("negative", [self.visit(x, names)])
            case Apply("if", (test, then, otherwise)):
                arms = self.visit(then, names), self.visit(otherwise, names)
                return self._select(self.visit(test, names), *arms)
            case Apply(str(name), args):
                values = [self.visit(arg, names) for arg in args]
                return self._called(name, values, names)
        raise NotInSubset(f"the expression {expr}")

    def _called(
        self, name: str, values: list[TypedText], names: Mapping[Leaf, TypedText]
    ) -> TypedText:
        if name in PRECEDENCE:
            x, y = self._unified(*values)
            compared = PRECEDENCE[name] == COMPARISON
            text = f"({x.text} {name} {y.text})"
            return TypedText(text, BOOL) if compared else binary(name, x, y)
        if name in ("T", "S", "U"):
            dtype = names[_OWN].dtype
            assert dtype is not None
            own = unsigned(dtype) if name == "U" else dtype
            name = stored_name(own) if name == "S" else type_name(own)
        if name in _HALVES:
            return self.from_half(self.to_half(values[0], name), name)
        if name in _TYPES:
            return TypedText(self.converted(values[0], _TYPES[name]), _TYPES[name])
        return self.call(name, values)

    def _unified(self, x: TypedText, y: TypedText) -> tuple[TypedText, TypedText]:
        """Give both one type: literals take the type of the other operand."""
        dtype = x.dtype or y.dtype
        if dtype is None:
            raise NotInSubset("an expression of numbers alone")
        if x.dtype is not None and y.dtype is not None and x.dtype != y.dtype:
            raise NotInSubset(f"{x.dtype} together with {y.dtype}")
        return TypedText(self.converted(x, dtype), dtype), TypedText(
            self.converted(y, dtype), dtype
        )

    def _select(self, test: TypedText, x: TypedText, y: TypedText) -> TypedText:
        x, y = self._unified(x, y)
        return TypedText(f"({x.text} if {test.text} else {y.text})", x.dtype)

    # Functions

    def call(self, name: str, values: Sequence[TypedText]) -> TypedText:
        """Call a function of the kernel language."""
        if name == "select":
            return self._select(*values)
        if name == "divide":
            return binary("/", *self._unified(*values))
        dtype = next((v.dtype for v in values if v.dtype is not None), FLOAT64)
        name = next((n for n in of_kind(name, dtype) if n in written()), name)
        known = SCALAR_FUNCTIONS.get(name)
        device = name if name in LIBDEVICE else known.cuda if known else OWN
        if device:
            return self._libdevice(device, values, dtype)
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
        """Inline a function: emit its body and return its results."""
        parameters = [arg.arg for arg in function.args.args]
        names: dict[Leaf, TypedText] = {_OWN: TypedText("", dtype)}
        changed = {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for parameter, value in zip(parameters, values, strict=True):
            held = value.dtype or dtype
            typed = TypedText(self.converted(value, held), held)
            own = parameter in changed
            names[Name(parameter)] = (
                TypedText(self.temporary(typed.text), held)
                if own
                else self.named(typed)
            )
        *body, last = function.body
        self._block(body, names)
        assert isinstance(last, ast.Return)
        assert last.value is not None
        if not isinstance(last.value, ast.Tuple):
            return [self.visit(_of_tree(last.value), names)]
        return [
            self.named(self.visit(_of_tree(part), names)) for part in last.value.elts
        ]

    def _block(self, body: Sequence[ast.stmt], names: dict[Leaf, TypedText]) -> None:
        for statement in body:
            match statement:
                case ast.Assign([ast.Name(target)], value):
                    self._assign(target, self.visit(_of_tree(value), names), names)
                case ast.Assign([ast.Tuple(targets)], ast.Call(ast.Name(name), args)):
                    given = [self.visit(_of_tree(arg), names) for arg in args]
                    dtype = given[0].dtype
                    assert dtype is not None
                    found = self._inlined(written()[name], given, dtype)
                    for place, part in zip(targets, found, strict=True):
                        self._assign(ast.unparse(place), part, names)
                case ast.While(test, inside):
                    self.writer.line(f"while {self.visit(_of_tree(test), names).text}:")
                    with self.writer.indented():
                        self._block(inside, names)
                case _:
                    raise CompilerBug(f"no text for {ast.unparse(statement)}")

    def _assign(
        self, target: str, value: TypedText, names: dict[Leaf, TypedText]
    ) -> None:
        known = names.get(Name(target))
        if known is not None:
            assert known.dtype is not None
            self.writer.line(f"{known.text} = {self.converted(value, known.dtype)}")
            return
        dtype = value.dtype or FLOAT64
        names[Name(target)] = TypedText(
            self.temporary(self.converted(value, dtype)), dtype
        )


def of_kind(name: str, dtype: DType) -> list[str]:
    """Return the names of texts for one width, or kind, of the first argument."""
    kinds = {"f": ["float"], "i": ["int"], "u": ["uint", "int"]}.get(dtype.kind, [])
    return [f"{name}{8 * dtype.itemsize}", *(f"{name}_{kind}" for kind in kinds)]
