"""The operators and methods of Tensor, installed by `install`.

Type checkers take the class Methods for a base of Tensor; its operators have declared
types, because other modules use them before a type checker has seen this one. What
would ask a Tensor for its value (``if``, ``float``, ``np.asarray``) raises an error
that says what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np

from staticgrad.errors import GraphError
from staticgrad.ir.node import Stored, Tensor
from staticgrad.ir.size import Dim, Size
from staticgrad.ir.source import at, here
from staticgrad.ops import leaves, promotion
from staticgrad.ops.elementwise import (
    activations,
    arithmetic,
    compare,
    division,
    functions,
    integers,
    powers,
    signs,
)
from staticgrad.ops.linear import matrix_products
from staticgrad.ops.movement import diagonals, indexing, repetition, reshaping
from staticgrad.ops.movement.indexed_updates import at_of
from staticgrad.ops.promotion import as_tensor
from staticgrad.ops.protocol import EQUIVALENTS, array_function, array_ufunc
from staticgrad.ops.reductions import reduce, scans, segments, sorting, statistics
from staticgrad.ops.rules import shape_error

Binary = Callable[[Any, Any], Any]
Infix = Callable[[Any, Any], Tensor]
Unary = Callable[[Any], Tensor]
Read = TypeVar("Read")
ARRAY_LIKE = (Tensor, np.ndarray, np.generic, bool, int, float, list, tuple, Size)


def _operator(function: Binary) -> Infix:
    """`function` as an operator: arguments of other kinds are left to their class."""

    def run(self: Tensor, other: Any) -> Any:
        if not _is_array_like(other):
            return NotImplemented
        return function(self, other)

    return run


def _reflected(function: Binary) -> Infix:
    def run(self: Tensor, other: Any) -> Any:
        if not _is_array_like(other):
            return NotImplemented
        return function(other, self)

    return run


def _is_array_like(value: object) -> bool:
    return isinstance(value, ARRAY_LIKE)


def _divmod(self: Tensor, other: Any) -> tuple[Tensor, Tensor]:
    return division.floor_divide(self, other), division.remainder(self, other)


def _size(self: Tensor) -> Dim:
    """Return the number of elements."""
    return statistics.count(self, tuple(range(self.ndim)))


def _length(self: Tensor) -> int:
    if self.ndim == 0:
        raise TypeError(f"len requires at least one axis, got {self.type}{at(here())}")
    length = self.shape[0]
    if isinstance(length, int):
        return length
    rule = "a first axis whose size is a number"
    raise shape_error("len", (self,), rule, "use x.shape[0], which is symbolic")


def _iterate(self: Tensor) -> Iterator[Tensor]:
    if self.ndim == 0:
        raise TypeError(f"iter requires at least one axis, got {self.type}{at(here())}")
    if not isinstance(self.shape[0], int):
        rule = "a first axis whose size is a number"
        advice = "slice it, or compute on the whole axis at once"
        raise shape_error("iter", (self,), rule, advice)
    return (indexing.getitem(self, n) for n in range(self.shape[0]))


def _reshape(self: Tensor, *dims: Any, order: str = "C") -> Tensor:
    """Reshape: ``x.reshape(2, 3)`` or ``x.reshape((2, 3))``."""
    return reshaping.reshape(self, dims[0] if len(dims) == 1 else dims, order)


def _transpose(self: Tensor, *axes: Any) -> Tensor:
    """Transpose: ``x.transpose()``, ``x.transpose(1, 0)``, ``x.transpose((1, 0))``."""
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], Sequence)):
        return reshaping.transpose(self, axes[0])
    return reshaping.transpose(self, axes or None)


def _copy(self: Tensor, order: str = "C") -> Tensor:
    """Return the tensor itself, which is immutable."""
    return self


def _flatten(self: Tensor, order: str = "C") -> Tensor:
    return reshaping.ravel(self, order)


def _bool(self: Tensor) -> NoReturn:
    raise GraphError(
        f"bool requires a value, got {self.type}, which has one only when the graph "
        "runs; choose with sg.where(condition, x, y), or compare identities with "
        f"`is`{at(here())}"
    )


def _valued(what: str, error: type[Exception] = TypeError) -> Callable[..., NoReturn]:
    def run(self: Tensor, *_: Any) -> NoReturn:
        raise error(
            f"{what} requires a value, got {self.type}, which has one only when the "
            f"graph runs; compile it and call it, as in sg.compile(y)(){at(here())}"
        )

    return run


def _index(self: Tensor) -> NoReturn:
    raise TypeError(
        f"index requires a value, got {self.type}, which has one only when the graph "
        f"runs; index a Tensor with it, as in sg.take(x, i){at(here())}"
    )


def _array(self: Tensor, *_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        f"asarray requires values, got {self.type}, which has them only when the graph "
        "runs; compile it and call it, as in sg.compile(y)(), or use the function in "
        f"sg that has NumPy's name{at(here())}"
    )


def _setitem(self: Tensor, *_: Any) -> NoReturn:
    raise TypeError(
        f"item assignment requires an array, got {self.type}, which never changes; "
        f"use x.at[key].set(values), which gives a new one{at(here())}"
    )


# Names in other libraries' tensors, and their equivalents here.
ELSEWHERE = {
    "backward": "sg.grad(y, wrt) is the gradient, as a tensor",
    "grad": "sg.grad(y, wrt) is the gradient, as a tensor",
    "requires_grad": "any float tensor may be in sg.grad(y, wrt)",
    "detach": "use sg.stop_gradient(x)",
    "register_hook": "gradients are tensors: compute with sg.grad(y, wrt)",
    "numpy": "compile it and call it, as in sg.compile(y)()",
    "value": "compile it and call it, as in sg.compile(y)()",
    "eval": "compile it and call it, as in sg.compile(y)()",
    "view": "use .reshape",
    "permute": "use .transpose",
    "unsqueeze": "use sg.expand_dims",
    "expand": "use sg.broadcast_to",
    "masked_fill": "use sg.where(mask, value, x)",
    "gather": "use sg.take_along_axis",
    "contiguous": "leave it out: a Tensor has no layout in memory",
    "dim": "use .ndim",
    "float": "use .astype('float32')",
    "double": "use .astype('float64')",
    "half": "use .astype('float16')",
    "long": "use .astype('int64')",
    "type_as": "use .astype(other.dtype)",
    "to": "use .astype for a dtype; sg.compile(target=) chooses where it runs",
    "cpu": "sg.compile(target='cpu') chooses where it runs",
    "cuda": "sg.compile(target='cuda') chooses where it runs",
    "sort": "use sg.sort(x), which is another tensor",
}


def _format(self: Tensor, how: str) -> str:
    """Format as ``str(x)``; a number format is rejected."""
    if not how:
        return str(self)
    raise TypeError(
        f"format requires a value, got {self.type}, which has one only when the graph "
        f"runs; compile it and call it, as in sg.compile(y)(){at(here())}"
    )


def _not_pickled(self: Tensor) -> NoReturn:
    raise TypeError(
        f"pickle requires values, got {self.type}, a part of a graph; keep arrays, as "
        f"in {{name: p.value for name, p in model.parameters().items()}}{at(here())}"
    )


def _deep_copy(self: Tensor, memo: Any) -> Tensor:
    """Return the tensor itself, which is immutable; copy a leaf with storage."""
    return leaves.anew(self) if isinstance(self, Stored) else self


def _missing(self: Tensor, name: str) -> NoReturn:
    """Raise AttributeError; for names that other libraries have, with advice."""
    text = f"'{type(self).__name__}' object has no attribute {name!r}"
    advice = ELSEWHERE.get(name)
    if advice is None and name in EQUIVALENTS:
        advice = f"use sg.{name}(x)"
    raise AttributeError(f"{text}; {advice}{at(here())}" if advice else text)


def _attribute(read: Callable[[Tensor], Read]) -> Read:
    """A property, which type checkers take for what it gives."""
    return property(read)  # type: ignore[return-value]


class Methods:
    """The operators and methods of Tensor; its base class for type checkers."""

    __add__: ClassVar[Infix] = _operator(arithmetic.add)
    __radd__: ClassVar[Infix] = _reflected(arithmetic.add)
    __sub__: ClassVar[Infix] = _operator(arithmetic.subtract)
    __rsub__: ClassVar[Infix] = _reflected(arithmetic.subtract)
    __mul__: ClassVar[Infix] = _operator(arithmetic.multiply)
    __rmul__: ClassVar[Infix] = _reflected(arithmetic.multiply)
    __truediv__: ClassVar[Infix] = _operator(division.divide)
    __rtruediv__: ClassVar[Infix] = _reflected(division.divide)
    __floordiv__: ClassVar[Infix] = _operator(division.floor_divide)
    __rfloordiv__: ClassVar[Infix] = _reflected(division.floor_divide)
    __mod__: ClassVar[Infix] = _operator(division.remainder)
    __rmod__: ClassVar[Infix] = _reflected(division.remainder)
    __pow__: ClassVar[Infix] = _operator(powers.power)
    __rpow__: ClassVar[Infix] = _reflected(powers.power)
    __matmul__: ClassVar[Infix] = _operator(matrix_products.matmul)
    __rmatmul__: ClassVar[Infix] = _reflected(matrix_products.matmul)
    __and__: ClassVar[Infix] = _operator(integers.bitwise_and)
    __rand__: ClassVar[Infix] = _reflected(integers.bitwise_and)
    __or__: ClassVar[Infix] = _operator(integers.bitwise_or)
    __ror__: ClassVar[Infix] = _reflected(integers.bitwise_or)
    __xor__: ClassVar[Infix] = _operator(integers.bitwise_xor)
    __rxor__: ClassVar[Infix] = _reflected(integers.bitwise_xor)
    __lshift__: ClassVar[Infix] = _operator(integers.left_shift)
    __rlshift__: ClassVar[Infix] = _reflected(integers.left_shift)
    __rshift__: ClassVar[Infix] = _operator(integers.right_shift)
    __rrshift__: ClassVar[Infix] = _reflected(integers.right_shift)
    __eq__: ClassVar[Infix] = _operator(compare.equal)  # type: ignore[assignment]
    __ne__: ClassVar[Infix] = _operator(compare.not_equal)  # type: ignore[assignment]
    __lt__: ClassVar[Infix] = _operator(compare.less)
    __le__: ClassVar[Infix] = _operator(compare.less_equal)
    __gt__: ClassVar[Infix] = _operator(compare.greater)
    __ge__: ClassVar[Infix] = _operator(compare.greater_equal)
    __hash__ = object.__hash__
    __neg__: ClassVar[Unary] = arithmetic.negative
    __pos__: ClassVar[Unary] = arithmetic.positive
    __abs__: ClassVar[Unary] = arithmetic.absolute
    __invert__: ClassVar[Unary] = integers.invert
    __round__ = functions.round
    __divmod__ = _divmod
    __getitem__ = indexing.getitem
    __len__ = _length
    __iter__ = _iterate
    astype = promotion.astype
    reshape = _reshape
    transpose = _transpose
    swapaxes = reshaping.swapaxes
    squeeze = reshaping.squeeze
    ravel = reshaping.ravel
    flatten = _flatten
    sum = reduce.sum
    prod = reduce.prod
    max = reduce.max
    min = reduce.min
    all = reduce.all
    any = reduce.any
    mean = statistics.mean
    var = statistics.var
    std = statistics.std
    argmax = statistics.argmax
    argmin = statistics.argmin
    argsort = sorting.argsort
    clip = activations.clip
    round = functions.round
    dot = matrix_products.dot
    take = indexing.take
    cumsum = scans.cumsum
    cumprod = scans.cumprod
    diagonal = diagonals.diagonal
    trace = diagonals.trace
    repeat = repetition.repeat
    searchsorted = segments.searchsorted
    conj = signs.conjugate
    conjugate = signs.conjugate
    copy = _copy
    T = _attribute(reshaping.transpose)
    mT = _attribute(reshaping.matrix_transpose)
    at = _attribute(at_of)
    size = _attribute(_size)
    real = _attribute(signs.real)
    imag = _attribute(signs.imag)
    itemsize = _attribute(lambda self: self.dtype.itemsize)
    nbytes = _attribute(lambda self: _size(self) * self.dtype.itemsize)


# Not for type checkers, which are to report what asks a Tensor for its value.
HIDDEN: dict[str, Any] = {
    "__getattr__": _missing,
    "__format__": _format,
    "__reduce__": _not_pickled,
    "__copy__": _copy,
    "__deepcopy__": _deep_copy,
    "__setitem__": _setitem,
    "__bool__": _bool,
    "__float__": _valued("float"),
    "__int__": _valued("int"),
    "__complex__": _valued("complex"),
    "__index__": _index,
    "__array__": _array,
    "__array_ufunc__": array_ufunc,
    "__array_function__": array_function,
    "item": _valued("item()", GraphError),
    "tolist": _valued("tolist()", GraphError),
}


def _of_size(exact: Binary | None, method: Binary) -> Binary:
    """An operator of a symbolic size: `exact` among sizes, else that of tensors."""

    def run(self: Size, other: Any) -> Any:
        result = NotImplemented if exact is None else exact(self, other)
        return method(self, other) if result is NotImplemented else result

    return run


def _size_ufunc(
    self: Size, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
) -> Any:
    """Apply a NumPy ufunc to sizes: exact where it is an operator of sizes."""
    names = SIZE_OPERATORS.get(ufunc.__name__)
    if names is None or method != "__call__" or options:
        return array_ufunc(as_tensor(self), ufunc, method, *inputs, **options)
    first, second = inputs
    if isinstance(first, Size):
        return getattr(first, names[0])(second)
    return getattr(second, names[1])(first)


_SIZE_ARITHMETIC = {
    ufunc: (f"__{name}__", f"__r{name}__")
    for ufunc, name in (
        ("add", "add"), ("subtract", "sub"), ("multiply", "mul"), ("divide", "truediv"),
        ("floor_divide", "floordiv"), ("remainder", "mod"), ("power", "pow"),
    )
}  # fmt: skip

# from a ufunc to the methods of its first and its second argument
SIZE_OPERATORS = _SIZE_ARITHMETIC | {
    "equal": ("__eq__", "__eq__"),
    "not_equal": ("__ne__", "__ne__"),
}


def _size_index(self: Size) -> NoReturn:
    raise TypeError(
        f"index requires a number, got the size {self}, which is known at the call "
        "only; loop with sg.scan or sg.fori_loop, count with sg.arange, fill with "
        f"sg.zeros and the like{at(here())}"
    )


def install_sizes(kind: type[Size]) -> None:
    """Give `kind` arithmetic with floats, arrays and Tensors, which returns Tensors.

    So does a comparison: only whether two sizes are equal for all values is known.
    """
    arithmetic_names = chain(*_SIZE_ARITHMETIC.values())
    for name in (*arithmetic_names, "__lt__", "__le__", "__gt__", "__ge__"):
        setattr(kind, name, _of_size(getattr(kind, name, None), getattr(Methods, name)))
    kind.__index__ = _size_index  # type: ignore[attr-defined]
    kind.__array_ufunc__ = _size_ufunc  # type: ignore[attr-defined]


def install(kind: type[Tensor]) -> None:
    """Give `kind` its operators and methods."""
    of_every_class = vars(type("", (), {}))
    for name, method in (vars(Methods) | HIDDEN).items():
        if name not in of_every_class:
            setattr(kind, name, method)
