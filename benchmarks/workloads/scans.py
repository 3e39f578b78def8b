"""Gradients through long loops of small steps: 60 scalar carries, the logistic map."""

import numpy as np

from benchmarks.workloads.workload import (
    Goal,
    Workload,
    no_flops,
    normal,
    scaled,
    total_bytes,
)

CARRIES, STEPS, MAPS = 60, 614, 1000


def carries_arrays(scale):
    """The numbers of steps and of carries follow the scale."""
    rng = np.random.default_rng(0)
    factor = np.full(1, 0.9, np.float32)
    start = 0.1 * np.arange(scaled(CARRIES, scale), dtype=np.float32)
    parameters = {"factor": factor, "x": normal(rng, scaled(STEPS, scale), scale=1.0)}
    return parameters, {"start": start}


def coupled(tanh, state, row, factor):
    """Every scalar carry follows the next one, in any library."""
    count = len(state)
    return tuple(
        state[k] * factor + 0.1 * tanh(state[(k + 1) % count]) * row
        for k in range(count)
    )


def carries(scan, tanh, p, d):
    """Over the functions of a library."""
    factor = p["factor"][0]

    def body(state, row):
        return coupled(tanh, state, row, factor), None

    start = tuple(d["start"][k] for k in range(d["start"].shape[0]))
    last, _ = scan(body, start, p["x"])
    return sum(c * c for c in last)


def carries_ours(sg, p, d):
    """staticgrad."""
    return carries(sg.scan, sg.tanh, p, d)


def carries_jax(jax, p, d):
    """JAX."""
    return carries(jax.lax.scan, jax.numpy.tanh, p, d)


def map_arrays(scale):
    """A rate below 3, where the map settles."""
    return {"rate": np.full(1, 2.9, np.float32), "x": np.full(1, 0.3, np.float32)}, {}


def map_ours(sg, p, d):
    """staticgrad."""
    rate = p["rate"][0]
    return sg.fori_loop(0, MAPS, lambda _, x: rate * x * (1 - x), p["x"][0])


def map_jax(jax, p, d):
    """JAX, as a scan: fori_loop has no reverse mode for tensors as bounds."""
    rate = p["rate"][0]

    def body(x, _):
        return rate * x * (1 - x), None

    return jax.lax.scan(body, p["x"][0], None, length=MAPS)[0]


CARRIED = Workload(
    name="carries",
    title="scan of 614 steps, 60 scalar carries, gradient",
    kind="gradient",
    arrays=carries_arrays,
    losses={"ours": carries_ours, "jax": carries_jax},
    flops=no_flops,
    moved_bytes=lambda p, d: 2.0 * total_bytes(p),
    goals=(Goal("call", 1, 10.0),),
)

MAPPED = Workload(
    name="logistic_map",
    title="logistic map, 1,000 steps, gradient",
    kind="gradient",
    arrays=map_arrays,
    losses={"ours": map_ours, "jax": map_jax},
    flops=no_flops,
    moved_bytes=lambda p, d: 2.0 * total_bytes(p),
    goals=(Goal("best", 1, 5.0),),
)
