"""Sparsity patterns: which elements of a tensor may depend on which of another.

A Pattern is a sparse matrix of bools: its rows are the elements of a tensor in C order,
its columns those of x. The patterns of a graph are found node by node, from the kind of
the op: an elementwise op takes the union of its inputs' rows, a move permutes rows, a
reduction merges them. What no rule covers is taken to depend on everything that its
inputs depend on. A pattern never has too few elements, and may have too many: it knows
no values, but for constant indices and for zeros of constant matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Indices: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """Sparse matrix of bools in compressed rows.

    Row i has the columns ``indices[starts[i]:starts[i + 1]]``, in ascending order.
    """

    starts: Indices
    indices: Indices
    columns: int

    @staticmethod
    def identity(count: int) -> Pattern:
        """Return the pattern in which each element depends on itself."""
        return Pattern(np.arange(count + 1), np.arange(count), count)

    @staticmethod
    def of(rows: Indices, columns: Indices, shape: tuple[int, int]) -> Pattern:
        """Return the matrix with elements at these places, which may repeat."""
        keys = np.unique(rows * max(shape[1], 1) + columns)
        rows, columns = np.divmod(keys, max(shape[1], 1))
        starts = np.searchsorted(rows, np.arange(shape[0] + 1))
        return Pattern(starts.astype(np.int64), columns, shape[1])

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.starts.size - 1

    @property
    def widths(self) -> Indices:
        """Number of elements of each row."""
        return np.diff(self.starts)

    @property
    def widest(self) -> int:
        """Number of elements of the longest row."""
        return int(self.widths.max(initial=0))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows, self.columns

    @property
    def row_indices(self) -> Indices:
        """Row of each element."""
        return np.repeat(np.arange(self.rows), self.widths)

    def lists(self) -> list[list[int]]:
        """Return the columns of each row."""
        values, starts = self.indices.tolist(), self.starts.tolist()
        return [values[a:b] for a, b in pairwise(starts)]

    def transposed(self) -> Pattern:
        """Return the transposed pattern."""
        return Pattern.of(self.indices, self.row_indices, (self.columns, self.rows))

    def taken(self, places: Indices) -> Pattern:
        """Return the rows at `places`, in that order; -1 is an empty row."""
        flat = places.reshape(-1)
        widths = np.where(flat < 0, 0, np.append(self.widths, 0)[flat])
        starts = np.concatenate(([0], np.cumsum(widths)))
        offsets = np.arange(starts[-1]) - np.repeat(starts[:-1], widths)
        sources = np.repeat(np.append(self.starts, 0)[flat], widths) + offsets
        return Pattern(starts, self.indices[sources], self.columns)

    def merged(self, groups: Indices, count: int) -> Pattern:
        """Return `count` rows: the union of those with the same entry in `groups`."""
        rows = np.repeat(groups.reshape(-1), self.widths)
        return Pattern.of(rows, self.indices, (count, self.columns))


def union(patterns: Sequence[Pattern]) -> Pattern:
    """Return the union of patterns of one shape."""
    first = patterns[0]
    if all(_is_same(first, other) for other in patterns[1:]):
        return first
    rows = np.concatenate([p.row_indices for p in patterns])
    columns = np.concatenate([p.indices for p in patterns])
    return Pattern.of(rows, columns, first.shape)


def _is_same(a: Pattern, b: Pattern) -> bool:
    return np.array_equal(a.starts, b.starts) and np.array_equal(a.indices, b.indices)
