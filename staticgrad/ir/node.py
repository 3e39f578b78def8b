"""Nodes, tensors and the leaves of a graph.

A Node is immutable and is compared by identity. Its outputs are Tensors, which are what
users hold; Tensor's operators and methods are installed by staticgrad.ops. Parameter
and State own storage that all executables share; Constant owns an array that never
changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.alignment import aligned_copy
from staticgrad.ir.op import Op, View
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.source import Source, at, here
from staticgrad.ir.types import DType, TensorType, require_range

if TYPE_CHECKING:
    from staticgrad.ir.graph import Graph

    Axis = int | Sequence[int] | None
    _DType = npt.DTypeLike | None

_numbers = itertools.count()


class Node:
    """Operation applied to tensors.

    `number` grows with every node made, so it orders nodes by construction. `home` of
    an input, parameter or state is the Graph that was open when it was made: it leads
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
        self.home: Graph | None = None
        self.number = next(_numbers)
        kind = leaf or Tensor
        self.outputs = tuple([kind(self, index) for index in range(len(types))])

    def __repr__(self) -> str:
        types = ", ".join(map(str, self.types))
        return f"<{self.op.name} {types}{at(self.source)}>"


class Tensor:
    """Output of a node: a value computed when the compiled graph runs."""

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

    if TYPE_CHECKING:
        # Installed by staticgrad.ops.methods; declared here for type checkers.
        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __floordiv__(self, other: Any) -> Tensor: ...
        def __rfloordiv__(self, other: Any) -> Tensor: ...
        def __mod__(self, other: Any) -> Tensor: ...
        def __rmod__(self, other: Any) -> Tensor: ...
        def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __rpow__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __rmatmul__(self, other: Any) -> Tensor: ...
        def __and__(self, other: Any) -> Tensor: ...
        def __rand__(self, other: Any) -> Tensor: ...
        def __or__(self, other: Any) -> Tensor: ...
        def __ror__(self, other: Any) -> Tensor: ...
        def __xor__(self, other: Any) -> Tensor: ...
        def __rxor__(self, other: Any) -> Tensor: ...
        def __lshift__(self, other: Any) -> Tensor: ...
        def __rlshift__(self, other: Any) -> Tensor: ...
        def __rshift__(self, other: Any) -> Tensor: ...
        def __rrshift__(self, other: Any) -> Tensor: ...
        def __eq__(self, other: Any) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: Any) -> Tensor: ...  # type: ignore[override]
        def __lt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __hash__(self) -> int: ...
        def __neg__(self) -> Tensor: ...
        def __pos__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __round__(self, decimals: int = 0) -> Tensor: ...
        def __getitem__(self, key: Any) -> Tensor: ...
        def __len__(self) -> int: ...
        def __iter__(self) -> Iterator[Tensor]: ...

        T: Tensor
        mT: Tensor
        size: Dim
        at: Any

        def astype(self, dtype: npt.DTypeLike, copy: bool = True) -> Tensor: ...
        def copy(self, order: str = "C") -> Tensor: ...
        def reshape(self, *dims: Any, order: str = "C") -> Tensor: ...
        def transpose(self, *axes: Any) -> Tensor: ...
        def swapaxes(self, axis1: int, axis2: int) -> Tensor: ...
        def squeeze(self, axis: Axis = None) -> Tensor: ...
        def ravel(self, order: str = "C") -> Tensor: ...
        def flatten(self, order: str = "C") -> Tensor: ...
        def sum(
            self,
            axis: Axis = None,
            dtype: _DType = None,
            keepdims: bool = False,
            initial: Any = None,
            where: Any = None,
        ) -> Tensor: ...
        def prod(
            self,
            axis: Axis = None,
            dtype: _DType = None,
            keepdims: bool = False,
            initial: Any = None,
            where: Any = None,
        ) -> Tensor: ...
        def mean(
            self,
            axis: Axis = None,
            dtype: _DType = None,
            keepdims: bool = False,
            where: Any = None,
        ) -> Tensor: ...
        def var(
            self,
            axis: Axis = None,
            dtype: _DType = None,
            ddof: float = 0,
            keepdims: bool = False,
            where: Any = None,
            mean: Any = None,
            correction: float | None = None,
        ) -> Tensor: ...
        def std(
            self,
            axis: Axis = None,
            dtype: _DType = None,
            ddof: float = 0,
            keepdims: bool = False,
            where: Any = None,
            mean: Any = None,
            correction: float | None = None,
        ) -> Tensor: ...
        def max(
            self,
            axis: Axis = None,
            keepdims: bool = False,
            initial: Any = None,
            where: Any = None,
        ) -> Tensor: ...
        def min(
            self,
            axis: Axis = None,
            keepdims: bool = False,
            initial: Any = None,
            where: Any = None,
        ) -> Tensor: ...
        def all(
            self, axis: Axis = None, keepdims: bool = False, where: Any = None
        ) -> Tensor: ...
        def any(
            self, axis: Axis = None, keepdims: bool = False, where: Any = None
        ) -> Tensor: ...
        def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor: ...
        def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor: ...
        def argsort(
            self, axis: int | None = -1, kind: Any = None, order: None = None, *,
            stable: bool | None = None,
        ) -> Tensor: ...  # fmt: skip
        def clip(self, min: Any = None, max: Any = None) -> Tensor: ...
        def round(self, decimals: int = 0) -> Tensor: ...
        def dot(self, b: Any) -> Tensor: ...
        def take(
            self, indices: Any, axis: int | None = None, mode: Any = "raise"
        ) -> Tensor: ...
        def cumsum(self, axis: int | None = None, dtype: _DType = None) -> Tensor: ...
        def cumprod(self, axis: int | None = None, dtype: _DType = None) -> Tensor: ...
        def diagonal(
            self, offset: int = 0, axis1: int = 0, axis2: int = 1
        ) -> Tensor: ...
        def trace(
            self,
            offset: int = 0,
            axis1: int = 0,
            axis2: int = 1,
            dtype: _DType = None,
        ) -> Tensor: ...
        def repeat(self, repeats: Any, axis: int | None = None) -> Tensor: ...
        def searchsorted(
            self, v: Any, side: Any = "left", sorter: Any = None
        ) -> Tensor: ...
        def conj(self) -> Tensor: ...
        def conjugate(self) -> Tensor: ...

        real: Tensor
        imag: Tensor
        itemsize: int
        nbytes: Dim


class Owner(Protocol):
    """Holder of a storage's current value in place of the host."""

    def fetch(self) -> None:
        """Update the host's bytes."""


class Storage:
    """C-order array, aligned to 64 bytes, at a fixed address.

    Writing through `write` keeps shape, dtype and address. `name` is empty until the
    leaf's place in a module is known: only then does the leaf's path exist. While a
    device owns the value, the storage is a key of AWAY; `array` brings it home.
    """

    __slots__ = ("__weakref__", "_array", "name")

    def __init__(self, value: npt.ArrayLike) -> None:
        self._array = aligned_copy(np.asarray(value))
        self.name = ""

    @property
    def array(self) -> npt.NDArray[Any]:
        """Host array, to which ownership returns."""
        owner = AWAY.pop(ref(self), None) if AWAY else None
        if owner is not None:
            owner.fetch()
        return self._array

    @property
    def size(self) -> int:
        """Size in bytes."""
        return int(self._array.nbytes)

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self._array.ctypes.data)

    def bytes(self) -> npt.NDArray[Any]:
        """Host array as it is, whoever owns the value."""
        return self._array

    def copy(self) -> npt.NDArray[Any]:
        """Return a copy of the current value; its owner stays."""
        owner = AWAY.get(ref(self))
        if owner is not None:
            owner.fetch()
        return self._array.copy()

    def write(self, name: str, value: npt.ArrayLike) -> None:
        """Copy `value` in; it needs an equal shape and a castable dtype."""
        try:
            new = np.asarray(value)
        except ValueError as error:
            raise ShapeError(
                f"assigning to {name} requires an array, got {type(value).__name__} "
                f"({error}); make the rows equally long{at(here())}"
            ) from None
        if new.shape != self.array.shape:
            raise ShapeError(
                f"assigning to {name} requires shape {self.array.shape}, "
                f"got {new.shape}; make a new parameter for another shape{at(here())}"
            )
        if not np.can_cast(new.dtype, self.array.dtype, "same_kind"):
            raise DTypeError(
                f"assigning to {name} requires {self.array.dtype}, got {new.dtype}; "
                f"cast it with .astype({str(self.array.dtype)!r}){at(here())}"
            )
        require_range(f"assigning to {name}", self.array.dtype, new)
        np.copyto(self.array, new, "same_kind")


AWAY: dict[ref[Storage], Owner] = {}
"""Storages whose current value a device holds, and what holds it.

A plain dict, so that native code sees at once that nothing is away.
"""


def send_away(storage: Storage, owner: Owner) -> None:
    """Make `owner` the holder of the value of `storage` while it lives."""
    AWAY[ref(storage, AWAY.pop)] = owner


def bring_home() -> None:
    """Move the values of every storage to the host, before their addresses are used."""
    for key in list(AWAY):
        owner = AWAY.pop(key, None)
        if owner is not None:
            owner.fetch()


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


__all__ = [
    "AWAY", "Constant", "Dim", "Input", "Node", "Parameter", "State", "Storage",
    "Stored", "Tensor", "bring_home", "seen_through", "send_away", "static_shape",
]  # fmt: skip
