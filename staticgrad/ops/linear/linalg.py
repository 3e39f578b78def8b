"""Linear algebra: norms, powers of matrices, chains of products.

Public as ``staticgrad.linalg``, with NumPy's names.

Kinks: a norm has the derivative 0 where it is 0; at ties the infinity norm shares it.
"""

from __future__ import annotations

import builtins
import math
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy.typing as npt

from staticgrad.errors import GraphError
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.choice import where
from staticgrad.ops.elementwise.powers import power
from staticgrad.ops.linear import matrix_products
from staticgrad.ops.linear.contractions import einsum, tensordot, vecdot
from staticgrad.ops.linear.matrix_products import matmul
from staticgrad.ops.movement import diagonals, grids
from staticgrad.ops.movement.filling import eye
from staticgrad.ops.movement.reshaping import (
    axis_list,
    broadcast_to,
    matrix_transpose,
    squeeze,
)
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted, quotients, widened
from staticgrad.ops.protocol import missing
from staticgrad.ops.reductions.reduce import max, min, sum
from staticgrad.ops.reductions.statistics import root
from staticgrad.ops.rules import one_axis, shape_error

__all__ = [
    "cross", "diagonal", "matmul", "matrix_norm", "matrix_power", "matrix_transpose",
    "multi_dot", "norm", "outer", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip

Order = float | str | None

if not TYPE_CHECKING:

    def __getattr__(name: str):
        """Raise AttributeError; for NumPy names without a function, with advice."""
        raise AttributeError(missing(name, "linalg."))

    def __dir__() -> list[str]:
        """Return the public names, without imported ones."""
        return sorted(__all__)


@widened
def norm(
    x: ArrayLike,
    ord: Order = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
) -> Tensor:
    """Return the norm of vectors (one axis), matrices (two) or all elements.

    Vectors: any number `ord`, inf and -inf included (2 by default). Matrices: "fro"
    (by default), 1, -1, inf, -inf. Without `axis` and `ord`, the root of the sum of
    all squares. GraphError for another `ord`.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.linalg.norm([3.0, 4.0]), target="reference")())
    5.0
    """
    (value,) = quotients(x)
    if axis is None and (ord is None or value.ndim == 1):
        every = tuple(range(value.ndim))
        return _vector(value, 2 if ord is None else ord, every, keepdims)
    axes = _axes(value, axis)
    if len(axes) == 1:
        return _vector(value, 2 if ord is None else ord, axes, keepdims)
    return _matrix(value, "fro" if ord is None else ord, axes, keepdims)


@widened
def vector_norm(
    x: ArrayLike,
    /,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    ord: float = 2,
) -> Tensor:
    """Return the norm of all elements along `axis`, taken as one vector.

    >>> import staticgrad as sg
    >>> y = sg.linalg.vector_norm([[3.0, 4.0], [0.0, 0.0]], axis=1)
    >>> sg.compile(y, target="reference")()
    array([5., 0.], dtype=float32)
    """
    (value,) = quotients(x)
    every = tuple(range(value.ndim))
    axes = every if axis is None else _axes(value, axis)
    return _vector(value, ord, axes, keepdims)


@widened
def matrix_norm(
    x: ArrayLike, /, *, keepdims: bool = False, ord: Order = "fro"
) -> Tensor:
    """Return the norm of the matrices in the last two axes: "fro", 1, -1, inf or -inf.

    >>> import staticgrad as sg
    >>> y = sg.linalg.matrix_norm([[3.0, 4.0], [0.0, 0.0]], ord=1)
    >>> float(sg.compile(y, target="reference")())
    4.0
    """
    (value,) = quotients(x)
    return _matrix(value, ord, _axes(value, (-2, -1)), keepdims)


def _axes(x: Tensor, axis: int | Sequence[int] | None) -> tuple[int, ...]:
    given = tuple(range(x.ndim)) if axis is None else axis_list("norm", axis)
    axes = tuple(one_axis("norm", x, a) for a in given)
    if len(axes) not in (1, 2) and axis is None:
        advice = "give axis=, or leave out ord="
        raise shape_error("norm", (x,), "a vector or a matrix", advice)
    if len(set(axes)) != len(axes):
        raise shape_error("norm", (x,), f"different axes, got {given}")
    return axes


def _vector(x: Tensor, ord: Order, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    if isinstance(ord, str):
        raise _unknown("of vectors", ord, "a number")
    size = abs(x)
    if ord == 2:
        return root(sum(x * x, axes, keepdims=keepdims))
    if ord == 1:
        return sum(size, axes, keepdims=keepdims)
    if ord == math.inf:
        return max(size, axes, keepdims)
    if ord == -math.inf:
        return min(size, axes, keepdims)
    if ord == 0:
        return sum(cast(x != 0, x.dtype), axes, keepdims=keepdims)
    assert ord is not None
    return _root_of(sum(power(size, float(ord)), axes, keepdims=keepdims), float(ord))


def _root_of(total: Tensor, order: float) -> Tensor:
    """Return ``total ** (1 / order)`` with the derivative 0 at 0."""
    zero = total == 0
    found = power(where(zero, 1, total), 1 / order)
    return where(zero, 0 if order > 0 else math.inf, found)


def _matrix(x: Tensor, ord: Order, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    if ord == "fro":
        return root(sum(x * x, axes, keepdims=keepdims))
    if ord not in (1, -1, math.inf, -math.inf):
        raise _unknown("of matrices", ord, '"fro", 1, -1, inf or -inf')
    row, column = axes
    along, other = (row, column) if abs(float(ord)) == 1 else (column, row)
    choose = max if float(ord) > 0 else min
    sums = sum(abs(x), along, keepdims=True)
    result = choose(sums, other, True)
    return result if keepdims else squeeze(result, axes)


def _unknown(what: str, ord: Order, known: str) -> GraphError:
    return GraphError(
        f"norm {what} requires ord to be {known}, got {ord!r}; the others need a "
        f"decomposition{at(here())}"
    )


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Tensor:
    """Return diagonal `offset` of the matrices in the last two axes.

    >>> import staticgrad as sg
    >>> print(sg.linalg.diagonal(sg.input("x", (5, "n", "n"))).type)
    float32[5, n]
    """
    return diagonals.diagonal(x, offset, -2, -1)


def trace(
    x: ArrayLike, /, *, offset: int = 0, dtype: npt.DTypeLike | None = None
) -> Tensor:
    """Return the sum of diagonal `offset` of the matrices in the last two axes.

    >>> import staticgrad as sg
    >>> print(sg.linalg.trace(sg.input("x", (5, "n", "n"))).type)
    float32[5]
    """
    return diagonals.trace(x, offset, -2, -1, dtype)


def outer(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Return the product of every element of one vector with every one of another.

    >>> import staticgrad as sg
    >>> print(sg.linalg.outer(sg.input("x", ("n",)), [1.0, 2.0]).type)
    float32[n, 2]
    """
    x, y = promoted(x1, x2)
    if x.ndim != 1 or y.ndim != 1:
        raise shape_error("outer", (x, y), "two vectors", "use sg.outer")
    return matrix_products.outer(x, y)


def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """Return the vector product of vectors of three elements along `axis`.

    >>> import staticgrad as sg
    >>> y = sg.linalg.cross([1, 0, 0], [0, 1, 0])
    >>> sg.compile(y, target="reference")().tolist()
    [0, 0, 1]
    """
    return grids.cross(x1, x2, axis=axis)


def matrix_power(a: ArrayLike, n: int) -> Tensor:
    """Return the product of `n` times the square matrices in the last two axes; n >= 0.

    >>> import staticgrad as sg
    >>> y = sg.linalg.matrix_power([[1, 1], [0, 1]], 5)
    >>> sg.compile(y, target="reference")().tolist()
    [[1, 5], [0, 1]]
    """
    x = as_tensor(a)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise shape_error("matrix_power", (x,), "square matrices")
    if not isinstance(n, int) or n < 0:
        rule = f"a power that is a number >= 0, got {n!r}"
        raise shape_error("matrix_power", (), rule, "invert the matrix first")
    result: Tensor | None = None
    while n:
        if n % 2:
            result = x if result is None else matmul(result, x)
        n //= 2
        x = matmul(x, x) if n else x
    if result is None:
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype), x.shape)
    return result


def multi_dot(arrays: Sequence[ArrayLike]) -> Tensor:
    """Return the product of matrices in the order of fewest multiplications.

    The first and the last may be vectors: a row and a column.

    >>> import staticgrad as sg
    >>> a, b, c = (sg.input(n, s) for n, s in zip("abc", ((9, 2), (2, 8), (8,))))
    >>> print(sg.linalg.multi_dot([a, b, c]).type)
    float32[9]
    """
    tensors = [as_tensor(a) for a in arrays]
    last = len(tensors) - 1
    if last < 1:
        raise shape_error("multi_dot", tensors, "at least two arrays")
    ends = (tensors[0], tensors[last])
    inner = [t.ndim == 2 for t in tensors[1:last]]
    outer_ranks = [t.ndim in (1, 2) for t in ends]
    if not builtins.all(inner + outer_ranks):
        raise shape_error("multi_dot", tensors, "matrices, and vectors at the ends")
    names = [string.ascii_letters[k : k + 2] for k in range(last + 1)]
    if tensors[0].ndim == 1:
        names[0] = names[0][1:]
    if tensors[last].ndim == 1:
        names[last] = names[last][:1]
    free = ("" if tensors[0].ndim == 1 else names[0][0]) + (
        "" if tensors[last].ndim == 1 else names[last][-1]
    )
    return einsum(f"{','.join(names)}->{free}", *tensors)
