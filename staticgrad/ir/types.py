"""Types of tensors: shape and dtype, and NumPy's promotion (NEP 50).

A *weak* type is that of a Python number: it takes the dtype of what it meets, as long
as the kind (bool < int < float) allows it.

float16 and bfloat16 are storage: 16 bits in memory, computed with in float32 and
rounded once when stored. NumPy has no bfloat16; it is that of the package ml_dtypes,
whose kind letter is "V", so kinds are asked for with ``kind_of``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.size import Dim, Shape
from staticgrad.ir.source import at, here

DType = np.dtype[Any]

BOOL = np.dtype(np.bool_)
INT32 = np.dtype(np.int32)
INT64 = np.dtype(np.int64)
UINT8 = np.dtype(np.uint8)
UINT32 = np.dtype(np.uint32)
UINT64 = np.dtype(np.uint64)
FLOAT16 = np.dtype(np.float16)
BFLOAT16: DType = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)

HALF = frozenset((FLOAT16, BFLOAT16))
"""Dtypes that are storage only: their values are computed with in float32."""

SUPPORTED = HALF | frozenset(
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
    """Return `dtype` as a supported NumPy dtype in native byte order."""
    try:
        found = np.dtype(dtype).newbyteorder("=")
    except TypeError as error:
        raise _unsupported(repr(dtype)) from error
    if found not in SUPPORTED:
        raise _unsupported(found.name)
    return found


def _unsupported(name: str) -> DTypeError:
    names = ", ".join(sorted(d.name for d in SUPPORTED))
    return DTypeError(f"dtype requires one of {names}, got {name}")


def require_range(what: str, dtype: DType, value: int | npt.NDArray[Any]) -> None:
    """Raise DTypeError, naming `what`, for integers outside the range of `dtype`."""
    if kind_of(dtype) not in "iu":
        return
    limits = np.iinfo(dtype)
    for number in (value,) if isinstance(value, int) else _extremes(value):
        if not limits.min <= number <= limits.max:
            raise DTypeError(
                f"{what} requires {dtype}, got {number}, which is outside of its "
                f"range; use another dtype{at(here())}"
            )


def _extremes(array: npt.NDArray[Any]) -> tuple[int, ...]:
    if kind_of(array.dtype) not in "iu" or not array.size:
        return ()
    return int(array.min()), int(array.max())


def kind_of(dtype: DType) -> str:
    """Return NumPy's letter of the kind; "f" for bfloat16, which says "V".

    >>> kind_of(BFLOAT16), kind_of(INT32)
    ('f', 'i')
    """
    kind = dtype.kind
    return "f" if kind == "V" else kind


def is_float(dtype: DType) -> bool:
    """Whether a dtype is floating-point, the 16-bit ones included."""
    return dtype.kind in "fV"


def is_half(dtype: DType) -> bool:
    """Whether a dtype is float16 or bfloat16, which are stored only."""
    return dtype.itemsize == 2 and dtype.kind in "fV"


def computed(dtype: DType) -> DType:
    """Return the dtype to compute values of `dtype` in: float32 for 16-bit ones.

    >>> print(computed(BFLOAT16), computed(FLOAT64))
    float32 float64
    """
    return FLOAT32 if is_half(dtype) else dtype


def largest(dtype: DType) -> float:
    """Return the largest finite number of a floating-point dtype.

    >>> largest(FLOAT16)
    65504.0
    """
    return float(_limits(dtype).max)


def smallest_normal(dtype: DType) -> float:
    """Return the smallest positive number of a floating-point dtype with all digits.

    >>> smallest_normal(FLOAT16) == 2**-14
    True
    """
    return float(_limits(dtype).smallest_normal)


def digits(dtype: DType) -> int:
    """Return the binary digits of a floating-point dtype, the first one included.

    >>> digits(FLOAT16), digits(BFLOAT16), digits(FLOAT32)
    (11, 8, 24)
    """
    return 1 + int(_limits(dtype).nmant)


def _limits(dtype: DType) -> Any:
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def promote(types: Sequence[TensorType]) -> tuple[DType, bool]:
    """Return NumPy's result dtype of `types` (NEP 50), and whether it is weak.

    bfloat16 promotes with other dtypes as float16 does: to itself with 8-bit integers,
    to float32 with 16-bit ones, to float64 with wider ones; with float16 to float32.
    """
    if all(t.weak for t in types):
        return _common([t.dtype for t in types]), True
    weak = {"b": False, "i": 0, "u": 0, "f": 0.0}
    parts = [weak[kind_of(t.dtype)] if t.weak else t.dtype for t in types]
    return _common(parts), False


def _common(parts: Sequence[Any]) -> DType:
    if not any(part is BFLOAT16 or part == BFLOAT16 for part in parts):
        return np.result_type(*parts)
    wide = FLOAT32 if any(part == FLOAT16 for part in parts) else FLOAT16
    found = np.result_type(wide, *(FLOAT16 if p == BFLOAT16 else p for p in parts))
    return BFLOAT16 if found == FLOAT16 else found


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """Return NumPy's broadcast shape; different symbols never broadcast.

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
    """Return `axis` counted from the front; ShapeError if it is not within `rank`."""
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
    """Return one axis or several, as a tuple; ShapeError for what is no integer."""
    if isinstance(axis, Iterable) and np.ndim(axis) and not isinstance(axis, str):
        return tuple(_axis_number(a) for a in axis)
    return (_axis_number(axis),)


def normalize_axes(axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return NumPy's ``axis=`` argument as a sorted tuple of axes; None means all."""
    if axis is None:
        return tuple(range(rank))
    axes = axis_tuple(axis)
    found = tuple(sorted(normalize_axis(a, rank) for a in axes))
    if len(set(found)) != len(found):
        raise ShapeError(f"distinct axes, got {axes}")
    return found
