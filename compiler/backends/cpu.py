"""The cpu target: native kernels, run by the virtual machine.

One `CpuTarget` serves all sizes. For each set of sizes there is one `Sized` program and
a pool of frames, one per concurrent call; both are kept for the sizes used last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler import memory, vm
from staticgrad.compiler.assembler import Assembler, Program
from staticgrad.compiler.frame import Frame
from staticgrad.compiler.instructions import Sized, size
from staticgrad.compiler.kernels import Site
from staticgrad.compiler.plan import Plan
from staticgrad.compiler.program import Code, compile_schedule
from staticgrad.compiler.schedule import Schedule
from staticgrad.ir.size import evaluate

Array = npt.NDArray[Any]

MOST_SIZES = 64  # sets of sizes whose plan and frames are kept
MOST_IDLE = 16  # frames kept per set of sizes


@dataclass(slots=True)
class Pool:
    """A program for some sizes and its idle frames.

    `results` are shape and dtype of each output.
    """

    sized: Sized
    results: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    idle: deque[Frame] = field(default_factory=deque)

    def take(self) -> Frame:
        """A frame that no other call uses."""
        try:
            return self.idle.pop()
        except IndexError:
            return Frame(self.sized)

    def give(self, frame: Frame) -> None:
        """Put a frame back that `take` gave."""
        if len(self.idle) < MOST_IDLE:
            self.idle.append(frame)


class CpuTarget:
    """A Schedule that can be run for any sizes."""

    name = "cpu"

    def __init__(
        self,
        schedule: Schedule,
        verify: Callable[[Plan], None],
        poison: bool = False,
        checked: Sequence[Site] = (),
    ) -> None:
        vm.load()
        self.code: Code = compile_schedule(schedule, checked)
        self.planned: deque[Plan] = deque(maxlen=MOST_SIZES)
        self._verify = verify
        self._poison = poison
        self._pools: OrderedDict[tuple[tuple[str, int], ...], Pool] = OrderedDict()
        self._planning = threading.Lock()
        self._writing = threading.Lock()
        self._writes = any(
            schedule.buffers[operand.buffer].kind == "stored"
            for kernel in schedule.kernels
            for operand in kernel.operands
            if operand.mode != "read"
        )

    def call(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Fresh outputs for `arrays`, which are of the inputs' dtypes, in C order."""
        pool = self.pool(sizes)
        outputs = [np.empty(shape, dtype) for shape, dtype in pool.results]
        frame = pool.take()
        try:
            connect(frame, arrays, outputs)
            self.run(frame, frame.pc)
        finally:
            pool.give(frame)
        return outputs

    def bind(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> BoundFrame:
        """A frame whose arguments and outputs stay where they are."""
        return BoundFrame(self, arrays, sizes)

    def run(self, frame: Frame, pc: int) -> None:
        """Run a connected frame, or a program over it; raises what kernels report."""
        if self._writes:
            # One step at a time: two that interleaved would both lose updates.
            with self._writing:
                code = vm.run(pc, frame.stop_address)
        else:
            code = vm.run(pc, frame.stop_address)
        if code > vm.FINISHED:
            raise frame.error()

    def frame(self, sizes: Mapping[str, int]) -> Frame:
        """A new frame outside of the pool."""
        return Frame(self.pool(sizes).sized)

    def plan(self, sizes: Mapping[str, int]) -> Plan:
        """Where everything lies for `sizes`."""
        return self.pool(sizes).sized.plan

    def pool(self, sizes: Mapping[str, int]) -> Pool:
        """The program for `sizes`, planned at their first use."""
        key = tuple(sizes.items())
        with self._planning:
            pool = self._pools.get(key) or self._planned(sizes)
            self._pools[key] = pool
            self._pools.move_to_end(key)
            if len(self._pools) > MOST_SIZES:
                self._pools.popitem(last=False)
        return pool

    def _planned(self, sizes: Mapping[str, int]) -> Pool:
        schedule = self.code.schedule
        plan = memory.plan(schedule, sizes)
        self._verify(plan)
        self.planned.append(plan)
        buffers = [schedule.buffers[number] for number in schedule.outputs]
        results = tuple(
            (tuple(evaluate(dim, sizes) for dim in b.shape), b.dtype) for b in buffers
        )
        return Pool(size(self.code, plan, self._poison), results)


class BoundFrame:
    """A frame of its own that reads `arrays` and writes `outputs`, run after run."""

    def __init__(
        self, target: CpuTarget, arrays: Sequence[Array], sizes: Mapping[str, int]
    ) -> None:
        pool = target.pool(sizes)
        self._target = target
        self._arrays = tuple(arrays)
        self._outputs = [np.empty(shape, dtype) for shape, dtype in pool.results]
        self._frame = Frame(pool.sized)
        self._running = threading.Lock()
        connect(self._frame, self._arrays, self._outputs)

    def run(self, times: int) -> list[Array]:
        """The outputs after `times` runs in one native call."""
        program: Program | Frame = self._frame
        if times > 1:
            program = _repeated(self._frame, times)
        with self._running:
            self._target.run(self._frame, program.pc)
        return self._outputs


def _repeated(frame: Frame, times: int) -> Program:
    assembler = Assembler()
    done = assembler.cell("done")
    start = assembler.place()
    assembler.run(frame)
    assembler.add(done, 1)
    assembler.jump_if_less(done, times, start)
    return assembler.finish()


def connect(frame: Frame, arrays: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Let `frame` read `arrays` and write `outputs`, which have to outlive its run."""
    for position, array in enumerate(arrays):
        frame.set_input(position, array.__array_interface__["data"][0])
    for position, array in enumerate(outputs):
        frame.set_output(position, array.__array_interface__["data"][0])
