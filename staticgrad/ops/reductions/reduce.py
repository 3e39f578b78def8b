"""Reductions: sum, product, maximum, minimum, all, any over axes.

The ops drop the axes ``attrs["axes"]`` (sorted). The public functions take NumPy's
``axis=`` and ``keepdims=`` and give NumPy's dtypes: sums of small integers and bools
are int64 (uint64 of unsigned ones).

Kinks: equal maxima (minima) share the gradient equally. The gradient of a product is
exact with any number of zeros; along an axis of symbolic size its second derivative is
exact only where the product is not 0.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor, static_shape
from staticgrad.ir.op import Bad, Op, Reduce, Sample, define
from staticgrad.ir.size import Shape
from staticgrad.ir.types import INT64, DType, TensorType, kind_of
from staticgrad.ops.casting import cast
from staticgrad.ops.elementwise.choice import where
from staticgrad.ops.elementwise.logic import as_bool
from staticgrad.ops.examples import SPECIAL, special, spread
from staticgrad.ops.guarded import guarded_divide
from staticgrad.ops.leaves import dtype_of
from staticgrad.ops.named import called_by, named
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.reductions.exclusive_product import others, others_by_counting
from staticgrad.ops.rules import quiet, same_dtype, shape_error, some_axes
from staticgrad.ops.twins import twin_of

Array = npt.NDArray[Any]


Axis = int | Sequence[int] | None


Combine = Literal["add", "multiply", "maximum", "minimum", "and", "or"]


def _dropped(x: TensorType, *, axes: tuple[int, ...]) -> Shape:
    rank = len(x.shape)
    if list(axes) != sorted({axis % rank for axis in axes if -rank <= axis < rank}):
        raise ShapeError(f"sorted axes in 0..{rank - 1}, got {axes} of {x}")
    return tuple(n for axis, n in enumerate(x.shape) if axis not in axes)


def _extreme_shape(
    x: TensorType, *, axes: tuple[int, ...], nonempty: bool = False
) -> Shape:
    """Return the shape; the extreme of nothing is rejected if `nonempty`."""
    empty = builtins.any(x.shape[axis] == 0 for axis in axes if axis < len(x.shape))
    if empty and nonempty:
        raise ShapeError("at least one element", "an empty one has no extreme")
    return _dropped(x, axes=axes)


def kept(y: Tensor, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return `y`, reduced from `x` over `axes`, with these axes back as size 1."""
    shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    return y if y.shape == shape else named("reshape", y, shape=shape)


def _sum_vjp(
    g: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]
) -> tuple[Tensor]:
    return (named("broadcast_to", kept(g, x, axes), shape=x.shape),)


def _extreme_vjp(
    g: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...], nonempty: bool = False
) -> tuple[Tensor]:
    """Share the gradient equally among the elements that equal the extreme."""
    hit = x == kept(y, x, axes)
    ties = apply(REDUCE_SUM, cast(hit, x.dtype), axes=axes)
    share = guarded_divide(g, ties)
    return (where(hit, kept(share, x, axes), 0),)


def _prod_vjp(
    g: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]
) -> tuple[Tensor]:
    """Differentiate a product: dy/dx_i is the product of the others, axis by axis."""
    if static_shape(tuple(x.shape[axis] for axis in axes)) is None:
        return (kept(g, x, axes) * others_by_counting(x, axes),)
    result, rest = kept(g, x, axes), x
    for axis in axes:
        result = result * others(rest, axis)
        rest = kept(apply(REDUCE_PROD, rest, axes=(axis,)), rest, (axis,))
    return (result,)


def _numbers(low: float = -2.0, high: float = 2.0) -> list[Sample]:
    x = spread(low, high, 2, 3, 4)
    wide = spread(low, high, 3, 67)
    whole = np.array([[3, -1, 4], [1, -5, 9]])
    return [
        *(Sample((x,), {"axes": axes}) for axes in ((), (0,), (1,), (0, 2), (0, 1, 2))),
        Sample((np.array(1.5),), {"axes": ()}),
        Sample((wide,), {"axes": (1,)}, grad=False, ulp=64),
        Sample((wide.astype("float32"),), {"axes": (0, 1)}, grad=False, ulp=64),
        Sample((x.astype("float32").T,), {"axes": (1,)}, grad=False, ulp=16),
        *(Sample((special([v, 1.0]),), {"axes": (0,)}, grad=False) for v in SPECIAL),
        *(
            Sample((whole.astype(dtype),), {"axes": (1,)}, grad=False)
            for dtype in ("int8", "int32", "int64", "uint8", "uint64")
        ),
    ]


def _empty() -> list[Sample]:
    x = np.zeros((2, 0, 3))
    return [Sample((x,), {"axes": axes}) for axes in ((1,), (0,), (0, 1, 2))]


def _sums() -> list[Sample]:
    return [*_numbers(), *_empty()]


def _products() -> list[Sample]:
    zeros = np.array([[1.5, 0.0, 2.0], [0.0, 3.0, 0.0], [0.5, -1.0, 2.0]])
    more = [Sample((zeros,), {"axes": axes}) for axes in ((0,), (1,), (0, 1))]
    return [*_numbers(0.5, 1.5), *more, *_empty()]


def _extremes() -> list[Sample]:
    ties = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [np.nan, 1.0, 2.0]])
    bools = np.array([[True, False], [False, False]])
    return [
        *_numbers(),
        Sample((ties,), {"axes": (1,)}, grad=False),
        Sample((ties.astype("float32"),), {"axes": (0, 1)}, grad=False),
        Sample((bools,), {"axes": (1,)}, grad=False),
        Sample((np.zeros((0, 3)),), {"axes": (1,)}),
        *(replace(sample, grad=False) for sample in _empty()),
        Sample((ties,), {"axes": (0,), "nonempty": True}, grad=False),
    ]


def _bools() -> list[Sample]:
    x = np.array([[True, False], [True, True], [False, False]])
    found = [(x, axes) for axes in ((), (0,), (1,), (0, 1))]
    found += [(np.zeros((0, 2), bool), (0,)), (np.array(True), ())]
    return [Sample((a,), {"axes": axes}, grad=False) for a, axes in found]


def _bad(dtype: str, match: str) -> Callable[[], list[Bad]]:
    def bad() -> list[Bad]:
        x = np.zeros((2, 3), dtype)
        wrong = np.zeros(2, "bool" if dtype != "bool" else "int64")
        axes = [
            Bad((x,), {"axes": a}, ShapeError, "axes") for a in ((2,), (1, 0), (-1,))
        ]
        kind = [Bad((wrong,), {"axes": (0,)}, DTypeError, match)] if match else []
        return axes + kind

    return bad


def _bad_extreme() -> list[Bad]:
    empty = Bad(
        (np.zeros((2, 0)),),
        {"axes": (1,), "nonempty": True},
        ShapeError,
        "at least one element",
    )
    return [*_bad("float64", "")(), empty]


def _reduction(
    combine: Combine,
    name: str,
    numpy: Callable[..., Any],
    vjp: Callable[..., Any] | None,
    samples: Callable[[], list[Sample]],
    bad: Callable[[], list[Bad]],
    kinds: str,
    shape: Callable[..., Shape] = _dropped,
) -> Op:
    return define(
        name,
        shape=shape,
        dtype=same_dtype(kinds),
        vjp=vjp,
        code=Reduce(combine),
        numpy=quiet(numpy),
        samples=samples,
        bad=bad,
        jvp="linear" if combine == "add" else None,
        amp="float32" if combine in ("add", "multiply") else "given",
    )


def _summed(x: Array, axes: tuple[int, ...]) -> Any:
    """Sum in NumPy, which adds pairwise along the last axis alone."""
    turned = np.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
    kept = turned.shape[: x.ndim - len(axes)]
    count = math.prod(turned.shape[len(kept) :])
    rows = np.ascontiguousarray(turned).reshape(*kept, count)
    return np.sum(rows, axis=-1, dtype=x.dtype)


REDUCE_SUM = _reduction(
    "add",
    "reduce_sum",
    _summed,
    _sum_vjp,
    _sums,
    _bad("float64", "a number's dtype"),
    "iuf",
)


REDUCE_PROD = _reduction(
    "multiply",
    "reduce_prod",
    lambda x, axes: np.prod(x, axis=axes, dtype=x.dtype),
    _prod_vjp,
    _products,
    _bad("float64", "a number's dtype"),
    "iuf",
)


REDUCE_MAX = _reduction(
    "maximum",
    "reduce_max",
    lambda x, axes, nonempty=False: np.max(x, axis=axes, initial=lowest(x.dtype)),
    _extreme_vjp,
    _extremes,
    _bad_extreme,
    "biuf",
    _extreme_shape,
)


REDUCE_MIN = _reduction(
    "minimum",
    "reduce_min",
    lambda x, axes, nonempty=False: np.min(x, axis=axes, initial=highest(x.dtype)),
    _extreme_vjp,
    _extremes,
    _bad_extreme,
    "biuf",
    _extreme_shape,
)


REDUCE_ALL = _reduction(
    "and",
    "reduce_all",
    lambda x, axes: np.all(x, axis=axes),
    None,
    _bools,
    _bad("bool", "the dtype bool"),
    "b",
)


REDUCE_ANY = _reduction(
    "or",
    "reduce_any",
    lambda x, axes: np.any(x, axis=axes),
    None,
    _bools,
    _bad("bool", "the dtype bool"),
    "b",
)


def lowest(dtype: DType) -> float | int | bool:
    """Return a lower bound of all elements of `dtype`: the maximum of nothing."""
    if kind_of(dtype) == "f":
        return float("-inf")
    return False if kind_of(dtype) == "b" else int(np.iinfo(dtype).min)


def highest(dtype: DType) -> float | int | bool:
    """Return an upper bound of all elements of `dtype`: the minimum of nothing."""
    if kind_of(dtype) == "f":
        return float("inf")
    return True if kind_of(dtype) == "b" else int(np.iinfo(dtype).max)


def reduced(
    op: Op, name: str, x: Tensor, axis: Axis, keepdims: bool, empty: bool = False
) -> Tensor:
    """Apply `op` over NumPy's ``axis=`` of `x`; errors name the function `name`.

    An extreme of nothing is refused unless `empty`: see `lowest` and `highest`.
    """
    axes = some_axes(name, x, axis)
    y = apply(op, x, axes=axes) if axes else x
    sizes = [x.shape[a] for a in axes]
    if op in (REDUCE_MAX, REDUCE_MIN) and not empty:
        if 0 in sizes:
            advice = "an empty tensor has no extreme"
            raise shape_error(name, (x,), "at least one element", advice)
        if static_shape(tuple(sizes)) is None:
            y = called_by(name, apply(op, x, axes=axes, nonempty=True))
    return kept(y, x, axes) if keepdims else y


Where: TypeAlias = "ArrayLike | None"


def masked(name: str, x: Tensor, mask: Where, fill: float | bool) -> Tensor:
    """Return `x` with `fill` where `mask` is false; None and True mask nothing."""
    if mask is None or mask is True:
        return x
    return where(mask_of(name, x, mask), x, fill)


def mask_of(name: str, x: Tensor, mask: ArrayLike) -> Tensor:
    """Return ``where=`` of a reduction of `x` as a mask of its shape."""
    found = as_bool(mask)
    sizes = x.shape[x.ndim - found.ndim :] if found.ndim else ()
    fits = found.ndim <= x.ndim and builtins.all(
        m in (1, n) for m, n in zip(found.shape, sizes, strict=True)
    )
    if not fits:
        raise shape_error(name, (x, found), "a where= that broadcasts to the array")
    return found


def accumulator(dtype: DType) -> DType:
    """Return NumPy's dtype of a sum: small integers and bools become 64 bits."""
    if kind_of(dtype) == "f":
        return dtype
    return np.dtype(np.uint64) if kind_of(dtype) == "u" else INT64


def _accumulated(
    op: Op,
    name: str,
    a: ArrayLike,
    axis: Axis = None,
    dtype: Any = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: Where = None,
) -> Tensor:
    x = as_tensor(a)
    found = accumulator(x.dtype) if dtype is None else dtype_of(name, dtype)
    nothing = int(op is REDUCE_PROD)
    y = reduced(op, name, masked(name, cast(x, found), where, nothing), axis, keepdims)
    if initial is None:
        return y
    start = cast(as_tensor(initial), found)
    return named("add" if op is REDUCE_SUM else "multiply", y, start)


def sum(
    a: ArrayLike,
    axis: Axis = None,
    dtype: npt.DTypeLike | None = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: Where = None,
) -> Tensor:
    """Return the sum over `axis` (all by default); of nothing, 0.

    `initial` is added to it, converted to its dtype; `where`, which broadcasts to `a`,
    selects the elements that count. Masked elements have the gradient 0.

    Floats are added up in blocks (blocked_sums.py), halves of precision in float32:
    the error is about 1e-7 of the sum of magnitudes, and at most some 200 times half a
    unit in the last place of it for vectors, up to a hundred million of them.

    >>> import staticgrad as sg
    >>> sg.compile(sg.sum([[1, 2], [3, 4]], axis=0), target="reference")()
    array([4, 6])
    >>> y = sg.sum([1.0, 2.0, 4.0], initial=10.0, where=[True, False, True])
    >>> float(sg.compile(y, target="reference")())
    15.0
    """
    return _accumulated(REDUCE_SUM, "sum", a, axis, dtype, keepdims, initial, where)


@twin_of(sum)
def prod(a: ArrayLike, *args: Any, **options: Any) -> Tensor:
    """The product over `axis` (all by default); of nothing, 1.

    It is multiplied by `initial`; `where` selects the elements that count, as in `sum`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.prod([[1, 2], [3, 4]], axis=1), target="reference")()
    array([ 2, 12])
    """
    return _accumulated(REDUCE_PROD, "prod", a, *args, **options)


def _extreme(
    op: Op,
    name: str,
    a: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: Where = None,
) -> Tensor:
    """Reduce by `op`, beside `initial`, which is the extreme of nothing."""
    x = as_tensor(a)
    fill = (lowest if op is REDUCE_MAX else highest)(x.dtype)
    if initial is None:
        if where is not None and where is not True:
            rule = "initial= beside where=, the extreme of no elements"
            raise shape_error(name, (x,), rule, "give one")
        return reduced(op, name, x, axis, keepdims)
    start = cast(as_tensor(initial), x.dtype)
    y = reduced(op, name, masked(name, x, where, fill), axis, keepdims, empty=True)
    return named("maximum" if op is REDUCE_MAX else "minimum", y, start)


def max(
    a: ArrayLike,
    axis: Axis = None,
    keepdims: bool = False,
    initial: ArrayLike | None = None,
    where: Where = None,
) -> Tensor:
    """Return the maximum over `axis` (all by default), NaN if one is NaN.

    Equal maxima share the gradient. It is at least `initial`; `where`, which asks for
    an `initial`, selects the elements that count. Along a symbolic axis that is empty
    at a call it is -inf (the lowest integer) or `initial`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.max([[1, 2], [3, 4]], axis=1), target="reference")()
    array([2, 4])
    """
    return _extreme(REDUCE_MAX, "max", a, axis, keepdims, initial, where)


@twin_of(max)
def min(a: ArrayLike, *args: Any, **options: Any) -> Tensor:
    """The minimum over `axis` (all by default), NaN if one is; ties share the gradient.

    Equal minima share the gradient. It is at most `initial`; `where`, which asks for an
    `initial`, selects the elements that count. Along a symbolic axis that is empty at a
    call it is inf (the highest integer) or `initial`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.min([[1, 2], [3, 4]], axis=1), target="reference")()
    array([1, 3])
    """
    return _extreme(REDUCE_MIN, "min", a, *args, **options)


def all(
    a: ArrayLike, axis: Axis = None, keepdims: bool = False, where: Where = None
) -> Tensor:
    """Whether no element over `axis`, where `where` is true, is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.all([[1, 2], [0, 4]], axis=1), target="reference")()
    array([ True, False])
    """
    x = masked("all", as_bool(a), where, True)
    return reduced(REDUCE_ALL, "all", x, axis, keepdims)


def any(
    a: ArrayLike, axis: Axis = None, keepdims: bool = False, where: Where = None
) -> Tensor:
    """Whether some element over `axis`, where `where` is true, is not 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.any([[1, 2], [0, 0]], axis=1), target="reference")()
    array([ True, False])
    """
    x = masked("any", as_bool(a), where, False)
    return reduced(REDUCE_ANY, "any", x, axis, keepdims)


__all__ = ["all", "any", "max", "min", "prod", "sum"]
