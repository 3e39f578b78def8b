"""Graphs whose memory is measured: those of examples/ and of the workloads."""

from functools import partial

import staticgrad as sg
from benchmarks.built import built
from benchmarks.workloads import ALL


def training(make, rate=1e-3):
    """(inputs, outputs, updates, sizes) of a step; ``make()`` gives model, loss."""
    with sg.Graph(seed=0) as graph:
        model, loss = make()
        w = model.parameters()
        updates = sg.optim.Adam(rate).updates(sg.grad(loss, w), w)
        updates += list(graph.updates)
    return graph.inputs, [loss], updates, {"batch": 32}


def digits():
    """The network of examples/digits.py."""
    x = sg.input("x", ("batch", 64))
    y = sg.input("y", ("batch",), dtype="int64")
    model = sg.nn.Sequential(
        sg.nn.Linear(64, 128), sg.nn.ReLU(), sg.nn.Dropout(0.3),
        sg.nn.Linear(128, 64), sg.nn.ReLU(), sg.nn.Linear(64, 10),
    )  # fmt: skip
    return model, sg.nn.cross_entropy(model(x), y)


def regression():
    """A small tanh network, as in examples/regression.py."""
    x = sg.input("x", ("batch", 1))
    y = sg.input("y", ("batch", 1))
    model = sg.nn.Sequential(
        sg.nn.Linear(1, 32), sg.nn.Tanh(), sg.nn.Linear(32, 32), sg.nn.Tanh(),
        sg.nn.Linear(32, 1),
    )  # fmt: skip
    return model, sg.nn.mse_loss(model(x), y)


def layers(count):
    """`count` equal layers of 64, tanh, SGD."""
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", 64))
        y = sg.input("y", ("batch", 64))
        parts = [part for _ in range(count) for part in (_linear(), sg.nn.Tanh())]
        model = sg.nn.Sequential(*parts[:-1])
        loss = sg.nn.mse_loss(model(x), y)
        w = model.parameters()
        updates = sg.optim.SGD(0.01).updates(sg.grad(loss, w), w)
    return graph.inputs, [loss], updates, {"batch": 32}


def _linear():
    return sg.nn.Linear(64, 64)


def workload(name):
    """A workload of the steps table."""
    found = ALL[name]
    graph = built(found, *found.arrays(1.0))
    return list(graph.inputs.values()), graph.outputs, graph.updates, {}


EXAMPLES = {
    "examples/digits.py": partial(training, digits),
    "examples/regression.py": partial(training, regression),
    "MLP 20x64, batch 32": partial(layers, 20),
} | {
    found.title: partial(workload, found.name)
    for found in ALL.values()
    if found.kind != "value" and found.name != "mlp-deep"
}
