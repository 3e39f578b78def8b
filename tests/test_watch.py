"""Does Ctrl-C end a single call that loops, and leave signals as they were?"""

import os
import signal
import threading

import numpy as np
import pytest

import staticgrad as sg

pytestmark = pytest.mark.skipif(os.name != "posix", reason="os.kill sends no SIGINT")


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
