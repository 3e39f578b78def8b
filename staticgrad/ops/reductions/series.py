"""Differences, integrals and covariances.

Composites, with the derivatives of their parts.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.types import kind_of
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.choice import where
from staticgrad.ops.elementwise.compare import EQUAL, NOT_EQUAL
from staticgrad.ops.elementwise.logic import as_bool
from staticgrad.ops.leaves import dtype_of
from staticgrad.ops.linear.matrix_products import matmul
from staticgrad.ops.movement.indexing import getitem
from staticgrad.ops.movement.joining import concatenate
from staticgrad.ops.movement.reshaping import broadcast_to, ravel, squeeze, swapaxes
from staticgrad.ops.movement.slicing import split
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted, quotients
from staticgrad.ops.reductions.reduce import all, sum
from staticgrad.ops.reductions.statistics import mean, root
from staticgrad.ops.rules import one_axis, shape_error


def part(x: Tensor, axis: int, key: slice) -> Tensor:
    """Return ``x[..., key, ...]`` along `axis`."""
    return getitem(x, (*(slice(None),) * axis, key))


def diff(
    a: ArrayLike,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Tensor:
    """Return the `n`-th differences of neighbouring elements along `axis`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.diff([1, 4, 9]), target="reference")()
    array([3, 5])
    """
    x = as_tensor(a)
    along = one_axis("diff", x, axis)
    if n < 0:
        raise shape_error("diff", (), f"a number of times n >= 0, got {n}")
    ends = (prepend, x, append)
    parts = [_end(part, x, along) for part in ends if part is not None]
    x = concatenate(parts, along) if len(parts) > 1 else x
    for _ in range(n):
        later, earlier = part(x, along, slice(1, None)), part(x, along, slice(0, -1))
        bools = kind_of(x.dtype) == "b"
        x = apply(NOT_EQUAL, later, earlier) if bools else later - earlier
    return x


def _end(part: ArrayLike, x: Tensor, axis: int) -> Tensor:
    """Return a number as one more layer of `x`."""
    tensor = as_tensor(part)
    if tensor.ndim:
        return tensor
    return broadcast_to(tensor, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))


def ediff1d(
    ary: ArrayLike, to_end: ArrayLike | None = None, to_begin: ArrayLike | None = None
) -> Tensor:
    """Return the differences of neighbours in C order, between `to_begin` and `to_end`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.ediff1d([1, 4, 9], to_end=0), target="reference")()
    array([3, 5, 0])
    """
    inside = diff(ravel(ary))
    parts = [ravel(part) for part in (to_begin, inside, to_end) if part is not None]
    return concatenate(parts) if len(parts) > 1 else inside


def trapezoid(
    y: ArrayLike, x: ArrayLike | None = None, dx: ArrayLike = 1.0, axis: int = -1
) -> Tensor:
    """Return the integral of `y` along `axis` by the trapezoidal rule.

    The points are at `x`, or `dx` apart.

    >>> import staticgrad as sg
    >>> float(sg.compile(sg.trapezoid([1.0, 2.0, 3.0]), target="reference")())
    4.0
    """
    value = as_tensor(y)
    along = one_axis("trapezoid", value, axis)
    width: ArrayLike = dx
    if x is not None:
        width = diff(x, axis=-1 if as_tensor(x).ndim == 1 else along)
        steps = as_tensor(width)
        if steps.ndim == 1 and value.ndim > 1:
            shape = tuple(-1 if k == along else 1 for k in range(value.ndim))
            width = named("reshape", steps, shape=_filled(shape, steps.shape[0]))
    later = part(value, along, slice(1, None))
    earlier = part(value, along, slice(0, -1))
    return sum((later + earlier) * width / 2.0, along)


def _filled(shape: tuple[int, ...], size: Any) -> tuple[Any, ...]:
    return tuple(size if n == -1 else n for n in shape)


def select(
    condlist: Sequence[ArrayLike], choicelist: Sequence[ArrayLike], default: Any = 0
) -> Tensor:
    """Return the first choice whose condition holds, element by element.

    >>> import staticgrad as sg
    >>> y = sg.select([[True, False], [True, True]], [[1, 2], [3, 4]])
    >>> sg.compile(y, target="reference")()
    array([1, 4])
    """
    if len(condlist) != len(choicelist) or not condlist:
        rule = "as many choices as conditions, at least one"
        raise shape_error("select", tuple(map(as_tensor, condlist)), rule)
    *choices, result = promoted(*choicelist, default)
    pairs = zip(condlist, choices, strict=True)
    for condition, choice in reversed(list(pairs)):
        result = where(condition, choice, result)
    return result


def cov(
    m: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: ArrayLike | None = None,
    aweights: ArrayLike | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    """Return the covariance matrix of variables in rows (columns unless `rowvar`).

    `fweights` tell how often each observation occurs, `aweights` how much it counts.

    >>> import staticgrad as sg
    >>> sg.compile(sg.cov([[1.0, 2.0], [3.0, 5.0]]), target="reference")()
    array([[0.5, 1. ],
           [1. , 2. ]], dtype=float32)
    """
    x = _variables(m, rowvar, dtype)
    if y is not None:
        x = concatenate([x, _variables(y, rowvar, dtype)])
    lost = int(not bias) if ddof is None else ddof
    if fweights is None and aweights is None:
        away = x - mean(x, 1, keepdims=True)
        product = matmul(away, swapaxes(away, 0, 1)) / (x.shape[1] - lost)
    else:
        product = _weighted(x, lost, fweights, aweights)
    return squeeze(product) if product.shape == (1, 1) else product


def _weighted(
    x: Tensor, lost: int, fweights: ArrayLike | None, aweights: ArrayLike | None
) -> Tensor:
    """Return the covariance where observations have weights, as NumPy normalises it."""
    given = [w for w in (fweights, aweights) if w is not None]
    weights = [cast(as_tensor(w, x), x.dtype) for w in given]
    if builtins.any(w.shape != x.shape[1:] for w in weights):
        raise shape_error("cov", (x, *weights), "a weight for each observation")
    w = weights[0] if len(weights) == 1 else weights[0] * weights[1]
    total = sum(w)
    away = x - sum(x * w, 1, keepdims=True) / total
    counted = total
    if aweights is None:
        counted = total - lost
    elif lost:
        counted = total - lost * sum(w * weights[-1]) / total
    return matmul(away * w, swapaxes(away, 0, 1)) / counted


def _variables(m: ArrayLike, rowvar: bool, dtype: npt.DTypeLike | None) -> Tensor:
    (x,) = quotients(m)
    x = x if dtype is None else cast(x, dtype_of("cov", dtype))
    if x.ndim > 2:
        raise shape_error("cov", (x,), "at most two axes")
    if x.ndim < 2:
        size = x.shape[0] if x.ndim else 1
        return named("reshape", x, shape=(1, size))
    return x if rowvar else swapaxes(x, 0, 1)


def corrcoef(
    x: ArrayLike,
    y: ArrayLike | None = None,
    rowvar: bool = True,
    *,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    """Return Pearson's correlation coefficients of variables in rows.

    >>> import staticgrad as sg
    >>> sg.compile(sg.corrcoef([[1.0, 2.0], [3.0, 5.0]]), target="reference")()
    array([[1., 1.],
           [1., 1.]], dtype=float32)
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if c.ndim == 0:
        return c / c
    size = c.shape[0]
    unit = named("position", shape=(size, size), axis=0, dtype=dtype_of("cov", "int64"))
    other = named("position", shape=(size, size), axis=1, dtype=unit.dtype)
    spread = root(sum(where(unit == other, c, 0), 1))
    along, across = (
        named("reshape", spread, shape=shape) for shape in ((size, 1), (1, size))
    )
    ratio = c / along / across
    return where(ratio > 1, 1, where(ratio < -1, -1, ratio))


def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the layers of `x` along `axis`, whose size must be static.

    >>> import staticgrad as sg
    >>> sg.compile(sg.unstack([[1, 2], [3, 4]]), target="reference")()
    (array([1, 2]), array([3, 4]))
    """
    tensor = as_tensor(x)
    along = one_axis("unstack", tensor, axis)
    count = tensor.shape[along]
    if not isinstance(count, int):
        rule = "an axis whose size is a number"
        raise shape_error("unstack", (tensor,), rule)
    if not count:
        return ()
    return tuple(squeeze(part, along) for part in split(tensor, count, along))


def array_equiv(a1: ArrayLike, a2: ArrayLike) -> Tensor:
    """Whether two arrays are equal once broadcast, a bool scalar.

    >>> import staticgrad as sg
    >>> bool(sg.compile(sg.array_equiv([2, 2], 2), target="reference")())
    True
    """
    return all(apply(EQUAL, *promoted(a1, a2)))


def isreal(x: ArrayLike) -> Tensor:
    """Return True everywhere: all numbers are real.

    >>> import staticgrad as sg
    >>> sg.compile(sg.isreal([1.0, 2.0]), target="reference")()
    array([ True,  True])
    """
    return ~iscomplex(x)


def iscomplex(x: ArrayLike) -> Tensor:
    """Return False everywhere: all numbers are real.

    >>> import staticgrad as sg
    >>> sg.compile(sg.iscomplex([1.0, 2.0]), target="reference")()
    array([False, False])
    """
    tensor = as_tensor(x)
    return as_bool(where(apply(EQUAL, tensor, tensor), 0, 0))


def copy(a: ArrayLike) -> Tensor:
    """Return `a`, which is immutable.

    >>> import staticgrad as sg
    >>> print(sg.copy([1.0, 2.0]).type)
    float32[2]
    """
    return as_tensor(a)


__all__ = [
    "array_equiv", "copy", "corrcoef", "cov", "diff", "ediff1d", "iscomplex", "isreal",
    "select", "trapezoid", "unstack",
]  # fmt: skip
