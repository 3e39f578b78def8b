"""Recording of a frame's steps: branches and loops become conditional nodes.

What the host decides in a call that is launched, the device decides in a graph. Loops
of known length unroll, as they do there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from staticgrad.compiler.cuda.conditional_nodes import (
    ENDLESS,
    decision_source,
    increment_source,
)
from staticgrad.compiler.cuda.device import Device
from staticgrad.compiler.cuda.device_memory import DeviceMemory
from staticgrad.compiler.cuda.frame_steps import STATUS, BufferAddress, Work
from staticgrad.compiler.cuda.launches import LANES, Launches
from staticgrad.compiler.kernel_ir.instruction_set import (
    Enter,
    Flow,
    Jump,
    Limit,
    Unless,
)
from staticgrad.errors import DeviceError
from staticgrad.ir.types import DType


class Recorded(Protocol):
    """Work that can be recorded: a CudaFrame."""

    sized: Launches
    device: Device
    kernels: list[Any]

    def address(self, place: BufferAddress) -> int:
        """Return the address of a place."""

    def control(self, step: Flow, following: int, kernel: Any) -> int:
        """The number of the step that comes next."""

    def work(self, step: Work, kernel: Any) -> None:
        """Run a step."""

    def count(self, kernel: Any, loop: int, counter: int, position: int) -> None:
        """Begin a step of a loop."""


class Recorder:
    """Recorder of a frame whose tests read numbers of `dtypes`.

    All that it needs is loaded at once: nothing may be while something is recorded.
    """

    def __init__(self, frame: Recorded, dtypes: Iterable[DType]) -> None:
        self.frame: Recorded = weakref.proxy(frame)  # which owns this
        self.device = device = frame.device
        wanted = set(dtypes)
        if not wanted or not device.conditionals:
            return
        try:
            device.condition()
        except DeviceError:
            return  # the host decides
        self._flag = DeviceMemory(device, {"flag": 8})
        self._decide = {d: device.load(decision_source(d)) for d in wanted}
        self._increment = device.load(increment_source())

    def record(self, first: int, stop: int) -> None:
        """Record the steps from `first` to before `stop`."""
        number = first
        while number < stop:
            step, kernel = self.frame.sized.steps[number], self.frame.kernels[number]
            if isinstance(step, Enter) and step.length is None:
                number = self._record_loop(step, number, kernel)
            elif isinstance(step, Unless):
                number = self._record_branch(step, number)
            elif isinstance(step, Flow):
                number = self.frame.control(step, number + 1, kernel)
            else:
                self.frame.work(step, kernel)
                number += 1

    def _record_branch(self, test: Unless, number: int) -> int:
        """One side ends with a jump behind the other, which may test again."""
        device, labels = self.device, self.frame.sized.labels
        other = labels[test.target]
        jump = self.frame.sized.steps[other - 1]
        assert isinstance(jump, Jump)
        join = labels[jump.target]
        sides = ((number + 1, other - 1), (other, join - 1))
        conditions = [device.condition() for _ in sides]
        for negated, condition in enumerate(conditions):
            self._decided(test, condition, negated=negated)
        for condition, side in zip(conditions, sides, strict=True):
            device.conditional(condition, False, partial(self.record, *side))
        return join

    def _record_loop(self, enter: Enter, number: int, kernel: Any) -> int:
        """Condition, test, perhaps a limit, body; the condition again in each step."""
        steps, end = self.frame.sized.steps, self.frame.sized.labels[enter.target]
        test, asked = next(
            (n, step)
            for n, step in enumerate(steps[number:end], number)
            if isinstance(step, Unless) and step.target == enter.target
        )
        found = steps[test + 1]
        limit = found if isinstance(found, Limit) else None
        if limit is not None and limit.target != enter.target:
            limit = None
        condition = self.device.condition()

        def ask() -> None:
            self.record(number + 1, test)
            self._decided(asked, condition, enter.counter, limit)

        def again() -> None:
            self.record(test + 1 + (limit is not None), end - 1)
            place = [self.frame.address(BufferAddress(enter.counter))]
            self.device.launch(self._increment, (1, 1), LANES, place)
            ask()

        self.frame.count(kernel, enter.loop, enter.counter, 0)
        ask()
        self.device.conditional(condition, True, again)
        return end

    def _decided(
        self, test: Unless, condition: Any, counter: int | None = None,
        limit: Limit | None = None, negated: int = 0,
    ) -> None:  # fmt: skip
        """Set a condition from a test, for a loop if there is a counter."""
        flag = self._flag.addresses["flag"]
        most, which = -1 if counter is None else ENDLESS, 0
        if limit is not None:
            most, which = limit.value, limit.number
        looked_at, status = BufferAddress(test.buffer), BufferAddress(STATUS)
        count = flag if counter is None else self.frame.address(BufferAddress(counter))
        arguments = [
            flag, self.frame.address(looked_at), test.value, negated,
            count, most, which, self.frame.address(status),
        ]  # fmt: skip
        self.device.launch(self._decide[test.dtype], (1, 1), LANES, arguments)
        self.device.set_condition(condition, flag)
