"""Leaves: inputs, parameters, states and constants.

Each leaf is a node without inputs whose Tensor has a class of its own (node.py).
Parameters and states own their storage, which every executable shares.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.graph import current_graph, current_scope, default_dtype
from staticgrad.ir.node import Constant, Input, Node, Parameter, State, Stored, Tensor
from staticgrad.ir.op import Leaf, Op, define
from staticgrad.ir.size import Dim, Shape, Size
from staticgrad.ir.source import at, here
from staticgrad.ir.storage import Storage
from staticgrad.ir.types import (
    FLOAT64,
    INT64,
    SUPPORTED,
    DType,
    TensorType,
    as_dtype,
    kind_of,
    require_range,
)
from staticgrad.ops.rules import size_is_data

ShapeLike: TypeAlias = "int | str | Size | Iterable[int | str | Size]"


def _defined(
    name: str,
    shape: Callable[..., Shape],
    dtype: Callable[..., DType],
    numpy: Callable[..., npt.NDArray[Any]],
) -> Op:
    """Define a leaf's op; its attributes determine its type."""
    return define(
        name,
        shape=shape,
        dtype=dtype,
        vjp=None,
        code=Leaf(),
        numpy=numpy,
        samples=list,
        bad=list,
    )


def _stored_op(name: str) -> Op:
    return _defined(
        name,
        lambda storage, **_: storage.array.shape,
        lambda storage, **_: storage.array.dtype,
        lambda storage, **_: storage.array.copy(),
    )


INPUT = _defined(
    "input",
    lambda name, shape, dtype: shape,
    lambda name, shape, dtype: dtype,
    lambda name, shape, dtype: np.zeros(shape, dtype),
)
PARAMETER = _stored_op("parameter")
STATE = _stored_op("state")
CONSTANT = _defined(
    "constant",
    lambda value: value.shape,
    lambda value: value.dtype,
    lambda value: value,
)


def input(
    name: str, shape: ShapeLike = (), dtype: npt.DTypeLike | None = None
) -> Input:
    """Make an input: a value given at each call.

    `name` is the keyword of the call: an identifier, unique in the open Graph. `shape`
    has numbers and names; a name is a symbolic size: one compile serves every value of
    it. `dtype` is by default that of the Graph (float32).

    >>> import staticgrad as sg
    >>> with sg.Graph() as graph:
    ...     x = sg.input("x", ("batch", 64))
    >>> print(x.type)
    float32[batch, 64]
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise GraphError(
            f"input requires a name that is an identifier, got {name!r}; "
            f"choose one such as 'x'{at(here())}"
        )
    found = default_dtype() if dtype is None else dtype_of("input", dtype)
    dims = as_shape("input", shape, names=True)
    attrs = {"name": name, "shape": dims, "dtype": found}
    leaf = _leaf(INPUT, attrs, TensorType(dims, found), Input)
    assert isinstance(leaf, Input)
    graph = current_graph()
    if graph is not None:
        graph.add_input(leaf)
    return leaf


def parameter(
    value: npt.ArrayLike, name: str | None = None, trainable: bool = True
) -> Parameter:
    """Make a parameter, trained from a copy of `value`.

    Arrays keep their dtype; lists of Python floats take the Graph's. `name` is the path
    under which it is saved: it follows the open scopes, and is numbered if taken.

    >>> import staticgrad as sg
    >>> w = sg.parameter([[1.0, 2.0]], name="w")
    >>> w.name, w.value.tolist(), w.dtype.name
    ('w', [[1.0, 2.0]], 'float32')
    """
    array = as_array("parameter", value)
    attrs = {"storage": Storage(array), "trainable": bool(trainable)}
    leaf = _stored(PARAMETER, name, attrs, Parameter)
    assert isinstance(leaf, Parameter)
    return leaf


def state(value: npt.ArrayLike, name: str | None = None) -> State:
    """Make a state, changed by updates from a copy of `value`; never trained.

    >>> import staticgrad as sg
    >>> with sg.Graph() as graph:
    ...     count = sg.state(0, name="count")
    ...     pair = sg.update(count, count + 1)
    >>> f = sg.compile(count, updates=graph, target="reference")
    >>> int(f()), int(f())
    (0, 1)
    """
    array = as_array("state", value)
    leaf = _stored(STATE, name, {"storage": Storage(array)}, State)
    assert isinstance(leaf, State)
    return leaf


def anew(leaf: Stored) -> Stored:
    """Return a new leaf of equal value, with the same name, numbered."""
    name: str = leaf.node.attrs["name"]
    if isinstance(leaf, Parameter):
        return parameter(leaf.value, name, leaf.trainable)
    return state(leaf.value, name)


def constant(value: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Constant:
    """Make a constant.

    A Python number without `dtype` is weak: it takes the dtype of what it meets (NEP
    50). Arrays and NumPy scalars keep theirs; lists of Python floats take the Graph's.

    >>> import staticgrad as sg
    >>> print(sg.constant([1, 2]).type, sg.constant(2.0, dtype="float32").type)
    int64[2] float32[]
    """
    if dtype is None and is_number(value):
        return number(value)
    array = as_array("constant", value)
    if dtype is not None:
        target, array = dtype_of("constant", dtype), np.asarray(value)
        require_range("constant", target, array)
        array = array.astype(target)
    return frozen(array)


def is_number(value: object) -> TypeGuard[bool | int | float]:
    """Whether `value` is a Python bool, int or float, which is weak."""
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)


def number_type(value: bool | int | float) -> TensorType:
    """Return the weak type of a Python number; without a partner it is 64 bits wide."""
    if isinstance(value, bool):
        return TensorType((), np.dtype(bool), True)
    return TensorType((), INT64 if isinstance(value, int) else FLOAT64, True)


def number(value: bool | int | float, dtype: DType | None = None) -> Constant:
    """Return a Python number as a constant: weak, or of `dtype`, which must hold it."""
    kind = number_type(value)
    target = kind.dtype if dtype is None else dtype
    if isinstance(value, int):
        require_range("constant", target, value)
    with np.errstate(over="ignore"):
        array = np.asarray(
            _as_float(value) if kind_of(target) == "f" else value, target
        )
    return frozen(array, weak=dtype is None)


def frozen(array: npt.NDArray[Any], weak: bool = False) -> Constant:
    """Return a constant with a read-only copy of `array`."""
    value = np.array(array, order="C")
    value.flags.writeable = False
    kind = TensorType(value.shape, value.dtype, weak)
    leaf = _leaf(CONSTANT, {"value": value}, kind, Constant)
    assert isinstance(leaf, Constant)
    return leaf


def as_array(name: str, value: Any) -> npt.NDArray[Any]:
    """Return `value` as an array; Python floats take the Graph's dtype.

    DTypeError, naming function `name`, for anything else, Tensors included.
    """
    if isinstance(value, Tensor):
        raise DTypeError(
            f"{name} requires a value that is known now, got {value.type}; "
            f"pass an array, or use the tensor itself{at(here())}"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise DTypeError(
            f"{name} requires numbers, got {type(value).__name__} ({error}); "
            f"pass an array{at(here())}"
        ) from None
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype not in SUPPORTED:
        raise DTypeError(
            f"{name} requires a bool, integer or float of at most 64 bits, got "
            f"{array.dtype} from {type(value).__name__}; cast it first{at(here())}"
        )
    if array.dtype == FLOAT64 and _python_only(value):
        return array.astype(default_dtype())
    return array


def dtype_of(name: str, dtype: npt.DTypeLike) -> DType:
    """Return `dtype` as a supported NumPy dtype, or a located DTypeError of `name`."""
    try:
        return as_dtype(dtype)
    except DTypeError as error:
        text = str(error).replace("dtype requires", f"{name} requires a dtype that is")
        raise DTypeError(f"{text}; choose one of those{at(here())}") from None


def as_shape(name: str, shape: ShapeLike, names: bool = False) -> Shape:
    """Return `shape` as a tuple of dimensions; strings become symbolic sizes."""
    if isinstance(shape, int | str | Size | np.integer | Tensor):
        shape = (shape,)
    return tuple(_as_dim(name, dim, names) for dim in shape)


def _as_dim(name: str, dim: int | str | Size, names: bool) -> Dim:
    if isinstance(dim, Size):
        return dim
    if isinstance(dim, str) and names and dim.isidentifier():
        return Size.symbol(dim)
    if isinstance(dim, Tensor):
        raise size_is_data(name, dim)
    try:
        length = operator.index(dim)  # type: ignore[arg-type]
    except TypeError:
        length = -1
    if length < 0:
        kinds = "numbers >= 0 and identifiers" if names else "numbers >= 0 and sizes"
        raise ShapeError(
            f"{name} requires a shape of {kinds}, got {dim!r}; "
            f"name an unknown size, as in ('batch', 64){at(here())}"
        )
    return length


def _python_only(value: Any) -> bool:
    """Whether there are only Python values inside, no array or NumPy scalar."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, list | tuple):
            todo.extend(item)
        elif not isinstance(item, bool | int | float) or isinstance(item, np.generic):
            return False
    return True


def _as_float(value: bool | int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _leaf(
    op: Op, attrs: Mapping[str, Any], kind: TensorType, leaf: builtins.type[Tensor]
) -> Tensor:
    node = Node(op, (), attrs, (kind,), scope=current_scope(), source=here(), leaf=leaf)
    return node.outputs[0]


def _stored(
    op: Op, name: str | None, attrs: dict[str, Any], leaf: builtins.type[Stored]
) -> Tensor:
    """Make a parameter or state under the open scopes and register it."""
    scope, graph = current_scope(), current_graph()
    path = op.name if name is None else name
    path = f"{scope}.{path}" if scope else path
    if graph is not None:
        path = graph.unique_name(path)
    array = attrs["storage"].array
    kind = TensorType(array.shape, array.dtype)
    stored = _leaf(op, {"name": path, **attrs}, kind, leaf)
    assert isinstance(stored, Stored)
    if graph is not None:
        graph.add_stored(stored)
    return stored


__all__ = ["constant", "input", "parameter", "state"]
