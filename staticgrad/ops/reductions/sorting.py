"""Sorting: sort and argsort.

Equal elements keep their order, NaN comes last, and -0.0 equals 0.0, as NumPy's stable
sort has it. Derivatives of values are those of taking them from their places.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from staticgrad.errors import GraphError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Op, Sample, Sort, define
from staticgrad.ir.size import Shape
from staticgrad.ir.types import INT64, DType, TensorType
from staticgrad.ops.movement.checked_index import checked, taken
from staticgrad.ops.movement.reshaping import moveaxis, ravel
from staticgrad.ops.movement.scatter import filled, scattered
from staticgrad.ops.movement.views import numbers
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.rules import one_axis

Array = npt.NDArray[Any]
Kind = Literal["quicksort", "mergesort", "heapsort", "stable"] | None
KINDS = (None, "quicksort", "mergesort", "heapsort", "stable")


def _shape(x: TensorType) -> Shape:
    if not x.shape:
        raise ShapeError("an array of at least one axis")
    return x.shape


def _vjp(g: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor]:
    """Scatter the cotangent to where the values were."""
    index = checked(apply(ARGSORT, x), x.shape[-1], wrap=False)
    return (scattered(filled(0, x), index, g, x.ndim - 1, pointwise=True),)


def _jvp(tangents: tuple[Tensor | None], y: Tensor, x: Tensor) -> Tensor | None:
    """Gather the tangents at the places of the values."""
    if tangents[0] is None:
        return None
    index = checked(apply(ARGSORT, x), x.shape[-1], wrap=False)
    return taken(tangents[0], index, x.ndim - 1, pointwise=True)


def _argsorted(x: Array) -> Array:
    return np.argsort(x, axis=-1, kind="stable").astype(np.int64)


def _sorted(x: Array) -> Array:
    return np.take_along_axis(x, _argsorted(x), -1)


def _samples(grad: bool) -> list[Sample]:
    odd = np.array([1.0, np.nan, np.inf, 1.0, -np.inf, np.nan, 0.5, -2.0])
    rows = numbers(3, 5)[:, [3, 0, 4, 1, 2]]
    long = np.random.default_rng(0).normal(size=(2, 300))
    ties = np.random.default_rng(1).integers(-9, 9, (2, 150))
    smooth = [rows, rows.T.copy().T, numbers(7)[::-1].copy(), numbers(2, 2, 1)]
    others = [
        odd, odd.astype("float32"), np.zeros((2, 0)), np.zeros((0, 3)), long,
        long.astype("float32"), np.array([3, 1, 3, 2, 3, -(2**63)]), ties,
        ties.astype("int8"), ties.astype("int16"), (ties + 9).astype("uint32"),
        ties % 2 == 0, np.array([0, 255, 7], np.uint8),
    ]  # fmt: skip
    return [
        *(Sample((x,), grad=grad) for x in smooth),
        *(Sample((x,), grad=False) for x in others),
    ]


def _bad() -> list[Bad]:
    return [Bad((numbers(),), {}, ShapeError, "at least one axis")]


def _keep(x: TensorType) -> DType:
    return x.dtype


SORT: Op = define(
    "sort",
    shape=_shape,
    dtype=_keep,
    vjp=_vjp,
    jvp=_jvp,
    code=Sort(places=False),
    numpy=_sorted,
    samples=lambda: _samples(grad=True),
    bad=_bad,
)

ARGSORT: Op = define(
    "argsort",
    shape=_shape,
    dtype=lambda x: INT64,
    vjp=None,
    code=Sort(places=True),
    numpy=_argsorted,
    samples=lambda: _samples(grad=False),
    bad=_bad,
)


def sort(
    a: ArrayLike,
    axis: int | None = -1,
    kind: Kind = None,
    order: None = None,
    *,
    stable: bool | None = None,
) -> Tensor:
    """Return the elements in ascending order along `axis`, or all if it is None.

    Equal elements keep their order whatever `kind` and `stable` are, and a NaN comes
    after every number. Differentiable: the gradient goes to where an element was.
    Rows of up to 96 elements, of small dtypes 24 for each byte, are counted, each
    element against each; longer ones are sorted by digits, a pass for each byte of the
    dtype: linear in their length.

    >>> import staticgrad as sg
    >>> sg.compile(sg.sort([[3.0, 9.0, 5.0]]), target="reference")().tolist()
    [[3.0, 5.0, 9.0]]
    """
    return _along("sort", SORT, a, axis, kind, order)


def argsort(
    a: ArrayLike,
    axis: int | None = -1,
    kind: Kind = None,
    order: None = None,
    *,
    stable: bool | None = None,
) -> Tensor:
    """Return the int64 places of the elements in ascending order along `axis`.

    ``sg.take_along_axis(a, sg.argsort(a), -1)`` is sorted. Places of equal elements are
    in ascending order whatever `kind` and `stable` are, and a NaN comes after every
    number.

    >>> import staticgrad as sg
    >>> sg.compile(sg.argsort([30, 10, 20, 10]), target="reference")()
    array([1, 3, 2, 0])
    """
    return _along("argsort", ARGSORT, a, axis, kind, order)


def _along(
    name: str, op: Op, a: ArrayLike, axis: int | None, kind: Kind, order: None
) -> Tensor:
    if kind not in KINDS:
        raise GraphError(f"{name} requires a kind among {KINDS[1:]}, got {kind!r}")
    if order is not None:
        raise GraphError(f"{name} requires order=None: there are no fields to order by")
    x = as_tensor(a)
    if axis is None:
        return apply(op, ravel(x))
    place = one_axis(name, x, axis)
    return moveaxis(apply(op, moveaxis(x, place, -1)), -1, place)


__all__ = ["argsort", "sort"]
