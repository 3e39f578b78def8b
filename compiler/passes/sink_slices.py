"""Slice sinking: slices of elementwise values become slices of their inputs.

``f(x, y)[1:] = f(x[1:], y[1:])`` where nothing reads f(x, y) but slices: elements
outside are not computed, nothing is stored whole, and f fuses with the readers of the
slice. Slices may overlap, so only cheap values are computed once for each of them; with
a single slice the cost does not matter.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from staticgrad.compiler.passes.cancel_moves import cancelled
from staticgrad.compiler.passes.match import chase, replaced
from staticgrad.ir.graph import Graph, rebuilt
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Elementwise
from staticgrad.ir.size import Shape
from staticgrad.ops.named import named

CHEAP = 16  # additions that a slice may repeat
MOST_STEPS = 12  # operations that one slice moves through; the depth of a recursion

Bounds = tuple[Shape, Shape, tuple[int, ...]]
"""Starts, sizes and steps of a slice."""


def sink_slices(graph: Graph) -> Graph:
    """Sink ``f(x, y)[1:] = f(x[1:], y[1:])`` where nothing else reads f(x, y)."""
    slices = [node.outputs[0] for node in graph.nodes if node.op.name == "slice"]
    sinking = _sinking(graph) if slices else ()
    made = _Slices(sinking)

    def finish(old: Tensor, now: Tensor) -> Tensor:
        attrs = now.node.attrs
        bounds = attrs["starts"], attrs["sizes"], attrs["steps"]
        return made.of(old.inputs[0], now.inputs[0], bounds)

    found = {y for y in slices if y.inputs[0] in sinking}
    return replaced(graph, found, finish, sink_slices)


def _sinking(graph: Graph) -> Collection[Tensor]:
    """Return the elementwise values read only by slices and such values."""
    readers = _readers(graph)
    slices = _slices_behind(graph, readers)
    cones: dict[Tensor, frozenset[Node]] = {}
    for node in graph.nodes:
        if node.outputs[0] in slices:
            inner = (cones.get(x, frozenset()) for x in node.inputs)
            cones[node.outputs[0]] = frozenset((node,)).union(*inner)
    found: set[Tensor] = set()
    for y, cone in reversed(cones.items()):
        cheap = slices[y] == 1 or sum(map(_cost, cone)) <= CHEAP
        free = all(r.op.name == "slice" or r.outputs[0] in found for r in readers[y])
        if cheap and free and len(cone) <= MOST_STEPS:
            found.add(y)
    return found


def _cost(node: Node) -> int:
    code = node.op.code
    return code.cost if isinstance(code, Elementwise) else 0


def _readers(graph: Graph) -> dict[Tensor, list[Node]]:
    found: dict[Tensor, list[Node]] = {}
    for node in graph.nodes:
        for tensor in dict.fromkeys(node.inputs):
            found.setdefault(tensor, []).append(node)
    return found


def _slices_behind(
    graph: Graph, readers: Mapping[Tensor, Sequence[Node]]
) -> dict[Tensor, int]:
    """Return the number of slices reading each value that nothing else reads."""
    kept = frozenset(graph.roots)
    found: dict[Tensor, int] = {}
    for node in reversed(graph.nodes):
        y = node.outputs[0]
        if not isinstance(node.op.code, Elementwise) or y in kept or y not in readers:
            continue
        counts = [_slices_of(reader, found) for reader in readers[y]]
        if all(counts):
            found[y] = sum(counts)
    return found


def _slices_of(reader: Node, found: Mapping[Tensor, int]) -> int:
    return 1 if reader.op.name == "slice" else found.get(reader.outputs[0], 0)


@dataclass(frozen=True, slots=True)
class _Slices:
    """Slices of sinking values, each made once, even if a value is read twice."""

    sinking: Collection[Tensor]
    made: dict[Hashable, Tensor] = field(default_factory=dict)

    def of(self, old: Tensor, now: Tensor, bounds: Bounds) -> Tensor:
        """Return the slice of `now`, the new form of `old`; at most MOST_STEPS deep."""
        key = now.node.number, now.index, bounds
        if key not in self.made:
            made = self._made(old, now, bounds)
            simpler = chase(cancelled, made.node)
            self.made[key] = made if simpler is None else simpler
        return self.made[key]

    def _made(self, old: Tensor, now: Tensor, bounds: Bounds) -> Tensor:
        if old not in self.sinking:
            starts, sizes, steps = bounds
            return named("slice", now, starts=starts, sizes=sizes, steps=steps)
        inputs = tuple(
            self.of(before, after, _along(after.shape, now.shape, bounds))
            for before, after in zip(old.inputs, now.inputs, strict=True)
        )
        return rebuilt(now.node, inputs).outputs[0]


def _along(shape: Shape, whole: Shape, bounds: Bounds) -> Bounds:
    """Return the bounds for an input that broadcasts: whole repeated axes."""
    if shape == whole:
        return bounds
    starts, sizes, steps = bounds
    first = len(whole) - len(shape)
    repeated = [n == 1 != m for n, m in zip(shape, whole[first:], strict=True)]
    own = zip(repeated, starts[first:], sizes[first:], steps[first:], strict=True)
    plain = [(0, 1, 1) if again else (a, n, k) for again, a, n, k in own]
    return (
        tuple(a for a, _, _ in plain),
        tuple(n for _, n, _ in plain),
        tuple(k for _, _, k in plain),
    )
