"""Gradient of softmax cross entropy with respect to 1024x1000 logits."""

import numpy as np

from benchmarks.workloads.workload import (
    Goal,
    Workload,
    no_flops,
    normal,
    scaled,
    total_bytes,
)


def arrays(scale):
    """Rows and classes follow the scale."""
    rng = np.random.default_rng(0)
    rows, classes = scaled(1024, scale), scaled(1000, scale)
    labels = rng.integers(0, classes, rows)
    return {"z": normal(rng, rows, classes, scale=1.0)}, {"y": labels}


def ours(sg, p, d):
    """staticgrad."""
    return sg.nn.cross_entropy(p["z"], d["y"])


def torch(torch, p, d):
    """PyTorch."""
    return torch.nn.functional.cross_entropy(p["z"], d["y"])


def jax(jax, p, d):
    """JAX."""
    logp = jax.nn.log_softmax(p["z"])
    picked = jax.numpy.take_along_axis(logp, d["y"][:, None], axis=1)
    return -jax.numpy.mean(picked)


def pytensor(pt, p, d):
    """PyTensor."""
    logp = pt.special.log_softmax(p["z"], axis=-1)
    return -pt.mean(logp[pt.arange(d["y"].shape[0]), d["y"]])


WORKLOAD = Workload(
    name="softmax",
    title="softmax cross entropy 1024x1000, gradient",
    kind="gradient",
    arrays=arrays,
    losses={"ours": ours, "torch": torch, "jax": jax, "pytensor": pytensor},
    flops=no_flops,
    moved_bytes=lambda p, d: 2.0 * total_bytes(p) + total_bytes(d),
    goals=(Goal("call", 1, 1.7), Goal("call", 2, 1.7)),
)
