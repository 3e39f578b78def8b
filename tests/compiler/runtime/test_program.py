"""Plans become programs: addresses, copies, checks, commit, poison, speed."""

import time

import numpy as np
import pytest
from hand_made import (
    FLOAT,
    INT,
    N,
    elementwise,
    frame_of,
    input_leaf,
    product,
    sums_of_exponentials,
    take,
)

from staticgrad.compiler.kernel_ir.chunks import MOST_CHUNKS, chunking
from staticgrad.compiler.kernel_ir.schedule import Buffer, Schedule
from staticgrad.compiler.memory import planner
from staticgrad.compiler.runtime import vm
from staticgrad.compiler.runtime.frame import Frame
from staticgrad.compiler.runtime.instructions import size
from staticgrad.compiler.runtime.native_code import compile_schedule
from staticgrad.errors import CompilerBug, IndexOutOfRange, NonFiniteError
from staticgrad.ir.node import Parameter


@pytest.mark.parametrize("count", [0, 1, 10, 1_000_001])
def test_outputs_copies_and_slots(count):
    frame = frame_of(sums_of_exponentials(), [input_leaf("x", (N,))], n=count)
    x = frame.inputs["x"]
    x[:] = np.random.default_rng(0).normal(size=count)
    assert frame.run() == vm.FINISHED
    y, t, same, again = frame.outputs
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(t, np.exp(x.astype(float)).sum(), rtol=1e-5)
    assert (same == x).all()
    assert (again == y).all()
    assert t.shape == ()


def test_one_code_serves_all_sizes():
    schedule = sums_of_exponentials()
    code = compile_schedule(schedule)
    for count in (3, 700_000):
        plan = planner.plan(schedule, {"n": count})
        frame = Frame(size(code, plan)).own([input_leaf("x", (N,))])
        frame.inputs["x"][:] = 0
        assert frame.run() == vm.FINISHED
        assert frame.outputs[1] == count


def test_a_value_that_is_not_finite_stops_at_the_commit():
    frame = frame_of(sums_of_exponentials(), [input_leaf("x", (N,))], n=5)
    frame.inputs["x"][:] = [0, 1, np.nan, 2, 3]
    assert frame.run() == vm.NON_FINITE
    error = frame.error()
    assert isinstance(error, NonFiniteError)
    assert "t requires a finite result, got nan" in str(error)
    frame.inputs["x"][:] = 0
    assert frame.run() == vm.FINISHED


def test_a_stop_is_taken_at_the_commit():
    frame = frame_of(sums_of_exponentials(), [input_leaf("x", (N,))], n=5)
    frame.inputs["x"][:] = 0
    frame.stop[0] = 1
    assert frame.run() == vm.STOPPED


def gathering(extent, wrap=True):
    buffers = (
        Buffer(0, "input", (extent,), FLOAT, "x", 0),
        Buffer(1, "input", (N,), INT, "i", 1),
        Buffer(2, "output", (N,), FLOAT, "y", 0),
    )
    return Schedule(buffers, (take(0, 1, 2, extent, wrap),), 1, (2,))


def gathering_inputs(extent):
    return [input_leaf("x", (extent,)), input_leaf("i", (N,), INT)]


@pytest.mark.parametrize(
    ("index", "wrap", "text"),
    [
        ([0, 12, 3], True, "requires -10 <= index < 10, got 12 at position 12"),
        ([0, 1, -1], False, "requires 0 <= index < 10, got -1 at position -1"),
    ],
)
def test_a_bad_index_names_value_and_line(index, wrap, text):
    frame = frame_of(gathering(10, wrap), gathering_inputs(10), n=3)
    frame.inputs["x"][:] = np.arange(10)
    frame.inputs["i"][:] = index
    assert frame.run() == 1
    error = frame.error()
    assert isinstance(error, IndexOutOfRange)
    assert f"check_index {text}" in str(error)
    assert str(error).endswith("  at train.py:41")
    frame.inputs["i"][:] = [0, 9, 5]
    assert frame.run() == vm.FINISHED
    assert frame.outputs[0].tolist() == [0, 9, 5]


def test_indices_into_an_empty_axis_are_refused_before_the_run():
    with pytest.raises(IndexOutOfRange, match="index < 0, got 3 of them"):
        frame_of(gathering(0), gathering_inputs(0), n=3)
    frame = frame_of(gathering(0), gathering_inputs(0), n=0)
    assert frame.run() == vm.FINISHED


def test_nothing_is_stored_when_a_kernel_before_the_commit_fails(parameter):
    buffers = (
        Buffer(0, "input", (10,), FLOAT, "x", 0),
        Buffer(1, "input", (N,), INT, "i", 1),
        Buffer(2, "temporary", (N,), FLOAT, "y"),
        Buffer(3, "stored", (N,), FLOAT, "w", leaf=parameter),
    )
    kernels = (take(0, 1, 2, 10), elementwise("{0}", 2, 3))
    frame = frame_of(Schedule(buffers, kernels, 1, ()), gathering_inputs(10), n=4)
    frame.inputs["x"][:] = 7
    frame.inputs["i"][:] = [0, 1, 2, 99]
    assert frame.run() == 1
    assert parameter.value.tolist() == [1, 2, 3, 4]
    frame.error()
    frame.inputs["i"][:] = 0
    assert frame.run() == vm.FINISHED
    assert parameter.value.tolist() == [7, 7, 7, 7]


def test_an_output_that_is_a_leaf_shows_the_value_before_the_step(parameter):
    buffers = (
        Buffer(0, "stored", (N,), FLOAT, "w", leaf=parameter),
        Buffer(1, "constant", (N,), FLOAT, "c", value=np.full(4, 5, np.float32)),
    )
    schedule = Schedule(buffers, (elementwise("{0}", 1, 0),), 0, (0, 1))
    frame = frame_of(schedule, n=4)
    assert frame.run() == vm.FINISHED
    assert frame.outputs[0].tolist() == [1, 2, 3, 4]
    assert frame.outputs[1].tolist() == [5, 5, 5, 5]
    assert parameter.value.tolist() == [5, 5, 5, 5]


@pytest.fixture
def parameter():
    import staticgrad as sg

    with sg.Graph():
        made = sg.parameter(np.arange(1, 5, dtype=np.float32), name="w")
    assert isinstance(made, Parameter)
    return made


def test_poison_shows_a_read_after_the_end_of_life():
    buffers = (
        Buffer(0, "input", (N,), FLOAT, "x", 0),
        Buffer(1, "temporary", (N,), FLOAT, "h"),
        Buffer(2, "output", (N,), FLOAT, "y", 0),
        Buffer(3, "output", (N,), FLOAT, "z", 1),
    )
    kernels = (
        elementwise("{0}", 0, 1), elementwise("{0}", 1, 2), elementwise("{0}", 1, 3)
    )  # fmt: skip
    schedule = Schedule(buffers, kernels, 3, (2, 3))
    plan = planner.plan(schedule, {"n": 4})
    early = list(plan.last)
    early[1] = 1  # a planner that forgot the last reader
    from dataclasses import replace

    code = compile_schedule(schedule)
    for broken, finite in ((plan, True), (replace(plan, last=tuple(early)), False)):
        frame = Frame(size(code, broken, poison=True)).own([input_leaf("x", (N,))])
        frame.inputs["x"][:] = 1
        frame.run()
        assert np.isfinite(frame.outputs[1]).all() == finite


def test_a_product_in_a_program():
    buffers = (
        Buffer(0, "input", (N, 7), FLOAT, "a", 0),
        Buffer(1, "constant", (7, 5), FLOAT, "b", value=np.eye(7, 5, dtype=FLOAT)),
        Buffer(2, "output", (N, 5), FLOAT, "c", 0),
    )
    schedule = Schedule(buffers, (product(N, 5, 7),), 1, (2,))
    frame = frame_of(schedule, [input_leaf("a", (N, 7))], n=3)
    frame.inputs["a"][:] = np.arange(21).reshape(3, 7)
    assert frame.run() == vm.FINISHED
    assert (frame.outputs[0] == frame.inputs["a"][:, :5]).all()


def test_finish_must_know_its_slots():
    from dataclasses import replace

    schedule = sums_of_exponentials()
    wrong = replace(schedule.kernels[3], chunks_of=0)
    broken = replace(schedule, kernels=(*schedule.kernels[:3], wrong))
    with pytest.raises(CompilerBug, match="which kernel wrote its slots"):
        frame_of(broken, n=3)


def test_chunks_come_from_sizes_and_cover_all_rows():
    for rows in (0, 1, 2, 63, 1000, 10**6, 10**9):
        for cost in (0, 1, 50, 10**6):
            chunks, step = chunking(elementwise("{0}", 0, 1, cost), {"n": rows})
            assert 1 <= chunks <= MOST_CHUNKS
            assert chunks * step >= rows > (chunks - 1) * step or rows <= 1
            assert step >= 1


def test_a_kernel_that_is_not_parallel_is_one_chunk():
    from dataclasses import replace

    kernel = replace(elementwise("{0}", 0, 1, 10**6), parallel=False)
    assert chunking(kernel, {"n": 1000}) == (1, 1000)


def test_ten_thousand_kernels_are_linked_fast():
    count = 10_000
    inner = [Buffer(i, "temporary", (N,), FLOAT, "h") for i in range(1, count)]
    buffers = (
        Buffer(0, "input", (N,), FLOAT, "x", 0),
        *inner,
        Buffer(count, "output", (N,), FLOAT, "y", 0),
    )
    kernels = tuple(elementwise("{0}", i, i + 1) for i in range(count))
    schedule = Schedule(buffers, kernels, count, (count,))
    code = compile_schedule(schedule)
    plan = planner.plan(schedule, {"n": 10})
    start = time.perf_counter()
    frame = Frame(size(code, plan)).own([input_leaf("x", (N,))])
    assert time.perf_counter() - start < 1.5
    frame.inputs["x"][:] = np.arange(10)
    assert frame.run() == vm.FINISHED
    assert frame.outputs[0].tolist() == list(range(10))
