"""The native loop: a training loop as one program of the virtual machine.

A whole fit is one native call. It runs the executables' own programs for a full batch
and for the tail; each step ends at its commit, where a stop or a failure leaves
everything at the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.runtime.arguments import bind_sizes
from staticgrad.compiler.runtime.assembler import Assembler, Cell
from staticgrad.compiler.runtime.frame import Frame
from staticgrad.compiler.runtime.vm import FINISHED, STATUS_CODE
from staticgrad.errors import CompilerBug
from staticgrad.train.interrupt import completed
from staticgrad.train.run import after_phases
from staticgrad.train.training_loop import (
    Add,
    BatchStep,
    GroupCommit,
    Mean,
    PhaseExecutable,
    Set,
    ShuffleOrder,
    Statement,
    TrainingLoop,
    While,
)

Array = npt.NDArray[Any]


class NativeLoop:
    """A program of `loop`, and the frames that it runs."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._run = loop.run
        self._assembler = Assembler()
        self._frames: list[tuple[PhaseExecutable, Frame]] = []
        self._write(loop.statements)
        self._program = self._assembler.finish()

    @property
    def plan(self) -> Plan:
        """That of the first executable, for full batches if there are any."""
        return self._frames[0][1].sized.plan

    def run(self) -> None:
        """Go on to the end; KeyboardInterrupt, or what an executable reports."""
        code = completed(self._program.run)
        if code == FINISHED:
            return
        for task, frame in self._frames:
            if frame.status[STATUS_CODE]:
                error = task.executable.traced(frame.error(), frame.inputs)
                raise self._run.located(after_phases(error, task.number))
        raise CompilerBug(f"a training program ended with the unknown code {code}")

    def _write(self, statements: Sequence[Statement]) -> None:
        a = self._assembler
        for statement in statements:
            match statement:
                case Set(cell, number):
                    a.set(cell, number)
                case Add(cell, number):
                    a.add(cell, number)
                case Mean(column, row, total, weight):
                    a.mean(column, row, total, weight)
                case ShuffleOrder(order, seed, epoch):
                    a.shuffle(order, len(order), seed, epoch)
                case While():
                    self._while(statement)
                case BatchStep():
                    self._step(statement)
                case GroupCommit(task):
                    frame = task.executable.frame({})
                    self._run_frame(task, frame, statement.stops)
                    self._record(task, frame, 1)

    def _while(self, statement: While) -> None:
        a = self._assembler
        top, inside, over = a.place(), a.label(), a.label()
        if statement.always is not None:
            a.jump_if_less(statement.always.left, statement.always.right, inside)
        for condition in statement.conditions:
            holds = a.label()
            a.jump_if_less(condition.left, condition.right, holds)
            a.jump(over)
            a.place(holds)
        a.place(inside)
        self._write(statement.body)
        a.jump(top)
        a.place(over)

    def _step(self, step: BatchStep) -> None:
        """A full batch while there is one, then the tail."""
        a = self._assembler
        tail = step.data.samples % step.size
        full = step.data.samples - tail
        rest, over = a.label(), a.label()
        if full and tail:
            a.jump_if_less(full - 1, step.seen, rest)
        if full:
            self._batch(step, step.size)
        if full and tail:
            a.jump(over)
        a.place(rest)
        if tail:
            self._batch(step, tail)
        a.place(over)

    def _batch(self, step: BatchStep, size: int) -> None:
        """Emit one batch; what follows the first phase runs only if that commits."""
        a = self._assembler
        frames = [self._gathered(task, step, size) for task in step.tasks]
        pairs = list(zip(step.tasks, frames, strict=True))
        for number, (task, frame) in enumerate(pairs):
            self._run_frame(task, frame, stops=step.stops and not number)
        for task, frame in pairs:
            self._record(task, frame, size)
        a.add(step.count, 1)
        a.add(step.seen, size)
        a.add(step.steps, 1)

    def _gathered(self, task: PhaseExecutable, step: BatchStep, size: int) -> Frame:
        """A frame, planned for `size` samples, whose inputs are brought."""
        columns = step.data.columns
        shapes = [column.shape(size) for column in columns]
        sizes = bind_sizes([column.leaf for column in columns], shapes)
        frame = task.executable.frame(sizes)
        for column in columns:
            buffer = frame.inputs.get(column.leaf.name)
            if buffer is None:
                continue  # no kernel reads it
            if column.axis is None:
                buffer[...] = column.array
            else:
                array, axis = column.array, column.axis
                self._assembler.gather(buffer, array, step.order, step.seen, size, axis)
        return frame

    def _run_frame(self, task: PhaseExecutable, frame: Frame, stops: bool) -> None:
        if not stops:
            frame.finish_step()
        self._frames.append((task, frame))
        self._assembler.run(frame)

    def _record(self, task: PhaseExecutable, frame: Frame, size: int) -> None:
        a, names = self._assembler, [one.name for one in task.sums]
        reported = dict(zip(names, frame.outputs, strict=True))
        for one in task.sums:
            after = a.label()
            if one.must_be_finite is not None:
                a.jump_unless_finite(reported[one.must_be_finite], after)
            if one.counted is not None:
                a.add(one.counted, size)
            a.record(one.total, reported[one.name], 1 if one.once else size)
            a.place(after)
            if one.column is not None:
                value = Cell(0.0, np.float64)
                a.set(value, 0.0)
                a.record(value, reported[one.name], 1)
                a.mean(one.column, self._run.steps, value, 1)
