"""Pattern matching and replacement for rewrite rules.

A rule is a function of a node that gives the tensor to take the place of its one
output, or None. A table maps the name of an op to its rule; ``by_table`` makes of it
what ``rewrite`` drives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from staticgrad.ir.graph import Finish, Graph, Rule, rebuilt, rewrite
from staticgrad.ir.node import Constant, Node, Tensor, seen_through
from staticgrad.ir.types import DType, kind_of
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.views import broadcasted

NodeRule: TypeAlias = Callable[[Node], Tensor | None]

CHASE = 8  # rules applied in a row to one node; the longest chain seen is 4
COMPARED_ELEMENTS = 4096  # larger constants are not searched for one value


def number(value: float | np.generic, dtype: DType) -> Constant:
    """Return a 0-d Constant."""
    return frozen(np.asarray(value, dtype))


def is_op(x: Tensor, name: str) -> bool:
    """Whether `x` is made by the op called `name`."""
    return x.node.op.name == name


def uniform(x: Tensor) -> Any:
    """Return the NumPy scalar that every element of `x` is known to be, or None."""
    x = seen_through(x)
    if not isinstance(x, Constant):
        return None
    value = x.value.reshape(-1)
    if value.size == 1:
        return value[0]
    if not 0 < value.size <= COMPARED_ELEMENTS:
        return None
    bits = value.view(f"V{value.itemsize}")
    return value[0] if (bits == bits[0]).all() else None


def is_number(x: Tensor, value: float) -> bool:
    """Whether every element of `x` is `value`; 0.0 and -0.0 are told apart."""
    found = uniform(x)
    if found is None or found != value:
        return False
    return kind_of(found.dtype) != "f" or bool(np.signbit(found) == np.signbit(value))


def by_table(rules: Mapping[str, NodeRule]) -> Rule:
    """Return the rule for ``rewrite`` that looks each node's op up in `rules`."""
    return by_rule(table_rule(rules))


def table_rule(rules: Mapping[str, NodeRule]) -> NodeRule:
    """Return the rule that applies that of `rules` for the node's op, if any."""

    def rule(node: Node) -> Tensor | None:
        found = rules.get(node.op.name)
        return None if found is None else found(node)

    return rule


def by_rule(rule: NodeRule) -> Rule:
    """Return the rule for ``rewrite`` that applies `rule`, and again to its results."""

    def apply_rule(node: Node, _: Sequence[Tensor]) -> tuple[Tensor] | None:
        if len(node.outputs) != 1:
            return None
        found = rule(node)
        return None if found is None else (chased(rule, node, found),)

    return apply_rule


def chase(rule: NodeRule, node: Node) -> Tensor | None:
    """Apply `rule` to `node`, then to its own results, until it returns None."""
    found = rule(node)
    return None if found is None else chased(rule, node, found)


def chased(rule: NodeRule, node: Node, found: Tensor) -> Tensor:
    """Apply `rule` repeatedly to its own results, from `found` for `node` on."""
    shape = node.types[0].shape
    result = broadcasted(found, shape)
    for _ in range(CHASE - 1):
        if len(found.node.outputs) != 1:
            return result
        further = rule(result.node)
        if further is None:
            return result
        found, result = further, broadcasted(further, shape)
    return result


def replaced(
    graph: Graph,
    found: Collection[Tensor],
    finish: Finish,
    inside: Callable[[Graph], Graph],
) -> Graph:
    """Replace every tensor `old` of `found` by ``finish(old, now)`` in `graph`.

    `now` is `old` on inputs that are replaced already. Graphs of control flow become
    ``inside(graph)``.
    """
    if not found and not any(node.graphs for node in graph.nodes):
        return graph

    def descend(node: Node, inputs: tuple[Tensor, ...]) -> Sequence[Tensor] | None:
        graphs = tuple(map(inside, node.graphs))
        if all(a is b for a, b in zip(graphs, node.graphs, strict=True)):
            return None
        return rebuilt(node, inputs, graphs).outputs

    def last(old: Tensor, now: Tensor) -> Tensor:
        return finish(old, now) if old in found else now

    return rewrite(graph, descend, last, nested=False)
