"""Layers and losses: names, initial values, formulas, gradients, messages."""

import numpy as np
import pytest

import staticgrad as sg

TARGETS = ("reference", "cpu")
LOGITS = np.array([[1, 2, 3], [1000, -1000, 0], [0, 0, 0]], np.float32)
LABELS = np.array([2, 0, 1])


def log_softmax(x, axis=-1):
    x = x.astype(np.float64)
    shifted = x - x.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def test_names_are_those_of_pytorch():
    with sg.Graph() as graph:
        x = sg.input("x", ("batch", 4))
        model = sg.nn.Sequential(sg.nn.Linear(4, 3), sg.nn.ReLU(), sg.nn.Linear(3, 2))
        y = model(x)
    expected = ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert list(model.parameters()) == expected
    assert list(graph.parameters) == expected
    assert [p.name for p in model.parameters().values()] == expected
    assert y.scope == "2"


def test_a_slice_of_a_sequential_has_the_same_layers():
    with sg.Graph(seed=0):
        model = sg.nn.Sequential(sg.nn.Linear(4, 3), sg.nn.ReLU(), sg.nn.Linear(3, 2))
        features = model[:-1]
        assert list(features) == [model[0], model[1]]
        y = features(sg.input("x", ("batch", 4)))
    assert list(features.parameters()) == ["0.weight", "0.bias"]
    assert y.shape[1] == 3
    assert len(model[5:]) == 0


class Usual(sg.nn.Module):
    """Attributes called as the layers that they hold."""

    def __init__(self):
        self.linear = sg.nn.Linear(4, 3)
        self.norm = sg.nn.LayerNorm(3)

    def forward(self, x):
        return self.norm(self.linear(x))


def test_a_parameter_is_saved_under_its_path():
    with sg.Graph() as graph:
        first, second = Usual(), Usual()
        y = second(first(sg.input("x", ("batch", 4))) @ np.ones((3, 4), np.float32))
    assert y.shape[1] == 3
    paths = ["linear.weight", "linear.bias", "norm.weight", "norm.bias"]
    assert [p.name for p in first.parameters().values()] == paths
    numbered = [f"{path}_1" for path in paths]
    assert [p.name for p in second.parameters().values()] == numbered
    assert sorted(graph.parameters) == sorted(paths + numbered)


def test_names_before_the_first_call_are_paths():
    with sg.Graph():
        model = sg.nn.Sequential(sg.nn.Linear(4, 3, bias=False))
    assert list(model.parameters()) == ["0.weight"]


class Net(sg.nn.Module):
    """Attributes, a list, a dict, a bare parameter, a shared layer."""

    def __init__(self):
        self.first = sg.nn.Linear(4, 4)
        self.blocks = [sg.nn.Linear(4, 4), sg.nn.Tanh()]
        self.heads = {"a": sg.nn.Linear(4, 2)}
        self.scale = sg.parameter(np.ones(4, np.float32))
        self.again = self.first

    def forward(self, x):
        x = self.again(self.first(x) * self.scale)
        for block in self.blocks:
            x = block(x)
        return self.heads["a"](x)


def test_a_module_finds_parameters_in_attributes_lists_and_dicts():
    with sg.Graph() as graph:
        net = Net()
        net(sg.input("x", ("batch", 4)))
    expected = {
        "first.weight", "first.bias", "blocks.0.weight", "blocks.0.bias",
        "heads.a.weight", "heads.a.bias", "scale",
    }  # fmt: skip
    assert set(net.parameters()) == expected
    assert set(graph.parameters) == expected
    assert set(net.modules()) == {"", "first", "blocks.0", "blocks.1", "heads.a"}


def test_two_models_in_one_graph_have_names_of_their_own():
    with sg.Graph() as graph:
        x = sg.input("x", ("batch", 2))
        models = [sg.nn.Sequential(sg.nn.Linear(2, 2)) for _ in range(2)]
        models[1](models[0](x))
    assert len(graph.parameters) == 4
    assert list(models[1].parameters()) == ["0.weight", "0.bias"]


def test_a_layer_alone_names_its_parameters_plainly():
    with sg.Graph() as graph:
        sg.nn.Linear(2, 3)(sg.input("x", ("batch", 2)))
    assert list(graph.parameters) == ["weight", "bias"]


def test_initial_values_are_pytorch_bounds_and_come_from_the_seed():
    def weights(seed):
        with sg.Graph(seed=seed):
            return [sg.nn.Linear(400, 30).weight.value for _ in range(2)]

    first, second = weights(3)
    assert first.shape == (30, 400)
    assert first.dtype == np.float32
    assert np.abs(first).max() <= 1 / 20
    assert np.abs(first).max() > 0.049
    assert not np.array_equal(first, second)
    assert np.array_equal(first, weights(3)[0])
    assert not np.array_equal(first, weights(4)[0])


def test_layers_take_the_dtype_of_the_graph():
    with sg.Graph(dtype="float64"):
        layer = sg.nn.Linear(2, 2)
    assert layer.weight.dtype == np.float64


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4,), (5, 4), (0, 4), (2, 3, 4)])
def test_linear_is_x_times_weight_transposed(target, bias, shape):
    with sg.Graph():
        layer = sg.nn.Linear(4, 3, bias=bias)
        y = layer(sg.input("x", shape))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = x @ layer.weight.value.T + (layer.bias.value if bias else 0)
    got = sg.compile(y, target=target)(x=x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (sg.nn.ReLU, lambda x: np.maximum(x, 0)),
        (sg.nn.Tanh, np.tanh),
        (sg.nn.Sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    ],
)
def test_activations(target, layer, function):
    x = np.linspace(-4, 4, 9, dtype=np.float32)
    with sg.Graph():
        y = layer()(sg.input("x", (9,)))
    np.testing.assert_allclose(
        sg.compile(y, target=target)(x=x), function(x), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_dropout_keeps_and_scales(target, p):
    with sg.Graph(seed=1):
        x = sg.input("x", (100, 100))
        y = sg.nn.Dropout(p)(x)
    ones = np.ones((100, 100), np.float32)
    train = sg.compile(y, mode="train", target=target)
    masks = [train(x=ones) for _ in range(2)]
    assert abs(np.mean(masks[0] == 0) - p) < 0.02
    kept = masks[0][masks[0] != 0]
    np.testing.assert_allclose(kept, 1 / (1 - p) if p < 1 else 0, rtol=1e-6)
    assert np.array_equal(*masks) == (p in (0, 1))
    assert np.array_equal(sg.compile(y, target=target)(x=ones), ones)


def test_dropout_gradient_uses_the_mask_of_the_forward_pass():
    with sg.Graph(seed=1):
        x = sg.input("x", (1000,))
        y = sg.nn.Dropout(0.5)(x)
        outputs = {"y": y, "g": sg.grad(sg.sum(y), x)}
    got = sg.compile(outputs, mode="train")(x=np.ones(1000, np.float32))
    assert np.array_equal(got["y"], got["g"])


def test_two_dropouts_draw_different_masks():
    with sg.Graph(seed=1):
        x = sg.input("x", (1000,))
        outputs = [sg.nn.Dropout(0.5)(x) for _ in range(2)]
    first, second = sg.compile(outputs, mode="train")(x=np.ones(1000, np.float32))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_labels(target, reduction):
    with sg.Graph():
        logits = sg.input("x", ("batch", 3))
        labels = sg.input("y", ("batch",), dtype="int64")
        loss = sg.nn.cross_entropy(logits, labels, reduction=reduction)
    expected = -log_softmax(LOGITS)[np.arange(3), LABELS]
    if reduction != "none":
        expected = getattr(np, reduction)(expected)
    got = sg.compile(loss, target=target)(x=LOGITS, y=LABELS)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("target", TARGETS)
def test_cross_entropy_gradient_is_softmax_minus_one_hot(target):
    with sg.Graph():
        logits = sg.input("x", ("batch", 3))
        labels = sg.input("y", ("batch",), dtype="uint8")
        loss = sg.nn.cross_entropy(logits, labels)
    gradient = sg.compile(sg.grad(loss, logits), target=target)
    expected = (np.exp(log_softmax(LOGITS)) - np.eye(3)[LABELS]) / 3
    got = gradient(x=LOGITS, y=LABELS.astype(np.uint8))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("target", TARGETS)
def test_cross_entropy_of_probabilities(target):
    chances = np.array([[0.2, 0.3, 0.5], [1, 0, 0], [0, 0.5, 0.5]], np.float32)
    with sg.Graph():
        logits, p = sg.input("x", ("batch", 3)), sg.input("p", ("batch", 3))
        loss = sg.nn.cross_entropy(logits, p)
    expected = -np.mean((chances * log_softmax(LOGITS)).sum(axis=1))
    got = sg.compile(loss, target=target)(x=LOGITS, p=chances)
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_classes_lie_on_axis_1_of_higher_ranks(target):
    x = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
    labels = np.random.default_rng(1).integers(0, 3, (2, 5))
    with sg.Graph():
        logits = sg.input("x", ("batch", 3, 5))
        y = sg.input("y", ("batch", 5), dtype="int64")
        losses = [
            sg.nn.cross_entropy(logits, y),
            sg.nn.nll_loss(sg.nn.log_softmax(logits, axis=1), y),
        ]
    picked = np.take_along_axis(log_softmax(x, axis=1), labels[:, None], axis=1)
    got = sg.compile(losses, target=target)(x=x, y=labels)
    np.testing.assert_allclose(got, -picked.mean(), rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_cross_entropy_of_one_vector(target):
    with sg.Graph():
        logits, y = sg.input("x", (3,)), sg.input("y", (), dtype="int64")
        loss = sg.nn.cross_entropy(logits, y)
    got = sg.compile(loss, target=target)(x=LOGITS[0], y=2)
    np.testing.assert_allclose(got, -log_softmax(LOGITS[0])[2], rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("row", "label"), [(0, 3), (2, -1)])
def test_labels_out_of_range_name_the_line(target, row, label):
    with sg.Graph():
        logits = sg.input("x", ("batch", 3))
        labels = sg.input("y", ("batch",), dtype="int64")
        loss = sg.nn.cross_entropy(logits, labels)
    bad = LABELS.copy()
    bad[row] = label
    with pytest.raises(sg.IndexOutOfRange, match=rf"{label}.*test_nn\.py:\d+"):
        sg.compile(loss, target=target)(x=LOGITS, y=bad)


@pytest.mark.parametrize("target", TARGETS)
def test_mse_loss(target):
    a, b = np.array([1.0, 2, 4], np.float32), np.array([1.0, 0, 1], np.float32)
    with sg.Graph():
        x, y = sg.input("x", (3,)), sg.input("y", (3,))
        loss = sg.nn.mse_loss(x, y)
        outputs = [loss, sg.grad(loss, x)]
    value, gradient = sg.compile(outputs, target=target)(x=a, y=b)
    np.testing.assert_allclose(value, 13 / 3, rtol=1e-6)
    np.testing.assert_allclose(gradient, 2 * (a - b) / 3, rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_binary_cross_entropy_does_not_overflow(target):
    x = np.array([-1000, -2, 0, 3, 1000], np.float32)
    t = np.array([0, 1, 0, 1, 0], np.float32)
    with sg.Graph():
        logits, targets = sg.input("x", (5,)), sg.input("t", (5,))
        loss = sg.nn.binary_cross_entropy_with_logits(logits, targets, "none")
        outputs = [loss, sg.grad(sg.sum(loss), logits)]
    value, gradient = sg.compile(outputs, target=target)(x=x, t=t)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(value, np.logaddexp(0, wide) - t * wide, rtol=1e-6)
    sigmoid = 1 / (1 + np.exp(-wide.clip(-700, 700)))
    np.testing.assert_allclose(gradient, sigmoid - t, rtol=1e-5, atol=1e-7)


def bad_cases():
    x = sg.input("x", ("batch", 3))
    row = sg.input("row", ("batch",))
    labels = sg.input("labels", ("batch", 1), dtype="int64")
    yield sg.ShapeError, "Linear requires 4", lambda: sg.nn.Linear(4, 2)(x)
    yield sg.ShapeError, "at least 1", lambda: sg.nn.Linear(0, 2)
    yield sg.GraphError, "probability", lambda: sg.nn.Dropout(1.5)
    yield sg.GraphError, "callables", lambda: sg.nn.Sequential(3)
    yield sg.ShapeError, "one label per row", lambda: sg.nn.cross_entropy(x, labels)
    yield sg.DTypeError, "integer labels", lambda: sg.nn.cross_entropy(x, row)
    yield sg.DTypeError, "floats", lambda: sg.nn.cross_entropy(labels, labels)
    yield sg.GraphError, "reduction", lambda: sg.nn.mse_loss(x, x, "average")
    yield sg.ShapeError, "equal shapes", lambda: sg.nn.mse_loss(x, row)
    flags = sg.input("flags", ("batch",), dtype="bool")
    yield sg.DTypeError, "integer labels", lambda: sg.nn.nll_loss(x, flags)
    yield TypeError, "forward", lambda: sg.nn.Module()(x)


def test_messages_say_what_is_required_and_where():
    with sg.Graph():
        for error, match, call in bad_cases():
            with pytest.raises(error, match=match) as caught:
                call()
            if error is not TypeError:
                assert "at test_nn.py:" in str(caught.value)


def test_layers_need_an_open_graph_for_their_seed():
    with pytest.raises(sg.GraphError, match="open Graph"):
        sg.nn.Linear(2, 2)
