"""MLP of 20 layers of 64, tanh, batch 32, mean squared error, SGD: small products."""

import numpy as np

from benchmarks.workloads import perceptron
from benchmarks.workloads.mean_squared import LOSSES
from benchmarks.workloads.workload import Goal, Workload, normal, scaled, trained_bytes


def arrays(scale):
    """The number of layers follows the scale."""
    rng = np.random.default_rng(0)
    p = perceptron.parameters(rng, [64] * (scaled(20, scale) + 1))
    return p, {"x": normal(rng, 32, 64), "y": normal(rng, 32, 64)}


WORKLOAD = Workload(
    name="mlp-deep",
    title="MLP 20x64 tanh, batch 32, MSE, SGD",
    kind="sgd",
    arrays=arrays,
    losses=LOSSES,
    flops=perceptron.flops,
    moved_bytes=trained_bytes,
    rate=0.01,
    goals=(Goal("best", 1, 1.7),),
)
