"""Nodes, tensors and the leaves of a graph.

A Node is immutable and is compared by identity. Its outputs are Tensors, which are what
users hold; Tensor's operators and methods are installed by staticgrad.ops. Parameter
and State own storage that all executables share; Constant owns an array that never
changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from staticgrad.ir.op import Op, View
from staticgrad.ir.size import Shape
from staticgrad.ir.source import Source, at
from staticgrad.ir.storage import Storage
from staticgrad.ir.types import DType, TensorType

if TYPE_CHECKING:
    from staticgrad.ir.graph import Graph, OpenGraph
    from staticgrad.ops.methods import Methods  # which ops installs
else:
    Methods = object

_numbers = itertools.count()


class Node:
    """Operation applied to tensors.

    `number` grows with every node made, so it orders nodes by construction. `home` of
    an input, parameter or state is the graph that was open when it was made: it leads
    from a loss to the updates that belong to it.
    """

    __slots__ = (
        "attrs", "graphs", "home", "inputs", "number", "op", "outputs", "scope",
        "source", "types",
    )  # fmt: skip

    def __init__(
        self,
        op: Op,
        inputs: tuple[Tensor, ...],
        attrs: Mapping[str, Any],
        types: tuple[TensorType, ...],
        *,
        graphs: tuple[Graph, ...] = (),
        scope: str = "",
        source: Source | None = None,
        leaf: type[Tensor] | None = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        own = isinstance(attrs, MappingProxyType)  # attributes of another node
        self.attrs = attrs if own else MappingProxyType(dict(attrs))
        self.types = types
        self.graphs = graphs
        self.scope = scope
        self.source = source
        self.home: OpenGraph | None = None
        self.number = next(_numbers)
        kind = leaf or Tensor
        self.outputs = tuple([kind(self, index) for index in range(len(types))])

    def __repr__(self) -> str:
        types = ", ".join(map(str, self.types))
        return f"<{self.op.name} {types}{at(self.source)}>"


class Tensor(Methods):
    """One output of a node: a value that exists when the compiled graph runs."""

    __slots__ = ("__weakref__", "index", "node")

    def __init__(self, node: Node, index: int = 0) -> None:
        self.node = node
        self.index = index

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        return self.node.types[self.index]

    @property
    def shape(self) -> Shape:
        """Dimensions, ints or named sizes."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """NumPy dtype."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def op(self) -> Op:
        """Operation that makes this tensor."""
        return self.node.op

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors that the operation reads."""
        return self.node.inputs

    @property
    def source(self) -> Source | None:
        """User's file and line."""
        return self.node.source

    @property
    def scope(self) -> str:
        """Module path in which this tensor was made, such as ``0.linear``."""
        return self.node.scope

    def __repr__(self) -> str:
        return f"Tensor({self.type}, {self.op.name}{at(self.source)})"


class Input(Tensor):
    """Leaf whose value is given at each call."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Keyword under which a call takes it."""
        name: str = self.node.attrs["name"]
        return name


class Stored(Tensor):
    """Leaf with storage of its own."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Path under which it is saved, such as ``0.weight``."""
        name: str = self.storage.name or self.node.attrs["name"]
        return name

    @property
    def storage(self) -> Storage:
        """Bytes that all executables share."""
        storage: Storage = self.node.attrs["storage"]
        return storage

    @property
    def value(self) -> npt.NDArray[Any]:
        """Read-only copy of the current value; assign to it to write."""
        copy = self.storage.copy()
        copy.flags.writeable = False
        return copy

    @value.setter
    def value(self, new: npt.ArrayLike) -> None:
        self.storage.write(self.name, new)


class Parameter(Stored):
    """Leaf changed by training."""

    __slots__ = ()

    @property
    def trainable(self) -> bool:
        """Whether Trainer updates it by default."""
        return bool(self.node.attrs["trainable"])


class State(Stored):
    """Leaf changed by updates: a running mean, a counter, an optimiser's moment."""

    __slots__ = ()


class Constant(Tensor):
    """Leaf whose value is known when the graph is built."""

    __slots__ = ()

    @property
    def value(self) -> npt.NDArray[Any]:
        """Value, read-only."""
        value: npt.NDArray[Any] = self.node.attrs["value"]
        return value


def seen_through(tensor: Tensor) -> Tensor:
    """Return the first tensor below views of `tensor`."""
    while isinstance(tensor.op.code, View):
        tensor = tensor.inputs[0]
    return tensor


def static_shape(shape: Shape) -> tuple[int, ...] | None:
    """Return `shape` if it holds numbers only, else None."""
    dims: list[int] = []
    for dim in shape:
        if not isinstance(dim, int):
            return None
        dims.append(dim)
    return tuple(dims)
