"""Fusion of index checks into the scatter that uses the index.

An index that one scatter alone reads, once per element, need not be written by a loop
of its own and read once more.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from staticgrad.compiler.kernel_ir.layouts import is_free
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import IndexCheck, Scatter


def checked_by_scatters(graph: Graph, late: Container[Node]) -> dict[Node, Node]:
    """Map Scatter nodes to the check of their index, where their loop can hold it.

    Not where they are `late` and write a leaf: a bad index has to be found before.
    """
    uses = graph.uses()
    return {
        node: node.inputs[1].node
        for node in graph.nodes
        if isinstance(node.op.code, Scatter)
        and node not in late
        and _is_checked_once(node, uses)
    }


def _is_checked_once(scatter: Node, uses: Mapping[Tensor, int]) -> bool:
    _, index, updates = scatter.inputs
    alone = isinstance(index.op.code, IndexCheck) and uses[index] == 1
    return alone and index.shape == updates.shape and not is_free(index.node.inputs[0])
