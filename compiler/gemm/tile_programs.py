"""Tile programs: an elementwise loop as steps interleaved with those of a product.

A step names the steps and operands that it takes (see schemes.Update). Loops are over
all elements or over rows and columns; an operand of a step has the layout of the
product's result, or one element for each column, or one for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from staticgrad.compiler.codegen.tiles.epilogue_tiles import FUNCTIONS, RELATIONS
from staticgrad.compiler.kernel_ir.kernels import (
    Compute,
    Load,
    Loop,
    LoopKernel,
    Mode,
    Number,
    Operand,
    Reach,
    Statement,
    Store,
)
from staticgrad.compiler.kernel_ir.layouts import COPIED
from staticgrad.compiler.kernel_ir.schemes import Act
from staticgrad.ir.expression import Expr, function_of
from staticgrad.ir.size import Dim
from staticgrad.ir.types import BOOL, FLOAT64, DType

OPERATIONS = {"*": "multiply", "+": "add", "-": "subtract"} | {
    name: name for name in (*FUNCTIONS, "divide", "negative", "select")
}


@dataclass(frozen=True, slots=True)
class TileProgram:
    """Elementwise loop as steps, with the operands that they name."""

    steps: tuple[Act, ...]
    operands: tuple[Operand, ...]
    reaches: tuple[Reach, ...]


@dataclass(frozen=True, slots=True)
class Reaches:
    """Ranges that an index of axis 0 touches: of the result, and of its columns."""

    result: Reach
    columns: Reach


def program_of(loop: LoopKernel, made: int, reaches: Reaches) -> TileProgram | None:
    """Return the steps of an elementwise loop; None if it has other statements.

    `made` is the buffer that the product would write.
    """
    statements = _statements(loop)
    if statements is None:
        return None
    writing = _Writing(loop, made, reaches)
    for statement in statements:
        if not writing.take(statement):
            return None
    return writing.program()


def _statements(loop: LoopKernel) -> list[Statement] | None:
    """Return the statements for each element; None unless perfectly nested."""
    found: list[Statement] = []
    body: Sequence[Statement] = loop.body
    for axis in range(len(loop.axes)):
        *before, last = body
        if not isinstance(last, Loop) or last.axis != axis or last.polled:
            return None
        found += before
        body = last.body
    return [*found, *body]


class _Writing:
    """Steps of a loop that have been written."""

    def __init__(self, loop: LoopKernel, made: int, reaches: Reaches) -> None:
        self.loop, self.made, self.reaches_of = loop, made, reaches
        self.dtype = next(o.dtype for o in loop.operands if o.buffer == made)
        self.rows: tuple[Dim, ...] = (1,)
        self.columns: tuple[Dim, ...] | None = None
        if len(loop.axes) > 1:
            self.rows, self.columns = (loop.axes[1], 1), (0, 1)
        self.steps: list[Act] = []
        self.value: dict[int, int] = {}  # of the loop -> the step that makes it
        self.wide: dict[int, tuple[int, int]] = {}
        self.place: dict[int, int] = {}  # buffer -> operand
        self.operands: list[Operand] = []
        self.reaches: list[Reach] = []

    def program(self) -> TileProgram:
        """Return the whole program."""
        return TileProgram(tuple(self.steps), tuple(self.operands), tuple(self.reaches))

    def take(self, statement: Statement) -> bool:
        """Write a statement; return False where that is impossible."""
        match statement:
            case Number() if statement.dtype == self.dtype:
                number = float(statement.value)
                self.value[statement.result] = len(self.steps)
                self.steps.append(Act("number", (), number))
                return isfinite(number)
            case Load():
                return self._load(statement)
            case Store():
                return self._store(statement)
            case Compute():
                return self._compute(statement)
        return False

    def _add(self, result: int, name: str, *args: int) -> bool:
        self.value[result] = len(self.steps)
        self.steps.append(Act(name, args))
        return True

    def _load(self, load: Load) -> bool:
        operand = self.loop.operands[load.access.operand]
        steps, start = load.access.strides, load.access.offset
        if load.access.operand < 0 or load.access.dynamic or not isinstance(start, int):
            return False
        if load.dtype != self.dtype:
            return self._load_wide(load, operand, start)
        if operand.buffer == self.made:
            return (
                steps == self.rows and start == 0 and self._add(load.result, "product")
            )
        if steps == self.rows and start == 0:
            number = self._operand(operand, "read", self.reaches_of.result)
            return number >= 0 and self._add(load.result, "element", number)
        if steps == self.columns and start == 0:
            number = self._operand(operand, "read", self.reaches_of.columns)
            return number >= 0 and self._add(load.result, "column", number)
        if any(steps):
            return False
        number = self._operand(operand, "read", Reach(0, start, start))
        return number >= 0 and self._add(load.result, "single", number, start)

    def _load_wide(self, load: Load, operand: Operand, start: int) -> bool:
        """Load one float64 number that the loop then rounds: a learning rate."""
        if load.dtype != FLOAT64 or any(load.access.strides):
            return False
        number = self._operand(operand, "read", Reach(0, start, start))
        self.wide[load.result] = number, start
        return number >= 0

    def _store(self, store: Store) -> bool:
        access = store.access
        operand = self.loop.operands[access.operand]
        plain = access.operand >= 0 and not access.dynamic and not operand.per_chunk
        if not plain or access.strides != self.rows or access.offset != 0:
            return False
        if operand.dtype not in (self.dtype, BOOL):
            return False
        number = self._operand(operand, "write", self.reaches_of.result)
        if number < 0:
            return False
        name = "mark" if operand.dtype == BOOL else "store"
        self.steps.append(Act(name, (number, self.value[store.value])))
        return True

    def _compute(self, compute: Compute) -> bool:
        if function_of(compute.expr) == "S" and compute.args[0] in self.wide:
            return self._add(compute.result, "rounded", *self.wide[compute.args[0]])
        if any(argument not in self.value for argument in compute.args):
            return False
        places = [self.value[argument] for argument in compute.args]
        if compute.expr == COPIED:
            self.value[compute.result] = places[0]
            return True
        name = _name_of(compute.expr, compute.dtype, self.dtype)
        return name is not None and self._add(compute.result, name, *places)

    def _operand(self, operand: Operand, mode: Mode, reach: Reach) -> int:
        """Return the operand of a buffer; -1 where it would be read in two ways."""
        number = self.place.setdefault(operand.buffer, len(self.operands))
        if number == len(self.operands):
            self.operands.append(replace(operand, mode=mode))
            self.reaches.append(reach)
        elif self.reaches[number] != reach:
            return -1
        elif self.operands[number].mode != mode:
            self.operands[number] = replace(operand, mode="update")
        return number


def _name_of(expr: Expr, made: DType, dtype: DType) -> str | None:
    """The operation that an expression is, of numbers of `dtype`."""
    name = function_of(expr)
    if made == BOOL:
        return name if name in RELATIONS else None
    return OPERATIONS.get(name) if made == dtype else None
