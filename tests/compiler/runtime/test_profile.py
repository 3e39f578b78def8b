"""profile: parts that compute what a call computes, by line, module and role."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_devices import EmulatedDevice

import staticgrad as sg
from staticgrad.compiler.cuda.device import using
from staticgrad.compiler.runtime.frame import Frame
from staticgrad.compiler.runtime.profile import _spans

X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)


def network(dropout: float = 0.0) -> tuple[Any, Any]:
    with sg.Graph(seed=0):
        x, y = sg.input("x", ("batch", 8)), sg.input("y", ("batch",))
        model = sg.nn.Sequential(
            sg.nn.Linear(8, 16), sg.nn.Tanh(), sg.nn.Dropout(dropout),
            sg.nn.Linear(16, 1),
        )  # fmt: skip
        loss = sg.mean((model(x)[:, 0] - y) ** 2)
    return model, loss


def test_every_kernel_is_there_with_line_module_and_role() -> None:
    model, loss = network(0.1)
    trainer = sg.Trainer(loss, sg.optim.Adam(0.01))
    batch = {"x": X, "y": X[:, 0]}
    trainer.step(**batch)
    executable = trainer._steps[0]
    stored = trainer._stored.values()
    before = [leaf.value for leaf in stored]
    found = trainer.profile(3, **batch)
    for leaf, value in zip(stored, before, strict=True):
        np.testing.assert_array_equal(leaf.value, value)
    names = [name for part in found.parts for name in part.name.split(" + ")]
    kernels = [kernel.name for kernel in executable.target.code.loops]
    assert set(names) <= set(kernels)
    assert len(names) >= len(kernels) - sum("finish" in name for name in kernels)
    assert set(found.roles) == {"forward", "backward", "update"}
    assert sum(found.roles.values()) == pytest.approx(found.seconds)
    assert {"0", "3"} <= set(found.modules)
    assert all(line.startswith("test_profile.py:") for line in found.lines)
    assert sum(found.lines.values()) <= found.seconds * 1.001
    text = str(found)
    assert text.splitlines()[0].count("%") == 3
    assert len(text.splitlines()) == 1 + len(found.parts)
    assert " in 0" in text


def loops(x: Any) -> list[Any]:
    """Branches, loops and gradients through them."""

    def body(c: Any, row: Any) -> Any:
        new = sg.tanh(c @ np.eye(8, dtype="f4") + row)
        return new, sg.sum(new)

    last, sums = sg.scan(body, x[0], x)
    chosen = sg.cond(sums[0] > 0, lambda: sg.exp(last), lambda: last * 2)
    grown = sg.while_loop(lambda v: sg.sum(v) < 100, lambda v: v * 2, chosen**2 + 1)
    y = sg.sum(grown) + sg.sum(sums)
    return [y, sg.grad(y, x), sg.cumsum(x, axis=0), x, x]


def products(x: Any) -> list[Any]:
    """Rows in a region."""
    h = x
    for _ in range(4):
        h = sg.tanh(h @ np.full((8, 8), 0.1, "f4"))
    return [h, sg.sum(h)]


def nothing(x: Any) -> list[Any]:
    """No kernel at all."""
    return [x]


@pytest.mark.parametrize("make", [loops, products, nothing])
@pytest.mark.parametrize("rows", [1, 64, 5000])
def test_parts_in_a_row_compute_what_a_call_does(make: Any, rows: int) -> None:
    x = sg.input("x", ("rows", 8))
    f = sg.compile(make(x), inputs=[x])
    data = np.tile(X, (80, 1))[:rows]
    wanted = f(data)
    pool = f.target.pool({"rows": rows})
    frame = Frame(pool.sized)
    outputs = pool.outputs()
    frame.connect((data, *outputs))
    spans = list(_spans(pool.sized))
    assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])]
    for first, stop in spans:
        code, seconds = frame.timed(pool.machine, first, stop)
        assert code == 0
        assert seconds >= 0
    for one, other in zip(outputs, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    found = f.profile(2, data)
    assert found.roles == {}
    assert found.runs == 2


def test_budgets_taps_and_updates() -> None:
    model, loss = network()
    grads = sg.grad(loss, model.parameters())
    updates = sg.optim.SGD(0.1).updates(grads, model.parameters())
    f = sg.compile(loss, updates=updates, mode="train")
    batch = {"x": X, "y": X[:, 0]}
    before = f.profile(1, **batch)
    seen: list[Any] = []
    f.tap(loss, seen.append)
    assert len(f.profile(4, **batch).parts) == len(before.parts) + 1
    assert len(seen) == 5  # one run more, to warm up
    assert len(set(map(float, seen))) == 5  # each took its step
    first = float(f(**batch))
    assert first == float(seen[0])


def test_what_is_refused() -> None:
    _, loss = network()
    f = sg.compile(loss)
    with pytest.raises(
        sg.GraphError, match=r"at least 1 run, got 0; .*test_profile.py"
    ):
        f.profile(0, X, X[:, 0])
    with pytest.raises(sg.GraphError, match="requires input 'y'|missing|y"):
        f.profile(1, x=X)
    with pytest.raises(sg.GraphError, match="requires target 'cpu', got 'reference'"):
        sg.compile(loss, target="reference").profile(1, X, X[:, 0])
    with using(EmulatedDevice()):
        on_gpu = sg.compile(loss, target="cuda")
    with pytest.raises(sg.GraphError, match=r"got 'cuda'; .*nsys profile\).*py:\d"):
        on_gpu.profile(1, X, X[:, 0])


def test_what_fails_is_raised_and_nothing_is_trained() -> None:
    with sg.Graph():
        x = sg.input("x", ("batch",), "int64")
        w = sg.parameter(np.ones(3, "f4"), name="w")
        loss = sg.sum(w[x] ** 2)
    trainer = sg.Trainer(loss, sg.optim.SGD(0.1))
    with pytest.raises(sg.IndexOutOfRange, match="got 7"):
        trainer.profile(3, x=[0, 7])
    assert w.value.tolist() == [1, 1, 1]
    trainer.profile(3, x=[0, 1])
    assert w.value.tolist() == [1, 1, 1]
    trainer.step(x=[0])
    assert w.value.tolist() == [np.float32(0.8), 1, 1]
