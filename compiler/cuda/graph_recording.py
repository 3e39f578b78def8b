"""Recording the steps of a frame: branches and loops become conditional nodes.

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
from staticgrad.compiler.cuda.frame_steps import (
    STATUS,
    BufferAddress,
    Control,
    Enter,
    Jump,
    Limit,
    Step,
    Unless,
    Work,
)
from staticgrad.compiler.cuda.launches import LANES, Launches
from staticgrad.errors import DeviceError
from staticgrad.ir.types import DType


class Recorded(Protocol):
    """What is recorded: a CudaFrame."""

    sized: Launches
    device: Device
    kernels: list[Any]

    def address(self, place: BufferAddress) -> int:
        """Where a place is."""

    def control(self, step: Control, following: int, kernel: Any) -> int:
        """The number of the step that comes next."""

    def work(self, step: Work, kernel: Any) -> None:
        """Do a step."""

    def count(
        self, kernel: Any, loop: int, counter: BufferAddress, position: int
    ) -> None:
        """Begin a step of a loop."""


class Recorder:
    """Records a frame whose tests look at numbers of `dtypes`.

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
            return  # the host looks
        self._flag = DeviceMemory(device, {"flag": 8})
        self._decide = {d: device.load(decision_source(d)) for d in wanted}
        self._increment = device.load(increment_source())

    def record(self, first: int, stop: int) -> None:
        """The steps from `first` to the one before `stop`."""
        number = first
        while number < stop:
            step, kernel = self.frame.sized.steps[number], self.frame.kernels[number]
            if isinstance(step, Enter) and step.length is None:
                number = self._record_loop(step, number, kernel)
            elif isinstance(step, Unless):
                number = self._record_branch(step, number)
            elif isinstance(step, Control):
                number = self.frame.control(step, number + 1, kernel)
            else:
                self.frame.work(step, kernel)
                number += 1

    def _record_branch(self, test: Unless, number: int) -> int:
        """One side ends with a jump behind the other, which may test again."""
        device, jump = self.device, self.frame.sized.steps[test.target]
        assert isinstance(jump, Jump)
        sides = ((number + 1, test.target), (test.target + 1, jump.target))
        conditions = [device.condition() for _ in sides]
        for negated, condition in enumerate(conditions):
            self._decided(test, condition, negated=negated)
        for condition, side in zip(conditions, sides, strict=True):
            device.conditional(condition, False, partial(self.record, *side))
        return jump.target + 1

    def _record_loop(self, enter: Enter, number: int, kernel: Any) -> int:
        """Condition, test, perhaps a limit, body; the condition again in each step."""
        steps, end = self.frame.sized.steps, enter.target
        test = next(n for n in range(number, end) if _ends(steps[n], end))
        limit, asked = steps[test + 1], steps[test]
        assert isinstance(asked, Unless)
        limited = isinstance(limit, Limit) and limit.target == end
        condition = self.device.condition()
        bound = limit if limited else None

        def ask() -> None:
            self.record(number + 1, test)
            self._decided(asked, condition, enter.counter, bound)

        def again() -> None:
            self.record(test + 1 + limited, end)
            place = [self.frame.address(enter.counter)]
            self.device.launch(self._increment, (1, 1), LANES, place)
            ask()

        self.frame.count(kernel, enter.loop, enter.counter, 0)
        ask()
        self.device.conditional(condition, True, again)
        return end + 1

    def _decided(
        self, test: Unless, condition: Any, counter: BufferAddress | None = None,
        limit: Step | None = None, negated: int = 0,
    ) -> None:  # fmt: skip
        """Set a condition to what a test says, for a loop if there is a counter."""
        flag = self._flag.addresses["flag"]
        most, which = -1 if counter is None else ENDLESS, 0
        if isinstance(limit, Limit):
            most, which = limit.value, limit.number
        arguments = [
            flag, self.frame.address(test.place), test.value, negated,
            flag if counter is None else self.frame.address(counter), most, which,
            self.frame.address(BufferAddress(STATUS)),
        ]  # fmt: skip
        self.device.launch(self._decide[test.dtype], (1, 1), LANES, arguments)
        self.device.set_condition(condition, flag)


def _ends(step: Step, end: int) -> bool:
    """Whether a step is the test that leads behind the end of a loop."""
    return isinstance(step, Unless) and step.target == end
