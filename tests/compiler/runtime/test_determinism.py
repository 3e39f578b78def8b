"""The same bits for any number of threads: calls, gradients, whole fits.

Chunks are functions of sizes alone, so what a thread computes does not depend on how
many there are. Sizes here are large enough for several chunks; a test of that is below.
"""

import contextlib

import numpy as np
import pytest
from random_graphs import random_graph

import staticgrad as sg

RNG = np.random.default_rng(0)


@contextlib.contextmanager
def threads_used(count):
    before = sg.get_num_threads()
    sg.set_num_threads(count)
    try:
        yield
    finally:
        sg.set_num_threads(before)


def bits(tree):
    if isinstance(tree, dict):
        tree = tree.values()
    if isinstance(tree, np.ndarray):
        return tree.tobytes()
    return b"|".join(bits(part) for part in tree)


def assert_same_bits(compute, counts=(1, 2)):
    """`compute` gives the same bits for every number of threads, twice in a row."""
    found = []
    for count in (*counts, counts[0]):
        with threads_used(count):
            found.append(bits(compute()))
    assert len(found[0]) > 0
    assert len(set(found)) == 1


def most_chunks(memory):
    """The largest number of chunks of a kernel in the last call's program."""
    return max(count for count, _ in memory.plan.chunks)


# ---- calls ---------------------------------------------------------------------------


def example(name):
    """(inputs' data, outputs) of graphs that users write, by name."""
    x = sg.input("x", ("n", 64))
    label = sg.input("label", ("n",), dtype="int64")
    n = 30_000
    data = {"x": RNG.normal(size=(n, 64)).astype("f4"), "label": RNG.integers(0, 10, n)}
    w = sg.parameter(RNG.normal(size=(64, 10)).astype("f4") / 8, name="w")
    if name == "logistic":
        loss = sg.nn.cross_entropy(x @ w, label)
        return {"x": x, "label": label}, data, [loss, sg.grad(loss, w)]
    if name == "mlp":
        layers = [sg.nn.Linear(64, 32), sg.nn.Tanh(), sg.nn.Linear(32, 10)]
        model = sg.nn.Sequential(*layers)
        loss = sg.nn.cross_entropy(model(x), label)
        return {"x": x, "label": label}, data, [loss, sg.grad(loss, model.parameters())]
    if name == "softmax":
        y = sg.softmax(x * 3.0)
        return {"x": x}, data, [y, sg.grad(sg.sum(y * y), x)]
    if name == "sums":
        sums = [
            sg.sum(x),
            sg.sum(x, 0),
            sg.mean(x * x),
            sg.max(x),
            sg.prod(x * 0.01 + 1),
        ]
        return {"x": x}, data, [*sums, sg.argmax(x, 0), sg.logsumexp(x, 0), sg.var(x)]
    if name == "scatter":
        table = sg.parameter(RNG.normal(size=(10, 8)).astype("f4"), name="table")
        rows = sg.take(table, label, axis=0)
        return {"label": label}, data, [rows, sg.grad(sg.sum(sg.sin(rows)), table)]
    assert name == "random"
    drawn = sg.random.uniform(sg.random.key(7), (x.shape[0], 64))
    return {"x": x}, data, [sg.sum(drawn * x), drawn]


@pytest.mark.parametrize(
    "name", ["logistic", "mlp", "softmax", "sums", "scatter", "random"]
)
def test_example_graphs(name):
    with sg.Graph(seed=0):
        inputs, data, outputs = example(name)
        f = sg.compile(outputs, inputs=list(inputs.values()))
    given = {key: data[key] for key in inputs}
    assert_same_bits(lambda: f(**given), counts=(1, 2, 3))
    assert most_chunks(f.memory) > 1


@pytest.mark.parametrize(
    "seed",
    [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 40))],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_graphs(seed, dtype):
    # Some have tensors of n**3 elements and more, which would not fit for a large n.
    n = 100 if seed in (3, 38) else 1800
    with sg.Graph():
        graph = random_graph(seed, steps=10, dtype=dtype, n=n)
        f = sg.compile(graph.outputs, inputs=graph.inputs, updates=graph.updates)
    start = [state.value for state in graph.states]

    def compute():
        for state, value in zip(graph.states, start, strict=True):
            state.value = value
        found = f(**graph.data)
        return [*found, *(state.value for state in graph.states)]

    assert_same_bits(compute)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "shape", [(1500, 300, 500), (20_000, 64, 10), (37, 5000, 41), (3, 7, 40_000)]
)
def test_matrix_products(dtype, shape):
    m, k, n = shape
    with sg.Graph(dtype=dtype):
        x, y = sg.input("x", ("m", "k")), sg.input("y", ("k", n))
        z = x @ y
        loss = sg.sum(z * z)
        f = sg.compile([z, sg.grad(loss, [x, y]), sg.transpose(z) @ z])
    data = RNG.normal(size=(m, k)).astype(dtype), RNG.normal(size=(k, n)).astype(dtype)
    if n > 1000:
        f = sg.compile([z, sg.grad(loss, [x, y])])
    assert_same_bits(lambda: f(*data))


# ---- training ------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", ["adam", "momentum"])
def test_a_whole_fit(optimiser):
    n = 9000
    label = RNG.integers(0, 5, n)
    data = {"x": RNG.normal(size=(n, 32)).astype("f4"), "label": label}
    kept = {key: value[:2500] for key, value in data.items()}

    def fit():
        with sg.Graph(seed=4):
            x = sg.input("x", ("batch", 32))
            y = sg.input("label", ("batch",), dtype="int64")
            model = sg.nn.Sequential(
                sg.nn.Linear(32, 128), sg.nn.ReLU(), sg.nn.Dropout(0.3),
                sg.nn.Linear(128, 5),
            )  # fmt: skip
            logits = model(x)
            loss = sg.nn.cross_entropy(logits, y)
        opt = sg.optim.Adam(1e-2) if optimiser == "adam" else sg.optim.SGD(0.1, 0.9)
        metrics = {"accuracy": sg.metrics.accuracy(logits, y)}
        trainer = sg.Trainer(loss, opt, metrics=metrics)
        history = trainer.fit(
            data, epochs=2, batch_size=4000, seed=3, validation=kept, progress=False
        )
        assert most_chunks(trainer.memory) > 1
        weights = [p.value for p in model.parameters().values()]
        return [*history.values(), *weights]

    assert_same_bits(fit, counts=(1, 2, 4))
