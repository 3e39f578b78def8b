"""Interpolation: interp, gradient, unwrap; and isin.

Composites, with the derivatives of their parts. At a sample point interp has the slope
of the piece to the right; outside of the range it is constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import product
from staticgrad.ir.types import kind_of
from staticgrad.ops.elementwise.choice import maximum, minimum, where
from staticgrad.ops.elementwise.division import remainder
from staticgrad.ops.leaves import frozen, is_number
from staticgrad.ops.movement.checked_index import checked, taken
from staticgrad.ops.movement.indexing import getitem
from staticgrad.ops.movement.joining import concatenate
from staticgrad.ops.movement.reshaping import axis_list, expand_dims, ravel
from staticgrad.ops.movement.views import reshaped
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted, quotients, widened
from staticgrad.ops.reductions.reduce import any
from staticgrad.ops.reductions.scans import cumsum
from staticgrad.ops.reductions.segments import searchsorted
from staticgrad.ops.reductions.series import diff, part
from staticgrad.ops.reductions.sorting import sort
from staticgrad.ops.rules import one_axis, shape_error

COMPARED_BYTES = 3072  # compared one by one; beyond, bisection is faster


@widened
def interp(
    x: ArrayLike,
    xp: ArrayLike,
    fp: ArrayLike,
    left: ArrayLike | None = None,
    right: ArrayLike | None = None,
    period: float | None = None,
) -> Tensor:
    """Interpolate linearly at `x` between the values `fp` at increasing `xp`.

    Below ``xp[0]`` it is `left` (``fp[0]``), above ``xp[-1]`` it is `right`
    (``fp[-1]``). With a `period` points are taken modulo it; `xp`, which must not be a
    Tensor then, need not increase. The gradient flows to `x`, `xp` and `fp`. ShapeError
    unless `xp` and `fp` have one axis of one size, at least 1.

    >>> import staticgrad as sg
    >>> y = sg.interp([0.5, 9.0], [0.0, 1.0, 2.0], [0.0, 10.0, 0.0])
    >>> sg.compile(y, target="reference")().tolist()
    [5.0, 0.0]
    """
    value, points, heights = quotients(x, xp, fp)
    if points.ndim != 1 or points.shape != heights.shape or points.shape[0] == 0:
        rule = "xp and fp of one axis and one size, at least 1"
        raise shape_error("interp", (points, heights), rule)
    if period is not None:
        value, points, heights = _periodic(xp, value, points, heights, period)
        left = right = None
    first, end = getitem(points, 0), getitem(points, -1)
    low = getitem(heights, 0) if left is None else left
    high = getitem(heights, -1) if right is None else right
    inside = where(value < first, first, where(value > end, end, value))
    result = where(value == end, getitem(heights, -1), _pieces(inside, points, heights))
    return where(value < first, low, where(value > end, high, result))


def _pieces(x: Tensor, points: Tensor, heights: Tensor) -> Tensor:
    """Interpolate linearly between the two points around x."""
    n = points.shape[0]
    last = as_tensor(n, frozen(np.zeros((), np.int64))) - 1
    after = searchsorted(points, x, "right")
    upper = checked(minimum(maximum(after, 1), last), n, wrap=False)
    lower = checked(maximum(upper - 1, 0), n, wrap=False)
    x0, x1 = taken(points, lower, 0), taken(points, upper, 0)
    y0, y1 = taken(heights, lower, 0), taken(heights, upper, 0)
    width = x1 - x0
    part = (x - x0) / where(width == 0, 1, width)
    return y0 + part * (y1 - y0)


def _periodic(
    xp: ArrayLike, x: Tensor, points: Tensor, heights: Tensor, period: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return sorted points with one more, a period away, at each end."""
    if isinstance(xp, Tensor):
        rule = "an xp that is known when the graph is built, beside a period"
        raise shape_error("interp", (points,), rule, "pass an array")
    if period == 0:
        raise shape_error("interp", (), "a period that is not 0")
    size = abs(period)
    known = np.asarray(xp, points.dtype) % size
    order = np.argsort(known)
    known, turned = known[order], taken(heights, _known_index(order), 0)
    ends = [known[-1:] - size, known, known[:1] + size]
    around = [getitem(turned, slice(-1, None)), turned, getitem(turned, slice(0, 1))]
    return remainder(x, size), frozen(np.concatenate(ends)), concatenate(around)


def _known_index(order: np.ndarray[Any, Any]) -> Tensor:
    """Return a known permutation as a checked index."""
    return checked(frozen(order.astype(np.int64)), len(order), wrap=False)


@widened
def gradient(
    f: ArrayLike,
    *varargs: ArrayLike,
    axis: int | Sequence[int] | None = None,
    edge_order: Literal[1, 2] = 1,
) -> Tensor | tuple[Tensor, ...]:
    """Return central differences of `f` along each axis, of second order.

    They are one-sided at the ends. `varargs` are the distances: one number for all
    axes, or for each axis a number or the coordinates of its points. The ends are of
    order `edge_order`. One Tensor for one axis, a tuple for several. ShapeError where
    an axis has fewer than ``edge_order + 1`` elements. Not a derivative of the graph:
    that is ``sg.grad``.

    >>> import staticgrad as sg
    >>> sg.compile(sg.gradient([1.0, 2.0, 4.0, 7.0]), target="reference")().tolist()
    [1.0, 1.5, 2.5, 3.0]
    """
    (x,) = quotients(f)
    if edge_order not in (1, 2):
        raise shape_error("gradient", (), f"edge_order 1 or 2, got {edge_order}")
    given = tuple(range(x.ndim)) if axis is None else axis_list("gradient", axis)
    axes = [one_axis("gradient", x, a) for a in given]
    steps: Sequence[ArrayLike] = varargs or (1.0,)
    steps = list(steps) * len(axes) if len(steps) == 1 else list(steps)
    if len(steps) != len(axes):
        rule = f"one distance, or one for each of {len(axes)} axes, got {len(steps)}"
        raise shape_error("gradient", (x,), rule)
    results = tuple(
        _slopes(x, a, h, edge_order) for a, h in zip(axes, steps, strict=True)
    )
    return results[0] if len(results) == 1 else results


def _slopes(x: Tensor, axis: int, step: ArrayLike, order: int) -> Tensor:
    size = x.shape[axis]
    if isinstance(size, int) and size < order + 1:
        rule = f"at least {order + 1} elements along axis {axis}"
        raise shape_error("gradient", (x,), rule)
    if not is_number(step) and as_tensor(step).ndim == 1:
        return _uneven(x, axis, as_tensor(step), order)
    h = as_tensor(step, x)

    def at(k: int) -> Tensor:
        return part(x, axis, slice(k, k + 1 or None))

    later, earlier = part(x, axis, slice(2, None)), part(x, axis, slice(0, -2))
    inside = (later - earlier) / (2.0 * h)
    if order == 1:
        ends = (at(1) - at(0)) / h, (at(-1) - at(-2)) / h
    else:
        ends = (
            (-1.5 * at(0) + 2.0 * at(1) - 0.5 * at(2)) / h,
            (0.5 * at(-3) - 2.0 * at(-2) + 1.5 * at(-1)) / h,
        )
    return concatenate([ends[0], inside, ends[1]], axis)


def _uneven(x: Tensor, axis: int, points: Tensor, order: int) -> Tensor:
    """Differentiate at uneven points: Fornberg's weights for three points."""
    if points.shape[0] != x.shape[axis]:
        rule = f"as many coordinates as elements along axis {axis}"
        raise shape_error("gradient", (x, points), rule)
    widths = diff(points)
    shape = tuple(widths.shape[0] if k == axis else 1 for k in range(x.ndim))
    h = reshaped(widths, shape)
    before, after = part(h, axis, slice(0, -1)), part(h, axis, slice(1, None))
    both = before + after
    low = -after / (before * both)
    middle = (after - before) / (before * after)
    high = before / (after * both)
    inside = (
        low * part(x, axis, slice(0, -2))
        + middle * part(x, axis, slice(1, -1))
        + high * part(x, axis, slice(2, None))
    )

    def at(t: Tensor, k: int) -> Tensor:
        return part(t, axis, slice(k, k + 1 or None))

    if order == 1:
        first = (at(x, 1) - at(x, 0)) / at(h, 0)
        last = (at(x, -1) - at(x, -2)) / at(h, -1)
        return concatenate([first, inside, last], axis)
    d, e = at(h, 0), at(h, 1)
    first = (
        -(2.0 * d + e) / (d * (d + e)) * at(x, 0)
        + (d + e) / (d * e) * at(x, 1)
        - d / (e * (d + e)) * at(x, 2)
    )
    d, e = at(h, -2), at(h, -1)
    last = (
        e / (d * (d + e)) * at(x, -3)
        - (e + d) / (d * e) * at(x, -2)
        + (2.0 * e + d) / (e * (d + e)) * at(x, -1)
    )
    return concatenate([first, inside, last], axis)


def unwrap(
    p: ArrayLike,
    discont: float | None = None,
    axis: int = -1,
    *,
    period: float = 2 * math.pi,
) -> Tensor:
    """Return `p` with jumps along `axis` of more than `discont` made smaller.

    Multiples of `period` are added so that neighbours differ by at most half of it;
    `discont` is at least half of it, its default. Integers stay integers where the
    period is one. The derivative is that of `p`.

    >>> import staticgrad as sg
    >>> y = sg.unwrap([0, 1, 2, -1, 0], period=4)
    >>> sg.compile(y, target="reference")().tolist()
    [0, 1, 2, 3, 4]
    """
    x = as_tensor(p)
    if kind_of(x.dtype) not in "iu" or not isinstance(period, int):
        (x,) = quotients(x)
    along = one_axis("unwrap", x, axis)
    step = diff(x, axis=along)
    half = period / 2 if kind_of(x.dtype) == "f" else period // 2
    moved = remainder(step + half, period) - half
    even = kind_of(x.dtype) == "f" or period % 2 == 0
    if even:
        moved = where((moved == -half) & (step > 0), half, moved)
    jump = half if discont is None else discont
    turns = where(abs(step) < jump, as_tensor(0, x), moved - step)
    later = part(x, along, slice(1, None)) + cumsum(turns, along, x.dtype)
    return concatenate([part(x, along, slice(0, 1)), later], along)


def isin(
    element: ArrayLike,
    test_elements: ArrayLike,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: str | None = None,
) -> Tensor:
    """Whether each of `element` occurs in `test_elements`, or does not if `invert`.

    Each is compared with each, or, where `test_elements` are many, looked up in them
    when they are sorted. `assume_unique` and `kind` change nothing. NaN occurs nowhere.

    >>> import staticgrad as sg
    >>> sg.compile(sg.isin([[1, 2], [3, 4]], [2, 3]), target="reference")().tolist()
    [[False, True], [True, False]]
    """
    x, among = promoted(element, test_elements)
    n = product(among.shape)
    if isinstance(n, int) and n * among.dtype.itemsize > COMPARED_BYTES:
        line = sort(among, None)
        place = minimum(searchsorted(line, x), n - 1)
        found = taken(line, checked(place, n, wrap=False), 0) == x
    else:
        found = any(expand_dims(x, -1) == ravel(among), -1)
    return ~found if invert else found


__all__ = ["gradient", "interp", "isin", "unwrap"]
