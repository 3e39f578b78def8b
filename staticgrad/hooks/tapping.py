"""Instrumentation of graphs with taps: a callback or a ring buffer for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from staticgrad.compiler.compile import optimise
from staticgrad.compiler.runtime.taps import Ring, Tap, Tapping
from staticgrad.custom.callback_ops import attributes, call_op, python_function
from staticgrad.errors import GraphError
from staticgrad.hooks.tapping_in_bodies import Thread, place_of, threaded
from staticgrad.ir.graph import Graph, apply, deriving, topological
from staticgrad.ir.node import Node, State, Tensor, static_shape
from staticgrad.ir.op import Leaf
from staticgrad.ir.source import at, here
from staticgrad.ir.types import INT64, TensorType
from staticgrad.ops.leaves import frozen, state
from staticgrad.ops.movement.indexed_updates import At
from staticgrad.ops.named import named

DONE = TensorType((), INT64)


def ring_of(tensor: Tensor, length: Any) -> Ring:
    """Return an empty ring buffer for `length` values of `tensor`."""
    shape = static_shape(tensor.shape)
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise GraphError(
            f"tap requires record= as a number of values, got {length!r}{at(here())}"
        )
    if shape is None:
        raise GraphError(
            f"tap requires a static shape to record, got {tensor.type}; record a norm "
            f"or a mean of it, or give a callback{at(here())}"
        )
    empty = np.zeros((length, *shape), tensor.dtype)
    values, count = state(empty, "tap"), state(np.int64(0), "tap_count")
    assert isinstance(values, State)
    assert isinstance(count, State)
    return Ring(values, count)


def tapping(
    graph: Graph, mode: Literal["train", "eval"], make: Callable[[Sequence[Tap]], Any]
) -> Tapping:
    """Return the Tapping of an executable of `graph`; ``make(taps)`` compiles it."""
    shared, inside = partial(is_shared, graph, mode), partial(is_inside, graph)
    return Tapping(make, shared, inside, ring_of)


def tapped(graph: Graph, taps: Sequence[Tap]) -> Graph:
    """Add `taps` to `graph`: outputs for callbacks, updates for ring buffers.

    The further outputs come last, one for each callback.
    """
    places = [place_of(graph, tap.tensor) for tap in taps]
    moved: dict[Tensor, Tensor] = {}
    with deriving() as derive_from:
        for tap, place in zip(taps, places, strict=True):
            derive_from(tap.tensor.node)
            start, step = _thread(tap)
            if place is None:
                kept = step(start, _moved(tap.tensor, moved))
            else:
                there = place_of(graph, _moved(place.tensor, moved))
                assert there is not None
                graph, kept, now = threaded(graph, there, start, step)
                moved |= now
            graph = _with_kept(graph, tap, kept)
    return graph


def _with_kept(graph: Graph, tap: Tap, kept: Sequence[Tensor]) -> Graph:
    outputs, updates = graph.outputs, graph.updates
    if tap.ring is None:
        return Graph.closed(graph.inputs, (*outputs, *kept), updates)
    leaves = (tap.ring.values, tap.ring.count)
    new = zip(leaves, kept, strict=True)
    return Graph.closed(graph.inputs, outputs, (*updates, *new))


def _moved(tensor: Tensor, places: Mapping[Tensor, Tensor]) -> Tensor:
    while tensor in places:
        tensor = places[tensor]
    return tensor


def is_inside(graph: Graph, tensor: Tensor) -> bool:
    """Whether a branch or a loop of `graph` computes `tensor`."""
    return place_of(graph, tensor) is not None


def _thread(tap: Tap) -> tuple[list[Tensor], Thread]:
    """Return the initial carries of a tap and the function that updates them."""
    if tap.ring is not None:
        return [tap.ring.values, tap.ring.count], _recorded
    called = _called(tap)
    return [frozen(np.asarray(0, INT64))], lambda kept, x: [
        named("add", kept[0], called(x))
    ]


def _called(tap: Tap) -> Callable[[Tensor], Tensor]:
    """Return an int64 that depends on the call of the callback."""

    def look(value: Any) -> Any:
        tap.call(value)
        return np.int64(1)

    function = python_function("tap", look, [tap.tensor.type], [DONE])
    op = call_op("tap", 1, None)
    return lambda x: apply(op, x, **attributes(function, [DONE]))


def _recorded(kept: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    values, count = kept
    place = count % values.shape[0]
    return [At(values)[place].set(x), count + frozen(np.asarray(1, INT64))]


def is_shared(graph: Graph, mode: Literal["train", "eval"], tensor: Tensor) -> bool:
    """Whether `graph` computes `tensor`, or something that it depends on.

    Equal computations are one: a gradient that was derived once more is found.
    """
    reached = _computed(graph.roots)
    if tensor in {t for node in topological(graph.roots) for t in node.outputs}:
        return True
    if _computed([tensor]) & reached:
        return True
    both = Graph.closed(graph.inputs, (*graph.outputs, tensor), graph.updates)
    optimised = optimise(both, mode)
    *others, found = optimised.outputs
    news = [new for _, new in optimised.updates]
    return bool(_computed([found]) & _computed((*others, *news)))


def _computed(roots: Sequence[Tensor]) -> set[Node]:
    """Return the nodes that `roots` reach, without leaves."""
    return {n for n in topological(roots) if not isinstance(n.op.code, Leaf)}
