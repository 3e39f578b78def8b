"""Weights, ignored labels and smoothing; losses of differences; arrays as arguments."""

import numpy as np
import pytest

import staticgrad as sg

TARGETS = ("reference", "cpu")
rng = np.random.default_rng(0)
LOGITS = rng.normal(size=(5, 3))
LABELS = np.array([2, -1, 1, 2, 0])
WEIGHT = np.array([0.5, 1.0, 2.0])


def by_hand(weight, ignored, smoothing, reduction):
    """The loss of each sample in a loop, and the mean weighted by what counts."""
    log_p = LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True))
    losses, counted = np.zeros(5), np.zeros(5)
    for row, label in enumerate(LABELS):
        if label == ignored:
            continue
        wanted = np.full(3, smoothing / 3)
        wanted[label] += 1 - smoothing
        losses[row] = -(wanted * weight * log_p[row]).sum()
        counted[row] = weight[label]
    if reduction == "none":
        return losses
    return losses.sum() / (counted.sum() if reduction == "mean" else 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_weights_ignored_labels_and_smoothing(target, reduction, smoothing, weight):
    with sg.Graph(dtype="float64"):
        x, y = sg.input("x", ("n", 3)), sg.input("y", ("n",), dtype="int64")
        loss = sg.nn.cross_entropy(
            x, y, reduction, weight=weight, ignore_index=-1, label_smoothing=smoothing
        )
        outputs = [loss, sg.grad(sg.sum(loss), x)]
    value, slope = sg.compile(outputs, target=target)(x=LOGITS, y=LABELS)
    each = np.ones(3) if weight is None else weight
    expected = by_hand(each, -1, smoothing, reduction)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    assert np.all(slope[1] == 0)
    assert np.all(np.abs(slope[[0, 2]]) > 1e-3)


@pytest.mark.parametrize("target", TARGETS)
def test_the_options_agree_with_pytorch(target):
    torch = pytest.importorskip("torch")
    images = rng.normal(size=(4, 3, 2, 2))
    labels = rng.integers(0, 3, (4, 2, 2))
    shares = rng.dirichlet(np.ones(3), 4)
    with sg.Graph(dtype="float64"):
        x = sg.parameter(images, name="x")
        options = {"weight": WEIGHT, "ignore_index": 1}
        first = sg.nn.cross_entropy(x, labels, **options, label_smoothing=0.2)
        second = sg.nn.nll_loss(x, labels, **options)
        rows = sg.mean(x, axis=(2, 3))
        third = sg.nn.cross_entropy(rows, shares, weight=WEIGHT, label_smoothing=0.2)
        fourth = sg.nn.binary_cross_entropy_with_logits(rows, shares, pos_weight=WEIGHT)
        losses = [first, second, third, fourth]
        outputs = [losses, [sg.grad(loss, x) for loss in losses]]
    values, slopes = sg.compile(outputs, target=target)()
    t = torch.tensor(images, requires_grad=True)
    f = torch.nn.functional
    options = {"weight": torch.tensor(WEIGHT), "ignore_index": 1}
    wanted, shared = torch.tensor(labels), torch.tensor(shares)
    peers = [
        f.cross_entropy(t, wanted, **options, label_smoothing=0.2),
        f.nll_loss(t, wanted, **options),
        f.cross_entropy(
            t.mean((2, 3)), shared, weight=options["weight"], label_smoothing=0.2
        ),
        f.binary_cross_entropy_with_logits(
            t.mean((2, 3)), shared, pos_weight=options["weight"]
        ),
    ]
    for value, slope, peer in zip(values, slopes, peers, strict=True):
        np.testing.assert_allclose(value, peer.item(), rtol=1e-12)
        (expected,) = torch.autograd.grad(peer, t, retain_graph=True)
        np.testing.assert_allclose(slope, expected.numpy(), rtol=1e-10, atol=1e-14)


def test_what_is_not_ignored_is_checked():
    with sg.Graph():
        x, y = sg.input("x", ("n", 3)), sg.input("y", ("n",), dtype="int64")
        f = sg.compile(sg.nn.cross_entropy(x, y, ignore_index=-1))
    with pytest.raises(sg.IndexOutOfRange, match="cross_entropy requires 0 <= index"):
        f(x=LOGITS, y=LABELS - 1)
    assert np.isnan(f(x=LOGITS, y=np.full(5, -1)))


@pytest.mark.parametrize("target", TARGETS)
def test_losses_of_differences(target):
    x, t = rng.normal(size=(2, 4, 3))
    with sg.Graph(dtype="float64"):
        losses = [sg.nn.l1_loss(x, t), sg.nn.huber_loss(x, t, "none", delta=0.7)]
    first, second = sg.compile(losses, target=target)()
    d = np.abs(x - t)
    np.testing.assert_allclose(first, d.mean())
    expected = np.where(d <= 0.7, d * d / 2, 0.7 * (d - 0.35))
    np.testing.assert_allclose(second, expected)
    assert sg.testing.gradgradcheck(lambda v: sg.nn.huber_loss(v, t, delta=0.7), x)


LAYERS = [
    (sg.nn.Linear, (4, 2), (3, 4)),
    (sg.nn.BatchNorm1d, (4,), (3, 4)),
    (sg.nn.LayerNorm, (4,), (3, 4)),
    (sg.nn.RMSNorm, (4,), (3, 4)),
    (sg.nn.GroupNorm, (2, 4), (3, 4, 5)),
    (sg.nn.LSTM, (4, 2), (3, 2, 4)),
    (sg.nn.GRUCell, (4, 2), (3, 4)),
    (sg.nn.MultiHeadAttention, (4, 2), (2, 3, 4)),
    (sg.nn.TransformerBlock, (4, 2), (2, 3, 4)),
]


@pytest.mark.parametrize(("layer", "arguments", "shape"), LAYERS)
def test_layers_take_arrays_and_name_the_shape_of_a_wrong_one(layer, arguments, shape):
    with sg.Graph():
        layer(*arguments)(np.ones(shape, np.float32))
        wrong = np.ones((*shape, 5, 7, 5), np.float32)
        with pytest.raises((sg.ShapeError, sg.GraphError), match=r"5, 7, 5\]"):
            layer(*arguments)(wrong)


def test_an_embedding_takes_lists_and_names_the_dtype_of_floats():
    with sg.Graph():
        assert sg.nn.Embedding(5, 2)([0, 4]).shape == (2, 2)
        with pytest.raises(sg.DTypeError, match="integers, got float32"):
            sg.nn.Embedding(5, 2)(np.ones(3, np.float32))


def bad_cases():
    x, y = sg.input("x", ("n", 3)), sg.input("y", ("n",), dtype="int64")
    floats = sg.input("floats", ("n",))
    entropy = sg.nn.cross_entropy
    yield sg.DTypeError, "integer labels", lambda: entropy(x, floats)
    yield sg.DTypeError, "integer labels", lambda: entropy(x, y > 0, ignore_index=1)
    yield sg.ShapeError, "for each class", lambda: entropy(x, y, weight=[1.0])
    yield sg.GraphError, "in 0..1", lambda: entropy(x, y, label_smoothing=2)
    yield sg.GraphError, "to ignore some", lambda: entropy(x, x, ignore_index=0)
    yield sg.GraphError, "delta > 0", lambda: sg.nn.huber_loss(x, x, delta=0)
    yield sg.DTypeError, "floats", lambda: sg.nn.l1_loss(y, y)


def test_messages_say_what_is_required_and_where():
    with sg.Graph():
        for error, match, call in bad_cases():
            with pytest.raises(error, match=match) as caught:
                call()
            assert "test_losses.py:" in str(caught.value)
