"""A graph as far as its Schedule, from which memory is planned, without native code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from staticgrad.compiler.compile import optimise
from staticgrad.compiler.kernel_ir.schedule import Schedule
from staticgrad.compiler.lower.lower import lower
from staticgrad.ir.graph import Graph, Update
from staticgrad.ir.node import Input, Tensor


@dataclass(frozen=True, slots=True)
class Lowered:
    """A Schedule and the sizes to plan it for."""

    schedule: Schedule
    sizes: Mapping[str, int]


def lowered(
    inputs: Sequence[Input],
    outputs: Sequence[Tensor],
    updates: Sequence[Update],
    sizes: Mapping[str, int],
) -> Lowered:
    """The Schedule of a training step, as ``compile(mode="train")`` makes it."""
    graph = optimise(Graph.closed(inputs, outputs, updates), "train")
    changing = [(leaf, new) for leaf, new in graph.updates if new is not leaf]
    return Lowered(
        lower(Graph.closed(graph.inputs, graph.outputs, changing)), dict(sizes)
    )
