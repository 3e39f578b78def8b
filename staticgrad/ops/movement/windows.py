"""Slices of static size at dynamic starts: x[i : i + n], dynamic_slice.

The start has to lie in ``0..size of the axis - n``: anything else is an IndexOutOfRange
when the graph runs. Unlike a Python slice, a negative start does not count from the
end, and nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from staticgrad.ir.node import Constant, Tensor
from staticgrad.ir.op import Extent
from staticgrad.ir.size import Dim, Size
from staticgrad.ir.types import INT64, kind_of
from staticgrad.ops.casting import cast
from staticgrad.ops.movement.checked_index import checked, taken
from staticgrad.ops.movement.scatter import scattered
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted
from staticgrad.ops.rules import dtype_error, shape_error
from staticgrad.ops.sizes import as_dim


def is_dynamic(key: slice) -> bool:
    """Whether a bound of the slice is a Tensor."""
    return any(isinstance(bound, Tensor) for bound in (key.start, key.stop, key.step))


def window_of(key: slice, n: Dim, x: Tensor) -> tuple[Tensor, Dim]:
    """Return the checked start and the size of ``x[i : i + size]`` on an axis."""
    start, stop = key.start, key.stop
    size: Any = None
    if isinstance(start, Tensor) and isinstance(stop, Tensor) and key.step in (None, 1):
        size = _polynomial(stop) - _polynomial(start)
    if size is None or any(name.startswith("$") for name in _names(size)):
        raise shape_error(
            "a slice",
            (),
            "bounds whose difference is known when the graph is built, as in "
            f"x[i : i + 3], got Tensors for {x.type}",
            "use sg.dynamic_slice, or gather with sg.take(x, indices, axis)",
        )
    return checked_start(start, n, size, x), size


def _names(size: Dim) -> frozenset[str]:
    return size.symbols() if isinstance(size, Size) else frozenset()


def _polynomial(bound: Tensor) -> Dim:
    """Return a scalar as a polynomial; what is no arithmetic of sizes is a symbol."""
    values: dict[Tensor, Dim] = {}
    stack = [bound]
    while stack:
        tensor = stack[-1]
        parts = tensor.inputs if tensor.op.name in ARITHMETIC else ()
        missing = [part for part in parts if part not in values]
        if missing and tensor not in values:
            stack.extend(missing)
            continue
        values.setdefault(tensor, _value(tensor, [values[part] for part in parts]))
        stack.pop()
    return values[bound]


ARITHMETIC = ("add", "subtract", "multiply", "negative", "cast")


def _value(tensor: Tensor, parts: list[Dim]) -> Dim:
    if tensor.ndim == 0 and kind_of(tensor.dtype) in "iu":
        if isinstance(tensor, Constant):
            return int(tensor.value)
        if isinstance(tensor.op.code, Extent):
            size: Dim = tensor.node.attrs["size"]
            return size
        match tensor.op.name:
            case "add":
                return parts[0] + parts[1]
            case "subtract":
                return parts[0] - parts[1]
            case "multiply":
                return parts[0] * parts[1]
            case "negative":
                return -parts[0]
            case "cast" if kind_of(tensor.inputs[0].dtype) in "iu":
                return parts[0]
    return Size.symbol(f"${tensor.node.number}.{tensor.index}")


def checked_start(start: ArrayLike, n: Dim, size: Dim, x: Tensor) -> Tensor:
    """Return `start` as a scalar index, checked so that `size` elements follow."""
    index = as_tensor(start)
    if index.ndim != 0 or kind_of(index.dtype) not in "iu":
        raise dtype_error("a slice", (index,), "a start that is an integer scalar")
    left = n - size
    if any(isinstance(d, int) and d < 0 for d in (left, size)):
        rule = f"a size from 0 to {n}, got {size} for {x.type}"
        raise shape_error("a slice", (), rule)
    return checked(cast(index, INT64), left + 1, False, "a slice")


def dynamic_slice(
    x: ArrayLike, starts: Sequence[ArrayLike], sizes: Sequence[int | Size]
) -> Tensor:
    """Return the block of `sizes` that begins at `starts`, one integer scalar per axis.

    A block that does not lie within `x` is an IndexOutOfRange when the graph runs.

    >>> import staticgrad as sg
    >>> x, i = sg.input("x", (5, 4)), sg.input("i", (), "int64")
    >>> print(sg.dynamic_slice(x, (i, 0), (2, 4)).type)
    float32[2, 4]
    """
    result = as_tensor(x)
    pairs = _pairs("dynamic_slice", result, starts, sizes)
    for axis, (start, size) in enumerate(pairs):
        n = result.shape[axis]
        if not (n == size and _is_zero(start)):
            index = checked_start(start, n, size, result)
            result = taken(result, index, axis, window=size)
    return result


def dynamic_update_slice(
    x: ArrayLike, update: ArrayLike, starts: Sequence[ArrayLike]
) -> Tensor:
    """Return `x` with the block that begins at `starts` replaced by `update`.

    `update` has as many axes as `x`; a block that does not lie within `x` is an
    IndexOutOfRange when the graph runs.

    >>> import staticgrad as sg
    >>> x, i = sg.input("x", (5, 4)), sg.input("i", (), "int64")
    >>> print(sg.dynamic_update_slice(x, x[:2] * 2, (i, 0)).type)
    float32[5, 4]
    """
    base, part = promoted(x, update)
    if base.ndim != part.ndim:
        rule = "an update with as many axes as the array"
        raise shape_error("dynamic_update_slice", (base, part), rule)
    pairs = _pairs("dynamic_update_slice", base, starts, part.shape)
    moving = [
        (axis, checked_start(start, n, size, base), size)
        for axis, ((start, size), n) in enumerate(zip(pairs, base.shape, strict=True))
        if not (n == size and _is_zero(start))
    ]
    return written(base, moving, part)


def written(
    base: Tensor, windows: Sequence[tuple[int, Tensor, Dim]], part: Tensor
) -> Tensor:
    """Return `base` with `part` in the block of the `windows`: (axis, start, size).

    All but the innermost window are taken first, written into, and put back.
    """
    blocks = [base]
    for axis, start, size in windows[:-1]:
        blocks.append(taken(blocks[-1], start, axis, window=size))
    result = part
    for block, (axis, start, size) in zip(
        reversed(blocks), reversed(windows), strict=False
    ):
        result = scattered(block, start, result, axis, "set", window=size)
    return result


def _pairs(
    name: str, x: Tensor, starts: Sequence[ArrayLike], sizes: Sequence[int | Size]
) -> list[tuple[ArrayLike, Dim]]:
    if isinstance(starts, Tensor):
        starts = [starts[k] for k in range(x.ndim)] if starts.ndim == 1 else [starts]
    if len(starts) != x.ndim or len(sizes) != x.ndim:
        rule = f"a start and a size per axis, got {len(starts)} and {len(sizes)}"
        raise shape_error(name, (), f"{rule} for {x.type}")
    return [(s, as_dim(n)) for s, n in zip(starts, sizes, strict=True)]


def _is_zero(start: ArrayLike) -> bool:
    return not isinstance(start, Tensor | Size) and bool(start == 0)


__all__ = ["dynamic_slice", "dynamic_update_slice"]
