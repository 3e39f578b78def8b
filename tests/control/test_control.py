"""Branches and loops: values on both targets, types, laziness, limits, errors."""

import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.runtime import vm
from staticgrad.trees import flatten


def both(outputs, *args, **options):
    """The leaves of what the cpu target gives, equal to the reference target's."""
    wanted, _ = flatten(sg.compile(outputs, target="reference", **options)(*args))
    for extra in ({}, {"poison": True}):
        got, _ = flatten(sg.compile(outputs, **options, **extra)(*args))
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)
            assert a.dtype == b.dtype
    return got


X = np.array([1.0, 2.0, 3.0], np.float32)


@dataclass
class State:
    position: object
    speed: object


# ---- scan ----------------------------------------------------------------------------


def test_scan_stacks_in_the_order_of_xs_in_both_directions():
    x = sg.input("x", ("n",))
    for reverse in (False, True):
        last, ys = sg.scan(lambda c, v: (c + v, c), 0.0, x, reverse=reverse)
        found = both([last, ys], X)
        assert found[0] == 6
        assert found[1].tolist() == ([5, 3, 0] if reverse else [0, 1, 3])


def test_carries_that_change_places():
    n = sg.input("n", (4,))
    last, ys = sg.scan(lambda c, v: ((c[1], c[0] + c[1]), c[0]), (0, 1), n)
    found = both([*last, ys], np.zeros(4, np.float32))
    assert [f.tolist() for f in found] == [3, 5, [0, 1, 1, 2]]
    assert found[0].dtype == np.int64


def test_structures_and_nothing_to_stack():
    x = sg.input("x", (3, 2))

    def step(state, row):
        new = State(state.position + state.speed, {"v": state.speed["v"] * row})
        return new, None

    start = State(sg.zeros(2), {"v": sg.ones(2)})
    start.speed = {"v": sg.ones(2)}

    def add(state, row):
        return State(state.position + row, {"v": state.speed["v"] * row}), None

    last, ys = sg.scan(add, start, x)
    assert ys is None
    assert isinstance(last, State)
    found = both([last.position, last.speed["v"]], np.full((3, 2), 2, np.float32))
    assert found[0].tolist() == [6, 6]
    assert found[1].tolist() == [8, 8]


def test_without_xs_and_with_no_steps():
    last, ys = sg.scan(lambda c, _: (c * 2, c), 1.0, length=4)
    assert [f.tolist() for f in both([last, ys])] == [16, [1, 2, 4, 8]]
    x = sg.input("x", ("n",))
    last, ys = sg.scan(lambda c, v: (c + v, c), 5.0, x)
    found = both([last, ys], np.zeros(0, np.float32))
    assert found[0] == 5
    assert found[1].shape == (0,)


def test_an_output_may_be_a_capture_a_slice_a_constant_or_twice_the_same():
    x, w = sg.input("x", ("n",)), sg.input("w", (2,))
    last, ys = sg.scan(lambda c, v: (c, (w, v, 1.5, c + 1, c + 1)), 0.0, x)
    found = both([last, *ys], X, np.array([7, 8], np.float32))
    assert found[1].tolist() == [[7, 8]] * 3
    assert found[2].tolist() == X.tolist()
    assert found[3].tolist() == [1.5] * 3


def test_one_compile_serves_all_lengths():
    x = sg.input("x", ("n", 2))
    last, ys = sg.scan(lambda c, v: (c * 0.5 + v, c @ c), sg.zeros(2), x)
    f, g = sg.compile([last, ys]), sg.compile([last, ys], target="reference")
    for n in (1, 4, 9):
        data = np.random.default_rng(n).normal(size=(n, 2)).astype(np.float32)
        for a, b in zip(f(data), g(data), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_weak_carries_take_the_dtype_of_the_body():
    x = sg.input("x", (3,), "float64")
    last, _ = sg.scan(lambda c, v: (c + v, None), 0, x)
    assert last.dtype == np.float64
    assert sg.scan(lambda c, _: (c + 1, None), 0, length=2)[0].dtype == np.int64
    assert sg.scan(lambda c, _: (c + 1, None), 0.0, length=2)[0].dtype == np.float32
    assert sg.scan(lambda c, _: (c + 0.5, None), 0, length=2)[0].dtype == np.float32
    pair, _ = sg.scan(lambda c, _: ((c[1], c[0] * x[0]), None), (1, 2), length=2)
    assert [t.dtype for t in pair] == [np.float64] * 2


# ---- fori_loop, while_loop -----------------------------------------------------------


def test_fori_loop_with_numbers_sizes_and_tensors():
    x, m = sg.input("x", ("n",)), sg.input("m", (), "int64")

    def total(lower, upper):
        return sg.fori_loop(lower, upper, lambda i, c: c + x[i] * i, 0.0)

    y = [total(0, 3), total(1, x.shape[0]), total(m, 3), total(0, m - 5), total(3, 1)]
    found = both(y, X, 1)
    assert [float(f) for f in found] == [8, 8, 8, 0, 0]


def test_while_loop_stops_and_counts():
    x = sg.input("x", ())
    y, steps = sg.while_loop(lambda c: c[0] > 1, lambda c: (c[0] / 2, c[1] + 1), (x, 0))
    f = sg.compile([y, steps])
    assert [float(v) for v in f(20.0)] == [0.625, 5]
    assert [float(v) for v in f(0.5)] == [0.5, 0]
    both([y, steps], 20.0)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_max_steps_is_an_error_that_changes_nothing(target):
    with sg.Graph():
        x, calls = sg.input("x", ()), sg.state(0)
        y = sg.while_loop(lambda v: v > 1, lambda v: v / 2, x, max_steps=4)
        pair = sg.update(calls, calls + 1)
    f = sg.compile(y, updates=[pair], target=target)
    assert f(16.0) == 1
    with pytest.raises(sg.LoopLimitError, match=r"max_steps=4.*test_control\.py"):
        f(17.0)
    assert calls.value == 1
    assert f(3.0) == 0.75


def test_a_loop_that_does_not_end_can_be_stopped():
    x = sg.input("x", ())
    y = sg.while_loop(lambda v: v >= 0, lambda v: v + 1, x)
    frame = sg.compile(y, inputs=[x]).frame()
    frame.inputs["x"][...] = 0
    codes = []
    thread = threading.Thread(target=lambda: codes.append(frame.run()), daemon=True)
    thread.start()
    time.sleep(0.1)
    assert not codes
    frame.stop[0] = 1
    thread.join(30)
    assert codes == [vm.STOPPED]


def test_after_a_stop_in_a_scan_the_next_run_is_right():
    x = sg.input("x", ("n", 3))
    w = sg.parameter(np.eye(3, dtype=np.float32), name="w")
    step = sg.scan(lambda c, v: (c @ w + v, c[0]), sg.zeros((1, 3)), x[:, None])
    f = sg.compile(step, inputs=[x])
    frame = f.frame({"n": 50})
    data = np.arange(150, dtype=np.float32).reshape(50, 3)
    frame.inputs["x"][...] = data
    frame.stop[0] = 1
    assert frame.run() == vm.STOPPED
    frame.stop[0] = 0
    assert frame.run() == vm.FINISHED
    for a, b in zip(frame.outputs, flatten(f(data))[0], strict=True):
        np.testing.assert_array_equal(a, b)


# ---- cond, switch --------------------------------------------------------------------


def test_only_the_branch_that_is_taken_runs():
    x, i = sg.input("x", (3,)), sg.input("i", (), "int64")

    def bad():
        return x[i]  # raises where i is out of range

    y = sg.cond(i < 3, bad, lambda: x[0] * 10)
    assert [float(v) for v in (*both(y, X, 2), *both(y, X, 7))] == [3, 10]
    # a loop that never ends, in the other branch
    z = sg.cond(i < 3, lambda: x, lambda: sg.while_loop(lambda v: v[0] > 0, abs, x))
    assert both(z, X, 0)[0].tolist() == X.tolist()


def test_the_other_branch_has_a_zero_gradient():
    x, w = sg.input("x", ()), sg.parameter(2.0, name="w")
    y = sg.cond(x > 0, lambda: w * x, lambda: sg.log(w) / 0.0)
    found = both(sg.grad(y, [x, w]), 3.0)
    assert [float(f) for f in found] == [2, 3]


def test_branches_are_promoted_and_keep_their_structure():
    x = sg.input("x", ())
    y = sg.cond(x, lambda: {"a": 1, "b": (x, None)}, lambda: {"b": (2, None), "a": 0.5})
    assert list(y) == ["a", "b"]
    assert y["b"][1] is None
    assert [f.tolist() for f in both([y["a"], y["b"][0]], 4.0)] == [1, 4]
    assert [f.tolist() for f in both([y["a"], y["b"][0]], 0.0)] == [0.5, 2]


def test_switch_takes_the_nearest_function():
    i = sg.input("i", (), "int32")
    y = sg.switch(i, [lambda v: v, lambda v: v * 2, lambda v: v * 3], 5.0)
    found = [float(both(y, n)[0]) for n in (-4, 0, 1, 2, 9)]
    assert found == [5, 5, 10, 15, 15]


def test_arguments_pass_to_both_functions():
    x = sg.input("x", ())
    y = sg.cond(x > 1, lambda a, b: a["k"] + b, lambda a, b: a["k"] - b, {"k": x}, 10)
    assert both(y, 2.0)[0] == 12
    assert both(y, 0.0)[0] == -10


def test_a_bad_index_in_a_body_is_reported_and_updates_nothing():
    with sg.Graph():
        x, n = sg.input("x", (3,)), sg.input("n", (), "int64")
        seen = sg.state(0)
        y = sg.fori_loop(0, n, lambda i, c: c + x[i], 0.0)
        pair = sg.update(seen, seen + 1)
    f = sg.compile(y, updates=[pair])
    assert f(X, 3) == 6
    with pytest.raises(sg.IndexOutOfRange, match=r"got 3.*test_control\.py"):
        f(X, 5)
    assert seen.value == 1


def test_loops_inside_training_steps():
    with sg.Graph():
        x = sg.input("x", ("batch", 4))
        w = sg.parameter(np.full(4, 0.5, np.float32), name="w")
        last, _ = sg.scan(lambda c, v: (sg.tanh(c * w[0] + v), None), x[:, 0], x.T)
        loss = sg.mean((last - 0.1) ** 2)
    data = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.5))
    history = trainer.fit({"x": data}, epochs=20, batch_size=10, seed=0)
    assert history["loss"][-1] < history["loss"][0] * 0.9


# ---- errors --------------------------------------------------------------------------


def error(kind, match, make):
    with pytest.raises(kind, match=match) as caught:
        make()
    assert "test_control.py" in str(caught.value)


def test_messages():
    x = sg.input("x", (3,))

    def step(c, v):
        return (c, v)

    error(sg.ShapeError, "scalar pred", lambda: sg.cond(x > 0, abs, abs, x))
    error(sg.ShapeError, "equal shapes", lambda: sg.cond(True, lambda: x, lambda: 1.0))
    error(
        sg.GraphError, "one structure", lambda: sg.cond(True, lambda: (x,), lambda: x)
    )
    error(sg.GraphError, "requires functions", lambda: sg.cond(True, x, x))
    error(sg.GraphError, "at least one", lambda: sg.switch(0, []))
    error(sg.DTypeError, "integer index", lambda: sg.switch(0.5, [lambda: x]))
    error(sg.GraphError, "neither", lambda: sg.scan(step, 0.0))
    error(sg.ShapeError, "one length", lambda: sg.scan(step, 0.0, x, length=4))
    error(sg.ShapeError, "a first axis", lambda: sg.scan(step, 0.0, sg.constant(1.0)))
    error(sg.GraphError, r"\(carry, y\)", lambda: sg.scan(lambda c, v: c, 0.0, x))
    error(
        sg.ShapeError, r"keep their shape.*carry\['a'\]",
        lambda: sg.scan(lambda c, v: ({"a": x}, v), {"a": 0.0}, x),
    )  # fmt: skip
    error(
        sg.DTypeError, "keep their dtype",
        lambda: sg.scan(lambda c, v: (c + x[0].astype("float64"), v), x[0], x),
    )  # fmt: skip
    error(
        sg.GraphError, "one structure",
        lambda: sg.scan(lambda c, v: ((c, c), v), 0.0, x),
    )  # fmt: skip
    error(sg.ShapeError, "bounds", lambda: sg.fori_loop(0, x, lambda i, c: c, 0.0))
    error(sg.DTypeError, "bool scalar", lambda: sg.while_loop(abs, abs, 1.0))
    error(
        sg.GraphError, "max_steps", lambda: sg.while_loop(abs, abs, 1.0, max_steps=-1)
    )


def test_a_tensor_that_leaves_its_body_is_refused():
    kept = []
    x = sg.input("x", (3,))
    sg.scan(lambda c, v: (kept.append(c * v) or c, None), 0.5, x)
    error(sg.GraphError, "return it from the body", lambda: sg.compile(kept[-1]))


def test_updates_inside_of_a_body_are_refused():
    with sg.Graph():
        seen = sg.state(0)
        with pytest.raises(sg.GraphError, match=r"without updates.*'state'"):
            sg.cond(True, lambda: sg.update(seen, seen + 1)[1], lambda: seen)


# ---- small steps inside of one kernel ------------------------------------------------


def kernels(outputs):
    f = sg.compile(outputs)
    return [k.name for k in f.target.code.root.kernels]


def test_small_steps_are_one_kernel():
    x, a = sg.input("x", ("n",)), sg.input("a", ())
    total, ys = sg.scan(lambda c, v: (sg.sin(c * a) + v, c), 0.0, x, reverse=True)
    assert len(kernels([total, ys])) == 1
    both([total, ys, sg.grad(total, [a, x])], X, 0.7)


def test_steps_with_rows_reductions_and_positions_are_one_kernel():
    x = sg.input("x", (3, 4))

    def step(c, row):
        c = sg.softmax(c * row) + sg.sum(c) * 0.1
        return c, (sg.max(c), c[::-1])

    outputs = sg.scan(step, sg.ones(4), x)
    assert len(kernels(outputs)) <= 3  # the start and what lies around the loop
    both(outputs, np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))
    y = sg.fori_loop(0, 5, lambda i, c: c + x[i % 3, 1] * i, 0.5)
    both(y, np.arange(12, dtype=np.float32).reshape(3, 4))


def test_large_steps_are_not_one_kernel():
    x = sg.input("x", (3, 50000))
    last, _ = sg.scan(lambda c, row: (sg.tanh(c + row), None), sg.zeros(50000), x)
    assert "scan" in kernels(last)
    both(last, np.ones((3, 50000), np.float32))


def test_pictures_and_sparse_derivatives_of_loops(tmp_path):
    with sg.Graph() as graph:
        x = sg.input("x", (4,), "float64")
        last, ys = sg.scan(lambda c, v: (sg.sin(c * v) + v, c), 0.5, x)
        y = sg.cond(last > 0, lambda: ys * last, lambda: ys + x[0])
        dy = sg.grad(sg.sum(y), x)
    sg.render(graph, tmp_path / "graph.svg")
    f = sg.compile([y, dy])
    f(np.ones(4))
    f.memory.render(tmp_path / "memory.svg")
    assert "scan" in f.explain()
    sparse, dense = sg.sparse_jacobian(ys, x), sg.jacobian(ys, x)
    values, wanted = sg.compile([sparse.data, dense])(np.ones(4))
    found = np.zeros((4, 4))
    found[sparse.indices] = values
    np.testing.assert_allclose(found, wanted)
