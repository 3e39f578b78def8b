"""Interruption of calls that loop for long, by Ctrl-C.

Python's handler of SIGINT waits until a native call returns. So for the time of such a
call the number of a signal is also written to a socket, as it comes, and a thread that
reads it sets the stop cell of the call, which every loop polls; KeyboardInterrupt is
raised when the call has returned. It costs about 2 us a call.

The cell belongs to the thread and not to the frame that runs: the thread may be late,
and the memory of a frame may by then be another's.

Only where Python itself would raise KeyboardInterrupt: in the main thread, and with
Python's own handler. An earlier listener to signals is restored afterwards.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence

from staticgrad.compiler.kernel_ir.kernels import LoopKernel, is_polled
from staticgrad.compiler.kernel_ir.run_costs import work
from staticgrad.compiler.kernel_ir.schedule import Buffer, ControlKernel, Schedule, Step
from staticgrad.compiler.runtime.calling import Machine
from staticgrad.compiler.runtime.failures import foreign
from staticgrad.compiler.runtime.vm import STOPPED
from staticgrad.ir.size import evaluate

LONG = 2**31
"""Additions (run_costs.py), about 40 ms, from which a loop is worth the 2 us."""

NOBODY = -1
"""File descriptor that stands for no listener to signals."""


def takes_long(schedule: Schedule, values: Mapping[str, int]) -> bool:
    """Whether a run may last in a loop, the machine's or a kernel's.

    So it may where the number of steps is data, where a step calls what the user wrote,
    and where all steps together are many additions.
    """
    return any(
        _additions(kernel, schedule.buffers, values) > LONG
        for kernel in schedule.kernels
        if isinstance(kernel, ControlKernel) or is_polled(kernel)
    )


def _additions(
    kernel: Step, buffers: Sequence[Buffer], values: Mapping[str, int]
) -> float:
    if not isinstance(kernel, ControlKernel):
        unknown = isinstance(kernel, LoopKernel) and any(foreign(kernel))
        return math.inf if unknown else work(kernel, buffers, values)
    if kernel.form not in ("loop", "branch"):
        return math.inf
    inner = ((k, body.buffers) for body in kernel.bodies for k in body.kernels)
    each = sum(_additions(k, own, values) for k, own in inner)
    return each if kernel.form == "branch" else each * evaluate(kernel.length, values)


def watched(machine: Machine) -> Machine:
    """Return `machine` made interruptible by Ctrl-C, which raises KeyboardInterrupt.

    Where it watches, it polls the cell of the watch instead of the given one.
    """

    def run(pc: int, stop: int) -> int:
        if not _is_interruptible():
            return machine(pc, stop)
        watch = _watch()
        before = NOBODY
        try:  # a signal may be raised at once
            before = watch.begin()
            code = machine(pc, watch.address)
        finally:
            signal.set_wakeup_fd(before)
        if code == STOPPED:
            raise KeyboardInterrupt
        return code

    return run


def _is_interruptible() -> bool:
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class _Watch:
    """Thread that reads the numbers of signals, and sets the cell at `address`."""

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._writing.setblocking(False)
        self._cell = ctypes.c_int64()
        self.address = ctypes.addressof(self._cell)
        threading.Thread(
            target=self._read, name="staticgrad-watch", daemon=True
        ).start()

    def begin(self) -> int:
        """Watch during a call; return the previous listener, for set_wakeup_fd."""
        self._cell.value = 0
        return signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)

    def _read(self) -> None:
        while numbers := self._reading.recv(64):
            if signal.SIGINT in numbers:
                self._cell.value = 1


_watches: list[_Watch] = []


def _watch() -> _Watch:
    """Return the one of this process; only the main thread asks."""
    if not _watches:
        _watches.append(_Watch())
    return _watches[0]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watches.clear)  # its thread is gone
