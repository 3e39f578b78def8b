"""Algebraic simplification: a table of rules that hold for every value.

Signed zeros, infinities and NaN come out the same, so ``x + 0.0`` stays (it turns -0.0
into 0.0) and ``x * 0.0`` stays (NaN); ``x - 0.0`` and ``x * 1`` go. Numbers merge only
where the merged product rounds as the two did.

Weaknesses: a factor that is a power of two merges with another, which rounds once
instead of twice where the product is subnormal; a power with exponent 2 or 3 becomes
products, which round differently from ``pow`` by at most one unit in the last place,
and the sum of one number its multiple.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from staticgrad.compiler.passes.match import (
    NodeRule,
    by_table,
    is_number,
    is_op,
    number,
    uniform,
)
from staticgrad.ir.graph import Graph, apply, rewrite
from staticgrad.ir.node import Node, Tensor, static_shape
from staticgrad.ir.size import Dim, product
from staticgrad.ir.types import DType, kind_of, smallest_normal
from staticgrad.ops.casting import cast
from staticgrad.ops.movement.views import reshaped
from staticgrad.ops.named import named


def simplify(graph: Graph) -> Graph:
    """Simplify ``x * 1 = x``, ``x - 0 = x``, ``-(-x) = x``, ... (RULES)."""
    return rewrite(graph, SIMPLIFY)


def _add(node: Node) -> Tensor | None:
    x, y = node.inputs
    if x is y and kind_of(x.dtype) == "f":
        return _scaled(x, x.dtype.type(2))  # c x + c x = (2 c) x
    if is_op(x, "negative") and is_op(y, "negative"):
        return named("negative", named("add", x.inputs[0], y.inputs[0]))
    for a, b in ((x, y), (y, x)):
        if is_number(b, -0.0 if kind_of(b.dtype) == "f" else 0):
            return a
        if is_op(b, "negative"):
            return named("subtract", a, b.inputs[0])  # a + (-b) = a - b
    return None


def _subtract(node: Node) -> Tensor | None:
    x, y = node.inputs
    if is_number(y, 0):
        return x
    if is_op(y, "negative"):
        return named("add", x, y.inputs[0])
    if kind_of(x.dtype) in "iu" and is_number(x, 0):
        return named("negative", y)
    return None


def _multiply(node: Node) -> Tensor | None:
    x, y = node.inputs
    for a, b in ((x, y), (y, x)):
        found = _multiply_by(a, b)
        if found is not None:
            return found
    if is_op(x, "negative") and is_op(y, "negative"):
        return named("multiply", x.inputs[0], y.inputs[0])
    for a, b in ((x, y), (y, x)):
        if is_op(a, "negative") and a.shape == node.outputs[0].shape:
            # Outside, a sum absorbs it; inside a smaller factor it is less work.
            return named("negative", named("multiply", a.inputs[0], b))
    return None


def _multiply_by(x: Tensor, c: Tensor) -> Tensor | None:
    """Rewrite ``x * c`` for a c that is one number."""
    value = uniform(c)
    if value is None:
        return None
    if value == 1:
        return x
    if value == -1 and kind_of(x.dtype) in "if":
        return named("negative", x)
    if value == 0 and kind_of(x.dtype) in "biu":
        return number(0, x.dtype)
    if is_op(x, "negative"):
        return named("multiply", x.inputs[0], number(-value, x.dtype))
    return _merge(x, value) if is_op(x, "multiply") else None


def _scaled(x: Tensor, factor: Any, depth: int = 3) -> Tensor | None:
    """Return ``factor * x`` by changing a number of the product `x`, or None."""
    if not is_op(x, "multiply") or depth == 0:
        return None
    merged = _merge(x, factor)
    if merged is not None:
        return merged
    for a, b in (x.inputs, x.inputs[::-1]):
        inner = _scaled(a, factor, depth - 1)
        if inner is not None:
            return named("multiply", inner, b)
    return None


def _merge(product: Tensor, outer: Any) -> Tensor | None:
    """Rewrite ``(x * a) * b = x * (a * b)`` where both round alike."""
    x, y = product.inputs
    for a, b in ((x, y), (y, x)):
        inner = uniform(b)
        if inner is not None and merges(inner, outer):
            return named("multiply", a, number(_times(inner, outer), a.dtype))
    return None


def merges(inner: Any, outer: Any) -> bool:
    """Whether ``(x * inner) * outer`` is ``x * (inner * outer)`` for every x.

    Integers always; floats where one of the two is a power of two, which rounds
    nothing, and neither makes a product smaller. Signs round nothing at all.
    """
    if kind_of(inner.dtype) in "biu" or outer == -1:
        return True
    grows = bool(abs(outer) >= 1) and (_is_power_of_two(outer) or bool(abs(inner) >= 1))
    finite = bool(np.isfinite(_times(inner, outer)))
    return grows and finite and (_is_power_of_two(inner) or _is_power_of_two(outer))


def _times(a: Any, b: Any) -> Any:
    with np.errstate(all="ignore"):
        return a * b


def _is_power_of_two(value: Any) -> bool:
    return abs(math.frexp(value)[0]) == 0.5  # of inf and NaN it is themselves


def _divide(node: Node) -> Tensor | None:
    x, y = node.inputs
    value = uniform(y)
    if value is not None and kind_of(value.dtype) == "f" and _has_exact_inverse(value):
        return named("multiply", x, number(1 / value, y.dtype))
    if is_op(x, "negative") and is_op(y, "negative"):
        return named("divide", x.inputs[0], y.inputs[0])
    return None


def _guarded(node: Node) -> Tensor | None:
    """Drop the guard of a product whose first factor is a nonzero number."""
    value = uniform(node.inputs[0])
    if value is None or value == 0:
        return None
    return named(node.op.name.removeprefix("guarded_"), *node.inputs)


def _has_exact_inverse(value: Any) -> bool:
    if not _is_power_of_two(value):
        return False
    tiny = smallest_normal(value.dtype)
    return bool(abs(value) >= tiny and abs(value) <= 1 / tiny)


def _negative(node: Node) -> Tensor | None:
    (x,) = node.inputs
    if is_op(x, "negative"):
        return x.inputs[0]
    return _scaled(x, x.dtype.type(-1)) if kind_of(x.dtype) == "f" else None


def _power(node: Node) -> Tensor | None:
    x, y = node.inputs
    exponent = uniform(y)
    if exponent is None:
        return None
    if exponent == 0:
        return number(1, x.dtype)
    if exponent == 1:
        return x
    if exponent == 2:
        return named("multiply", x, x)
    if kind_of(x.dtype) != "f":
        return None
    if exponent == 3:
        return named("multiply", named("multiply", x, x), x)
    if exponent == -1:
        return named("divide", number(1, x.dtype), x)
    return None


def _cast(node: Node) -> Tensor | None:
    (x,) = node.inputs
    dtype = node.types[0].dtype
    if x.dtype == dtype:
        return x
    if is_op(x, "cast") and _holds(x.dtype, x.inputs[0].dtype):
        inner = x.inputs[0]  # the first cast lost nothing
        return inner if inner.dtype == dtype else named("cast", inner, dtype=dtype)
    return None


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is one of `wide`."""
    return np.can_cast(narrow, wide, "safe") and not (
        kind_of(wide) == "f" and kind_of(narrow) in "iu" and narrow.itemsize == 8
    )


def _logical_not(node: Node) -> Tensor | None:
    (x,) = node.inputs
    twice = is_op(x, "logical_not") and x.inputs[0].dtype == np.bool_
    return x.inputs[0] if twice else None


def _where(node: Node) -> Tensor | None:
    condition, x, y = node.inputs
    if x is y:
        return x
    known = uniform(condition)
    if known is not None:
        return x if known else y
    if is_op(condition, "logical_not") and condition.inputs[0].dtype == np.bool_:
        return named("where", condition.inputs[0], y, x)
    return None


def _same(node: Node) -> Tensor | None:
    x, y = node.inputs
    return x if x is y else None


def _absolute(node: Node) -> Tensor | None:
    (x,) = node.inputs
    if is_op(x, "absolute"):
        return x
    return named("absolute", x.inputs[0]) if is_op(x, "negative") else None


def _reduce(node: Node) -> Tensor | None:
    (x,) = node.inputs
    axes: tuple[int, ...] = node.attrs["axes"]
    if x.dtype != node.types[0].dtype:
        return None
    if not axes:
        return x
    single = tuple(a for a in axes if x.shape[a] == 1)
    if single:
        return _drop_single(node, single)
    if x.node.op is node.op:
        return _reduce_at_once(node)
    return _reduce_uniform(node)


def _drop_single(node: Node, single: tuple[int, ...]) -> Tensor:
    """Rewrite a reduction over axes of size 1 as a reshape."""
    (x,) = node.inputs
    kept = [a for a in range(x.ndim) if a not in single]
    left = tuple(kept.index(a) for a in node.attrs["axes"] if a not in single)
    squeezed = reshaped(x, tuple(x.shape[a] for a in kept))
    return (
        apply(node.op, squeezed, **{**node.attrs, "axes": left}) if left else squeezed
    )


def _reduce_at_once(node: Node) -> Tensor | None:
    """Merge two successive reductions of one kind."""
    (inner,) = node.inputs
    (x,) = inner.inputs
    first: tuple[int, ...] = inner.node.attrs["axes"]
    kept = [a for a in range(x.ndim) if a not in first]
    axes = first + tuple(kept[a] for a in node.attrs["axes"])
    attrs = {**node.attrs, "axes": tuple(sorted(axes))}
    if x.dtype != inner.dtype or attrs != {**inner.node.attrs, "axes": attrs["axes"]}:
        return None
    return apply(node.op, x, **attrs)


def _reduce_uniform(node: Node) -> Tensor | None:
    """Rewrite the reduction of one number: ``sum(c) = n c``, ``max(c) = c``."""
    (x,) = node.inputs
    value = uniform(x)
    if value is None or node.op.name == "reduce_prod":
        return None
    extents = tuple(x.shape[a] for a in node.attrs["axes"])
    if node.op.name == "reduce_sum":
        return _sum_uniform(value, product(extents))
    filled = static_shape(extents) is not None and 0 not in extents
    return number(value, x.dtype) if filled else None


def _sum_uniform(value: Any, count: Dim) -> Tensor | None:
    """Return ``count * value``, which rounds once; not for inf: 0 times it is NaN."""
    if not np.isfinite(value):
        return None
    if isinstance(count, int) and kind_of(value.dtype) == "f":
        with np.errstate(all="ignore"):
            return number(count * np.float64(value), value.dtype)
    times = cast(named("extent", size=count), value.dtype)
    return named("multiply", number(value, value.dtype), times)


RULES: dict[str, NodeRule] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "guarded_divide": _guarded,
    "guarded_multiply": _guarded,
    "negative": _negative,
    "power": _power,
    "cast": _cast,
    "logical_not": _logical_not,
    "where": _where,
    "maximum": _same,
    "minimum": _same,
    "logical_and": _same,
    "logical_or": _same,
    "absolute": _absolute,
    "reduce_sum": _reduce,
    "reduce_prod": _reduce,
    "reduce_max": _reduce,
    "reduce_min": _reduce,
    "reduce_all": _reduce,
    "reduce_any": _reduce,
}

SIMPLIFY = by_table(RULES)
