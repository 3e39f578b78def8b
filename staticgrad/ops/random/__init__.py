"""Random numbers as functions of a key: ``sg.random``.

A key (draws.py) gives the same numbers wherever and however often it is drawn with: use
it once, or make new keys from it with fold_in and split. What is uniform or an integer
is equal on every target, bit by bit; the rest to a few units in the last place.

    >>> import staticgrad as sg
    >>> first, second = sg.random.split(sg.random.key(0))
    >>> x = sg.random.normal(first, (3,), loc=10.0)
    >>> sg.compile(x)().dtype
    dtype('float32')
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass

import numpy as np

from staticgrad.errors import GraphError
from staticgrad.ir.graph import OpenGraph, current_graph
from staticgrad.ir.node import State, Tensor
from staticgrad.ir.source import at, here
from staticgrad.ops.leaves import frozen, state
from staticgrad.ops.named import named
from staticgrad.ops.random.distributions import (
    bernoulli,
    beta,
    categorical,
    dirichlet,
    exponential,
    gamma,
    gumbel,
    laplace,
    logistic,
    normal,
    truncated_normal,
    uniform,
)
from staticgrad.ops.random.draws import fold_in, key, key_words, split
from staticgrad.ops.random.permutations import choice, permutation
from staticgrad.ops.random.poisson_draw import poisson
from staticgrad.ops.random.random_integers import bits, integers, randint
from staticgrad.ops.stateful import by_mode

__all__ = [
    "bernoulli",
    "beta",
    "bits",
    "categorical",
    "choice",
    "dirichlet",
    "exponential",
    "fold_in",
    "gamma",
    "gumbel",
    "inside_loop",
    "integers",
    "key",
    "key_words",
    "laplace",
    "layer_key",
    "logistic",
    "normal",
    "permutation",
    "poisson",
    "randint",
    "split",
    "stream",
    "truncated_normal",
    "uniform",
]


@dataclass(slots=True)
class RandomStream:
    """Record of a Graph's layers that draw: their stream and their number."""

    stream: State | None = None
    layers: int = 0


_POSITIONS: ContextVar[tuple[Tensor, ...]] = ContextVar("positions", default=())


@contextmanager
def inside_loop(position: Tensor) -> Iterator[None]:
    """Context in which layers draw other numbers at every `position` of a loop."""
    token = _POSITIONS.set((*_POSITIONS.get(), position))
    try:
        yield
    finally:
        _POSITIONS.reset(token)


def layer_key() -> Tensor:
    """Return a key for the next layer of the open Graph that draws.

    For noise in a model of one's own: ``h + sg.random.normal(layer_key(), h.shape)``
    adds other numbers in each step of a training.

    The Graph has one State, "random_stream": two words of seed and a step counter.
    Layer number n folds n into it, and the position of the loop in whose body it is
    called, of each loop where they are nested. A step in train mode advances the
    counter, one in eval mode leaves it. GraphError if no Graph is open.
    """
    graph = current_graph()
    if graph is None:
        raise GraphError(
            "layer_key requires an open Graph, got none; build inside "
            f"'with sg.Graph(seed=0):' or draw with sg.random.key(seed){at(here())}"
        )
    drawing = graph.record(RandomStream)
    key = fold_in(stream(graph), drawing.layers)
    drawing.layers += 1
    for position in _POSITIONS.get():
        key = fold_in(key, position)
    return key


def stream(graph: OpenGraph) -> State:
    """The State of `graph`, which is open, from which its layers draw."""
    drawing = graph.record(RandomStream)
    if drawing.stream is None:
        drawing.stream = _new_stream(graph)
    return drawing.stream


def _new_stream(graph: OpenGraph) -> State:
    # in an empty context: the stream belongs to the graph, not to the layer's scope
    name = graph.unique_name("random_stream")
    leaf = Context().run(state, key_words(graph.seed), name)
    graph.add_stored(leaf)
    advanced = named("add", leaf, frozen(np.array([0, 0, 1, 0], np.uint32)))
    graph.add_update(leaf, by_mode(train=advanced, eval=leaf))
    return leaf
