"""Selection of the first elements in descending order: the op top_k."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import ShapeError
from staticgrad.ir.graph import apply, apply_multi
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Op, Sample, Select, define
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.types import INT64, DType, TensorType
from staticgrad.ops.movement.checked_index import checked, taken
from staticgrad.ops.movement.scatter import filled, scattered
from staticgrad.ops.movement.slicing import cut, flipped_axes
from staticgrad.ops.movement.views import numbers
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.reductions.sorting import ARGSORT
from staticgrad.ops.sizes import as_dim

Array = npt.NDArray[Any]

COUNTED = 14  # comparisons per element; beyond, sorting is faster
# NaN before every number; for integers and bools only the first part can hold.
AHEAD = "c_or({0} > {1}, c_and({0} != {0}, {1} == {1}))"


def _shape(x: TensorType, *, k: Dim) -> tuple[Shape, Shape]:
    if not x.shape:
        raise ShapeError("an array of at least one axis")
    left = x.shape[-1] - k
    if any(isinstance(d, int) and d < 0 for d in (left, k)):
        raise ShapeError(f"a k from 0 to {x.shape[-1]}, got {k}")
    shape = (*x.shape[:-1], k)
    return shape, shape


def _dtype(x: TensorType, *, k: Dim) -> tuple[DType, DType]:
    return x.dtype, INT64


def _vjp(
    g: tuple[Tensor | None, Tensor | None],
    y: tuple[Tensor, Tensor],
    x: Tensor,
    *,
    k: Dim,
) -> tuple[Tensor | None]:
    """Scatter the cotangent of the values to their places."""
    if g[0] is None:
        return (None,)
    index = checked(y[1], x.shape[-1], wrap=False)
    return (scattered(filled(0, x), index, g[0], x.ndim - 1, pointwise=True),)


def _jvp(
    tangents: tuple[Tensor | None],
    y: tuple[Tensor, Tensor],
    x: Tensor,
    *,
    k: Dim,
) -> tuple[Tensor | None, None]:
    """Gather the tangents at the places of the values."""
    if tangents[0] is None:
        return None, None
    index = checked(y[1], x.shape[-1], wrap=False)
    return taken(tangents[0], index, x.ndim - 1, pointwise=True), None


def _numpy(x: Array, *, k: int) -> tuple[Array, Array]:
    """Sort the negated ranks stably, so that equal elements keep their order."""
    n = x.shape[-1]
    backwards = np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    order = (n - 1 - backwards)[..., :k].astype(np.int64)
    return np.take_along_axis(x, order, -1), order


def _samples() -> list[Sample]:
    odd = np.array([1.0, np.nan, np.inf, 1.0, -np.inf, np.nan, 0.0, -0.0])
    rows = numbers(3, 5)[:, [3, 0, 4, 1, 2]]
    return [
        Sample((rows,), {"k": 2}),
        Sample((rows.T.copy().T,), {"k": 5}),
        Sample((numbers(7),), {"k": 3}),
        Sample((numbers(2, 2, 3),), {"k": 1}),
        Sample((numbers(2, 3),), {"k": 0}),
        Sample((numbers(0, 3),), {"k": 2}),
        Sample((odd,), {"k": 8}, grad=False),
        Sample((odd.astype("float32"),), {"k": 3}, grad=False),
        Sample((np.array([3, 1, 3, 2, 3, -(2**63)]),), {"k": 6}),
        Sample((np.array([True, False, True]),), {"k": 2}),
        Sample((np.array([0, 255, 7], np.uint8),), {"k": 3}),
    ]


TOP_K: Op = define(
    "top_k",
    shape=_shape,
    dtype=_dtype,
    vjp=_vjp,
    jvp=_jvp,
    code=Select(AHEAD),
    numpy=_numpy,
    samples=_samples,
    bad=lambda: [
        Bad((numbers(2),), {"k": 3}, ShapeError, "a k from 0 to 2"),
        Bad((numbers(2),), {"k": -1}, ShapeError, "a k from 0 to 2"),
        Bad((numbers(),), {"k": 0}, ShapeError, "at least one axis"),
    ],
    outputs=2,
)


def top_k(x: ArrayLike, k: int) -> tuple[Tensor, Tensor]:
    """Return the `k` largest elements along the last axis, and their int64 positions.

    They are in descending order, equal ones in the order in which they stand. A NaN
    comes before every number. The values are differentiable. A row of n takes about
    n + k^2 log(n / k) comparisons, and n k if it is increasing; with a k so large that
    a sort takes less, it is sorted.

    >>> import staticgrad as sg
    >>> values, places = sg.top_k([[3.0, 9.0, 5.0]], 2)
    >>> f = sg.compile((values, places), target="reference")
    >>> [a.tolist() for a in f()]
    [[[9.0, 5.0]], [[1, 2]]]
    """
    row, count = as_tensor(x), as_dim(k)
    n = row.shape[-1] if row.ndim else 0
    if isinstance(n, int) and isinstance(count, int) and _is_many(count, n):
        return _by_sorting(row, count)
    values, places = apply_multi(TOP_K, row, k=count)
    return values, places


def _is_many(k: int, n: int) -> bool:
    """Whether keeping k of n sorted takes more comparisons than sorting all.

    >>> _is_many(8, 1000), _is_many(64, 1000), _is_many(10, 10)
    (False, True, False)
    """
    return 0 < k <= n and k * k * (1 + log(n / k)) > COUNTED * n


def _by_sorting(x: Tensor, k: Dim) -> tuple[Tensor, Tensor]:
    """Take the last `k` of a stable ascending sort, backwards: ties keep order."""
    n = x.shape[-1]
    last = x.ndim - 1
    backwards = apply(ARGSORT, flipped_axes(x, (last,)))
    places = cut(n - 1 - flipped_axes(backwards, (last,)), last, 0, k)
    index = checked(places, n, wrap=False)
    return taken(x, index, last, pointwise=True), places


__all__ = ["top_k"]
