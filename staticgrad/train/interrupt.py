"""Interruption of native calls by Ctrl-C.

The call runs in a thread of its own, without the GIL, while the calling thread waits.
In the main thread the handler of SIGINT is replaced for that time by one that sets the
stop cell, so no exception appears at an odd place; KeyboardInterrupt is raised when the
call has returned. A user's handler is kept; an exception in it stops the call too.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from staticgrad.compiler.runtime.assembler import Cell
from staticgrad.compiler.runtime.vm import STOPPED

# Waiting without a limit is interruptible by signals on POSIX only.
_PATIENCE = None if os.name == "posix" else 0.02


def completed(work: Callable[[Cell], int]) -> int:
    """The code that ``work(stop)`` returns, or its exception.

    Ctrl-C sets the cell `stop` to 1, which makes `work` return soon; KeyboardInterrupt
    is raised then, and where the code is STOPPED.
    """
    stop = Cell(0)
    results: list[int] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def body() -> None:
        try:
            results.append(work(stop))
        except BaseException as error:  # noqa: BLE001  # raised by the caller
            errors.append(error)
        finally:
            done.set()

    with _stopping_on_interrupt(stop) as interrupts:
        threading.Thread(target=body, name="staticgrad-run").start()
        _wait(done, stop)
    if errors:
        raise errors[0]
    if interrupts or results[0] == STOPPED:
        raise KeyboardInterrupt
    return results[0]


def _wait(done: threading.Event, stop: Cell) -> None:
    try:
        while not done.wait(_PATIENCE):
            pass
    except BaseException:
        stop.value = 1
        done.wait()
        raise


@contextmanager
def _stopping_on_interrupt(stop: Cell) -> Iterator[list[int]]:
    """Set `stop` on SIGINT; yield the list of received signals."""
    received: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()
    before: Any = signal.getsignal(signal.SIGINT) if in_main else None
    if before is not signal.default_int_handler:
        yield received
        return

    def handler(number: int, _: Any) -> None:
        stop.value = 1
        received.append(number)

    signal.signal(signal.SIGINT, handler)
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before)
