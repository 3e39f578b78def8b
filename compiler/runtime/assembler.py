"""Programs for the virtual machine, written instruction by instruction.

An Assembler collects instructions, labels and cells (single numbers in memory that
programs and Python share) and `finish` turns them into a Program. The instructions are
explained in README.md, with an example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime import vm
from staticgrad.compiler.runtime.scalar_reads import CODES
from staticgrad.errors import CompilerBug
from staticgrad.ir.storage import bring_home
from staticgrad.ir.types import kind_of

Array = npt.NDArray[Any]


class Runnable(Protocol):
    """Anything with a program that ends with END."""

    @property
    def pc(self) -> int:
        """Address of the first instruction."""

    @property
    def depth(self) -> int:
        """Nesting depth of programs that run others, itself included."""


class Cell:
    """int64 or float64 in memory, read and written from Python by `value`."""

    __slots__ = ("address", "array")

    def __init__(self, value: float, dtype: npt.DTypeLike = np.int64) -> None:
        self.array = np.full(1, value, dtype)
        self.address = int(self.array.ctypes.data)

    @property
    def value(self) -> Any:
        """Number that the cell holds now."""
        return self.array[0].item()

    @value.setter
    def value(self, number: float) -> None:
        self.array[0] = number


@dataclass(slots=True)
class ProgramLabel:
    """A place in a program; `row` is -1 until it is placed."""

    row: int = -1


@dataclass(frozen=True, slots=True)
class Program:
    """Finished table of instructions and everything that it points to."""

    table: npt.NDArray[np.int64]
    depth: int
    owned: tuple[Any, ...] = field(repr=False, default=())

    @property
    def pc(self) -> int:
        """Address of the first instruction."""
        return int(self.table.ctypes.data)

    def run(self, stop: Cell) -> int:
        """Run it; see `vm.run` for what is returned."""
        bring_home()
        return vm.run(self.pc, stop.address)


class Assembler:
    """Collector of instructions in order; numbers become constant cells."""

    def __init__(self) -> None:
        self.cells: dict[str, Cell] = {}
        self._rows: list[tuple[int | ProgramLabel, ...]] = []
        self._owned: list[Any] = []
        self._constants: dict[tuple[type, float], Cell] = {}
        self._depth = 1

    def cell(self, name: str, value: int = 0) -> Cell:
        """Make an int64 cell, also found as ``cells[name]``."""
        return self._named(name, Cell(value, np.int64))

    def real(self, name: str, value: float = 0.0) -> Cell:
        """Make a float64 cell, also found as ``cells[name]``."""
        return self._named(name, Cell(value, np.float64))

    def label(self) -> ProgramLabel:
        """A label to be placed later; jumps may name it before."""
        return ProgramLabel()

    def place(self, label: ProgramLabel | None = None) -> ProgramLabel:
        """Put `label` (or a new one) before the next instruction."""
        label = label or ProgramLabel()
        if label.row >= 0:
            raise CompilerBug("a label is placed twice")
        label.row = len(self._rows)
        return label

    def run(self, program: Runnable) -> None:
        """RUN: run another program and continue after it."""
        self._depth = max(self._depth, program.depth + 1)
        if self._depth > vm.MOST_NESTED:
            raise CompilerBug(f"programs are nested more than {vm.MOST_NESTED} deep")
        self._owned.append(program)
        self._add(vm.RUN, program.pc)

    def shuffle(self, order: Array, count: Cell | int, seed: Cell, epoch: Cell) -> None:
        """SHUFFLE: fill `order` (int64) with a permutation of 0..count-1."""
        _check_order(order)
        counted = self._cell(count)
        self._add(
            vm.SHUFFLE, self._address(order), counted, seed.address, epoch.address
        )
        self._owned += [seed, epoch]

    def gather(
        self, target: Array, source: Array, order: Array, position: Cell,
        rows: Cell | int, axis: int = 0,
    ) -> None:  # fmt: skip
        """GATHER: ``target = take(source, order[position : position + rows], axis)``.

        `target` has exactly `rows` along `axis`; both are C-order, of one dtype.
        """
        _check_order(order)
        _check_gather(target, source, axis)
        inner = int(np.prod(source.shape[axis + 1 :], dtype=np.int64))
        outer = int(np.prod(source.shape[:axis], dtype=np.int64))
        row_bytes = inner * source.itemsize
        self._owned.append(position)
        self._add(
            vm.GATHER,
            self._address(target),
            self._address(source),
            row_bytes,
            self._address(order),
            position.address,
            self._cell(rows),
            outer,
            source.shape[axis] * row_bytes,
        )

    def record(self, total: Cell, scalar: Array, weight: Cell | int = 1) -> None:
        """RECORD: ``total += scalar * weight``; total is a real cell."""
        kind = CODES[scalar.dtype.name]
        self._owned.append(total)
        self._add(
            vm.RECORD, total.address, self._address(scalar), kind, self._cell(weight)
        )

    def mean(
        self, array: Array, index: Cell | int, total: Cell, weight: Cell | int
    ) -> None:
        """MEAN: ``array[index] = total / weight`` (NaN where weight is 0)."""
        if array.dtype != np.float64 or not array.flags.c_contiguous:
            raise CompilerBug("MEAN writes contiguous float64 arrays")
        self._owned.append(total)
        self._add(
            vm.MEAN,
            self._address(array),
            self._cell(index),
            total.address,
            self._cell(weight),
        )

    def add(self, target: Cell, number: Cell | int) -> None:
        """ADD: ``target += number``, both int64."""
        self._owned.append(target)
        self._add(vm.ADD, target.address, self._cell(number))

    def set(self, target: Cell, number: Cell | float) -> None:
        """SET: ``target = number``; a Python number takes the dtype of `target`."""
        self._owned.append(target)
        kind = float if kind_of(target.array.dtype) == "f" else int
        self._add(vm.SET, target.address, self._cell(number, kind))

    def jump(self, label: ProgramLabel) -> None:
        """JUMP: go on at `label`."""
        self._add(vm.JUMP, label)

    def jump_if_less(
        self, left: Cell | int, right: Cell | int, label: ProgramLabel
    ) -> None:
        """JUMP_IF_LESS: go on at `label` if ``left < right`` (int64)."""
        self._add(vm.JUMP_IF_LESS, self._cell(left), self._cell(right), label)

    def jump_unless_finite(self, scalar: Array, label: ProgramLabel) -> None:
        """JUMP_UNLESS_FINITE: go on at `label` if `scalar` is NaN or infinite."""
        kind = CODES[scalar.dtype.name]
        self._add(vm.JUMP_UNLESS_FINITE, self._address(scalar), kind, label)

    def poll(self) -> None:
        """POLL: return STOPPED if the stop cell is not 0."""
        self._add(vm.POLL)

    def fill(self, array: Array, byte: int = 0) -> None:
        """FILL: set every byte of `array`."""
        self._add(vm.FILL, self._address(array), byte, array.nbytes)

    def copy(self, target: Array, source: Array) -> None:
        """COPY: the bytes of `source` to `target`, which has the same size."""
        if target.nbytes != source.nbytes:
            raise CompilerBug("COPY requires two arrays of one size")
        self._add(vm.COPY, self._address(target), self._address(source), source.nbytes)

    def end(self) -> None:
        """END: return to the program that ran this one, or finish."""
        self._add(vm.END)

    def finish(self) -> Program:
        """Return the program, with END appended."""
        self.end()
        table = aligned_rows(len(self._rows))
        start = int(table.ctypes.data)
        for number, row in enumerate(self._rows):
            table[number, : len(row)] = [_resolved(word, start) for word in row]
        owned = (*self._owned, *self.cells.values(), *self._constants.values())
        return Program(table, self._depth, owned)

    def _named(self, name: str, cell: Cell) -> Cell:
        if name in self.cells:
            raise CompilerBug(f"two cells are called {name!r}")
        self.cells[name] = cell
        return cell

    def _cell(self, number: Cell | float, kind: type = int) -> int:
        if isinstance(number, Cell):
            self._owned.append(number)
            return number.address
        key = (kind, number)
        if key not in self._constants:
            self._constants[key] = Cell(number, np.dtype(kind))
        return self._constants[key].address

    def _address(self, array: Array) -> int:
        if not array.flags.c_contiguous:
            raise CompilerBug("programs read and write C-order arrays")
        self._owned.append(array)
        return int(array.ctypes.data)

    def _add(self, *words: int | ProgramLabel) -> None:
        self._rows.append(words)


def aligned_rows(count: int) -> npt.NDArray[np.int64]:
    """Return a table of `count` empty instructions, on cache lines."""
    raw = np.zeros(count * vm.WORDS + 8, np.int64)
    start = -raw.ctypes.data % 64 // 8
    return raw[start : start + count * vm.WORDS].reshape(count, vm.WORDS)


def _resolved(word: int | ProgramLabel, start: int) -> int:
    if not isinstance(word, ProgramLabel):
        return word
    if word.row < 0:
        raise CompilerBug("a jump goes to a label that was not placed")
    return start + word.row * vm.ROW_BYTES


def _check_order(order: Array) -> None:
    if order.dtype != np.int64 or order.ndim != 1:
        raise CompilerBug("an order is a vector of int64")


def _check_gather(target: Array, source: Array, axis: int) -> None:
    def rest(shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape[:axis]) + tuple(shape[axis + 1 :])

    if target.dtype != source.dtype or rest(target.shape) != rest(source.shape):
        raise CompilerBug(
            f"GATHER requires equal rows, got {source.dtype}{source.shape} and "
            f"{target.dtype}{target.shape}"
        )
