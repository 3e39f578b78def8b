"""Carries of loops: trees whose leaves keep their types from step to step.

A weak carry (a Python number) takes the dtype that the body gives it. The body is
called again with its results until the dtypes are stable; undecided ones become float32
(the Graph's dtype) or int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from staticgrad.control.bodies import placeholder
from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import default_dtype
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import DType, TensorType, is_float, promote
from staticgrad.ops.casting import cast

MOST_CALLS = 8  # a dtype can be widened from bool to int to float, once per carry


@dataclass(frozen=True, slots=True)
class Settled:
    """Placeholders of the carries, and the new carries computed from them."""

    given: list[Tensor]
    results: list[Tensor]


def settled(dtype: DType) -> DType:
    """Return the dtype that a weak dtype takes when nothing else decides it."""
    return default_dtype() if is_float(dtype) else dtype


def settle(
    name: str,
    kinds: Sequence[TensorType],
    paths: Sequence[str],
    step: Callable[[Sequence[Tensor]], Sequence[Tensor]],
) -> Settled:
    """Call ``step(carries)``, which returns new carries, until the dtypes are stable.

    ShapeError or DTypeError where a new carry has another type than the old one.
    """
    kinds = list(kinds)
    for _ in range(MOST_CALLS):
        given = [placeholder(kind, f"carry_{n}") for n, kind in enumerate(kinds)]
        results = step(given)
        for kind, new, path in zip(kinds, results, paths, strict=True):
            _require_shape(name, kind, new, path)
        pairs = zip(kinds, results, strict=True)
        wider = [_wider(kind, new.type) for kind, new in pairs]
        if wider == kinds and any(kind.weak for kind in kinds):
            wider = [_decided(kind) for kind in kinds]
        if wider == kinds:
            break
        kinds = wider
    rows = zip(kinds, results, paths, strict=True)
    return Settled(given, [_kept(name, *row) for row in rows])


def _wider(kind: TensorType, new: TensorType) -> TensorType:
    if not kind.weak:
        return kind
    dtype, weak = promote((kind, new))
    return TensorType(kind.shape, dtype, weak)


def _decided(kind: TensorType) -> TensorType:
    return TensorType(kind.shape, settled(kind.dtype)) if kind.weak else kind


def _require_shape(name: str, kind: TensorType, new: Tensor, path: str) -> None:
    if new.shape != kind.shape:
        raise ShapeError(
            f"{name} requires carries that keep their shape, got {new.type} after "
            f"{kind} for carry{path}; give it that shape at the start{at(new.source)}"
        )


def _kept(name: str, kind: TensorType, new: Tensor, path: str) -> Tensor:
    """Cast `new` to the dtype of the carry."""
    if new.dtype == kind.dtype and not new.type.weak:
        return new
    if promote((kind, new.type))[0] == kind.dtype and new.type.weak:
        return cast(new, kind.dtype)
    raise DTypeError(
        f"{name} requires carries that keep their dtype, got {new.type} after {kind} "
        f"for carry{path}; cast it with .astype{at(new.source or here())}"
    )
