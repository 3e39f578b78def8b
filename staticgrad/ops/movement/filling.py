"""Tensors made from their shape: zeros, full, eye, arange.

Shapes may hold symbolic sizes. Constant fillings are one number, broadcast; ranges of
numbers are constants, ranges up to a symbolic size count positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.ir.graph import default_dtype
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim, Size
from staticgrad.ir.types import INT64
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.arithmetic import add, multiply
from staticgrad.ops.leaves import ShapeLike, as_shape, dtype_of, frozen, is_number
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor, astype
from staticgrad.ops.rules import size_is_data


def _filled(shape: tuple[Dim, ...], value: Tensor) -> Tensor:
    return named("broadcast_to", value, shape=shape) if shape else value


def zeros(shape: ShapeLike, dtype: npt.DTypeLike | None = None) -> Tensor:
    """Zeros, by default of the Graph's dtype (float32).

    >>> import staticgrad as sg
    >>> sg.compile(sg.zeros(2), target="reference")()
    array([0., 0.], dtype=float32)
    """
    return _number_filled("zeros", shape, 0, dtype)


def ones(shape: ShapeLike, dtype: npt.DTypeLike | None = None) -> Tensor:
    """Ones, by default of the Graph's dtype (float32).

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("batch", 3))
    >>> print(sg.ones(x.shape).type)
    float32[batch, 3]
    """
    return _number_filled("ones", shape, 1, dtype)


def _number_filled(
    name: str, shape: ShapeLike, value: int, dtype: npt.DTypeLike | None
) -> Tensor:
    found = default_dtype() if dtype is None else dtype_of(name, dtype)
    return _filled(as_shape(name, shape), frozen(np.asarray(value, found)))


def full(
    shape: ShapeLike, fill_value: ArrayLike, dtype: npt.DTypeLike | None = None
) -> Tensor:
    """Return an array of `fill_value`, with its dtype by default.

    >>> import staticgrad as sg
    >>> sg.compile(sg.full((2,), 7), target="reference")()
    array([7, 7])
    """
    if is_number(fill_value):
        value: Tensor = frozen(np.asarray(fill_value, dtype))
    else:
        value = as_tensor(fill_value)
    dims = as_shape("full", shape)
    return _filled(dims, value if dtype is None else astype(value, dtype))


def zeros_like(
    a: ArrayLike,
    dtype: npt.DTypeLike | None = None,
    *,
    shape: ShapeLike | None = None,
) -> Tensor:
    """Return zeros of the shape and dtype of `a`, or of others.

    >>> import staticgrad as sg
    >>> print(sg.zeros_like([1, 2]).type)
    int64[2]
    """
    x = as_tensor(a)
    return zeros(x.shape if shape is None else shape, dtype or x.dtype)


def ones_like(
    a: ArrayLike,
    dtype: npt.DTypeLike | None = None,
    *,
    shape: ShapeLike | None = None,
) -> Tensor:
    """Return ones of the shape and dtype of `a`, or of others.

    >>> import staticgrad as sg
    >>> print(sg.ones_like([1, 2]).type)
    int64[2]
    """
    x = as_tensor(a)
    return ones(x.shape if shape is None else shape, dtype or x.dtype)


def full_like(
    a: ArrayLike,
    fill_value: ArrayLike,
    dtype: npt.DTypeLike | None = None,
    *,
    shape: ShapeLike | None = None,
) -> Tensor:
    """Return `fill_value` everywhere, of the shape and dtype of `a`, or of others.

    >>> import staticgrad as sg
    >>> print(sg.full_like([1, 2], 7).type)
    int64[2]
    """
    x = as_tensor(a)
    dims = x.shape if shape is None else shape
    return full(dims, fill_value, dtype or x.dtype)


def eye(
    N: int | Size,
    M: int | Size | None = None,
    k: int = 0,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    """Return ones on diagonal `k` of an (N, M) matrix, zeros elsewhere.

    >>> import staticgrad as sg
    >>> sg.compile(sg.eye(2), target="reference")()
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    shape = as_shape("eye", (N, N if M is None else M))
    found = default_dtype() if dtype is None else dtype_of("eye", dtype)
    row = named("position", shape=shape, axis=0, dtype=INT64)
    column = named("position", shape=shape, axis=1, dtype=INT64)
    return cast(row + k == column, found)


def identity(n: int | Size, dtype: npt.DTypeLike | None = None) -> Tensor:
    """Return the (n, n) identity matrix.

    >>> import staticgrad as sg
    >>> print(sg.identity(3).type)
    float32[3, 3]
    """
    return eye(n, dtype=dtype)


def arange(
    start: float | Size,
    stop: float | Size | None = None,
    step: float = 1,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    """Return numbers from `start` (0) below `stop`, `step` apart; the dtype is NumPy's.

    With a symbolic `start` or `stop` the step is 1.

    >>> import staticgrad as sg
    >>> sg.compile(sg.arange(3), target="reference")()
    array([0, 1, 2])
    """
    first: Any = 0 if stop is None else start
    last: Any = start if stop is None else stop
    for bound in (first, last, step):
        if isinstance(bound, Tensor):
            raise size_is_data("arange", bound)
    if not isinstance(first, Size) and not isinstance(last, Size):
        found = None if dtype is None else dtype_of("arange", dtype)
        return frozen(np.arange(first, last, step, dtype=found))
    shape = as_shape("arange", (last - first,))
    kind = INT64 if dtype is None else dtype_of("arange", dtype)
    place = named("position", shape=shape, axis=0, dtype=kind)
    return add(multiply(place, step), first)


__all__ = [
    "arange", "eye", "full", "full_like", "identity", "ones", "ones_like", "zeros",
    "zeros_like",
]  # fmt: skip
