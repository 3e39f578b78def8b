"""Embedding: table lookup by integers."""

from __future__ import annotations

from staticgrad import ops
from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.node import Parameter, Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import kind_of
from staticgrad.nn import initial_values
from staticgrad.nn.module import Module
from staticgrad.ops.movement.checked_index import taken
from staticgrad.ops.movement.index_keys import as_index
from staticgrad.ops.promotion import as_tensor


class Embedding(Module):
    """Table lookup ``weight[index]``: integers (...) -> (..., features).

    `weight` is (entries, features) and starts standard normal, as PyTorch's. An index
    outside of the table is an IndexOutOfRange while the graph runs. Rows that no index
    names get the gradient 0; those named several times the sum.

    >>> import staticgrad as sg
    >>> index = sg.input("index", ("batch", 7), dtype="int64")
    >>> with sg.Graph(seed=0):
    ...     layer = sg.nn.Embedding(100, 8)
    >>> print(layer(index).type)
    float32[batch, 7, 8]
    """

    def __init__(self, entries: int, features: int) -> None:
        if entries < 1 or features < 1:
            raise ShapeError(
                f"Embedding requires sizes of at least 1, got {entries} and {features}"
                f"{at(here())}"
            )
        start = initial_values.normal((entries, features))
        self.weight: Parameter = ops.parameter(start, name="embedding.weight")

    def __repr__(self) -> str:
        entries, features = self.weight.shape
        return f"Embedding({entries}, {features})"

    def forward(self, index: Tensor) -> Tensor:
        """Return the rows at `index`."""
        index = as_tensor(index)
        if kind_of(index.dtype) not in "iu":
            raise DTypeError(
                f"Embedding requires integers, got {index.type}; cast them with "
                f".astype('int64'){at(here())}"
            )
        where = as_index(index, self.weight.shape[0], call="Embedding")
        return taken(self.weight, where, 0)


__all__ = ["Embedding"]
