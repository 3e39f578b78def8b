"""Type rules that many ops share, records of elementwise ones, and located errors.

Rules take the types of the inputs and the attributes of the node, as Op describes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.graph import located
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Amp, Elementwise, Jvp, Op, Sample, define
from staticgrad.ir.size import Shape
from staticgrad.ir.source import here
from staticgrad.ir.types import (
    BOOL,
    DType,
    TensorType,
    broadcast_shapes,
    kind_of,
    normalize_axes,
    normalize_axis,
)
from staticgrad.ops.examples import bad_pair, bad_unary

_KINDS = {
    "f": "a floating-point dtype",
    "iu": "an integer dtype",
    "b": "the dtype bool",
    "iuf": "a number's dtype (not bool)",
    "if": "a signed dtype",
    "biuf": "a supported dtype",
}
_REFUSED = {"f": "int64", "iu": "float64", "b": "int32", "iuf": "bool"}
"""A dtype that is none of some kinds, for the samples of what an op refuses."""


def broadcast(*types: TensorType, **_: Any) -> Shape:
    """Return NumPy's broadcast shape of all inputs."""
    shape = types[0].shape
    for t in types:
        if t.shape != shape:
            break
    else:
        return shape
    try:
        return broadcast_shapes([t.shape for t in types])
    except ShapeError as error:
        advice = f"{error.args[0]}, reshape or slice one of them"
        raise ShapeError("shapes that broadcast", advice) from None


def same_shape(x: TensorType, *_: TensorType, **__: Any) -> Shape:
    """Return the shape of the first input."""
    return x.shape


def one_dtype(*types: TensorType) -> DType:
    """Return the dtype that all inputs share."""
    dtype = types[0].dtype
    for t in types:
        if t.dtype != dtype:
            raise DTypeError("inputs of one dtype", "cast one of them with .astype")
    return dtype


def same_dtype(kinds: str = "biuf") -> Callable[..., DType]:
    """Return a rule: one dtype for all, of NumPy's `kinds`, and for the result."""

    def rule(*types: TensorType, **_: Any) -> DType:
        dtype = one_dtype(*types)
        if kind_of(dtype) not in kinds:
            raise DTypeError(_KINDS[kinds], "cast with .astype")
        return dtype

    return rule


def gives(dtype: DType, kinds: str = "biuf") -> Callable[..., DType]:
    """Return a rule: one dtype for all, of NumPy's `kinds`; the result is `dtype`."""
    check = same_dtype(kinds)

    def rule(*types: TensorType, **_: Any) -> DType:
        check(*types)
        return dtype

    return rule


def gives_bool(kinds: str = "biuf") -> Callable[..., DType]:
    """Return a rule: one dtype for all, of NumPy's `kinds`; the result is bool."""
    return gives(BOOL, kinds)


def elementwise(
    name: str,
    kinds: str,
    numpy: Callable[..., Any],
    *,
    samples: Callable[[], Sequence[Sample]],
    vjp: Callable[..., Any] | None = None,
    template: str = "",
    cost: int = 1,
    inputs: int = 2,
    result: DType | None = None,
    jvp: Jvp | None = None,
    amp: Amp = "given",
    interval: Callable[..., tuple[float, float]] | None = None,
) -> Op:
    """The op of one element each of `inputs`, which broadcast, of NumPy's `kinds`.

    The result has their dtype, or `result`. Without a `template` (Elementwise) kernels
    call their function of the op's name.
    """
    refused = _REFUSED.get(kinds)
    rule = _KINDS[kinds].partition(" (")[0] if refused else ""
    unary = bad_unary(rule, refused) if refused else list
    places = ", ".join(f"{{{n}}}" for n in range(inputs))
    return define(
        name,
        shape=same_shape if inputs == 1 else broadcast,
        dtype=same_dtype(kinds) if result is None else gives(result, kinds),
        vjp=vjp,
        code=Elementwise(template or f"{name}({places})", cost),
        numpy=quiet(numpy),
        samples=samples,
        bad=unary if inputs == 1 else bad_pair(rule, refused or "bool"),
        jvp=jvp,
        amp=amp,
        interval=interval,
    )


def shape_error(name: str, inputs: Sequence[Tensor], *text: str) -> ShapeError:
    """Return a located ShapeError of function `name`; `text` is (rule[, advice])."""
    types = [t.type for t in inputs]
    error = located(ShapeError(*text), name, types, here())
    assert isinstance(error, ShapeError)
    return error


def dtype_error(name: str, inputs: Sequence[Tensor], *text: str) -> DTypeError:
    """Return a located DTypeError of function `name`; `text` is (rule[, advice])."""
    types = [t.type for t in inputs]
    error = located(DTypeError(*text), name, types, here())
    assert isinstance(error, DTypeError)
    return error


def size_is_data(name: str, size: Tensor) -> ShapeError:
    """Return the ShapeError of function `name` for a Tensor given as a size."""
    rule = "sizes that are known before the graph runs"
    advice = "take x.shape[axis], or the largest size and a mask"
    return shape_error(name, (size,), rule, advice)


def one_axis(name: str, x: Tensor, axis: int) -> int:
    """Return `axis` of `x` counted from the front, or a located ShapeError."""
    try:
        return normalize_axis(axis, x.ndim)
    except ShapeError as error:
        raise shape_error(name, (x,), *error.args) from None


def some_axes(
    name: str, x: Tensor, axis: int | Sequence[int] | None
) -> tuple[int, ...]:
    """Return NumPy's ``axis=`` of `x` as a sorted tuple, or a located ShapeError."""
    try:
        return normalize_axes(axis, x.ndim)
    except ShapeError as error:
        raise shape_error(name, (x,), *error.args) from None


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` without NumPy's floating-point warnings."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return run
