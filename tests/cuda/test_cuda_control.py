"""Control flow on the cuda target: loops unroll, branches are conditional nodes."""

import numpy as np
import pytest
from cuda_devices import EmulatedDevice
from fake_cuda import FakeGpu

import staticgrad as sg
from staticgrad.compiler.cuda.device import using

X = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)


def scanned(x):
    w = sg.constant(np.linspace(0, 1, 9, dtype="float32").reshape(3, 3))
    last, seen = sg.scan(lambda h, row: (sg.tanh(h @ w + row),) * 2, x[0], x)
    return [last, seen, sg.grad(sg.sum(last * last), x)]


def backwards(x):
    last, seen = sg.scan(lambda h, row: (h * 0.5 + row, h), x[0] * 0, x, reverse=True)
    return [last, seen]


def counted(x):
    return [sg.fori_loop(0, 5, lambda i, c: c * 0.5 + i.astype("float32"), x)]


def branched(x):
    big = sg.sum(x) > 0
    y = sg.cond(big, lambda v: sg.exp(v), lambda v: v @ v.T @ v, x)
    return [y, sg.grad(sg.sum(y), x)]


def switched(x):
    index = sg.sum(x).astype("int64") % 3
    return [sg.switch(index, [sg.sin, sg.cos, lambda v: v * v], x)]


def repeated(x):
    def halve(c):
        return (c[0] * 0.5, c[1] + 1)

    y, steps = sg.while_loop(
        lambda c: sg.max(abs(c[0])) > 0.01, halve, (x, 0), max_steps=20
    )
    return [y, steps]


def nested(x):
    def row(total, v):
        inner = sg.fori_loop(0, 3, lambda i, c: sg.sin(c) + v, total)
        return inner, sg.sum(inner)

    last, sums = sg.scan(row, x[0], x)
    return [last, sums, sg.grad(sg.sum(last), x)]


def endless(x):
    return [sg.while_loop(lambda c: sg.max(abs(c)) > 0.3, lambda c: c * 0.5, x)]


def mixed(x):
    """A branch in a loop of unknown length in a loop of known length."""

    def row(total, v):
        def step(c):
            small = sg.sum(c) < 1
            return sg.cond(small, lambda a: a * 0.5 - 0.01, lambda a: a * 0.25, c)

        inner = sg.while_loop(lambda c: sg.max(abs(c)) > 0.1, step, total + v)
        return inner, sg.cond(sg.sum(inner) > 0, sg.sin, sg.cos, inner)

    return list(sg.scan(row, x[0], x))


GRAPHS = [
    endless,
    mixed,
    scanned,
    backwards,
    counted,
    branched,
    switched,
    repeated,
    nested,
]


@pytest.mark.parametrize("make", GRAPHS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("device", ["emulator", "fake driver"])
def test_control_flow_equals_the_reference(make, device):
    gpu = FakeGpu()
    x = sg.input("x", X.shape)
    outputs = make(x)
    with using(EmulatedDevice() if device == "emulator" else gpu.driver()):
        f = sg.compile(outputs, inputs=[x], target="cuda")
    reference = sg.compile(outputs, inputs=[x], target="reference")
    for value in (X, -X, 3 * X + 1, X):
        for got, want in zip(f(value), reference(value), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert gpu.errors == []


CONDITIONALS = {scanned: 0, branched: 2, switched: 4, repeated: 1}


@pytest.mark.parametrize("make", CONDITIONALS, ids=lambda f: f.__name__)
def test_loops_unroll_into_the_graph_and_branches_are_nodes_of_it(make):
    gpu = FakeGpu()
    x = sg.input("x", X.shape)
    with using(gpu.driver()):
        f = sg.compile(make(x), inputs=[x], target="cuda")
    for _ in range(3):
        f(X)
    assert gpu.library.fake_captures() == 1
    assert gpu.library.fake_replays() == 2
    assert gpu.library.fake_conditionals() == CONDITIONALS[make]
    assert gpu.errors == []


@pytest.mark.parametrize("make", [branched, repeated], ids=lambda f: f.__name__)
def test_without_conditional_nodes_the_host_looks(make):
    gpu = FakeGpu()
    gpu.library.fake_without_conditionals()
    x = sg.input("x", X.shape)
    outputs = make(x)
    with using(gpu.driver()):
        f = sg.compile(outputs, inputs=[x], target="cuda")
    reference = sg.compile(outputs, inputs=[x], target="reference")
    for value in (X, -X, 3 * X + 1):
        for got, want in zip(f(value), reference(value), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert gpu.library.fake_captures() == 0
    assert gpu.errors == []


def test_a_loop_over_nothing():
    x = sg.input("x", ("n", 3))
    last, seen = sg.scan(lambda h, row: (sg.tanh(h + row), h), sg.zeros(3), x)
    with using(EmulatedDevice()):
        f = sg.compile([last, seen], inputs=[x], target="cuda")
    for rows in (0, 1, 4):
        last_h, all_h = f(X[:rows])
        assert all_h.shape == (rows, 3)
        assert (last_h == 0).all() == (rows == 0)


def test_a_loop_past_its_limit():
    x = sg.input("x", ())
    y = sg.while_loop(lambda c: c > 0, lambda c: c - 1, x, max_steps=7)
    for device in (EmulatedDevice(), FakeGpu().driver()):
        with using(device):
            f = sg.compile(y, inputs=[x], target="cuda")
        for _ in range(3):  # launched, captured, replayed
            text = "max_steps=7.*at test_cuda_control.py"
            with pytest.raises(sg.LoopLimitError, match=text):
                f(7.5)
            assert f(-1.0) == -1
            assert f(7.0) == 0


def recurrent():
    x = sg.input("x", ("batch", 4, 3))
    y = sg.input("y", ("batch",), dtype="int64")
    rng = np.random.default_rng(0)
    w = sg.parameter(rng.normal(size=(3, 5)).astype("float32"), name="w")
    u = sg.parameter(rng.normal(size=(5, 5)).astype("float32") / 3, name="u")
    start = sg.zeros((x.shape[0], 5))
    steps = sg.transpose(x, (1, 0, 2))
    last, _ = sg.scan(lambda h, v: (sg.tanh(h @ u + v @ w), None), start, steps)
    return sg.nn.cross_entropy(last, y)


@pytest.mark.parametrize("device", ["emulator", "fake driver"])
def test_a_recurrent_network_trains_as_on_the_cpu(device):
    rng = np.random.default_rng(1)
    data = {
        "x": rng.normal(size=(10, 4, 3)).astype("float32"),
        "y": rng.integers(0, 5, 10),
    }
    found = {}
    for target in ("cuda", "cpu"):
        with sg.Graph(seed=0):
            loss = recurrent()
        gpu = FakeGpu()
        with using(EmulatedDevice() if device == "emulator" else gpu.driver()):
            trainer = sg.Trainer(loss, sg.optim.Adam(1e-2), target=target)
        history = trainer.fit(data, epochs=2, batch_size=4, progress=False)
        found[target] = history["loss"]
    np.testing.assert_allclose(found["cuda"], found["cpu"], rtol=2e-4)


def looped(x):
    y, n = sg.while_loop(
        lambda c: sg.sum(c[0] * c[0]) > 0.1,
        lambda c: (sg.sin(c[0]) * (0.7 + 0.1 * sg.tanh(x)), c[1] + 1),
        (x, 0),
        max_steps=40,
        checkpoints=3,
    )
    return [y, n, sg.grad(sg.sum(y * y), x)]


def loops_in_a_loop(x):
    def row(total, v):
        inner = sg.while_loop(
            lambda c: sg.sum(c * c) > 0.2,
            lambda c: sg.sin(c) * (0.7 + 0.1 * sg.tanh(v)),
            total + v,
            max_steps=40,
            checkpoints=2,
        )
        return inner + v * v, sg.sum(inner)

    last, sums = sg.scan(row, x[0] * 0, x)
    return [last, sums, sg.grad(sg.sum(last) + sg.sum(sums), x)]


def from_snapshots(x):

    def step(h, v):
        return sg.sin(h * v + 0.5), h

    last, seen = sg.scan(step, x[0], x, checkpoints=2)
    return [last, sg.grad(sg.sum(last) + sg.sum(seen), x)]


def of_second_order(x):
    def step(h, v):
        return sg.sin(h * v), None

    last, _ = sg.scan(step, x[0] * 0 + 1, x, checkpoints=2)
    first = sg.grad(sg.sum(last), x)
    return [first, sg.grad(sg.sum(first * first), x)]


KEPT = [looped, loops_in_a_loop, from_snapshots, of_second_order]


@pytest.mark.parametrize("make", KEPT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("device", ["emulator", "fake driver"])
def test_the_way_back_from_few_snapshots(make, device):
    gpu = FakeGpu()
    x = sg.input("x", ("n", 3))
    outputs = make(x)
    with using(EmulatedDevice() if device == "emulator" else gpu.driver()):
        f = sg.compile(outputs, inputs=[x], target="cuda")
    cpu = sg.compile(outputs, inputs=[x])
    rng = np.random.default_rng(0)
    for rows in (6, 6, 1, 6):
        value = rng.normal(size=(rows, 3)).astype("float32")
        for got, want in zip(f(value), cpu(value), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    assert gpu.errors == []


def test_a_replay_of_known_length_is_captured():
    gpu = FakeGpu()
    x = sg.input("x", (7, 3))
    outputs = from_snapshots(x)
    with using(gpu.driver()):
        f = sg.compile(outputs, inputs=[x], target="cuda")
    cpu = sg.compile(outputs, inputs=[x])
    for seed in range(3):
        value = np.random.default_rng(seed).normal(size=(7, 3)).astype("float32")
        for got, want in zip(f(value), cpu(value), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    assert gpu.library.fake_captures() == 1
    assert gpu.library.fake_replays() == 2


def deciding():
    """A loss whose steps branch and loop as the data say."""
    x, y = sg.input("x", ("batch", 3)), sg.input("y", ("batch",))
    w = sg.parameter(np.float32([0.5, -0.5, 0.25]), name="w")
    h = x @ w
    start = sg.stop_gradient(sg.sum(h * h))
    scale = sg.while_loop(lambda c: c > 0.5, lambda c: c * 0.5, start, max_steps=30)
    error = h - y
    above = sg.sum(error) > 0
    loss = sg.cond(above, lambda e: sg.mean(e * e), lambda e: sg.mean(abs(e)), error)
    return loss + 0 * scale


@pytest.mark.parametrize("conditionals", [True, False])
def test_training_with_branches_is_replayed_as_on_the_cpu(conditionals):
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(20, 3)).astype("float32")}
    data["y"] = data["x"].sum(axis=1)
    found = {}
    for target in ("cuda", "cpu"):
        with sg.Graph(seed=0):
            loss = deciding()
        gpu = FakeGpu()
        if not conditionals:
            gpu.library.fake_without_conditionals()
        with using(gpu.driver()):
            trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.05), target=target)
        history = trainer.fit(data, epochs=3, batch_size=4, progress=False)
        found[target] = history["loss"]
        if target == "cuda":
            assert (gpu.library.fake_captures() > 0) == conditionals
            assert (gpu.library.fake_conditionals() > 2) == conditionals
        assert gpu.errors == []
    np.testing.assert_allclose(found["cuda"], found["cpu"], rtol=1e-4)


@pytest.mark.parametrize("device", ["emulator", "fake driver"])
def test_a_loop_past_its_limit_in_a_replayed_step(device):
    data = {"x": np.full((12, 1), 0.1, "float32")}
    data["x"][9] = 8.0
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 1))
        w = sg.parameter(np.float32([1.0]), name="w")
        n = sg.while_loop(
            lambda c: c > 0.5, lambda c: c - 0.5, sg.stop_gradient(sg.max(x)),
            max_steps=5,
        )  # fmt: skip
        loss = sg.mean(x * w) + 0 * n
    gpu = FakeGpu()
    with using(EmulatedDevice() if device == "emulator" else gpu.driver()):
        trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.1), target="cuda")
    with pytest.raises(sg.LoopLimitError, match="max_steps=5") as caught:
        trainer.fit(data, epochs=1, batch_size=2, shuffle=False, progress=False)
    assert "in step 5, epoch 1" in caught.value.__notes__[0]
    np.testing.assert_allclose(w.value, 1 - 4 * 0.1 * 0.1, rtol=1e-5)
    assert gpu.errors == []
