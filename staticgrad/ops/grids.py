"""Grids of coordinates and powers: meshgrid, indices, vander; and cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy.typing as npt

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Shape, Size, product
from staticgrad.ops.casting import cast
from staticgrad.ops.fill import ones_like
from staticgrad.ops.index import position
from staticgrad.ops.leaves import dtype_of
from staticgrad.ops.place import stack
from staticgrad.ops.promote import ArrayLike, as_tensor, promoted
from staticgrad.ops.rules import one_axis, shape_error
from staticgrad.ops.shape import broadcast_arrays, moveaxis
from staticgrad.ops.sizes import as_shape
from staticgrad.ops.views import broadcasted, reshaped


def meshgrid(
    *xi: ArrayLike,
    copy: bool = True,
    sparse: bool = False,
    indexing: Literal["xy", "ij"] = "xy",
) -> tuple[Tensor, ...]:
    """The coordinates of a grid from those along each axis, one array per axis.

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
    """The index of each element along each axis of a grid of these `dimensions`.

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
    """The matrix of powers of `x`, from N - 1 down to 0, or up where `increasing`.

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


def cross(
    a: ArrayLike,
    b: ArrayLike,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Tensor:
    """The vector product of vectors of three elements; other axes broadcast.

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


__all__ = ["cross", "indices", "meshgrid", "vander"]
