"""Initial values, drawn from the seed of the open graph.

Draw number n of a graph comes from NumPy's generator seeded by (seed, n), so adding a
layer at the end leaves the ones before it as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import GraphError
from staticgrad.ir.graph import current_graph, default_dtype
from staticgrad.ir.source import at, here
from staticgrad.ir.types import DType


def uniform(shape: tuple[int, ...], bound: float) -> npt.NDArray[Any]:
    """Draw uniform numbers in [-bound, bound), of the graph's default dtype."""
    generator, dtype = _generator()
    return generator.uniform(-bound, bound, shape).astype(dtype)


def normal(shape: tuple[int, ...], scale: float = 1.0) -> npt.NDArray[Any]:
    """Draw normal numbers of standard deviation `scale`, of the default dtype."""
    generator, dtype = _generator()
    return generator.normal(0, scale, shape).astype(dtype)


def filled(shape: tuple[int, ...], value: float) -> npt.NDArray[Any]:
    """Return an array of one value, of the open graph's default dtype, if there is one.

    Nothing is drawn.
    """
    return np.full(shape, value, default_dtype())


@dataclass(slots=True)
class _Draws:
    """Number of initial values that a Graph has drawn."""

    count: int = 0


def _generator() -> tuple[np.random.Generator, DType]:
    graph = current_graph()
    if graph is None:
        raise GraphError(
            "layer requires an open Graph, whose seed starts its initial values, got "
            f"none; make it inside `with sg.Graph(seed=0):`{at(here())}"
        )
    draws = graph.record(_Draws)
    generator = np.random.default_rng([graph.seed % 2**64, draws.count])
    draws.count += 1
    return generator, graph.dtype
