"""Epilogues fused into large products: equal bits, and the cases that are fused."""

import numpy as np
import pytest
from woven_kernels import kernels_apart, schemes

import staticgrad as sg
from staticgrad.compiler.codegen.tiles.product_tiles import LONG_ROWS, plan_of

pytestmark = pytest.mark.skipif(
    plan_of().rows != LONG_ROWS, reason="requires 32 registers of 64 bytes"
)

FUNCTIONS = {
    "relu": sg.relu,
    "tanh": sg.tanh,
    "sigmoid": sg.sigmoid,
    "silu": lambda z: z * sg.sigmoid(z),
    "gelu": sg.nn.gelu,
    "leaky": lambda z: sg.where(z > 0, z, 0.1 * z),
    "clipped": lambda z: sg.clip(z, -1, 1),
    "softplus": sg.softplus,
    "root": lambda z: sg.sqrt(abs(z) + 1),
    "quotient": lambda z: 3 / (1 + z * z),
    "parity": lambda z: sg.where(z != 0, -z, 2),
}


def layer(function, rows=64, inputs=120, outputs=256, dtype="float32", bias=True):
    """A layer of which the product has parts, and its data."""
    rng = np.random.default_rng(0)
    with sg.Graph(seed=0):
        x = sg.input("x", (rows, inputs), dtype=dtype)
        w = sg.parameter(rng.normal(size=(inputs, outputs)).astype(dtype), name="w")
        b = sg.parameter(rng.normal(size=outputs).astype(dtype), name="b")
        z = x @ w / 10
        f = sg.compile(function(z + b if bias else z), inputs=[x])
    count = rows if isinstance(rows, int) else 64
    return f, rng.normal(size=(count, inputs)).astype(dtype)


def apart(*args, **options):
    """The same with products and loops apart."""
    with kernels_apart():
        return layer(*args, **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_bits_are_those_of_kernels_apart(name, dtype):
    results = []
    for make in (layer, apart):
        f, x = make(FUNCTIONS[name], dtype=dtype)
        x[0, 0], x[1] = np.inf, np.nan
        results.append((f(x).tobytes(), len(schemes(f))))
    assert results[0][0] == results[1][0]
    assert [count for _, count in results] == [1, 0]


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(16, 784, 128), (64, 784, 256), (48, 1700, 160), (1024, 16, 128), (16, 513, 256)],
)
def test_sizes(rows, inputs, outputs):
    results = []
    for make in (layer, apart):
        f, x = make(sg.relu, rows, inputs, outputs)
        results.append((f(x).tobytes(), len(schemes(f))))
    assert results[0][0] == results[1][0]
    assert results[0][1] == 1


def test_threads_change_no_bit():
    before, results = sg.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            sg.set_num_threads(threads)
            f, x = layer(sg.tanh, 64, 784, 256)
            assert len(schemes(f)) == 1
            results.append(f(x).tobytes())
    finally:
        sg.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_what_is_kept_for_the_gradient_is_stored_as_well():
    """Relu's condition, as bools, and the result; the sum before it is kept nowhere."""
    results = []
    for target in ("cpu", "reference"):
        rng = np.random.default_rng(0)
        with sg.Graph(seed=0):
            x = sg.input("x", (64, 200))
            shapes = [(200, 256), (256,), (256, 5)]
            weights = [
                sg.parameter(rng.normal(size=shape).astype("f4") / 9)
                for shape in shapes
            ]
            w, b, v = weights
            loss = sg.mean((sg.relu(x @ w + b) @ v) ** 2)
            updates = sg.optim.SGD(0.1).updates(sg.grad(loss, weights), weights)
            step = sg.compile(loss, [x], updates, mode="train", target=target)
        losses = [step(rng.normal(size=(64, 200)).astype("f4")) for _ in range(3)]
        results.append([*losses, *(w.value for w in weights)])
        if target == "cpu":
            found = [[act.name for act in s.program] for s in schemes(step)]
            assert any("mark" in names and "column" in names for names in found)
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"rows": "batch"},
        {"rows": 40},
        {"outputs": 100},
        {"outputs": 64},
        {"inputs": 30},
        {"function": lambda z: sg.sum(z, axis=1)},
        {"function": lambda z: z[:, ::-1] * 2},
        {"function": sg.sin},
    ],
    ids=[
        "unknown",
        "rows",
        "columns",
        "narrow",
        "small",
        "sum",
        "turned",
        "far",
    ],
)
def test_kernels_stay_apart_where(options):
    options = {"function": sg.tanh, "bias": False, **options}
    f, x = layer(**options)
    f(x)
    assert schemes(f) == []
