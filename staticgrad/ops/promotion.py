"""Arguments of public functions as Tensors of one dtype (NumPy's NEP 50).

Python numbers are weak: they become constants of the dtype that the others decide.
NumPy scalars and arrays keep their dtype. Lists are stacked as NumPy does, and may hold
Tensors. A symbolic size (``x.shape[0]``) is a weak integer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from staticgrad.ir.graph import PRECISION, apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Size
from staticgrad.ir.types import (
    FLOAT32,
    FLOAT64,
    DType,
    TensorType,
    is_float,
    is_half,
    kind_of,
    promote,
)
from staticgrad.ops.casting import STOP_GRADIENT, cast
from staticgrad.ops.leaves import (
    as_array,
    dtype_of,
    frozen,
    is_number,
    number,
    number_type,
)
from staticgrad.ops.named import named
from staticgrad.ops.rules import shape_error

F = TypeVar("F", bound=Callable[..., Any])

ArrayLike: TypeAlias = "Tensor | Size | npt.ArrayLike | Sequence[Any]"


def as_tensor(value: ArrayLike, like: Tensor | None = None) -> Tensor:
    """Return `value` as a Tensor; a weak one takes the dtype that it has beside `like`.

    Numbers, NumPy scalars and arrays, sizes, Tensors, and nested lists of them.
    DTypeError for anything else.

    >>> import staticgrad as sg
    >>> print(sg.as_tensor([1, 2]).type)
    int64[2]
    """
    if like is not None:
        return beside(value, like)
    if isinstance(value, Tensor):
        return value
    if is_number(value):
        return number(value)
    if isinstance(value, Size):
        return named("extent", size=value)
    if isinstance(value, list | tuple) and _holds_tensor(value):
        return _stacked(value)
    return frozen(as_array("array_like", value))


def beside(value: ArrayLike, like: Tensor) -> Tensor:
    """Return `value` as a Tensor; a weak one in the dtype it has beside `like`."""
    if is_number(value):
        kind = number_type(value)
        return number(value, promote((like.type, kind))[0])
    tensor = as_tensor(value)
    if not tensor.type.weak:
        return tensor
    return cast(tensor, promote((like.type, tensor.type))[0])


def promoted(*values: ArrayLike) -> tuple[Tensor, ...]:
    """Return `values` as Tensors of NumPy's common dtype; casts are inserted."""
    return _common(values, lambda dtype: dtype)


def result_type(*arrays_and_dtypes: ArrayLike | npt.DTypeLike) -> DType:
    """Return the dtype of arithmetic by NEP 50: Python numbers are weak.

    >>> import staticgrad as sg
    >>> sg.result_type(sg.input("x", (), "float32"), 2.5)
    dtype('float32')
    """
    values = [_of_dtype(argument) for argument in arrays_and_dtypes]
    return promoted(*values)[0].dtype


def _of_dtype(argument: Any) -> Any:
    """Return a number of a given dtype; anything else as it is."""
    is_dtype = isinstance(argument, str | type | np.dtype)
    return np.zeros((), dtype_of("result_type", argument)) if is_dtype else argument


def floats(*values: ArrayLike) -> tuple[Tensor, ...]:
    """Return `values` as Tensors of one floating-point dtype, that of `float_dtype`."""
    return _common(values, float_dtype)


def quotients(*values: ArrayLike) -> tuple[Tensor, ...]:
    """Return `values` as Tensors of one float dtype; integers become float64."""
    return _common(values, lambda dtype: dtype if is_float(dtype) else FLOAT64)


def _common(
    values: Sequence[ArrayLike], lift: Callable[[DType], DType]
) -> tuple[Tensor, ...]:
    items = [v if is_number(v) else as_tensor(v) for v in values]
    types = [_type(item) for item in items]
    dtype, weak = types[0].dtype, False
    if any(kind.weak or kind.dtype is not dtype for kind in types):
        dtype, weak = promote(types)
    lifted = lift(dtype)
    if not is_float(dtype) and not any(kind.weak for kind in types):
        # int8 and uint16 both fit into float32, though not into one type of 16 bits.
        lifted = np.result_type(*(lift(kind.dtype) for kind in types))
    return tuple(_typed(item, lifted, weak) for item in items)


def widened(function: F) -> F:
    """Return `function`, a composite, with 16-bit tensors computed in float32.

    Its float32 results are rounded to the dtype that the arguments promote to, once,
    at the end; where they are asked for with ``dtype=``, nothing is changed. Under a
    policy of mixed precision they stay float32.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = [_array_type(value) for value in (*args, *kwargs.values())]
        types = [kind for kind in found if kind is not None]
        if not any(is_half(kind.dtype) for kind in types) or "dtype" in kwargs:
            return function(*args, **kwargs)
        result = function(*map(_wide, args), **{k: _wide(v) for k, v in kwargs.items()})
        dtype = promote(types)[0]
        if isinstance(result, tuple):
            return tuple(_narrow(part, dtype) for part in result)
        return _narrow(result, dtype)

    return call  # type: ignore[return-value]


def _narrow(result: Tensor, dtype: DType) -> Tensor:
    narrow = is_half(dtype) and result.dtype == FLOAT32
    narrow = narrow and PRECISION.get() is None  # a policy keeps float32
    return cast(result, dtype) if narrow else result


def _array_type(value: Any) -> TensorType | None:
    """Return the type of a tensor, array or NumPy float; None for Python numbers."""
    if isinstance(value, Tensor):
        return value.type
    is_array = isinstance(value, np.ndarray) and value.ndim > 0
    is_number = isinstance(value, np.ndarray | np.generic) and is_float(value.dtype)
    return TensorType(value.shape, value.dtype) if is_array or is_number else None


def _wide(value: Any) -> Any:
    kind = _array_type(value)
    if kind is None or not is_half(kind.dtype):
        return value
    return cast(as_tensor(value), FLOAT32)


def float_dtype(dtype: DType) -> DType:
    """Return the dtype of ``exp`` and the like of a `dtype` argument.

    Integers become the float that holds them, as in NumPy; bool and 8-bit integers
    become float32 where NumPy gives float16: 16 bits are for those who ask for them.
    """
    if is_float(dtype):
        return dtype
    return FLOAT32 if dtype.itemsize <= 2 else FLOAT64


def astype(x: ArrayLike, dtype: npt.DTypeLike, copy: bool = True) -> Tensor:
    """Return `x` converted to `dtype`; floats are truncated, and bool is ``x != 0``.

    `copy` changes nothing: a Tensor never changes.

    >>> import staticgrad as sg
    >>> f = sg.compile(sg.astype([1.7, -1.7], "int32"), target="reference")
    >>> f().tolist()
    [1, -1]
    """
    found = dtype_of("astype", dtype)
    if is_number(x) and kind_of(found) in "bf":
        return frozen(np.asarray(x, found))
    tensor = as_tensor(x)
    if not tensor.type.weak:
        return cast(tensor, found)
    # a product with a number that is not weak is not weak either
    one = frozen(np.ones((), found))
    return named("multiply", cast(tensor, found), one)


def stop_gradient(x: ArrayLike) -> Tensor:
    """Return `x` as a constant of differentiation: no gradient flows through it.

    >>> import staticgrad as sg
    >>> x = sg.parameter(3.0)
    >>> dx = sg.grad(x * sg.stop_gradient(x), x)
    >>> float(sg.compile(dx, target="reference")())
    3.0
    """
    return apply(STOP_GRADIENT, as_tensor(x))


def _type(item: Any) -> TensorType:
    return item.type if isinstance(item, Tensor) else number_type(item)


def _typed(item: Any, dtype: DType, weak: bool) -> Tensor:
    if isinstance(item, Tensor):
        return cast(item, dtype)
    return frozen(np.asarray(item, dtype), weak=True) if weak else number(item, dtype)


def _holds_tensor(value: Sequence[Any]) -> bool:
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, Tensor | Size):
            return True
        if isinstance(item, list | tuple):
            todo.extend(item)
    return False


def _stacked(value: Sequence[Any]) -> Tensor:
    """Return a list that holds Tensors, stacked from the innermost lists on."""
    done: dict[int, Tensor] = {}
    todo: list[tuple[Sequence[Any], bool]] = [(value, False)]
    while todo:
        items, expanded = todo.pop()
        inner = [i for i in items if isinstance(i, list | tuple) and _holds_tensor(i)]
        if expanded:
            done[id(items)] = _stack([done.get(id(i), i) for i in items])
            continue
        todo.append((items, True))
        todo.extend((i, False) for i in inner)
    return done[id(value)]


def _stack(items: Sequence[Any]) -> Tensor:
    """Return tensors of one shape, and numbers, along a new first axis."""
    tensors = promoted(*items)
    shape = tensors[0].shape
    if any(t.shape != shape for t in tensors):
        advice = "give every element of the list the same shape"
        raise shape_error("array_like", tensors, "elements of one shape", advice)
    rows = [named("reshape", t, shape=(1, *shape)) for t in tensors]
    return named("concatenate", *rows, axis=0)


__all__ = ["as_tensor", "astype", "result_type", "stop_gradient"]
