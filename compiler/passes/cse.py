"""Common subexpression elimination: ``f(x), f(x) = y, y`` with ``y = f(x)``.

Two nodes are one where op, attributes, inputs and nested graphs are. Random draws are
no exception: their key is an input, so equal keys are equal draws. Constants are
compared by their bytes, so 0.0 and -0.0 stay apart. Casts of operands to 32 bits stay
apart too: one for two products would live from the first to the second.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from staticgrad.compiler.passes.operand_casts import operand_casts
from staticgrad.ir.graph import Graph, rewrite
from staticgrad.ir.node import Constant, Node, Tensor
from staticgrad.ir.op import Leaf

COMPARED_BYTES = 65536  # larger constants are equal only if they are the same array


def merge_common(graph: Graph) -> Graph:
    """Merge nodes: ``f(x), f(x) = y, y`` with ``y = f(x)``."""
    seen: dict[Hashable, Node] = {}
    apart = {node.number for node in operand_casts(graph)}

    def rule(node: Node, _: Sequence[Tensor]) -> Sequence[Tensor]:
        if node.number in apart:
            return node.outputs
        if isinstance(node.op.code, Leaf) and not isinstance(node.outputs[0], Constant):
            return node.outputs
        return seen.setdefault(_key(node), node).outputs

    return rewrite(graph, rule)


def _key(node: Node) -> Hashable:
    attrs = tuple([(name, _hashable(value)) for name, value in node.attrs.items()])
    dtypes = tuple([t.dtype for t in node.types])
    # numbers, not tensors: == of tensors makes a node
    inputs = tuple([(t.node.number, t.index) for t in node.inputs])
    return node.op.name, attrs, inputs, tuple(map(id, node.graphs)), dtypes


def _hashable(value: Any) -> Hashable:
    """Return a key that is equal for equal attributes only: 1, 1.0 and True differ."""
    if isinstance(value, np.ndarray):
        small = value.nbytes <= COMPARED_BYTES
        return value.shape, value.dtype, value.tobytes() if small else id(value)
    if isinstance(value, tuple):
        return tuple(_hashable(v) for v in value)
    if isinstance(value, float | np.floating):
        return type(value), value.hex() if isinstance(value, float) else value.tobytes()
    return type(value), value
