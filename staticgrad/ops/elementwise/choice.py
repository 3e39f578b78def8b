"""Choosing between two tensors: where, maximum, minimum.

Kinks: where both arguments of maximum or minimum are equal, each gets half of the
gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Elementwise, Op, Sample, define
from staticgrad.ir.types import BOOL, DType, TensorType
from staticgrad.ops import examples
from staticgrad.ops.elementwise.compare import GREATER, LESS
from staticgrad.ops.elementwise.logic import as_bool
from staticgrad.ops.examples import bool_pairs, integer_pairs, pairs
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted
from staticgrad.ops.rules import broadcast, elementwise, one_dtype, shape_error

Array = npt.NDArray[Any]


def _shared(g: Tensor, chosen: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the cotangent of an argument that was `chosen`, half of it at a tie."""
    part = named("where", chosen, g, g * 0.5)
    return named("where", named("logical_or", chosen, x == y), part, as_tensor(0, g))


def _extremum(name: str, numpy: Callable[..., Array], first: Op, second: Op) -> Op:
    return elementwise(
        name,
        "biuf",
        numpy,
        vjp=lambda g, z, x, y: (
            _shared(g, apply(first, x, y), x, y),
            _shared(g, apply(second, x, y), x, y),
        ),
        samples=lambda: [*pairs(-3, 3), *integer_pairs(), *bool_pairs()],
        cost=2,
    )


MAXIMUM = _extremum("maximum", np.maximum, GREATER, LESS)


MINIMUM = _extremum("minimum", np.minimum, LESS, GREATER)


def _where_dtype(c: TensorType, x: TensorType, y: TensorType) -> DType:
    if c.dtype != BOOL:
        raise DTypeError("a condition of dtype bool", "compare it, as in x != 0")
    return one_dtype(x, y)


def _where_samples() -> list[Sample]:
    c = np.array([[True, False, True], [False, False, True]])
    x, y = examples.spread(-3, 3, 2, 3), examples.spread(2, 5, 2, 3)
    odd = examples.special()[-3:]
    return [
        Sample((c, x, y)),
        Sample((c[0], x, y[0, 0])),
        Sample((c[:, :1], x[0], y)),
        Sample((np.array(True), x[0, 0], y[0, 0])),
        Sample((c, x.astype("float32"), y.astype("float32")), grad=False),
        Sample((c, odd, odd[::-1].copy()), grad=False),
        Sample((c, np.arange(3), np.array(-1)), grad=False),
        Sample((c, ~c, c), grad=False),
        Sample((np.zeros((0, 3), bool), x[:1], y[:1])),
    ]


def _bad_where() -> list[Bad]:
    c, x = np.zeros(3, bool), np.zeros(3)
    return [
        Bad((x, x, x), {}, DTypeError, "a condition of dtype bool"),
        Bad((c, x, x.astype("float32")), {}, DTypeError, "one dtype"),
        Bad((c, x, np.zeros(2)), {}, ShapeError, "shapes that broadcast"),
    ]


def _where_vjp(
    g: Tensor, z: Tensor, c: Tensor, x: Tensor, y: Tensor
) -> tuple[None, Tensor, Tensor]:
    nothing = as_tensor(0, g)
    return None, apply(WHERE, c, g, nothing), apply(WHERE, c, nothing, g)


WHERE = define(
    "where",
    shape=broadcast,
    dtype=_where_dtype,
    vjp=_where_vjp,
    jvp="linear",
    code=Elementwise("select({0}, {1}, {2})"),
    numpy=np.where,
    samples=_where_samples,
    bad=_bad_where,
)


def maximum(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the larger of two, NaN if one is; at a tie each gets half the gradient.

    >>> import staticgrad as sg
    >>> sg.compile(sg.maximum([1, 3], 2), target="reference")()
    array([2, 3])
    """
    return apply(MAXIMUM, *promoted(x1, x2))


def minimum(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the smaller of two, NaN if one is; at a tie each gets half the gradient.

    >>> import staticgrad as sg
    >>> sg.compile(sg.minimum([1, 3], 2), target="reference")()
    array([1, 2])
    """
    return apply(MINIMUM, *promoted(x1, x2))


def where(
    condition: ArrayLike, x: ArrayLike | None = None, y: ArrayLike | None = None
) -> Tensor:
    """Return `x` where the condition is not 0, else `y`; both are computed.

    NumPy's form with a condition only is refused: the size of its result is data.

    >>> import staticgrad as sg
    >>> sg.compile(sg.where([True, False], [1, 2], 0), target="reference")()
    array([1, 0])
    """
    if x is None or y is None:
        rule = "a condition and two arrays to choose from"
        advice = "give both; the indices of what is true have no static number"
        raise shape_error("where", (as_bool(condition),), rule, advice)
    return apply(WHERE, as_bool(condition), *promoted(x, y))


__all__ = ["maximum", "minimum", "where"]
