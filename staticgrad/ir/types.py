"""Types of tensors: shape and dtype, and NumPy's promotion (NEP 50).

A *weak* type is that of a Python number: it takes the dtype of what it meets, as long
as the kind (bool < int < float) allows it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.size import Dim, Shape

DType = np.dtype[Any]

BOOL = np.dtype(np.bool_)
INT32 = np.dtype(np.int32)
INT64 = np.dtype(np.int64)
UINT32 = np.dtype(np.uint32)
FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)

SUPPORTED = frozenset(
    np.dtype(name)
    for name in (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64".split()
    )
)


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of one tensor.

    >>> from staticgrad.ir.size import Size
    >>> print(TensorType((Size.symbol("batch"), 128), FLOAT32))
    float32[batch, 128]
    """

    shape: Shape
    dtype: DType
    weak: bool = False

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


def as_dtype(dtype: npt.DTypeLike) -> DType:
    """`dtype` as a NumPy dtype in native byte order, if staticgrad supports it."""
    try:
        found = np.dtype(dtype).newbyteorder("=")
    except TypeError as error:
        raise DTypeError(f"dtype requires a NumPy dtype, got {dtype!r}") from error
    if found not in SUPPORTED:
        names = ", ".join(sorted(d.name for d in SUPPORTED))
        raise DTypeError(f"dtype requires one of {names}, got {found.name}")
    return found


def is_float(dtype: DType) -> bool:
    """True for the floating-point dtypes."""
    return dtype.kind == "f"


def promote(types: Sequence[TensorType]) -> tuple[DType, bool]:
    """NumPy's result dtype of `types` (NEP 50), and whether it is weak."""
    if all(t.weak for t in types):
        return np.result_type(*(t.dtype for t in types)), True
    weak = {"b": False, "i": 0, "u": 0, "f": 0.0}
    parts = [weak[t.dtype.kind] if t.weak else t.dtype for t in types]
    return np.result_type(*parts), False


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """NumPy's broadcast shape; different symbols never broadcast.

    Raises ShapeError, with the two dimensions that differ.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        offset = rank - len(shape)
        for axis, dim in enumerate(shape):
            if dim == 1 or dim == result[offset + axis]:
                continue
            if result[offset + axis] != 1:
                raise ShapeError(f"{result[offset + axis]} and {dim} differ")
            result[offset + axis] = dim
    return tuple(result)


def normalize_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front; ShapeError if it is not within `rank`."""
    number = _axis_number(axis)
    if rank == 0:
        raise ShapeError(f"an array that has axes, got axis {number} of a scalar")
    if not -rank <= number < rank:
        raise ShapeError(f"an axis in -{rank}..{rank - 1}, got {number}")
    return number % rank


def _axis_number(axis: Any) -> int:
    try:
        return operator.index(axis)
    except TypeError:
        raise ShapeError(f"an axis that is an integer, got {axis!r}") from None


def axis_tuple(axis: int | Sequence[int]) -> tuple[int, ...]:
    """One axis or several, as a tuple; ShapeError for what is no integer."""
    if isinstance(axis, Iterable) and np.ndim(axis) and not isinstance(axis, str):
        return tuple(_axis_number(a) for a in axis)
    return (_axis_number(axis),)


def normalize_axes(axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """NumPy's ``axis=`` argument as a sorted tuple of axes; None means all."""
    if axis is None:
        return tuple(range(rank))
    axes = axis_tuple(axis)
    found = tuple(sorted(normalize_axis(a, rank) for a in axes))
    if len(set(found)) != len(found):
        raise ShapeError(f"distinct axes, got {axes}")
    return found
