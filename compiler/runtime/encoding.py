"""Instructions as rows of words for the virtual machine; README.md lists the words.

A word is a number or says whose address it will be: of a buffer, of the row at a label,
of the status, of the first of a loop's moves. The rows of kernels are made before, all
at once; here they are put where they are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from staticgrad.compiler.kernel_ir.flat import FlatPlan
from staticgrad.compiler.kernel_ir.instruction_set import (
    Again,
    CallKernel,
    Clear,
    CommitPoint,
    Copy,
    End,
    Enter,
    Fill,
    Instruction,
    Jump,
    JumpTarget,
    Limit,
    Listen,
    Next,
    Note,
    RunRegion,
    Slot,
    Unless,
)
from staticgrad.compiler.runtime import revolve, vm
from staticgrad.compiler.runtime.native_code import Words, as_words
from staticgrad.errors import CompilerBug
from staticgrad.ir.size import Dim, evaluate

WORK_WORD = 10
"""The word of CALL and SPREAD with the additions of all chunks."""


class _Address(NamedTuple):
    """A word that will be the address of a buffer, or what else its `kind` says.

    "row" is that at a label, "moves" the first of a loop's, whose number is in the next
    word.
    """

    kind: Literal["buffer", "row", "moves", "status"]
    number: int = 0


_at, _to, _moves = (partial(_Address, kind) for kind in ("buffer", "row", "moves"))
STATUS = _Address("status")

_Row: TypeAlias = tuple[int | _Address, ...]


class Table:
    """The rows of a program, and which of their words wait for an address.

    `rows` have 0 there. `references` are (row, word, buffer) of those that wait for the
    address of a buffer, `jumps` (row, word, row) of a row, `statuses` (row, word) of
    the status, `loops` (row, word, loop) of a loop's moves. The kernels `called` have
    rows `kernel_rows`. `deaf_rows` can be told not to look at the stop cell.
    """

    def __init__(
        self,
        instructions: Iterable[Instruction | JumpTarget],
        plan: FlatPlan,
        sizes: Mapping[str, int],
        kernels: Words,
    ) -> None:
        self.spread_rows: list[int] = []
        self.deaf_rows: list[int] = []
        self.commit_row = -1
        self._plan = plan
        self._sizes = sizes
        self._kernels = kernels
        called: list[int] = []
        kernel_rows: list[int] = []
        others: list[tuple[int, _Row]] = []
        labels: dict[int, int] = {}
        row = 0
        for instruction in instructions:
            if type(instruction) is CallKernel:
                called.append(instruction.kernel)
                kernel_rows.append(row)
            elif isinstance(instruction, JumpTarget):
                labels[instruction.number] = row
                continue
            else:
                others.append((row, self._words(instruction, row)))
            row += 1
        self.called, self.kernel_rows = as_words(called), as_words(kernel_rows)
        self.rows: Words = np.zeros((row, vm.WORDS), np.int64)
        self.rows[self.kernel_rows] = kernels[self.called]
        self._fill(others, labels)

    def _fill(
        self, others: Iterable[tuple[int, _Row]], labels: Mapping[int, int]
    ) -> None:
        """Write the rows that are no calls."""
        found: dict[str, list[tuple[int, int, int]]]
        found = {kind: [] for kind in ("buffer", "row", "moves", "status")}
        for row, words in others:
            numbers = list(words)
            for place, word in enumerate(words):
                if isinstance(word, _Address):
                    found[word.kind].append((row, place, word.number))
                    numbers[place] = 0
            self.rows[row, : len(words)] = numbers
        self.references = as_words(found["buffer"], 3)
        self.loops = found["moves"]
        self.statuses = as_words(found["status"], 3)[:, :2]
        jumps = [(row, place, labels[label]) for row, place, label in found["row"]]
        self.jumps = as_words(jumps, 3)

    def _words(self, instruction: Instruction, row: int) -> _Row:
        """The words of an instruction that is no call."""
        sizes = self._plan.bytes
        match instruction:
            case Copy(source, target):
                return vm.COPY, _at(target), _at(source), sizes[source]
            case Fill(buffer):
                return vm.FILL, _at(buffer), 0xFF, sizes[buffer]
            case RunRegion(first, stop, parts):
                self.spread_rows.append(row)
                work = int(self._kernels[first:stop, WORK_WORD].sum())
                return vm.SPREAD, stop - first, 0, 0, 0, 0, parts, 0, 0, 0, work
            case CommitPoint():
                self.commit_row = row
                self.deaf_rows.append(row)
                return vm.COMMIT, STATUS
            case Listen():
                self.deaf_rows.append(row)
                return vm.LISTEN, STATUS
            case End():
                return (vm.END,)
            case _:
                return self._flow(instruction)

    def _flow(self, instruction: Instruction) -> _Row:
        """The words of control flow; `early` is it before the commit."""
        early = int(self.commit_row < 0)
        match instruction:
            case Enter(counter, loop, length, reverse, target):
                first, step, last, none = self._turns(length, reverse)
                return (vm.ENTER, _at(counter), first, _moves(loop), 0, _to(target),
                        step, last, 0, early, none)  # fmt: skip
            case Again(counter, loop, length, reverse, target):
                first, step, last, none = self._turns(length, reverse)
                return (vm.AGAIN, _at(counter), first, _moves(loop), 0, _to(target),
                        step, last, STATUS, early, none)  # fmt: skip
            case Unless(buffer, dtype, value, target):
                return vm.UNLESS, _at(buffer), value, dtype.itemsize, 0, _to(target)
            case Limit(buffer, value, number, _, target):
                return (vm.LIMIT, _at(buffer), value, number, 0, _to(target),
                        0, 0, STATUS)  # fmt: skip
            case Jump(target):
                return vm.JUMP, _to(target)
            case Clear(state):
                return vm.FILL, _at(state), 0, 8 * revolve.HEADER
            case Note(state, kept, target):
                return vm.NOTE, _at(state), kept, 0, 0, _to(target)
            case Slot(carry, room, state, back):
                size = self._plan.bytes[carry]
                return vm.KEEP, _at(carry), _at(room), _at(state), size, int(back)
            case Next(state, steps, counter, loop, kept, _, targets):
                reverse_at, store, restore, done = map(_to, targets)
                return (vm.NEXT, _at(state), kept, _moves(loop), 0, reverse_at, store,
                        restore, STATUS, early, done, 0, _at(steps), _at(counter),
                        )  # fmt: skip
        raise CompilerBug(f"the machine has no instruction {instruction}")

    def _turns(self, length: Dim | None, reverse: bool) -> tuple[int, int, int, int]:
        """First position of a loop, step, last position, whether there are none."""
        if length is None:
            return 0, 1, -1, 0
        steps = max(evaluate(length, self._sizes), 0)
        if reverse:
            return steps - 1, -1, 0, int(steps == 0)
        return 0, 1, steps - 1, int(steps == 0)
