"""Sums with scattered rows become scatters into the other term.

* ``c * scatter(0, i, u) = scatter(0, i, c * u)`` for one number c; so for ``/`` and
  ``-``
* ``x + scatter(0, i, u) = scatter(x, i, u)`` and ``x - scatter(0, i, u) = scatter(x, i,
  -u)``

Such zeros are the gradient of rows that were taken from a table. A step of descent then
touches these rows alone, where the table lies, however large it is.

Only where nothing else needs the scattered zeros: not under Adam, whose second moment
squares them. Rounding differs: equal indices are added to x in sequence. A c that is
NaN or infinite affects only the scattered rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from staticgrad.compiler.passes.match import is_number
from staticgrad.ir.graph import Graph, rewrite
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Scatter
from staticgrad.ops.named import named

Uses = Mapping[Tensor, int]


def scatter_into(graph: Graph) -> Graph:
    """Rewrite ``x + scatter(0, i, u) = scatter(x, i, u)``; factors go into u."""
    while any(_is_placed(t) for node in graph.nodes for t in node.outputs):
        after = _once(graph)
        if after is graph:
            break
        graph = after
    return graph


def _once(graph: Graph) -> Graph:
    """Apply every rule at most once along a path: uses are counted before."""
    uses = graph.uses()

    def rule(node: Node, inputs: Sequence[Tensor]) -> tuple[Tensor] | None:
        found = RULES.get(node.op.name)
        result = found(node, uses) if found is not None else None
        return None if result is None else (result,)

    return rewrite(graph, rule)


def _is_placed(x: Tensor) -> bool:
    """Whether `x` is zeros to which updates are added by index."""
    if not isinstance(x.op.code, Scatter) or x.node.attrs["combine"] != "add":
        return False
    return is_number(x.inputs[0], 0.0)


def _fits(x: Tensor, node: Node, uses: Uses) -> bool:
    """Whether `x` is such zeros, used by `node` alone, and as large as its result."""
    return _is_placed(x) and uses[x] == 1 and x.shape == node.types[0].shape


def _into(base: Tensor, placed: Tensor, updates: Tensor) -> Tensor:
    """Return `placed` with another base and other updates."""
    index = placed.inputs[1]
    return named("scatter", base, index, updates, **placed.node.attrs)


def _multiply(node: Node, uses: Uses) -> Tensor | None:
    for number, placed in (node.inputs, node.inputs[::-1]):
        if number.ndim == 0 and _fits(placed, node, uses):
            zeros, _, updates = placed.inputs
            return _into(zeros, placed, named("multiply", number, updates))
    return None


def _divide(node: Node, uses: Uses) -> Tensor | None:
    placed, number = node.inputs
    if number.ndim or not _fits(placed, node, uses):
        return None
    zeros, _, updates = placed.inputs
    return _into(zeros, placed, named("divide", updates, number))


def _negative(node: Node, uses: Uses) -> Tensor | None:
    (placed,) = node.inputs
    if not _fits(placed, node, uses):
        return None
    zeros, _, updates = placed.inputs
    return _into(zeros, placed, named("negative", updates))


def _add(node: Node, uses: Uses) -> Tensor | None:
    for base, placed in (node.inputs, node.inputs[::-1]):
        if base.shape == node.types[0].shape and _fits(placed, node, uses):
            return _into(base, placed, placed.inputs[2])
    return None


def _subtract(node: Node, uses: Uses) -> Tensor | None:
    base, placed = node.inputs
    if base.shape != node.types[0].shape:
        return None
    if _fits(placed, node, uses):
        return _into(base, placed, named("negative", placed.inputs[2]))
    if _fits(base, node, uses) and placed.shape == node.types[0].shape:
        return _into(named("negative", placed), base, base.inputs[2])
    return None


RULES = {
    "multiply": _multiply,
    "divide": _divide,
    "negative": _negative,
    "add": _add,
    "subtract": _subtract,
}
