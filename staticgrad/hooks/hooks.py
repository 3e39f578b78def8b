"""Hooks on gradients: functions that observe, replace or drop a gradient.

A hook is called once when a gradient is derived, with a Tensor; what it makes is
compiled with the rest and costs nothing more. ``on_gradient`` is a custom operation
that changes nothing but its gradient. A ``gate`` does the same for several tensors at
once: a module's hooks on gradients stand on one before and one behind it.

Weakness: under vmap a gate sees the gradients of all examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

import numpy as np

from staticgrad.custom.definition import CUSTOM
from staticgrad.differentiate.dead_hooks import Hooks
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import apply, apply_multi, current_graph
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Op, Sample
from staticgrad.ir.size import Dim
from staticgrad.ir.source import at, here
from staticgrad.ir.types import is_float
from staticgrad.ops.elementwise.activations import clip
from staticgrad.ops.movement.views import passing
from staticgrad.ops.named import named
from staticgrad.ops.promotion import as_tensor

Hook = Callable[[Tensor], Any]
Pull = Callable[..., Sequence[Tensor | None]]


def on_gradient(x: Any, *fns: Hook) -> Tensor:
    """Return `x`, whose gradient passes through each of `fns`, in order.

    ``fn(g)`` gets the gradient of the result, summed over its uses, and returns what
    takes its place, of the same type; None leaves it as it is, ``0 * g`` drops it. Use
    the result in the place of `x`: hooks on a tensor that nothing uses are never
    called, and a HookWarning is issued when a gradient with respect to x is made. Of
    hooks on hooks the last one sees the gradient first. Forward mode takes the
    transpose of the hooks, which have to be linear for that.

    Raises GraphError for what is no function, ShapeError or DTypeError where a hook
    gives another type.

    >>> import staticgrad as sg
    >>> x = sg.parameter([1.0, 2.0])
    >>> y = sg.on_gradient(x, lambda g: g * 10, lambda g: sg.clip(g, -15, 15))
    >>> sg.compile(sg.grad(sg.sum(y + y), x))().tolist()
    [15.0, 15.0]
    """
    tensor = as_tensor(x)
    for fn in fns:
        if not callable(fn):
            raise GraphError(
                f"on_gradient requires functions of the gradient, got {fn!r}; write "
                f"on_gradient(x, lambda g: ...){at(here())}"
            )
    if not fns or not is_float(tensor.dtype):
        raise GraphError(
            f"on_gradient requires a float tensor and a function, got {tensor.type} "
            f"and {len(fns)} functions{at(here())}"
        )
    backward = partial(_through, fns)
    y = apply(CUSTOM, tensor, tensor, name="on_gradient", backward=backward)
    graph = current_graph()
    if graph is not None:
        graph.record(Hooks).append((tensor, ref(y), here()))
    return y


def _through(fns: Sequence[Hook], g: Tensor, _y: Tensor, _x: Tensor) -> Tensor:
    for fn in fns:
        g = _same_type("on_gradient", g, fn(g))
    return g


def _same_type(name: str, g: Tensor, result: Any) -> Tensor:
    """Return the result of a hook, checked against `g`; `g` itself for None."""
    if result is None:
        return g
    new = as_tensor(result, g)
    got = f"got {new.type}{at(here())}"
    if new.shape != g.shape:
        raise ShapeError(
            f"{name} requires a hook to give the shape of the gradient, {g.type}, {got}"
        )
    if new.dtype != g.dtype:
        raise DTypeError(
            f"{name} requires a hook to give the dtype of the gradient, {g.type}, {got}"
        )
    return new


def clip_gradient(
    x: Any, low: float | None = None, high: float | None = None
) -> Tensor:
    """Return `x`, whose gradient is clipped to [low, high]; None leaves a side open.

    >>> import staticgrad as sg
    >>> x = sg.parameter([1.0, 2.0])
    >>> y = sg.clip_gradient(x, high=0.1)
    >>> sg.compile(sg.grad(sg.sum(y * [3.0, -3.0]), x))().tolist()
    [0.10000000149011612, -3.0]
    """
    return on_gradient(x, lambda g: clip(g, low, high))


def reverse_gradient(x: Any, scale: float = 1.0) -> Tensor:
    """Return `x`, whose gradient is multiplied by ``-scale``.

    Source: Ganin and Lempitsky, Unsupervised domain adaptation by backpropagation
    (2015).

    >>> import staticgrad as sg
    >>> x = sg.parameter(2.0)
    >>> float(sg.compile(sg.grad(sg.reverse_gradient(x) ** 2, x))())
    -4.0
    """
    return on_gradient(x, lambda g: g * -scale)


def straight_through(y: Any, x: Any) -> Tensor:
    """Return `y` with the gradient of `x`: the straight-through estimator.

    For roundings, thresholds and samples y made of x, which have no gradient. Both have
    one type. ShapeError or DTypeError otherwise.

    Source: Bengio, Leonard and Courville, Estimating or propagating gradients through
    stochastic neurons (2013).

    >>> import staticgrad as sg
    >>> x = sg.parameter([0.4, 1.6])
    >>> y = sg.straight_through(sg.rint(x), x)
    >>> sg.compile([y, sg.grad(sg.sum(y * y), x)])()
    [array([0., 2.], dtype=float32), array([0., 4.], dtype=float32)]
    """
    x = as_tensor(x)
    y = as_tensor(y, x)
    if (x.shape, x.dtype) != (y.shape, y.dtype):
        kind = ShapeError if x.shape != y.shape else DTypeError
        raise kind(
            f"straight_through requires y and x of one type, got {y.type} and {x.type}"
            f"{at(here())}"
        )
    return apply(CUSTOM, y, x, name="straight_through", backward=lambda g, _y, _x: g)


def gate(tensors: Sequence[Tensor], pull: Pull, reached: bool) -> tuple[Tensor, ...]:
    """Return `tensors` with gradients replaced by ``pull(*gradients)``.

    Each gradient is a Tensor, or None where there is none. With `reached` the gradients
    are made, and `pull` called, even if nothing before the gate asks for them.
    """
    op = replace(GATE, outputs=len(tensors), reached=reached)
    return apply_multi(op, *tensors, pull=pull)


def _pulled(g: Any, y: Any, *xs: Tensor, pull: Pull) -> Sequence[Tensor | None]:
    return pull(*(g if isinstance(g, tuple) else (g,)))


def _tangents(ts: Any, y: Any, *xs: Tensor, **_: Any) -> Any:
    return ts[0] if len(ts) == 1 else ts


def _batch(n: Dim, *xs: Tensor, pull: Pull) -> Any:
    found = gate(xs, pull, reached=False)
    return found[0] if len(found) == 1 else found


def _double(g: Tensor) -> list[Tensor]:
    """Return a doubled gradient, for the sample."""
    return [named("add", g, g)]


def _samples() -> list[Sample]:
    x = np.array([[0.5, -1.5, 2.0]])
    return [Sample((x,), {"pull": _double}, grad=False)]


GATE: Op = passing(
    "gate",
    lambda *xs, pull: len(xs),
    vjp=_pulled,
    jvp=_tangents,
    batch=_batch,
    samples=_samples,
)
