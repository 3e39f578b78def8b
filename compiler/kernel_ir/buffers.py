"""The buffers of a Schedule while it is made, numbered at the first request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from staticgrad.compiler.kernel_ir.layouts import base_of
from staticgrad.compiler.kernel_ir.schedule import Buffer, BufferKind
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Constant, Input, Node, Stored, Tensor
from staticgrad.ir.op import Layout
from staticgrad.ir.size import Shape, evaluate, symbols
from staticgrad.ir.types import DType

TYPICAL_SIZE = 64  # what a symbolic size counts as when orders are compared


@dataclass(frozen=True, slots=True)
class StoreRegion:
    """Place of a tensor in the result of a Place or Scatter node."""

    place: Node
    layout: Layout


class Buffers:
    """Numbers of buffers, those of tensors by a call.

    `late` nodes write stored leaves, or carries where the graph `is_body`; `inside` are
    tensors that lie in the result of another node.
    """

    def __init__(
        self, graph: Graph, late: Mapping[Node, Stored],
        inside: Mapping[Tensor, StoreRegion], is_body: bool,
    ) -> None:  # fmt: skip
        self.made: list[Buffer] = []
        self.inside = inside
        self._results = graph.outputs
        self._late = late
        self._carried = set[Tensor](late.values()) if is_body else set()
        self._number: dict[Tensor, int] = {}
        outputs = reversed(list(enumerate(graph.outputs)))
        self._outputs = {base_of(t): i for i, t in outputs}
        self._inputs = {t: i for i, t in enumerate(graph.inputs)}

    def __call__(self, tensor: Tensor) -> int:
        """The number of the tensor's buffer."""
        if tensor not in self._number:
            self._number[tensor] = self._of(tensor)
        return self._number[tensor]

    def _of(self, tensor: Tensor) -> int:
        if tensor in self.inside:
            return self(self.inside[tensor].place.outputs[0])
        leaf = self._late.get(tensor.node)
        if leaf is not None:
            return self(leaf)
        if isinstance(tensor, Input):
            kind: BufferKind = "carry" if tensor in self._carried else "input"
            return self._add(kind, tensor, tensor.name, self._inputs[tensor])
        if isinstance(tensor, Stored):
            return self._add("stored", tensor, tensor.name, leaf=tensor)
        if isinstance(tensor, Constant):
            return self._add("constant", tensor, "constant")
        position = self._outputs.get(tensor, -1)
        if position < 0:
            return self._add("temporary", tensor, tensor.op.name)
        return self._add("output", self._results[position], tensor.op.name, position)

    def _add(
        self, kind: BufferKind, tensor: Tensor, name: str, position: int = -1,
        leaf: Stored | None = None,
    ) -> int:  # fmt: skip
        value = tensor.value if isinstance(tensor, Constant) else None
        shape, dtype, number = tensor.shape, tensor.dtype, len(self.made)
        buffer = Buffer(number, kind, shape, dtype, name, position, leaf, value)
        self.made.append(buffer)
        return number

    def slots(self, node: Node) -> int:
        """Slots for the partial results of a reduction."""
        return self._add("slots", node.outputs[0], f"{node.op.name} slots")

    def new(self, kind: BufferKind, shape: Shape, dtype: DType) -> int:
        """A buffer of a kernel's own."""
        number = len(self.made)
        self.made.append(Buffer(number, kind, shape, dtype, kind))
        return number

    def bytes(self, sizes: Mapping[str, int]) -> Sequence[int]:
        """Return the bytes of the arena that each takes for these `sizes`."""
        names = symbols(tuple(d for b in self.made for d in b.shape))
        values = {name: sizes.get(name, TYPICAL_SIZE) for name in names}
        return [
            evaluate(b.elements, values) * b.dtype.itemsize
            if b.kind in ("temporary", "slots")
            else 0
            for b in self.made
        ]
