"""Rematerialisation of cheap values in the kernels that read them.

If group G makes ``y = f(x)`` from an x that lies in memory anyway, and other groups
read y element by element, each of them computes f(x) itself: ``1 - h * h`` of the
derivative of tanh needs no buffer beside h, and a mask of dropout none at all, since
its key is in memory. Only a few cheap operations are repeated, only if then nobody
needs y in memory, and only if no more is read for it than was written and read of y: a
sum of many gradients would keep them all alive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from staticgrad.compiler.fuse.fuse import Timing, ordered
from staticgrad.compiler.fuse.groups import Group, read_axes
from staticgrad.compiler.kernel_ir.costs import CHEAP, cost_of
from staticgrad.compiler.kernel_ir.layouts import AxisMap, base_of, is_free
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Constant, Input, Node, Stored, Tensor
from staticgrad.ir.size import product

_LEAVES = (Input, Stored, Constant)
MOST_NODES = 4  # operations that are repeated for one value


def recompute(
    groups: Sequence[Group], graph: Graph, roots: Collection[Tensor], timing: Timing
) -> None:
    """Add nodes to the groups that read them; drop those no longer needed.

    `roots` have to lie in memory whatever happens.
    """
    work = _Work(groups, graph, roots, timing)
    for group in groups:
        for node in reversed(group.nodes):
            if group.kind == "loop" and node not in group.gathered:
                work.consider(group, node)
    for group in groups:
        if group.kind == "loop":
            _prune(group, work.in_memory)


def _is_repeated(node: Node) -> bool:
    kind = node.op.code.kind
    return kind.aligned and not kind.fails


class _Work:
    """Readers of each tensor in memory."""

    def __init__(
        self,
        groups: Sequence[Group],
        graph: Graph,
        roots: Collection[Tensor],
        timing: Timing,
    ) -> None:
        self.place = {node: k for k, node in enumerate(ordered(graph, timing))}
        self.replaced = set(timing.late.values())
        self.roots = frozenset(roots)
        self.in_memory = set(roots)
        self.readers: dict[Tensor, list[Group]] = {}
        for group in groups:
            for base in _read_from_memory(group):
                self.in_memory.add(base)
                self.readers.setdefault(base, []).append(group)

    def consider(self, group: Group, node: Node) -> None:
        """Make the readers of the node's result compute it, if all of them can."""
        result = node.outputs[0]
        readers = self.readers.get(result, [])
        if not readers or not _is_repeated(node):
            return
        if result in self.roots:  # a reader would write it too, in every chunk
            return
        cone = self._cone(group, node)
        if cone is None or not all(_can(reader, result, cone) for reader in readers):
            return
        if not self._moves_less(result, cone, readers):
            return
        for reader in readers:
            _add(reader, result, cone)
            reader.nodes.sort(key=self.place.__getitem__)
            for base in {base_of(t): None for n in cone for t in n.inputs}:
                if base not in reader.made:
                    self.readers.setdefault(base, []).append(reader)
        self.in_memory.discard(result)
        del self.readers[result]

    def _moves_less(
        self, result: Tensor, cone: Sequence[Node], readers: Sequence[Group]
    ) -> bool:
        """Whether it reads no more than the result cost to write and read."""
        size = product(result.shape)
        bases = {base_of(t) for node in cone for t in node.inputs}
        large = {
            base
            for base in bases
            if self._lies_in_memory(base, cone[0]) and product(base.shape) == size
        }
        more = (len(large.difference(_read_from_memory(group))) for group in readers)
        return sum(more) <= 1 + len(readers)

    def _cone(self, group: Group, node: Node) -> list[Node] | None:
        """Return the nodes between memory and the result; None if too many."""
        found: list[Node] = []
        stack = [node]
        maker = {t: n for n in group.nodes for t in n.outputs}
        while stack:
            top = stack.pop()
            if top in found:
                continue
            if not _is_repeated(top):
                return None
            if len(found) == MOST_NODES:
                return None
            found.append(top)
            for base in map(base_of, top.inputs):
                if self._lies_in_memory(base, node) or is_free(base):
                    continue
                if base not in group.made:
                    return None
                stack.append(maker[base])
        if sum(map(cost_of, found)) > CHEAP:
            return None
        return found

    def _lies_in_memory(self, base: Tensor, node: Node) -> bool:
        if base is node.outputs[0] or base in self.replaced:
            return False
        return base in self.in_memory or isinstance(base, _LEAVES)


def _read_from_memory(group: Group) -> Iterable[Tensor]:
    bases = {base_of(t): None for node in group.nodes for t in node.inputs}
    return (base for base in bases if base not in group.made)


def _can(reader: Group, result: Tensor, cone: Sequence[Node]) -> bool:
    """Whether `reader` reads `result` element by element wherever it reads it."""
    if reader.kind != "loop" or result not in reader.axis_of:
        return False
    axes = reader.axis_of[result]
    if _cone_axes(reader, result, cone) is None:
        return False
    return all(
        read_axes(node, position, reader.loop_axes[node]) == axes
        for node in reader.nodes
        for position, tensor in enumerate(node.inputs)
        if base_of(tensor) is result
    )


def _cone_axes(
    reader: Group, result: Tensor, cone: Sequence[Node]
) -> dict[Node, AxisMap] | None:
    """Return the axes of `reader` along which each node of the cone would run.

    A view between two of them may turn axes. None if a node would be needed along two
    different ways, or has fewer elements than the result.
    """
    axes = reader.axis_of[result]
    found: dict[Node, AxisMap] = {result.node: axes}
    stack = [result.node]
    while stack:
        node = stack.pop()
        for position, tensor in enumerate(node.inputs):
            inner = base_of(tensor).node
            if inner not in cone:
                continue
            own = read_axes(node, position, found[node])
            if own is None or sorted(own, key=str) != sorted(axes, key=str):
                return None
            if found.setdefault(inner, own) != own:
                return None
            stack.append(inner)
    known = reader.loop_axes
    fits = all(known.get(node, own) == own for node, own in found.items())
    return found if fits else None


def _add(reader: Group, result: Tensor, cone: Sequence[Node]) -> None:
    """Add `cone` to a group."""
    found = _cone_axes(reader, result, cone) or {}
    new = [node for node in cone if node not in reader.loop_axes]
    for node in new:
        reader.loop_axes[node] = reader.axis_of[node.outputs[0]] = found[node]
        reader.made.update(node.outputs)
    reader.nodes.extend(new)


def _prune(group: Group, in_memory: Collection[Tensor]) -> None:
    """Drop nodes whose results are unused."""
    used: set[Tensor] = set(in_memory)
    kept: list[Node] = []
    for node in reversed(group.nodes):
        if node in group.gathered or any(t in used for t in node.outputs):
            kept.append(node)
            used.update(map(base_of, node.inputs))
    kept.reverse()
    group.nodes = kept
