"""Activations and unactivated layers of a graph, found by the ops that compute them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from staticgrad import ops
from staticgrad.compiler.passes.match import is_number, is_op
from staticgrad.ir.graph import topological
from staticgrad.ir.node import Node, Stored, Tensor, seen_through
from staticgrad.ir.op import Leaf, Matmul, View
from staticgrad.ir.source import at

SLOPE = 0.05  # of the largest slope: sigmoid beyond +-4.4, tanh beyond +-2.2
IMAGES = 4  # rank of images, whose units are on axis 1


@dataclass(frozen=True, slots=True)
class Activation:
    """Result of an activation function, and a flag per unit that is always idle."""

    kind: str
    tensor: Tensor
    state: str

    @property
    def idle(self) -> Tensor:
        """True for units that are saturated or dead on every sample."""
        y = self.tensor
        if self.kind == "relu":
            lazy = y <= 0
        elif self.kind == "sigmoid":
            lazy = y * (1 - y) < SLOPE / 4
        else:
            lazy = 1 - y * y < SLOPE
        unit = 1 if y.ndim >= IMAGES else y.ndim - 1
        others = tuple(axis for axis in range(y.ndim) if axis != unit)
        return ops.all(lazy, axis=others) if others else lazy


def activations(y: Tensor) -> Iterator[Activation]:
    """Yield the sigmoids, tanhs and relus on the way to `y` that have units."""
    for node in topological([y]):
        tensor = node.outputs[0]
        if not tensor.ndim:
            continue
        if node.op.name in ("sigmoid", "tanh"):
            yield Activation(node.op.name, tensor, "saturated")
        elif _is_relu(node):
            yield Activation("relu", tensor, "dead")


def _is_relu(node: Node) -> bool:
    """Whether a node is ``maximum(x, 0)``, or selects x or 0 by comparing x with 0."""
    if node.op.name == "maximum":
        return any(is_number(t, 0) for t in node.inputs)
    if node.op.name != "where":
        return False
    test, first, second = node.inputs
    below = any(is_op(test, name) for name in ("less_equal", "less"))
    above = any(is_op(test, name) for name in ("greater_equal", "greater"))
    nothing, x = (first, second) if below else (second, first)
    if not (below or above) or not is_number(nothing, 0):
        return False
    return test.inputs[0] is x and is_number(test.inputs[1], 0)


def unbroken(y: Tensor) -> list[str]:
    """Return remarks on matrix products by parameters with only sums between them."""
    found = []
    last: dict[Tensor, Node] = {}  # the product that a tensor is linear in
    for node in topological([y]):
        weight = _weight(node)
        before = next((last[t] for t in node.inputs if t in last), None)
        if weight is not None:
            if before is not None:
                found.append(_remark(before, node))
            last[node.outputs[0]] = node
        elif before is not None and _keeps_linear(node):
            last[node.outputs[0]] = before
    return found


def _weight(node: Node) -> Stored | None:
    """Return the parameter that a product multiplies with."""
    if not isinstance(node.op.code, Matmul):
        return None
    for tensor in node.inputs:
        base = seen_through(tensor)
        if isinstance(base, Stored):
            return base
    return None


def _keeps_linear(node: Node) -> bool:
    """Whether a node is a view, or a sum with parameters and numbers."""
    if isinstance(node.op.code, View):
        return True
    if node.op.name not in ("add", "subtract"):
        return False
    return any(isinstance(seen_through(t).op.code, Leaf) for t in node.inputs)


def _remark(first: Node, second: Node) -> str:
    names = [w.name if (w := _weight(n)) is not None else n.op.name
             for n in (first, second)]  # fmt: skip
    return (
        f"linear: no activation between {names[0]} and {names[1]}, which together are "
        f"one matrix{at(second.source)}"
    )
