"""Distributions of real numbers, and categorical ones: ``sg.random.normal``...

Each is a plain function of uniform or normal draws (draws.py), so it fuses with what
surrounds it, and its gradient with respect to parameters is that of the formula
(reparameterisation). Without `shape` the result has the shape to which the parameters
broadcast; without `dtype` it has theirs, or the Graph's if they are plain numbers.
"""

from __future__ import annotations

import math

import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply, default_dtype
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Shape, product
from staticgrad.ir.source import at, here
from staticgrad.ir.types import (
    FLOAT32,
    FLOAT64,
    DType,
    as_dtype,
    broadcast_shapes,
    computed,
    digits,
    is_float,
    is_half,
)
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.arithmetic import sign
from staticgrad.ops.elementwise.choice import maximum, minimum, where
from staticgrad.ops.elementwise.compare import isnan
from staticgrad.ops.elementwise.functions import erf, exp, floor, log, log1p
from staticgrad.ops.elementwise.special import erfinv
from staticgrad.ops.leaves import ShapeLike, as_shape, is_number
from staticgrad.ops.movement.filling import zeros
from staticgrad.ops.movement.reshaping import moveaxis
from staticgrad.ops.movement.views import broadcasted
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted
from staticgrad.ops.random.draws import NORMAL, UNIFORM, WORD, fold_in, one_key
from staticgrad.ops.random.gamma_draw import GAMMA
from staticgrad.ops.reductions.reduce import any, max, sum
from staticgrad.ops.reductions.scans import cumsum
from staticgrad.ops.reductions.segments import searchsorted
from staticgrad.ops.reductions.statistics import argmax
from staticgrad.ops.rules import one_axis, shape_error


def float_kind(name: str, dtype: npt.DTypeLike | None, *parameters: ArrayLike) -> DType:
    """Return the dtype of a draw, as asked for or as the parameters have it."""
    kind = default_dtype() if dtype is None else as_dtype(dtype)
    if not is_float(kind):
        raise DTypeError(
            f"{name} requires a floating-point dtype, got {kind}; cast the "
            f"result{at(here())}"
        )
    if dtype is not None or all(map(is_number, parameters)):
        return kind
    common = promoted(zeros((), kind), *parameters)[0].dtype
    return common if is_float(common) else FLOAT64


def drawn_shape(name: str, shape: ShapeLike | None, *parameters: ArrayLike) -> Shape:
    """Return `shape`, or else the shape that the parameters broadcast to."""
    tensors = [as_tensor(p) for p in parameters]
    if shape is None:
        return _together(name, [t.shape for t in tensors], tensors)
    dims = as_shape(name, shape, names=True)
    if _together(name, [dims, *(t.shape for t in tensors)], tensors) != dims:
        advice = "give the shape of the result"
        raise shape_error(name, tensors, f"parameters that broadcast to {dims}", advice)
    return dims


def _drawn(
    name: str, shape: ShapeLike | None, dtype: npt.DTypeLike | None, *given: ArrayLike
) -> tuple[DType, Shape]:
    """Return dtype and shape of a draw with the parameters `given`."""
    return float_kind(name, dtype, *given), drawn_shape(name, shape, *given)


def _together(name: str, shapes: list[Shape], tensors: list[Tensor]) -> Shape:
    try:
        return broadcast_shapes(shapes)
    except ShapeError as error:
        advice = f"{error.args[0]}, reshape or slice one of them"
        rule = "parameters that broadcast"
        raise shape_error(name, tensors, rule, advice) from None


def uniform(
    key: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | None = None,
    low: ArrayLike = 0.0,
    high: ArrayLike = 1.0,
) -> Tensor:
    """Draw uniform numbers from ``low <= x < high``.

    `low` and `high` broadcast to `shape`. bfloat16 has 8 random bits, float16 11,
    float32 24, float64 53. The gradient with respect to `low` and `high` is that of
    ``low + (high - low) * u``, whose rounding may give `high` itself.

    >>> import staticgrad as sg
    >>> print(sg.random.uniform(sg.random.key(0), ("n",), low=-1.0).type)
    float32[n]
    """
    kind, dims = _drawn("uniform", shape, dtype, low, high)
    u = _unit("uniform", key, dims, kind)
    if _is(low, 0) and _is(high, 1):
        return u
    start, stop = _typed(kind, low, high)
    return start + (stop - start) * u


def _is(value: ArrayLike, number: int) -> bool:
    return isinstance(value, int | float) and value == number


def _typed(kind: DType, *parameters: ArrayLike) -> tuple[Tensor, ...]:
    return tuple(cast(as_tensor(p), kind) for p in parameters)


def _unit(name: str, key: ArrayLike, dims: Shape, kind: DType) -> Tensor:
    """Draw uniform numbers in [0, 1)."""
    bits = 8 * computed(kind).itemsize
    u = apply(UNIFORM, one_key(name, key), shape=dims, bits=bits)
    if not is_half(kind):
        return u
    steps = 2.0 ** digits(kind)  # rounding would give 1
    return cast(floor(u * steps) * (1 / steps), kind)


def _inside(name: str, key: ArrayLike, dims: Shape, kind: DType) -> Tensor:
    """Draw uniform numbers inside (0, 1), in steps of 2^-32 or less near 0."""
    if kind == FLOAT64:
        return maximum(_unit(name, key, dims, kind), 2.0**-54)
    word = apply(WORD, one_key(name, key), shape=dims, bits=32)
    return minimum((cast(word, FLOAT32) + 0.5) * 2.0**-32, 1 - 2.0**-24)


def bernoulli(
    key: ArrayLike, p: ArrayLike = 0.5, shape: ShapeLike | None = None
) -> Tensor:
    """Draw True with probability `p`, else False.

    `p` broadcasts to `shape`, by default its own. p = 0 never gives True, p = 1 always;
    p is compared with 24 random bits. A mask of dropout that keeps nine of ten is
    ``bernoulli(key, 0.9, x.shape)``.

    >>> import staticgrad as sg
    >>> print(sg.random.bernoulli(sg.random.key(0), 0.1, ("n", 3)).type)
    bool[n, 3]
    """
    dims = drawn_shape("bernoulli", shape, p)
    u = _unit("bernoulli", key, dims, FLOAT32)
    return named("less", *promoted(u, p))


def normal(
    key: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | None = None,
    loc: ArrayLike = 0.0,
    scale: ArrayLike = 1.0,
) -> Tensor:
    """Draw normal numbers with mean `loc` and standard deviation `scale`.

    Box and Muller's method: sqrt(-2 log u) times the cosine or sine of a random angle.
    The tails reach 6.66 deviations in float32 and 8.57 in float64. The gradient is that
    of ``loc + scale * z``.

    >>> import staticgrad as sg
    >>> print(sg.random.normal(sg.random.key(0), ("n", 2), scale=3.0).type)
    float32[n, 2]
    """
    kind, dims = _drawn("normal", shape, dtype, loc, scale)
    words = one_key("normal", key)
    z = apply(NORMAL, words, shape=dims, bits=8 * computed(kind).itemsize)
    return _moved(z, kind, loc, scale)


def _moved(z: Tensor, kind: DType, loc: ArrayLike, scale: ArrayLike) -> Tensor:
    """Return ``loc + scale * z``, computed in the dtype of z and rounded to `kind`."""
    start, width = _typed(z.dtype, loc, scale)
    z = z if _is(scale, 1) else z * width
    return cast(z if _is(loc, 0) else start + z, kind)


def truncated_normal(
    key: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    """Draw standard normal numbers restricted to ``lower..upper``.

    ``sqrt(2) erfinv(u)`` with u even between the values of erf at the bounds: exact
    near the middle; a range that lies beyond 4 deviations is coarse in float32.

    >>> import staticgrad as sg
    >>> x = sg.random.truncated_normal(sg.random.key(0), -2.0, 2.0, (1000,))
    >>> bool(sg.compile(sg.max(sg.abs(x)) <= 2)())
    True
    """
    kind, dims = _drawn("truncated_normal", shape, dtype, lower, upper)
    a, b = _typed(computed(kind), lower, upper)
    root = math.sqrt(2)
    low, high = erf(a / root), erf(b / root)
    u = _inside("truncated_normal", key, dims, kind)
    z = root * erfinv(low + (high - low) * u)
    return cast(maximum(minimum(z, b), a), kind)


def exponential(
    key: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | None = None,
    scale: ArrayLike = 1.0,
) -> Tensor:
    """Draw exponential numbers with mean `scale`: ``-scale * log(1 - u)``.

    >>> import staticgrad as sg
    >>> x = sg.random.exponential(sg.random.key(0), (1000,))
    >>> bool(sg.compile(sg.min(x) > 0)())
    True
    """
    kind, dims = _drawn("exponential", shape, dtype, scale)
    return _moved(_waited("exponential", key, dims, kind), kind, 0.0, scale)


def _waited(name: str, key: ArrayLike, dims: Shape, kind: DType) -> Tensor:
    """Draw exponential numbers with mean 1."""
    return -log1p(-_inside(name, key, dims, kind))


def gumbel(
    key: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | None = None,
    loc: ArrayLike = 0.0,
    scale: ArrayLike = 1.0,
) -> Tensor:
    """Draw Gumbel numbers: ``loc - scale * log(e)`` of exponential ones.

    >>> import staticgrad as sg
    >>> print(sg.random.gumbel(sg.random.key(0), (3,)).type)
    float32[3]
    """
    kind, dims = _drawn("gumbel", shape, dtype, loc, scale)
    return _moved(-log(_waited("gumbel", key, dims, kind)), kind, loc, scale)


def laplace(
    key: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | None = None,
    loc: ArrayLike = 0.0,
    scale: ArrayLike = 1.0,
) -> Tensor:
    """Draw Laplace numbers: exponential ones of mean `scale` on both sides of `loc`.

    >>> import staticgrad as sg
    >>> print(sg.random.laplace(sg.random.key(0), (3,)).type)
    float32[3]
    """
    kind, dims = _drawn("laplace", shape, dtype, loc, scale)
    least = 2.0**-53 if kind == FLOAT64 else 2.0**-24
    t = maximum(2 * _inside("laplace", key, dims, kind) - 1, least - 1)
    return _moved(-sign(t) * log1p(-named("absolute", t)), kind, loc, scale)


def logistic(
    key: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | None = None,
    loc: ArrayLike = 0.0,
    scale: ArrayLike = 1.0,
) -> Tensor:
    """Draw logistic numbers: ``loc + scale * log(u / (1 - u))``.

    >>> import staticgrad as sg
    >>> print(sg.random.logistic(sg.random.key(0), (3,)).type)
    float32[3]
    """
    kind, dims = _drawn("logistic", shape, dtype, loc, scale)
    u = _inside("logistic", key, dims, kind)
    return _moved(log(u) - log1p(-u), kind, loc, scale)


def gamma(
    key: ArrayLike,
    a: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | None = None,
    scale: ArrayLike = 1.0,
) -> Tensor:
    """Draw gamma numbers of shape parameter `a` > 0 and of scale `scale`.

    Marsaglia and Tsang's method (ACM TOMS 26, 2000), at most 16 tries an element. NaN
    where a < 0, 0 where a = 0. The gradient with respect to `a` is the implicit one,
    ``-(dF/da) / (dF/dx)`` of the distribution function F (Figurnov, Mohamed, Mnih,
    NeurIPS 2018); it can be taken once.

    >>> import staticgrad as sg
    >>> print(sg.random.gamma(sg.random.key(0), [0.5, 2.0]).type)
    float32[2]
    """
    kind, dims = _drawn("gamma", shape, dtype, a, scale)
    (given,) = _typed(computed(kind), a)
    whole = broadcasted(given, dims)
    x = apply(GAMMA, one_key("gamma", key), whole, shape=dims)
    return _moved(x, kind, 0.0, scale)


def beta(
    key: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    """Draw beta numbers: ``x / (x + y)`` of gamma numbers with `a` and `b`.

    >>> import staticgrad as sg
    >>> print(sg.random.beta(sg.random.key(0), 2.0, 3.0, (4,)).type)
    float32[4]
    """
    kind, dims = _drawn("beta", shape, dtype, a, b)
    words = one_key("beta", key)
    x = gamma(fold_in(words, 0), a, dims, computed(kind))
    y = gamma(fold_in(words, 1), b, dims, computed(kind))
    return cast(x / (x + y), kind)


def dirichlet(
    key: ArrayLike,
    alpha: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    """Draw from a Dirichlet distribution: gamma numbers with `alpha`, over their sum.

    `alpha` is (..., k); `shape` is that of the result without its last axis, k.

    >>> import staticgrad as sg
    >>> print(sg.random.dirichlet(sg.random.key(0), [1.0, 2.0, 3.0], (5,)).type)
    float32[5, 3]
    """
    given = as_tensor(alpha)
    if given.ndim == 0:
        raise shape_error("dirichlet", (given,), "at least one axis")
    kind = float_kind("dirichlet", dtype, given)
    lead = given.shape[:-1] if shape is None else as_shape("dirichlet", shape, True)
    dims = drawn_shape("dirichlet", (*lead, given.shape[-1]), given)
    x = gamma(key, given, dims, computed(kind))
    return cast(x / sum(x, axis=-1, keepdims=True), kind)


def categorical(
    key: ArrayLike,
    logits: ArrayLike,
    axis: int = -1,
    shape: ShapeLike | None = None,
) -> Tensor:
    """Draw int64 indices with probabilities ``softmax(logits, axis)``.

    The largest of `logits` plus Gumbel's numbers is taken; of one row of logits drawn
    from several times, the first index whose sum of probabilities reaches a number in
    (0, 1]. `shape` is that of the result, to which the shape of `logits` without `axis`
    broadcasts, and which it is by default. -inf is never chosen; where a logit is NaN
    the index is that of the first NaN, as of NumPy's argmax.

    >>> import staticgrad as sg
    >>> logits = [0.0, -float("inf"), 0.0]
    >>> i = sg.random.categorical(sg.random.key(0), logits, shape=(1000,))
    >>> sg.compile(sg.sum(i == 1))()
    array(0)
    """
    given = as_tensor(logits)
    if given.ndim == 0:
        raise shape_error("categorical", (given,), "at least one axis")
    place = one_axis("categorical", given, axis)
    kind = computed(float_kind("categorical", None, given))
    last = moveaxis(cast(given, kind), place, -1)
    one = zeros(last.shape[:-1], kind)
    dims = drawn_shape("categorical", shape, one)
    if one.ndim == 0 and dims and product(dims) != 1:
        return _drawn_often(key, last, dims)
    noise = gumbel(key, (*dims, last.shape[-1]), kind)
    return argmax(last + noise, axis=-1)


def _drawn_often(key: ArrayLike, logits: Tensor, dims: Shape) -> Tensor:
    """Draw indices by inversion: one number a draw instead of one per category."""
    most = max(logits)
    weights = where(logits == most, 1, exp(logits - most))  # of inf, too
    below = cumsum(cast(weights, FLOAT64))
    found = searchsorted(below, below[-1] * (1.0 - uniform(key, dims, FLOAT64)))
    broken = isnan(logits)
    return where(any(broken), argmax(broken), found)
