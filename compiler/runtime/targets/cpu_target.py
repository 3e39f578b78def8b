"""The cpu target: native kernels, run by the virtual machine.

One `CpuTarget` serves all sizes. For each set of sizes there is one `Sized` program and
a pool of frames, one per concurrent call; both are kept for the sizes used last.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.host.locks import fork_safe_lock
from staticgrad.compiler.kernel_ir.kernels import Site
from staticgrad.compiler.kernel_ir.plan import Plan
from staticgrad.compiler.kernel_ir.schedule import Buffer, Schedule, stored_by
from staticgrad.compiler.memory import planner
from staticgrad.compiler.runtime import vm
from staticgrad.compiler.runtime.assembler import Assembler, Program
from staticgrad.compiler.runtime.bound import Runner
from staticgrad.compiler.runtime.calling import Machine, bound_call
from staticgrad.compiler.runtime.explanation import explain
from staticgrad.compiler.runtime.fast_call import Entry, Kinds
from staticgrad.compiler.runtime.frame import Frame
from staticgrad.compiler.runtime.instructions import Sized, size
from staticgrad.compiler.runtime.native_code import NativeCode, compile_schedule
from staticgrad.compiler.runtime.profile import Profile, profile
from staticgrad.compiler.runtime.target import Target
from staticgrad.compiler.runtime.watch import takes_long, watched
from staticgrad.compiler.verify.size_requirements import accept
from staticgrad.ir.alignment import LARGE, aligned_empty
from staticgrad.ir.node import Input
from staticgrad.ir.size import evaluate
from staticgrad.ir.storage import AWAY, bring_home

Array = npt.NDArray[Any]

MOST_SIZES = 64  # sets of sizes whose plan and frames are kept
MOST_IDLE = 16  # frames kept per set of sizes


BEAT = 0.1  # seconds between checks for signals in a repetition
FIRST_BEAT = 256  # runs before the time of one is known


@dataclass(slots=True)
class FramePool:
    """Program for some sizes and its idle entries.

    `machine` runs it; `results` are what makes each output, its shape and dtype.
    """

    machine: Machine
    sized: Sized
    results: tuple[tuple[Callable[..., Array], tuple[int, ...], np.dtype[Any]], ...]
    idle: deque[Entry] = field(default_factory=deque)

    def outputs(self) -> list[Array]:
        """Return arrays for the outputs of a call."""
        return [make(shape, dtype) for make, shape, dtype in self.results]

    def take(self, kinds: Kinds) -> Entry:
        """Return an entry that no other call uses, for inputs of these kinds."""
        try:
            return self.idle.pop()
        except IndexError:
            return Entry(Frame(self.sized), kinds)

    def give(self, entry: Entry) -> None:
        """Put back an entry that `take` gave."""
        if len(self.idle) < MOST_IDLE:
            self.idle.append(entry)


class CpuTarget(Target):
    """A Schedule that can be run for any sizes."""

    name = "cpu"
    native_loop = True

    def __init__(
        self,
        schedule: Schedule,
        verify: Callable[[Plan], None],
        poison: bool = False,
        checked: Sequence[Site] = (),
        require: Callable[[Mapping[str, int]], None] = accept,
        fit: Callable[[Mapping[str, int]], Schedule] | None = None,
    ) -> None:
        """Make the target; `fit` returns another Schedule of the same results."""
        self._machine = vm.load()
        self.code: NativeCode = compile_schedule(schedule, checked)
        self.planned: deque[Plan] = deque(maxlen=MOST_SIZES)
        self._verify = verify
        self._require = require
        self._poison = poison
        self._fit = fit
        self._checked = checked
        self._pools: OrderedDict[tuple[tuple[str, int], ...], FramePool] = OrderedDict()
        self._planning = fork_safe_lock()
        writes = any(stored_by(schedule, kernel) for kernel in schedule.kernels)
        self.writing = fork_safe_lock() if writes else None

    def route(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> Route:
        """Return the Route of arrays shaped as `arrays`, which give `sizes`."""
        kinds = tuple((array.dtype, array.shape) for array in arrays)
        return Route(self, self.pool(sizes), kinds)

    def call(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
        """Fresh outputs for `arrays`."""
        return self.route(arrays, sizes).run(arrays)

    def bind(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> BoundFrame:
        """Return a frame with fixed arguments and outputs."""
        return BoundFrame(self, arrays, sizes)

    def run(self, machine: Machine, frame: Frame, pc: int) -> int:
        """Run a connected frame, or a program over it; raises what kernels report.

        Returns a code that is not positive: finished, stopped, or inputs that misfit.
        """
        if AWAY:
            bring_home()
        if self.writing is None:
            code = machine(pc, frame.stop_address)
        else:
            # One step at a time: two that interleaved would both lose updates.
            with self.writing:
                code = machine(pc, frame.stop_address)
        if code > vm.FINISHED:
            raise frame.error()
        return code

    def program_frame(self, sizes: Mapping[str, int]) -> Frame:
        """A new frame outside of the pool."""
        return Frame(self.pool(sizes).sized)

    def plan(self, sizes: Mapping[str, int]) -> Plan:
        """Return the memory plan for `sizes`."""
        return self.pool(sizes).sized.plan

    def explain(self, inputs: Sequence[Input], notes: Sequence[str]) -> str:
        """Describe what was compiled, what came from the cache and what was planned."""
        writes = self.writing is not None
        return explain(self.code, writes, self.planned, inputs, notes)

    def source(self) -> str:
        """The generated code of all kernels, each once."""
        return "\n\n".join(dict.fromkeys(k.source for k in self.code.natives))

    def profile(
        self, arrays: Sequence[Array], sizes: Mapping[str, int], times: int
    ) -> Profile:
        """Time each kernel; parameters and states are then as before."""
        pool = self.pool(sizes)
        frame = Frame(pool.sized)
        outputs = pool.outputs()  # which the frame does not keep alive
        frame.connect((*arrays, *outputs))
        return profile(pool.machine, frame, pool.sized, self.writing, times)

    def pool(self, sizes: Mapping[str, int]) -> FramePool:
        """Return the program for `sizes`, planned at their first use."""
        key = tuple(sizes.items())
        with self._planning:
            pool = self._pools.get(key) or self._planned(sizes)
            self._pools[key] = pool
            self._pools.move_to_end(key)
            if len(self._pools) > MOST_SIZES:
                self._pools.popitem(last=False)
        return pool

    def _planned(self, sizes: Mapping[str, int]) -> FramePool:
        self._require(sizes)
        code = self.code
        if self._fit is not None:
            code = compile_schedule(self._fit(sizes), self._checked)
        schedule = code.root
        plan = planner.plan(schedule, sizes)
        self._verify(plan)
        self.planned.append(plan)
        results = tuple(
            _made(schedule.buffers[number], sizes) for number in schedule.outputs
        )
        machine = self._machine
        if takes_long(schedule, sizes):
            machine = watched(machine)
        return FramePool(machine, size(code, plan, self._poison), results)


class Route:
    """Fast path for arrays of the same shapes as before: no lookups."""

    __slots__ = ("_kinds", "_pool", "_target")

    def __init__(
        self,
        target: CpuTarget,
        pool: FramePool,
        kinds: Kinds,
    ) -> None:
        self._target = target
        self._pool = pool
        self._kinds = kinds

    def fits(self, values: Sequence[Any]) -> bool:
        """Whether `values` can be read where they are and have these shapes."""
        for value, (dtype, shape) in zip(values, self._kinds, strict=True):
            if type(value) is not np.ndarray or value.dtype is not dtype:
                return False
            if value.shape != shape or not _is_plain(value.flags):
                return False
        return True

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run on `arrays`, which are known to fit, into fresh outputs."""
        pool = self._pool
        outputs = pool.outputs()
        entry = pool.take(self._kinds)
        frame = entry.frame
        try:
            frame.connect((*arrays, *outputs))
            self._target.run(pool.machine, frame, frame.pc)
        finally:
            pool.give(entry)
        return outputs

    def try_to_run(self, arrays: Sequence[Any]) -> list[Array] | None:
        """Run on `arrays`; return None if they do not fit."""
        if len(arrays) != len(self._kinds):
            return None
        pool = self._pool
        outputs = pool.outputs()
        entry = pool.take(self._kinds)
        try:
            if not (entry.checks or self.fits(arrays)):
                return None
            entry.connect((*arrays, *outputs))
            code = self._target.run(pool.machine, entry.frame, entry.pc)
        finally:
            pool.give(entry)
        return None if code == vm.MISFIT else outputs


def _made(
    buffer: Buffer, sizes: Mapping[str, int]
) -> tuple[Callable[..., Array], tuple[int, ...], np.dtype[Any]]:
    """Return the allocator of an output; NumPy's is ten times faster for small ones."""
    shape = tuple(evaluate(dim, sizes) for dim in buffer.shape)
    is_large = math.prod(shape) * buffer.dtype.itemsize >= LARGE
    return aligned_empty if is_large else np.empty, shape, buffer.dtype


def _is_plain(flags: Any) -> bool:
    return bool(flags.c_contiguous and flags.aligned)


class BoundFrame(Runner):
    """A frame of its own that reads `arrays` and writes `outputs`, run after run."""

    __slots__ = (
        "_arrays", "_beat", "_frame", "_lock", "_machine", "_pc", "_stop", "outputs",
    )  # fmt: skip

    def __init__(
        self, target: CpuTarget, arrays: Sequence[Array], sizes: Mapping[str, int]
    ) -> None:
        pool = target.pool(sizes)
        self._arrays = tuple(arrays)
        self.outputs = [aligned_empty(shape, dtype) for _, shape, dtype in pool.results]
        self._frame = Frame(pool.sized)
        self._frame.connect((*arrays, *self.outputs))
        self._lock = target.writing or fork_safe_lock()
        self._machine = pool.machine
        self._pc, self._stop = self._frame.pc, self._frame.stop_address
        self._beat = FIRST_BEAT

    def run(self) -> None:
        """Compute the outputs again."""
        if AWAY:
            bring_home()
        with self._lock:  # safe against Ctrl-C, unlike acquire()
            code = self._machine(self._pc, self._stop)
        if code > vm.FINISHED:
            self._fail()

    def native(
        self,
        guarded: Callable[[Callable[[], None]], Callable[[], Any]],
        result: Any,
        make: Callable[[], Any] | None,
    ) -> Callable[[], Any] | None:
        """Return one native call, where the machine needs no help from Python."""
        if self._machine is not vm.load():
            return None
        failed = guarded(self._fail)
        return bound_call(self._pc, self._stop, self._lock, failed, result, make)

    def _fail(self) -> None:
        raise self._frame.error()

    def repeat(self, times: int) -> None:
        """Run `times` times, in native calls of about BEAT seconds.

        Between them Python looks for signals, so that Ctrl-C ends a long repetition
        after a whole run.
        """
        bring_home()
        while times:
            count = min(times, self._beat)
            program = _repeated(self._frame, count)
            start = time.perf_counter()
            with self._lock:
                code = self._machine(program.pc, self._stop)
            if code > vm.FINISHED:
                raise self._frame.error()
            took = max(time.perf_counter() - start, 1e-9)
            self._beat = max(1, min(int(count * BEAT / took), 100 * count))
            times -= count


def _repeated(frame: Frame, times: int) -> Program:
    assembler = Assembler()
    done = assembler.cell("done")
    start = assembler.place()
    assembler.run(frame)
    assembler.add(done, 1)
    assembler.jump_if_less(done, times, start)
    return assembler.finish()
