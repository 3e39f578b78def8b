"""Adapters between a custom operation and the user's function of arrays.

Kernels call a function with arrays to read and then arrays to fill. An adapter, written
here as source, has that form: it calls the user's function, which either takes the
arrays to fill itself, or returns results, whose shapes are then checked and which are
copied to where they belong.

Numba infers the number, dtypes and ranks of a function's results when the graph is
built. For the shapes it is then called once on ones (zeros for integers) of small
sizes; other exceptions in that call are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types as numba_types

from staticgrad.custom.native_functions import (
    Native,
    Settings,
    array_kind,
    number_dtype,
    positional,
)
from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.size import evaluate, symbols
from staticgrad.ir.source import at, here
from staticgrad.ir.types import TensorType, is_float

PROBED_ELEMENTS = 100_000  # most elements of a trial call
PROBED_SIZES = (2, 3, 5, 7, 11, 13)  # symbolic sizes in a trial call


@dataclass(frozen=True, slots=True)
class Adapted:
    """Function as kernels call it, the arrays it fills, and the results they are."""

    function: Foreign
    types: tuple[TensorType, ...]
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Adapter:
    """One of the user's functions on arrays of known types.

    `given` are the types of what is read, as x0, x1...; `arguments` the source of the
    arguments of the user's function. `results` are the types of its results; where
    `gradients` is true they are those of the inputs, of which only floats have any.
    """

    part: Native
    given: tuple[TensorType, ...]
    arguments: tuple[str, ...]
    results: tuple[TensorType, ...]
    settings: Settings
    gradients: bool = False

    def adapted(self) -> Adapted:
        """Return the adapted function; raise if its results do not fit."""
        wanted = [
            n
            for n, t in enumerate(self.results)
            if is_float(t.dtype) or not self.gradients
        ]
        if self._fills(len(wanted)):
            writes = tuple(f"y{n}" for n in range(len(wanted)))
            lines = [f"    {self._call(writes)}\n"]
            function = self._compiled(lines, wanted)
        else:
            lines, wanted = self._returning(wanted)
            function = self._compiled(lines, wanted)
            self._probe(function, wanted)
        types = tuple(self.results[n] for n in wanted)
        return Adapted(function, types, tuple(wanted))

    def _fills(self, wanted: int) -> bool:
        """Whether the function takes its results as arguments."""
        count = positional(self.part.function, self.settings)
        read = len(self.arguments)
        if count not in (None, read, read + wanted):
            raise GraphError(
                f"{self.part.name} requires {self.part.part} to take {read} arrays, or "
                f"{read + wanted} with those it fills, got one that takes {count}"
                f"{at(here())}"
            )
        return count == read + wanted and wanted > 0

    def _call(self, more: tuple[str, ...] = ()) -> str:
        settings = (f"{name}=_{name}" for name in sorted(self.settings))
        return f"function({', '.join((*self.arguments, *more, *settings))})"

    def _reads(self) -> list[str]:
        return [f"x{n}" for n in range(len(self.given))]

    def _compiled(self, lines: Sequence[str], wanted: Sequence[int]) -> Foreign:
        names = [*self._reads(), *(f"y{n}" for n in range(len(wanted)))]
        source = f"def it({', '.join(names)}):\n{''.join(lines)}"
        function = self.part.foreign(source, self.settings)
        kinds = [array_kind(t) for t in self.given]
        kinds += [array_kind(self.results[n], writable=True) for n in wanted]
        self.part.returned(function, kinds, self._described())
        return function

    def _described(self) -> str:
        return ", ".join(map(str, self.given)) or "no arguments"

    # Functions that return their results

    def _returning(self, wanted: Sequence[int]) -> tuple[list[str], list[int]]:
        """Return the lines that call, check and copy; the results that are not None."""
        head = f"def it({', '.join(self._reads())}):\n"
        raw = self.part.foreign(f"{head}    return {self._call()}\n", self.settings)
        reads = [array_kind(t) for t in self.given]
        returned = self.part.returned(raw, reads, self._described())
        several = isinstance(returned, numba_types.BaseTuple)
        kinds = list(returned) if several else [returned]
        self._check_count(len(kinds))
        if self.gradients:
            wanted = [n for n in wanted if kinds[n] != numba_types.none]
        lines = [f"    r = {self._call()}\n"]
        for number, place in enumerate(wanted):
            self._check_kind(place, kinds[place])
            value = f"r[{place}]" if several else "r"
            lines += self._copied(value, f"y{number}", place, kinds[place])
        return lines, list(wanted)

    def _check_count(self, found: int) -> None:
        if found == len(self.results):
            return
        rule = "give" if self.gradients else "return"
        one_each = ", one per input" if self.gradients else ""
        raise GraphError(
            f"{self.part.name} requires {self.part.part} to {rule} "
            f"{len(self.results)} results{one_each}, got {found}{at(here())}"
        )

    def _copied(self, value: str, target: str, place: int, kind: Any) -> list[str]:
        if not isinstance(kind, numba_types.Array):
            return [f"    {target}[()] = {value}\n"]
        if kind.ndim == 0:
            return [f"    {target}[()] = {value}[()]\n"]
        return [
            f"    if {value}.shape != {target}.shape:\n",
            f"        raise ShapeError({self._shape_rule(place)!r})\n",
            f"    {target}[:] = {value}\n",
        ]

    def _shape_rule(self, place: int) -> str:
        of = f" of input {place}" if self.gradients else ""
        return f"{self.part.part} to give the shape{of}, {self.results[place]}"

    def _check_kind(self, place: int, kind: Any) -> None:
        """Raise unless dtype and rank are those of the result."""
        wanted, name, what = self.results[place], self.part.name, self.part.part
        is_array = isinstance(kind, numba_types.Array)
        dtype = number_dtype(name, what, kind.dtype if is_array else kind)
        rank = kind.ndim if is_array else 0
        of = f" of input {place}" if self.gradients else ""
        if dtype != wanted.dtype:
            raise DTypeError(
                f"{name} requires {what} to give the dtype{of}, {wanted}, got {dtype}; "
                f"convert it with .astype{at(here())}"
            )
        if rank != len(wanted.shape):
            raise ShapeError(
                f"{name} requires {self._shape_rule(place)}, got {rank} axes"
                f"{at(here())}"
            )

    def _probe(self, function: Foreign, wanted: Sequence[int]) -> None:
        """Call it once; ShapeError where it returns an array of another shape."""
        arrays = self._probed([*self.given, *(self.results[n] for n in wanted)])
        if arrays is None:
            return
        for array in arrays[: len(self.given)]:
            array.flags.writeable = False
        rules = [self._shape_rule(place) for place in wanted]
        try:
            function.function(*arrays)
        except Exception as error:  # noqa: BLE001  the data are made up
            if str(error) in rules:
                raise ShapeError(
                    f"{self.part.name} requires {error}, got another{at(here())}"
                ) from None

    def _probed(self, types: Sequence[TensorType]) -> list[np.ndarray[Any, Any]] | None:
        """Return arrays of small sizes; None if there are none, or too many
        elements.
        """
        names = sorted(symbols(tuple(dim for t in types for dim in t.shape)))
        if len(names) > len(PROBED_SIZES):
            return None
        sizes = dict(zip(names, PROBED_SIZES, strict=False))
        shapes = [tuple(evaluate(dim, sizes) for dim in t.shape) for t in types]
        counts = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
        if min(counts, default=0) < 0 or sum(counts) > PROBED_ELEMENTS:
            return None
        return [
            np.full(shape, int(is_float(t.dtype)), t.dtype)
            for shape, t in zip(shapes, types, strict=True)
        ]
