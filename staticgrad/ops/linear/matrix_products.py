"""Matrix products: the op matmul and the NumPy functions made of it.

matmul is for floats of rank >= 2 with equal batch axes, which is what a GEMM does. The
public function brings everything else to that form; integers and bools are multiplied
and summed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Matmul, MatmulAdd, Sample, define
from staticgrad.ir.size import Shape, product
from staticgrad.ir.types import DType, TensorType, broadcast_shapes, is_float, kind_of
from staticgrad.ops.movement.views import broadcasted, numbers, reshaped, transposed
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, promoted
from staticgrad.ops.rules import shape_error


def _matmul_shape(x: TensorType, y: TensorType) -> Shape:
    if min(len(x.shape), len(y.shape)) < 2 or x.shape[:-2] != y.shape[:-2]:
        raise ShapeError("matrices with equal batch axes")
    if x.shape[-1] != y.shape[-2]:
        raise ShapeError(
            f"as many columns of x as rows of y, got {x} and {y}",
            "transpose one of them, or check the sizes",
        )
    return (*x.shape[:-1], y.shape[-1])


def matmul_dtype(x: TensorType, y: TensorType, **_: Any) -> DType:
    """The dtype rule of a product: that of its factors, floats."""
    if x.dtype != y.dtype or not is_float(x.dtype):
        raise DTypeError("floats of one dtype", "cast with .astype")
    return x.dtype


def _matmul_vjp(g: Tensor, z: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate a product: ``x' = g @ y^T``, ``y' = x^T @ g``."""
    return apply(MATMUL, g, _flipped(y)), apply(MATMUL, _flipped(x), g)


def _flipped(x: Tensor) -> Tensor:
    rank = x.ndim
    return transposed(x, (*range(rank - 2), rank - 1, rank - 2))


MATMUL = define(
    "matmul",
    shape=_matmul_shape,
    dtype=matmul_dtype,
    vjp=_matmul_vjp,
    code=Matmul(),
    numpy=np.matmul,
    samples=lambda: [
        Sample((numbers(2, 3), numbers(3, 4)), ulp=16.0),
        Sample((numbers(2, 2, 3), numbers(2, 3, 1)), ulp=16.0),
        Sample((numbers(2, 0), numbers(0, 3))),
        Sample((numbers(0, 2), numbers(2, 3))),
        Sample((numbers(1, 1), numbers(1, 1))),
    ],
    bad=lambda: [
        Bad((numbers(2, 3), numbers(2, 3)), {}, ShapeError, "columns of x"),
        Bad((numbers(3), numbers(3, 2)), {}, ShapeError, "matrices"),
        Bad((numbers(2, 2, 2), numbers(3, 2, 2)), {}, ShapeError, "batch axes"),
        Bad((np.eye(2, dtype=int), np.eye(2, dtype=int)), {}, DTypeError, "floats"),
        Bad((numbers(2, 2), np.eye(2, dtype="f4")), {}, DTypeError, "one dtype"),
    ],
    amp="half",
)


def _matmul_add_shape(base: TensorType, x: TensorType, y: TensorType) -> Shape:
    shape = _matmul_shape(x, y)
    if base.shape != shape:
        raise ShapeError("a base of the product's shape", "broadcast it")
    return shape


def _matmul_add_dtype(base: TensorType, x: TensorType, y: TensorType) -> DType:
    if base.dtype != matmul_dtype(x, y):
        raise DTypeError("floats of one dtype", "cast with .astype")
    return base.dtype


MATMUL_ADD = define(
    "matmul_add",
    shape=_matmul_add_shape,
    dtype=_matmul_add_dtype,
    vjp=lambda g, z, base, x, y: (g, *_matmul_vjp(g, z, x, y)),
    code=MatmulAdd(),
    numpy=lambda base, x, y: base + np.matmul(x, y),
    samples=lambda: [
        Sample((numbers(2, 4), numbers(2, 3), numbers(3, 4)), ulp=16.0),
        Sample((numbers(2, 2, 1), numbers(2, 2, 3), numbers(2, 3, 1)), ulp=16.0),
        Sample((numbers(2, 3), numbers(2, 0), numbers(0, 3))),
        Sample((numbers(0, 3), numbers(0, 2), numbers(2, 3))),
    ],
    bad=lambda: [
        Bad(
            (numbers(2, 1), numbers(2, 3), numbers(3, 2)),
            {},
            ShapeError,
            "the product's shape",
        ),
        Bad(
            (np.eye(2, dtype="f4"), numbers(2, 2), numbers(2, 2)),
            {},
            DTypeError,
            "one dtype",
        ),
    ],
)


def matmul(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the matrix product ``x1 @ x2``.

    Axes before the last two broadcast. A vector on the left is a row, one on the right
    a column, whose axis is dropped from the result. Integers are multiplied and added
    in their own dtype; for bools, the sum is "or" and the product "and".

    Raises ShapeError if the sizes do not fit, or if an argument is a scalar.

    >>> import staticgrad as sg
    >>> x, w = sg.input("x", ("batch", 7, 64)), sg.parameter(np.zeros((64, 10), "f4"))
    >>> print(sg.matmul(x, w).type)
    float32[batch, 7, 10]
    """
    x, y = promoted(x1, x2)
    _check_product(x, y)
    left = reshaped(x, (1, *x.shape)) if x.ndim == 1 else x
    right = reshaped(y, (*y.shape, 1)) if y.ndim == 1 else y
    batch = broadcast_shapes([left.shape[:-2], right.shape[:-2]])
    rows = () if x.ndim == 1 else (left.shape[-2],)
    columns = () if y.ndim == 1 else (right.shape[-1],)
    return reshaped(_product(left, right, batch), (*batch, *rows, *columns))


def _check_product(x: Tensor, y: Tensor) -> None:
    """Raise for operands that form no matrix product, in the user's types."""
    if x.ndim == 0 or y.ndim == 0:
        advice = "multiply scalars with *"
        raise shape_error("matmul", (x, y), "arrays of at least one axis", advice)
    if x.shape[-1] != y.shape[-2 if y.ndim > 1 else -1]:
        rule = "as many columns of the first as rows of the second"
        raise shape_error("matmul", (x, y), rule, "transpose one of them")
    try:
        broadcast_shapes([x.shape[:-2], y.shape[:-2]])
    except ShapeError as error:
        rule = "batch axes that broadcast"
        raise shape_error("matmul", (x, y), rule, error.args[0]) from None


def _product(x: Tensor, y: Tensor, batch: Shape) -> Tensor:
    """Multiply matrices; as one large GEMM where the right one has no batch axes."""
    if not is_float(x.dtype):
        return _exact_product(x, y)
    if y.ndim == 2:
        rows = product(x.shape[:-1])
        flat = apply(MATMUL, reshaped(x, (rows, x.shape[-1])), y)
        return reshaped(flat, (*x.shape[:-1], y.shape[-1]))
    return apply(
        MATMUL,
        broadcasted(x, (*batch, *x.shape[-2:])),
        broadcasted(y, (*batch, *y.shape[-2:])),
    )


def _exact_product(x: Tensor, y: Tensor) -> Tensor:
    """Multiply integers or bools over a new axis, then sum."""
    left = reshaped(x, (*x.shape, 1))
    right = reshaped(y, (*y.shape[:-2], 1, *y.shape[-2:]))
    total = "reduce_any" if kind_of(x.dtype) == "b" else "reduce_sum"
    terms = _times(left, right)
    return named(total, terms, axes=(terms.ndim - 2,))


def _times(x: Tensor, y: Tensor) -> Tensor:
    return named("logical_and" if kind_of(x.dtype) == "b" else "multiply", x, y)


def dot(a: ArrayLike, b: ArrayLike) -> Tensor:
    """Return the sum of products over the last axis of `a` and the last but one of `b`.

    A vector `b` has its one axis; with a scalar it is their product.

    >>> import staticgrad as sg
    >>> print(sg.dot(sg.input("x", ("n",)), sg.input("y", ("n",))).type)
    float32[]
    """
    x, y = promoted(a, b)
    if x.ndim == 0 or y.ndim == 0:
        return _times(x, y)
    if y.ndim <= 2:
        return matmul(x, y)
    rows, columns = y.shape[:-2], y.shape[-1]
    order = (y.ndim - 2, *range(y.ndim - 2), y.ndim - 1)
    matrix = reshaped(transposed(y, order), (y.shape[-2], product(rows) * columns))
    return reshaped(matmul(x, matrix), (*x.shape[:-1], *rows, columns))


def outer(a: ArrayLike, b: ArrayLike) -> Tensor:
    """Return the product of every element of `a` (raveled) with every one of `b`.

    >>> import staticgrad as sg
    >>> print(sg.outer(sg.input("x", ("n",)), [1.0, 2.0]).type)
    float32[n, 2]
    """
    x, y = promoted(a, b)
    column = reshaped(x, (product(x.shape), 1))
    row = reshaped(y, (1, product(y.shape)))
    return _times(column, row)


__all__ = ["dot", "matmul", "outer"]
