"""Random numbers as functions of a key: ``sg.random``.

A key is a uint32 tensor of four words: two words of key and the two upper words of the
counter of Philox4x32-10 (philox.py); the lower two words count the blocks of four words
that a draw takes. So every element is a function of the key and its own position, equal
on every target, and can be computed twice.

Use a key once: either draw with it, or make new keys from it with fold_in and split.
"""

from __future__ import annotations

import operator
from contextvars import Context
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import Graph, apply, current_graph, default_dtype
from staticgrad.ir.node import Constant, State, Tensor
from staticgrad.ir.op import Bad, Random, Sample, define
from staticgrad.ir.size import Shape
from staticgrad.ir.source import at, here
from staticgrad.ir.types import (
    FLOAT32,
    UINT32,
    DType,
    TensorType,
    as_dtype,
    computed,
    digits,
    is_float,
    is_half,
    kind_of,
)
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import ShapeLike, as_shape, frozen, number, state
from staticgrad.ops.named import named
from staticgrad.ops.philox import philox
from staticgrad.ops.philox import uniform as philox_uniform
from staticgrad.ops.place import unstacked
from staticgrad.ops.promote import ArrayLike, as_tensor, promoted
from staticgrad.ops.rules import dtype_error, shape_error
from staticgrad.ops.shape import expand_dims
from staticgrad.ops.stateful import by_mode

Array = npt.NDArray[Any]

_WORDS = 4


def _check_key(key: TensorType, shape: Shape) -> None:
    """Several keys, along leading axes, are for the leading axes of the result."""
    if key.dtype != UINT32:
        raise DTypeError("a key of dtype uint32", "sg.random.key(seed) makes one")
    if key.shape[-1:] != (_WORDS,):
        raise ShapeError("a key of four words", "sg.random.key(seed) makes one")
    leading = key.shape[:-1]
    if shape[: len(leading)] != leading:
        advice = "give the draws of each key axes after those"
        raise ShapeError("a shape that begins with the axes of the keys", advice)


# ---- uniform -------------------------------------------------------------------------


def _uniform_shape(key: TensorType, *, shape: Shape, bits: int) -> Shape:
    _check_key(key, shape)
    return shape


def _uniform_numpy(key: Array, *, shape: tuple[int, ...], bits: int) -> Array:
    rest = shape[key.ndim - 1 :]
    rows = [philox_uniform(one, rest, bits) for one in key.reshape(-1, _WORDS)]
    return np.array(rows, f"float{bits}").reshape(shape)


UNIFORM = define(
    "uniform",
    shape=_uniform_shape,
    dtype=lambda key, *, bits, **_: np.dtype(f"float{bits}"),
    vjp=None,
    code=Random("uniform{bits}({k0}, {k1}, {k2}, {k3}, {i})"),
    numpy=_uniform_numpy,
    samples=lambda: [
        Sample((_sample_key(),), {"shape": (3, 5), "bits": 32}, ulp=0.0),
        Sample((_sample_key(),), {"shape": (7,), "bits": 64}, ulp=0.0),
        Sample((_sample_key(),), {"shape": (0, 2), "bits": 32}, ulp=0.0),
        Sample((_sample_key(),), {"shape": (), "bits": 64}, ulp=0.0),
        Sample((_sample_keys(),), {"shape": (2, 5), "bits": 32}, ulp=0.0),
        Sample((_sample_keys()[None],), {"shape": (1, 2, 3), "bits": 64}, ulp=0.0),
    ],
    bad=lambda: [
        Bad((np.zeros(4),), {"shape": (), "bits": 32}, DTypeError, "uint32"),
        Bad((_sample_key()[:2],), {"shape": (), "bits": 32}, ShapeError, "four words"),
    ],
)


def _sample_key() -> Array:
    return np.array([0xA4093822, 0x299F31D0, 3, 0xFFFFFFFF], np.uint32)


def _sample_keys() -> Array:
    return np.array([_sample_key(), [5, 6, 7, 8]], np.uint32)


# ---- fold_in -------------------------------------------------------------------------


def _fold_in_shape(key: TensorType, n: TensorType) -> Shape:
    if not n.shape or n.shape[-1] != 1:
        raise ShapeError("numbers whose last axis has size 1", "reshape them")
    _check_key(key, n.shape[:-1])
    return (*n.shape[:-1], _WORDS)


def _fold_in_numpy(key: Array, n: Array) -> Array:
    words = key.reshape(*key.shape[:-1], *(1,) * (n.ndim - key.ndim), _WORDS)
    k0, k1, k2, k3 = np.moveaxis(words, -1, 0)
    return philox((n[..., 0], 0, k2, k3), (k0, k1))


def _fold_in_dtype(key: TensorType, n: TensorType) -> DType:
    if n.dtype != UINT32:
        raise DTypeError("numbers of dtype uint32", "cast them")
    return UINT32


FOLD_IN = define(
    "fold_in",
    shape=_fold_in_shape,
    dtype=_fold_in_dtype,
    vjp=None,
    code=Random("philox_word({k0}, {k1}, {k2}, {k3}, {1}, {i} & 3)"),
    numpy=_fold_in_numpy,
    samples=lambda: [
        Sample((_sample_key(), np.array([7], np.uint32)), ulp=0.0),
        Sample((_sample_key(), np.arange(3, dtype=np.uint32)[:, None]), ulp=0.0),
        Sample((_sample_keys(), np.array([[7], [9]], np.uint32)), ulp=0.0),
        Sample((_sample_keys(), np.arange(6).astype("u4").reshape(2, 3, 1)), ulp=0.0),
    ],
    bad=lambda: [
        Bad((_sample_key(), np.uint32(7)), {}, ShapeError, "last axis"),
        Bad((_sample_key(), np.array([7])), {}, DTypeError, "numbers of dtype uint32"),
    ],
)


# ---- public --------------------------------------------------------------------------


def key(seed: int) -> Constant:
    """A key: the low 64 bits of the integer `seed`, then two words of 0.

    >>> import staticgrad as sg
    >>> sg.random.key(5).value.tolist()
    [5, 0, 0, 0]
    """
    return frozen(key_words(seed))


def key_words(seed: int) -> npt.NDArray[np.uint32]:
    """The four words of ``key(seed)``; DTypeError if `seed` is no integer."""
    try:
        number = operator.index(seed) % 2**64
    except TypeError:
        raise DTypeError(
            f"key requires an integer seed, got {seed!r}; use int(seed){at(here())}"
        ) from None
    return np.array([number % 2**32, number >> 32, 0, 0], np.uint32)


def one_key(name: str, key: ArrayLike) -> Tensor:
    """`key` as a Tensor, which is not several, on behalf of the function `name`."""
    words = as_tensor(key)
    if words.ndim > 1:
        advice = "use sg.vmap over several keys"
        raise shape_error(name, (words,), "a key of four words", advice)
    return words


def fold_in(key: ArrayLike, n: ArrayLike) -> Tensor:
    """A new key from `key` and the integer `n`, taken modulo 2**32.

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
    """`num` new keys from one; do not use `key` itself afterwards.

    >>> import staticgrad as sg
    >>> first, second = sg.random.split(sg.random.key(0))
    """
    return unstacked("split", fold_in(key, np.arange(num, dtype=np.uint32)))


def uniform(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: npt.DTypeLike | None = None,
    low: ArrayLike = 0.0,
    high: ArrayLike = 1.0,
) -> Tensor:
    """Numbers drawn evenly from ``low <= x < high``.

    `dtype` is a float, by default the Graph's; `low` and `high` broadcast to `shape`.
    bfloat16 has 8 random bits, float16 11, float32 24, float64 53. The gradient with
    respect to `low` and `high` is that of ``low + (high - low) * u``, whose rounding
    may give `high` itself.

    >>> import staticgrad as sg
    >>> print(sg.random.uniform(sg.random.key(0), ("n",), low=-1.0).type)
    float32[n]
    """
    kind = default_dtype() if dtype is None else as_dtype(dtype)
    if not is_float(kind):
        raise DTypeError(
            f"uniform requires a floating-point dtype, got {kind}; cast the "
            f"result{at(here())}"
        )
    dims = as_shape("uniform", shape, names=True)
    words = one_key("uniform", key)
    u = apply(UNIFORM, words, shape=dims, bits=8 * computed(kind).itemsize)
    if is_half(kind):
        steps = 2.0 ** digits(kind)
        whole = named("floor", named("multiply", u, number(steps, FLOAT32)))
        u = cast(named("multiply", whole, number(1 / steps, FLOAT32)), kind)
    if _is(low, 0) and _is(high, 1):
        return u
    start, stop, u = promoted(low, high, u)
    width = named("subtract", stop, start)
    return named("add", start, named("multiply", width, u))


def _is(value: ArrayLike, number: int) -> bool:
    return isinstance(value, int | float) and value == number


def bernoulli(
    key: ArrayLike, p: ArrayLike = 0.5, shape: ShapeLike | None = None
) -> Tensor:
    """True with probability `p`, which broadcasts to `shape` (by default its own).

    p = 0 never gives True, p = 1 always; p is compared with 24 random bits.

    >>> import staticgrad as sg
    >>> print(sg.random.bernoulli(sg.random.key(0), 0.1, ("n", 3)).type)
    bool[n, 3]
    """
    if shape is None:
        shape = as_tensor(p).shape
    dims = as_shape("bernoulli", shape, names=True)
    u = apply(UNIFORM, one_key("bernoulli", key), shape=dims, bits=32)
    return named("less", *promoted(u, p))


# ---- the stream of a graph -----------------------------------------------------------


def layer_key() -> Tensor:
    """A key for the next layer of the open Graph that draws.

    The Graph has one State, "random_stream": two words of seed and a step counter.
    Layer number n folds n into it. A step in train mode advances the counter, one in
    eval mode leaves it. GraphError if no Graph is open.
    """
    graph = current_graph()
    if graph is None:
        raise GraphError(
            "layer_key requires an open Graph, got none; build inside "
            f"'with sg.Graph(seed=0):' or draw with sg.random.key(seed){at(here())}"
        )
    number = graph.shared.get("stream_layers", 0)
    graph.shared["stream_layers"] = number + 1
    return fold_in(stream(graph), number)


def stream(graph: Graph) -> State:
    """The State of `graph`, which is open, from which its layers draw."""
    if "stream" not in graph.shared:
        graph.shared["stream"] = _new_stream(graph)
    found: State = graph.shared["stream"]
    return found


def _new_stream(graph: Graph) -> State:
    # in an empty context: the stream belongs to the graph, not to the layer's scope
    name = graph.unique_name("random_stream")
    leaf = Context().run(state, key_words(graph.seed), name)
    graph.add_stored(leaf)
    advanced = named("add", leaf, frozen(np.array([0, 0, 1, 0], np.uint32)))
    graph.add_update(leaf, by_mode(train=advanced, eval=leaf))
    return leaf
