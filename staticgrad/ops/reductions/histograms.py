"""Histograms: how many elements fall between neighbouring edges.

The number of bins is static, the edges may be data. Counts have no derivative; weights
and a density have that of the sums that they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgrad.ir.node import Tensor
from staticgrad.ir.types import INT64, is_float, kind_of
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.choice import maximum, minimum, where
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.checked_index import checked, taken
from staticgrad.ops.movement.reshaping import ravel
from staticgrad.ops.movement.spaces import linspace
from staticgrad.ops.movement.views import broadcasted
from staticgrad.ops.promotion import ArrayLike, as_tensor, quotients, stop_gradient
from staticgrad.ops.reductions.reduce import max as largest
from staticgrad.ops.reductions.reduce import min as smallest
from staticgrad.ops.reductions.reduce import sum as total
from staticgrad.ops.reductions.segments import bincount, searchsorted
from staticgrad.ops.reductions.series import diff
from staticgrad.ops.rules import shape_error

Range = tuple[Any, Any]


def histogram_bin_edges(
    a: ArrayLike,
    bins: Any = 10,
    range: Range | None = None,
    weights: ArrayLike | None = None,
) -> Tensor:
    """Return the edges of `bins` equal bins over the range of `a`.

    Or those of the `range`, or `bins` itself, if it is an array of edges. Names of
    rules for the number of bins, which would depend on the data, are a ShapeError.

    >>> import staticgrad as sg
    >>> y = sg.histogram_bin_edges([0.0, 1.0, 4.0], 2)
    >>> sg.compile(y, target="reference")().tolist()
    [0.0, 2.0, 4.0]
    """
    (x,) = quotients(stop_gradient(a))
    if isinstance(bins, str):
        raise shape_error("histogram", (x,), f"a number of bins, got {bins!r}")
    if not isinstance(bins, int | np.integer):
        return _given(x, bins)
    if bins < 1:
        raise shape_error("histogram", (x,), f"at least one bin, got {bins}")
    low, high = _ends(x, range)
    flat = low == high
    low, high = where(flat, low - 0.5, low), where(flat, high + 0.5, high)
    return linspace(low, high, int(bins) + 1)


def _given(x: Tensor, bins: ArrayLike) -> Tensor:
    edges = as_tensor(bins, x)
    if edges.ndim != 1:
        raise shape_error("histogram", (edges,), "edges along one axis")
    return edges


def _ends(x: Tensor, range: Range | None) -> tuple[Tensor, Tensor]:
    if range is not None:
        return as_tensor(range[0], x), as_tensor(range[1], x)
    if 0 in x.shape:
        return as_tensor(0.0, x), as_tensor(1.0, x)
    return smallest(x), largest(x)


def histogram(
    a: ArrayLike,
    bins: Any = 10,
    range: Range | None = None,
    density: bool | None = None,
    weights: ArrayLike | None = None,
) -> tuple[Tensor, Tensor]:
    """Count the elements of `a` in each bin; return counts and edges.

    A bin has its lower edge, the last one both; elements outside of all count nowhere.
    `weights`, of the shape of `a`, count instead of ones. With `density` the result is
    that per length whose integral is 1.

    >>> import staticgrad as sg
    >>> count, edges = sg.histogram([0.0, 1.0, 1.5, 4.0], 2)
    >>> sg.compile(count, target="reference")().tolist()
    [3, 1]
    """
    edges = histogram_bin_edges(a, bins, range, weights)
    (x,) = quotients(stop_gradient(ravel(a)))
    count = edges.shape[0]
    if not isinstance(count, int) or count < 2:
        raise shape_error("histogram", (edges,), "a static number of edges, at least 2")
    if isinstance(bins, int | np.integer):
        place = _of_equal_bins(x, edges, count - 1)
    else:
        place = searchsorted(edges, x, "right") - 1
        place = where(x == edges[-1], count - 2, place)
        place = maximum(minimum(place, count - 2), 0)
    inside = (x >= edges[0]) & (x <= edges[-1])
    found = bincount(place, _counted(inside, a, weights), count - 1)
    if weights is None or kind_of(as_tensor(weights).dtype) in "iub":
        kind = INT64 if weights is None else as_tensor(weights).dtype
        found = found if density else cast(found, kind)
    if density:
        found = found / diff(edges) / total(found)
    return found, edges


def _of_equal_bins(x: Tensor, edges: Tensor, bins: int) -> Tensor:
    """Return bins by arithmetic, corrected by the neighbouring edges, as NumPy."""
    width = (edges[-1] - edges[0]) / bins
    place = cast((x - edges[0]) / width, INT64)
    place = maximum(minimum(place, bins - 1), 0)
    index = checked(place, bins, wrap=False)
    low, high = taken(edges[:-1], index, 0), taken(edges[1:], index, 0)
    place = where((x >= high) & (place < bins - 1), place + 1, place)
    return where(x < low, maximum(place - 1, 0), place)


def _counted(inside: Tensor, a: ArrayLike, weights: ArrayLike | None) -> Tensor:
    """Return the weight of each element, 0 of those outside of all bins."""
    if weights is None:
        return where(inside, frozen(np.ones((), np.float64)), 0.0)
    w = as_tensor(weights)
    if w.shape != as_tensor(a).shape:
        raise shape_error("histogram", (as_tensor(a), w), "a weight for each element")
    wide = w if is_float(w.dtype) else cast(w, np.float64)
    return where(inside, broadcasted(ravel(wide), inside.shape), 0)


__all__ = ["histogram", "histogram_bin_edges"]
