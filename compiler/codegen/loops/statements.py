"""Text of a kernel's statements, and names of its values.

Values are called v0, v1... in order of appearance, registers of reductions r0..., axes
i0..., symbolic sizes n0... and pointers p0... (operands) and s0... (scratch). Nothing
of the user's program and no number of a node is in them, so kernels that do the same
are the same text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from staticgrad.compiler.codegen.language import stored_name, type_name
from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Accumulate,
    Block,
    CheckIndex,
    Combine,
    Compute,
    Index,
    Initial,
    Invoke,
    Load,
    Number,
    Statement,
    Store,
)
from staticgrad.errors import CompilerBug
from staticgrad.ir.expression import Apply, Arg, Expr, Leaf, Literal, Name, text, walk
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.size import Dim
from staticgrad.ir.types import DType, is_half, kind_of

_ACCUMULATE: dict[Combine, str] = {
    "add": "accumulate_add",
    "multiply": "accumulate_multiply",
    "maximum": "maximum",
    "minimum": "minimum",
    "and": "c_and",
    "or": "c_or",
}

_RANK = {"maximum": "rank_high", "minimum": "rank_low"}

_FUNCTION = re.compile("[a-z_]+")


class ValueNames:
    """Names of values, registers and sizes, assigned on first use."""

    def __init__(self) -> None:
        self.sizes: dict[Dim, str] = {}
        self._values: dict[int, str] = {}
        self._dtypes: dict[int, DType] = {}
        self._count = 0
        self._registers = 0

    def dim(self, dim: Dim) -> str:
        """Return a size: a literal, or the name of a symbolic one."""
        if isinstance(dim, int):
            return str(dim)
        return self.sizes.setdefault(dim, f"n{len(self.sizes)}")

    def value(self, number: int) -> str:
        """Return the text of a value that has been defined."""
        return self._values[number]

    def dtype(self, number: int) -> DType:
        """Return the dtype of a value that has been defined."""
        return self._dtypes[number]

    def define(self, number: int, dtype: DType) -> str:
        """Name a new value; the same for one that is defined again."""
        if number not in self._values:
            self._values[number] = f"v{self._count}"
            self._count += 1
        self._dtypes[number] = dtype
        return self._values[number]

    def register(self, number: int, dtype: DType) -> str:
        """Name a register."""
        if number not in self._values:
            self._values[number] = f"r{self._registers}"
            self._registers += 1
        self._dtypes[number] = dtype
        return self._values[number]

    def ranked(self, number: int, dtype: DType) -> str:
        """Name a register of ranks; as a value it is the float of the rank."""
        name = self.register(number, dtype)
        if name.startswith("from_rank"):
            return name.removeprefix("from_rank(").removesuffix(")")
        self._values[number] = f"from_rank({name})"
        return name

    def literal(self, number: int, value: Any, dtype: DType) -> None:
        """Make a value a literal, written out wherever it is used."""
        self._values[number] = literal(value, dtype)
        self._dtypes[number] = dtype


def is_ranked(combine: Combine, dtype: DType) -> bool:
    """Whether a register holds ranks of floats instead of floats; see ranks.py."""
    return combine in _RANK and kind_of(dtype) == "f"


def statement_text(statement: Statement, names: ValueNames) -> str:
    """Return the line of a statement other than a Loop; empty for a Number."""
    match statement:
        case Number(result, value, dtype):
            names.literal(result, value, dtype)
            return ""
        case Load(result, access, dtype):
            text = f"load({access_text(access, names)})"
            return f"{names.define(result, dtype)} = {text}"
        case Store(access, value):
            return f"store({access_text(access, names)}, {names.value(value)})"
        case Compute():
            text = _compute_text(statement, names)
            return f"{names.define(statement.result, statement.dtype)} = {text}"
        case Index(result, strides, offset):
            text = index_text(strides, offset, names)
            text = f"int64({text})"
            return f"{names.define(result, np.dtype(np.int64))} = {text}"
        case CheckIndex():
            return _check_text(statement, names)
        case Invoke():
            return _invoke_text(statement, names)
        case Initial(register, combine, dtype):
            text = literal(identity(combine, dtype), dtype)
            if is_ranked(combine, dtype):
                return f"{names.ranked(register, dtype)} = {_RANK[combine]}({text})"
            return f"{names.register(register, dtype)} = {text}"
        case Accumulate():
            return _accumulate_text(statement, names)
    raise CompilerBug(f"codegen requires a statement, got {statement!r}")


def _compute_text(statement: Compute, names: ValueNames) -> str:
    """The expression of a Compute, converted to its dtype where that may be needed."""
    found = expression_text(statement.expr, statement, names)
    dtypes = [names.dtype(number) for number in statement.args]
    if _keeps_type(statement.expr, statement.dtype, dtypes):
        return found
    return f"{type_name(statement.dtype)}({found})"


def expression_text(expr: Expr, statement: Compute, names: ValueNames) -> str:
    """An expression of what a statement computes from."""
    heads = {"T": type_name(statement.dtype), "S": stored_name(statement.dtype)}

    def show(part: Leaf | str | Foreign) -> str:
        match part:
            case Arg(place):
                return names.value(statement.args[place])
            case Literal(value):
                return value if isinstance(value, str) else names.dim(value)
            case Name(name):
                return name
            case Foreign():
                return part.symbol
        return heads.get(part, part)

    return text(expr, show)


def access_text(access: Access, names: ValueNames) -> str:
    """Return ``pointer, index``, the arguments of load and store."""
    number = access.operand
    pointer = f"p{number}" if number >= 0 else f"s{-1 - number}"
    index = index_text(access.strides, access.offset, names, access.dynamic)
    return f"{pointer}, {index}"


def index_text(
    strides: Sequence[Dim],
    offset: Dim,
    names: ValueNames,
    dynamic: tuple[int, Dim] | None = None,
) -> str:
    """Return ``offset + sum(strides * indices) + dynamic``.

    >>> index_text((64, 0, -1), 3, ValueNames())
    'i0 * 64 - i2 + 3'
    """
    terms = [
        _scaled(f"i{axis}", stride, names)
        for axis, stride in enumerate(strides)
        if stride != 0
    ]
    if dynamic is not None:
        terms.append(_scaled(names.value(dynamic[0]), dynamic[1], names))
    if offset != 0 or not terms:
        terms.append(names.dim(offset))
    return " + ".join(terms).replace("+ -", "- ")


def literal(value: Any, dtype: DType) -> str:
    """Return a number in source, converted to `dtype` when compiled.

    >>> literal(0.1, np.dtype("float32")), literal(-np.inf, np.dtype("float64"))
    ('float32(0.1)', 'float64(-inf)')
    >>> literal(0.1, np.dtype("float16"))
    'float32(0.0999755859375)'
    """
    kind = type_name(dtype)
    if kind_of(dtype) == "b":
        return f"{kind}({bool(value)})"
    if kind_of(dtype) != "f":
        return f"{kind}({int(value)})"
    if is_half(dtype):
        return f"{kind}({float(dtype.type(value))!r})"
    short = str(dtype.type(value))
    exact = dtype.type(float(short)) == dtype.type(value)
    return f"{kind}({short if exact or value != value else repr(float(value))})"


def identity(combine: Combine, dtype: DType) -> float | int | bool:
    """Return the identity of `combine`."""
    if combine in ("add", "multiply"):
        return int(combine == "multiply")
    if combine in ("and", "or"):
        return combine == "and"
    sign = -1 if combine == "maximum" else 1
    if kind_of(dtype) == "f":
        return sign * float("inf")
    if kind_of(dtype) == "b":
        return sign > 0
    limits = np.iinfo(dtype)
    return int(limits.min if sign < 0 else limits.max)


def _scaled(name: str, stride: Dim, names: ValueNames) -> str:
    if stride == 1:
        return name
    return f"-{name}" if stride == -1 else f"{name} * {names.dim(stride)}"


def _keeps_type(expr: Expr, dtype: DType, dtypes: Sequence[DType]) -> bool:
    """True if the expression is sure to have its arguments' type, and that is dtype.

    So have functions and, of floats, + - *; a name with a digit may be of a type.
    """
    if kind_of(dtype) not in "fb" or any(other != dtype for other in dtypes):
        return False
    return _is_plain(expr, "+-*" if kind_of(dtype) == "f" else "")


@cache
def _is_plain(expr: Expr, arithmetic: str) -> bool:
    calls = [part for part in walk(expr) if not isinstance(part, Arg)]
    return all(
        isinstance(call, Apply)
        and isinstance(call.name, str)
        and (call.name in arithmetic or _FUNCTION.fullmatch(call.name))
        for call in calls
    )


def _check_text(statement: CheckIndex, names: ValueNames) -> str:
    arguments = (
        names.value(statement.value),
        names.dim(statement.extent),
        names.value(statement.position),
        f"site + {statement.site}",
        "status",
        str(statement.wrap),
    )
    result = names.define(statement.result, np.dtype(np.int64))
    return f"{result} = check_index({', '.join(arguments)})"


def _invoke_text(statement: Invoke, names: ValueNames) -> str:
    """Return a call with arrays, or, of a Python function, with addresses and sizes."""
    where = (names.value(statement.position), f"site + {statement.site}", "status")
    if statement.target < 0:
        arrays = [_array_text(*a, names) for a in _with_mode(statement)]
        return f"{statement.function.symbol}({', '.join((*arrays, *where))})"
    words = [names.value(statement.target)]
    for block in statement.arrays:
        words.append(f"address_of({access_text(block.first, names)})")
        words += [names.dim(size) for size in block.shape]
    return f"{statement.function.symbol}({', '.join((*words, *where))})"


def _with_mode(statement: Invoke) -> list[tuple[Block, bool]]:
    first = len(statement.arrays) - statement.results
    return [(block, n >= first) for n, block in enumerate(statement.arrays)]


def _array_text(block: Block, is_result: bool, names: ValueNames) -> str:
    shape = "".join(f"{names.dim(size)}, " for size in block.shape)
    kind = "filled" if is_result else "seen"
    place = access_text(block.first, names)
    return f"{kind}({place}, {f'({shape.strip()})' if shape else None})"


def _accumulate_text(statement: Accumulate, names: ValueNames) -> str:
    value = names.value(statement.value)
    if names.dtype(statement.value) != statement.dtype:
        value = f"{type_name(statement.dtype)}({value})"
    if is_ranked(statement.combine, statement.dtype):
        register = names.ranked(statement.register, statement.dtype)
        rank = f"{_RANK[statement.combine]}({value})"
        return f"{register} = {_ACCUMULATE[statement.combine]}({register}, {rank})"
    register = names.register(statement.register, statement.dtype)
    return f"{register} = {_ACCUMULATE[statement.combine]}({register}, {value})"
