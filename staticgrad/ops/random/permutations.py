"""Random permutations: ``sg.random.permutation`` and ``choice``.

An order of n is made by Fisher and Yates' method, inside out: position i in turn takes
what a random position j <= i holds, which takes i. Step i draws word i of 64 bits, so
all n! orders are equally likely but for a part in 2^64 / n.

Source: R. Durstenfeld, "Algorithm 235: random permutation", CACM 7, 1964.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Sample, Shuffle, define
from staticgrad.ir.size import Dim, Shape, Size, product
from staticgrad.ir.source import at, here
from staticgrad.ir.types import FLOAT64, INT64, TensorType
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.functions import log
from staticgrad.ops.leaves import ShapeLike, as_shape
from staticgrad.ops.movement.indexing import take
from staticgrad.ops.movement.slicing import cut
from staticgrad.ops.movement.views import reshaped
from staticgrad.ops.promotion import ArrayLike, as_tensor, floats
from staticgrad.ops.random.distributions import gumbel, uniform
from staticgrad.ops.random.draws import (
    WORDS,
    check_key,
    one_key,
    sample_key,
    sample_keys,
)
from staticgrad.ops.random.philox import words
from staticgrad.ops.random.random_integers import HIGH_PRODUCT, integers
from staticgrad.ops.reductions.scans import cumsum
from staticgrad.ops.reductions.segments import searchsorted
from staticgrad.ops.reductions.top_elements import top_k
from staticgrad.ops.rules import one_axis, shape_error

Array = npt.NDArray[Any]


def _order_shape(key: TensorType, *, shape: Shape) -> Shape:
    check_key(key, shape)
    if len(shape) != len(key.shape):
        raise ShapeError("one axis after those of the keys", "give (..., n)")
    return shape


def _order_numpy(key: Array, *, shape: tuple[int, ...]) -> Array:
    rows = [_one_order(one, shape[-1]) for one in key.reshape(-1, WORDS)]
    return np.array(rows, np.int64).reshape(shape)


def _one_order(key: Array, n: int) -> Array:
    below = np.arange(1, n + 1, dtype=np.uint64)
    places = HIGH_PRODUCT.numpy(words(key, (n,), 64), below).tolist()
    order = list(range(n))
    for i, j in enumerate(places):
        order[i] = order[j]
        order[j] = i
    return np.array(order, np.int64)


ORDER = define(
    "random_order",
    shape=_order_shape,
    dtype=lambda key, **_: INT64,
    vjp=None,
    code=Shuffle("high_product({0}, {1})", word="word64"),
    numpy=_order_numpy,
    samples=lambda: [
        Sample((sample_key(),), {"shape": (9,)}),
        Sample((sample_key(),), {"shape": (1500,)}),
        Sample((sample_key(),), {"shape": (0,)}),
        Sample((sample_keys(),), {"shape": (2, 7)}),
        Sample((sample_keys()[None],), {"shape": (1, 2, 3)}),
    ],
    bad=lambda: [
        Bad((np.zeros(4),), {"shape": (2,)}, DTypeError, "uint32"),
        Bad((sample_key(),), {"shape": (2, 3)}, ShapeError, "one axis after"),
    ],
)


def permutation(key: ArrayLike, x: ArrayLike, axis: int = 0) -> Tensor:
    """Return ``0..x-1``, or the slices of `x` along `axis`, in random order.

    >>> import staticgrad as sg
    >>> order = sg.random.permutation(sg.random.key(0), 5)
    >>> sorted(sg.compile(order)().tolist())
    [0, 1, 2, 3, 4]
    """
    words = one_key("permutation", key)
    n = _count(x)
    if n is not None:
        return apply(ORDER, words, shape=as_shape("permutation", (n,)))
    given = as_tensor(x)
    if given.ndim == 0:
        raise shape_error(
            "permutation", (given,), "a known number or at least one axis"
        )
    place = one_axis("permutation", given, axis)
    order = apply(ORDER, words, shape=(given.shape[place],))
    return take(given, order, axis=place)


def _count(x: ArrayLike) -> Dim | None:
    if isinstance(x, Size):
        return x
    return int(x) if isinstance(x, int | np.integer) else None


def choice(
    key: ArrayLike,
    a: ArrayLike,
    shape: ShapeLike = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
) -> Tensor:
    """Draw random elements of ``0..a-1``, or slices of `a` along `axis`.

    `p` are probabilities, by default equal ones; they need not sum to 1. Those of 0 are
    never chosen. Without `replace` none is taken twice, and `shape` has no more
    elements than there are; with `p` that takes time in proportion to the product of
    both.

    >>> import staticgrad as sg
    >>> hand = sg.random.choice(sg.random.key(0), 52, (5,), replace=False)
    >>> len(set(sg.compile(hand)().tolist()))
    5
    """
    words = one_key("choice", key)
    dims = as_shape("choice", shape, names=True)
    known = _count(a)
    given = None if known is not None else as_tensor(a)
    if given is not None and given.ndim == 0:
        raise shape_error("choice", (given,), "a known number or at least one axis")
    place = 0 if given is None else one_axis("choice", given, axis)
    n = known if given is None else given.shape[place]
    assert n is not None
    weights = None if p is None else floats(p)[0]
    if weights is not None and weights.shape != (n,):
        raise shape_error("choice", (weights,), f"probabilities of shape ({n},)")
    if replace:
        index = _with_return(words, n, dims, weights)
    else:
        index = _without_return(words, n, dims, weights)
    return index if given is None else take(given, index, axis=place)


def _with_return(key: Tensor, n: Dim, dims: Shape, p: Tensor | None) -> Tensor:
    """Draw with replacement; with p by inverting the cumulative probabilities."""
    if p is None:
        return integers(key, 0, as_tensor(n), dims)
    below = cumsum(cast(p, FLOAT64))
    return searchsorted(below, below[-1] * (1.0 - uniform(key, dims, FLOAT64)))


def _without_return(key: Tensor, n: Dim, dims: Shape, p: Tensor | None) -> Tensor:
    """Draw without replacement: a random permutation's head; with p by Gumbel top-k."""
    count = product(dims)
    if isinstance(count, int) and isinstance(n, int) and count > n:
        raise GraphError(
            f"choice requires at most {n} elements without replacement, got {count}; "
            f"use replace=True{at(here())}"
        )
    if p is None:
        return reshaped(cut(apply(ORDER, key, shape=(n,)), 0, 0, count), dims)
    if not isinstance(count, int):
        raise GraphError(
            f"choice requires a static shape with p and without replacement, got "
            f"{dims}; give numbers{at(here())}"
        )
    scores = log(p) + gumbel(key, (n,), p.dtype)
    return reshaped(top_k(scores, count)[1], dims)
