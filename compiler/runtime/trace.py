"""Tracing a non-finite result back to the node that made it.

When a step has failed nothing was written, so the reference target can compute it
again. From the result the trail leads back over NaN, then over infinities, to the first
node that made one of finite values, or to the leaf that held it.

Weakness: it costs the time and memory of one step of the reference target. An infinity
that a mask discards may lie on the trail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime.failures import not_finite
from staticgrad.compiler.runtime.targets.reference import (
    ModeName,
    Values,
    compute,
    read,
)
from staticgrad.errors import IndexOutOfRange, NonFiniteError
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Constant, Input, Stored, Tensor
from staticgrad.ir.source import at
from staticgrad.ir.types import is_float

Array = npt.NDArray[Any]


def traced(
    graph: Graph, mode: ModeName, checked: Sequence[int], arrays: Sequence[Array]
) -> NonFiniteError | None:
    """Return the error of the first non-finite output of `checked`, with its origin.

    `graph` is as built and `arrays` are its inputs. None where all are finite, as
    happens if another thread has changed a parameter meanwhile.
    """
    try:
        values = compute(graph, mode, dict(zip(graph.inputs, arrays, strict=True)))
    except (IndexOutOfRange, MemoryError):
        return None
    for tensor in (graph.outputs[number] for number in checked):
        value = values[tensor]
        if not np.isfinite(value).all():
            advice = _advice(tensor, _origin(tensor, values, mode), values)
            return not_finite(tensor.op.name, float(value), tensor.source, advice)
    return None


def _origin(tensor: Tensor, values: Values, mode: ModeName) -> Tensor:
    nan = _followed(tensor, values, mode, lambda array: bool(np.isnan(array).any()))
    first = _followed(nan, values, mode, lambda a: not bool(np.isfinite(a).all()))
    # A mask's -inf is intended; an op that makes a NaN of it is not.
    return nan if isinstance(first, Constant) else first


def _followed(
    tensor: Tensor, values: Values, mode: ModeName, bad: Callable[[Array], bool]
) -> Tensor:
    while True:
        inputs = read(tensor.node, mode)
        found = [t for t in inputs if is_float(t.dtype) and bad(values[t])]
        if not found:
            return tensor
        tensor = found[0]


def _advice(tensor: Tensor, origin: Tensor, values: Values) -> str | None:
    if origin is tensor:
        return None
    array = values[origin]
    nan = np.isnan(array)
    place = np.argwhere(nan if nan.any() else ~np.isfinite(array))[0].tolist()
    value = array[tuple(place)]
    if isinstance(origin, Input):
        return f"input {origin.name!r} holds {value} at {place}, look at the data"
    if isinstance(origin, Stored):
        return f"{origin.name!r} holds {value} at {place}, assign other values"
    line = at(origin.source).strip() or "here"
    return (
        f"{origin.op.name} made the first {value} {line}, look at what it is given or "
        "lower the learning rate"
    )
