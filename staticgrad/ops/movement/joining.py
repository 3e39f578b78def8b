"""Joining of arrays: concatenate, stack, block, append, insert, delete."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.ir.node import Tensor
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import dtype_of, frozen
from staticgrad.ops.movement.checked_index import checked, taken
from staticgrad.ops.movement.placement import joined
from staticgrad.ops.movement.reshaping import expand_dims, moveaxis, ravel
from staticgrad.ops.movement.slicing import cut
from staticgrad.ops.movement.views import broadcasted, reshaped
from staticgrad.ops.promotion import ArrayLike, as_tensor, promoted
from staticgrad.ops.rules import one_axis, shape_error


def concatenate(
    arrays: Sequence[ArrayLike],
    axis: int | None = 0,
    *,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    """Return `arrays` one after the other along `axis`; raveled first if it is None.

    They are cast to `dtype`, by default to their common one.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("n", 3))
    >>> print(sg.concatenate([x, x, [[1.0, 2.0, 3.0]]]).type)
    float32[2*n + 1, 3]
    """
    parts = _parts("concatenate", arrays, dtype)
    if axis is None:
        parts, axis = [ravel(part) for part in parts], 0
    if parts[0].ndim == 0:
        rule = "arrays of at least one axis"
        raise shape_error("concatenate", parts, rule, "use sg.stack for scalars")
    return joined(parts, one_axis("concatenate", parts[0], axis))


def stack(
    arrays: Sequence[ArrayLike],
    axis: int = 0,
    *,
    dtype: npt.DTypeLike | None = None,
) -> Tensor:
    """Return `arrays` of one shape along a new axis.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("n", 3))
    >>> print(sg.stack([x, x], axis=-1).type)
    float32[n, 3, 2]
    """
    parts = _parts("stack", arrays, dtype)
    if any(part.shape != parts[0].shape for part in parts):
        raise shape_error("stack", parts, "arrays of one shape")
    ndim = parts[0].ndim + 1
    if not -ndim <= axis < ndim:
        wanted = f"an axis from {-ndim} to {ndim - 1}, got {axis}"
        raise shape_error("stack", (), wanted)
    rows = [expand_dims(part, axis) for part in parts]
    return joined(rows, axis if axis >= 0 else axis + rows[0].ndim)


def hstack(tup: Sequence[ArrayLike], *, dtype: npt.DTypeLike | None = None) -> Tensor:
    """Return `tup` along the second axis; along the first if they have one.

    >>> import staticgrad as sg
    >>> print(sg.hstack([sg.input("x", ("n", 1)), sg.input("y", ("n", 2))]).type)
    float32[n, 3]
    """
    parts = [reshaped(t, t.shape or (1,)) for t in _parts("hstack", tup, dtype)]
    return joined(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(tup: Sequence[ArrayLike], *, dtype: npt.DTypeLike | None = None) -> Tensor:
    """Return `tup` along the first axis, vectors as rows.

    >>> import staticgrad as sg
    >>> print(sg.vstack([[1, 2], [3, 4], [5, 6]]).type)
    int64[3, 2]
    """
    parts = _parts("vstack", tup, dtype)
    rows = [reshaped(t, (1, *(t.shape or (1,)))) if t.ndim < 2 else t for t in parts]
    return joined(rows, 0)


def _parts(
    name: str, arrays: Sequence[ArrayLike], dtype: npt.DTypeLike | None = None
) -> list[Tensor]:
    """Return `arrays` as Tensors of one dtype; a Tensor is cut along its first axis."""
    if isinstance(arrays, Tensor):
        arrays = unstacked(name, arrays)
    items = list(arrays)
    if not items:
        raise shape_error(name, (), "at least one array, got none")
    parts = promoted(*items)
    return [t if dtype is None else cast(t, dtype_of(name, dtype)) for t in parts]


def unstacked(name: str, x: Tensor) -> list[Tensor]:
    """Return the elements of `x` along its first axis, which has to be static."""
    if not x.shape or not isinstance(x.shape[0], int):
        raise shape_error(name, (x,), "a first axis of static size")
    rest = x.shape[1:]
    return [reshaped(cut(x, 0, k, 1), rest) for k in range(x.shape[0])]


def dstack(tup: Sequence[ArrayLike]) -> Tensor:
    """Return `tup` joined along the third axis.

    Vectors count as (1, n, 1) and matrices as (n, m, 1).

    >>> import staticgrad as sg
    >>> print(sg.dstack([[1, 2], [3, 4]]).type)
    int64[1, 2, 2]
    """
    return joined([_of_rank(t, 3) for t in _parts("dstack", tup)], 2)


def column_stack(tup: Sequence[ArrayLike]) -> Tensor:
    """Return `tup` along the second axis, vectors as columns.

    >>> import staticgrad as sg
    >>> sg.compile(sg.column_stack([[1, 2], [3, 4]]), target="reference")().tolist()
    [[1, 3], [2, 4]]
    """
    parts = _parts("column_stack", tup)
    columns = [reshaped(t, (*(t.shape or (1,)), 1)) if t.ndim < 2 else t for t in parts]
    return joined(columns, 1)


def block(arrays: Any) -> Tensor:
    """Join nested lists of blocks to one array, the innermost along the last axis.

    >>> import staticgrad as sg
    >>> y = sg.block([[sg.eye(1), sg.zeros((1, 2))], [sg.ones((1, 3))]])
    >>> sg.compile(y, target="reference")().tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    leaves, depth = _leaves(arrays)
    tensors = promoted(*leaves)
    rank = builtins.max(depth, *(t.ndim for t in tensors))
    items: list[Tensor] = [_with_rank(t, rank) for t in tensors]
    for level in range(depth):
        items = _blocked(arrays, items, depth - level - 1, rank - level - 1)
    return items[0]


def _leaves(arrays: Any) -> tuple[list[ArrayLike], int]:
    """Return the blocks in order, and the nesting depth of the lists."""
    level, depth = [arrays], 0
    while builtins.any(isinstance(item, list) for item in level):
        if not builtins.all(isinstance(item, list) and item for item in level):
            raise shape_error("block", (), "lists that are nested equally deep")
        level = [inner for item in level for inner in item]
        depth += 1
    return level, depth


def _blocked(arrays: Any, items: list[Tensor], depth: int, axis: int) -> list[Tensor]:
    """Join the innermost lists, `depth` levels below `arrays`, along `axis`."""
    level = [arrays]
    for _ in range(depth):
        level = [inner for item in level for inner in item]
    rest = iter(items)
    return [joined([next(rest) for _ in group], axis) for group in level]


def _with_rank(x: Tensor, rank: int) -> Tensor:
    return reshaped(x, (1,) * (rank - x.ndim) + x.shape)


def _of_rank(x: Tensor, rank: int) -> Tensor:
    """Return at least `rank` axes, as NumPy's atleast_1d, 2d, 3d."""
    if x.ndim >= rank:
        return x
    if rank == 3 and x.ndim == 2:
        return reshaped(x, (*x.shape, 1))
    if rank == 3 and x.ndim == 1:
        return reshaped(x, (1, *x.shape, 1))
    return _with_rank(x, rank)


def _at_least(rank: int, arrays: Sequence[ArrayLike]) -> Tensor | tuple[Tensor, ...]:
    found = tuple(_of_rank(as_tensor(a), rank) for a in arrays)
    return found[0] if len(found) == 1 else found


def atleast_1d(*arys: ArrayLike) -> Tensor | tuple[Tensor, ...]:
    """Return scalars as arrays of one element; a tuple for several arguments.

    >>> import staticgrad as sg
    >>> sg.atleast_1d(sg.constant(2)).shape
    (1,)
    """
    return _at_least(1, arys)


def atleast_2d(*arys: ArrayLike) -> Tensor | tuple[Tensor, ...]:
    """Return vectors as rows; a tuple for several arguments.

    >>> import staticgrad as sg
    >>> sg.atleast_2d([1, 2]).shape
    (1, 2)
    """
    return _at_least(2, arys)


def atleast_3d(*arys: ArrayLike) -> Tensor | tuple[Tensor, ...]:
    """Return vectors as (1, n, 1), matrices as (n, m, 1); a tuple for several.

    >>> import staticgrad as sg
    >>> sg.atleast_3d([1, 2]).shape
    (1, 2, 1)
    """
    return _at_least(3, arys)


def append(arr: ArrayLike, values: ArrayLike, axis: int | None = None) -> Tensor:
    """Return `arr` with `values` after it along `axis`; both raveled without one.

    >>> import staticgrad as sg
    >>> sg.compile(sg.append([1, 2], 3), target="reference")().tolist()
    [1, 2, 3]
    """
    x, new = promoted(arr, values)
    if axis is None:
        return joined([ravel(x), ravel(new)], 0)
    return joined([x, new], one_axis("append", x, axis))


def insert(
    arr: ArrayLike, obj: Any, values: ArrayLike, axis: int | None = None
) -> Tensor:
    """Return `arr` with `values` before the places `obj` along `axis`.

    Without an axis `arr` is raveled first. `obj` is a slice or integers that are known
    when the graph is built; the axis has a static size.

    >>> import staticgrad as sg
    >>> sg.compile(sg.insert([1, 2, 3], [1, 3], 9), target="reference")().tolist()
    [1, 9, 2, 3, 9]
    """
    x, place, n = _line("insert", arr, obj, axis)
    marks = np.arange(n)[obj] if isinstance(obj, slice) else np.asarray(obj)
    if np.any((marks < -n) | (marks > n)):
        raise shape_error("insert", (), f"places in -{n}..{n}, got {obj}")
    marks = np.where(marks < 0, marks + n, marks)
    new = as_tensor(values, x)
    if marks.ndim == 0 and new.ndim == x.ndim:
        new = moveaxis(new, 0, place)
    flat = marks.reshape(-1).astype(np.int64)
    count = new.shape[place] if marks.ndim == 0 and new.ndim == x.ndim else flat.size
    if not isinstance(count, int):
        raise shape_error("insert", (new,), "a static number of values")
    if flat.size == 1:
        flat = np.repeat(flat, count)
    shape = (*x.shape[:place], flat.size, *x.shape[place + 1 :])
    both = joined([x, broadcasted(cast(new, x.dtype), shape)], place)
    return taken(both, checked(_woven(n, flat), n + flat.size, wrap=False), place)


def _woven(n: int, marks: np.ndarray[Any, Any]) -> Tensor:
    """Return the index into array and insertions of each element of the result."""
    order = np.argsort(marks, kind="stable")
    places = marks.copy()
    places[order] += np.arange(marks.size)
    index = np.empty(n + marks.size, np.int64)
    old = np.ones(index.size, bool)
    old[places] = False
    index[places] = n + np.arange(marks.size)
    index[old] = np.arange(n)
    return frozen(index)


def delete(arr: ArrayLike, obj: Any, axis: int | None = None) -> Tensor:
    """Return `arr` without the elements `obj` along `axis`; raveled without one.

    `obj` is a slice, integers or a mask, known when the graph is built; the axis has a
    static size.

    >>> import staticgrad as sg
    >>> sg.compile(sg.delete([1, 2, 3], 1), target="reference")().tolist()
    [1, 3]
    """
    x, place, n = _line("delete", arr, obj, axis)
    try:
        kept = np.delete(np.arange(n), obj)
    except IndexError as error:
        raise shape_error("delete", (x,), f"places in the axis ({error})") from None
    return taken(x, checked(frozen(kept), n, wrap=False), place)


def _line(
    name: str, arr: ArrayLike, obj: Any, axis: int | None
) -> tuple[Tensor, int, int]:
    """Return the array, the axis and its size, which have to be static."""
    x = as_tensor(arr)
    if axis is None:
        x, axis = ravel(x), 0
    place = one_axis(name, x, axis)
    n = x.shape[place]
    if isinstance(obj, Tensor) or not isinstance(n, int):
        rule = f"places and a size that are known when the graph is built, got {x.type}"
        raise shape_error(name, (), rule, "choose with sg.where or sg.take")
    return x, place, n


__all__ = [
    "append", "atleast_1d", "atleast_2d", "atleast_3d", "block", "column_stack",
    "concatenate", "delete", "dstack", "hstack", "insert", "stack", "vstack",
]  # fmt: skip
