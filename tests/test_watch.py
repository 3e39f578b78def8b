"""Does Ctrl-C end a single call that loops, and leave signals as they were?"""

import os
import signal
import threading

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.passes import cut_loops
from staticgrad.compiler.schedule import ControlKernel
from staticgrad.compiler.watch import watched

pytestmark = pytest.mark.skipif(os.name != "posix", reason="os.kill sends no SIGINT")


@pytest.fixture(autouse=True)
def python_handles_ctrl_c():
    """A shell that starts the tests in the background has them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def endless():
    x = sg.input("x", (), "float64")
    grown = sg.while_loop(lambda v: v > 0, lambda v: v + 1e-9, x)
    return sg.compile(grown, inputs=[x])


def counting():
    x = sg.input("x", (), "float64")
    counted = sg.while_loop(lambda v: v < 100, lambda v: v + 1, x)
    return sg.compile(counted, inputs=[x])


def interrupted(call):
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    timer.join()


@pytest.mark.parametrize("bound", [False, True])
def test_ctrl_c_ends_a_call_that_would_not_end(bound):
    f, start = endless(), np.ones(())
    interrupted(f.bind(start) if bound else lambda: f(start))
    assert counting()(0.0) == 100  # and later calls run


def test_a_call_that_was_ended_runs_again():
    x = sg.input("x", (), "float64")
    f = sg.compile(sg.while_loop(lambda v: v > 0, lambda v: v + 1e-9, x), inputs=[x])
    interrupted(lambda: f(1.0))
    assert f(-1.0) == -1.0
    interrupted(lambda: f(1.0))


def test_ctrl_c_ends_a_call_that_has_called_another_one():
    x, inner = sg.input("x", (), "float64"), counting()
    start = sg.pure_callback(lambda v: inner(v) - 100 + 1e-9, (), "float64", x)
    grown = sg.while_loop(lambda v: v > 0, lambda v: v + 1e-9, start)
    f = sg.compile(grown, inputs=[x])
    interrupted(lambda: f(0.0))


def test_a_signal_that_is_read_late_writes_to_no_frame():
    cells = []
    run = watched(lambda _, stop: cells.append(stop) or 0)
    of_frame = 8
    run(0, of_frame)
    run(0, of_frame)
    assert cells[0] == cells[1] != of_frame


def test_who_listens_to_signals_goes_on_to_listen():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    try:
        assert counting()(0.0) == 100
        assert signal.set_wakeup_fd(writing) == writing
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def test_other_threads_call_too():
    found = []
    f = counting()
    thread = threading.Thread(target=lambda: found.append(float(f(0.0))))
    thread.start()
    thread.join()
    assert found == [100.0]


def test_ctrl_c_ends_a_long_loop_inside_of_a_kernel():
    x, y = sg.input("x", (), "float64"), sg.input("y", (), "float64")

    def step(i, c):
        return 3.9 * c * (1 - c) + 1e-12 * x

    f = sg.compile(sg.fori_loop(0, 10**12, step, y), inputs=[x, y])
    interrupted(lambda: f(0.0, 0.4))
    w = sg.parameter(np.float64(0.4), name="w")
    later = sg.fori_loop(0, 10**12, step, w)
    g = sg.compile(w * x, inputs=[x], updates=[(w, later)])
    interrupted(lambda: g(0.0))
    assert w.value == 0.4  # the step was not done


def test_blocks_of_a_long_loop_are_its_steps(monkeypatch):
    x = sg.input("x", (), "float64")
    last = sg.fori_loop(3, 3 + 23_000, lambda i, c: c * 0.9 + sg.sin(c + i) * x, x)
    wanted = sg.compile(last)(0.7)
    monkeypatch.setattr(cut_loops, "BLOCK", 5_000)
    f = sg.compile(last)
    assert f(0.7) == wanted
    kernels = f.target.code.root.kernels
    (blocks,) = (k for k in kernels if isinstance(k, ControlKernel))
    assert (blocks.form, blocks.length) == ("loop", 4)
    # the steps of a block are one kernel, and so is the rest
    inside = (*blocks.bodies[0].kernels, *(k for k in kernels if k is not blocks))
    assert not any(isinstance(k, ControlKernel) for k in inside)
    assert sg.compile(last, target="reference")(0.7) == pytest.approx(wanted)
