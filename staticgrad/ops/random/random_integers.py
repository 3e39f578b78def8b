"""Random integers: ``sg.random.integers``, ``randint``, ``bits``.

An integer below n is the upper half of the product of n and a word of 64 bits (Lemire,
"Fast random integer generation in an interval", ACM TOMACS 29, 2019, without its
rejection): of any two integers, one is at most a part in 2^64 / n more likely.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, GraphError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Sample
from staticgrad.ir.source import at, here
from staticgrad.ir.types import UINT64, DType
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.choice import where
from staticgrad.ops.leaves import ShapeLike, as_shape, dtype_of
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.random.distributions import drawn_shape
from staticgrad.ops.random.draws import WORD, one_key
from staticgrad.ops.rules import dtype_error, elementwise

Array = npt.NDArray[Any]


def _high_product(x: Array, y: Array) -> Array:
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> shift, y & low, y >> shift
    middle = x1 * y0 + (x0 * y0 >> shift)
    other = x0 * y1 + (middle & low)
    return np.asarray(x1 * y1 + (middle >> shift) + (other >> shift))


HIGH_PRODUCT = elementwise(
    "high_product",
    "iu",
    _high_product,
    samples=lambda: [
        Sample(
            (
                np.array([0, 1, 2**63, 2**64 - 1, 2**32 + 5], np.uint64)[:, None],
                np.array([0, 1, 3, 2**32, 2**64 - 1], np.uint64),
            )
        ),
        Sample((np.zeros((0, 3), np.uint64), np.ones(3, np.uint64))),
    ],
    cost=8,
)


def bits(
    key: ArrayLike, shape: ShapeLike = (), dtype: npt.DTypeLike = "uint32"
) -> Tensor:
    """Draw integers of which every bit is random, of any integer dtype.

    Up to 32 bits come from one word of Philox, 64 from two, the first one low.

    >>> import staticgrad as sg
    >>> sg.compile(sg.random.bits(sg.random.key(0), (2,)))().tolist()
    [1713891541, 3781805453]
    """
    kind = integer_kind("bits", dtype)
    dims = as_shape("bits", shape, names=True)
    width = 64 if kind.itemsize == 8 else 32
    return cast(apply(WORD, one_key("bits", key), shape=dims, bits=width), kind)


def integers(
    key: ArrayLike,
    low: ArrayLike,
    high: ArrayLike | None = None,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike = "int64",
    endpoint: bool = False,
) -> Tensor:
    """Draw integers evenly from ``low <= i < high``, or ``<= high`` with `endpoint`.

    With one bound it is `high`, and `low` is 0, as in NumPy. The bounds are integers
    that broadcast to `shape`, by default to each other. Where a tensor of bounds leaves
    no integer the result is `low`; plain numbers that do are a GraphError.

    >>> import staticgrad as sg
    >>> die = sg.random.integers(sg.random.key(1), 1, 6, (1000,), endpoint=True)
    >>> sg.compile([sg.min(die), sg.max(die)])()
    [array(1), array(6)]
    """
    kind = integer_kind("integers", dtype)
    if high is None:
        low, high = 0, low
    if isinstance(low, int) and isinstance(high, int):
        start, count = _known_bounds(low, high + endpoint, kind)
        dims = drawn_shape("integers", shape)
    else:
        start, count = _bounds(low, high, kind, endpoint)
        dims = drawn_shape("integers", shape, start, count)
    word = apply(WORD, one_key("integers", key), shape=dims, bits=64)
    offset = word if count is None else apply(HIGH_PRODUCT, word, count)
    return cast(start + offset, kind)


def _known_bounds(low: int, stop: int, kind: DType) -> tuple[Tensor, Tensor | None]:
    """Return the first integer and their number, None for all 2^64, as uint64."""
    limits = np.iinfo(kind)
    if not limits.min <= low < stop <= limits.max + 1:
        raise GraphError(
            f"integers requires a range of at least one integer within {kind}, got "
            f"{low} to {stop - 1}; widen it or choose another dtype{at(here())}"
        )
    count = stop - low
    start = as_tensor(np.uint64(low % 2**64))
    return start, None if count == 2**64 else as_tensor(np.uint64(count))


def _bounds(
    low: ArrayLike, high: ArrayLike, kind: DType, closed: bool
) -> tuple[Tensor, Tensor]:
    """Return the first integer and their number, as uint64; 0 is taken as 1."""
    wide = np.dtype(f"{kind.kind}8")
    start, stop = (_bound(value, wide) for value in (low, high))
    empty = stop < start if closed else stop <= start
    count = cast(stop, UINT64) - cast(start, UINT64) + np.uint64(closed)
    return cast(start, UINT64), where(empty, np.uint64(1), count)


def _bound(value: ArrayLike, wide: DType) -> Tensor:
    tensor = as_tensor(value)
    if tensor.dtype.kind not in "iu":
        raise dtype_error("integers", (tensor,), "integers as bounds", "cast them")
    return cast(tensor, wide)


def randint(
    key: ArrayLike,
    shape: ShapeLike,
    low: ArrayLike,
    high: ArrayLike,
    dtype: npt.DTypeLike = "int64",
) -> Tensor:
    """Draw ``integers(key, low, high, shape, dtype)``: JAX's order of arguments.

    >>> import staticgrad as sg
    >>> print(sg.random.randint(sg.random.key(1), (3,), 0, 10).type)
    int64[3]
    """
    return integers(key, low, high, shape, dtype)


def integer_kind(name: str, dtype: npt.DTypeLike) -> DType:
    """Return the integer dtype `dtype`, or raise for the function `name`."""
    kind = dtype_of(name, dtype)
    if kind.kind not in "iu":
        raise DTypeError(
            f"{name} requires an integer dtype, got {kind}; cast the result{at(here())}"
        )
    return kind
