"""Convolutions against loops, their adjoints, layers, arguments, messages."""

import itertools

import numpy as np
import pytest
from given_arrays import numbers, value_of
from tolerances import assert_near

import staticgrad as sg
from staticgrad.errors import DTypeError, ShapeError

TARGETS = ("reference", "cpu")


def correlated(x, w, stride, low, high, dilation, groups):
    """The definition of conv2d, one element after the other."""
    x = np.pad(x, ((0, 0), (0, 0), *zip(low, high, strict=True)))
    (n, channels, *size), (filters, own, *window) = x.shape, w.shape
    counts = [
        (a - d * (b - 1) - 1) // s + 1
        for a, b, s, d in zip(size, window, stride, dilation, strict=True)
    ]
    y = np.zeros((n, filters, *counts))
    for k, p, q in itertools.product(range(filters), *map(range, counts)):
        first = k // (filters // groups) * own
        for r, s in itertools.product(*map(range, window)):
            row, column = (
                p * stride[0] + r * dilation[0],
                q * stride[1] + s * dilation[1],
            )
            seen = x[:, first : first + own, row, column].astype(np.float64)
            y[:, k, p, q] += seen @ w[k, :, r, s].astype(np.float64)
    assert channels == own * groups
    return y


CASES = [
    # image, kernels, stride, padding, dilation, groups
    ((2, 3, 8, 9), (4, 3, 3, 3), 1, 0, 1, 1),
    ((2, 3, 8, 9), (5, 3, 2, 4), (2, 1), (1, 2), (2, 1), 1),
    ((1, 1, 28, 28), (8, 1, 5, 5), 1, 0, 1, 1),
    ((3, 4, 6, 6), (16, 4, 3, 3), 1, 1, 1, 1),
    ((2, 16, 7, 7), (32, 16, 1, 1), 1, 0, 1, 1),
    ((2, 16, 7, 5), (24, 16, 1, 1), 2, 0, 1, 1),
    ((2, 6, 9, 9), (9, 2, 3, 3), 2, ((0, 1), (2, 0)), 1, 3),
    ((2, 8, 8, 8), (8, 1, 3, 3), 1, 1, 1, 8),
    ((2, 5, 8, 8), (10, 1, 3, 2), 2, 1, 2, 5),
    ((2, 16, 12, 12), (16, 16, 3, 3), 1, "same", 1, 1),
    ((2, 17, 6, 6), (19, 17, 3, 3), 1, "same", 2, 1),
    ((1, 3, 20, 40), (40, 3, 7, 7), 2, 3, 1, 1),
    ((2, 32, 3, 3), (48, 32, 3, 3), 1, "valid", 1, 1),
    ((2, 2, 11, 9), (9, 2, 4, 3), (2, 1), ((1, 2), (0, 2)), (2, 1), 1),
    ((3, 20, 9, 11), (20, 1, 5, 4), (1, 2), ((3, 1), (0, 2)), 1, 20),
    ((2, 16, 10, 8), (32, 16, 3, 3), 1, ((2, 0), (0, 2)), 1, 1),
]


def attributes(case):
    """The arguments of `correlated` for a case."""
    image, kernels, stride, padding, dilation, groups = case
    two = [v if isinstance(v, tuple) else (v, v) for v in (stride, dilation)]
    if padding == "same":
        both = [d * (n - 1) for n, d in zip(kernels[2:], two[1], strict=True)]
        low, high = [b // 2 for b in both], [b - b // 2 for b in both]
    elif isinstance(padding, tuple) and isinstance(padding[0], tuple):
        low, high = zip(*padding, strict=True)
    else:
        padding = 0 if padding == "valid" else padding
        low = high = padding if isinstance(padding, tuple) else (padding, padding)
    return two[0], low, high, two[1], groups


def convolution(case):
    return lambda x, w, *rest: sg.nn.conv2d(x, w, *rest or (None,), *case[2:])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv2d_is_its_definition(case, target, dtype):
    x, w = numbers(*case[0], dtype=dtype), numbers(*case[1], dtype=dtype)
    b = numbers(case[1][0], dtype=dtype)
    got = value_of(convolution(case), x, w, b, target=target, symbolic=(0,))
    want = correlated(x, w, *attributes(case)) + b[:, None, None]
    assert got.dtype == x.dtype
    scale = np.abs(want).max()
    assert np.abs(got - want).max() <= scale * (2e-6 if dtype == "float32" else 1e-14)


def both_gradients(case):
    def function(x, w, g):
        y = sg.sum(convolution(case)(x, w) * g)
        return sg.grad(y, [x, w])

    return function


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_adjoint(case, dtype):
    # <conv(u, w), g> == <u, dx(g, w)> for any u, and alike for w
    x, w = numbers(*case[0], dtype=dtype), numbers(*case[1], dtype=dtype)
    u, v = numbers(*case[0], seed=1), numbers(*case[1], seed=2)
    where = attributes(case)
    g = numbers(*correlated(x, w, *where).shape, dtype=dtype)
    dx, dw = value_of(both_gradients(case), x, w, g, symbolic=(0,), of=(0, 2))
    bound = 3e-6 if dtype == "float32" else 1e-14
    for image, kernels, found, other in ((u, w, dx, u), (x, v, dw, v)):
        left = correlated(image, kernels, *where) * g
        right = found.astype(np.float64) * other
        size = np.abs(left).sum()
        assert abs(left.sum() - right.sum()) <= bound * size


@pytest.mark.parametrize("case", CASES[:3] + CASES[6:9], ids=str)
def test_targets_agree_on_gradients(case):
    x, w = numbers(*case[0]), numbers(*case[1])
    g = numbers(*correlated(x, w, *attributes(case)).shape)
    for got, want in zip(
        value_of(both_gradients(case), x, w, g),
        value_of(both_gradients(case), x, w, g, target="reference"),
        strict=True,
    ):
        assert_near(got, want)


@pytest.mark.parametrize("symbolic", [(2,), (3,), (0, 2, 3)])
def test_sizes_may_be_symbolic(symbolic):
    case = CASES[1]
    x, w = numbers(*case[0]), numbers(*case[1])
    got = value_of(convolution(case), x, w, symbolic=symbolic)
    assert_near(got, correlated(x, w, *attributes(case)))


@pytest.mark.parametrize("case", [CASES[3], CASES[7]], ids=str)
def test_an_empty_batch(case):
    x, w = numbers(0, *case[0][1:]), numbers(*case[1])
    shape = correlated(numbers(*case[0]), w, *attributes(case)).shape[1:]
    g = numbers(0, *shape)
    assert value_of(convolution(case), x, w, symbolic=(0,)).shape == g.shape
    dx, dw = value_of(both_gradients(case), x, w, g, symbolic=(0,), of=(0, 2))
    assert dx.shape == x.shape
    np.testing.assert_array_equal(dw, np.zeros_like(w))


@pytest.mark.parametrize("case", [CASES[0], CASES[9]], ids=str)
def test_images_in_any_order_of_memory(case):
    x, w = numbers(*case[0]), numbers(*case[1])
    flipped = np.ascontiguousarray(x.transpose(3, 1, 0, 2)[::-1])

    def function(x, w):
        image = sg.transpose(x[::-1], (2, 1, 3, 0))
        return convolution(case)(image, w)

    assert_near(value_of(function, flipped, w), value_of(convolution(case), x, w))


def test_a_nan_reaches_what_its_window_reaches():
    x = np.ones((1, 2, 6, 6), np.float32)
    x[0, 1, 3, 3] = np.nan
    w = np.ones((4, 2, 1, 1), np.float32)
    y = value_of(sg.nn.conv2d, x, w)
    assert np.isnan(y[0, :, 3, 3]).all()
    assert np.isfinite(y).sum() == 4 * 35


@pytest.mark.parametrize("target", TARGETS)
def test_conv1d_is_conv2d_of_one_row(target):
    x, w, b = numbers(2, 4, 11), numbers(6, 2, 3), numbers(6)
    got = value_of(
        lambda *xs: sg.nn.conv1d(*xs, 2, 1, 2, 2), x, w, b, target=target, symbolic=(0,)
    )
    want = correlated(x[:, :, None], w[:, :, None], (1, 2), (0, 1), (0, 1), (1, 2), 2)
    assert_near(got, want[:, :, 0] + b[:, None])


def test_an_image_without_a_batch():
    x, w = numbers(3, 6, 6), numbers(4, 3, 3, 3)
    want = value_of(sg.nn.conv2d, x[None], w)[0]
    assert_near(value_of(sg.nn.conv2d, x, w), want)
    assert value_of(lambda x: sg.nn.max_pool2d(x, 2), x).shape == (3, 3, 3)
    assert value_of(lambda x: sg.nn.avg_pool1d(x, 2), x[0]).shape == (6, 3)


TRANSPOSED = [
    # image, kernels, stride, padding, output_padding, groups, dilation
    ((2, 4, 5, 6), (4, 3, 3, 3), 1, 0, 0, 1, 1),
    ((2, 4, 5, 6), (4, 3, 4, 4), 2, 1, 0, 1, 1),
    ((2, 4, 5, 4), (4, 2, 3, 2), (2, 3), (1, 0), (1, 2), 2, (1, 2)),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_conv_transpose2d_is_the_transpose(case, target):
    image, kernels, stride, padding, more, groups, dilation = case
    y, w = numbers(*image), numbers(*kernels)
    b = numbers(kernels[1] * groups)

    def function(y, w, b):
        return sg.nn.conv_transpose2d(y, w, b, stride, padding, more, groups, dilation)

    got = value_of(function, y, w, b, target=target, symbolic=(0,))
    two = [v if isinstance(v, tuple) else (v, v) for v in case[2:5] + case[6:]]
    sizes = [
        (n - 1) * s + d * (k - 1) + 1 - 2 * p + m
        for n, k, s, p, m, d in zip(image[2:], kernels[2:], *two, strict=True)
    ]
    assert got.shape == (2, kernels[1] * groups, *sizes)
    u = numbers(*got.shape)
    left = correlated(u, w, two[0], two[1], two[1], two[3], groups)
    right = (got - b[:, None, None]) * u
    np.testing.assert_allclose((left * y).sum(), right.sum(), rtol=1e-12)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("stride", "dilation", "padding", "more"),
    [
        (1, 3, 0, 2),
        (1, 3, 1, 2),
        (2, 4, 1, 3),
        (2, 4, 0, 3),
        ((1, 2), (3, 1), 2, (2, 1)),
    ],
)
def test_output_padding_below_the_dilation(stride, dilation, padding, more, target):
    """More of the whole result than the padding leaves, and zeros behind it."""
    y, w, b = numbers(2, 4, 5, 6), numbers(4, 3, 2, 3), numbers(3)

    def function(y, w, b):
        return sg.nn.conv_transpose2d(y, w, b, stride, padding, more, 1, dilation)

    got = value_of(function, y, w, b, target=target, symbolic=(0,))
    whole = value_of(
        lambda y, w: sg.nn.conv_transpose2d(y, w, None, stride, dilation=dilation), y, w
    )
    pairs = [v if isinstance(v, tuple) else (v, v) for v in (padding, more)]
    edges = list(zip(*pairs, strict=True))
    whole = np.pad(whole, ((0, 0), (0, 0), *((0, m) for _, m in edges)))
    sizes = [n - p for n, (p, _) in zip(whole.shape[2:], edges, strict=True)]
    (top, _), (left, _) = edges
    want = whole[:, :, top : sizes[0], left : sizes[1]]
    assert_near(got, want + b[:, None, None])


def test_conv_transpose1d():
    y, w = numbers(2, 4, 5), numbers(4, 3, 3)
    got = value_of(lambda *xs: sg.nn.conv_transpose1d(*xs, stride=2, padding=1), y, w)
    want = value_of(
        lambda *xs: sg.nn.conv_transpose2d(*xs, stride=(1, 2), padding=(0, 1)),
        y[:, :, None],
        w[:, :, None],
    )
    assert_near(got, want[:, :, 0])


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_vmap_over_images_kernels_and_both(axes):
    x, w = numbers(3, 2, 4, 6, 6), numbers(3, 4, 2, 3, 3)
    given = [a if axis == 0 else a[0] for a, axis in zip((x, w), axes, strict=True)]

    def function(x, w):
        return sg.nn.conv2d(x, w, padding=1, groups=2)

    got = value_of(sg.vmap(function, in_axes=axes), *given)
    for k in range(3):
        one = [a[k] if axis == 0 else a for a, axis in zip(given, axes, strict=True)]
        assert_near(got[k], value_of(function, *one))


def test_kernels_of_each_example_on_one_image():
    x, w = numbers(2, 4, 6, 6), numbers(3, 5, 4, 3, 3)
    got = value_of(sg.vmap(sg.nn.conv2d, in_axes=(None, 0)), x, w)
    for k in range(3):
        assert_near(got[k], value_of(sg.nn.conv2d, x, w[k]))


def test_gradients_per_example():
    x, w = numbers(3, 1, 2, 6, 6), numbers(4, 2, 3, 3)

    def loss_gradient(x, w):
        return sg.grad(sg.sum(sg.nn.conv2d(x, w) ** 2), w)

    got = value_of(sg.vmap(loss_gradient, in_axes=(0, None)), x, w)
    for k in range(3):
        assert_near(got[k], value_of(loss_gradient, x[k], w))


def test_derivatives_of_a_small_network():
    w1, w2 = 0.5 * numbers(4, 1, 3, 3), 0.5 * numbers(3, 4, 2, 2)
    x = numbers(2, 1, 7, 7)

    def loss(x, w1, w2):
        h = sg.tanh(sg.nn.conv2d(x, w1, stride=2, padding=1))
        h = sg.nn.max_pool2d(sg.nn.conv2d(h, w2, padding="same"), 2)
        return sg.sum(sg.nn.avg_pool2d(h, 2) ** 2)

    sg.testing.gradcheck(loss, x, w1, w2)
    sg.testing.gradgradcheck(loss, x, w1, w2)
    sg.testing.check_jvp(loss, x, w1, w2)


# ---- layers --------------------------------------------------------------------------


def test_layers_hold_pytorchs_shapes_and_bounds():
    with sg.Graph(seed=0):
        model = sg.nn.Sequential(
            sg.nn.Conv2d(4, 8, 3, groups=2),
            sg.nn.ConvTranspose2d(8, 6, (2, 4), stride=2, groups=2),
            sg.nn.Conv2d(6, 1, 1, bias=False),
        )
        y = model(sg.input("x", ("n", 4, 9, 9)))
    shapes = {name: p.shape for name, p in model.parameters().items()}
    assert shapes == {
        "0.weight": (8, 2, 3, 3), "0.bias": (8,), "1.weight": (8, 3, 2, 4),
        "1.bias": (6,), "2.weight": (1, 6, 1, 1),
    }  # fmt: skip
    assert str(y.type) == "float32[n, 1, 14, 16]"
    for name, bound in (("0.weight", 18**-0.5), ("1.weight", 24**-0.5)):
        values = np.abs(model.parameters()[name].value)
        assert 0.8 * bound < values.max() <= bound


def test_layers_are_their_functions():
    with sg.Graph(seed=1):
        layers = [
            sg.nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=1, groups=2),
            sg.nn.MaxPool1d(2),
            sg.nn.ConvTranspose1d(6, 2, 3, stride=2, output_padding=1),
            sg.nn.AvgPool1d(3, stride=1, padding=1, count_include_pad=False),
            sg.nn.Flatten(),
        ]
        x = sg.input("x", ("n", 4, 17))
        y = sg.nn.Sequential(*layers)(x)
    given = numbers(2, 4, 17, dtype="float32")
    conv, _, back, _, _ = layers
    h = sg.nn.conv1d(x, conv.weight, conv.bias, 2, 1, 1, 2)
    h = sg.nn.max_pool1d(h, 2)
    h = sg.nn.conv_transpose1d(h, back.weight, back.bias, 2, 0, 1)
    h = sg.nn.avg_pool1d(h, 3, 1, 1, count_include_pad=False)
    got, want = sg.compile([y, sg.reshape(h, (x.shape[0], -1))], inputs=[x])(given)
    np.testing.assert_array_equal(got, want)


def test_layers_in_text():
    with sg.Graph():
        layers = [
            sg.nn.Conv2d(3, 8, 3, padding="same", bias=False),
            sg.nn.ConvTranspose2d(8, 3, 2, stride=2),
            sg.nn.MaxPool2d(2, padding=1),
            sg.nn.AvgPool2d(3, 2),
            sg.nn.AdaptiveAvgPool2d(1),
            sg.nn.Flatten(),
            sg.nn.Flatten(0, 1),
        ]
    assert [repr(layer) for layer in layers] == [
        "Conv2d(3, 8, kernel_size=(3, 3), padding='same', bias=False)",
        "ConvTranspose2d(8, 3, kernel_size=(2, 2), stride=2)",
        "MaxPool2d(2, padding=1)",
        "AvgPool2d(3, stride=2)",
        "AdaptiveAvgPool2d(1)",
        "Flatten()",
        "Flatten(0, 1)",
    ]


def test_a_network_of_layers_learns():
    # whether a bright pixel is in the upper or in the lower half
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 8, 256)
    images = 0.1 * rng.standard_normal((256, 1, 8, 8)).astype(np.float32)
    images[np.arange(256), 0, rows, rng.integers(0, 8, 256)] += 3
    labels = (rows >= 4).astype(np.int64)
    with sg.Graph(seed=0):
        x, y = sg.input("x", ("batch", 1, 8, 8)), sg.input("y", ("batch",), "int64")
        model = sg.nn.Sequential(
            sg.nn.Conv2d(1, 8, 3, padding=1), sg.nn.ReLU(), sg.nn.MaxPool2d(2),
            sg.nn.Conv2d(8, 8, 3, padding=1), sg.nn.ReLU(), sg.nn.AvgPool2d(2),
            sg.nn.Flatten(), sg.nn.Linear(32, 2),
        )  # fmt: skip
        logits = model(x)
        loss = sg.nn.cross_entropy(logits, y)
    trainer = sg.Trainer(
        loss, sg.optim.Adam(1e-2), metrics={"accuracy": sg.metrics.accuracy(logits, y)}
    )
    data = {"x": images, "y": labels}
    trainer.fit(data, epochs=8, batch_size=48, seed=0)
    assert trainer.evaluate(data)["accuracy"] >= 0.98


# ---- messages ------------------------------------------------------------------------

X, W = np.ones((2, 4, 8, 8), "f4"), np.ones((6, 4, 3, 3), "f4")
BAD = [
    (lambda: sg.nn.conv2d(X[0, 0], W), "conv2d requires an image of"),
    (lambda: sg.nn.conv2d(X, W[0]), "kernels of 4 axes"),
    (lambda: sg.nn.conv2d(X, W[:, :2]), "got 4 channels, 1 groups and kernels of 2"),
    (lambda: sg.nn.conv2d(X, W[:, :1], groups=4), "filters that 4 groups share"),
    (lambda: sg.nn.conv2d(X, W, np.ones(5, "f4")), "a bias of (6,)"),
    (lambda: sg.nn.conv2d(X, W, stride=0), "a stride of at least 1"),
    (lambda: sg.nn.conv2d(X, W, stride=(1, 2, 3)), "an int or 2 ints as stride"),
    (lambda: sg.nn.conv2d(X, W, padding=-1), "a padding of at least 0"),
    (lambda: sg.nn.conv2d(X, W, padding="some"), "an int or 2 ints as padding"),
    (lambda: sg.nn.conv2d(X, W, None, 2, "same"), "strides of 1 for padding 'same'"),
    (lambda: sg.nn.conv2d(X, W, padding=((1, 1),)), "2 pairs as padding"),
    (lambda: sg.nn.conv2d(X, W, dilation=4), "a window that fits"),
    (lambda: sg.nn.conv2d(X, sg.input("w", (6, 4, "r", 3))), "a size that is known"),
    (
        lambda: sg.nn.conv_transpose2d(
            X, np.ones((4, 2, 3, 3), "f4"), output_padding=1
        ),
        "an output_padding less than the stride or the dilation",
    ),
    (
        lambda: sg.nn.conv_transpose2d(X, np.ones((4, 2, 3, 3), "f4"), padding=9),
        "a padding that leaves pixels",
    ),
    (lambda: sg.nn.max_pool2d(X, 3, padding=2), "at most half the window"),
    (lambda: sg.nn.max_pool2d(X, 9), "a window that fits"),
    (
        lambda: sg.nn.max_pool2d(sg.input("x", (1, 1, "h", 8)), 3, ceil_mode=True),
        "static sizes for ceil_mode",
    ),
    (
        lambda: sg.nn.adaptive_avg_pool2d(sg.input("x", (1, 1, "h", 8)), 3),
        "static sizes for more than one window",
    ),
    (lambda: sg.nn.adaptive_avg_pool2d(X[0, 0], 3), "3 or 4 axes"),
    (lambda: sg.nn.global_avg_pool2d(X[0, 0]), "an image of"),
    (lambda: sg.nn.flatten(X, 2, 1), "axes in order"),
    (lambda: sg.nn.avg_pool2d(sg.input("x", (1, "c", 8, 8)), 3, 1), "known number"),
]


@pytest.mark.parametrize(("make", "text"), BAD)
def test_messages_of_shapes(make, text):
    with pytest.raises(ShapeError) as caught:
        make()
    assert text in str(caught.value)
    assert "test_convolution.py" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sg.nn.conv2d(X.astype("i4"), W.astype("i4")),
        lambda: sg.nn.max_pool2d(X > 0, 2),
        lambda: sg.nn.avg_pool2d(X.astype("i4"), 2),
        lambda: sg.nn.adaptive_avg_pool2d(X.astype("i4"), 2),
    ],
)
def test_messages_of_dtypes(make):
    with pytest.raises(DTypeError, match="cast with .astype"):
        make()


def test_layers_refuse_groups_that_do_not_fit():
    with sg.Graph(), pytest.raises(ShapeError, match="groups share equally"):
        sg.nn.Conv2d(4, 6, 3, groups=3)
