"""Dead code in bodies: ``loop(x, x: f(x), f(x), g(x)) = loop(x: f(x))``.

Equal results are merged, and unused ones are removed with the carries and other inputs
that only they need. Of inputs that stand for one tensor outside one is left.
Derivatives make such bodies: what a cotangent is multiplied by for each of two
gradients is stacked for both, and weights that are transposed ahead of a loop leave the
captures that they are made of behind.

A repetition keeps its carries, all of which its condition may look at; a replay stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from staticgrad.compiler.passes.body_parts import (
    Parts,
    changed_controls,
    made,
    outputs_of,
    parts_of,
    with_inputs_for,
)
from staticgrad.ir.graph import Graph, rebuilt, topological
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Control


def trim_bodies(graph: Graph) -> Graph:
    """Trim ``loop(x, x: f(x), f(x), g(x)) = loop(x: f(x))`` if nothing reads g(x)."""
    return changed_controls(graph, _trimmed)


def _trimmed(
    old: Node, node: Node, uses: Mapping[Tensor, int]
) -> Sequence[Tensor | None] | None:
    whole = parts_of(_with_one_input_for_each(node))
    less = _needed(whole, [t in uses for t in old.outputs])
    if _size(less) == _size(parts_of(node)):
        return None
    return outputs_of(whole, less, made(less, {}))


def _size(parts: Parts) -> tuple[int, ...]:
    return (
        len(parts.carries), len(parts.slices), len(parts.captures), len(parts.results)
    )  # fmt: skip


def _with_one_input_for_each(node: Node) -> Node:
    """Merge inputs of the bodies of `node` that stand for one tensor."""
    parts = parts_of(node)
    twins: dict[Tensor, Tensor] = {}
    for own in (parts.slices, parts.captures):
        first: dict[Tensor, Tensor] = {}
        for inner, outside in own.items():
            if first.setdefault(outside, inner) is not inner:
                twins[inner] = first[outside]
    if not twins:
        return node
    graphs = tuple(with_inputs_for(graph, twins) for graph in node.graphs)
    return rebuilt(node, node.inputs, graphs)


def _needed(parts: Parts, read: Sequence[bool]) -> Parts:
    """Return the parts on which the read outputs depend."""
    count, repeats = len(parts.carries), parts.node.op.code == Control("repeat")
    used = zip(parts.carries, read, strict=False)
    kept = {carry for carry, is_read in used if is_read or repeats}
    stacked = zip(parts.results, read[count:], strict=False)
    results = {tuple(map(id, r)): r for r, is_read in stacked if is_read}
    asked = parts.node.graphs[0].outputs if repeats else ()
    while True:
        roots = [t for r in results.values() for t in r]
        roots += [*asked, *(parts.carries[carry][1] for carry in kept)]
        reached = {t for node in topological(roots) for t in node.outputs}
        more = {carry for carry in parts.carries if carry in reached} - kept
        if not more:
            break
        kept |= more
    return replace(
        parts,
        carries={c: ends for c, ends in parts.carries.items() if c in kept},
        slices={t: x for t, x in parts.slices.items() if t in reached},
        captures={t: x for t, x in parts.captures.items() if t in reached},
        results=list(results.values()),
    )
