"""Initial values, drawn from the seed of the open graph.

Draw number n of a graph comes from NumPy's generator seeded by (seed, n), so adding a
layer at the end leaves the ones before it as they were.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import GraphError
from staticgrad.ir.graph import current_graph
from staticgrad.ir.source import at, here


def uniform(shape: tuple[int, ...], bound: float) -> npt.NDArray[Any]:
    """Uniform numbers in [-bound, bound), of the open graph's default dtype."""
    graph = current_graph()
    if graph is None:
        raise GraphError(
            "layer requires an open Graph, whose seed starts its initial values, got "
            f"none; make it inside `with sg.Graph(seed=0):`{at(here())}"
        )
    draw = graph.shared.get("initial_draws", 0)
    graph.shared["initial_draws"] = draw + 1
    generator = np.random.default_rng([graph.seed % 2**64, draw])
    return generator.uniform(-bound, bound, shape).astype(graph.dtype)
