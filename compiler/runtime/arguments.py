"""Arguments of a call: matching arrays to inputs, and the sizes they give.

An array that has the input's dtype and lies in C order in native byte order is read
where it is. Anything else that may be cast ("same_kind") is copied, and a note of it is
kept for ``explain()``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, GraphError, ShapeError
from staticgrad.ir.node import Input
from staticgrad.ir.size import Dim, Size, evaluate
from staticgrad.ir.source import at, here
from staticgrad.ir.types import kind_of, require_range

Array = npt.NDArray[Any]

_MOST_KNOWN = 1024  # shapes whose sizes are remembered


class OnDevice:
    """Array in a GPU's memory, of a known dtype (device_arrays.py)."""

    __slots__ = ()
    dtype: np.dtype[Any]


class Signature:
    """Inputs of an executable, in order."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self.inputs = tuple(inputs)
        self.names = tuple(leaf.name for leaf in inputs)
        self._expected = tuple((leaf.name, leaf.dtype) for leaf in inputs)
        self._known: dict[tuple[tuple[int, ...], ...], dict[str, int]] = {}
        self.notes: dict[str, str] = {}

    def arrange(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the values in the inputs' order; GraphError if they do not fit."""
        if not kwargs and len(args) == len(self.names):
            return list(args)
        if len(args) > len(self.names):
            raise GraphError(
                f"the call requires at most {len(self.names)} inputs, got {len(args)}; "
                f"they are {self._listed()}{at(here())}"
            )
        given = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.names:
                raise GraphError(
                    f"the call requires known inputs, got {name!r}, on which no "
                    f"result depends; they are {self._listed()}; compile takes others "
                    f"too if they are in inputs=[...]{at(here())}"
                )
            if name in given:
                raise GraphError(
                    f"the call requires each input once, got {name!r} by position and "
                    f"by keyword; leave one out{at(here())}"
                )
            given[name] = value
        missing = [leaf for leaf in self.inputs if leaf.name not in given]
        if missing:
            names = ", ".join(repr(leaf.name) for leaf in missing)
            raise GraphError(
                f"the call requires all inputs, got none for {names}; "
                f"pass {missing[0].type}{at(missing[0].source)}"
            )
        return [given[name] for name in self.names]

    def arrays(self, values: Sequence[Any]) -> list[Any]:
        """Return the values as C-order arrays of the inputs' dtypes.

        Those on a GPU are returned as they are.
        """
        result: list[Any] = []
        for value, (name, dtype) in zip(values, self._expected, strict=True):
            if type(value) is np.ndarray and value.dtype == dtype and _plain(value):
                result.append(value)
            else:
                result.append(self._converted(value, name, dtype))
        return result

    def on_host(self, values: Sequence[Any]) -> list[Any]:
        """Return the values; GraphError if one lies on a GPU."""
        for value, name in zip(values, self.names, strict=True):
            if hasattr(value, "__cuda_array_interface__"):
                raise GraphError(
                    f"input {name!r} requires an array on the host, got "
                    f"{type(value).__name__} on a GPU; copy it, or compile with "
                    f"target='cuda'{at(here())}"
                )
        return list(values)

    def exact(self, values: Sequence[Any]) -> list[Any]:
        """Return arrays that share the values' memory, or raise."""
        found = [_viewed(value) for value in values]
        for value, (name, dtype) in zip(found, self._expected, strict=True):
            known = isinstance(value, np.ndarray | OnDevice)
            if not known or value.dtype != dtype:
                got = value.dtype if known else f"{type(value).__name__}, no array"
                raise DTypeError(
                    f"bind requires a {dtype} array for {name!r}, got {got}; convert "
                    f"it first, or call the executable, which copies{at(here())}"
                )
            if isinstance(value, np.ndarray) and not _plain(value):
                raise GraphError(
                    f"bind requires a contiguous array for {name!r}, got strides "
                    f"{value.strides}; pass np.ascontiguousarray({name}){at(here())}"
                )
        return found

    def sizes(self, arrays: Sequence[Array]) -> dict[str, int]:
        """Return the value of each symbol; ShapeError where shapes do not fit."""
        shapes = tuple([array.shape for array in arrays])
        known = self._known.get(shapes)
        if known is None:
            known = bind_sizes(self.inputs, shapes)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[shapes] = known
        return known

    def _converted(self, value: Any, name: str, dtype: np.dtype[Any]) -> Any:
        if isinstance(value, OnDevice):
            if value.dtype != dtype:
                raise DTypeError(
                    f"input {name!r} requires {dtype}, got {value.dtype} on a GPU; "
                    f"cast it there{at(here())}"
                )
            return value
        found = _as_array(value, name, dtype)
        if found.dtype.kind in "OSU":
            raise DTypeError(
                f"input {name!r} requires numbers as {dtype}, got "
                f"{type(value).__name__} of dtype {found.dtype.name}; pass an array, a "
                f"number or lists of numbers{at(here())}"
            )
        if not np.can_cast(found.dtype, dtype, "same_kind"):
            raise DTypeError(
                f"input {name!r} requires {dtype}, got {found.dtype}; "
                f"cast it with .astype({dtype.name!r}){at(here())}"
            )
        if found.dtype == dtype and found.dtype.isnative and _plain(found):
            return found
        if isinstance(value, np.ndarray):
            why = f"from {found.dtype}" if found.dtype != dtype else "to C order"
            self.notes[name] = f"{name}: copied at each call ({why})"
        require_range(f"input {name!r}", dtype, found)
        return np.array(found, dtype, order="C", copy=True, subok=False)

    def _listed(self) -> str:
        return ", ".join(self.names) or "none"


def _plain(array: Array) -> bool:
    """Whether an array can be read without a copy."""
    return array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative


def _viewed(value: Any) -> Any:
    """Return an array that shares the memory of `value` if it exposes it; else `value`.

    By NumPy's interface, DLPack or the buffer protocol, as CPU tensors of PyTorch and
    arrays of Python do.
    """
    if isinstance(value, np.ndarray | np.generic | OnDevice | bytes):
        return value
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return _by_dlpack(value)
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        return value


def _by_dlpack(value: Any) -> Array:
    """Return the array of another library, sharing its memory."""
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise GraphError(
            f"the call requires arrays in memory that NumPy can read, got "
            f"{type(value).__name__} ({error}); copy it first{at(here())}"
        ) from None


def _as_array(value: Any, name: str, dtype: np.dtype[Any]) -> Array:
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return _by_dlpack(value)
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise ShapeError(
            f"input {name!r} requires an array, got {type(value).__name__} ({error}); "
            f"make the rows equally long{at(here())}"
        ) from None
    if (kind_of(found.dtype) in "iu" and kind_of(dtype) == "u") or found.size == 0:
        require_range(f"input {name!r}", dtype, found)
        return found.astype(dtype)
    return found


def bind_sizes(
    inputs: Sequence[Input], shapes: Sequence[tuple[int, ...]]
) -> dict[str, int]:
    """Return the value of each symbol of `inputs`, or raise ShapeError."""
    sizes: dict[str, int] = {}
    came_from: dict[str, tuple[str, int]] = {}
    for leaf, shape in zip(inputs, shapes, strict=True):
        if len(shape) != leaf.ndim:
            raise _misfit(leaf, shape, f"pass an array with {leaf.ndim} axes")
        for axis, (dim, extent) in enumerate(zip(leaf.shape, shape, strict=True)):
            name = _symbol(dim)
            if name is None:
                continue
            if sizes.setdefault(name, extent) != extent:
                raise _disagreement(
                    name, came_from[name], sizes[name], leaf, axis, extent
                )
            came_from.setdefault(name, (leaf.name, axis))
    for leaf, shape in zip(inputs, shapes, strict=True):
        _check(leaf, shape, sizes)
    return sizes


def _symbol(dim: Dim) -> str | None:
    """Return the name of a `dim` that is a single symbol; else None."""
    if isinstance(dim, Size) and dim == Size.symbol(str(dim)):
        return str(dim)
    return None


def _check(leaf: Input, shape: tuple[int, ...], sizes: Mapping[str, int]) -> None:
    for dim, extent in zip(leaf.shape, shape, strict=True):
        unknown = dim.symbols() - sizes.keys() if isinstance(dim, Size) else ()
        if unknown:
            raise ShapeError(
                f"input {leaf.name!r} requires sizes that inputs tell, got {dim} with "
                f"{', '.join(sorted(unknown))} unknown; "
                f"add an input of that size{at(leaf.source)}"
            )
        if evaluate(dim, sizes) != extent:
            raise _misfit(leaf, shape, "pass an array of that shape")


def _misfit(leaf: Input, shape: tuple[int, ...], advice: str) -> ShapeError:
    return ShapeError(
        f"input {leaf.name!r} requires {leaf.type}, got shape {shape}; "
        f"{advice}{at(leaf.source)}"
    )


def _disagreement(
    name: str, first: tuple[str, int], size: int, leaf: Input, axis: int, extent: int
) -> ShapeError:
    return ShapeError(
        f"the call requires one size {name!r}, got {size} (axis {first[1]} of "
        f"{first[0]!r}) and {extent} (axis {axis} of {leaf.name!r}); "
        f"pass arrays that agree{at(leaf.source)}"
    )
