"""Calls that loop for as long as their data ask, and that Ctrl-C ends.

Python's handler of SIGINT waits until a native call returns. So for the time of such a
call the number of a signal is also written to a socket, as it comes, and a thread that
reads it sets the stop cell of the call, which every loop polls; KeyboardInterrupt is
raised when the call has returned. It costs about 2 us a call.

Only where Python itself would raise KeyboardInterrupt: in the main thread, and with
Python's own handler. Who listens to signals already goes on to listen afterwards.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading

from staticgrad.compiler.calling import Machine
from staticgrad.compiler.schedule import ControlKernel, Schedule
from staticgrad.compiler.vm import STOPPED


def loops(schedule: Schedule) -> bool:
    """Whether a schedule, or what is nested in it, has loops of its own."""
    pending = [schedule]
    while pending:
        for kernel in pending.pop().kernels:
            if isinstance(kernel, ControlKernel):
                if kernel.form != "branch":
                    return True
                pending += kernel.bodies
    return False


def watched(machine: Machine) -> Machine:
    """`machine`, which Ctrl-C stops; KeyboardInterrupt then."""

    def run(pc: int, stop: int) -> int:
        if not _is_interruptible():
            return machine(pc, stop)
        cell = ctypes.c_int64.from_address(stop)
        watch = _watch()
        before = watch.begin(cell)
        try:
            code = machine(pc, stop)
        finally:
            watch.end(before)
            stopped, cell.value = cell.value, 0
        if code == STOPPED and stopped:
            raise KeyboardInterrupt
        return code

    return run


def _is_interruptible() -> bool:
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class _Watch:
    """A thread that reads the numbers of signals, and the cell that it would set."""

    def __init__(self) -> None:
        self._reading, self._writing = socket.socketpair()
        self._writing.setblocking(False)
        self._cell: ctypes.c_int64 | None = None
        threading.Thread(
            target=self._read, name="staticgrad-watch", daemon=True
        ).start()

    def begin(self, cell: ctypes.c_int64) -> int:
        """Watch for a call with this stop cell; returns what `end` needs."""
        self._cell = cell
        return signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)

    def end(self, before: int) -> None:
        """Give signals back to whoever listened."""
        signal.set_wakeup_fd(before)
        self._cell = None

    def _read(self) -> None:
        while numbers := self._reading.recv(64):
            cell = self._cell
            if signal.SIGINT in numbers and cell is not None:
                cell.value = 1


_watches: list[_Watch] = []


def _watch() -> _Watch:
    """The one of this process; only the main thread asks."""
    if not _watches:
        _watches.append(_Watch())
    return _watches[0]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watches.clear)  # its thread is gone
