"""RNN, LSTM and GRU against a replay in NumPy with PyTorch's rules, and PyTorch."""

import importlib.util

import numpy as np
import pytest

import staticgrad as sg

RNG = np.random.default_rng(0)
TIME, BATCH, INPUTS, HIDDEN = 5, 3, 4, 6


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(kind, x, state, w_ih, w_hh, b_ih, b_hh):
    """One step of the layer, as PyTorch documents it."""
    a, b = x @ w_ih.T + b_ih, state[0] @ w_hh.T + b_hh
    if kind == "RNN":
        return (np.tanh(a + b),)
    if kind == "LSTM":
        i, f, g, o = np.split(a + b, 4, axis=-1)
        c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    r, z, n = (
        part for part in zip(np.split(a, 3, -1), np.split(b, 3, -1), strict=True)
    )
    reset, update = sigmoid(sum(r)), sigmoid(sum(z))
    new = np.tanh(n[0] + reset * n[1])
    return ((1 - update) * new + update * state[0],)


def replay(kind, x, weights, layers, suffixes):
    """Outputs and last states, (time, batch, ...)."""
    states = 2 if kind == "LSTM" else 1
    ends = []
    for layer in range(layers):
        ways = []
        for suffix in suffixes:
            own = [
                weights[f"{name}_l{layer}{suffix}"]
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            state = (np.zeros((x.shape[1], HIDDEN)),) * states
            rows = []
            order = range(len(x))[:: -1 if suffix else 1]
            for t in order:
                state = step(kind, x[t], state, *own)
                rows.append(state[0])
            ways.append(np.stack(rows[:: -1 if suffix else 1]))
            ends.append(state)
        x = np.concatenate(ways, axis=-1)
    return x, [np.stack([end[k] for end in ends]) for k in range(states)]


def built(kind, **options):
    with sg.Graph(seed=1, dtype="float64"):
        x = sg.input("x", ("time", "batch", INPUTS))
        model = getattr(sg.nn, kind)(INPUTS, HIDDEN, **options)
        y, last = model(x)
    return x, model, y, last if isinstance(last, tuple) else (last,)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
def test_layers(kind, options):
    x, model, y, last = built(kind, **options)
    data = RNG.normal(size=(TIME, BATCH, INPUTS))
    weights = {name: p.value for name, p in model.parameters().items()}
    layers = options.get("num_layers", 1)
    suffixes = ("", "_reverse") if "bidirectional" in options else ("",)
    wanted, ends = replay(kind, data, weights, layers, suffixes)
    for target in ("cpu", "reference"):
        got = sg.compile([y, *last], target=target)(data)
        for a, b in zip(got, [wanted, *ends], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_gradients(kind):
    x, model, y, last = built(kind)
    loss = sg.sum(y * y) + sum(sg.sum(part) for part in last)
    data = {"x": RNG.normal(size=(TIME, BATCH, INPUTS))}
    wrt = list(model.parameters().values())
    sg.testing.gradcheck(loss, wrt=[x, *wrt], inputs=data, directions=4)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_a_cell_is_one_step_of_the_layer(kind):
    with sg.Graph(seed=2, dtype="float64"):
        x = sg.input("x", (BATCH, INPUTS))
        cell = getattr(sg.nn, f"{kind}Cell")(INPUTS, HIDDEN)
        first = cell(x)
        second = cell(x, first)
        alone = cell(x[0])
    data = RNG.normal(size=(BATCH, INPUTS))
    own = [
        cell.__dict__[n].value for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]
    zero = np.zeros((BATCH, HIDDEN))
    one = step(kind, data, (zero, zero), *own)
    two = step(kind, data, one, *own)
    pairs = [(first, one), (second, two), (alone, [part[0] for part in one])]
    for tensors, wanted in pairs:
        leaves = tensors if isinstance(tensors, tuple) else (tensors,)
        got = sg.compile(list(leaves), inputs=[x])(data)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10)


def test_batch_first_single_sequences_and_states():
    with sg.Graph(seed=3):
        x = sg.input("x", (BATCH, TIME, INPUTS))
        h, c = sg.input("h", (1, BATCH, HIDDEN)), sg.input("c", (1, BATCH, HIDDEN))
        model = sg.nn.LSTM(INPUTS, HIDDEN, batch_first=True)
        y, (last, _) = model(x, (h, c))
        single, (end, _) = model(x[0], (h[:, 0], c[:, 0]))
    assert (y.shape, single.shape) == ((BATCH, TIME, HIDDEN), (TIME, HIDDEN))
    assert (last.shape, end.shape) == ((1, BATCH, HIDDEN), (1, HIDDEN))
    data = [RNG.normal(size=t.shape).astype(np.float32) for t in (x, h, c)]
    a, b, d, e = sg.compile([y, single, last, end], inputs=[x, h, c])(*data)
    np.testing.assert_allclose(a[0], b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(d[:, 0], e, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(a[:, -1], d[0], rtol=1e-6)


def test_names_and_shapes_are_those_of_pytorch():
    with sg.Graph(seed=0):
        model = sg.nn.GRU(3, 5, num_layers=2, bidirectional=True)
        model(sg.input("x", (2, 1, 3)))
    shapes = {name: p.shape for name, p in model.parameters().items()}
    assert list(shapes)[:4] == [
        "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0",
    ]  # fmt: skip
    assert shapes["weight_ih_l1_reverse"] == (15, 10)
    assert len(shapes) == 16


def test_an_lstm_learns_to_remember():
    with sg.Graph(seed=0):
        x, y = sg.input("x", ("batch", 6, 1)), sg.input("y", ("batch",))
        model = sg.nn.LSTM(1, 8, batch_first=True)
        head = sg.nn.Linear(8, 1)
        loss = sg.mean((head(model(x)[0][:, -1])[:, 0] - y) ** 2)
    data = RNG.normal(size=(256, 6, 1)).astype(np.float32)
    trainer = sg.Trainer(loss, optimizer=sg.optim.Adam(0.02))
    history = trainer.fit(
        {"x": data, "y": data[:, 0, 0]}, epochs=30, batch_size=32, seed=0
    )
    assert history["loss"][-1] < 0.1 * history["loss"][0]


def test_messages():
    with sg.Graph(seed=0):
        with pytest.raises(sg.ShapeError, match="at least 1"):
            sg.nn.LSTM(0, 3)
        with pytest.raises(sg.GraphError, match="nonlinearity"):
            sg.nn.RNN(1, 3, nonlinearity="sin")
        model = sg.nn.GRU(2, 3)
        with pytest.raises(sg.ShapeError, match="time, batch, inputs"):
            model(sg.input("x", (2,)))
        with pytest.raises(sg.ShapeError, match="one for each layer"):
            model(sg.input("z", (4, 1, 2)), sg.zeros((2, 1, 3)))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no PyTorch")
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_equal_to_pytorch(kind):
    torch = pytest.importorskip("torch")
    x, model, y, _ = built(kind, num_layers=2, bidirectional=True)
    theirs = getattr(torch.nn, kind)(INPUTS, HIDDEN, 2, bidirectional=True).double()
    with torch.no_grad():
        for name, p in model.parameters().items():
            getattr(theirs, name).copy_(torch.from_numpy(p.value.copy()))
    data = RNG.normal(size=(TIME, BATCH, INPUTS))
    out = theirs(torch.from_numpy(data))[0]
    (out**2).sum().backward()
    names = list(model.parameters())
    grads = sg.grad(sg.sum(y**2), model.parameters())
    got, found = sg.compile([y, grads], inputs=[x])(data)
    np.testing.assert_allclose(got, out.detach().numpy(), rtol=1e-9)
    for name in names:
        wanted = getattr(theirs, name).grad.numpy()
        np.testing.assert_allclose(found[name], wanted, rtol=1e-8, atol=1e-10)
