"""Python slices as normalised bounds: start, size and step of an axis.

NumPy's clipping is no polynomial of sizes. So where a bound or the axis is symbolic the
elements have to exist, which each call checks: ``x[1:]`` has ``n - 1`` elements and
requires n >= 1, ``x[:3]`` requires n >= 3, ``x[:n]`` an axis of at least n.
"""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim, Size
from staticgrad.ops.rules import shape_error
from staticgrad.ops.sizes import as_dim

Bounds: TypeAlias = tuple[Dim, Dim, int]  # start, size, step


def bounds(key: slice, n: Dim, x: Tensor) -> Bounds:
    """Return start, size and step of ``key`` on an axis of `n` elements of `x`."""
    for bound in (key.start, key.stop, key.step):
        if isinstance(bound, Tensor):
            raise shape_error(
                "a slice",
                (),
                f"bounds known when the graph is built, got a Tensor {bound.type}",
                "gather with sg.take(x, start + sg.arange(size), axis)",
            )
    start, stop = _bound(key.start), _bound(key.stop)
    step = 1 if key.step is None else operator.index(key.step)
    if step == 0:
        raise shape_error("a slice", (x,), "a step that is not 0")
    if isinstance(start, Size) or isinstance(stop, Size) or isinstance(n, Size):
        return _symbolic_bounds(start, stop, step, n)
    return _static_bounds(start, stop, step, n)


def _bound(bound: Any) -> Dim | None:
    return None if bound is None else as_dim(bound)


def _static_bounds(
    start: int | None, stop: int | None, step: int, n: int
) -> tuple[int, int, int]:
    first, last, step = slice(start, stop, step).indices(n)
    return first, len(range(first, last, step)), step


def _symbolic_bounds(start: Dim | None, stop: Dim | None, step: int, n: Dim) -> Bounds:
    """Return unclipped bounds; the slice's rule rejects those outside."""
    begin, end = (0, n) if step > 0 else (n - 1, -1)
    first = begin if start is None else _from_end(start, n)
    last = end if stop is None else _from_end(stop, n)
    low, high = (first, last) if step > 0 else (last + 1, first + 1)
    if high - low == 0:
        return (0 if step > 0 else -1), 0, step
    return first, (high - low + abs(step) - 1) // abs(step), step


def _from_end(bound: Dim, n: Dim) -> Dim:
    """Return a bound from the start of the axis; negative ones count from its end."""
    return n + bound if isinstance(bound, int) and bound < 0 else bound
