"""Stages: passes over a row in which each value of a group is computed.

A row is walked once per stage. A value belongs to the first stage in which everything
that it reads is known; a row-wise reduction made in stage k is known from stage k + 1
on. What a later stage needs again is computed again if it is cheap, and kept in scratch
(one row, in L1) if it is not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from staticgrad.compiler.fuse.groups import Group
from staticgrad.compiler.kernel_ir.costs import CHEAP, cost_of
from staticgrad.compiler.kernel_ir.layouts import base_of
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Reduce


@dataclass(frozen=True, slots=True)
class Stages:
    """Stage in which each value of a group is computed.

    `of[t]` is the stage of t; `needed[k]` are the nodes that stage k evaluates per
    element; `kept` are the tensors that stay in scratch for later stages.
    """

    of: dict[Tensor, int]
    needed: tuple[frozenset[Node], ...]
    kept: tuple[Tensor, ...]


def runs_full(group: Group, node: Node) -> bool:
    """Whether the node is evaluated per element of a row, not once per row."""
    return any(axis in group.inner for axis in group.loop_axes[node])


def stages_of(group: Group, stored: Collection[Tensor]) -> Stages:
    """Return the stages of `group`, of which the tensors `stored` go to memory."""
    of = _first_stages(group)
    count = 1 + max(of.values(), default=0)
    needed: list[set[Node]] = [set() for _ in range(count)]
    for node in group.nodes:
        result = node.outputs[0]
        if not runs_full(group, node):
            continue
        if isinstance(node.op.code, Reduce):
            needed[of[result] - 1].add(node)
        elif result in stored:
            needed[of[result]].add(node)
    kept = _complete(group, of, needed)
    return Stages(of, tuple(map(frozenset, needed)), kept)


def _first_stages(group: Group) -> dict[Tensor, int]:
    of: dict[Tensor, int] = {}
    for node in group.nodes:
        stage = max((of.get(base_of(t), 0) for t in node.inputs), default=0)
        ends_row = isinstance(node.op.code, Reduce) and runs_full(group, node)
        of[node.outputs[0]] = stage + 1 if ends_row else stage
    return of


def _complete(
    group: Group, of: dict[Tensor, int], needed: list[set[Node]]
) -> tuple[Tensor, ...]:
    """Add what the needed nodes need, last stage first; return what is kept."""
    maker = {
        node.outputs[0]: node
        for node in group.nodes
        if runs_full(group, node) and not isinstance(node.op.code, Reduce)
    }
    kept: dict[Tensor, None] = {}
    for stage in range(len(needed) - 1, -1, -1):
        for node in reversed(group.nodes):
            if node not in needed[stage]:
                continue
            for base in map(base_of, node.inputs):
                if base not in maker:
                    continue
                keep = of[base] < stage and cost_of(maker[base]) > CHEAP
                needed[of[base] if keep else stage].add(maker[base])
                if keep:
                    kept[base] = None
    return tuple(kept)
