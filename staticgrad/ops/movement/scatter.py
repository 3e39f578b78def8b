"""Scatter: updates at positions that are data.

``y = x; y[index] = combine(y[index], updates)``, one index after the other. Every way
to combine is differentiable:

* add: the cotangent as it is, and where it was added;
* set: nothing where something was set, and for an update only if it was the last;
* maximum, minimum: shared equally among all that tie for the result, x included;
* multiply: times the product of all other factors.

Weakness: the third derivative of a product leaves out what contains two other zeros
among its factors.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Constant, Tensor
from staticgrad.ir.op import Bad, Sample, Scatter, define
from staticgrad.ir.size import Dim, Shape, product
from staticgrad.ir.types import INT64, DType, TensorType, kind_of
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.checked_index import TAKE, position, taken_shape, windows
from staticgrad.ops.movement.views import broadcasted, numbers, reshaped
from staticgrad.ops.named import named

Array = npt.NDArray[Any]
How: TypeAlias = Literal["add", "set", "multiply", "maximum", "minimum"]
Cotangents: TypeAlias = tuple[Tensor, None, Tensor]

UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def _shape(
    base: TensorType, index: TensorType, updates: TensorType, *, combine: How, **at: Any
) -> Shape:
    if taken_shape(base, index, **at) != updates.shape:
        raise ShapeError("updates of the shape that take gives")
    return base.shape


def _dtype(
    base: TensorType, index: TensorType, updates: TensorType, *, combine: How, **_: Any
) -> DType:
    if base.dtype != updates.dtype:
        raise DTypeError("updates of the dtype of the array", "cast with .astype")
    if kind_of(base.dtype) == "b" and combine in ("add", "multiply"):
        raise DTypeError("updates that are numbers", "cast them to an integer dtype")
    return base.dtype


def _vjp(
    g: Tensor,
    y: Tensor,
    base: Tensor,
    index: Tensor,
    updates: Tensor,
    *,
    combine: How,
    **at: Any,
) -> Cotangents:
    place = _Place(index, at)
    if combine == "add":
        return g, None, place.take(g)
    if combine == "set":
        return _set_vjp(g, base, updates, place)
    if combine == "multiply":
        return _multiply_vjp(g, base, updates, place)
    return _extremum_vjp(g, y, base, updates, place)


class _Place:
    """Index with the way it is applied."""

    def __init__(self, index: Tensor, at: dict[str, Any]) -> None:
        self.index = index
        self.at = at

    def take(self, x: Tensor) -> Tensor:
        """Gather the elements of `x` there."""
        return apply(TAKE, x, self.index, **self.at)

    def put(self, base: Tensor, updates: Tensor, how: How) -> Tensor:
        """Scatter `updates` into `base` there."""
        return apply(SCATTER, base, self.index, updates, combine=how, **self.at)


def _set_vjp(g: Tensor, base: Tensor, updates: Tensor, place: _Place) -> Cotangents:
    nothing = filled(0, updates)
    mine = place.take(g)
    if not _is_unique(place):
        mine = named("where", _is_last(base, updates, place), mine, nothing)
    return place.put(g, nothing, "set"), None, mine


def _is_unique(place: _Place) -> bool:
    """Whether the indices are provably distinct."""
    if product(place.index.shape) == 1:
        return True
    (known,) = place.index.inputs or (None,)
    simple = not place.at["pointwise"] and "window" not in place.at
    if not simple or not isinstance(known, Constant):
        return False
    values: Array = known.value
    if values.size and values.min() < 0 <= values.max():
        return False
    return bool(np.unique(values).size == values.size)


def _is_last(base: Tensor, updates: Tensor, place: _Place) -> Tensor:
    """Return a mask of updates that are the last at their place."""
    if place.at["pointwise"]:
        axis = place.at["axis"]
        own = position(updates.shape, axis)
        owner = place.put(filled(0, base, INT64), own, "set")
        return place.take(owner) == own
    shape, axis = place.index.shape, place.at["axis"] % base.ndim
    wide = (place.at["window"],) if "window" in place.at else ()
    flat = position((product(shape),), 0) if shape else frozen(np.zeros((), INT64))
    own = broadcasted(reshaped(flat, shape + (1,) * len(wide)), shape + wide)
    line = _Place(place.index, {**place.at, "axis": 0})
    zeros = broadcasted(frozen(np.zeros((), INT64)), (base.shape[axis],))
    last = line.take(line.put(zeros, own, "set")) == own
    after = base.ndim - axis - 1
    return reshaped(last, last.shape + (1,) * after)


def _extremum_vjp(
    g: Tensor, y: Tensor, base: Tensor, updates: Tensor, place: _Place
) -> Cotangents:
    kept, new, ties = _ties(y, base, updates, place)
    share = g / ties
    return (
        named("where", kept, share, filled(0, share)),
        None,
        named("where", new, place.take(share), filled(0, updates)),
    )


def _ties(
    y: Tensor, base: Tensor, updates: Tensor, place: _Place
) -> tuple[Tensor, Tensor, Tensor]:
    """Return masks of the elements equal to the result, and their number (or 1)."""
    kept, new = base == y, updates == place.take(y)
    count = place.put(cast(kept, y.dtype), cast(new, y.dtype), "add")
    return kept, new, named("maximum", count, filled(1, count))


def _multiply_vjp(
    g: Tensor, base: Tensor, updates: Tensor, place: _Place
) -> Cotangents:
    factors = place.put(filled(1, base), updates, "multiply")
    return g * factors, None, place.take(g) * _others(base, updates, place)


def _others(base: Tensor, updates: Tensor, place: _Place) -> Tensor:
    """Multiply all other factors, from the number of zeros among the updates.

    No other zero: the quotient by the own factor. One: nothing, as a multiple of that
    zero, whose derivative is the product of what is left.
    """
    nothing = filled(0, updates)
    zero = updates == nothing
    factors = named("where", zero, filled(1, updates), updates)
    count = place.put(filled(0, base, INT64), cast(zero, INT64), "add")
    others = place.take(count) - cast(zero, INT64)
    rest = place.take(place.put(base, factors, "multiply")) / factors
    own = named("where", zero, updates, nothing)
    other = place.take(place.put(filled(0, base), own, "add")) - own
    full = named("where", others == 0, rest, nothing)
    return full + named("where", others == 1, rest, nothing) * other


def _jvp(
    tangents: tuple[Tensor | None, ...],
    y: Tensor,
    base: Tensor,
    index: Tensor,
    updates: Tensor,
    *,
    combine: How,
    **at: Any,
) -> Tensor:
    place = _Place(index, at)
    old = filled(0, base) if tangents[0] is None else tangents[0]
    new = filled(0, updates) if tangents[2] is None else tangents[2]
    if combine in ("add", "set"):
        return place.put(old, new, combine)
    if combine == "multiply":
        factors = place.put(filled(1, base), updates, "multiply")
        return place.put(old * factors, new * _others(base, updates, place), "add")
    kept, chosen, ties = _ties(y, base, updates, place)
    old = named("where", kept, old, filled(0, base))
    new = named("where", chosen, new, filled(0, updates))
    return place.put(old, new, "add") / ties


def filled(value: float, like: Tensor, dtype: DType | None = None) -> Tensor:
    """Return `value` everywhere, of the type of `like`, or of another dtype."""
    found = like.dtype if dtype is None else dtype
    return broadcasted(frozen(np.asarray(value, found)), like.shape)


def _numpy(
    base: Array,
    index: Array,
    updates: Array,
    *,
    axis: int,
    pointwise: bool,
    combine: How,
    window: int | None = None,
) -> Array:
    result = base.copy()
    if pointwise:
        grid: list[Any] = list(np.indices(index.shape, sparse=True))
        grid[axis] = index
        key: tuple[Any, ...] = tuple(grid)
    else:
        before: tuple[Any, ...] = (slice(None),) * (axis % base.ndim)
        key = (*before, windows(index, window))
    if combine == "set":
        result[key] = updates
    else:
        UFUNCS[combine].at(result, key, updates)
    return result


def _samples() -> list[Sample]:
    rows = numbers(4, 3), np.array([2, 0, 2]), numbers(3, 3)[::-1] * 2.1
    block = numbers(2, 4, 2), np.array([[3, 1], [1, 1]]), numbers(2, 2, 2, 2) - 3.0
    one = numbers(4), np.array(3), numbers() + 2.5
    none = numbers(3, 2), np.zeros(0, np.int64), numbers(3, 0)
    own = numbers(2, 3), np.array([[0, 0], [1, 2]]), numbers(2, 2) + 1.25
    every: tuple[How, ...] = ("add", "set", "multiply", "maximum", "minimum")
    found = []
    for how in every:
        places = [(rows, 0), (block, 1), (one, 0), (none, 1)]
        found += [Sample(args, _at(axis, how)) for args, axis in places]
        found.append(Sample(own, _at(1, how, True)))
        counts = np.array([5, 6]), np.array([1, 1]), np.array([3, 4])
        found.append(Sample(counts, _at(0, how)))
    wide = numbers(2, 5), np.array([1, 0]), numbers(2, 2, 3) + 1.1
    found += [Sample(wide, {**_at(1, how), "window": 3}) for how in every[:2]]
    zeros = np.array([0.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 0.0])
    found.append(Sample((numbers(4), np.arange(8) // 2, zeros), _at(0, "multiply")))
    flags = np.array([True, False]), np.array([1, 0, 1]), np.array([True, True, False])
    return [*found, Sample(flags, _at(0, "set"))]


def _bad() -> list[Bad]:
    x, index, flags = numbers(4), np.arange(2), np.ones(2, bool)
    at = _at(0, "add")
    return [
        Bad((x, index, numbers(3)), at, ShapeError, "that take gives"),
        Bad((x, numbers(2), numbers(2)), at, DTypeError, "int64 index"),
        Bad((np.ones(4, bool), index, flags), at, DTypeError, "numbers"),
        Bad((x, index, flags), at, DTypeError, "dtype of the array"),
    ]


def _at(axis: int, combine: How, pointwise: bool = False) -> dict[str, Any]:
    return {"axis": axis, "pointwise": pointwise, "combine": combine}


SCATTER = define(
    "scatter",
    shape=_shape,
    dtype=_dtype,
    vjp=_vjp,
    jvp=_jvp,
    code=Scatter(),
    numpy=_numpy,
    samples=_samples,
    bad=_bad,
)


def scattered(
    base: Tensor,
    index: Tensor,
    updates: Tensor,
    axis: int,
    how: How = "add",
    pointwise: bool = False,
    window: Dim | None = None,
) -> Tensor:
    """Return `base` with `updates` combined into it at a checked `index`."""
    attrs: dict[str, Any] = {"axis": axis, "pointwise": pointwise, "combine": how}
    if window is not None:
        attrs["window"] = window
    return apply(SCATTER, base, index, updates, **attrs)


__all__ = ["SCATTER", "How", "filled", "scattered"]
