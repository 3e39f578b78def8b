"""Gradient of an elementwise sum over 1e6 pairs."""

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
    """The length follows the scale."""
    rng = np.random.default_rng(0)
    length = scaled(1_000_000, scale)
    return {"x": normal(rng, length), "y": normal(rng, length)}, {}


def ours(sg, p, d):
    """staticgrad."""
    x, y = p["x"], p["y"]
    first = sg.tanh(x * y + 0.5) * sg.sigmoid(x)
    return sg.sum(first + sg.exp(-x * x) * sg.log1p(y * y))


def torch(torch, p, d):
    """PyTorch."""
    x, y = p["x"], p["y"]
    first = torch.tanh(x * y + 0.5) * torch.sigmoid(x)
    return torch.sum(first + torch.exp(-x * x) * torch.log1p(y * y))


def jax(jax, p, d):
    """JAX."""
    x, y, np = p["x"], p["y"], jax.numpy
    first = np.tanh(x * y + 0.5) * jax.nn.sigmoid(x)
    return np.sum(first + np.exp(-x * x) * np.log1p(y * y))


def pytensor(pt, p, d):
    """PyTensor; 0.5 as float32, or else it computes in float64."""
    x, y, half = p["x"], p["y"], np.float32(0.5)
    first = pt.tanh(x * y + half) * pt.sigmoid(x)
    return pt.sum(first + pt.exp(-x * x) * pt.log1p(y * y))


WORKLOAD = Workload(
    name="elementwise",
    title="sum(tanh(xy+0.5) sigmoid(x) + exp(-x^2) log1p(y^2)), 1e6, gradient",
    kind="gradient",
    arrays=arrays,
    losses={"ours": ours, "torch": torch, "jax": jax, "pytensor": pytensor},
    flops=no_flops,
    moved_bytes=lambda p, d: 2.0 * total_bytes(p),
    goals=(Goal("call", 1, 2.3), Goal("call", 2, 2.3)),
)
