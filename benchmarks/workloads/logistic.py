"""Logistic regression of 1,000 rows by 20 features, SGD."""

import numpy as np

from benchmarks.workloads.workload import Goal, Workload, normal, scaled, trained_bytes


def arrays(scale):
    """Rows follow the scale."""
    rng = np.random.default_rng(0)
    rows = scaled(1000, scale)
    x = normal(rng, rows, 20, scale=1.0)
    y = (rng.random(rows) < 0.5).astype(np.float32)
    return {"w": normal(rng, 20), "b": normal(rng, 1)}, {"x": x, "y": y}


def ours(sg, p, d):
    """staticgrad."""
    z = d["x"] @ p["w"] + p["b"]
    return sg.mean(sg.softplus(z) - d["y"] * z)


def torch(torch, p, d):
    """PyTorch."""
    z = d["x"] @ p["w"] + p["b"]
    return torch.nn.functional.binary_cross_entropy_with_logits(z, d["y"])


def jax(jax, p, d):
    """JAX."""
    z = d["x"] @ p["w"] + p["b"]
    return jax.numpy.mean(jax.nn.softplus(z) - d["y"] * z)


def pytensor(pt, p, d):
    """PyTensor."""
    z = d["x"] @ p["w"] + p["b"]
    return pt.mean(pt.softplus(z) - d["y"] * z)


WORKLOAD = Workload(
    name="logistic",
    title="logistic regression 1000x20, SGD",
    kind="sgd",
    arrays=arrays,
    losses={"ours": ours, "torch": torch, "jax": jax, "pytensor": pytensor},
    flops=lambda p, d: 4.0 * d["x"].size,
    moved_bytes=trained_bytes,
    rate=0.01,
    goals=(Goal("loop", 1, 2.0), Goal("call", 1, 2.0)),
)
