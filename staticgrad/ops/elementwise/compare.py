"""Comparisons: == != < <= > >=, isnan, isinf, isfinite. None has a derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Elementwise, Op, Sample, define
from staticgrad.ir.types import is_float, kind_of
from staticgrad.ops import examples
from staticgrad.ops.examples import (
    bad_pair,
    bad_unary,
    bool_pairs,
    integer_pairs,
    pairs,
)
from staticgrad.ops.leaves import is_number
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted
from staticgrad.ops.rules import broadcast, gives_bool, quiet, same_shape

Array = npt.NDArray[Any]


def _without_grad(samples: list[Sample]) -> list[Sample]:
    return [Sample(s.args, s.attrs, grad=False) for s in samples]


def _comparison(name: str, sign: str, numpy: Callable[..., Array]) -> Op:
    return define(
        name,
        shape=broadcast,
        dtype=gives_bool(),
        vjp=None,
        code=Elementwise(f"{{0}} {sign} {{1}}"),
        numpy=quiet(numpy),
        samples=lambda: [*_without_grad(pairs(-3, 3)), *integer_pairs(), *bool_pairs()],
        bad=bad_pair(),
    )


EQUAL = _comparison("equal", "==", np.equal)


NOT_EQUAL = _comparison("not_equal", "!=", np.not_equal)


LESS = _comparison("less", "<", np.less)


LESS_EQUAL = _comparison("less_equal", "<=", np.less_equal)


GREATER = _comparison("greater", ">", np.greater)


GREATER_EQUAL = _comparison("greater_equal", ">=", np.greater_equal)


def _test(name: str, numpy: Callable[..., Array]) -> Op:
    return define(
        name,
        shape=same_shape,
        dtype=gives_bool("f"),
        vjp=None,
        code=Elementwise(f"{name}({{0}})"),
        numpy=numpy,
        samples=lambda: _without_grad(examples.unary(-3, 3)()),
        bad=bad_unary("a floating-point dtype", "int64"),
    )


ISNAN = _test("isnan", np.isnan)


ISINF = _test("isinf", np.isinf)


ISFINITE = _test("isfinite", np.isfinite)


def _compared(op: Op, x1: ArrayLike, x2: ArrayLike) -> Tensor:
    return apply(op, *promoted(*_comparable(x1, x2)))


def _comparable(x1: ArrayLike, x2: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
    """Return the arguments; a Python integer out of the other's range is a float.

    NumPy compares such a number as the number that it is.
    """
    for number, other in ((x1, x2), (x2, x1)):
        if not is_number(number) or is_number(other) or not isinstance(number, int):
            continue
        dtype = as_tensor(other).dtype
        if kind_of(dtype) not in "iu":
            continue
        limits = np.iinfo(dtype)
        if not limits.min <= number <= limits.max:
            bound = float("inf") if number > 0 else float("-inf")
            return (bound, x2) if number is x1 else (x1, bound)
    return x1, x2


def equal(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 == x2``, element by element.

    >>> import staticgrad as sg
    >>> sg.compile(sg.equal([1, 2], 2), target="reference")()
    array([False,  True])
    """
    return _compared(EQUAL, x1, x2)


def not_equal(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 != x2``, element by element.

    >>> import staticgrad as sg
    >>> sg.compile(sg.not_equal([1, 2], 2), target="reference")()
    array([ True, False])
    """
    return _compared(NOT_EQUAL, x1, x2)


def less(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 < x2``, element by element.

    >>> import staticgrad as sg
    >>> sg.compile(sg.less([1, 2], 2), target="reference")()
    array([ True, False])
    """
    return _compared(LESS, x1, x2)


def less_equal(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 <= x2``, element by element.

    >>> import staticgrad as sg
    >>> sg.compile(sg.less_equal([1, 3], 2), target="reference")()
    array([ True, False])
    """
    return _compared(LESS_EQUAL, x1, x2)


def greater(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 > x2``, element by element.

    >>> import staticgrad as sg
    >>> sg.compile(sg.greater([1, 3], 2), target="reference")()
    array([False,  True])
    """
    return _compared(GREATER, x1, x2)


def greater_equal(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return ``x1 >= x2``, element by element.

    >>> import staticgrad as sg
    >>> sg.compile(sg.greater_equal([1, 2], 2), target="reference")()
    array([False,  True])
    """
    return _compared(GREATER_EQUAL, x1, x2)


def _tested(op: Op, x: ArrayLike, otherwise: bool) -> Tensor:
    tensor = as_tensor(x)
    if is_float(tensor.dtype):
        return apply(op, tensor)
    return apply(EQUAL if otherwise else NOT_EQUAL, tensor, tensor)


def isnan(x: ArrayLike) -> Tensor:
    """Return True where x is NaN.

    >>> import staticgrad as sg
    >>> sg.compile(sg.isnan([1.0, float("nan")]), target="reference")()
    array([False,  True])
    """
    return _tested(ISNAN, x, False)


def isinf(x: ArrayLike) -> Tensor:
    """Return True where `x` is inf or -inf.

    >>> import staticgrad as sg
    >>> sg.compile(sg.isinf([1.0, float("-inf")]), target="reference")()
    array([False,  True])
    """
    return _tested(ISINF, x, False)


def isfinite(x: ArrayLike) -> Tensor:
    """Return True where x is neither NaN nor infinite.

    >>> import staticgrad as sg
    >>> sg.compile(sg.isfinite([1.0, float("nan")]), target="reference")()
    array([ True, False])
    """
    return _tested(ISFINITE, x, True)


__all__ = [
    "equal", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less",
    "less_equal", "not_equal",
]  # fmt: skip
