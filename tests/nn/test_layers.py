"""Layers beyond Linear: formulas in NumPy, states, gradients, messages."""

import math

import numpy as np
import pytest

import staticgrad as sg

TARGETS = ("reference", "cpu")
both = pytest.mark.parametrize("target", TARGETS)
RNG = np.random.default_rng(0)


def evaluate(build, *arrays, target="cpu", mode="eval", updates=()):
    """The outputs of ``build(*inputs)`` at `arrays`; batch axes are symbolic."""
    with sg.Graph(seed=0) as graph:
        inputs = [
            sg.input(f"x{n}", ("batch", *a.shape[1:]), a.dtype)
            for n, a in enumerate(arrays)
        ]
        outputs = build(*inputs)
    changes = graph if updates == "graph" else updates
    f = sg.compile(outputs, inputs=inputs, target=target, mode=mode, updates=changes)
    return f(*arrays)


def normalised(x, axes, eps):
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


X = RNG.normal(1, 2, (6, 4)).astype(np.float32)
IMAGES = RNG.normal(-1, 3, (5, 4, 3, 2)).astype(np.float32)


@both
def test_layer_norm_and_its_relatives(target):
    def build(x, images):
        return [
            sg.nn.LayerNorm(4)(x),
            sg.nn.LayerNorm((3, 2))(images),
            sg.nn.GroupNorm(2, 4)(images),
            sg.nn.RMSNorm(4)(x),
        ]

    x, images = X[:5], IMAGES
    got = evaluate(build, x, images, target=target)
    groups = normalised(images.reshape(5, 2, 2, 3, 2), (2, 3, 4), 1e-5)
    want = [
        normalised(x, (1,), 1e-5),
        normalised(images, (2, 3), 1e-5),
        groups.reshape(images.shape),
        x / np.sqrt((x.astype(float) ** 2).mean(1, keepdims=True) + 1e-6),
    ]
    for left, right in zip(got, want, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-5, atol=2e-5)


def test_norms_have_weight_and_bias_per_channel():
    with sg.Graph():
        x = sg.input("x", ("batch", 4, 3, 2))
        layer = sg.nn.GroupNorm(2, 4)
        y = layer(x)
    layer.weight.value = np.arange(4)
    layer.bias.value = [0, 10, 20, 30]
    got = sg.compile(y)(IMAGES)
    groups = normalised(IMAGES.reshape(5, 2, 2, 3, 2), (2, 3, 4), 1e-5)
    want = groups.reshape(IMAGES.shape) * np.arange(4)[:, None, None]
    want += np.array([0, 10, 20, 30])[:, None, None]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@both
@pytest.mark.parametrize("images", [False, True])
def test_batch_norm_trains_by_the_batch_and_moves_its_statistics(target, images):
    data = IMAGES if images else X
    axes = (0, 2, 3) if images else (0,)
    row = (slice(None), None, None) if images else slice(None)
    layer = None

    def build(x):
        nonlocal layer
        layer = sg.nn.BatchNorm2d(4) if images else sg.nn.BatchNorm1d(4)
        return layer(x)

    y = evaluate(build, data, target=target, mode="train", updates="graph")
    np.testing.assert_allclose(y, normalised(data, axes, 1e-5), rtol=1e-4, atol=1e-4)
    mean, var = 0.1 * data.mean(axes), 0.9 + 0.1 * data.var(axes, ddof=1)
    np.testing.assert_allclose(layer.running_mean.value, mean, rtol=1e-5)
    np.testing.assert_allclose(layer.running_var.value, var, rtol=1e-5)
    with sg.Graph():
        x = sg.input("x", ("batch", *data.shape[1:]))
        f = sg.compile(layer(x), target=target)
    want = (data - mean[row]) / np.sqrt(var[row] + 1e-5)
    np.testing.assert_allclose(f(data), want, rtol=1e-4, atol=1e-4)


def test_batch_norm_called_twice_moves_twice():
    layer = None

    def build(x):
        nonlocal layer
        layer = sg.nn.BatchNorm1d(4)
        return [layer(x), layer(x + 1)]

    evaluate(build, X, mode="train", updates="graph")
    want = 0.9 * (0.1 * X.mean(0)) + 0.1 * (X + 1).mean(0)
    np.testing.assert_allclose(layer.running_mean.value, want, rtol=1e-5)


def test_batch_norm_of_one_sample_stays_finite():
    with sg.Graph() as graph:
        x = sg.input("x", ("batch", 4))
        layer = sg.nn.BatchNorm1d(4)
        y = layer(x)
    assert (sg.compile(y, updates=graph, mode="train")(X[:1]) == 0).all()
    np.testing.assert_allclose(layer.running_var.value, 0.9)


@both
def test_trainer_learns_with_batch_norm_and_scores_with_its_statistics(target):
    with sg.Graph(seed=1):
        x, y = sg.input("x", ("batch", 4)), sg.input("y", ("batch", 1))
        model = sg.nn.Sequential(
            sg.nn.Linear(4, 8), sg.nn.BatchNorm1d(8), sg.nn.ReLU(), sg.nn.Linear(8, 1)
        )
        loss = sg.nn.mse_loss(model(x), y)
    trainer = sg.Trainer(loss, sg.optim.Adam(0.05), target=target)
    data = {"x": X, "y": X[:, :1] * 2}
    first = trainer.fit(data, epochs=60, progress=False)["loss"]
    assert first[-1] < 0.1 * first[0]
    assert trainer.evaluate(data)["loss"] < 0.5 * first[0]


def attend(q, k, v, seen=None):
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@both
def test_attention(target):
    q, k, v = (RNG.normal(size=(2, n, d)).astype("f4") for n, d in
               ((3, 4), (5, 4), (5, 6)))  # fmt: skip
    causal = np.tri(3, 5, dtype=bool)
    mask = RNG.random((3, 5)) > 0.3
    mask[:, 0] = True

    def build(q, k, v):
        return [
            sg.nn.attention(q, k, v),
            sg.nn.attention(q, k, v, causal=True),
            sg.nn.attention(q, k, v, mask=sg.constant(mask), causal=True),
        ]

    got = evaluate(build, q, k, v, target=target)
    want = [attend(q, k, v), attend(q, k, v, causal), attend(q, k, v, causal & mask)]
    for left, right in zip(got, want, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def test_attention_over_symbolic_times():
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", "time", 8))
        layer = sg.nn.MultiHeadAttention(8, 2)
        f = sg.compile(layer(x, causal=True))
    data = RNG.normal(size=(2, 7, 8)).astype("f4")
    whole = f(data)
    np.testing.assert_allclose(whole[:, :4], f(data[:, :4]), rtol=1e-5, atol=1e-6)


def test_a_row_that_may_see_nothing_is_finite():
    x = sg.constant(np.ones((2, 3), "f4"))
    hidden = sg.constant(np.zeros((2, 2), bool))
    y = sg.nn.attention(x, x, x, mask=hidden)
    assert np.isfinite(sg.compile([y, sg.grad(sg.sum(y), x)])()).all()


def test_blocks_pass_gradients_and_keep_shapes():
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 5, 8))
        block = sg.nn.TransformerBlock(8, 2, causal=True)
        body = sg.nn.Sequential(sg.nn.Linear(8, 8), sg.nn.Tanh())
        y = sg.nn.Residual(body)(block(x))
    assert y.shape == x.shape
    grads = sg.grad(sg.sum(y * y), block.parameters())
    found = sg.compile(grads)(RNG.normal(size=(2, 5, 8)))
    assert all(np.isfinite(g).all() for g in found.values())
    assert all(np.abs(g).max() > 0 for n, g in found.items() if "in_proj_bias" not in n)


def test_residual_blocks_may_have_a_shortcut():
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 3))
        bent = sg.nn.Residual(sg.nn.Linear(3, 5), sg.nn.Linear(3, 5, bias=False))
        assert bent(x).shape[1] == 5
        with pytest.raises(sg.ShapeError, match="a body that keeps the shape"):
            sg.nn.Residual(sg.nn.Linear(3, 5))(x)


@both
def test_embedding(target):
    index = np.array([[0, 2], [2, -1]])
    with sg.Graph(seed=0):
        i = sg.input("i", ("batch", 2), "int64")
        table = sg.nn.Embedding(4, 3)
        y = table(i)
        grad = sg.grad(sg.sum(y), table.weight)
    f = sg.compile([y, grad], target=target)
    rows, g = f(index)
    np.testing.assert_array_equal(rows, table.weight.value[index])
    np.testing.assert_array_equal(g[:, 0], [1, 0, 2, 1])
    with pytest.raises(sg.IndexOutOfRange, match="4"):
        f(np.array([[0, 4]]))


ACTIVATIONS = [
    (sg.nn.LeakyReLU(0.2), lambda x: np.where(x > 0, x, 0.2 * x)),
    (sg.nn.ELU(0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    (sg.nn.SiLU(), lambda x: x / (1 + np.exp(-x))),
    (sg.nn.Softplus(), lambda x: np.log1p(np.exp(x))),
    (sg.nn.Identity(), lambda x: x),
    (sg.nn.Softmax(), lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    (sg.nn.GELU(), lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5))),
    (sg.nn.GELU("tanh"),
     lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))),
]  # fmt: skip


@pytest.mark.parametrize(("layer", "want"), ACTIVATIONS)
def test_activations(layer, want):
    got = evaluate(layer, X)
    np.testing.assert_allclose(got, want(X.astype(float)), rtol=1e-5, atol=1e-6)


def test_names_of_parameters_and_states():
    with sg.Graph(seed=0) as graph:
        model = sg.nn.Sequential(sg.nn.BatchNorm1d(4), sg.nn.LayerNorm(4))
        model(sg.input("x", ("batch", 4)))
    assert list(model.parameters()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    names = {leaf.name for leaf, _ in graph.updates}
    assert names == {"0.running_mean", "0.running_var"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_inputs_are_normalised_in_float32(dtype):
    def build(x):
        layer = sg.nn.BatchNorm1d(4)
        assert layer.running_mean.dtype == np.float32
        return [layer(x), sg.nn.LayerNorm(4)(x)]

    data = (X * 300).astype(dtype)
    with sg.Graph(seed=0, dtype=dtype):
        x = sg.input("x", ("batch", 4), dtype)
        outputs = build(x)
    batch, layer = sg.compile(outputs, mode="train")(data)
    assert batch.dtype == layer.dtype == dtype
    np.testing.assert_allclose(batch.astype(float), normalised(X, 0, 0), atol=0.05)
    np.testing.assert_allclose(layer.astype(float), normalised(X, 1, 0), atol=0.05)


def image(*shape):
    return sg.input("x", shape)


REFUSED = [
    (lambda: sg.nn.BatchNorm1d(0), sg.ShapeError, "at least 1 channel"),
    (lambda: sg.nn.BatchNorm1d(3, momentum=2), sg.GraphError, "a momentum in 0..1"),
    (lambda: sg.nn.BatchNorm2d(3)(image(2, 3)), sg.ShapeError, "requires 4 axes"),
    (lambda: sg.nn.BatchNorm1d(3)(image(2, 4)), sg.ShapeError, "3 channels on axis 1"),
    (lambda: sg.nn.LayerNorm(4)(image(2, 3)), sg.ShapeError, r"\[..., 4\]"),
    (lambda: sg.nn.LayerNorm(())(image(2)), sg.ShapeError, "sizes of at least 1"),
    (lambda: sg.nn.GroupNorm(2, 3), sg.ShapeError, "groups that divide the channels"),
    (lambda: sg.nn.group_norm(image(2, 3), 2), sg.ShapeError, "that 2 groups share"),
    (lambda: sg.nn.MultiHeadAttention(6, 4), sg.ShapeError, "heads that divide"),
    (lambda: sg.nn.MultiHeadAttention(4, 2)(image(2, 4)), sg.ShapeError, "batch, time"),
    (lambda: sg.nn.attention(sg.ones((2, 3)), sg.ones((2, 4)), sg.ones((2, 4))),
     sg.ShapeError,
     "one known depth"),
    (lambda: sg.nn.Embedding(0, 3), sg.ShapeError, "sizes of at least 1"),
    (lambda: sg.nn.Embedding(2, 3)(image(2)), sg.DTypeError, "requires integers"),
    (lambda: sg.nn.Residual(3), sg.GraphError, "requires a Module as body"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "match"), REFUSED)
def test_messages(call, error, match):
    with sg.Graph(), pytest.raises(error, match=match):
        call()


def test_batch_norm_outside_of_a_graph():
    with sg.Graph():
        layer = sg.nn.BatchNorm1d(3)
    with pytest.raises(sg.GraphError, match="requires an open Graph, which keeps"):
        layer(image(2, 3))
