"""custom_op: a function with a derivative of the user's own.

Three kinds. "graph" (here): the forward function is traced into the graph, so that it
fuses like anything else; its result then passes through the op "custom", which hands
the cotangent to the user's backward function instead of to what the result was made of.
The compiler drops the op. "scalar" (scalar_ops.py) and "array" (array_ops.py):
functions that Numba compiles.

>>> import staticgrad as sg
>>> cube = sg.custom_op(
...     "cube",
...     kind="scalar",
...     forward=lambda x: x * x * x,
...     backward=lambda g, y, x: 3 * x * x * g,
... )
>>> x = sg.parameter([1.0, 2.0], name="x")
>>> sg.compile([cube(x), sg.grad(sg.sum(cube(x)), x)])()
[array([1., 8.], dtype=float32), array([ 3., 12.], dtype=float32)]

Keyword arguments of an operation are passed to its functions as constants. What a
compiled function raises stops the run before anything is written and is raised by the
call, with the operation and the user's line; division by zero raises in functions that
Numba compiles without ``error_model="numpy"``.

Weakness: forward mode transposes the backward function, which therefore has to be
linear in the cotangent; a sparse derivative takes every element of the result to depend
on every element of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from staticgrad.custom.backward_results import checked_cotangents
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import apply
from staticgrad.ir.lazy_module import Later
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Sample
from staticgrad.ir.size import Dim
from staticgrad.ir.source import at, here
from staticgrad.ops.leaves import as_shape, dtype_of
from staticgrad.ops.movement.views import passing
from staticgrad.ops.named import named
from staticgrad.ops.promotion import as_tensor
from staticgrad.vectorize.mapping import vmap

if TYPE_CHECKING:
    from staticgrad.custom import array_ops, scalar_ops
else:  # which import Numba
    array_ops = Later("staticgrad.custom.array_ops")
    scalar_ops = Later("staticgrad.custom.scalar_ops")


Backward = Callable[..., Any]
Operation = Callable[..., Any]


def custom_op(
    name: str,
    *,
    forward: Callable[..., Any],
    backward: Any = None,
    shape: Any = None,
    dtype: Any = None,
    kind: Literal["graph", "scalar", "array"] = "graph",
    saved: Any = (),
) -> Callable[..., Any]:
    """Make an operation with a user-defined derivative, `backward`.

    ``backward(g, y, *xs)`` gives for the cotangent g of the result y one cotangent, or
    None for zero, per input: a sequence, or the one of a single input. Without it the
    derivative is zero. What it gives is checked when the graph is built.

    * kind "graph": ``forward(*xs)`` makes the result from Tensors, `backward` likewise,
      so any derivative works. `shape` and `dtype`, if given, are what the result must
      have: values, or functions of the shapes (dtypes) of the inputs.
    * kind "scalar": `forward` is a function of numbers (or a ufunc that
      ``numba.vectorize`` made of one), compiled by Numba and fused into kernels like a
      built-in operation, for each element of the broadcast inputs.
      `backward` is a function of numbers, or a sequence with one for each input, or, if
      Numba has not compiled it, a function of Tensors that all have the result's shape.
      Only the last can be differentiated again. The result has the dtype of the float
      inputs if it is a float; `dtype` says otherwise.
    * kind "array": `forward` is a function of NumPy arrays, compiled by Numba and
      called from native code. It returns the result, or takes one more argument, which
      it fills. `shape` and `dtype` are those of the result, by default those of the
      first input; a list of shapes makes several results (g and y are then tuples).
      `saved` lists (shape, dtype) of what forward gives after its results for
      `backward`, which is called with ``(g, y, *xs, *saved)``: a function of arrays
      that returns the cotangents of its float inputs, or takes them as further
      arguments and fills them, or a function of Tensors. Inputs cannot be written to.

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
    _check_definition(name, kind)
    if kind == "scalar":
        return _named(
            name, forward, scalar_ops.ScalarOp(name, forward, backward, dtype)
        )
    if kind == "array":
        results = array_ops.Results(shape, dtype, saved)
        return _named(
            name, forward, array_ops.ArrayOp(name, forward, backward, results)
        )
    return _named(name, forward, _graph_op(name, forward, backward, shape, dtype))


def _check_definition(name: Any, kind: Any) -> None:
    if kind not in ("graph", "scalar", "array"):
        raise GraphError(
            f"custom_op requires kind 'graph', 'scalar' or 'array', got {kind!r}"
            f"{at(here())}"
        )
    if not isinstance(name, str) or not name.isidentifier():
        raise GraphError(
            f"custom_op requires a name that is an identifier, got {name!r}{at(here())}"
        )


def _named(name: str, forward: Callable[..., Any], op: Operation) -> Operation:
    """Return `op` as a function with the user's name and docstring."""

    def operation(*args: Any, **settings: Any) -> Any:
        return op(*args, **settings)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = forward.__doc__
    return operation


def _graph_op(
    name: str,
    forward: Callable[..., Any],
    backward: Backward | None,
    shape: Any,
    dtype: Any,
) -> Operation:
    def operation(*args: Any, **settings: Any) -> Tensor:
        xs = [as_tensor(arg) for arg in args]
        y = forward(*xs, **settings)
        if not isinstance(y, Tensor):
            raise GraphError(
                f"{name} requires forward to give a Tensor, got {type(y).__name__}"
                f"{at(here())}"
            )
        _check_result(name, y, xs, shape, dtype)
        pull = partial(backward, **settings) if backward else _no_backward
        return apply(CUSTOM, y, *xs, name=name, backward=pull)

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
    return (None, *checked_cotangents(name, xs, backward(g, y, *xs)))


def _batch(n: Dim, *inputs: Tensor, name: str, backward: Backward) -> Tensor:
    """Batch a custom op: vmap backward over cotangents, results and inputs."""

    def many(g: Tensor, y: Tensor, *xs: Tensor) -> list[Tensor | None]:
        given: list[bool] = []

        def one(g: Tensor, y: Tensor, *xs: Tensor) -> list[Tensor]:
            _, *results = _vjp(g, y, y, *xs, name=name, backward=backward)
            given.extend(r is not None for r in results)
            return [r for r in results if r is not None]

        found = iter(vmap(one)(g, y, *xs))
        return [next(found) if there else None for there in given]

    return apply(CUSTOM, *inputs, name=name, backward=many)


def _double(g: Tensor, y: Tensor, *xs: Tensor) -> list[Tensor]:
    """Return the derivative of ``2 * x``, for samples."""
    return [named("add", g, g) for _ in xs]


def _samples() -> list[Sample]:
    x: npt.NDArray[Any] = np.array([[0.5, -1.5, 2.0]])
    return [
        Sample((x, x), {"name": "double", "backward": _double}, grad=False),
        Sample((x[0], x[0]), {"name": "zero", "backward": _no_backward}, grad=False),
    ]


CUSTOM = passing(
    "custom",
    lambda *inputs, name, backward: 1,
    vjp=_vjp,
    jvp="transposed",
    batch=_batch,
    samples=_samples,
)
