"""Common parts of the MLP workloads: parameters, the network, its flops.

Weights are (in, out) in every library, so that all do the same products.
"""

from itertools import pairwise

import numpy as np

from benchmarks.workloads.workload import Arrays, normal


def parameters(rng: np.random.Generator, sizes: list[int]) -> Arrays:
    """Weights ``w0 b0 w1 b1 ...``."""
    arrays = {}
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        arrays[f"w{layer}"] = normal(rng, inputs, outputs)
        arrays[f"b{layer}"] = normal(rng, outputs)
    return arrays


def network(p, x, affine, activation):
    """``affine(b, x, w)`` and `activation` between: the last layer is linear."""
    layers = len(p) // 2
    for layer in range(layers):
        x = affine(p[f"b{layer}"], x, p[f"w{layer}"])
        if layer < layers - 1:
            x = activation(x)
    return x


def affine(b, x, w):
    """``x @ w + b``."""
    return x @ w + b


def flops(p: Arrays, d: Arrays) -> float:
    """Forward, weight gradients, and input gradients of all layers but the first."""
    weights = [array.size for name, array in p.items() if name.startswith("w")]
    rows = len(d["x"])
    return 2.0 * rows * (3 * sum(weights) - weights[0])
