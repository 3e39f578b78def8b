"""Frame: the memory of one running copy of a sized program.

It holds the arena, one block of words (instructions, pointer table, what COMMIT
checks), the status and one context per worker. Inputs and outputs are given per call by
writing their addresses into the words that name them, or once and for all by `own`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime import threads, vm
from staticgrad.compiler.runtime.assembler import aligned_rows
from staticgrad.compiler.runtime.calling import Machine
from staticgrad.compiler.runtime.failures import failure
from staticgrad.compiler.runtime.instructions import Sized
from staticgrad.compiler.runtime.native_code import as_words
from staticgrad.ir.alignment import aligned_empty
from staticgrad.ir.node import Input
from staticgrad.ir.size import Shape, evaluate
from staticgrad.ir.types import DType

CONTEXT_WORDS = 2  # status address and scratch address
CONTEXT_BYTES = 8 * CONTEXT_WORDS

Array = npt.NDArray[Any]


class Frame:
    """Running copy of a program; two threads never share one."""

    depth = 1

    def __init__(self, sized: Sized) -> None:
        self.sized = sized
        self.inputs: dict[str, Array] = {}
        self.outputs: list[Array] = []
        self._unlisted: list[Array] = []
        self.status = np.zeros(vm.STATUS_WORDS, np.int64)
        never = int(self.status.ctypes.data) + 8 * vm.STATUS_NEVER
        self.status[vm.STATUS_STOP] = never
        self.stop = np.zeros(1, np.int64)
        self.stop_address = int(self.stop.ctypes.data)
        self._arena = aligned_empty((max(sized.plan.arena_bytes, 1),), np.uint8)
        workers = max(threads.most_workers(), 1) if sized.parallel else 1
        self._scratch = aligned_empty((workers, sized.scratch_bytes), np.uint8)
        self._contexts = np.zeros((workers, CONTEXT_WORDS), np.int64)
        self._contexts[:, 0] = self.status.ctypes.data
        self._contexts[:, 1] = self._scratch.ctypes.data + sized.scratch_bytes * (
            np.arange(workers)
        )
        self._words = self._linked(workers)
        self.pc = int(self._words.ctypes.data)

    def _linked(self, workers: int) -> npt.NDArray[np.int64]:
        """Instructions, pointers and finite table in one block, addresses filled in."""
        sized, table = self.sized, self.sized.table
        rows, pointers, finite = len(table.rows), len(sized.pointers), sized.finite
        moves = sized.moves
        extra = -(-(pointers + 2 * len(finite) + moves.size) // vm.WORDS)
        words = aligned_rows(rows + extra)
        start = int(words.ctypes.data)
        words[:rows] = table.rows
        first_pointer = rows * vm.WORDS
        first_finite = first_pointer + pointers
        kernels, operands = table.kernel_rows, sized.code.first[table.called]
        words[kernels, 2] = start + 8 * (first_pointer + operands)
        launched = np.append(kernels, as_words(table.spread_rows))
        words[launched, 7] = self._contexts.ctypes.data
        words[launched, 8] = CONTEXT_BYTES
        words[launched, 9] = workers
        words[launched, 11] = threads.address()
        words[table.commit_row, 2:4] = start + 8 * first_finite, len(finite)
        flat = words.reshape(-1)
        first_move = first_finite + 2 * len(finite)
        self._link_flow(words, first_move)
        for number, (_, kind) in enumerate(finite):
            flat[first_finite + 2 * number + 1] = kind
        where = np.concatenate(
            [
                first_pointer + np.arange(pointers),
                first_finite + 2 * np.arange(len(finite)),
                sized.references[:, 0] * vm.WORDS + sized.references[:, 1],
            ]
        )
        buffers = np.concatenate(
            [sized.pointers, [b for b, _ in finite], sized.references[:, 2]]
        ).astype(np.int64)
        base = self._addresses()
        flat[where] = base[buffers]
        self._view = flat.data
        self._find_patches(where, buffers)
        return words

    def _link_flow(self, words: npt.NDArray[np.int64], first_move: int) -> None:
        """Fill in addresses of rows, of the status and of moves in control flow."""
        sized, start = self.sized, int(words.ctypes.data)
        flat = words.reshape(-1)
        row, word, target = sized.table.jumps.T
        words[row, word] = start + target * vm.ROW_BYTES
        row, word = sized.table.statuses.T
        words[row, word] = self.status.ctypes.data
        row, word, move = sized.loops.T
        words[row, word] = start + 8 * (first_move + 2 * move)
        moves = flat[first_move : first_move + sized.moves.size].reshape(-1, 2)
        moves[:, 0] = start + 8 * sized.moves[:, 0]
        moves[:, 1] = sized.moves[:, 1]

    def _addresses(self) -> npt.NDArray[np.int64]:
        """Return the address of every buffer that has one before the call."""
        sized = self.sized
        offsets = np.array(sized.offsets, np.int64)
        arena = np.where(offsets >= 0, self._arena.ctypes.data + offsets, 0)
        base = np.where(offsets >= 0, arena, sized.code.fixed)
        return np.append(base, np.zeros(len(sized.code.schedule.outputs), np.int64))

    def _find_patches(
        self, where: npt.NDArray[np.int64], buffers: npt.NDArray[np.int64]
    ) -> None:
        def words_of(buffer: int) -> list[int]:
            first, last = np.searchsorted(ordered, (buffer, buffer + 1))
            found: list[int] = where[first:last].tolist()
            return found

        order = np.argsort(buffers, kind="stable")
        ordered, where = buffers[order], where[order]
        given = [b for b in self.sized.code.schedule.buffers if b.kind == "input"]
        self._input_words = {b.position: words_of(b.number) for b in given}
        self._output_words = [words_of(b) for b in self.sized.output_buffers]

    def set_input(self, position: int, address: int) -> None:
        """Read input `position` at `address` from now on."""
        view = self._view
        for word in self._input_words.get(position, ()):
            view[word] = address

    def set_output(self, position: int, address: int) -> None:
        """Write output `position` to `address` from now on."""
        view = self._view
        for word in self._output_words[position]:
            view[word] = address

    def places(self, inputs: int) -> list[list[int]]:
        """Return the addresses of the words that name each input and output."""
        named = [self._input_words.get(n, []) for n in range(inputs)]
        return [
            [self.pc + 8 * word for word in words]
            for words in (*named, *self._output_words)
        ]

    def connect(self, arrays: Sequence[Array]) -> None:
        """Read and write `arrays`, inputs and then outputs, from now on."""
        inputs = len(arrays) - len(self._output_words)
        for position, array in enumerate(arrays):
            address = array.__array_interface__["data"][0]
            if position < inputs:
                self.set_input(position, address)
            else:
                self.set_output(position - inputs, address)

    def own(self, inputs: Sequence[Input], results: int | None = None) -> Frame:
        """Allocate arrays of its own for ``inputs`` and ``outputs``.

        Outputs past the first `results` are written, but not listed.
        """
        schedule = self.sized.code.schedule
        for position, leaf in enumerate(inputs):
            self.inputs[leaf.name] = self._array(leaf.shape, leaf.dtype)
            self.set_input(position, self.inputs[leaf.name].ctypes.data)
        buffers = [schedule.buffers[number] for number in schedule.outputs]
        arrays = [self._array(b.shape, b.dtype) for b in buffers]
        for position, array in enumerate(arrays):
            self.set_output(position, array.ctypes.data)
        listed = len(arrays) if results is None else results
        self.outputs, self._unlisted = arrays[:listed], arrays[listed:]
        return self

    def _array(self, shape: Shape, dtype: DType) -> Array:
        values = dict(self.sized.plan.values)
        return aligned_empty(tuple(evaluate(dim, values) for dim in shape), dtype)

    def finish_step(self) -> None:
        """Let it run to its end: the stop cell was read by what ran before it."""
        self._words[self.sized.table.deaf_rows, vm.DEAF_WORD] = 1

    def run(self, stop: int | None = None) -> int:
        """Run once, see `vm.run`; `stop` is the address of a stop cell."""
        return vm.run(self.pc, self.stop_address if stop is None else stop)

    def timed(self, machine: Machine, first: int, stop: int) -> tuple[int, float]:
        """Run the rows from `first` to `stop` alone; return code and seconds."""
        words, start = self._words, self.pc + first * vm.ROW_BYTES
        op, words[stop, 0] = int(words[stop, 0]), vm.END
        try:
            before = time.perf_counter()
            code = machine(start, self.stop_address)
            return code, time.perf_counter() - before
        finally:
            words[stop, 0] = op

    def error(self) -> BaseException:
        """Return the exception for the status, which is cleared."""
        status = self.status.copy()
        self.status[: vm.STATUS_STOP] = 0
        return failure(self.sized.code, status, int(self.status.ctypes.data))
