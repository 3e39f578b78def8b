"""Runs of fit: stopping, resuming, callbacks, threads, and what stays untouched."""

import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from stop_cells import CountingCell

import staticgrad as sg
from staticgrad.compiler.runtime.assembler import Cell
from staticgrad.train.interrupt import completed

TARGETS = ("reference", "cpu")
RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.standard_normal((200, 4)).astype(np.float32),
    "y": RNG.integers(0, 3, 200),
}
VALID = {"x": DATA["x"][:30], "y": DATA["y"][:30]}
FIT = {"epochs": 6, "batch_size": 16, "validation": VALID, "progress": False}


def make(target="cpu"):
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", 4))
        y = sg.input("y", ("batch",), dtype="int64")
        model = sg.nn.Sequential(
            sg.nn.Linear(4, 8), sg.nn.Tanh(), sg.nn.Dropout(0.3), sg.nn.Linear(8, 3)
        )
        logits = model(x)
        loss = sg.nn.cross_entropy(logits, y)
        accuracy = sg.metrics.accuracy(logits, y)
    trainer = sg.Trainer(
        loss,
        optimizer=sg.optim.Adam(0.02),
        metrics={"accuracy": accuracy},
        target=target,
    )
    return trainer, graph


def leaves(trainer, graph):
    found = {leaf.name: leaf.value for leaf in graph.stored}
    states = trainer.optimizer.states
    return found | {f"optimizer.{n}": s.value for n, s in states.items()}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


# ---- stopping and resuming -----------------------------------------------------------


@pytest.mark.parametrize("polls", [0, 1, 12, 13, 14, 15, 30, 89])
def test_the_reference_loop_stops_and_resumes_exactly(polls, monkeypatch):
    whole, graph_whole = make("reference")
    expected = whole.fit(DATA, **FIT)
    trainer, graph = make("reference")
    with monkeypatch.context() as patch:
        patch.setattr("staticgrad.train.interrupt.Cell", lambda _: CountingCell(polls))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(DATA, **FIT)
    for name, column in trainer.history.items():
        np.testing.assert_array_equal(column, expected[name][: len(column)])
    assert_equal(trainer.fit(DATA, **FIT, resume=True), expected)
    assert_equal(leaves(trainer, graph), leaves(whole, graph_whole))


LONG = FIT | {"epochs": 1500}


def stop_at(trainer, cells, fits, steps):
    """Stop the fit that follows `fits` others once the run has done `steps` steps."""
    while len(cells) <= fits or trainer._last.steps.value < steps:
        time.sleep(0.0005)
    cells[-1].value = 1


def fit_with_stops(trainer, monkeypatch, at):
    """A fit stopped near each step of `at`, and resumed; the stops that came."""
    cells, stops = [], []

    def new_cell(number):
        cells.append(Cell(number))
        return cells[-1]

    monkeypatch.setattr("staticgrad.train.interrupt.Cell", new_cell)
    for steps in at:
        arguments = (trainer, cells, len(cells), steps)
        stopper = threading.Thread(target=stop_at, args=arguments)
        try:
            stopper.start()
            trainer.fit(DATA, **LONG, resume=True)
        except KeyboardInterrupt:
            stops.append(trainer._last.steps.value)
        stopper.join()
    return trainer.fit(DATA, **LONG, resume=True), stops


def test_a_stopped_fit_goes_on_bit_for_bit(monkeypatch):
    whole, graph_whole = make()
    expected = whole.fit(DATA, **LONG)
    trainer, graph = make()
    history, stops = fit_with_stops(trainer, monkeypatch, [1, 2000, 5003])
    assert len(stops) == 3
    assert stops[-1] < 1500 * 13
    assert_equal(history, expected)
    assert_equal(leaves(trainer, graph), leaves(whole, graph_whole))


def test_a_stopped_run_is_saved_and_resumed_by_another_trainer(monkeypatch, tmp_path):
    whole, graph_whole = make()
    expected = whole.fit(DATA, **FIT)
    first, _ = make()
    with monkeypatch.context() as patch:
        patch.setattr("staticgrad.train.interrupt.Cell", lambda _: Cell(1))
        with pytest.raises(KeyboardInterrupt):
            first.fit(DATA, **FIT)
    first.save(tmp_path / "stopped")
    second, graph = make()
    second.load(tmp_path / "stopped")
    assert_equal(second.fit(DATA, **FIT, resume=True), expected)
    assert_equal(leaves(second, graph), leaves(whole, graph_whole))


def test_resuming_with_other_arguments_is_refused(monkeypatch):
    trainer, _ = make()
    with monkeypatch.context() as patch:
        patch.setattr("staticgrad.train.interrupt.Cell", lambda _: Cell(1))
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(DATA, **FIT)
    with pytest.raises(sg.GraphError, match="batch_size 8, not 16"):
        trainer.fit(DATA, **FIT | {"batch_size": 8}, resume=True)
    with pytest.raises(sg.GraphError, match="got steps 3, not None"):
        trainer.fit(DATA, **FIT, steps=3, resume=True)


def test_resuming_without_a_run_starts_one():
    trainer, _ = make()
    assert len(trainer.fit(DATA, **FIT, resume=True)["loss"]) == 6


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("record", ["epoch", "step"])
def test_a_finished_run_is_finished_for_good_and_can_be_made_longer(
    target, record, tmp_path
):
    fit = FIT | {"record": record}
    longer = fit | {"epochs": FIT["epochs"] + 2}
    first, graph = make(target=target)
    expected = first.fit(DATA, **fit)
    before = leaves(first, graph)
    assert_equal(first.fit(DATA, **fit, resume=True), expected)
    assert_equal(leaves(first, graph), before)
    first.save(tmp_path / "finished")
    second, other = make(target=target)
    second.load(tmp_path / "finished")
    assert_equal(second.fit(DATA, **fit, resume=True), expected)
    assert_equal(second.history, expected)
    assert_equal(leaves(second, other), before)
    whole, graph_whole = make(target=target)
    wanted = whole.fit(DATA, **longer)
    assert_equal(second.fit(DATA, **longer, resume=True), wanted)
    assert_equal(leaves(second, other), leaves(whole, graph_whole))
    with pytest.raises(sg.GraphError, match="epochs 6, not 8"):
        second.fit(DATA, **fit, resume=True)


def test_steps_of_a_finished_run_stay_what_they_were():
    trainer, _ = make()
    trainer.fit(DATA, **FIT | {"epochs": None, "steps": 20})
    assert len(trainer.fit(DATA, **FIT | {"epochs": None, "steps": 20})["loss"]) == 2
    with pytest.raises(sg.GraphError, match="steps 60, not 20"):
        trainer.fit(DATA, **FIT | {"epochs": None, "steps": 60}, resume=True)


INTERRUPTED = """
    import os, signal, sys, threading, time
    import numpy as np
    import staticgrad as sg

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((2000, 64)).astype(np.float32)}
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", 64))
        model = sg.nn.Sequential(
            sg.nn.Linear(64, 128), sg.nn.Tanh(), sg.nn.Linear(128, 64)
        )
        loss = sg.nn.mse_loss(model(x), x)
    trainer = sg.Trainer(loss, optimizer=sg.optim.Adam(1e-3))
    trainer.fit(data, epochs=1, batch_size=32, progress=False)
    sent = []

    def kill():
        time.sleep(0.3)
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=kill).start()
    try:
        trainer.fit(data, epochs=10**6, batch_size=32, progress=False)
    except KeyboardInterrupt:
        late = time.perf_counter() - sent[0]
        finite = all(np.isfinite(p.value).all() for p in graph.parameters.values())
        steps = trainer.optimizer.states["step"].value
        same = steps == 63 + trainer._last.steps.value
        default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        print(late, finite, same, default)
"""


def test_ctrl_c_stops_within_50_milliseconds():
    code = textwrap.dedent(INTERRUPTED)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    late, *rest = done.stdout.split()
    assert float(late) < 0.05 + 0.01
    assert rest == ["True", "True", "True"]


def test_a_handler_of_the_users_own_stops_the_run_with_its_exception():
    class Alarm(Exception):
        pass

    def handler(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    stops = []

    def work(stop):
        stops.append(stop)
        while not stop.value:
            time.sleep(0.001)
        return 0

    try:
        with pytest.raises(Alarm):
            completed(work)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [stop.value for stop in stops] == [1]


def test_an_exception_of_the_work_is_raised_in_the_caller():
    def fail(_):
        raise ZeroDivisionError("in the worker")

    with pytest.raises(ZeroDivisionError, match="in the worker"):
        completed(fail)


def test_fit_works_outside_the_main_thread():
    trainer, _ = make()
    lengths = []
    thread = threading.Thread(
        target=lambda: lengths.append(len(trainer.fit(DATA, **FIT)["loss"]))
    )
    thread.start()
    thread.join()
    assert lengths == [6]


# ---- no Python inside ----------------------------------------------------------------


def longest_silence(function):
    """The largest part of its time in which no thread enters a Python function."""
    times = [time.perf_counter()]

    def profile(frame, event, _):
        if event == "call":
            times.append(time.perf_counter())

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    times.append(time.perf_counter())
    return np.max(np.diff(times)) / (times[-1] - times[0])


def test_no_python_function_is_entered_during_a_run():
    trainer, _ = make()
    trainer.fit(DATA, **FIT)
    silence = longest_silence(lambda: trainer.fit(DATA, **FIT | {"epochs": 20_000}))
    assert silence > 0.9  # the rest is the preparation of the run


def test_another_python_thread_keeps_running():
    trainer, _ = make()
    trainer.fit(DATA, **FIT)
    ticks, leave = [], threading.Event()

    def tick():
        while not leave.wait(0.001):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    trainer.fit(DATA, **FIT | {"epochs": 3000})
    seconds = time.perf_counter() - start
    leave.set()
    thread.join()
    during = [t for t in ticks if start < t < start + seconds]
    assert len(during) > seconds / 0.001 / 10


def test_nothing_is_compiled_for_other_batch_sizes():
    trainer, _ = make()
    trainer.fit(DATA, **FIT)
    before = trainer.explain()
    trainer.fit(DATA, **FIT | {"batch_size": 7})
    trainer.evaluate(VALID, batch_size=11)
    after = trainer.explain()
    assert "batch=16" in before
    assert "batch=7" in after
    assert sources(before) == sources(after)


def sources(text):
    return sorted(line for line in text.splitlines() if "compiled" in line)


# ---- callbacks, progress -------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_callbacks_see_each_epoch_and_change_nothing(target):
    plain, graph_plain = make(target)
    expected = plain.fit(DATA, **FIT)
    trainer, graph = make(target)
    rows = []
    history = trainer.fit(
        DATA, **FIT, callbacks=lambda epoch, row: rows.append((epoch, row))
    )
    assert_equal(history, expected)
    assert_equal(leaves(trainer, graph), leaves(plain, graph_plain))
    assert [epoch for epoch, _ in rows] == list(range(6))
    assert [row["val_loss"] for _, row in rows] == list(expected["val_loss"])


def test_a_callback_that_returns_true_ends_the_training():
    trainer, _ = make()
    history = trainer.fit(DATA, **FIT, callbacks=[lambda epoch, row: epoch == 2])
    assert len(history["loss"]) == 3
    assert len(trainer.fit(DATA, **FIT, resume=True)["loss"]) == 3
    longer = FIT | {"epochs": 8}
    assert len(trainer.fit(DATA, **longer, resume=True)["loss"]) == 8
    assert len(trainer.fit(DATA, **FIT)["loss"]) == 6


def test_an_exception_of_a_callback_leaves_a_run_to_resume():
    whole, _ = make()
    expected = whole.fit(DATA, **FIT)
    trainer, _ = make()

    def fail(epoch, row):
        if epoch == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer.fit(DATA, **FIT, callbacks=fail)
    assert_equal(trainer.fit(DATA, **FIT, resume=True), expected)


def test_early_stopping_counts_epochs_without_a_new_least_loss():
    trainer, _ = make()
    trainer.learning_rate = 0.0
    history = trainer.fit(DATA, **FIT | {"epochs": 50}, early_stopping=3)
    assert len(history["val_loss"]) == 4


def test_the_bar_counts_steps(capsys):
    trainer, _ = make()
    trainer.fit(DATA, **FIT | {"progress": True})
    text = capsys.readouterr().err
    assert "78/78" in text
    assert "val_accuracy" in text


def test_no_bar_without_progress(capsys):
    trainer, _ = make()
    trainer.fit(DATA, **FIT)
    assert capsys.readouterr() == ("", "")


def test_the_history_keeps_no_memory_of_the_graph():
    trainer, _ = make()
    history = trainer.fit(DATA, **FIT)
    assert all(type(column) is np.ndarray for column in history.values())
    assert all(column.base is None for column in history.values())
