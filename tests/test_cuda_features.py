"""What the cpu has and the cuda target has, too: budgets, gamma draws."""

import numpy as np
import pytest
from cuda_devices import EmulatedDevice
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
