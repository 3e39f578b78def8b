"""MLP 784-256-10, relu, batch 64, cross entropy, with SGD and with Adam."""

from dataclasses import replace

import numpy as np

from benchmarks.workloads import perceptron
from benchmarks.workloads.perceptron import affine, network
from benchmarks.workloads.workload import (
    Goal,
    Workload,
    normal,
    scaled,
    total_bytes,
    trained_bytes,
)


def arrays(scale):
    """All sizes but the classes follow the scale."""
    rng = np.random.default_rng(0)
    inputs, hidden = scaled(784, scale), scaled(256, scale)
    batch = scaled(64, scale)
    p = perceptron.parameters(rng, [inputs, hidden, 10])
    return p, {"x": normal(rng, batch, inputs), "y": rng.integers(0, 10, batch)}


def ours(sg, p, d):
    """staticgrad."""
    return sg.nn.cross_entropy(network(p, d["x"], affine, sg.nn.relu), d["y"])


def torch(torch, p, d):
    """PyTorch."""
    logits = network(p, d["x"], torch.addmm, torch.relu)
    return torch.nn.functional.cross_entropy(logits, d["y"])


def jax(jax, p, d):
    """JAX."""
    np = jax.numpy
    logp = jax.nn.log_softmax(network(p, d["x"], affine, jax.nn.relu))
    return -np.mean(np.take_along_axis(logp, d["y"][:, None], axis=1))


def pytensor(pt, p, d):
    """PyTensor."""
    logits = network(p, d["x"], affine, lambda z: pt.maximum(z, 0))
    logp = pt.special.log_softmax(logits, axis=-1)
    return -pt.mean(logp[pt.arange(d["y"].shape[0]), d["y"]])


def adam_bytes(p, d):
    """Parameters and both moments read and written."""
    return 6.0 * total_bytes(p) + total_bytes(d)


SGD = Workload(
    name="mlp-wide",
    title="MLP 784-256-10, batch 64, cross entropy, SGD",
    kind="sgd",
    arrays=arrays,
    losses={"ours": ours, "torch": torch, "jax": jax, "pytensor": pytensor},
    flops=perceptron.flops,
    moved_bytes=trained_bytes,
    rate=0.01,
    goals=(Goal("best", 1, 1.15), Goal("best", 2, 1.5)),
)
ADAM = replace(
    SGD,
    name="mlp-wide-adam",
    title="MLP 784-256-10, batch 64, cross entropy, Adam",
    kind="adam",
    moved_bytes=adam_bytes,
    rate=1e-4,
    goals=(Goal("best", 1, 1.3),),
)
