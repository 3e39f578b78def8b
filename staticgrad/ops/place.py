"""Arrays put around and beside each other: pad, concatenate, stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim
from staticgrad.ops.pieces import PAD, Number, joined
from staticgrad.ops.promote import ArrayLike, as_tensor, promoted
from staticgrad.ops.rules import one_axis, shape_error
from staticgrad.ops.shape import expand_dims, ravel
from staticgrad.ops.sizes import as_dim, never_negative
from staticgrad.ops.slicing import cut
from staticgrad.ops.views import reshaped


def pad(
    array: ArrayLike,
    pad_width: Any,
    mode: str = "constant",
    constant_values: Number | Sequence[Any] = 0,
) -> Tensor:
    """`array` with `constant_values` before and after it, as np.pad.

    `pad_width` is one width, a pair (before, after), one pair per axis, or a dict from
    axis to either. Widths may be symbolic sizes. `constant_values` is one number.

    >>> import staticgrad as sg
    >>> print(sg.pad(sg.input("x", ("n", 2)), ((1, 0), (0, 2))).type)
    float32[n + 1, 4]
    """
    x = as_tensor(array)
    if mode != "constant":
        rule = f"mode 'constant', got {mode!r}"
        raise shape_error("pad", (), rule, "concatenate slices for other modes")
    pairs = _widths(x, pad_width)
    low, high = (tuple(pair[side] for pair in pairs) for side in (0, 1))
    if not all(never_negative(width) for width in low + high):
        raise shape_error("pad", (x,), "widths that are not negative for any size")
    value = _fill_value(x, constant_values)
    zeros = (0,) * x.ndim
    return apply(PAD, x, low=low, high=high, interior=zeros, value=value)


def _widths(x: Tensor, pad_width: Any) -> list[tuple[Dim, Dim]]:
    """NumPy's forms of `pad_width` as one pair per axis."""
    if isinstance(pad_width, dict):
        given = {one_axis("pad", x, axis): _pair(w) for axis, w in pad_width.items()}
        return [given.get(axis, (0, 0)) for axis in range(x.ndim)]
    if isinstance(pad_width, np.ndarray):
        pad_width = pad_width.tolist()
    if not isinstance(pad_width, Sequence):
        return [_pair(pad_width)] * x.ndim
    nested = [isinstance(item, Sequence | np.ndarray) for item in pad_width]
    if not any(nested):
        return [_pair(pad_width)] * x.ndim
    pairs = [_pair(item) for item in pad_width]
    if len(pairs) == 1:
        pairs = pairs * x.ndim
    if len(pairs) != x.ndim:
        raise shape_error("pad", (), f"a pair per axis, got {pad_width} for {x.type}")
    return pairs


def _pair(width: Any) -> tuple[Dim, Dim]:
    sides = tuple(width) if isinstance(width, Sequence | np.ndarray) else (width,)
    if len(sides) not in (1, 2):
        raise shape_error("pad", (), f"a width or a pair of widths, got {width!r}")
    return as_dim(sides[0]), as_dim(sides[-1])


def _fill_value(x: Tensor, value: Any) -> Number:
    """The number as the dtype of `x` holds it."""
    if np.ndim(value) != 0 or isinstance(value, Tensor):
        raise shape_error("pad", (), f"one number as constant_values, got {value!r}")
    number: Number = np.asarray(value).astype(x.dtype).item()
    return number


def concatenate(arrays: Sequence[ArrayLike], axis: int | None = 0) -> Tensor:
    """`arrays` one after the other along `axis`; raveled first if it is None.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("n", 3))
    >>> print(sg.concatenate([x, x, [[1.0, 2.0, 3.0]]]).type)
    float32[2*n + 1, 3]
    """
    parts = _parts("concatenate", arrays)
    if axis is None:
        parts, axis = [ravel(part) for part in parts], 0
    if parts[0].ndim == 0:
        rule = "arrays of at least one axis"
        raise shape_error("concatenate", parts, rule, "use sg.stack for scalars")
    return joined(parts, one_axis("concatenate", parts[0], axis))


def stack(arrays: Sequence[ArrayLike], axis: int = 0) -> Tensor:
    """`arrays` of one shape along a new axis.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("n", 3))
    >>> print(sg.stack([x, x], axis=-1).type)
    float32[n, 3, 2]
    """
    parts = _parts("stack", arrays)
    if any(part.shape != parts[0].shape for part in parts):
        raise shape_error("stack", parts, "arrays of one shape")
    rows = [expand_dims(part, axis) for part in parts]
    return joined(rows, axis if axis >= 0 else axis + rows[0].ndim)


def hstack(tup: Sequence[ArrayLike]) -> Tensor:
    """`tup` along the second axis; along the first if they have one.

    >>> import staticgrad as sg
    >>> print(sg.hstack([sg.input("x", ("n", 1)), sg.input("y", ("n", 2))]).type)
    float32[n, 3]
    """
    parts = [reshaped(t, t.shape or (1,)) for t in _parts("hstack", tup)]
    return joined(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(tup: Sequence[ArrayLike]) -> Tensor:
    """`tup` along the first axis, vectors as rows.

    >>> import staticgrad as sg
    >>> print(sg.vstack([[1, 2], [3, 4], [5, 6]]).type)
    int64[3, 2]
    """
    parts = _parts("vstack", tup)
    rows = [reshaped(t, (1, *(t.shape or (1,)))) if t.ndim < 2 else t for t in parts]
    return joined(rows, 0)


def _parts(name: str, arrays: Sequence[ArrayLike]) -> list[Tensor]:
    """`arrays` as Tensors of one dtype; a Tensor is cut along its first axis."""
    if isinstance(arrays, Tensor):
        arrays = unstacked(name, arrays)
    items = list(arrays)
    if not items:
        raise shape_error(name, (), "at least one array, got none")
    return list(promoted(*items))


def unstacked(name: str, x: Tensor) -> list[Tensor]:
    """The elements of `x` along its first axis, which has to be static."""
    if not x.shape or not isinstance(x.shape[0], int):
        raise shape_error(name, (x,), "a first axis of static size")
    rest = x.shape[1:]
    return [reshaped(cut(x, 0, k, 1), rest) for k in range(x.shape[0])]
