"""Text of loops that search; see searching.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from staticgrad.compiler.codegen.loops.extremes import LARGEST
from staticgrad.compiler.codegen.loops.searching import Extreme, extremes_of, search_of
from staticgrad.compiler.codegen.loops.statements import ValueNames, access_text
from staticgrad.compiler.codegen.text_emitter import Writer
from staticgrad.compiler.kernel_ir.kernels import (
    Accumulate,
    Loop,
    LoopKernel,
    Number,
    Statement,
)
from staticgrad.compiler.kernel_ir.walks import statements_of


class Text(Protocol):
    """Writer of a kernel's text, as far as searches need it."""

    writer: Writer
    names: ValueNames

    def statements(self, body: tuple[Statement, ...], exact: bool) -> None:
        """Write `body`."""

    def steps(self, loop: Loop, first: str, last: str) -> None:
        """Write a plain loop from one index to another."""


class Searches:
    """Searching loops of a kernel."""

    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel
        every = list(statements_of(kernel.body))
        ends = (s.combine for s in every if isinstance(s, Accumulate))
        self.any = not all(combine in ("add", "multiply") for combine in ends)
        self.numbers: dict[int | None, Statement] = {
            s.result: s for s in every if self.any and isinstance(s, Number)
        }
        self.extremes = extremes_of(kernel, self.numbers) if self.any else {}
        self.places = {id(found.search): found for found in self.extremes.values()}

    def write(self, text: Text, loop: Loop, first: str, last: str) -> bool:
        """Write the loop, if it searches or is searched for."""
        whole = first == "0"
        if whole and id(loop) in self.extremes:
            return self.extremes[id(loop)].alone
        if whole and id(loop) in self.places:
            _write_place(text, loop, self.places[id(loop)], last)
            return True
        return self._write_search(text, loop, first, last)

    def _write_search(self, text: Text, loop: Loop, first: str, last: str) -> bool:
        """Write a loop in blocks, which stop once nothing can change."""
        search = search_of(loop, self.kernel, self.numbers) if self.any else None
        if search is None:
            return False
        line, axis = text.writer.line, loop.axis
        part, end, found = f"part{axis}", f"end{axis}", f"found{axis}"
        done = [_is(text, register, value) for register, value in search.registers]
        line(f"for {part} in range({first}, {last}, {search.block}):")
        with text.writer.indented():
            line(f"{end} = minimum({part} + {search.block}, {last})")
            line(f"{end} = select({_joined('c_and', done)}, {part}, {end})")
            if not search.look:
                text.steps(loop, part, end)
                return True
            line(f"{found} = boolean(False)")
            line(f"for i{axis} in range({part}, {end}):")
            with text.writer.indented():
                text.statements(search.look, exact=True)
                finds = [_is(text, value, truth) for value, truth in search.finds]
                line(f"{found} = c_or({found}, {_joined('c_or', finds)})")
            line(f"if {found}:")
            with text.writer.indented():
                text.steps(loop, part, end)
        return True


def _write_place(text: Text, loop: Loop, extreme: Extreme, count: str) -> None:
    """Write both loops as one call."""
    access = extreme.elements.access
    strides = (*access.strides[: loop.axis], 0, *access.strides[loop.axis + 1 :])
    start = access_text(replace(access, strides=strides), text.names)
    call = f"place_of_extreme({start}, {count}, {extreme.sign})"
    text.writer.line(f"{text.names.value(extreme.place)} = {call}")


def _is(text: Text, value: int, truth: bool | None) -> str:
    """Return the test of a bool, or that a place has been found."""
    name = text.names.value(value)
    if truth is None:
        return f"{name} != {LARGEST}"
    return name if truth else f"c_not({name})"


def _joined(function: str, tests: Sequence[str]) -> str:
    found = tests[0]
    for test in tests[1:]:
        found = f"{function}({found}, {test})"
    return found
