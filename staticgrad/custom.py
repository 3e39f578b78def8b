"""custom_op: a function with a derivative of the user's own.

The forward function is traced into the graph, so that it fuses like anything else; its
result then passes through the op "custom", which hands the cotangent to the user's
backward function instead of to what the result was made of. The compiler drops the op.

Weakness: forward mode transposes the backward function, which therefore has to be
linear in the cotangent; a sparse derivative takes every element of the result to depend
on every element of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Bad, Layout, Sample, View, define
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.source import at, here
from staticgrad.ir.types import TensorType, is_float
from staticgrad.ops.leaves import as_shape, dtype_of
from staticgrad.ops.named import named
from staticgrad.ops.promote import as_tensor
from staticgrad.ops.views import broadcasted
from staticgrad.vectorize import vmap

Backward = Callable[..., Any]


def custom_op(
    name: str,
    *,
    forward: Callable[..., Any],
    backward: Backward | None = None,
    shape: Any = None,
    dtype: Any = None,
    kind: Literal["graph"] = "graph",
) -> Callable[..., Tensor]:
    """An operation whose derivative is `backward`.

    ``forward(*xs)`` makes the result from Tensors. ``backward(g, y, *xs)`` gives for
    the cotangent g of the result y one cotangent, or None for zero, per input: a
    sequence, or the one of a single input. Both are made of other operations, so any
    derivative works; without `backward` the derivative is zero. `shape` and `dtype`, if
    given, are what the result must have: values, or functions of the shapes (dtypes) of
    the inputs.

    Returns a function of array_like arguments. Raises GraphError, ShapeError and
    DTypeError, naming the operation, where forward or backward give what they should
    not.

    >>> import staticgrad as sg
    >>> straight = sg.custom_op(
    ...     "straight_round", forward=sg.rint, backward=lambda g, y, x: g
    ... )
    >>> x = sg.parameter([0.4, 1.6], name="x")
    >>> y = straight(x)
    >>> sg.compile([y, sg.grad(sg.sum(y), x)], target="reference")()
    [array([0., 2.], dtype=float32), array([1., 1.], dtype=float32)]
    """
    if kind != "graph":
        raise GraphError(f"custom_op requires kind 'graph', got {kind!r}{at(here())}")
    if not isinstance(name, str) or not name.isidentifier():
        raise GraphError(
            f"custom_op requires a name that is an identifier, got {name!r}{at(here())}"
        )

    def operation(*args: Any) -> Tensor:
        xs = [as_tensor(arg) for arg in args]
        y = forward(*xs)
        if not isinstance(y, Tensor):
            raise GraphError(
                f"{name} requires forward to give a Tensor, got {type(y).__name__}"
                f"{at(here())}"
            )
        _check_result(name, y, xs, shape, dtype)
        return apply(CUSTOM, y, *xs, name=name, backward=backward or _no_backward)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = forward.__doc__
    return operation


def _no_backward(g: Tensor, y: Tensor, *xs: Tensor) -> tuple[None, ...]:
    return (None,) * len(xs)


def _check_result(
    name: str, y: Tensor, xs: Sequence[Tensor], shape: Any, dtype: Any
) -> None:
    if callable(shape):
        shape = shape(*(x.shape for x in xs))
    if shape is not None and as_shape(name, shape, names=True) != y.shape:
        raise ShapeError(
            f"{name} requires forward to give the shape {shape}, got {y.type}"
            f"{at(here())}"
        )
    if callable(dtype) and not isinstance(dtype, type):
        dtype = dtype(*(x.dtype for x in xs))
    if dtype is not None and dtype_of(name, dtype) != y.dtype:
        raise DTypeError(
            f"{name} requires forward to give the dtype {np.dtype(dtype)}, got {y.type}"
            f"{at(here())}"
        )


def _vjp(
    g: Tensor, y: Tensor, made: Tensor, *xs: Tensor, name: str, backward: Backward
) -> tuple[Tensor | None, ...]:
    results = backward(g, y, *xs)
    if isinstance(results, Tensor) or results is None:
        results = (results,)
    if len(results) != len(xs):
        raise GraphError(
            f"{name} requires backward to give {len(xs)} results, one per input, got "
            f"{len(results)}{at(here())}"
        )
    pairs = enumerate(zip(xs, results, strict=True))
    return (None, *(_cotangent(name, place, x, r) for place, (x, r) in pairs))


def _cotangent(name: str, place: int, x: Tensor, result: Any) -> Tensor | None:
    """What backward gave for input number `place`, checked; numbers fill a tensor."""
    if result is None or not is_float(x.dtype):
        return None
    g = as_tensor(result, x)
    if not isinstance(result, Tensor) and g.shape == ():
        g = broadcasted(g, x.shape)
    if g.shape != x.shape:
        raise ShapeError(
            f"{name} requires backward to give the shape of input {place}, {x.type}, "
            f"got {g.type}; sum it over the axes that were broadcast{at(here())}"
        )
    if g.dtype != x.dtype:
        raise DTypeError(
            f"{name} requires backward to give the dtype of input {place}, {x.type}, "
            f"got {g.type}; cast it with .astype{at(here())}"
        )
    return g


def _batch(n: Dim, *inputs: Tensor, name: str, backward: Backward) -> Tensor:
    """Backward is vmapped: of each example's cotangent, result and inputs."""

    def many(g: Tensor, y: Tensor, *xs: Tensor) -> list[Tensor | None]:
        given: list[bool] = []

        def one(g: Tensor, y: Tensor, *xs: Tensor) -> list[Tensor]:
            _, *results = _vjp(g, y, y, *xs, name=name, backward=backward)
            given.extend(r is not None for r in results)
            return [r for r in results if r is not None]

        found = iter(vmap(one)(g, y, *xs))
        return [next(found) if there else None for there in given]

    return apply(CUSTOM, *inputs, name=name, backward=many)


def _shape(made: TensorType, *xs: TensorType, **_: Any) -> Shape:
    return made.shape


def _same(source: Layout, shape: Shape, **_: Any) -> Layout:
    return source


def _double(g: Tensor, y: Tensor, *xs: Tensor) -> list[Tensor]:
    """The derivative of ``2 * x``, for samples."""
    return [named("add", g, g) for _ in xs]


def _samples() -> list[Sample]:
    x: npt.NDArray[Any] = np.array([[0.5, -1.5, 2.0]])
    return [
        Sample((x, x), {"name": "double", "backward": _double}, grad=False),
        Sample((x[0], x[0]), {"name": "zero", "backward": _no_backward}, grad=False),
    ]


def _bad() -> list[Bad]:
    return []


CUSTOM = define(
    "custom",
    shape=_shape,
    dtype=lambda made, *xs, **_: made.dtype,
    vjp=_vjp,
    jvp="transposed",
    batch=_batch,
    code=View(_same),
    numpy=lambda made, *xs, **_: made.copy(),
    samples=_samples,
    bad=_bad,
)
