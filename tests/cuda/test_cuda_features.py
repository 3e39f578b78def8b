"""Features on cuda: budgets, draws, users' functions."""

import numba
import numpy as np
import pytest
from cuda_devices import EmulatedDevice
from custom_functions import filled
from fake_cuda import FakeGpu

import staticgrad as sg
from staticgrad.compiler.cuda.device import using
from staticgrad.errors import MemoryBudgetError


def device_of(name):
    return EmulatedDevice() if name == "emulator" else FakeGpu().driver()


DEVICES = pytest.mark.parametrize("device", ["emulator", "fake driver"])


def chain(layers, **more):
    with sg.Graph(seed=1):
        x = sg.input("x", (16, 8))
        layers = [(sg.nn.Linear(8, 8), sg.nn.Tanh()) for _ in range(layers)]
        parts = [part for pair in layers for part in pair]
        model = sg.nn.Sequential(*parts)
        loss = sg.mean(model(x) ** 2)
    parameters = model.parameters()
    updates = sg.optim.SGD(0.05).updates(sg.grad(loss, parameters), parameters)
    f = sg.compile(loss, updates=updates, mode="train", target="cuda", **more)
    return f, parameters


@DEVICES
def test_a_memory_budget_is_met_with_the_same_bits(device):
    with using(device_of(device)):
        plain, p = chain(10)
        budget = plain.memory.arena_bytes // 2
        lean, q = chain(10, memory_budget=budget)
    assert lean.memory.arena_bytes <= budget
    assert "computed again: " in lean.explain()
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(16, 8)).astype("f4")
        assert plain(x).tobytes() == lean(x).tobytes()
    for name, leaf in p.items():
        assert leaf.value.tobytes() == q[name].value.tobytes()


def test_a_budget_below_the_least_is_refused_at_build():
    with using(EmulatedDevice()), pytest.raises(MemoryBudgetError, match="at least"):
        chain(10, memory_budget=100)


@DEVICES
def test_gamma_draws_are_those_of_the_cpu(device):
    a = sg.input("a", ("n",), dtype="float64")
    y = sg.random.gamma(sg.random.key(3), a, (a.shape[0],), dtype="float64")
    outputs = [y, sg.grad(sg.sum(y * y), a)]
    with using(device_of(device)):
        f = sg.compile(outputs, inputs=[a], target="cuda")
    cpu = sg.compile(outputs, inputs=[a])
    value = np.concatenate([np.geomspace(0.01, 1e5, 90), [1.0, 1e4]])
    for got, want in zip(f(value), cpu(value), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)


@DEVICES
def test_poisson_draws_are_those_of_the_cpu(device):
    rate = sg.input("rate", ("n",), dtype="float64")
    y = sg.random.poisson(sg.random.key(3), rate)
    with using(device_of(device)):
        f = sg.compile(y, inputs=[rate], target="cuda")
    value = np.concatenate([[0, -1, np.nan], np.geomspace(0.01, 1e9, 90)])
    np.testing.assert_array_equal(f(value), sg.compile(y, inputs=[rate])(value))


@numba.njit
def doubled(x):
    return x * np.float32(2)


@numba.njit
def softened(x, w):
    if x > 50:
        raise ValueError("too large")
    total = w
    for k in range(3):
        total += doubled(x) ** k
    return total


@numba.njit
def softened_backward(g, y, x, w):
    return g * (2 + 8 * x), g


soft = sg.custom_op("soft", kind="scalar", forward=softened, backward=softened_backward)


def own_function():
    """Loss and gradients through a function of numbers, and their inputs."""
    x, w = sg.input("x", ("n", 3)), sg.input("w", (3,))
    loss = sg.sum(sg.tanh(soft(x, w)) * 2)
    return [loss, *sg.grad(loss, [x, w])], [x, w]


@DEVICES
def test_functions_of_numbers_run_in_kernels(device):
    outputs, inputs = own_function()
    with using(device_of(device)):
        f = sg.compile(outputs, inputs=inputs, target="cuda")
    reference = sg.compile(outputs, inputs=inputs, target="reference")
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shape).astype("float32") for shape in ((9, 3), (3,))]
    for _ in range(3):
        for got, want in zip(f(*values), reference(*values), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    values[0][4, 1] = 51
    with pytest.raises(RuntimeError, match="soft requires.*position 13.* at test_"):
        f(*values)
    values[0][4, 1] = 0
    assert np.isfinite(f(*values)[0])


def test_what_a_function_raises_leaves_parameters_alone():
    w = sg.parameter(np.ones(4, "float32"), name="w")
    x = sg.input("x", (4,))
    loss = sg.sum(soft(x, w))
    updates = sg.optim.SGD(0.1).updates([sg.grad(loss, w)], [w])
    with using(EmulatedDevice()):
        f = sg.compile(loss, inputs=[x], updates=updates, mode="train", target="cuda")
    with pytest.raises(RuntimeError, match="soft requires"):
        f(np.array([0, 99, 0, 0], "float32"))
    assert (w.value == 1).all()
    f(np.zeros(4, "float32"))
    np.testing.assert_allclose(w.value, 0.9)


def summed(x):
    return [sg.sum(filled(x) ** 2), sg.grad(sg.sum(filled(x) ** 2), x)]


def sorted_by_python(x):
    return [sg.pure_callback(np.sort, x.shape, x.dtype, sg.exp(x)) * 2]


def in_a_loop(x):
    rows = sg.reshape(x, (4, 2))

    def step(c, row):
        y = sg.pure_callback(lambda a: a * a, (2,), "float32", row + c)
        return y * 0.5, y

    return list(sg.scan(step, sg.zeros(2), rows))


def row_by_row(x):
    return [sg.vmap(filled)(sg.reshape(x, (2, 4)))]


@DEVICES
@pytest.mark.parametrize("make", [summed, sorted_by_python, in_a_loop, row_by_row])
def test_functions_of_arrays_run_on_the_host(make, device):
    x = sg.input("x", (8,))
    outputs = make(x)
    gpu = FakeGpu()
    with using(EmulatedDevice() if device == "emulator" else gpu.driver()):
        f = sg.compile(outputs, inputs=[x], target="cuda")
    assert "on the host" in f.explain()
    reference = sg.compile(outputs, inputs=[x], target="reference")
    for seed in range(3):
        value = np.random.default_rng(seed).normal(size=8).astype("float32")
        for got, want in zip(f(value), reference(value), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
    assert gpu.errors == []
    assert gpu.library.fake_captures() == 0


def test_what_a_function_on_the_host_raises_is_raised_and_stops_the_call():
    def refuse(_):
        raise raised

    raised = OSError("no disk")
    x = sg.input("x", (8,))
    w = sg.parameter(np.zeros(8, "float32"), name="w")
    y = sg.pure_callback(refuse, x.shape, x.dtype, x)
    with using(EmulatedDevice()):
        f = sg.compile(y, updates=[(w, w + y)], mode="train", target="cuda")
    with pytest.raises(OSError, match="no disk") as caught:
        f(np.ones(8))
    assert caught.value is raised
    assert "raised in refuse  at test_cuda_features.py" in raised.__notes__[0]
    assert (w.value == 0).all()
