"""Cuts: nodes that read an active tensor and pass no derivative on."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from staticgrad.ir.graph import topological
from staticgrad.ir.node import Node, Parameter, Tensor, seen_through
from staticgrad.ir.source import at
from staticgrad.ir.types import BOOL, is_float
from staticgrad.trees import flatten

STRAIGHT = "straight_through passes a gradient on in its place"


@dataclass(frozen=True, slots=True)
class Cut:
    """Node that reads a tensor depending on x and passes no derivative on."""

    node: Node
    reason: str

    def __str__(self) -> str:
        return f"{self.node.op.name}{at(self.node.source)}: {self.reason}"


def passes(node: Node, position: int) -> bool:
    """Whether a derivative flows through input number `position` of `node`."""
    if node.op.vjp is None or not is_float(node.inputs[position].dtype):
        return False
    hidden = (
        node.op.name == "custom" and position == 0
    )  # derivatives that the user's backward replaces
    return not hidden and any(is_float(t.dtype) for t in node.outputs)


def reached(nodes: Sequence[Node], y: Tensor) -> set[Tensor]:
    """Return the tensors to which a derivative of `y`, made by `nodes`, flows."""
    found = {y}
    for node in reversed(nodes):
        if any(t in found and is_float(t.dtype) for t in node.outputs):
            found.update(t for p, t in enumerate(node.inputs) if passes(node, p))
    return found


def stopped(nodes: Sequence[Node], x: Tensor) -> bool:
    """Whether only stop_gradient cuts the derivative with respect to `x`."""
    return all(cut.node.op.name == "stop_gradient" for cut in cuts(nodes, x))


def trained(loss: Tensor, parameters: Any = None) -> list[Any]:
    """Return the leaves of `parameters`, by default those a Trainer trains for `loss`.

    That is every trainable parameter, in order of creation, but for those that nothing
    but stop_gradient cuts off: a target network is there to be compared with.
    """
    if parameters is not None:
        return list(flatten(parameters)[0])
    nodes = topological([loss])
    active = reached(nodes, loss)
    leaves = (t for node in nodes for t in node.outputs)
    found = [
        t
        for t in leaves
        if isinstance(t, Parameter) and t.trainable
        if t in active or not stopped(nodes, t)
    ]
    return sorted(found, key=lambda t: t.node.number)


def cuts(nodes: Sequence[Node], x: Tensor) -> Iterator[Cut]:
    """Yield the nodes at which a derivative with respect to `x` ends.

    A comparison that only chooses between values which pass a derivative on (that of a
    relu) is none, nor is a maximum that is taken from its own numbers, behind
    stop_gradient (that of a softmax): what is made of them does not depend on it.
    """
    active = {x}
    ends: list[Node] = []
    for node in nodes:
        read = [p for p, t in enumerate(node.inputs) if t in active]
        if any(passes(node, p) for p in read):
            active.update(t for t in node.outputs if is_float(t.dtype))
        elif read:
            ends.append(node)
    readers: dict[Tensor, list[Node]] = {}
    for node in nodes:
        for tensor in node.inputs:
            readers.setdefault(tensor, []).append(node)
    for node in ends:
        after = [r for t in node.outputs for r in readers.get(t, ())]
        compares = all(t.dtype == BOOL for t in node.outputs)
        chooses = after and all(any(t in active for t in r.outputs) for r in after)
        if not (compares and chooses) and not _shifts(node, readers, active):
            yield Cut(node, _reason(node))


def _shifts(
    node: Node, readers: Mapping[Tensor, Sequence[Node]], active: Container[Tensor]
) -> bool:
    """Whether `node` detaches the maximum of x, which is only subtracted from x."""
    top = seen_through(node.inputs[0])
    if node.op.name != "stop_gradient" or top.op.name != "reduce_max":
        return False
    left = list(node.outputs)
    while left:
        tensor = left.pop()
        for reader in readers.get(tensor, ()):
            if reader.op.name == "subtract" and reader.inputs[0] is top.inputs[0]:
                return True
            left += [t for t in reader.outputs if t not in active]
    return False


def _reason(node: Node) -> str:
    if node.op.name == "stop_gradient":
        return "it stops gradients"
    if not any(is_float(t.dtype) for t in node.outputs):
        return f"it gives {node.types[0].dtype}, which has no derivative; {STRAIGHT}"
    if node.op.vjp is None:
        return f"its derivative is zero everywhere; {STRAIGHT}"
    return "its derivative was given for other inputs only"
