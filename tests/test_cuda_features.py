"""What the cpu has and the cuda target has, too: budgets, draws, own functions."""

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


@pytest.mark.parametrize("kind", ["array", "callback"])
def test_functions_of_arrays_are_not_on_cuda(kind):
    x = sg.input("x", (4,))
    if kind == "array":
        y = filled(x)
    else:
        y = sg.pure_callback(np.sort, x.shape, x.dtype, x)
    text = "requires what .*not on cuda; use target='cpu'.* at test_cuda_features"
    with using(EmulatedDevice()), pytest.raises(sg.GraphError, match=text):
        sg.compile(y, inputs=[x], target="cuda")
