"""Residuals of a scan: forward tensors that its derivative stacks or recomputes.

Cheap residuals are recomputed in the backward step from values that are there anyway:
the position, slices of the sequences, captures, and what is stacked for others. The
rest is stacked, tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from staticgrad.control.body_derivatives import InputNames, Step
from staticgrad.ir.graph import Graph, depending, rewritten, topological
from staticgrad.ir.node import Constant, Node, Tensor, seen_through
from staticgrad.ir.op import Elementwise, IndexCheck, View
from staticgrad.ir.size import product

CHEAP = 8  # additions recomputed for one tensor, see stages.py


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """Backward step; `sequences` are the tensors bound to its stacked inputs."""

    graph: Graph
    sequences: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Residuals:
    """Tensors of a forward step that are stacked for the backward step."""

    step: Step
    stacked: tuple[Tensor, ...]

    def body(
        self,
        carries: Sequence[Tensor],
        slices: Sequence[Tensor],
        outputs: Sequence[Tensor],
        names: InputNames,
    ) -> BackwardStep:
        """Return the backward step with these inputs, on stacked forward tensors."""
        step = self.step
        given = set(step.carries) | set(step.slices)
        replaced = {t: names.like(t, "saved") for t in self.stacked if t not in given}
        nodes = topological(outputs, replaced)
        new = rewritten(nodes, lambda node, _: None, replaced, nested=False)
        results = [new.get(t, t) for t in outputs]
        reached = {t for node in topological(results) for t in node.outputs}
        used = [t for t in (*self.stacked, *step.slices) if new.get(t, t) in reached]
        sequences = tuple(dict.fromkeys(used))
        captures = tuple(t for t in step.captures if t in reached)
        inputs = (
            step.position,
            *carries,
            *slices,
            *(replaced.get(t, t) for t in sequences),
            *captures,
        )
        return BackwardStep(Graph.closed(inputs, results), sequences, captures)


def residuals(
    step: Step,
    outputs: Sequence[Tensor],
    kept: Iterable[Tensor],
    seeds: Sequence[Tensor],
) -> Residuals:
    """Choose tensors to stack to compute `outputs`, which depend on `seeds`.

    `kept` are forward tensors that have to be stacked in any case.
    """
    later = depending(outputs, seeds)
    edge: dict[Tensor, None] = {t: None for t in outputs if t not in later}
    for node in topological(outputs):
        if any(t in later for t in node.outputs):
            edge.update((t, None) for t in node.inputs if t not in later)
    return Residuals(step, _chosen(step, edge, kept))


def _chosen(
    step: Step, edge: Iterable[Tensor], kept: Iterable[Tensor]
) -> tuple[Tensor, ...]:
    free = {step.position, *step.slices, *step.captures}
    stacked = {t: None for t in kept if t not in free}
    edge = [_unchecked(t) for t in edge]
    asked = set(edge)
    stacked.update((t, None) for t in edge if t in set(step.carries))
    for node in topological(edge):
        for tensor in node.outputs:
            known = tensor in free or tensor in stacked
            if tensor in asked and not known and not _cheap(tensor, free, stacked):
                stacked[_base(tensor)] = None
    return tuple(t for t in stacked if t not in free)


def _unchecked(tensor: Tensor) -> Tensor:
    """Return the index under an index check; it is checked again where used."""
    base = seen_through(tensor)
    return base.inputs[0] if isinstance(base.op.code, IndexCheck) else tensor


def _base(tensor: Tensor) -> Tensor:
    """Return the tensor under views of the same size, which others may read too."""
    while isinstance(tensor.op.code, View) and tensor.node.op.name != "slice":
        inner = tensor.inputs[0]
        if product(inner.shape) != product(tensor.shape):
            break
        tensor = inner
    return tensor


def _cheap(tensor: Tensor, free: Iterable[Tensor], stacked: Iterable[Tensor]) -> bool:
    """Whether `tensor` is cheap to recompute from what is stacked or free."""
    there = set(free) | set(stacked)
    cost, seen = 0, set[Node]()
    stack = [tensor]
    while stack:
        top = stack.pop()
        if top in there or isinstance(top, Constant) or top.node in seen:
            continue
        code = top.op.code
        if code.kind.counted:
            continue
        if not isinstance(code, View | Elementwise | IndexCheck):
            return False
        seen.add(top.node)
        cost += code.cost if isinstance(code, Elementwise) else 0
        if cost > CHEAP:
            return False
        stack.extend(top.inputs)
    return True
