"""100 chained sines of 5e6 numbers, the value."""

import numpy as np

from benchmarks.workloads.workload import (
    Goal,
    Workload,
    no_flops,
    normal,
    scaled,
    total_bytes,
)

TIMES = 100


def arrays(scale):
    """The length follows the scale."""
    rng = np.random.default_rng(0)
    return {"x": normal(rng, scaled(5_000_000, scale), scale=1.0)}, {}


def chained(sin, x):
    """``sin(sin(... x))``."""
    for _ in range(TIMES):
        x = sin(x)
    return x


def ours(sg, p, d):
    """staticgrad."""
    return chained(sg.sin, p["x"])


def torch(torch, p, d):
    """PyTorch."""
    return chained(torch.sin, p["x"])


def jax(jax, p, d):
    """JAX."""
    return chained(jax.numpy.sin, p["x"])


def pytensor(pt, p, d):
    """PyTensor."""
    return chained(pt.sin, p["x"])


WORKLOAD = Workload(
    name="sines",
    title="100 chained sin on 5e6, value",
    kind="value",
    arrays=arrays,
    losses={"ours": ours, "torch": torch, "jax": jax, "pytensor": pytensor},
    flops=no_flops,
    moved_bytes=lambda p, d: 2.0 * total_bytes(p),
    goals=(Goal("call", 1, 2.0), Goal("call", 2, 2.0)),
)
