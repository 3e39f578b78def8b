"""Compilation by Numba of users' functions that kernels call.

A custom operation takes a function apart into calls of a known form: numbers to a
number, or arrays to arrays that are filled. What stands between is written here as
source, with the arguments that are no tensors as constants, and compiled by Numba.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numba.core.errors import NumbaError
from numba.extending import is_jitted

from staticgrad.compiler.codegen.fingerprint import fingerprint
from staticgrad.compiler.codegen.foreign_calls import (
    array_type,
    defined,
    jitted,
    numba_type,
    returned,
    unliteral,
)
from staticgrad.compiler.host.numba_internals import of_numbers
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.source import at, here
from staticgrad.ir.types import DType, TensorType, computed, is_half

Settings = Mapping[str, Any]


@dataclass(slots=True)
class Native:
    """User's function, `part` of the operation `name`, and its compiled forms.

    `part` is "forward" or "backward".
    """

    name: str
    part: str
    function: Any
    known: dict[str, Foreign] = field(default_factory=dict)

    def foreign(self, source: str, settings: Settings, **names: Any) -> Foreign:
        """Compile `source`, which calls ``function``; equal sources share a Foreign."""
        values = [value for pair in sorted(settings.items()) for value in pair]
        digest = fingerprint(self.function, source, *values)
        if digest not in self.known:
            scope = {"function": self.function, "ShapeError": ShapeError, **names}
            scope |= {f"_{name}": value for name, value in settings.items()}
            self.known[digest] = Foreign(
                self.name if self.part == "forward" else f"{self.name}_{self.part}",
                digest,
                defined(source, **scope),
            )
        return self.known[digest]

    def result(self, kinds: Sequence[Any], settings: Settings, types: str) -> Any:
        """Return the Numba type of the function's result; `types` are of arguments."""
        count = ", ".join(f"x{n}" for n in range(len(kinds)))
        source = f"def it({count}):\n    return {called(len(kinds), settings)}\n"
        return self.returned(self.foreign(source, settings), kinds, types)

    def returned(self, foreign: Foreign, kinds: Sequence[Any], types: str) -> Any:
        """Return the Numba type that a compiled form returns.

        GraphError where Numba cannot compile it for arguments of these `kinds`.
        """
        try:
            return returned(foreign.function, kinds)
        except NumbaError as error:
            raise GraphError(
                f"{self.name} requires a {self.part} that Numba can compile for "
                f"{types}, got {_first_lines(str(error))}{at(here())}"
            ) from None


def native(name: str, part: str, function: Callable[..., Any]) -> Native:
    """Return `function`, or the function inside a Numba ufunc, as a part of `name`."""
    return Native(name, part, jitted(of_numbers(function)))


def is_native(function: Any) -> bool:
    """Whether Numba compiles the function."""
    return bool(is_jitted(function)) or of_numbers(function) is not function


def called(count: int, settings: Settings, first: int = 0) -> str:
    """Return the call of ``function`` with x0, x1... and the settings.

    >>> called(2, {"alpha": 1})
    'function(x0, x1, alpha=_alpha)'
    """
    xs = [f"x{n}" for n in range(first, first + count)]
    return f"function({', '.join([*xs, *(f'{n}=_{n}' for n in sorted(settings))])})"


def positional(function: Any, settings: Settings) -> int | None:
    """Return the number of arguments beside `settings`; None if any number is taken."""
    function = function.py_func if is_jitted(function) else function
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return None
    return sum(name not in settings for name in parameters)


def scalar_kind(dtype: DType) -> Any:
    """Return Numba's type of a number in a register: float32 for halves."""
    return numba_type(computed(dtype))


def array_kind(kind: TensorType, writable: bool = False) -> Any:
    """Return Numba's type of an array that a function is given.

    DTypeError for float16 and bfloat16, with which Numba does not compute.
    """
    if is_half(kind.dtype):
        raise DTypeError(
            f"custom_op requires arrays with which Numba computes, got {kind}; cast it "
            f"with .astype('float32'){at(here())}"
        )
    return array_type(numba_type(kind.dtype), len(kind.shape), writable)


def number_dtype(name: str, what: str, kind: Any) -> DType:
    """Return the dtype of Numba's number type `kind`; DTypeError for others."""
    try:
        return np.dtype(str(unliteral(kind)).replace("boolean", "bool"))
    except TypeError:
        raise DTypeError(
            f"{name} requires {what} to return a number, got {kind}{at(here())}"
        ) from None


def _first_lines(text: str) -> str:
    """Return Numba's message without its list of attempts."""
    lines = (line.strip() for line in text.splitlines())
    kept = [line for line in lines if line and not line.startswith("Failed in")]
    return " ".join(kept[:2])
