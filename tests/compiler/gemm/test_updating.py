"""Updates in the shadow of products: the bits of kernels apart, and where they are."""

import itertools

import numpy as np
import pytest
from woven_kernels import kernels_apart, schemes

import staticgrad as sg
from staticgrad.compiler.codegen.tiles.product_tiles import LONG_ROWS, plan_of

pytestmark = pytest.mark.skipif(
    plan_of().rows != LONG_ROWS, reason="requires 32 registers of 64 bytes"
)

OPTIMISERS = {
    "adam": sg.optim.Adam(1e-2),
    "decoupled": sg.optim.Adam(1e-2, weight_decay=0.1, decoupled=True),
    "rmsprop": sg.optim.RMSprop(1e-2),
    "centred": sg.optim.RMSprop(1e-2, centered=True, momentum=0.5),
    "momentum": sg.optim.SGD(1e-2, momentum=0.9),
    "nesterov": sg.optim.SGD(1e-2, momentum=0.9, nesterov=True),
    "decayed": sg.optim.SGD(1e-2, momentum=0.9, weight_decay=0.1),
}


def training(optimiser, inputs=48, outputs=32, batch=20, dtype="float32", more=None):
    """A step of one layer, whose gradient is a product with `batch` terms."""
    rng = np.random.default_rng(0)
    with sg.Graph(seed=0):
        x = sg.input("x", (batch, inputs), dtype=dtype)
        w = sg.parameter(rng.normal(size=(inputs, outputs)).astype(dtype), name="w")
        loss = sg.mean((x @ w) ** 2)
        (gradient,) = sg.grad(loss, [w])
        updates = optimiser.updates([gradient], [w])
        outputs = [loss] if more is None else [loss, more(gradient, w)]
        step = sg.compile(outputs, inputs=[x], updates=updates, mode="train")
    return step, w


def rows(batch, inputs=48, dtype="float32"):
    return np.random.default_rng(1).normal(size=(batch, inputs)).astype(dtype)


def apart(*args, **options):
    """The same with products and loops apart."""
    with kernels_apart():
        return training(*args, **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_bits_are_those_of_kernels_apart(name, dtype):
    data = rows(20, dtype=dtype)
    results = []
    for make in (training, apart):
        step, w = make(OPTIMISERS[name], dtype=dtype)
        losses = [step(x=data)[0].tobytes() for _ in range(4)]
        results.append((losses, w.value.tobytes(), len(schemes(step))))
    assert results[0][:2] == results[1][:2]
    assert [found for *_, found in results] == [1, 0]


@pytest.mark.parametrize(
    ("inputs", "outputs", "batch"),
    [(16, 16, 16), (16, 48, 256), (160, 16, 17), (48, 80, 100), (1024, 128, 31)],
)
def test_sizes(inputs, outputs, batch):
    data = rows(batch, inputs)
    results = []
    for make in (training, apart):
        step, w = make(OPTIMISERS["adam"], inputs, outputs, batch)
        for _ in range(2):
            step(x=data)
        results.append(w.value.tobytes())
    assert results[0] == results[1]
    assert schemes(step) == []


@pytest.mark.parametrize("batch", [0, 1, 7, 15, 16, 33, 256])
def test_terms_that_are_known_when_called(batch):
    results = []
    for make in (training, apart):
        step, w = make(OPTIMISERS["momentum"], batch="batch")
        (loss,) = step(x=rows(batch))
        assert np.isfinite(loss) == (batch > 0)
        results.append((w.value.tobytes(), len(schemes(step))))
    assert results[0][0] == results[1][0]
    assert [found for _, found in results] == [1, 0]


def test_many_terms_are_added_up_in_parts():
    """Equal terms, whose running sum would lose the last digits."""
    count = 300_007
    with sg.Graph():
        x, y = (sg.input(n, ("batch", 16)) for n in "xy")
        w = sg.parameter(np.zeros((16, 16), np.float32), name="w")
        loss = sg.sum((x @ w) * y)
        updates = sg.optim.SGD(1.0, momentum=0.5).updates(sg.grad(loss, [w]), [w])
        step = sg.compile(loss, [x, y], updates, mode="train")
    data = np.full((count, 16), 0.1, np.float32)
    step(data, data)
    assert len(schemes(step)) == 1
    np.testing.assert_allclose(w.value, -0.01 * count, rtol=2e-5)


def test_threads_change_no_bit():
    before, results = sg.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            sg.set_num_threads(threads)
            step, w = training(OPTIMISERS["adam"], 784, 256, 64)
            assert len(schemes(step)) == 1
            for _ in range(3):
                step(x=rows(64, 784))
            results.append(w.value.tobytes())
    finally:
        sg.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_a_large_step_of_gradient_descent_is_one_kernel_too():
    results = []
    for make in (training, apart):
        step, w = make(sg.optim.SGD(0.1), 1024, 512, 32)
        step(x=rows(32, 1024))
        results.append((w.value.tobytes(), len(schemes(step))))
    assert results[0][0] == results[1][0]
    assert [found for _, found in results] == [1, 0]
    small, _ = training(sg.optim.SGD(0.1), 512, 64, 32)
    assert schemes(small) == []


@pytest.mark.parametrize(
    "options",
    [
        {"more": lambda gradient, w: gradient},
        {"more": lambda gradient, w: sg.sum(gradient**2)},
        {"inputs": 40},
        {"outputs": 24},
        {"batch": 8},
        {"batch": 600},
        {"outputs": 4096, "batch": 500},
        {"outputs": 512, "batch": "batch"},
    ],
    ids=[
        "returned",
        "read",
        "rows",
        "columns",
        "few terms",
        "many",
        "large",
        "unknown",
    ],
)
def test_kernels_stay_apart_where(options):
    step, _ = training(OPTIMISERS["adam"], **options)
    batch = options.get("batch", 20)
    step(x=rows(20 if batch == "batch" else batch, options.get("inputs", 48)))
    assert schemes(step) == []


def test_what_reads_the_weights_reads_the_old_ones():
    """The gradient is a product with the weights that the step replaces."""
    start = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32) / 8
    results = []
    for target in ("cpu", "reference"):
        with sg.Graph(seed=0):
            w = sg.parameter(start.copy(), name="w")
            loss = sg.sum((w.T @ w - np.eye(64, dtype=np.float32)) ** 2)
            updates = sg.optim.Adam(0.01).updates(sg.grad(loss, [w]), [w])
            step = sg.compile(loss, [], updates, mode="train", target=target)
        for _ in range(3):
            step()
        results.append(w.value)
    np.testing.assert_allclose(results[0], results[1], atol=1e-5)


def test_a_failed_step_leaves_everything_as_it_was():
    with sg.Graph(seed=0):
        x, y = sg.input("x", (20, 48)), sg.input("y", (20,), dtype="int64")
        w = sg.parameter(np.ones((48, 32), np.float32), name="w")
        loss = sg.nn.cross_entropy(x @ w, y)
        updates = sg.optim.Adam(0.01).updates(sg.grad(loss, [w]), [w])
        step = sg.compile(loss, [x, y], updates, mode="train")
    assert len(schemes(step)) == 1
    with pytest.raises(sg.errors.IndexOutOfRange):
        step(rows(20), np.full(20, 32))
    assert (w.value == 1).all()


def test_the_gradient_takes_no_memory():
    step, _ = training(OPTIMISERS["adam"], 512, 256, 64)
    other, _ = apart(OPTIMISERS["adam"], 512, 256, 64)
    assert step.memory.arena_bytes <= other.memory.arena_bytes - 4 * 512 * 256


@pytest.mark.parametrize("batch", [16, 64, 500, "batch"])
@pytest.mark.parametrize("finite", [True, False])
def test_no_step_takes_more_memory(batch, finite):
    """Though updates wait for labels that are checked, with products before them."""

    def arena():
        with sg.Graph(seed=0):
            x = sg.input("x", (batch, 32))
            y = sg.input("y", (batch,), dtype="int64")
            widths = (32, 48, 16, 64, 16)
            layers = [sg.nn.Linear(m, n) for m, n in itertools.pairwise(widths)]
            loss = sg.nn.cross_entropy(sg.nn.Sequential(*layers)(sg.tanh(x)), y)
            w = [p for layer in layers for p in layer.parameters().values()]
            updates = sg.optim.Adam(0.01).updates(sg.grad(loss, w), w)
            checked = [loss] if finite else []
            step = sg.compile(loss, [x, y], updates, mode="train", finite=checked)
        count = 500 if batch == "batch" else batch
        step(rows(count, 32), np.zeros(count, np.int64))
        return step.memory.arena_bytes

    interleaved = arena()
    with kernels_apart():
        assert interleaved <= arena()
