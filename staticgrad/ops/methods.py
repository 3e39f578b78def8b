"""The operators and methods of Tensor, installed by `install`.

Their declarations for type checkers are in node.py. What would ask a Tensor for its
value (``if``, ``float``, ``np.asarray``) raises an error that says what to do instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from staticgrad.errors import GraphError
from staticgrad.ir.node import Stored, Tensor
from staticgrad.ir.size import Dim, Size
from staticgrad.ir.source import at, here
from staticgrad.ops import leaves
from staticgrad.ops.elementwise import (
    arithmetic,
    compare,
    division,
    functions,
    integers,
    powers,
    signs,
)
from staticgrad.ops.linear import matrix_products
from staticgrad.ops.movement import indexing, reshaping
from staticgrad.ops.movement.indexed_updates import at_of
from staticgrad.ops.promotion import as_tensor
from staticgrad.ops.protocol import EQUIVALENTS, array_function, array_ufunc
from staticgrad.ops.reductions import statistics
from staticgrad.ops.rules import shape_error

Binary = Callable[[Any, Any], Any]
ARRAY_LIKE = (Tensor, np.ndarray, np.generic, bool, int, float, list, tuple, Size)


def _operator(function: Binary) -> Binary:
    """Return `function` as an operator that defers to other classes' own operators."""

    def run(self: Tensor, other: Any) -> Any:
        if not _is_array_like(other):
            return NotImplemented
        return function(self, other)

    return run


def _reflected(function: Binary) -> Binary:
    def run(self: Tensor, other: Any) -> Any:
        if not _is_array_like(other):
            return NotImplemented
        return function(other, self)

    return run


def _is_array_like(value: object) -> bool:
    return isinstance(value, ARRAY_LIKE)


OPERATORS: dict[str, Binary] = {
    "add": arithmetic.add,
    "sub": arithmetic.subtract,
    "mul": arithmetic.multiply,
    "truediv": division.divide,
    "floordiv": division.floor_divide,
    "mod": division.remainder,
    "pow": powers.power,
    "matmul": matrix_products.matmul,
    "and": integers.bitwise_and,
    "or": integers.bitwise_or,
    "xor": integers.bitwise_xor,
    "lshift": integers.left_shift,
    "rshift": integers.right_shift,
}

COMPARISONS: dict[str, Binary] = {
    "eq": compare.equal,
    "ne": compare.not_equal,
    "lt": compare.less,
    "le": compare.less_equal,
    "gt": compare.greater,
    "ge": compare.greater_equal,
}


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


METHODS: dict[str, Any] = {
    "__getattr__": _missing,
    "__neg__": arithmetic.negative,
    "__pos__": arithmetic.positive,
    "__abs__": arithmetic.absolute,
    "__invert__": integers.invert,
    "__round__": functions.round,
    "__format__": _format,
    "__reduce__": _not_pickled,
    "__copy__": _copy,
    "__deepcopy__": _deep_copy,
    "__divmod__": _divmod,
    "__getitem__": indexing.getitem,
    "__setitem__": _setitem,
    "__len__": _length,
    "__iter__": _iterate,
    "__bool__": _bool,
    "__float__": _valued("float"),
    "__int__": _valued("int"),
    "__complex__": _valued("complex"),
    "__index__": _index,
    "__array__": _array,
    "__array_ufunc__": array_ufunc,
    "__array_function__": array_function,
    "T": property(reshaping.transpose),
    "mT": property(reshaping.matrix_transpose),
    "at": property(at_of),
    "size": property(_size),
    "item": _valued("item()", GraphError),
    "tolist": _valued("tolist()", GraphError),
    "reshape": _reshape,
    "transpose": _transpose,
    "flatten": _flatten,
    "real": property(signs.real),
    "imag": property(signs.imag),
    "copy": _copy,
    "itemsize": property(lambda self: self.dtype.itemsize),
    "nbytes": property(lambda self: _size(self) * self.dtype.itemsize),
}


def _of_size(exact: Binary | None, function: Binary) -> Binary:
    """Return an operator of symbolic sizes: `exact` for sizes, else of tensors."""

    def run(self: Size, other: Any) -> Any:
        result = NotImplemented if exact is None else exact(self, other)
        if result is NotImplemented and _is_array_like(other):
            return function(self, other)
        return result

    return run


def _swapped(function: Binary) -> Binary:
    return lambda x, y: function(y, x)


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


# ufunc -> the methods of its first and second argument
SIZE_OPERATORS = {
    **{f.__name__: (f"__{n}__", f"__r{n}__") for n, f in list(OPERATORS.items())[:7]},
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
    for name, function in list(OPERATORS.items())[:7]:
        for prefix, run in (("", function), ("r", _swapped(function))):
            dunder = f"__{prefix}{name}__"
            setattr(kind, dunder, _of_size(getattr(kind, dunder, None), run))
    for name in ("lt", "le", "gt", "ge"):
        setattr(kind, f"__{name}__", _of_size(None, COMPARISONS[name]))
    kind.__index__ = _size_index  # type: ignore[attr-defined]
    kind.__array_ufunc__ = _size_ufunc  # type: ignore[attr-defined]


def install(kind: type[Tensor], public: Mapping[str, Callable[..., Any]]) -> None:
    """Give `kind` its operators and methods: METHODS, and NumPy's that are `public`.

    But for sort, which changes an array.
    """
    for name in (vars(np.ndarray).keys() & public) - {"sort"}:
        setattr(kind, name, public[name])
    for name, function in OPERATORS.items():
        setattr(kind, f"__{name}__", _operator(function))
        setattr(kind, f"__r{name}__", _reflected(function))
    for name, function in COMPARISONS.items():
        setattr(kind, f"__{name}__", _operator(function))
    for name, method in METHODS.items():
        setattr(kind, name, method)
