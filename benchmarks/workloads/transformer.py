"""A transformer block: batch 8, 64 tokens of 64 numbers, 4 heads, mean squared error.

Layer norm, attention, and an MLP of 4 times the width with gelu (tanh form), each with
a residual connection, the norms first; SGD. Weights are (in, out) in every library.
"""

import numpy as np

from benchmarks.workloads.workload import Goal, Workload, normal, scaled, trained_bytes

HEADS = 4
EPSILON = 1e-5


def arrays(scale):
    """Batch and tokens follow the scale."""
    rng = np.random.default_rng(0)
    width, batch, tokens = 64, scaled(8, scale), scaled(64, scale)
    parameters = {
        "wqkv": normal(rng, width, 3 * width),
        "bqkv": normal(rng, 3 * width),
        "wo": normal(rng, width, width),
        "bo": normal(rng, width),
        "w1": normal(rng, width, 4 * width),
        "b1": normal(rng, 4 * width),
        "w2": normal(rng, 4 * width, width),
        "b2": normal(rng, width),
        "g1": np.ones(width, np.float32),
        "c1": np.zeros(width, np.float32),
        "g2": np.ones(width, np.float32),
        "c2": np.zeros(width, np.float32),
    }
    shape = batch, tokens, width
    data = {"x": normal(rng, *shape, scale=1.0), "y": normal(rng, *shape, scale=1.0)}
    return parameters, data


def block(p, x, norm, attention, gelu):
    """The block over the functions of a library."""
    h = norm(x, p["g1"], p["c1"]) @ p["wqkv"] + p["bqkv"]
    x = x + (attention(h) @ p["wo"] + p["bo"])
    h = gelu(norm(x, p["g2"], p["c2"]) @ p["w1"] + p["b1"])
    return x + (h @ p["w2"] + p["b2"])


def ours(sg, p, d):
    """staticgrad."""

    def norm(x, gain, bias):
        centred = x - sg.mean(x, axis=-1, keepdims=True)
        variance = sg.mean(centred * centred, axis=-1, keepdims=True)
        return centred / sg.sqrt(variance + EPSILON) * gain + bias

    def attention(h):
        batch, tokens, width = h.shape
        parts = sg.reshape(h, (batch, tokens, 3, HEADS, width // (3 * HEADS)))
        q, k, v = (sg.transpose(parts[:, :, n], (0, 2, 1, 3)) for n in range(3))
        scores = q @ sg.swapaxes(k, -1, -2) * (width // (3 * HEADS)) ** -0.5
        mixed = sg.softmax(scores, axis=-1) @ v
        return sg.reshape(
            sg.transpose(mixed, (0, 2, 1, 3)), (batch, tokens, width // 3)
        )

    found = block(p, d["x"], norm, attention, lambda x: sg.gelu(x, approximate="tanh"))
    return sg.mean((found - d["y"]) ** 2)


def torch(torch, p, d):
    """PyTorch, with its own layer norm and attention."""
    functional = torch.nn.functional

    def norm(x, gain, bias):
        return functional.layer_norm(x, x.shape[-1:], gain, bias, EPSILON)

    def attention(h):
        batch, tokens, width = h.shape
        parts = h.view(batch, tokens, 3, HEADS, width // (3 * HEADS))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).reshape(batch, tokens, width // 3)

    def gelu(x):
        return functional.gelu(x, approximate="tanh")

    found = block(p, d["x"], norm, attention, gelu)
    return functional.mse_loss(found, d["y"])


def _by_numpy(np_, softmax, gelu, p, d, shape):
    """For libraries with NumPy's names."""

    def norm(x, gain, bias):
        centred = x - np_.mean(x, axis=-1, keepdims=True)
        variance = np_.mean(centred * centred, axis=-1, keepdims=True)
        return centred / np_.sqrt(variance + np.float32(EPSILON)) * gain + bias

    def attention(h):
        batch, tokens, width = shape
        size = width // HEADS
        parts = h.reshape((batch, tokens, 3, HEADS, size))
        q, k, v = (parts[:, :, n].transpose((0, 2, 1, 3)) for n in range(3))
        scores = np_.matmul(q, k.transpose((0, 1, 3, 2)))
        mixed = np_.matmul(softmax(scores * np.float32(1 / np.sqrt(size))), v)
        return mixed.transpose((0, 2, 1, 3)).reshape((batch, tokens, width))

    found = block(p, d["x"], norm, attention, gelu)
    return np_.mean((found - d["y"]) ** 2)


def jax(jax, p, d):
    """JAX."""
    functions = jax.numpy, jax.nn.softmax, jax.nn.gelu
    return _by_numpy(*functions, p, d, d["x"].shape)


def pytensor(pt, p, d):
    """PyTensor."""
    root = np.float32(np.sqrt(2 / np.pi))

    def gelu(x):
        inner = root * (x + np.float32(0.044715) * x * x * x)
        return np.float32(0.5) * x * (1 + pt.tanh(inner))

    def softmax(x):
        return pt.special.softmax(x, axis=-1)

    return _by_numpy(pt, softmax, gelu, p, d, d["x"].type.shape)


def flops(p, d):
    """Products forward, and twice as much backward; the input needs no gradient."""
    batch, tokens, width = d["x"].shape
    rows = batch * tokens
    weights = sum(p[name].size for name in ("wqkv", "wo", "w1", "w2"))
    dense = 2.0 * rows * 3 * weights
    return dense + 3 * 2 * 2.0 * batch * tokens * tokens * width


WORKLOAD = Workload(
    name="transformer",
    title="transformer block b8 t64 d64 h4, MSE, SGD",
    kind="sgd",
    arrays=arrays,
    losses={"ours": ours, "torch": torch, "jax": jax, "pytensor": pytensor},
    flops=flops,
    moved_bytes=trained_bytes,
    rate=0.01,
    goals=(Goal("best", 1, 1.8),),
)
