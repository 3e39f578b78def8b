"""Does Ctrl-C end a single call that loops, and leave signals as they were?"""

import os
import signal
import threading

import numpy as np
import pytest
from cuda_devices import EmulatedDevice

import staticgrad as sg
from staticgrad.compiler.cuda.device import using
from staticgrad.compiler.kernel_ir.kernels import is_polled
from staticgrad.compiler.kernel_ir.schedule import ControlKernel
from staticgrad.compiler.passes import cut_loops
from staticgrad.compiler.runtime import vm
from staticgrad.compiler.runtime.assembler import Cell
from staticgrad.compiler.runtime.vm import FINISHED, STOPPED
from staticgrad.compiler.runtime.watch import watched

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


def test_blocks_of_a_long_loop_on_a_gpu_are_its_steps(monkeypatch):
    x = sg.input("x", (), "float64")
    last = sg.fori_loop(3, 3 + 5_300, lambda i, c: c * 0.9 + sg.sin(c + i) * x, x)
    monkeypatch.setattr(cut_loops, "BLOCK", 1_000)  # its indices have 32 bits
    with using(EmulatedDevice()):
        f = sg.compile(last, target="cuda")
    wanted = sg.compile(last, target="reference")(0.7)
    assert f(0.7) == pytest.approx(wanted)
    kernels = f.target.code.root.kernels
    (blocks,) = (k for k in kernels if isinstance(k, ControlKernel))
    assert (blocks.form, blocks.length) == ("loop", 5)
    # the steps of a block are one kernel, and so is the rest
    inside = (*blocks.bodies[0].kernels, *(k for k in kernels if k is not blocks))
    assert not any(isinstance(k, ControlKernel) for k in inside)


def logistic(c, x):
    c = 3.9 * c * (1 - c) + 1e-9 * x
    return c, c


SMALL_LOOPS = {
    "symbolic": lambda x, c: [sg.fori_loop(0, x.shape[0], lambda i, v: v + i, c)],
    "stacked": lambda x, c: sg.scan(logistic, c, x),
    "reversed": lambda x, c: sg.scan(logistic, c, x, reverse=True),
    "gradient": lambda x, c: [sg.grad(sg.scan(logistic, c, x)[0], c)],
    "long": lambda x, c: [sg.fori_loop(0, 100_000, lambda i, v: v + i, c)],
}


@pytest.mark.parametrize("name", SMALL_LOOPS)
def test_a_stop_ends_a_loop_inside_of_a_kernel(name):
    x, c = sg.input("x", ("n",), "float64"), sg.input("c", (), "float64")
    outputs = SMALL_LOOPS[name](x, c)
    f = sg.compile(outputs, inputs=[x, c])
    kernels = f.target.code.root.kernels
    assert any(is_polled(k) for k in kernels)
    data, start = np.random.default_rng(0).normal(size=9_000), np.float64(0.4)
    wanted = f(data, start)
    frame = f.frame({"n": len(data)})
    frame.inputs.get("x", data)[:], frame.inputs["c"][...] = data, start
    stop = Cell(1)
    carries = [np.copy(array) for array in frame.outputs]
    assert frame.run(stop.address) == STOPPED
    for array, want, before in zip(frame.outputs, wanted, carries, strict=True):
        assert not np.array_equal(array, want)
        if array.ndim:  # no step wrote to the stack
            np.testing.assert_array_equal(array, before)
    assert frame.run() == FINISHED
    for array, want in zip(frame.outputs, wanted, strict=True):
        np.testing.assert_array_equal(array, want)
    frame.finish_step()  # what a step began before the stop, it finishes
    for array in frame.outputs:
        array[...] = 0
    assert frame.run(stop.address) == FINISHED
    for array, want in zip(frame.outputs, wanted, strict=True):
        np.testing.assert_array_equal(array, want)


def test_a_bad_index_made_of_what_was_left_undone_is_no_error():
    x, table = sg.input("x", ("n",), "int64"), sg.input("t", (4,))
    last, seen = sg.scan(lambda c, v: ((c + v) % 4, c), sg.constant(0, "int64"), x)
    f = sg.compile([sg.take(table, seen), last], inputs=[x, table], poison=True)
    frame = f.frame({"n": 50})
    frame.inputs["x"][:], frame.inputs["t"][:] = 1, np.arange(4)
    assert frame.run(Cell(1).address) == STOPPED
    assert frame.run() == FINISHED
    np.testing.assert_array_equal(frame.outputs[0], np.arange(50) % 4)


@pytest.mark.parametrize("name", ["stacked", "reversed"])
def test_ctrl_c_ends_a_long_loop_over_an_array(name):
    x, c = sg.input("x", ("n",), "int8"), sg.input("c", ())

    def step(carry, v):
        for _ in range(12):
            carry = sg.sin(3 * carry + v)
        return carry, sg.astype(carry < 0, "int8")

    reverse = name == "reversed"
    f = sg.compile(sg.scan(step, c, x, reverse=reverse)[1], inputs=[x, c])
    data = np.zeros(30_000_000, "int8")
    g = f.bind(data, np.ones((), "float32"))
    (seen,) = g._runner.outputs
    seen[:] = 7
    interrupted(g)
    assert seen[-1 if reverse else 0] < 2  # it began
    assert seen[0 if reverse else -1] == 7


def test_only_long_loops_are_watched():
    x, c = sg.input("x", ("n", 8)), sg.input("c", (8,))
    w = np.eye(8, dtype="float32")
    inside = sg.compile(sg.scan(lambda c, v: (c * v, c), c, x), inputs=[x, c])
    steps = sg.compile(sg.scan(lambda c, v: (sg.tanh(w @ c + v), c), c, x), [x, c])
    for f in (inside, steps):
        assert f.target.pool({"n": 1000}).machine is vm.load()
        assert f.target.pool({"n": 100_000_000}).machine is not vm.load()
    called = sg.scan(lambda c, v: (sg.pure_callback(abs, (8,), "float32", c), 0), c, x)
    f = sg.compile(called[0], inputs=[x, c])
    assert f.target.pool({"n": 1}).machine is not vm.load()
