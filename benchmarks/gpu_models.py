"""Six small models that the checks of the cuda target train, with and without a GPU.

Each function makes, in the Graph that is open, (loss, metrics, optimiser) of inputs
``x`` (batch, 6) and, but for the last, labels ``y`` (batch,) of three classes.
"""

import numpy as np

import staticgrad as sg


def classifier():
    """Dropout, labels, a fused cross entropy with the gradient of a bias."""
    x = sg.input("x", ("batch", 6))
    y = sg.input("y", ("batch",), dtype="int64")
    model = sg.nn.Sequential(
        sg.nn.Linear(6, 8), sg.nn.ReLU(), sg.nn.Dropout(0.2), sg.nn.Linear(8, 3)
    )
    logits = model(x)
    loss = sg.nn.cross_entropy(logits, y)
    return loss, {"accuracy": sg.metrics.accuracy(logits, y)}, sg.optim.Adam(1e-2)


def layer_norm():
    """Rows normalised by hand; means and variances along the features."""
    x = sg.input("x", ("batch", 6))
    y = sg.input("y", ("batch",), dtype="int64")
    w = sg.parameter(np.linspace(-1, 1, 18, dtype="float32").reshape(6, 3), name="w")
    scale = sg.parameter(np.ones(6, "float32"), name="scale")
    centred = x - sg.mean(x, axis=1, keepdims=True)
    size = sg.sqrt(sg.mean(centred * centred, axis=1, keepdims=True) + 1e-5)
    loss = sg.nn.cross_entropy(sg.tanh(centred / size * scale) @ w, y)
    return loss, {}, sg.optim.SGD(0.1, momentum=0.9)


def embedding():
    """A gather whose gradient is a scatter with equal indices."""
    x = sg.input("x", ("batch", 6))
    y = sg.input("y", ("batch",), dtype="int64")
    table = sg.parameter(np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4), "table")
    w = sg.parameter(np.linspace(1, -1, 24, dtype="float32").reshape(6, 4), name="w")
    distance = sg.take(table, y, axis=0) - sg.softmax(x @ w, axis=1)
    return sg.mean(distance * distance), {}, sg.optim.SGD(0.5)


def attention():
    """Batched products, softmax over rows, time beside the batch."""
    x = sg.input("x", ("batch", 6))
    y = sg.input("y", ("batch",), dtype="int64")
    tokens = sg.reshape(x, (-1, 3, 2))
    rng = np.random.default_rng(0)
    q, k, v = (
        sg.parameter(rng.normal(size=(2, 4)).astype("float32"), name=name)
        for name in "qkv"
    )
    scores = (tokens @ q) @ sg.swapaxes(tokens @ k, 1, 2) / 2.0
    mixed = sg.softmax(scores, axis=-1) @ (tokens @ v)
    logits = sg.sum(mixed, axis=1)[:, :3]
    return sg.nn.cross_entropy(logits, y), {}, sg.optim.Adam(1e-2)


def regression():
    """float64, one parameter, a scan."""
    x = sg.input("x", ("batch", 6), dtype="float64")
    w = sg.parameter(np.full(6, 0.5), name="w")
    path = sg.cumsum(x * w, axis=1)
    return sg.mean((path - sg.cumsum(x, axis=1)) ** 2), {}, sg.optim.SGD(0.02)


def convolutional():
    """A convolution with margins, a pool, and a mean over places."""
    x = sg.input("x", ("batch", 6))
    y = sg.input("y", ("batch",), dtype="int64")
    rng = np.random.default_rng(0)
    w = sg.parameter(rng.normal(size=(4, 1, 2, 2)).astype("float32"), name="w")
    v = sg.parameter(rng.normal(size=(4, 3)).astype("float32"), name="v")
    image = sg.reshape(x, (-1, 1, 2, 3))
    made = sg.relu(sg.nn.conv2d(image, w, padding=1))
    pooled = sg.mean(sg.nn.max_pool2d(made, 2, stride=1), axis=(2, 3))
    return sg.nn.cross_entropy(pooled @ v, y), {}, sg.optim.Adam(1e-2)


MODELS = [classifier, layer_norm, embedding, attention, convolutional, regression]
