"""CudaFrame: the device memory of one set of sizes, and its graph.

One block holds the arena, scratch, inputs, outputs and the status. The first run
launches kernel after kernel; the second is captured into a graph that all others
replay. Nothing is allocated or loaded in between.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.cuda.batch_feeding import count_source
from staticgrad.compiler.cuda.device import Device, captured
from staticgrad.compiler.cuda.device_arrays import DeviceArray, new_array
from staticgrad.compiler.cuda.device_memory import DeviceMemory, aligned
from staticgrad.compiler.cuda.frame_steps import (
    STATUS,
    Argument,
    BufferAddress,
    Launch,
    Multiply,
    Step,
    Work,
    Zero,
)
from staticgrad.compiler.cuda.graph_recording import Recorder
from staticgrad.compiler.cuda.host_functions import HostCall, run_on_host
from staticgrad.compiler.cuda.launches import LANES, Launches
from staticgrad.compiler.cuda.mirrors import Mirror, mirror_of
from staticgrad.compiler.kernel_ir.instruction_set import (
    Again,
    Clear,
    Copy,
    Enter,
    Flow,
    Jump,
    Limit,
    Next,
    Note,
    Slot,
    Unless,
)
from staticgrad.compiler.kernel_ir.schedule import stored_by
from staticgrad.compiler.runtime import revolve
from staticgrad.compiler.runtime.failures import failure, limit_text
from staticgrad.compiler.runtime.vm import STATUS_CODE, STATUS_WORDS
from staticgrad.errors import DeviceError, LoopLimitError
from staticgrad.ir.size import evaluate
from staticgrad.ir.source import at
from staticgrad.ir.storage import Storage
from staticgrad.ir.types import INT64, DType

Array = npt.NDArray[Any]

STATUS_BYTES = 8 * STATUS_WORDS


class CudaFrame:
    """Device memory for one run at a time.

    `status` is the address of a status that several frames share.
    """

    def __init__(
        self,
        sized: Launches,
        device: Device,
        constants: DeviceMemory[int],
        status: int | None = None,
    ) -> None:
        self.sized = sized
        self._status = status
        self._position: dict[int, int] = {}
        self._moving: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        self._states: dict[int, npt.NDArray[np.int64]] = {}
        self._slot = 0
        self.device = device
        self._constants = constants  # freed with the last frame that reads them
        self._places: dict[int, int] = dict(constants.addresses)
        self._values = dict(sized.plan.values)
        self._mirrors = self._mirrored()
        self._layout()
        self._moving = self._windows()
        self._waits = any(map(self._is_waited_for, sized.steps))
        looking = [s for s in sized.steps if isinstance(s, Unless)]
        self._looks = bool(looking)
        self.kernels = [self._kernel(step) for step in sized.steps]
        self._graph: Any = None
        self._runs = 0
        self._recorder = Recorder(self, {step.dtype for step in looking})

    @property
    def capturable(self) -> bool:
        """Whether a graph can hold all steps."""
        return not self._waits and (self.device.conditionals or not self._looks)

    def _is_waited_for(self, step: Step) -> bool:
        """Whether the host has to know what the device has computed, or has to work."""
        unknown = isinstance(step, Next) and self._known(step.steps) is None
        return unknown or isinstance(step, Note | HostCall)

    def _kernel(self, step: Step) -> Any:
        """Return the loaded kernel that a step launches; None if there is none."""
        if isinstance(step, Launch):
            return self.device.load(step.source)
        counts = isinstance(step, Enter | Again | Next)
        return self.device.load(count_source()) if counts else None

    # Memory

    def _windows(self) -> dict[int, tuple[int, list[tuple[int, int]]]]:
        """Return buffers of other origins or moves in loops: origin, (loop, bytes)."""
        flat, buffers = self.sized.code.flat, self.sized.code.schedule.buffers
        found = {}
        for number, (origin, moves) in enumerate(
            zip(flat.origin, flat.moves, strict=True)
        ):
            if origin != number:
                self._places[number] = 0
                size = buffers[number].dtype.itemsize
                steps = [(n, evaluate(d, self._values) * size) for n, d in moves]
                found[number] = (self._places[origin], steps)
        return found

    def _mirrored(self) -> list[tuple[Mirror, Storage, bool]]:
        """Return mirrors and storages of stored buffers, and which are written."""
        schedule = self.sized.code.schedule
        written = {b for k in schedule.kernels for b in stored_by(schedule, k)}
        found: list[tuple[Mirror, Storage, bool]] = []
        for buffer in schedule.buffers:
            if buffer.leaf is not None:
                storage = buffer.leaf.storage
                mirror = mirror_of(self.device, storage)
                self._places[buffer.number] = mirror.address
                found.append((mirror, storage, buffer.number in written))
        return found

    def _layout(self) -> None:
        """Find addresses in one block: arena, scratch, inputs, outputs, status."""
        sized, buffers = self.sized, self.sized.code.schedule.buffers
        size = aligned(sized.plan.arena_bytes)
        offsets: dict[int, int] = {
            number: offset
            for number, offset in enumerate(sized.spread.offsets)
            if offset >= 0
        }
        for number, area in enumerate(sized.scratch):
            offsets[-2 - number] = size
            size += aligned(area)
        self.inputs: dict[int, int] = {}
        for buffer in buffers:
            if buffer.kind == "input":
                offsets[buffer.number] = size
                self.inputs[buffer.position] = buffer.number
                size += aligned(sized.spread.bytes[buffer.number])
        first = size
        self.shapes = [self._shape(number) for number in sized.code.schedule.outputs]
        for number, (shape, dtype) in zip(
            sized.output_buffers, self.shapes, strict=True
        ):
            offsets[number] = size
            size += aligned(math.prod(shape) * dtype.itemsize)
        offsets[STATUS] = size
        size += STATUS_BYTES
        self.base = self.device.allocate(size)
        weakref.finalize(self, self.device.free, self.base)
        for number, offset in offsets.items():
            self._places[number] = self.base + offset
        if self._status is not None:
            self._places[STATUS] = self._status
        self._results = np.empty(size - first, np.uint8)
        self._first = first
        self._offsets = [offsets[number] - first for number in sized.output_buffers]
        self.device.fill(self.address(BufferAddress(STATUS)), 0, STATUS_BYTES)

    def _shape(self, number: int) -> tuple[tuple[int, ...], np.dtype[Any]]:
        buffer = self.sized.code.schedule.buffers[number]
        shape = tuple(evaluate(dim, self._values) for dim in buffer.shape)
        return shape, buffer.dtype

    def address(self, place: BufferAddress) -> int:
        """Return the address of a place; in a loop, at its current position."""
        base = self._places[place.buffer] + place.offset
        if place.buffer in self._moving:
            origin, moves = self._moving[place.buffer]
            base += origin + sum(step * self._position[loop] for loop, step in moves)
        return base

    def input_address(self, position: int) -> int:
        """Return the address of an input that some kernel reads."""
        return self._places[self.inputs[position]]

    def output_address(self, position: int) -> int:
        """Return the address of an output after a run."""
        return self._places[self.sized.output_buffers[position]]

    def write(self, position: int, array: Array | DeviceArray) -> None:
        """Copy an input to where it is read, if some kernel reads it."""
        if position not in self.inputs or not array.size:
            return
        place = self.input_address(position)
        if isinstance(array, DeviceArray):
            self.device.copy(place, array.address, array.nbytes)
        else:
            self.device.write(place, np.ascontiguousarray(array))

    # Running

    def upload(self) -> None:
        """Upload the parameters and states that the host owns."""
        for mirror, storage, written in self._mirrors:
            mirror.upload(storage)
            mirror.changed = mirror.changed or written

    def run(self) -> None:
        """Launch all steps, or run the captured graph; inputs are in place."""
        if self._graph is None and self._runs and self.capturable:
            try:
                self._graph = captured(self.device, self.issue)
            except DeviceError:
                if self.capturable:  # it was not for the conditional nodes
                    raise
        if self._graph is not None:
            self.device.replay(self._graph)
        else:
            self.issue()
        self._runs += 1

    def issue(self) -> None:
        """Launch all steps in order; fixed loops unroll, branches ask the host."""
        steps, number = self.sized.steps, 0
        self._states.clear()
        if self.device.recording:
            self._recorder.record(0, len(steps))
            return
        while number < len(steps):
            step, kernel = steps[number], self.kernels[number]
            number += 1
            if isinstance(step, Flow):
                number = self.control(step, number, kernel)
            else:
                self.work(step, kernel)

    def control(self, step: Flow, following: int, kernel: Any) -> int:
        """The number of the step that comes next."""
        labels = self.sized.labels
        match step:
            case Enter(counter, loop, _, reverse, target):
                length = self._length(step)
                if length == 0:
                    return labels[target]
                start = (length or 1) - 1 if reverse else 0
                self.count(kernel, loop, counter, start)
            case Again(counter, loop, _, reverse, target):
                position = self._position[loop] + (-1 if reverse else 1)
                length = self._length(step)
                if length is not None and not 0 <= position < length:
                    return following
                self.count(kernel, loop, counter, position)
                return labels[target]
            case Unless(buffer, dtype, value, target):
                if self._read(buffer, dtype) != value:
                    return labels[target]
            case Limit(buffer, value, _, site):
                if self._read(buffer, INT64) == value:
                    text = limit_text("while_loop", value)
                    raise LoopLimitError(f"{text}{at(site.source)}")
            case Jump(target):
                return labels[target]
            case Clear(state):
                self._states[state] = self._state(state)
            case Note():
                return self._note(step, following)
            case Next():
                return self._next(step, following, kernel)
        return following

    def _length(self, turn: Enter | Again) -> int | None:
        length = turn.length
        return None if length is None else evaluate(length, self._values)

    def _state(self, number: int) -> npt.NDArray[np.int64]:
        """A state of a loop's snapshots at the beginning."""
        return np.zeros(self.sized.spread.bytes[number] // INT64.itemsize, np.int64)

    def _note(self, step: Note, following: int) -> int:
        """A replay reads the state on the device, as it reads what is kept."""
        state = self._states[step.state]
        kept = revolve.note(state.ctypes.data, step.snapshots)
        self._slot = int(state[revolve.SLOT])
        self.device.write(self.address(BufferAddress(step.state)), state)
        return following if kept else self.sized.labels[step.target]

    def _next(self, step: Next, following: int, kernel: Any) -> int:
        number, count = step.state, self._known(step.steps)
        if number not in self._states:
            state = self._states[number] = self._state(number)
            if step.noted:
                self.device.read(self.address(BufferAddress(number)), state)
        state = self._states[number]
        if count is None:
            count = self._read(step.steps, INT64)
        action = revolve.decide(state.ctypes.data, count, step.snapshots)
        self._slot = int(state[revolve.SLOT])
        done = action == revolve.DONE
        position = 0 if done else int(state[revolve.POSITION])
        self.count(kernel, step.loop, step.counter, position)
        if done:
            del self._states[number]
        if action == revolve.FORWARD:
            return following
        return self.sized.labels[step.targets[_TARGETS.index(action)]]

    def _known(self, number: int) -> int | None:
        """The number in a buffer, if it is a constant."""
        value = self.sized.code.schedule.buffers[number].value
        return None if value is None else int(value)

    def count(self, kernel: Any, loop: int, counter: int, position: int) -> None:
        """Begin a step of a loop."""
        self._position[loop] = position
        arguments = [self.address(BufferAddress(counter)), position]
        self.device.launch(kernel, (1, 1), LANES, arguments)

    def _read(self, number: int, dtype: DType) -> int:
        value = np.zeros(1, dtype)
        self.device.read(self.address(BufferAddress(number)), value)
        return int(value[0])

    def work(self, step: Work, kernel: Any) -> None:
        """Run a step."""
        device = self.device
        match step:
            case Launch(_, grid, block, arguments):
                values = [self._argument(argument) for argument in arguments]
                device.launch(kernel, grid, block, values)
            case Multiply(product, a, b, c):
                device.multiply(product, *map(self.address, (a, b, c)))
            case Copy(source, target):
                size = self.sized.spread.bytes[source]
                places = (
                    self.address(BufferAddress(target)),
                    self.address(BufferAddress(source)),
                )
                device.copy(*places, size)
            case Zero(target, size):
                device.fill(self.address(target), 0, size)
            case Slot(carry, room, _, back):
                size, own = (
                    self.sized.spread.bytes[carry],
                    self.address(BufferAddress(carry)),
                )
                kept = self.address(BufferAddress(room)) + self._slot * size
                device.copy(*((own, kept) if back else (kept, own)), size)
            case HostCall():
                run_on_host(step, device, lambda b: self.address(BufferAddress(b)))

    def _argument(self, argument: Argument) -> int:
        return (
            self.address(argument) if isinstance(argument, BufferAddress) else argument
        )

    def call(self, arrays: Sequence[Array | DeviceArray]) -> list[Array]:
        """Run on `arrays`; return outputs or raise what kernels report."""
        self._fed(arrays)
        return self.outputs()

    def call_on_device(
        self, arrays: Sequence[Array | DeviceArray]
    ) -> list[DeviceArray]:
        """Run as `call`, with outputs that stay on the device."""
        self._fed(arrays)
        status = np.zeros(STATUS_WORDS, np.int64)
        self.device.read(self.address(BufferAddress(STATUS)), status)
        self._require_success(status)
        results = []
        for position, (shape, dtype) in enumerate(self.shapes):
            result = new_array(self.device, dtype, shape)
            source = self.output_address(position)
            self.device.copy(result.address, source, result.nbytes)
            results.append(result)
        return results

    def _fed(self, arrays: Sequence[Array | DeviceArray]) -> None:
        self.upload()
        for position, array in enumerate(arrays):
            self.write(position, array)
        self.run()

    def _require_success(self, status: npt.NDArray[np.int64]) -> None:
        if status[STATUS_CODE]:
            raise self.error(status)

    def outputs(self) -> list[Array]:
        """Return the outputs of the last run as fresh arrays, or raise its error."""
        self.device.read(self.base + self._first, self._results)
        self._require_success(self._results[-STATUS_BYTES:].view(np.int64))
        return [
            self._results[offset : offset + math.prod(shape) * dtype.itemsize]
            .view(dtype).reshape(shape).copy()
            for offset, (shape, dtype) in zip(self._offsets, self.shapes, strict=True)
        ]  # fmt: skip

    def error(self, status: npt.NDArray[np.int64]) -> BaseException:
        """Return the exception for a status, which is cleared."""
        kept = status.copy()
        self.device.fill(self.address(BufferAddress(STATUS)), 0, STATUS_BYTES)
        return failure(self.sized.code, kept)


_TARGETS = (revolve.BACK, revolve.STORE, revolve.RESTORE, revolve.DONE)
