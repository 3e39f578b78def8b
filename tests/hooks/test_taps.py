"""Taps on executables and trainers: what they see, when, and what is left of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_devices import EmulatedDevice

import staticgrad as sg
from staticgrad.compiler.cuda.device import using

TARGETS = ("reference", "cpu", "cuda")
X = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
DATA = {"x": X, "y": X.sum(axis=1)}


@pytest.fixture(autouse=True)
def emulator() -> Iterator[None]:
    with using(EmulatedDevice()):
        yield


class Model:
    """A linear model and its parts."""

    def __init__(self) -> None:
        with sg.Graph(seed=0):
            self.x = sg.input("x", ("batch", 3))
            self.y = sg.input("y", ("batch",))
            self.w = sg.parameter(np.float32([0.5, -0.5, 0.25]), name="w")
            self.b = sg.parameter(np.float32(0.0), name="b")
            self.h = self.x @ self.w + self.b
            self.loss = sg.mean((self.h - self.y) ** 2)

    def trainer(self, **options: Any) -> sg.Trainer:
        return sg.Trainer(self.loss, optimizer=sg.optim.SGD(0.1), **options)

    def compiled(self, target: Any = "cpu") -> Any:
        return sg.compile([self.loss, sg.grad(self.loss, self.w)], target=target)


def fit(trainer: sg.Trainer, epochs: int = 2) -> Any:
    return trainer.fit(DATA, epochs=epochs, batch_size=4, shuffle=False, progress=False)


def program(executable: Any) -> Any:
    """Everything of a program but addresses."""
    sized = executable.target.pool({"batch": 10}).sized
    rows = sized.table.rows.copy()
    rows[sized.table.kernel_rows, 3] = 0  # where the table of sizes is
    plan = sized.plan
    return executable.source(), rows.tobytes(), plan.offsets, plan.arena_bytes


@pytest.mark.parametrize("target", TARGETS)
def test_a_tap_sees_values_and_gradients(target: Any) -> None:
    m = Model()
    f = m.compiled(target)
    seen: dict[str, Any] = {}
    dh = sg.grad(m.loss, m.h)
    handles = [
        f.tap(m.h, lambda v: seen.update(h=v)),
        f.tap(dh, lambda v: seen.update(dh=v)),
        f.tap(m.w, lambda v: seen.update(w=v)),
    ]
    loss, dw = f(**DATA)
    h = X @ m.w.value + m.b.value
    np.testing.assert_allclose(seen["h"], h, rtol=1e-5)
    np.testing.assert_allclose(seen["dh"], 2 * (h - DATA["y"]) / 10, rtol=1e-5)
    np.testing.assert_array_equal(seen["w"], m.w.value)
    assert [handle.count for handle in handles] == [1, 1, 1]
    for handle in handles:
        handle.remove()
    seen.clear()
    again = f(**DATA)
    assert seen == {}
    np.testing.assert_allclose(again[1], dw)
    np.testing.assert_allclose(again[0], loss)


def test_nothing_is_left_of_a_tap() -> None:
    m = Model()
    f, never = m.compiled(), m.compiled()
    target = f.target
    with sg.taps() as made:
        f.tap(m.h, print)
        f.tap(m.loss, record=4)
        assert program(f) != program(never)
        assert len(made) == 2
    assert f.target is target
    assert program(f) == program(never)
    assert not any(tap.active for tap in made)
    kept = f.tap(m.loss, record=2)
    with sg.taps(kept):
        pass
    assert not kept.active
    assert f.target is target


def test_bound_executables_and_repeated_ones_are_tapped_too() -> None:
    m = Model()
    f = m.compiled()
    bound = f.bind(**DATA)
    before = bound()[0].copy()
    seen: list[Any] = []
    handle = f.tap(m.loss, seen.append)
    assert bound()[0] == before == seen[0]
    bound.repeat(3)
    assert len(seen) == 4
    handle.remove()
    assert bound()[0] == before
    assert len(seen) == 4


@pytest.mark.parametrize("target", TARGETS)
def test_a_tap_in_a_training_loop(target: Any) -> None:
    m, plain = Model(), Model()
    trainer = m.trainer(target=target)
    steps: list[Any] = []
    handle = trainer.tap(m.w, steps.append)
    ring = trainer.tap(m.w, record=4, gradient=True)
    losses = trainer.tap(m.loss, record=100)
    history = trainer.fit(
        DATA, epochs=2, batch_size=4, shuffle=False, progress=False, record="step"
    )
    assert len(steps) == handle.count == ring.count == losses.count == 6
    np.testing.assert_array_equal(steps[0], np.float32([0.5, -0.5, 0.25]))
    np.testing.assert_allclose(losses.values, history["loss"], rtol=1e-6)
    assert ring.values.shape == (4, 3)
    gradients = -np.diff([*steps, m.w.value], axis=0) / 0.1
    np.testing.assert_allclose(ring.values, gradients[2:], rtol=1e-3, atol=1e-6)
    for tap in (handle, ring, losses):
        tap.remove()
    fit(trainer)
    assert (handle.count, ring.count) == (6, 6)
    other = plain.trainer(target=target)
    fit(other, 2)
    fit(other, 2)
    np.testing.assert_array_equal(m.w.value, plain.w.value)


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_callback_raises_stops_the_run_and_is_raised(target: Any) -> None:
    m = Model()
    trainer = m.trainer(target=target)
    raised = OSError("disk full")
    calls: list[int] = []

    def third(value: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise raised

    trainer.tap(m.h, third)
    record = trainer.tap(m.w, record=10)
    with pytest.raises(OSError, match="disk full") as caught:
        fit(trainer)
    assert caught.value is raised
    assert any("raised in tap  at test_taps.py" in n for n in raised.__notes__)
    assert any("in step 3, epoch 1" in note for note in raised.__notes__)
    assert record.count == 2
    other = Model()
    other.trainer(target=target).fit(
        DATA, steps=2, batch_size=4, shuffle=False, progress=False
    )
    np.testing.assert_array_equal(m.w.value, other.w.value)
    f = m.compiled(target)
    f.tap(m.h, lambda value: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        f(**DATA)


def test_the_same_callback_twice_is_one_tap_and_says_so() -> None:
    m = Model()
    f = m.compiled()
    seen: list[Any] = []
    first = f.tap(m.h, seen.append)
    with pytest.warns(sg.HookWarning, match=r"one callback .* at test_taps.py:\d+"):
        second = f.tap(m.h, seen.append)
    assert second is first
    f(**DATA)
    assert len(seen) == 1
    trainer = m.trainer()
    trainer.tap(m.h, seen.append, gradient=True)
    with pytest.warns(sg.HookWarning, match="stays one tap"):
        trainer.tap(m.h, seen.append, gradient=True)


def test_rings_of_other_lengths_are_other_taps() -> None:
    m = Model()
    f = m.compiled()
    rings = [f.tap(m.loss, record=length) for length in (1, 3)]
    for _ in range(2):
        f(**DATA)
    assert [len(ring.values) for ring in rings] == [1, 2]


def test_a_tap_off_the_path_says_so() -> None:
    m = Model()
    f = m.compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f.tap(sg.grad(m.loss, m.w), record=3)  # made anew, but equal
        f.tap(sg.sum(m.h) * 3, record=3)  # made of what is there
        f.tap(m.x, print)
        f.tap(m.w, print)
    with pytest.warns(sg.HookWarning, match=r"shares nothing .* at test_taps.py:\d+"):
        aside = f.tap(sg.sum(m.x * 2), record=1)
    f(**DATA)
    np.testing.assert_allclose(aside.values[0], 2 * X.sum(), rtol=1e-5)
    with sg.Graph():
        unused = sg.parameter(np.zeros(3, "float32"), name="unused")
    with pytest.raises(sg.GraphError, match="which y does not use"):
        m.trainer().tap(unused, print, gradient=True)


def test_what_cannot_be_tapped() -> None:
    m = Model()
    f = sg.compile(m.h)
    with pytest.raises(sg.GraphError, match="tap requires a Tensor, got list"):
        f.tap([m.h], print)
    with pytest.raises(sg.GraphError, match="tap requires a callback or record="):
        f.tap(m.h)
    with pytest.raises(sg.GraphError, match="tap requires a callback or record="):
        f.tap(m.h, print, record=3)
    with pytest.raises(sg.GraphError, match="record= as a number of values, got 0"):
        f.tap(m.h, record=0)
    with pytest.raises(
        sg.GraphError, match=r"static shape to record, .*float32\[batch"
    ):
        f.tap(m.h, record=3)
    with pytest.raises(sg.GraphError, match="which needs 'y'"):
        f.tap(m.loss, print)
    with pytest.raises(sg.GraphError, match="values requires a tap with record="):
        _ = f.tap(m.h, print).values


# ---- statistics of gradients ---------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_gradients_are_watched_step_by_step(target: Any) -> None:
    m = Model()
    trainer = m.trainer(target=target)
    watch = trainer.watch_gradients(last=4)
    steps = trainer.tap(m.w, record=10, gradient=True)
    fit(trainer)
    assert watch.names == ("w", "b")
    assert watch.steps == 6
    want = steps.values[2:].astype("float64")
    found = watch["w"]
    np.testing.assert_allclose(found["mean"], want.mean(1), rtol=1e-5)
    np.testing.assert_allclose(found["std"], want.std(1), rtol=1e-5)
    np.testing.assert_allclose(found["min"], want.min(1), rtol=1e-6)
    np.testing.assert_allclose(found["max"], want.max(1), rtol=1e-6)
    np.testing.assert_allclose(found["norm"], np.linalg.norm(want, axis=1), rtol=1e-5)
    both = np.hypot(found["norm"], watch["b"]["norm"])
    np.testing.assert_allclose(watch.global_norm, both, rtol=1e-6)
    assert watch.problems == ()
    assert str(watch).splitlines()[1].startswith("w ")
    watch.remove()
    fit(trainer)
    assert watch.steps == 6


def test_a_gradient_that_is_not_finite_is_told() -> None:
    m = Model()
    trainer = m.trainer(check_finite=None)
    watch = trainer.watch_gradients()
    bad = X.copy()
    bad[5, 1] = np.nan
    trainer.fit({"x": bad, "y": DATA["y"]}, batch_size=2, shuffle=False, progress=False)
    assert watch.problems[0] == "w: not finite in 3 steps, first in step 3"
    assert "warning: w: not finite" in str(watch)


# ---- inside of bodies ----------------------------------------------------------------


class Loops:
    """Loops and branches in one another, and tensors of their bodies."""

    def __init__(self) -> None:
        self.x = sg.input("x", (4,), "float64")
        self.a = sg.input("a", (), "float64")
        self.kept: dict[str, Any] = {}
        self.y = sg.scan(self.step, self.a * 1.0, self.x)[0]
        self.z = sg.while_loop(lambda c: c < 9, self.until, self.a)

    def keep(self, name: str, tensor: Any) -> Any:
        self.kept[name] = tensor
        return tensor

    def step(self, c: Any, v: Any) -> Any:
        self.keep("carry", c)
        t = self.keep("t", sg.sin(c * self.a) * v)
        u = sg.scan(lambda d, w: (self.keep("deep", d * w + t), None), t, self.x[:2])[0]
        z = sg.cond(u > 0.1, lambda: self.keep("taken", u * 3), lambda: u)
        return z + c, t

    def until(self, c: Any) -> Any:
        return self.keep("product", c * self.a)


def by_hand(x: Any, a: float) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {n: [] for n in ("carry", "t", "deep", "taken")}
    c = a
    for v in x:
        t = np.sin(c * a) * v
        d = t
        for w in x[:2]:
            d = d * w + t
            seen["deep"].append(d)
        u = d * 3 if d > 0.1 else d
        seen["taken"] += [u] if d > 0.1 else []
        seen["carry"].append(c)
        seen["t"].append(t)
        c = u + c
    products = a ** np.arange(2, 20)
    seen["product"] = products[: 1 + int(np.argmax(products >= 9))].tolist()
    return seen


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("with_gradient", [False, True])
def test_every_step_of_a_body_is_seen(target: Any, with_gradient: bool) -> None:
    if target == "cuda" and with_gradient:
        return  # a gradient of a while_loop is for the cpu
    m = Loops()
    outputs = [m.y, m.z]
    if with_gradient:
        outputs += sg.grad(m.y + m.z, [m.a, m.x])
    f = sg.compile(outputs, inputs=[m.x, m.a], target=target)
    x, a = np.array([0.5, 0.6, 0.7, 0.8]), 1.5
    before = f(x, a)
    seen: dict[str, list[float]] = {name: [] for name in m.kept}
    handles = [
        f.tap(tensor, lambda v, name=name: seen[name].append(float(v)))
        for name, tensor in m.kept.items()
    ]
    rings = {name: f.tap(tensor, record=3) for name, tensor in m.kept.items()}
    after = f(x, a)
    wanted = by_hand(x, a)
    for name in wanted:
        np.testing.assert_allclose(seen[name], wanted[name], rtol=1e-6)
        np.testing.assert_allclose(rings[name].values, wanted[name][-3:], rtol=1e-6)
        assert rings[name].count == len(wanted[name])
    for p, q in zip(before, after, strict=True):
        np.testing.assert_allclose(p, q, rtol=1e-12)
    for handle in (*handles, *rings.values()):
        handle.remove()
    seen["t"].clear()
    f(x, a)
    assert seen["t"] == []


def test_an_exception_at_a_step_stops_the_loop() -> None:
    m = Loops()
    f = sg.compile(m.z, inputs=[m.a])
    seen: list[float] = []

    def look(value: Any) -> None:
        seen.append(float(value))
        if value > 3:
            raise ValueError("large")

    f.tap(m.kept["product"], look)
    with pytest.raises(ValueError, match="large"):
        f(1.5)
    assert seen == [2.25, 3.375]


def test_a_body_in_a_training_loop_is_recorded() -> None:
    with sg.Graph(seed=0):
        x, y = sg.input("x", ("batch", 3)), sg.input("y", ("batch",))
        w = sg.parameter(np.float32([0.5, -0.5, 0.25]), name="w")
        norms: list[Any] = []
        largest: list[Any] = []

        def step(c: Any, k: Any) -> Any:
            h = sg.tanh(c + x @ w)
            norms.append(sg.sum(h * h))  # nothing else needs it
            largest.append(sg.max(sg.abs(h)))
            return h, None

        h = sg.scan(step, sg.zeros(y.shape), length=3)[0]
        loss = sg.mean((h - y) ** 2)
    trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.1))
    tap = trainer.tap(norms[-1], record=100)
    seen: list[float] = []
    trainer.tap(largest[-1], lambda v: seen.append(float(v)))
    fit(trainer)
    # two epochs of three batches, three steps of the scan in each
    assert tap.count == len(seen) == 18
    assert max(seen) < 1
    assert np.isfinite(tap.values).all()
    assert (tap.values[:3] > 0).all()


def test_tensors_of_bodies_that_do_not_run() -> None:
    m = Loops()
    f = sg.compile(m.z, inputs=[m.a])
    with pytest.raises(sg.GraphError, match="return it from the body"):
        f.tap(m.kept["carry"], print)
