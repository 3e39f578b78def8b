"""MLP 4-16-1, batch 16, mean squared error, SGD: dispatch and nothing else."""

import numpy as np

from benchmarks.workloads import perceptron
from benchmarks.workloads.mean_squared import LOSSES
from benchmarks.workloads.workload import Goal, Workload, normal, trained_bytes


def arrays(scale):
    """A batch of 16 at any scale."""
    rng = np.random.default_rng(0)
    p = perceptron.parameters(rng, [4, 16, 1])
    return p, {"x": normal(rng, 16, 4), "y": normal(rng, 16, 1)}


WORKLOAD = Workload(
    name="mlp-tiny",
    title="MLP 4-16-1, batch 16, MSE, SGD",
    kind="sgd",
    arrays=arrays,
    losses=LOSSES,
    flops=perceptron.flops,
    moved_bytes=trained_bytes,
    rate=0.01,
    goals=(Goal("loop", 1, 6.0), Goal("call", 1, 3.0)),
)
