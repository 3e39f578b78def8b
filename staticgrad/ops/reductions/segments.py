"""Segments and bins: segment_sum and the like, bincount, searchsorted, digitize."""

from __future__ import annotations

from typing import Literal

import numpy as np

from staticgrad.ir.graph import default_dtype
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim, Size
from staticgrad.ir.types import INT64, is_float, kind_of
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.checked_index import checked, taken
from staticgrad.ops.movement.index_keys import as_index
from staticgrad.ops.movement.reshaping import ravel
from staticgrad.ops.movement.scatter import How, scattered
from staticgrad.ops.movement.views import broadcasted, reshaped
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted, quotients
from staticgrad.ops.reductions.reduce import highest, lowest
from staticgrad.ops.rules import dtype_error, shape_error
from staticgrad.ops.sizes import as_dim

SYMBOLIC_BITS = 32  # a symbolic axis has fewer than 2**32 elements


def _segments(
    name: str, data: ArrayLike, ids: ArrayLike, count: Dim, how: How, start: float
) -> Tensor:
    """Return `data` combined per segment along the first axis, from `start` on."""
    x, size = as_tensor(data), as_dim(count)
    if isinstance(size, int) and size < 0:
        raise shape_error(name, (), f"a number of segments >= 0, got {size}")
    index = as_index(ids, size, wrap=False, call=name)
    if x.shape[: index.ndim] != index.shape or index.ndim == 0:
        rule = "an id for each element along the first axes of the data"
        raise shape_error(name, (x, index), rule)
    base = frozen(np.asarray(start, x.dtype))
    rows = broadcasted(base, (size, *x.shape[index.ndim :]))
    return scattered(rows, index, x, 0, how)


def segment_sum(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: int | Size
) -> Tensor:
    """Return the sum of the rows of `data` that have each id in ``0..num_segments-1``.

    An id out of range is an IndexOutOfRange; the sum of no rows is 0.

    >>> import staticgrad as sg
    >>> y = sg.segment_sum([1, 2, 4], [0, 2, 0], 3)
    >>> sg.compile(y, target="reference")().tolist()
    [5, 0, 2]
    """
    return _segments("segment_sum", data, segment_ids, num_segments, "add", 0)


def segment_prod(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: int | Size
) -> Tensor:
    """Return the product of the rows of `data` that have each id; that of no rows is 1.

    >>> import staticgrad as sg
    >>> y = sg.segment_prod([3, 2, 4], [0, 2, 0], 3)
    >>> sg.compile(y, target="reference")().tolist()
    [12, 1, 2]
    """
    return _segments("segment_prod", data, segment_ids, num_segments, "multiply", 1)


def segment_max(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: int | Size
) -> Tensor:
    """Return the largest of the rows of `data` that have each id.

    That of no rows is what nothing is below: -inf, or the least integer.

    >>> import staticgrad as sg
    >>> y = sg.segment_max([1.0, 2.0, 4.0], [0, 2, 0], 3)
    >>> sg.compile(y, target="reference")().tolist()
    [4.0, -inf, 2.0]
    """
    x = as_tensor(data)
    least = lowest(x.dtype)
    return _segments("segment_max", x, segment_ids, num_segments, "maximum", least)


def segment_min(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: int | Size
) -> Tensor:
    """Return the smallest of the rows of `data` that have each id.

    That of no rows is what nothing is above: inf, or the greatest integer.

    >>> import staticgrad as sg
    >>> y = sg.segment_min([1.0, 2.0, 4.0], [0, 2, 0], 3)
    >>> sg.compile(y, target="reference")().tolist()
    [1.0, inf, 2.0]
    """
    x = as_tensor(data)
    most = highest(x.dtype)
    return _segments("segment_min", x, segment_ids, num_segments, "minimum", most)


def bincount(
    x: ArrayLike,
    weights: ArrayLike | None = None,
    length: int | Size | None = None,
    *,
    minlength: int = 0,
) -> Tensor:
    """Count how often each number below `length` occurs in `x`, or sum its weights.

    Unlike NumPy's, the result has a `length` that does not depend on the data; a number
    outside of it is an IndexOutOfRange. A `minlength` is no length, and a ShapeError
    where there is none; a `length` below it becomes it.

    >>> import staticgrad as sg
    >>> sg.compile(sg.bincount([0, 2, 2], length=4), target="reference")().tolist()
    [1, 0, 2, 0]
    """
    numbers = as_tensor(x)
    if length is None:
        rule = "a length, since that of the result cannot depend on the data"
        if minlength:
            rule += f", got minlength={minlength}"
        raise shape_error("bincount", (numbers,), rule, "pass length=")
    if minlength:
        if not isinstance(length, int):
            rule = f"a length that is a number beside minlength={minlength}"
            raise shape_error("bincount", (numbers,), rule, "give the larger one")
        length = max(length, minlength)
    if numbers.ndim != 1:
        raise shape_error("bincount", (numbers,), "an array of one axis")
    if weights is None:
        ones = broadcasted(frozen(np.ones((), INT64)), numbers.shape)
        return _segments("bincount", ones, numbers, length, "add", 0)
    new = as_tensor(weights)
    if not is_float(new.dtype):
        new = cast(new, default_dtype() if new.type.weak else "float64")
    weighted = broadcasted(new, numbers.shape)
    return _segments("bincount", weighted, numbers, length, "add", 0)


def segment_mean(
    data: ArrayLike, segment_ids: ArrayLike, num_segments: int | Size
) -> Tensor:
    """Return the mean of the rows of `data` that have each id; that of no rows is 0.

    Integers become float64.

    >>> import staticgrad as sg
    >>> y = sg.segment_mean([1.0, 2.0, 4.0], [0, 2, 0], 3)
    >>> sg.compile(y, target="reference")().tolist()
    [2.5, 0.0, 2.0]
    """
    (x,) = quotients(data)
    total = segment_sum(x, segment_ids, num_segments)
    index = as_tensor(segment_ids)
    ones = broadcasted(frozen(np.ones((), x.dtype)), index.shape)
    rows = segment_sum(ones, index, num_segments)
    rows = named("maximum", rows, frozen(np.ones((), x.dtype)))
    return total / reshaped(rows, (*rows.shape, *(1,) * (total.ndim - 1)))


def searchsorted(
    a: ArrayLike,
    v: ArrayLike,
    side: Literal["left", "right"] = "left",
    sorter: ArrayLike | None = None,
) -> Tensor:
    """Return where the elements of `v` go in the sorted `a` to keep it sorted.

    With `side` "left" before equal elements, with "right" after them. `sorter` are the
    indices that sort `a`, if it is not sorted. A NaN comes after every number. By
    halving: log2 of the size of `a` steps.

    >>> import staticgrad as sg
    >>> y = sg.searchsorted([1.0, 2.0, 2.0, 5.0], [2.0, 9.0])
    >>> sg.compile(y, target="reference")().tolist()
    [1, 4]
    """
    line, values = promoted(a, v)
    if line.ndim != 1:
        raise shape_error("searchsorted", (line,), "a sorted array of one axis")
    if sorter is not None:
        line = taken(line, as_index(sorter, line.shape[0], call="searchsorted"), 0)
    if side not in ("left", "right"):
        raise shape_error("searchsorted", (), f"side 'left' or 'right', got {side!r}")
    n = line.shape[0]
    place = broadcasted(frozen(np.zeros((), INT64)), values.shape)
    bits = n.bit_length() if isinstance(n, int) else SYMBOLIC_BITS
    extent = as_tensor(n, place)
    for bit in reversed(range(bits)):
        further = place + (1 << bit)
        inside = further <= extent
        last = named("minimum", further, extent) - 1
        element = taken(line, checked(last, n, wrap=False), 0)
        right = inside & _stands_before(element, values, side)
        place = named("where", right, further, place)
    return place


def _stands_before(x: Tensor, v: Tensor, side: str) -> Tensor:
    """Whether an element of the sorted array precedes the insertion point of v."""
    return ~_less(v, x) if side == "right" else _less(x, v)


def _less(x: Tensor, y: Tensor) -> Tensor:
    """Compare ``x < y`` with NaN greater than every number."""
    less = x < y
    return (less | ((y != y) & (x == x))) if is_float(x.dtype) else less


def digitize(x: ArrayLike, bins: ArrayLike, right: bool = False) -> Tensor:
    """Return the number of the bin of each element of `x`; `bins` are increasing edges.

    Bin k is ``bins[k-1] <= x < bins[k]``, with `right` ``bins[k-1] < x <= bins[k]``.
    Edges that are no Tensor may decrease: bin k is ``bins[k] <= x < bins[k-1]``, with
    `right` ``bins[k] < x <= bins[k-1]``. ShapeError if they do neither.

    >>> import staticgrad as sg
    >>> y = sg.digitize([0.5, 1.0, 7.0], [0.0, 1.0, 2.0])
    >>> sg.compile(y, target="reference")().tolist()
    [1, 2, 3]
    """
    values = as_tensor(x)
    if kind_of(values.dtype) == "b":
        raise dtype_error("digitize", (values,), "numbers", "cast with .astype")
    if not isinstance(bins, Tensor) and not _increasing(bins):
        edges = np.ravel(np.asarray(bins))[::-1]
        behind = searchsorted(edges, values, "left" if right else "right")
        return edges.size - behind
    return searchsorted(ravel(bins), values, "left" if right else "right")


def _increasing(bins: ArrayLike) -> bool:
    """Whether known edges never decrease; ShapeError if they go up and down."""
    edges = np.ravel(np.asarray(bins))
    if not np.any(edges[1:] < edges[:-1]):
        return True
    if np.any(edges[1:] > edges[:-1]):
        rule = "edges that only increase or only decrease"
        raise shape_error("digitize", (), rule, "sort them")
    return False


__all__ = [
    "bincount", "digitize", "searchsorted", "segment_max", "segment_mean",
    "segment_min", "segment_prod", "segment_sum",
]  # fmt: skip
