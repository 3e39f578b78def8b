"""Does the rate go into the seed of a backward pass, and only where it may?"""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler import compile as compiler
from staticgrad.compiler.compile import optimise
from staticgrad.compiler.passes.scale_seeds import scale_seeds
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import seen_through

RATE = 0.1


def layers(widths=(24, 24, 24, 24), dtype="float64"):
    rng = np.random.default_rng(0)
    pairs = list(zip(widths[:-1], widths[1:], strict=True))
    return [
        (
            sg.parameter((rng.normal(size=pair) / 5).astype(dtype), name=f"w{n}"),
            sg.parameter(np.zeros(pair[1], dtype), name=f"b{n}"),
        )
        for n, pair in enumerate(pairs)
    ]


def graph_of(
    optimizer=None, act=sg.tanh, batch=20, dtype="float64", output=None, change=None
):
    """A step of a network, as the passes leave it, and its leaves."""
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", (batch, 24), dtype)
        pairs = layers(dtype=dtype)
        h = x
        for w, b in pairs:
            h = act(h @ w + b)
        loss = sg.mean(h**2)
        leaves = [leaf for pair in pairs for leaf in pair]
        grads = sg.grad(loss, leaves)
        given = grads if change is None else change(grads)
        updates = (optimizer or sg.optim.SGD(RATE)).updates(given, leaves)
        outputs = (loss,) if output is None else (loss, output(grads))
    whole = Graph.closed(graph.inputs, outputs, tuple(updates))
    return optimise(whole, "train"), leaves


def scaled(graph):
    """Count the tensors, other than scalars, that are multiplied by a rate."""
    rates = {leaf for leaf, _ in graph.updates} | {
        t for n in graph.nodes for t in n.outputs if isinstance(t, sg.State)
    }
    found = 0
    for node in graph.nodes:
        if node.op.name == "multiply" and node.types[0].shape:
            for factor in node.inputs:
                while factor.op.name in ("negative", "cast"):
                    factor = factor.node.inputs[0]
                found += factor.ndim == 0 and seen_through(factor) in rates
    return found


@pytest.mark.parametrize("batch", [20, "batch"])
@pytest.mark.parametrize("act", [sg.tanh, sg.relu, sg.sigmoid, lambda z: z * z])
def test_no_cotangent_is_scaled(act, batch):
    graph, _ = graph_of(act=act, batch=batch)
    assert scaled(graph) == 0


KEPT = {
    "moments": {"optimizer": sg.optim.SGD(RATE, momentum=0.9)},
    "shown": {"output": lambda grads: grads[0]},
    "norms": {"output": lambda grads: sg.sum(grads[-1] ** 2)},
}


@pytest.mark.parametrize("name", KEPT)
def test_gradients_that_are_asked_for_stay_what_they_are(name, monkeypatch):
    results = []
    for passes in (compiler.PASSES, without_the_pass()):
        monkeypatch.setattr(compiler, "PASSES", passes)
        results.append(after_steps(graph_of(**KEPT[name])))
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)


def without_the_pass():
    return tuple(s for s in compiler.PASSES if s.run is not scale_seeds)


def after_steps(made, steps=3):
    graph, leaves = made
    f = sg.compile(
        list(graph.outputs), inputs=list(graph.inputs), updates=list(graph.updates),
        mode="train", target="reference",
    )  # fmt: skip
    data = np.random.default_rng(1).normal(size=(20, 24))
    outputs = [f(data) for _ in range(steps)]
    return [
        *(np.asarray(o) for given in outputs for o in given),
        *(leaf.value for leaf in leaves),
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"act": sg.relu},
        {"act": lambda z: sg.where(z > 0.1, z, 0)},
        {"act": lambda z: sg.log1p(z * z)},
        {"act": lambda z: z - sg.mean(z, axis=0)},
        {"act": lambda z: z + sg.tanh(z)},
        {"act": lambda z: sg.nn.relu(z) * sg.sigmoid(z) + z},
        {"act": lambda z: sg.softmax(z, axis=1)},
        {"act": lambda z: sg.sqrt(sg.relu(z) + 0.1)},
        {"act": lambda z: (z @ z.T / 20) @ sg.tanh(z)},
        {"change": lambda grads: [g * 2 for g in grads]},
        {"change": lambda grads: [-g for g in grads]},
        {"change": lambda grads: sg.optim.clip_by_global_norm(grads, 0.01)},
    ],
)
def test_steps_are_the_same_to_rounding(options, monkeypatch):
    results, nodes = [], []
    for passes in (compiler.PASSES, without_the_pass()):
        monkeypatch.setattr(compiler, "PASSES", passes)
        made = graph_of(**options)
        nodes.append(sum(bool(node.types[0].shape) for node in made[0].nodes))
        results.append(after_steps(made))
    assert nodes[0] <= nodes[1]  # nothing is computed twice, as it is and scaled
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)


def step(update, dtype="float64"):
    """The optimised graph of an update that is written by hand."""
    with sg.Graph() as graph:
        x = sg.input("x", (32, 48), dtype)
        w = sg.parameter(np.ones((48, 48), dtype), name="w")
        rate = sg.input("rate", (), dtype)
        loss = 3 * sg.sum(sg.tanh(x @ w))
        new = update(w, sg.grad(loss, w), rate)
    whole = Graph.closed(graph.inputs, (loss,), ((w, new),))
    return optimise(whole, "train")


def products(graph):
    """The shapes of what is multiplied by a number."""
    return [
        node.types[0].shape
        for node in graph.nodes
        if node.op.name == "multiply" and any(map(_is_rate, node.inputs))
    ]


def _is_rate(x):
    return x.ndim == 0 and (x.op.name == "input" or _is_negated(x))


def _is_negated(x):
    return x.op.name == "negative" and x.node.inputs[0].op.name == "input"


@pytest.mark.parametrize(
    ("update", "sign", "decay"),
    [
        (lambda w, g, rate: w - rate * g, -1, 0),
        (lambda w, g, rate: w + rate * g, 1, 0),
        (lambda w, g, rate: rate * g + w, 1, 0),
        (lambda w, g, rate: w - g * rate, -1, 0),
        (lambda w, g, rate: w + -rate * g, -1, 0),
        (lambda w, g, rate: w - rate * (g + 0.1 * w), -1, 0.1),
    ],
)
def test_updates_by_hand(update, sign, decay):
    graph = step(update)
    assert set(products(graph)) <= {()}
    x = np.random.default_rng(0).normal(size=(32, 48)) / 9
    ((w, _),) = graph.updates
    f = sg.compile(
        list(graph.outputs), list(graph.inputs), list(graph.updates), target="reference"
    )
    f(x, np.float64(0.5))
    h = np.tanh(x @ np.ones((48, 48)))
    gradient = x.T @ (3 * (1 - h * h))
    want = 1 + sign * 0.5 * (gradient + decay)
    np.testing.assert_allclose(w.value, want, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_keep_their_range(dtype):
    graph = step(lambda w, g, rate: w - rate * g, dtype)
    assert products(graph) != [()]


def test_many_residuals_begin_at_one_seed():
    with sg.Graph() as graph:
        x = sg.input("x", (16, 24), "float64")
        weights = [
            sg.parameter(np.eye(24) / 9, name=f"w{n}") for n in range(20)
        ]  # each sum of two ways doubles how often the seed is met
        h = x
        for w in weights:
            h = h + sg.tanh(h @ w)
        loss = sg.mean(h**2)
        updates = sg.optim.SGD(0.1).updates(sg.grad(loss, weights), weights)
    whole = Graph.closed(graph.inputs, (loss,), tuple(updates))
    assert scaled(optimise(whole, "train")) == 0


def test_what_is_needed_both_ways_is_not_made_twice():
    """The cotangent is shown, so its products with the rate stay products."""
    with sg.Graph() as graph:
        x = sg.input("x", (16, 24), "float64")
        w = sg.parameter(np.eye(24), name="w")
        v = sg.parameter(np.eye(24), name="v")
        h = sg.tanh(x @ w)
        loss = sg.mean((h @ v) ** 2)
        inner = sg.grad(loss, h)
        updates = sg.optim.SGD(0.1).updates(sg.grad(loss, [w, v]), [w, v])
    whole = Graph.closed(graph.inputs, (loss, inner), tuple(updates))
    left = optimise(whole, "train")
    assert sum(node.op.name.startswith("matmul") for node in left.nodes) == 5


def test_seeds_on_the_way_do_not_make_a_pass_twice(monkeypatch):
    """One factor 2 lies on the way of the weights' step, the seed on the bias'."""
    sizes = []
    for passes in (compiler.PASSES, without_the_pass()):
        monkeypatch.setattr(compiler, "PASSES", passes)
        with sg.Graph() as graph:
            x = sg.input("x", (6, 8), "float64")
            w = sg.parameter(np.eye(8), name="w")
            b = sg.parameter(np.zeros(8), name="b")
            z = x @ w + b
            loss = sg.mean((z + sg.sin(z)) ** 2) + 0.01 * sg.sum(w * w)
            grads = [2 * g for g in sg.grad(loss, [w, b])]
            updates = sg.optim.SGD(0.1).updates(grads, [w, b])
        whole = Graph.closed(graph.inputs, (loss,), tuple(updates))
        nodes = optimise(whole, "train").nodes
        sizes.append(sum(bool(node.types[0].shape) for node in nodes))
    assert sizes[0] <= sizes[1]


def test_a_step_that_is_kept_is_scaled_as_well():
    """The step is the new value of a state, and subtracted from the weights."""
    with sg.Graph():
        x = sg.input("x", (32, 48), "float64")
        w = sg.parameter(np.ones((48, 48)), name="w")
        last = sg.state(np.zeros((48, 48)), name="last")
        rate = sg.input("rate", (), "float64")
        loss = 3 * sg.sum(sg.tanh(x @ w))
        step = rate * sg.grad(loss, w)
        updates = ((w, w - step), (last, step))
    left = optimise(Graph.closed((x, rate), (loss,), updates), "train")
    assert sum(node.op.name.startswith("matmul") for node in left.nodes) == 2
    f = sg.compile(list(left.outputs), [x, rate], list(left.updates))
    f(np.random.default_rng(0).normal(size=(32, 48)) / 9, np.float64(0.5))
    np.testing.assert_allclose(w.value, 1 - last.value, rtol=1e-13)
    assert abs(last.value).max() > 0.1


def test_long_chains():
    with sg.Graph() as graph:
        x = sg.input("x", (8,), "float64")
        w = sg.parameter(np.ones(8), name="w")
        h = x * w
        for _ in range(3000):
            h = sg.sin(h)
        loss = sg.sum(h)
        updates = sg.optim.SGD(0.1).updates([sg.grad(loss, w)], [w])
    whole = Graph.closed(graph.inputs, (loss,), tuple(updates))
    assert scale_seeds(whole) is not None
