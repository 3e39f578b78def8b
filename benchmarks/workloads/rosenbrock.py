"""Gradient of Rosenbrock's function of 1e4 variables."""

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
    return {"x": normal(rng, scaled(10_000, scale), scale=1.0)}, {}


def terms(x):
    """``100 (x[i+1] - x[i]^2)^2 + (1 - x[i])^2``, in any library."""
    low, high = x[:-1], x[1:]
    valley, slope = high - low * low, 1 - low
    return 100 * (valley * valley) + slope * slope


def ours(sg, p, d):
    """staticgrad."""
    return sg.sum(terms(p["x"]))


def torch(torch, p, d):
    """PyTorch."""
    return torch.sum(terms(p["x"]))


def jax(jax, p, d):
    """JAX."""
    return jax.numpy.sum(terms(p["x"]))


def pytensor(pt, p, d):
    """PyTensor."""
    return pt.sum(terms(p["x"]))


WORKLOAD = Workload(
    name="rosenbrock",
    title="Rosenbrock 1e4, gradient",
    kind="gradient",
    arrays=arrays,
    losses={"ours": ours, "torch": torch, "jax": jax, "pytensor": pytensor},
    flops=no_flops,
    moved_bytes=lambda p, d: 2.0 * total_bytes(p),
    goals=(Goal("call", 1, 5.0), Goal("call", 2, 5.0)),
)
