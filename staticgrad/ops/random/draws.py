"""Keys, and the words, uniform and normal numbers that are drawn with one.

A key is a uint32 tensor of four words: two words of key and the two upper words of the
counter of Philox4x32-10 (philox.py); the lower two words count the blocks of four words
that a draw takes. So every element is a function of the key and its own position, equal
on every target, and can be computed twice. draws_ir.py says which words
an element takes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Constant, Tensor
from staticgrad.ir.op import Bad, Op, Random, Sample, define
from staticgrad.ir.size import Shape
from staticgrad.ir.source import at, here
from staticgrad.ir.types import UINT32, UINT64, DType, TensorType, kind_of
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.integers import right_shift
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.joining import stack, unstacked
from staticgrad.ops.movement.reshaping import expand_dims
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.random import philox
from staticgrad.ops.rules import dtype_error, shape_error

Array = npt.NDArray[Any]

WORDS = 4
"""uint32 words of a key."""

COST = 6
"""Additions that an element costs, about. Few enough that it is made again rather than
stored."""


def check_key(key: TensorType, shape: Shape) -> None:
    """Raise unless `key` fits: several keys are for the leading axes of the result."""
    if key.dtype != UINT32:
        raise DTypeError("a key of dtype uint32", "sg.random.key(seed) makes one")
    if key.shape[-1:] != (WORDS,):
        raise ShapeError("a key of four words", "sg.random.key(seed) makes one")
    leading = key.shape[:-1]
    if shape[: len(leading)] != leading:
        advice = "give the draws of each key axes after those"
        raise ShapeError("a shape that begins with the axes of the keys", advice)


def _drawn_shape(key: TensorType, *, shape: Shape, bits: int) -> Shape:
    check_key(key, shape)
    return shape


def _drawn(
    name: str,
    kind: str,
    numpy: Callable[[Array, tuple[int, ...], int], Array],
    cost: int,
    ulp: float,
) -> Op:
    """Define an op whose element i is a function of a key and i, `bits` wide."""

    def drawn(key: Array, *, shape: tuple[int, ...], bits: int) -> Array:
        rest = shape[key.ndim - 1 :]
        rows = [numpy(one, rest, bits) for one in key.reshape(-1, WORDS)]
        return np.array(rows, f"{kind}{bits}").reshape(shape)

    return define(
        name,
        shape=_drawn_shape,
        dtype=lambda key, *, bits, **_: np.dtype(f"{kind}{bits}"),
        vjp=None,
        code=Random(name + "{bits}({k0}, {k1}, {k2}, {k3}, {i})", cost),
        numpy=drawn,
        samples=lambda: _drawn_samples(ulp),
        bad=lambda: [
            Bad((np.zeros(4),), {"shape": (), "bits": 32}, DTypeError, "uint32"),
            Bad(
                (sample_key()[:2],), {"shape": (), "bits": 32}, ShapeError, "four words"
            ),
        ],
    )


def _drawn_samples(ulp: float) -> list[Sample]:
    key, keys = sample_key(), sample_keys()
    return [
        Sample((key,), {"shape": (3, 5), "bits": 32}, ulp=ulp),
        Sample((key,), {"shape": (7,), "bits": 64}, ulp=ulp),
        Sample((key,), {"shape": (1100,), "bits": 32}, ulp=ulp),
        Sample((key,), {"shape": (1100,), "bits": 64}, ulp=ulp),
        Sample((key,), {"shape": (0, 2), "bits": 32}, ulp=ulp),
        Sample((key,), {"shape": (), "bits": 64}, ulp=ulp),
        Sample((keys,), {"shape": (2, 5), "bits": 32}, ulp=ulp),
        Sample((keys[None],), {"shape": (1, 2, 3), "bits": 64}, ulp=ulp),
    ]


def sample_key() -> Array:
    """Return a key with set bits everywhere."""
    return np.array([0xA4093822, 0x299F31D0, 3, 0xFFFFFFFF], np.uint32)


def sample_keys() -> Array:
    """Return two keys."""
    return np.array([sample_key(), [5, 6, 7, 8]], np.uint32)


WORD = _drawn("word", "uint", philox.words, COST, 0.0)
UNIFORM = _drawn("uniform", "float", philox.uniform, COST, 0.0)
NORMAL = _drawn("normal", "float", philox.normal, 4 * COST, 8.0)


def _fold_in_shape(key: TensorType, n: TensorType) -> Shape:
    if not n.shape or n.shape[-1] != 1:
        raise ShapeError("numbers whose last axis has size 1", "reshape them")
    check_key(key, n.shape[:-1])
    return (*n.shape[:-1], WORDS)


def _fold_in_numpy(key: Array, n: Array) -> Array:
    words = key.reshape(*key.shape[:-1], *(1,) * (n.ndim - key.ndim), WORDS)
    k0, k1, k2, k3 = np.moveaxis(words, -1, 0)
    return philox.philox((n[..., 0], 0, k2, k3), (k0, k1))


def _fold_in_dtype(key: TensorType, n: TensorType) -> DType:
    if n.dtype != UINT32:
        raise DTypeError("numbers of dtype uint32", "cast them")
    return UINT32


FOLD_IN = define(
    "fold_in",
    shape=_fold_in_shape,
    dtype=_fold_in_dtype,
    vjp=None,
    code=Random("philox_word({k0}, {k1}, {k2}, {k3}, {0}, {i} & 3)"),
    numpy=_fold_in_numpy,
    samples=lambda: [
        Sample((sample_key(), np.array([7], np.uint32)), ulp=0.0),
        Sample((sample_key(), np.arange(3, dtype=np.uint32)[:, None]), ulp=0.0),
        Sample((sample_keys(), np.array([[7], [9]], np.uint32)), ulp=0.0),
        Sample((sample_keys(), np.arange(6).astype("u4").reshape(2, 3, 1)), ulp=0.0),
    ],
    bad=lambda: [
        Bad((sample_key(), np.uint32(7)), {}, ShapeError, "last axis"),
        Bad((sample_key(), np.array([7])), {}, DTypeError, "numbers of dtype uint32"),
    ],
)


@overload
def key(seed: int) -> Constant: ...
@overload
def key(seed: Tensor) -> Tensor: ...
def key(seed: int | Tensor) -> Tensor:
    """Return a key: the low 64 bits of the integer `seed`, then two words of 0.

    `seed` may be an integer scalar tensor, such as an input: every call draws anew.

    >>> import staticgrad as sg
    >>> sg.random.key(5).value.tolist()
    [5, 0, 0, 0]
    """
    if not isinstance(seed, Tensor):
        return frozen(key_words(seed))
    if kind_of(seed.dtype) not in "iu":
        raise dtype_error("key", (seed,), "an integer seed", "cast with .astype")
    if seed.ndim:
        rule = "one seed, a scalar"
        raise shape_error("key", (seed,), rule, "fold numbers into one key")
    number = cast(seed, UINT64)
    words = [cast(number, UINT32), cast(right_shift(number, 32), UINT32)]
    return stack([*words, *[frozen(np.zeros((), UINT32))] * 2])


def key_words(seed: int) -> npt.NDArray[np.uint32]:
    """Return the four words of ``key(seed)``; DTypeError if `seed` is no integer."""
    try:
        number = operator.index(seed) % 2**64
    except TypeError:
        raise DTypeError(
            f"key requires an integer seed, got {seed!r}; use int(seed){at(here())}"
        ) from None
    return np.array([number % 2**32, number >> 32, 0, 0], np.uint32)


def one_key(name: str, key: ArrayLike) -> Tensor:
    """Return `key` as one key; raise, naming the function `name`, for several."""
    words = as_tensor(key)
    if words.dtype == UINT32 and words.shape != (WORDS,):
        advice = "map with sg.vmap over several keys, which sg.stack or fold_in makes"
        raise shape_error(name, (words,), "a key of four words", advice)
    return words


def fold_in(key: ArrayLike, n: ArrayLike) -> Tensor:
    """Return a new key from `key` and the integer `n`, taken modulo 2**32.

    `n` may have axes, such as one per layer or chain; the words are the new last axis.

    >>> import staticgrad as sg
    >>> print(sg.random.fold_in(sg.random.key(0), 3).type)
    uint32[4]
    """
    if isinstance(n, int):
        n = np.uint32(n % 2**32)
    number = as_tensor(n)
    if kind_of(number.dtype) not in "iu":
        raise dtype_error("fold_in", (number,), "integers to fold in")
    return apply(
        FOLD_IN, one_key("fold_in", key), expand_dims(cast(number, UINT32), -1)
    )


def split(key: ArrayLike, num: int = 2) -> list[Tensor]:
    """Return `num` new keys from one, a list; do not use `key` itself afterwards.

    For ``vmap`` and ``scan``, which map over an axis, make an array of them with
    ``sg.stack``, or with ``fold_in(key, np.arange(num))``.

    >>> import staticgrad as sg
    >>> first, second = sg.random.split(sg.random.key(0))
    >>> keys = sg.stack(sg.random.split(sg.random.key(0), 10))
    >>> print(sg.vmap(lambda key: sg.random.normal(key, (3,)))(keys).type)
    float32[10, 3]
    """
    return unstacked("split", fold_in(key, np.arange(num, dtype=np.uint32)))
