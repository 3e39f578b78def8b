"""Constant folding: ``op(constants) = constant``, computed with NumPy.

Only small results are kept: a constant of the program is memory that is read, while a
broadcast number is not. Random draws, positions and whatever can fail stay as they are.
What has no elements is a constant, so that kernels need not care.
"""

from __future__ import annotations

import numpy as np

from staticgrad.compiler.passes.match import by_rule
from staticgrad.ir.compute import compute
from staticgrad.ir.graph import Graph, rewrite
from staticgrad.ir.node import Constant, Node, Tensor, static_shape
from staticgrad.ir.op import Extent, View, can_fail
from staticgrad.ops.leaves import frozen

FOLDED_ELEMENTS = 1024  # 4-8 KB, a tenth of a first-level cache


def fold_constants(graph: Graph) -> Graph:
    """Fold ``op(constants) = constant`` where the result has at most 1,024 elements."""
    return rewrite(graph, by_rule(_fold))


def _fold(node: Node) -> Tensor | None:
    if isinstance(node.op.code, Extent) and isinstance(node.attrs["size"], int):
        return frozen(np.asarray(node.attrs["size"], np.int64))
    if 0 in node.types[0].shape and _is_empty(node):
        shape = static_shape(node.types[0].shape)
        return frozen(np.empty(shape or (), node.types[0].dtype))
    for t in node.inputs:
        if not isinstance(t, Constant):
            return None
    code = node.op.code
    if not node.inputs or not code.kind.folded or not _is_small(node):
        return None
    if can_fail(code):
        return None  # an error belongs to the run
    values = [t.node.attrs["value"] for t in node.inputs]
    with np.errstate(all="ignore"):
        (result,) = compute(node.op, values, node.attrs, node.types)
    return frozen(np.asarray(result), node.types[0].weak)


def _is_empty(node: Node) -> bool:
    """Whether a result has no elements and nothing to be checked."""
    code, shape = node.op.code, static_shape(node.types[0].shape)
    fixed = code.kind.stays or can_fail(code)
    return len(node.types) == 1 and not fixed and shape is not None


def _is_small(node: Node) -> bool:
    shape = static_shape(node.types[0].shape)
    if shape is None:
        return False
    limit = FOLDED_ELEMENTS
    if isinstance(node.op.code, View):  # a broadcast is cheaper than what it would fill
        limit = min(limit, node.inputs[0].node.attrs["value"].size)
    return int(np.prod(shape, dtype=np.int64)) <= limit
