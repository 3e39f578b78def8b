"""custom_op(kind="scalar"): the user's function of numbers, fused like a built-in.

Each application is an elementwise node of an op of its own, whose formula calls the
function. Its derivative is another such node per input, or made of graph operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import types as numba_types

from staticgrad.custom.backward_results import check_count
from staticgrad.custom.native_functions import (
    Native,
    Settings,
    called,
    is_native,
    native,
    number_dtype,
    scalar_kind,
)
from staticgrad.errors import DTypeError, GraphError
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import OPS, Elementwise, Op
from staticgrad.ir.source import at, here
from staticgrad.ir.types import SUPPORTED, DType, TensorType, is_float, promote
from staticgrad.ops.leaves import dtype_of
from staticgrad.ops.movement.views import broadcasted
from staticgrad.ops.promotion import as_tensor
from staticgrad.ops.rules import broadcast

COST = 20  # additions, as a short polynomial

Backward = Callable[..., Any] | Sequence[Any] | None


class ScalarOp:
    """Operation `name`, made of compiled functions."""

    def __init__(
        self, name: str, forward: Callable[..., Any], backward: Backward, dtype: Any
    ) -> None:
        self.name = name
        self.forward = native(name, "forward", forward)
        self.dtype = dtype
        self.graph: Callable[..., Any] | None = None
        self.natives: list[Native | None] = []
        self.joint = callable(backward) and is_native(backward)
        if isinstance(backward, Sequence):
            self.natives = [
                None if part is None else native(name, "backward", part)
                for part in backward
            ]
        elif backward is not None and is_native(backward):
            self.natives = [native(name, "backward", backward)]
        else:
            self.graph = backward

    def __call__(self, *args: Any, **settings: Any) -> Tensor:
        """Return the result for array_like arguments, which are broadcast."""
        xs = _arguments(self.name, args)
        dtypes = [x.dtype for x in xs]
        types = ", ".join(map(str, dtypes))
        kinds = [scalar_kind(d) for d in dtypes]
        made = self.forward.result(kinds, settings, types)
        dtype = self._dtype(made, [x.type for x in xs])
        pulls = self._pulls(xs, dtype, settings)
        op = _elementwise(self.name, len(xs), self._vjp(pulls, settings))
        source = f"def it({_names(len(xs))}):\n    return {called(len(xs), settings)}\n"
        function = self.forward.foreign(source, settings)
        return apply(op, *xs, function=function, dtype=dtype)

    def _dtype(self, made: Any, given: Sequence[TensorType]) -> DType:
        """Return the dtype: that of the float arguments for floats, else Numba's."""
        found = number_dtype(self.name, "forward", made)
        if callable(self.dtype) and not isinstance(self.dtype, type):
            return dtype_of(self.name, self.dtype(*(t.dtype for t in given)))
        if self.dtype is not None:
            return dtype_of(self.name, self.dtype)
        floats = [t for t in given if is_float(t.dtype)]
        if found.kind == "f" and floats:
            return promote(floats)[0]
        if found not in SUPPORTED:
            raise DTypeError(
                f"{self.name} requires forward to return a real number, got {found}; "
                f"say which with dtype={at(here())}"
            )
        return found

    def _pulls(
        self, xs: Sequence[Tensor], dtype: DType, settings: Settings
    ) -> list[Foreign | None]:
        """Return each input's function ``(g, y, *xs) -> number``, or None for zero."""
        if not self.natives:
            return []
        kinds = [scalar_kind(d) for d in (dtype, dtype, *(x.dtype for x in xs))]
        if self.joint:
            return self._joint_pulls(kinds, len(xs), settings)
        check_count(self.name, len(self.natives), len(xs))
        count = len(kinds)
        source = f"def it({_names(count)}):\n    return {called(count, settings)}\n"
        pulls: list[Foreign | None] = []
        for part in self.natives:
            if part is not None:
                self._check_result(part.result(kinds, settings, _listed(kinds)))
            pulls.append(None if part is None else part.foreign(source, settings))
        return pulls

    def _joint_pulls(
        self, kinds: Sequence[Any], inputs: int, settings: Settings
    ) -> list[Foreign | None]:
        (part,) = self.natives
        assert part is not None
        result = part.result(kinds, settings, _listed(kinds))
        count, several = len(kinds), isinstance(result, numba_types.BaseTuple)
        results = list(result) if several else [result]
        check_count(self.name, len(results), inputs)
        pulls: list[Foreign | None] = []
        for place, kind in enumerate(results):
            if kind == numba_types.none:
                pulls.append(None)
                continue
            self._check_result(kind)
            pick = f"[{place}]" if several else ""
            body = f"{called(count, settings)}{pick}"
            source = f"def it({_names(count)}):\n    return {body}\n"
            pulls.append(part.foreign(source, settings))
        return pulls

    def _check_result(self, kind: Any) -> None:
        dtype = number_dtype(self.name, "backward", kind)
        if dtype.kind != "f":
            raise DTypeError(
                f"{self.name} requires backward to return floats, got {dtype}"
                f"{at(here())}"
            )

    def _vjp(
        self, pulls: Sequence[Foreign | None], settings: Settings
    ) -> Callable[..., Any] | None:
        if self.graph is not None:
            return self._graph_vjp(self.graph, settings)
        if not any(pulls):
            return None

        def vjp(g: Tensor, y: Tensor, *xs: Tensor, **_: Any) -> list[Tensor | None]:
            return [
                None
                if pull is None or not is_float(x.dtype)
                else self._pulled(pull, x.dtype, (g, y, *xs))
                for pull, x in zip(pulls, xs, strict=True)
            ]

        return vjp

    def _pulled(self, pull: Foreign, dtype: DType, args: Sequence[Tensor]) -> Tensor:
        op = _elementwise(f"{self.name}_backward", len(args), self._no_second)
        return apply(op, *args, function=pull, dtype=dtype)

    def _no_second(self, *_: Any, **__: Any) -> Any:
        raise GraphError(
            f"{self.name} requires a backward that can be differentiated, got one that "
            f"is compiled; make it of graph operations, or of scalar operations that "
            f"have a backward of their own{at(here())}"
        )

    def _graph_vjp(
        self, backward: Callable[..., Any], settings: Settings
    ) -> Callable[..., Any]:
        def vjp(g: Tensor, y: Tensor, *xs: Tensor, **_: Any) -> list[Tensor | None]:
            whole = [broadcasted(x, y.shape) for x in xs]
            results = backward(broadcasted(g, y.shape), y, *whole, **settings)
            if isinstance(results, Tensor) or results is None:
                results = (results,)
            check_count(self.name, len(results), len(xs))
            pairs = zip(xs, results, strict=True)
            return [self._checked(x, r, y) for x, r in pairs]

        return vjp

    def _checked(self, x: Tensor, result: Any, y: Tensor) -> Tensor | None:
        if result is None or not is_float(x.dtype):
            return None
        g = as_tensor(result, x)
        if g.dtype != x.dtype:
            raise DTypeError(
                f"{self.name} requires backward to give the dtype of {x.type}, got "
                f"{g.type}; cast it with .astype{at(here())}"
            )
        return broadcasted(g, y.shape)


def _arguments(name: str, args: Sequence[Any]) -> list[Tensor]:
    """Return Tensors; Python numbers take the dtype they have beside the others."""
    if not args:
        raise GraphError(f"{name} requires an argument, got none{at(here())}")
    xs = [as_tensor(arg) for arg in args]
    strong = [x.type for x in xs if not x.type.weak]
    if not strong:
        return xs
    return [x.astype(promote((*strong, x.type))[0]) if x.type.weak else x for x in xs]


def _elementwise(name: str, count: int, vjp: Callable[..., Any] | None) -> Op:
    """Define an op for one application, outside the table of ops."""
    arguments = ", ".join(f"{{{n}}}" for n in range(count))
    return Op(
        name=name if name not in OPS else f"own_{name}",
        shape=lambda *types, **_: broadcast(*types),
        dtype=lambda *types, dtype, **_: dtype,
        vjp=vjp,
        code=Elementwise(f"{{function}}({arguments})", COST, fails=True),
        numpy=_each,
        samples=tuple,
        bad=tuple,
    )


def _each(*arrays: Any, function: Foreign, dtype: DType) -> Any:
    """Return the function that maps over the elements."""
    whole = np.broadcast_arrays(*arrays)
    result = np.empty(whole[0].shape, dtype)
    for position, index in enumerate(np.ndindex(result.shape)):
        result[index] = function(*(a[index] for a in whole), position=position)
    return result


def _names(count: int) -> str:
    return ", ".join(f"x{n}" for n in range(count))


def _listed(kinds: Sequence[Any]) -> str:
    return ", ".join(map(str, kinds))
