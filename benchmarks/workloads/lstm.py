"""LSTM of 64 units over 50 steps of a batch of 32, SGD on the sum of squares."""

from functools import cache

import numpy as np

from benchmarks.workloads.workload import Goal, Workload, normal, scaled, trained_bytes

BATCH, WIDTH = 32, 64


def arrays(scale):
    """The number of steps follows the scale. Names and shapes are PyTorch's."""
    rng = np.random.default_rng(0)
    gates = 4 * WIDTH
    parameters = {
        "weight_ih_l0": normal(rng, gates, WIDTH),
        "weight_hh_l0": normal(rng, gates, WIDTH),
        "bias_ih_l0": normal(rng, gates),
        "bias_hh_l0": normal(rng, gates),
    }
    return parameters, {"x": normal(rng, scaled(50, scale), BATCH, WIDTH, scale=1.0)}


def step(tanh, sigmoid, state, row, weight):
    """One step on projected inputs, in any library."""
    h, c = state
    gates = row + h @ weight
    i, f, g, o = (gates[:, k * WIDTH : (k + 1) * WIDTH] for k in range(4))
    new = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(new), new


def projected(p, d):
    """The inputs of all steps in one product."""
    return d["x"] @ p["weight_ih_l0"].T + (p["bias_ih_l0"] + p["bias_hh_l0"])


def scanned(scan, tanh, sigmoid, start, p, d):
    """Over the functions of a library."""
    weight = p["weight_hh_l0"].T

    def body(state, row):
        new = step(tanh, sigmoid, state, row, weight)
        return new, new[0]

    _, ys = scan(body, (start, start), projected(p, d))
    return (ys * ys).sum() / BATCH


def ours(sg, p, d):
    """staticgrad."""
    start = sg.zeros((BATCH, WIDTH))
    return scanned(sg.scan, sg.tanh, sg.sigmoid, start, p, d)


def jax(jax, p, d):
    """JAX."""
    start = jax.numpy.zeros((BATCH, WIDTH), "float32")
    functions = jax.lax.scan, jax.numpy.tanh, jax.nn.sigmoid
    return scanned(*functions, start, p, d)


@cache
def module(torch):
    """PyTorch's own layer."""
    return torch.nn.LSTM(WIDTH, WIDTH)


def torch(torch, p, d):
    """PyTorch."""
    ys, _ = torch.func.functional_call(module(torch), p, (d["x"],))
    return torch.sum(ys * ys) / BATCH


def flops(p, d):
    """Two products of a step, each with two more on the way back."""
    steps = d["x"].shape[0]
    return 3 * 2 * 2.0 * steps * BATCH * WIDTH * 4 * WIDTH


WORKLOAD = Workload(
    name="lstm",
    title="LSTM T50 b32 h64, SGD",
    kind="sgd",
    arrays=arrays,
    losses={"ours": ours, "torch": torch, "jax": jax},
    flops=flops,
    moved_bytes=trained_bytes,
    rate=0.01,
    goals=(Goal("best", 1, 1.7),),
)
