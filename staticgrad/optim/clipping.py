"""Gradient clipping, and the fraction of clipped steps.

Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks"
(ICML 2013). As in PyTorch's clip_grad_norm_, 1e-6 is added to the norm, so a gradient
at the bound shrinks by a millionth. A norm that is not finite gives NaN everywhere:
check gradients first, as Trainer does. Clipping that never rests is a symptom: Trainer
records the share of clipped steps as ``history["clipped"]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, overload

from staticgrad import ops
from staticgrad.errors import GraphError
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here
from staticgrad.optim.optimizer import single
from staticgrad.trees import flatten, unflatten

EPS = 1e-6  # PyTorch's


@dataclass(frozen=True, slots=True)
class Clip:
    """Clipping rule for ``Trainer(clip=)``; call it with gradients to apply it.

    ``apply(gradients)`` gives the clipped ones and a bool scalar: whether any changed.
    """

    name: str
    bound: float
    apply: Callable[[Sequence[Tensor]], tuple[list[Tensor], Tensor]]

    def __call__(self, grads: Any) -> Any:
        """Return the tree `grads` of gradients, clipped."""
        leaves, treedef = flatten(grads)
        return unflatten(treedef, self.apply(leaves)[0])


@overload
def clip_by_global_norm(grads: float) -> Clip: ...
@overload
def clip_by_global_norm(grads: Any, max_norm: float) -> Any: ...
def clip_by_global_norm(grads: Any, max_norm: float | None = None) -> Any:
    """Return `grads` (a tree), scaled to a norm of at most `max_norm`.

    All gradients are scaled by one factor. The norm is that of all elements at once;
    the scale ``max_norm / (norm + 1e-6)``. With one argument, the norm, it is a Clip
    for ``Trainer(clip=)``.

    >>> import numpy as np, staticgrad as sg
    >>> g = sg.constant(np.float32([3, 4]))
    >>> f = sg.compile(sg.optim.clip_by_global_norm(g, 1.0), target="reference")
    >>> f().round(4).tolist() == np.float32([0.6, 0.8]).tolist()
    True
    """
    if max_norm is None:
        return _by_norm(_bound("clip_by_global_norm", grads))
    return _by_norm(_bound("clip_by_global_norm", max_norm))(grads)


@overload
def clip_by_value(grads: float) -> Clip: ...
@overload
def clip_by_value(grads: Any, max_value: float) -> Any: ...
def clip_by_value(grads: Any, max_value: float | None = None) -> Any:
    """Return `grads` (a tree) with every element moved into [-max_value, max_value].

    With one argument, the bound, it is a Clip for ``Trainer(clip=)``.

    >>> import numpy as np, staticgrad as sg
    >>> g = sg.constant(np.float32([3, -0.5]))
    >>> sg.compile(sg.optim.clip_by_value(g, 1.0), target="reference")()
    array([ 1. , -0.5], dtype=float32)
    """
    if max_value is None:
        return _by_value(_bound("clip_by_value", grads))
    return _by_value(_bound("clip_by_value", max_value))(grads)


def global_norm(grads: Any) -> Tensor:
    """Return the Euclidean norm of all elements of the tree `grads` together, a scalar.

    >>> import numpy as np, staticgrad as sg
    >>> g = {"w": sg.constant(np.float32([3])), "b": sg.constant(np.float32([4]))}
    >>> float(sg.compile(sg.optim.global_norm(g), target="reference")())
    5.0
    """
    leaves, _ = flatten(grads)
    if not leaves:
        raise GraphError(f"global_norm requires gradients, got none{at(here())}")
    squares = [ops.sum(single(g) * single(g)) for g in leaves]
    return ops.sqrt(reduce(ops.add, squares))


def _by_norm(bound: float) -> Clip:
    def apply(grads: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        norm = global_norm(list(grads))
        scale = ops.minimum(bound / (norm + EPS), 1.0)
        clipped = [(single(g) * _like(scale, g)).astype(g.dtype) for g in grads]
        return clipped, norm + EPS > bound

    return Clip("clip_by_global_norm", bound, apply)


def _like(scale: Tensor, g: Tensor) -> Tensor:
    return scale.astype(single(g).dtype)


def _by_value(bound: float) -> Clip:
    def apply(grads: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        clipped = [ops.clip(g, -bound, bound) for g in grads]
        hits = [ops.any(ops.absolute(g) > bound) for g in grads]
        return clipped, reduce(ops.logical_or, hits)

    return Clip("clip_by_value", bound, apply)


def _bound(name: str, value: Any) -> float:
    if isinstance(value, int | float) and value > 0:
        return float(value)
    raise GraphError(
        f"{name} requires a bound > 0, got {value!r}; 1.0 is usual for a norm"
        f"{at(here())}"
    )
