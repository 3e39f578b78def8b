"""Combination of the lanes' registers: warp shuffles, shared memory beyond.

A butterfly of shuffles gives every lane the same bits. What warps have is exchanged
through one shared array of 32 elements per type. Everything is in an order that depends
on the number of threads alone, so results repeat.
"""

from __future__ import annotations

from typing import Literal

from staticgrad.compiler.cuda.source.statement_lines import Statements
from staticgrad.compiler.cuda.source.typed_text import TypedText, number
from staticgrad.ir.types import BOOL, FLOAT32, FLOAT64, INT32, INT64, DType

Group = Literal["warp", "block", "warps"]

WARP: Group = "warp"
BLOCK: Group = "block"

MASK = "0xffffffff"  # all lanes take part


class LaneWriter:
    """Writer of collective operations of the lanes of a `group`.

    The group "warps" is a block whose warps have a value each.
    """

    def __init__(self, statements: Statements) -> None:
        self.statements = statements
        self.group: Group = WARP
        self.shared: dict[str, None] = {}

    @property
    def count(self) -> str:
        """Number of lanes."""
        return "uint32(32)" if self.group == WARP else "lanes"

    def synchronise(self) -> None:
        """Write a barrier, after which the other lanes' writes are visible."""
        self.statements.line(
            "cuda.syncwarp()" if self.group == WARP else "cuda.syncthreads()"
        )

    def combine(self, combine: str, register: TypedText) -> None:
        """Write the reduction of all lanes' `register`, known to every lane."""
        if self.group != "warps":
            self._butterfly(combine, register)
        if self.group != WARP:
            self._across(combine, register)

    def _butterfly(self, combine: str, register: TypedText) -> None:
        dtype = register.dtype
        assert dtype is not None
        for distance in (16, 8, 4, 2, 1):
            own = _wired(register, dtype)
            text = f"cuda.shfl_xor_sync({MASK}, {own}, {distance})"
            other = self.statements.expressions.temporary(text)
            value = TypedText(_unwired(other, dtype), dtype)
            self.statements.combine(combine, register, value)

    def _across(self, combine: str, register: TypedText) -> None:
        dtype, line = register.dtype, self.statements.line
        assert dtype is not None
        kind = wire(dtype)
        self.shared[kind.name] = None
        array, identity = (
            f"shared_{kind.name}",
            self.statements.identity(combine, dtype),
        )
        line("if uint32(thread & uint32(31)) == uint32(0):")
        line(f"    {array}[uint32(thread >> uint32(5))] = {_wired(register, dtype)}")
        line("cuda.syncthreads()")
        line(f"{register.text} = {identity}")
        line("if uint32(thread & uint32(31)) < uint32(lanes >> uint32(5)):")
        read = _unwired(f"{array}[uint32(thread & uint32(31))]", dtype)
        line(f"    {register.text} = {read}")
        self._butterfly(combine, register)
        line("cuda.syncthreads()")


def wire(dtype: DType) -> DType:
    """Return the type in which a value passes from lane to lane."""
    if dtype in (FLOAT32, FLOAT64):
        return dtype
    return INT64 if dtype.itemsize == 8 else INT32


def _wired(value: TypedText, dtype: DType) -> str:
    kind = wire(dtype)
    if dtype == kind:
        return value.text
    if dtype == BOOL:
        return f"({number(1, kind)} if {value.text} else {number(0, kind)})"
    return f"{kind.name}({value.text})"


def _unwired(text: str, dtype: DType) -> str:
    kind = wire(dtype)
    if dtype == kind:
        return text
    return (
        f"({text} != {number(0, kind)})" if dtype == BOOL else f"{dtype.name}({text})"
    )
