"""Grids of coordinates, indices and powers: meshgrid, ix_, vander; and cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim, Shape, Size, product
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import dtype_of
from staticgrad.ops.movement.checked_index import position
from staticgrad.ops.movement.filling import ones_like
from staticgrad.ops.movement.index_keys import as_index, as_integers
from staticgrad.ops.movement.indexing import within
from staticgrad.ops.movement.joining import stack
from staticgrad.ops.movement.reshaping import broadcast_arrays, moveaxis
from staticgrad.ops.movement.views import broadcasted, reshaped
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted
from staticgrad.ops.rules import one_axis, shape_error
from staticgrad.ops.sizes import as_shape


def meshgrid(
    *xi: ArrayLike,
    copy: bool = True,
    sparse: bool = False,
    indexing: Literal["xy", "ij"] = "xy",
) -> tuple[Tensor, ...]:
    """Return the coordinates of a grid from those along each axis, one array per axis.

    With `indexing` "xy" the first two axes are exchanged, as for images; with `sparse`
    the arrays have size 1 along all axes but their own. `copy` changes nothing.

    >>> import staticgrad as sg
    >>> x, y = sg.meshgrid([1, 2, 3], [10, 20])
    >>> x.shape, sg.compile(y, target="reference")().tolist()
    ((2, 3), [[10, 10, 10], [20, 20, 20]])
    """
    if indexing not in ("xy", "ij"):
        raise shape_error("meshgrid", (), f"indexing 'xy' or 'ij', got {indexing!r}")
    lines = [as_tensor(x) for x in xi]
    rank = len(lines)
    order = list(range(rank))
    if indexing == "xy" and rank > 1:
        order[:2] = [1, 0]
    grids = [
        reshaped(x, _along(axis, product(x.shape), rank))
        for x, axis in zip(lines, order, strict=True)
    ]
    return tuple(grids) if sparse or not grids else broadcast_arrays(*grids)


def _along(axis: int, size: int | Size, rank: int) -> Shape:
    return (1,) * axis + (size,) + (1,) * (rank - axis - 1)


def indices(
    dimensions: Sequence[int | Size],
    dtype: npt.DTypeLike = "int64",
    sparse: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Return the index of each element along each axis of a grid of these `dimensions`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.indices((2, 2)), target="reference")().tolist()
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    shape = as_shape(dimensions)
    rank, found = len(shape), dtype_of("indices", dtype)
    lines = [
        reshaped(position((n,), 0, found), _along(axis, n, rank))
        for axis, n in enumerate(shape)
    ]
    if sparse:
        return tuple(lines)
    if not lines:
        raise shape_error("indices", (), "at least one dimension")
    return stack([broadcasted(line, shape) for line in lines])


def vander(x: ArrayLike, N: int | None = None, increasing: bool = False) -> Tensor:
    """Return the matrix of powers of `x`, descending, or ascending if `increasing`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.vander([2, 3], 3), target="reference")().tolist()
    [[4, 2, 1], [9, 3, 1]]
    """
    line = as_tensor(x)
    if line.ndim != 1:
        raise shape_error("vander", (line,), "an array of one axis")
    count = line.shape[0] if N is None else N
    if not isinstance(count, int) or count < 1:
        rule = f"a number of powers >= 1, got {count}"
        raise shape_error("vander", (line,), rule, "give N")
    powers = [ones_like(line)]
    for _ in range(count - 1):
        powers.append(powers[-1] * line)
    return stack(powers if increasing else powers[::-1], axis=1)


def ix_(*args: ArrayLike) -> tuple[Tensor, ...]:
    """Return indices along one axis each, shaped so that together they select a grid.

    >>> import staticgrad as sg
    >>> x = sg.constant([[1, 2, 3], [4, 5, 6]])
    >>> y = x[sg.ix_([0, 1], [0, 2])]
    >>> sg.compile(y, target="reference")().tolist()
    [[1, 3], [4, 6]]
    """
    lines = [as_tensor(as_integers(_known(arg))) for arg in args]
    if any(line.ndim != 1 or line.dtype.kind != "i" for line in lines):
        raise shape_error("ix_", lines, "integers along one axis each")
    return tuple(
        reshaped(line, _along(axis, line.shape[0], len(lines)))
        for axis, line in enumerate(lines)
    )


def _known(arg: ArrayLike) -> ArrayLike:
    """Return the indices of a known mask; anything else as it is."""
    if isinstance(arg, Tensor):
        return arg
    array = np.asarray(arg)
    return np.flatnonzero(array) if array.dtype.kind == "b" else arg


def ravel_multi_index(
    multi_index: Sequence[ArrayLike],
    dims: Sequence[int | Size],
    mode: str | Sequence[str] = "raise",
    order: str = "C",
) -> Tensor:
    """Return positions in an array of shape `dims`, raveled, of multi-indices.

    An index out of range is an IndexOutOfRange; with `mode` "wrap" it is taken modulo
    the size, with "clip" it becomes the nearest one.

    >>> import staticgrad as sg
    >>> y = sg.ravel_multi_index(([0, 1], [2, 0]), (2, 3))
    >>> sg.compile(y, target="reference")().tolist()
    [2, 3]
    """
    shape = as_shape(dims)
    parts = list(multi_index)
    modes = [mode] * len(shape) if isinstance(mode, str) else list(mode)
    if len(parts) != len(shape) or len(modes) != len(shape):
        rule = f"an index for each of {len(shape)} dimensions, got {len(parts)}"
        raise shape_error("ravel_multi_index", (), rule)
    strides = _strides("ravel_multi_index", shape, order)
    flat: Tensor | None = None
    for part, n, how, stride in zip(parts, shape, modes, strides, strict=True):
        moved = part if how == "raise" else within(part, n, how)
        term = as_index(moved, n, False, "ravel_multi_index") * stride
        flat = term if flat is None else flat + term
    if flat is None:
        raise shape_error("ravel_multi_index", (), "at least one dimension")
    return flat


def _strides(name: str, shape: Shape, order: str) -> list[Dim]:
    if order not in ("C", "F"):
        raise shape_error(name, (), f"order C or F, got {order!r}")
    steps = range(len(shape))
    if order == "C":
        return [product(shape[k + 1 :]) for k in steps]
    return [product(shape[:k]) for k in steps]


def unravel_index(
    indices: ArrayLike, shape: Sequence[int | Size], order: str = "C"
) -> tuple[Tensor, ...]:
    """Return the index along each axis of `shape` of positions in it raveled.

    An index out of range is an IndexOutOfRange.

    >>> import staticgrad as sg
    >>> y = sg.unravel_index([2, 3], (2, 3))
    >>> [v.tolist() for v in sg.compile(y, target="reference")()]
    [[0, 1], [2, 0]]
    """
    dims = as_shape(shape)
    place = as_index(indices, product(dims), False, "unravel_index")
    strides = _strides("unravel_index", dims, order)
    return tuple(place // stride % n for stride, n in zip(strides, dims, strict=True))


def cross(
    a: ArrayLike,
    b: ArrayLike,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Tensor:
    """Return the vector product of vectors of three elements; other axes broadcast.

    Vectors of two elements, which NumPy 2 has deprecated, are refused.

    >>> import staticgrad as sg
    >>> sg.compile(sg.cross([1, 0, 0], [0, 1, 0]), target="reference")().tolist()
    [0, 0, 1]
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = promoted(a, b)
    places = one_axis("cross", x, axisa), one_axis("cross", y, axisb)
    if x.shape[places[0]] != 3 or y.shape[places[1]] != 3:
        raise shape_error("cross", (x, y), "vectors of three elements")
    x, y = moveaxis(x, places[0], -1), moveaxis(y, places[1], -1)
    parts = [
        x[..., i] * y[..., j] - x[..., j] * y[..., i]
        for i, j in ((1, 2), (2, 0), (0, 1))
    ]
    result = stack(parts, axis=-1)
    return moveaxis(cast(result, x.dtype), -1, one_axis("cross", result, axisc))


__all__ = [
    "cross", "indices", "ix_", "meshgrid", "ravel_multi_index", "unravel_index",
    "vander",
]  # fmt: skip
