"""Statements of a kernel in the CUDA subset.

Indices are uint32 and wrap, so that negative strides need no care; values keep their
own types. Pointers are raw: p0... of operands, s0... of scratch, of which each worker
has its own part. Symbolic sizes n0... are int64.
"""

from __future__ import annotations

from collections.abc import Sequence

from staticgrad.compiler.codegen.language import type_name
from staticgrad.compiler.codegen.loops.statements import identity
from staticgrad.compiler.codegen.status import INDEX_OUT_OF_RANGE, RAISED
from staticgrad.compiler.codegen.text_emitter import Writer
from staticgrad.compiler.cuda.source.expression_text import Expressions
from staticgrad.compiler.cuda.source.typed_text import NotInSubset, TypedText, number
from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Accumulate,
    CheckIndex,
    Compute,
    Index,
    Initial,
    Load,
    LoopKernel,
    Number,
    Statement,
    Store,
    Tiles,
    calls_of,
)
from staticgrad.ir.expression import Arg, Leaf, Literal, walk
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.size import Dim, Size
from staticgrad.ir.source import at
from staticgrad.ir.types import BOOL, INT64, DType, computed, is_half

CODE, SITE, POSITION, VALUE, EXTENT = range(1, 6)
"""Words of the status, as on the cpu; word 0 is the lock."""


class Statements:
    """Writer of statements, with the names of values, registers and sizes."""

    def __init__(self, kernel: LoopKernel, writer: Writer) -> None:
        self.kernel = kernel
        self.writer = writer
        self.expressions = Expressions(writer)
        self.sizes: dict[Dim, str] = {}
        self.values: dict[int, TypedText] = {}
        self.functions: dict[Foreign, None] = {}
        self.worker = "uint32(0)"
        self._count = 0
        self._registers = 0

    def line(self, text: str, comment: str = "") -> None:
        """Write a line at the current depth."""
        self.writer.line(text, comment)

    # Sizes and places

    def dim(self, dim: Dim) -> str:
        """Return a size as an int64: a literal, or the name of a symbolic one."""
        if isinstance(dim, int):
            return f"int64({dim})"
        return self.sizes.setdefault(dim, f"n{len(self.sizes)}")

    def count(self, dim: Dim) -> str:
        """Return a size as a uint32; negative ones wrap."""
        if isinstance(dim, int):
            return f"uint32({dim & 0xFFFFFFFF})"
        return f"uint32({self.dim(dim)})"

    def index(
        self, strides: Sequence[Dim], offset: Dim, dynamic: tuple[int, Dim] | None
    ) -> str:
        """Return ``offset + sum(strides * indices) + dynamic`` as a uint32."""
        terms = [
            f"i{axis}" if stride == 1 else f"i{axis} * {self.count(stride)}"
            for axis, stride in enumerate(strides)
            if stride != 0
        ]
        if dynamic is not None:
            value, stride = dynamic
            text = f"uint32({self.values[value].text})"
            terms.append(text if stride == 1 else f"{text} * {self.count(stride)}")
        if offset != 0 or not terms:
            terms.append(self.count(offset))
        if len(terms) == 1 and "*" not in terms[0]:
            return terms[0]
        return f"uint32({' + '.join(terms)})"

    def place(self, access: Access) -> str:
        """Return ``pointer[index]``."""
        where = self.index(access.strides, access.offset, access.dynamic)
        if access.operand >= 0:
            operand = self.kernel.operands[access.operand]
            if operand.per_chunk:
                where = f"uint32(chunk * {self.count(operand.slot)} + {where})"
            return f"p{access.operand}[{where}]"
        area = -1 - access.operand
        extent = self.count(self.kernel.scratch[area].extent)
        return f"s{area}[uint32({self.worker} * {extent} + {where})]"

    def decode(self, axes: Sequence[int], position: str) -> None:
        """Write the indices of `axes` from their flat position, last axis fastest."""
        if len(axes) == 1:
            self.line(f"i{axes[0]} = {position}")
            return
        rest = position
        for axis in reversed(axes[1:]):
            extent = self.count(self.kernel.axes[axis])
            quotient = self.expressions.temporary(f"uint32({rest} // {extent})")
            self.line(f"i{axis} = uint32({rest} - {quotient} * {extent})")
            rest = quotient
        self.line(f"i{axes[0]} = {rest}")

    # Values

    def define(self, value: int, text: str, dtype: DType, comment: str = "") -> None:
        """Write the definition of a value under a new name."""
        name = f"v{self._count}"
        self._count += 1
        self.line(f"{name} = {text}", comment)
        self.values[value] = TypedText(name, dtype)

    def start(self, value: int, combine: str, dtype: DType) -> TypedText:
        """Write a register that holds the identity of `combine`."""
        name, dtype = f"r{self._registers}", computed(dtype)
        self._registers += 1
        self.line(f"{name} = {self.identity(combine, dtype)}")
        self.values[value] = TypedText(name, dtype)
        return self.values[value]

    def identity(self, combine: str, dtype: DType) -> str:
        """Return the literal of the identity of `combine`."""
        return number(identity(combine, dtype), dtype)  # type: ignore[arg-type]

    def combine(self, combine: str, register: TypedText, value: TypedText) -> None:
        """Write the combination of a value into a register."""
        assert register.dtype is not None
        converted = TypedText(
            self.expressions.converted(value, register.dtype), register.dtype
        )
        text = self.expressions.combined(combine, register, converted)
        self.line(f"{register.text} = {text}")

    def write(self, statement: Statement) -> None:
        """Write a statement other than a loop."""
        match statement:
            case Number(result, value, dtype):
                self.values[result] = TypedText(
                    number(_rounded(value, dtype), computed(dtype)), computed(dtype)
                )
            case Load(result, access, dtype):
                place = self.place(access)
                self.define(
                    result, self.expressions.loaded(place, dtype), computed(dtype)
                )
            case Store(access, value):
                place = self.place(access)
                text = self.expressions.stored(self.values[value], self.kept_as(access))
                self.line(f"{place} = {text}")
            case Compute():
                self._compute(statement)
            case Index(result, strides, offset):
                self.define(result, self._index_value(strides, offset), INT64)
            case CheckIndex():
                self._check(statement)
            case Initial(register, combine, dtype):
                self.start(register, combine, dtype)
            case Accumulate(register, combine, value, _):
                self.combine(combine, self.values[register], self.values[value])
            case Tiles():
                raise NotInSubset(f"the scheme {type(statement.scheme).__name__}")
            case _:
                raise NotInSubset(f"the statement {type(statement).__name__}")

    def kept_as(self, access: Access) -> DType:
        """Return the dtype of the elements that an access reaches."""
        if access.operand < 0:
            return self.kernel.scratch[-1 - access.operand].dtype
        return self.kernel.operands[access.operand].dtype

    def _compute(self, compute: Compute) -> None:
        for function, _ in calls_of(compute):
            self._call(function, compute)
            return
        leaves: dict[Leaf, TypedText] = {
            Arg(place): self.values[number] for place, number in enumerate(compute.args)
        }
        for part in walk(compute.expr):
            if isinstance(part, Literal) and isinstance(part.value, Size):
                leaves[part] = TypedText(self.dim(part.value), INT64)
        text = self.expressions.text(compute.expr, leaves, compute.dtype)
        dtype = computed(compute.dtype)
        self.define(compute.result, text, dtype, self._origin(compute.site))

    def _call(self, function: Foreign, compute: Compute) -> None:
        """Write a call of a user's function, which returns result and failure flag."""
        self.functions[function] = None
        *args, position = (self.values[number] for number in compute.args)
        given = ", ".join(value.text for value in args)
        found = self.expressions.temporary(f"{function.symbol}({given})")
        self.line(f"if {found}[1]:")
        with self.writer.indented():
            site = f"int64(site + int64({compute.site}))"
            self._report(RAISED, site, position.text, "int64(0)", "int64(0)")
        dtype = computed(compute.dtype)
        result = f"{found}[0]"
        text = f"({result} != 0)" if dtype == BOOL else f"{type_name(dtype)}({result})"
        self.define(compute.result, text, dtype, self._origin(compute.site))

    def _origin(self, site: int) -> str:
        if site < 0:
            return ""
        found = self.kernel.sites[site]
        return f"{found.op}{at(found.source)}"

    def _index_value(self, strides: Sequence[Dim], offset: Dim) -> str:
        terms = [
            f"int64(i{axis}) * {self.dim(stride)}"
            for axis, stride in enumerate(strides)
            if stride != 0
        ]
        if offset != 0 or not terms:
            terms.append(self.dim(offset))
        return f"int64({' + '.join(terms)})"

    def _check(self, check: CheckIndex) -> None:
        given, extent = self.values[check.value].text, self.dim(check.extent)
        index = given
        if check.wrap:
            index = self.expressions.temporary(
                f"(int64({given} + {extent}) if {given} < int64(0) else {given})"
            )
        fits = self.expressions.temporary(
            f"({index} >= int64(0)) & ({index} < {extent})"
        )
        self.line(f"if {fits} ^ True:", self._origin(check.site))
        with self.writer.indented():
            where = self.values[check.position].text
            site = f"int64(site + int64({check.site}))"
            self._report(INDEX_OUT_OF_RANGE, site, where, given, extent)
        self.define(check.result, f"({index} if {fits} else int64(0))", INT64)

    def _report(
        self, kind: int, site: str, position: str, value: str, extent: str
    ) -> None:
        """Write a report under the lock; only the first, or a lower place, is kept.

        The lock is given back inside of the loop that waits for it: lanes that have to
        meet behind the loop then never wait for one that holds it.
        """
        line = self.line
        line("going = True")
        line("while going:")
        line("    if cuda.atomic.cas(status, 0, 0, 1) == 0:")
        line("        cuda.threadfence()")
        for name, word in (("code", CODE), ("old", SITE), ("place", POSITION)):
            line(f"        {name} = cuda.atomic.add(status, {word}, 0)")
        nearer = f"({site} == old) & ({position} < place)"
        line(f"        if (code == 0) | ({site} < old) | ({nearer}):")
        words = {SITE: site, POSITION: position, VALUE: value, EXTENT: extent}
        for word, text in words.items():
            line(f"            cuda.atomic.exch(status, {word}, {text})")
        line(f"            cuda.atomic.exch(status, {CODE}, {kind})")
        line("        cuda.threadfence()")
        line("        cuda.atomic.exch(status, 0, 0)")
        line("        going = False")


def _rounded(value: float | int | bool, dtype: DType) -> float | int | bool:
    """Round a number to `dtype`."""
    return float(dtype.type(value)) if is_half(dtype) else value
