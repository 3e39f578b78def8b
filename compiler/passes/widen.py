"""Widening: accumulate 16-bit sums and products in memory in float32.

* ``sum(x16) = cast16(sum(cast32(x16)))``, products over axes and running ones alike
* ``x16 @ y16 = cast16(cast32(x16) @ cast32(y16))``, convolutions alike
* scatters that add or multiply alike

Elementwise operations, maxima and moves stay: kernels compute them in float32 registers
and round when they store. Partial results of a sum lie in memory, where 16 bits would
lose all but the first 2,048 of ones that are added. Weakness: the operands of a product
are converted in memory before it, 4 bytes per element for a while.
"""

from __future__ import annotations

from staticgrad.compiler.passes.match import by_rule
from staticgrad.ir.graph import Graph, rewrite
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Reduce
from staticgrad.ir.types import computed, is_half
from staticgrad.ops.casting import cast
from staticgrad.ops.named import named


def widen(graph: Graph) -> Graph:
    """Widen ``f(x16) = cast16(f(cast32(x16)))`` for every f that accumulates."""
    return rewrite(graph, by_rule(_widened))


def _widened(node: Node) -> Tensor | None:
    dtype = node.types[0].dtype
    if not is_half(dtype) or not _accumulates(node):
        return None
    wide = [cast(x, computed(x.dtype)) for x in node.inputs]
    return cast(named(node.op.name, *wide, **node.attrs), dtype)


def _accumulates(node: Node) -> bool:
    code = node.op.code
    combine = code.combine if isinstance(code, Reduce) else node.attrs.get("combine")
    return code.kind.accumulates and combine in (None, "add", "multiply")
