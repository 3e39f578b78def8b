"""The passes, in order, each with its reason, and the verifier between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Literal

from staticgrad.compiler.passes.cancel_moves import cancel_moves
from staticgrad.compiler.passes.channels_last import channels_last
from staticgrad.compiler.passes.cse import merge_common
from staticgrad.compiler.passes.cut_loops import cut_loops
from staticgrad.compiler.passes.cut_sums import cut_sums
from staticgrad.compiler.passes.drop_markers import drop_markers
from staticgrad.compiler.passes.fold_constants import fold_constants
from staticgrad.compiler.passes.fold_updates import fold_updates
from staticgrad.compiler.passes.hoist import hoist
from staticgrad.compiler.passes.merge_loops import merge_loops
from staticgrad.compiler.passes.pick import pick
from staticgrad.compiler.passes.resolve_mode import resolve_mode
from staticgrad.compiler.passes.scale_seeds import scale_seeds
from staticgrad.compiler.passes.scatter_into import scatter_into
from staticgrad.compiler.passes.shift_stacks import shift_stacks
from staticgrad.compiler.passes.simplify import simplify
from staticgrad.compiler.passes.sink_into_loops import sink_into_loops
from staticgrad.compiler.passes.sink_slices import sink_slices
from staticgrad.compiler.passes.stabilise import stabilise
from staticgrad.compiler.passes.trim_bodies import trim_bodies
from staticgrad.compiler.passes.unroll_windows import taps
from staticgrad.compiler.passes.widen import widen
from staticgrad.errors import CompilerBug
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Node
from staticgrad.ir.verify_graph import verify_graph

Pass = Callable[[Graph], Graph]
Observer = Callable[[str, Graph], None]

PASSES: tuple[tuple[Pass, str], ...] = (
    (drop_markers, "gradients are made by now; markers hide patterns"),
    (channels_last, "transposes of images meet, so that the next pass cancels them"),
    (cancel_moves, "moves hide patterns from every later rule"),
    (fold_constants, "rules look for numbers"),
    (simplify, "fewer nodes for all that follows"),
    (stabilise, "after folding, which shows the 1 of log(1 + x)"),
    (drop_markers, "stabilise marks the maxima that it subtracts"),
    (pick, "after differentiation, which would make a scatter of a load"),
    (taps, "what it makes is simplified and fused like the rest"),
    (cancel_moves, "rules above leave reshapes and broadcasts"),
    (cut_sums, "after rules that merge pads and sums; it makes slices"),
    (sink_into_loops, "ahead of the next: steps often slice what they read"),
    (sink_slices, "what is sliced need not be stored"),
    (cancel_moves, "slices of slices and of broadcasts"),
    (hoist, "what it moves is simplified where it goes"),
    (cancel_moves, "weights that are transposed inside and outside"),
    (merge_common, "x + x is one of x only if both are one node"),
    (simplify, "forms that the rules above uncovered"),
    (fold_constants, "numbers that the rules above made"),
    (sink_into_loops, "sums of what is equal are cheap products by now"),
    (shift_stacks, "results of bodies are one tensor by now; the next drops stacks"),
    (trim_bodies, "nodes above are equal by now, and more of those below will be"),
    (merge_common, "equal nodes have one form by now"),
    (widen, "no rule sees its casts; merged ones would live from forward to backward"),
    (scatter_into, "a late one: it counts who needs a gradient"),
    (fold_updates, "late: it counts who needs a gradient"),
    (scale_seeds, "behind the one that scales cotangents; it counts who needs them"),
    (cut_loops, "no rule has to see through the loops that it makes for a GPU"),
)


def optimise(
    graph: Graph,
    mode: Literal["train", "eval"],
    observe: Observer | None = None,
    instead: Mapping[Pass, Pass] = MappingProxyType({}),
) -> Graph:
    """`graph` for one mode, with less work and stable forms; the numbers stay.

    `instead` names passes that a target wants in place of others.

    ``observe(name, graph)`` is called after each pass, with the name of its function.
    Raises CompilerBug where a pass breaks a rule of verify_graph or changes a type.
    """
    known: set[Node] = set()
    verify_graph(graph, known)
    passes: list[tuple[str, Pass]] = [
        ("merge_loops", merge_loops),
        ("resolve_mode", partial(resolve_mode, mode=mode)),
        *((f.__name__, instead.get(f, f)) for f, _ in PASSES),
    ]
    idle: set[Pass] = set()  # what has left this very graph as it is, and would again
    for name, function in passes:
        after = graph if function in idle else function(graph)
        idle.add(function)
        if after is not graph:
            verify_graph(after, known)
            _check_types_kept(name, graph, after)
            idle.clear()
        graph = after
        if observe is not None:
            observe(name, graph)
    return graph


def _check_types_kept(name: str, before: Graph, after: Graph) -> None:
    for old, new in zip(before.roots, after.roots, strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise CompilerBug(
                f"{name} requires the types of outputs kept, got {new.type} for"
                f" {old.type}"
            )
    if [t.node for t in before.inputs] != [t.node for t in after.inputs]:
        raise CompilerBug(f"{name} requires the inputs kept")
