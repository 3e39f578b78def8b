"""Diagonals and triangles: diagonal, diag, trace, tril, triu and their indices.

A diagonal is a View whose stride is the sum of those of both axes; its gradient puts
it back into zeros, and the other way round.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import ShapeError
from staticgrad.ir.graph import apply, default_dtype
from staticgrad.ir.node import Constant, Tensor
from staticgrad.ir.op import Bad, Layout, Op, Piece, Place, Sample, View, define
from staticgrad.ir.size import Dim, Shape, Size
from staticgrad.ir.types import INT64, TensorType
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.choice import where
from staticgrad.ops.leaves import dtype_of, frozen
from staticgrad.ops.movement.reshaping import moveaxis, ravel
from staticgrad.ops.movement.views import broadcasted, numbers, same_dtype
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.reductions.reduce import sum as total
from staticgrad.ops.rules import shape_error
from staticgrad.ops.sizes import as_shape

Array = npt.NDArray[Any]


def _length(rows: Dim, columns: Dim, offset: int) -> Dim:
    """Return the number of elements on diagonal `offset` of a matrix."""
    low, high = builtins.max(-offset, 0), builtins.max(offset, 0)
    rows, columns = rows - low, columns - high
    longer = rows - columns
    if isinstance(longer, int):
        smaller = rows if longer <= 0 else columns
        return builtins.max(smaller, 0) if isinstance(smaller, int) else smaller
    raise ShapeError(
        f"a diagonal whose length is known, got the smaller of {rows} and {columns}",
        "cut the longer axis to the size of the other",
    )


def _first(offset: int, down: Dim, right: Dim) -> Dim:
    return builtins.max(-offset, 0) * down + builtins.max(offset, 0) * right


def _diagonal_shape(x: TensorType, *, offset: int) -> Shape:
    if len(x.shape) < 2:
        raise ShapeError("an array of at least two axes")
    rows, columns = x.shape[-2:]
    return (*x.shape[:-2], _length(rows, columns, offset))


def _diagonal_layout(source: Layout, shape: Shape, *, offset: int) -> Layout:
    *others, down, right = source.strides
    start = 0 if shape[-1] == 0 else _first(offset, down, right)
    return Layout(shape, (*others, down + right), source.offset + start)


DIAGONAL: Op = define(
    "diagonal",
    shape=_diagonal_shape,
    dtype=same_dtype,
    vjp=lambda g, y, x, *, offset: (
        apply(DIAGONAL_PLACED, g, shape=x.shape[-2:], offset=offset),
    ),
    code=View(_diagonal_layout),
    numpy=lambda x, *, offset: np.diagonal(x, offset, -2, -1),
    samples=lambda: [
        Sample((numbers(3, 3),), {"offset": 0}),
        Sample((numbers(2, 3, 4),), {"offset": 1}),
        Sample((numbers(4, 2),), {"offset": -1}),
        Sample((numbers(2, 2),), {"offset": 5}),
        Sample((numbers(0, 2),), {"offset": 0}),
    ],
    bad=lambda: [
        Bad((numbers(3),), {"offset": 0}, ShapeError, "at least two axes"),
    ],
)


def _placed_shape(x: TensorType, *, shape: Shape, offset: int) -> Shape:
    rows, columns = shape
    if not x.shape or x.shape[-1] != _length(rows, columns, offset):
        raise ShapeError("as many elements as the diagonal has")
    return (*x.shape[:-1], *shape)


def _placed_pieces(
    result: Shape, x: TensorType, *, shape: Shape, offset: int
) -> tuple[Piece]:
    *others, down, right = Layout.contiguous(result).strides
    start = 0 if x.shape[-1] == 0 else _first(offset, down, right)
    return (Piece(0, Layout(x.shape, (*others, down + right), start)),)


def _placed_numpy(x: Array, *, shape: tuple[int, int], offset: int) -> Array:
    result = np.zeros((*x.shape[:-1], *shape), x.dtype)
    place = np.arange(x.shape[-1])
    low, high = builtins.max(-offset, 0), builtins.max(offset, 0)
    result[..., place + low, place + high] = x
    return result


DIAGONAL_PLACED: Op = define(
    "diagonal_placed",
    shape=_placed_shape,
    dtype=same_dtype,
    vjp=lambda g, y, x, *, shape, offset: (apply(DIAGONAL, g, offset=offset),),
    batch=lambda n, x, *, shape, offset: apply(
        DIAGONAL_PLACED, x, shape=shape, offset=offset
    ),
    code=Place(_placed_pieces, lambda **_: 0),
    numpy=_placed_numpy,
    samples=lambda: [
        Sample((numbers(3),), {"shape": (3, 3), "offset": 0}),
        Sample((numbers(2, 3),), {"shape": (5, 4), "offset": 1}),
        Sample((numbers(2),), {"shape": (3, 2), "offset": -1}),
        Sample((numbers(0),), {"shape": (2, 2), "offset": 3}),
        Sample((np.array([True, False]),), {"shape": (2, 2), "offset": 0}),
    ],
    bad=lambda: [
        Bad((numbers(2),), {"shape": (3, 3), "offset": 0}, ShapeError, "as many"),
    ],
)


def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return diagonal `offset` of the matrices in two axes, as the last axis.

    >>> import staticgrad as sg
    >>> print(sg.diagonal(sg.input("x", ("n", "n", 3))).type)
    float32[3, n]
    """
    x = as_tensor(a)
    if x.ndim < 2:
        raise shape_error("diagonal", (x,), "an array of at least two axes")
    return apply(DIAGONAL, moveaxis(x, (axis1, axis2), (-2, -1)), offset=offset)


def diag(v: ArrayLike, k: int = 0) -> Tensor:
    """Return the matrix with `v` on diagonal `k`; of a matrix, its diagonal `k`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.diag([1, 2]), target="reference")().tolist()
    [[1, 0], [0, 2]]
    """
    x = as_tensor(v)
    if x.ndim == 2:
        return apply(DIAGONAL, x, offset=k)
    if x.ndim != 1:
        raise shape_error("diag", (x,), "an array of one or two axes")
    n = x.shape[0] + builtins.abs(k)
    return apply(DIAGONAL_PLACED, x, shape=(n, n), offset=k)


def diagflat(v: ArrayLike, k: int = 0) -> Tensor:
    """Return the matrix with the elements of `v`, raveled, on diagonal `k`.

    >>> import staticgrad as sg
    >>> print(sg.diagflat([[1, 2], [3, 4]]).type)
    int64[4, 4]
    """
    return diag(ravel(v), k)


def trace(
    a: ArrayLike,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    """Return the sum of diagonal `offset` of the matrices in two axes.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.trace([[1.0, 2.0], [3.0, 4.0]]), target="reference")())
    5.0
    """
    return total(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


def _below(shape: Shape, k: int) -> Tensor:
    """Whether an element lies on diagonal `k` or below."""
    row = named("position", shape=shape[-2:], axis=0, dtype=INT64)
    column = named("position", shape=shape[-2:], axis=1, dtype=INT64)
    return column <= row + k


def tril(m: ArrayLike, k: int = 0) -> Tensor:
    """Return `m` with zeros above diagonal `k` of its last two axes.

    >>> import staticgrad as sg
    >>> sg.compile(sg.tril([[1, 2], [3, 4]]), target="reference")().tolist()
    [[1, 0], [3, 4]]
    """
    x = _matrices("tril", m)
    return where(_below(x.shape, k), x, as_tensor(0, x))


def triu(m: ArrayLike, k: int = 0) -> Tensor:
    """Return `m` with zeros below diagonal `k` of its last two axes.

    >>> import staticgrad as sg
    >>> sg.compile(sg.triu([[1, 2], [3, 4]]), target="reference")().tolist()
    [[1, 2], [0, 4]]
    """
    x = _matrices("triu", m)
    return where(_below(x.shape, k - 1), as_tensor(0, x), x)


def _matrices(name: str, m: ArrayLike) -> Tensor:
    """Return `m`; a vector is repeated to a square matrix, as in NumPy."""
    x = as_tensor(m)
    if x.ndim == 0:
        raise shape_error(name, (x,), "an array of at least one axis")
    return broadcasted(x, (*x.shape, *x.shape)) if x.ndim == 1 else x


def tri(
    N: int | Size,
    M: int | Size | None = None,
    k: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    """Return ones on diagonal `k` of an (N, M) matrix and below, zeros above.

    >>> import staticgrad as sg
    >>> sg.compile(sg.tri(2), target="reference")().tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    shape = as_shape((N, N if M is None else M))
    found = default_dtype() if dtype is None else dtype_of("tri", dtype)
    return cast(_below(shape, k), found)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Constant, ...]:
    """Return rows and columns of the elements of an (n, m) matrix up to diagonal `k`.

    >>> import staticgrad as sg
    >>> [i.value.tolist() for i in sg.tril_indices(2)]
    [[0, 1, 1], [0, 0, 1]]
    """
    return tuple(frozen(i) for i in np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Constant, ...]:
    """Return rows and columns of the elements of an (n, m) matrix from diagonal `k` on.

    >>> import staticgrad as sg
    >>> [i.value.tolist() for i in sg.triu_indices(2)]
    [[0, 0, 1], [0, 1, 1]]
    """
    return tuple(frozen(i) for i in np.triu_indices(n, k, m))


def diag_indices(n: int, ndim: int = 2) -> tuple[Constant, ...]:
    """Return the index along each axis of the main diagonal of (n, ..., n).

    >>> import staticgrad as sg
    >>> [i.value.tolist() for i in sg.diag_indices(2)]
    [[0, 1], [0, 1]]
    """
    return tuple(frozen(i) for i in np.diag_indices(n, ndim))


__all__ = [
    "diag", "diag_indices", "diagflat", "diagonal", "trace", "tri", "tril",
    "tril_indices", "triu", "triu_indices",
]  # fmt: skip
