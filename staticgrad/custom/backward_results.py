"""Checks of the results of a custom operation's backward function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.node import Tensor
from staticgrad.ir.source import at, here
from staticgrad.ir.types import is_float
from staticgrad.ops.movement.views import broadcasted
from staticgrad.ops.promotion import as_tensor


def checked_cotangents(
    name: str, xs: Sequence[Tensor], results: Any
) -> list[Tensor | None]:
    """Return one cotangent or None per input, of the input's type.

    Raises GraphError, ShapeError and DTypeError, naming the operation.
    """
    if isinstance(results, Tensor) or results is None:
        results = (results,)
    check_count(name, len(results), len(xs))
    pairs = enumerate(zip(xs, results, strict=True))
    return [_cotangent(name, place, x, result) for place, (x, result) in pairs]


def check_count(name: str, found: int, inputs: int) -> None:
    """GraphError where backward does not give one result per input."""
    if found != inputs:
        raise GraphError(
            f"{name} requires backward to give {inputs} results, one per input, got "
            f"{found}{at(here())}"
        )


def _cotangent(name: str, place: int, x: Tensor, result: Any) -> Tensor | None:
    """Return the cotangent of input number `place`, checked; a number fills it."""
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
