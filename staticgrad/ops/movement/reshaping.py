"""Reshapes and transpositions: functions that change the shape alone."""

from __future__ import annotations

from collections.abc import Sequence

from staticgrad.errors import ShapeError
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Shape, exact_divide, product, reduced
from staticgrad.ir.types import axis_tuple, broadcast_shapes, normalize_axes
from staticgrad.ops.movement.views import broadcasted, reshaped, transposed
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.rules import one_axis, shape_error, some_axes
from staticgrad.ops.sizes import ShapeLike, as_shape, shape_text


def reshape(
    a: ArrayLike, shape: ShapeLike, order: str = "C", *, copy: bool | None = None
) -> Tensor:
    """Return the elements of `a` in C order, in another shape; `copy` changes nothing.

    One size may be -1: it follows from the others. Where it depends on symbolic sizes
    whether they divide the number of elements, each call looks at its sizes.

    Raises ShapeError where the numbers of elements differ, or may differ for sizes that
    divide evenly; when called, where they do not divide evenly.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("batch", 4, 3))
    >>> print(sg.reshape(x, (-1, 12)).type, sg.reshape(x, (-1, 8)).type)
    float32[batch, 12] float32[3*batch//2, 8]
    """
    if order != "C":
        raise shape_error("reshape", (), f"order 'C', got {order!r}", "transpose first")
    x = as_tensor(a)
    return reshaped(x, _resolved(x, as_shape(shape)))


def _resolved(x: Tensor, shape: Shape) -> Shape:
    """Return `shape` with its -1 replaced by the size that makes the elements equal."""
    if shape.count(-1) > 1:
        raise shape_error("reshape", (), f"at most one -1, got {shape_text(shape)}")
    if -1 not in shape:
        return shape
    known = product(tuple(dim for dim in shape if dim != -1))
    elements, divisor = reduced(product(x.shape), known)
    never = known == 0 or (isinstance(elements, int) and isinstance(divisor, int))
    size = exact_divide(elements, divisor) if never else elements // divisor
    if size is None:
        rule = f"elements that are a multiple of {known}"
        rule += f", got {x.type} and {shape_text(shape)}"
        raise shape_error("reshape", (), rule, "give all sizes")
    return tuple(size if dim == -1 else dim for dim in shape)


def ravel(a: ArrayLike, order: str = "C") -> Tensor:
    """Return `a` as one axis, in C order.

    >>> import staticgrad as sg
    >>> print(sg.ravel(sg.input("x", (2, "n"))).type)
    float32[2*n]
    """
    return reshape(a, (-1,) if 0 not in as_tensor(a).shape else (0,), order)


def transpose(a: ArrayLike, axes: Sequence[int] | None = None) -> Tensor:
    """Return `a` with its axes in the order `axes`, reversed by default.

    >>> import staticgrad as sg
    >>> print(sg.transpose(sg.input("x", (2, 3, 4)), (0, 2, 1)).type)
    float32[2, 4, 3]
    """
    x = as_tensor(a)
    if axes is None:
        return transposed(x, tuple(reversed(range(x.ndim))))
    order = tuple(one_axis("transpose", x, axis) for axis in axes)
    return transposed(x, order)


def swapaxes(a: ArrayLike, axis1: int, axis2: int) -> Tensor:
    """Return `a` with two axes exchanged.

    >>> import staticgrad as sg
    >>> print(sg.swapaxes(sg.input("x", (2, 3, 4)), 0, -1).type)
    float32[4, 3, 2]
    """
    x = as_tensor(a)
    order = list(range(x.ndim))
    first = one_axis("swapaxes", x, axis1)
    second = one_axis("swapaxes", x, axis2)
    order[first], order[second] = second, first
    return transposed(x, tuple(order))


def matrix_transpose(x: ArrayLike) -> Tensor:
    """Return `x` with its last two axes exchanged.

    >>> import staticgrad as sg
    >>> print(sg.matrix_transpose(sg.input("x", (2, 3, 4))).type)
    float32[2, 4, 3]
    """
    return swapaxes(x, -1, -2)


def moveaxis(
    a: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]
) -> Tensor:
    """Return `a` with the axes `source` at `destination`, the others in order.

    >>> import staticgrad as sg
    >>> print(sg.moveaxis(sg.input("x", (2, 3, 4)), 0, -1).type)
    float32[3, 4, 2]
    """
    x = as_tensor(a)
    taken = [one_axis("moveaxis", x, axis) for axis in axis_list("moveaxis", source)]
    places = [
        one_axis("moveaxis", x, axis) for axis in axis_list("moveaxis", destination)
    ]
    unique = len(set(taken)) == len(taken) and len(set(places)) == len(places)
    if len(taken) != len(places) or not unique:
        rule = "as many distinct sources as destinations"
        raise shape_error("moveaxis", (), f"{rule}, got {source} and {destination}")
    order = [axis for axis in range(x.ndim) if axis not in taken]
    for place, axis in sorted(zip(places, taken, strict=True)):
        order.insert(place, axis)
    return transposed(x, tuple(order))


def rollaxis(a: ArrayLike, axis: int, start: int = 0) -> Tensor:
    """Return `a` with `axis` moved to stand before the axis that is at `start`.

    >>> import staticgrad as sg
    >>> print(sg.rollaxis(sg.input("x", (2, 3, 4)), 2).type)
    float32[4, 2, 3]
    """
    x = as_tensor(a)
    place = one_axis("rollaxis", x, axis)
    target = start + x.ndim if start < 0 else start
    if not 0 <= target <= x.ndim:
        rule = f"a start in -{x.ndim}..{x.ndim}, got {start}"
        raise shape_error("rollaxis", (), rule)
    return moveaxis(x, place, target - 1 if place < target else target)


def expand_dims(a: ArrayLike, axis: int | Sequence[int]) -> Tensor:
    """Return `a` with axes of size 1 at the places `axis` of the result.

    >>> import staticgrad as sg
    >>> print(sg.expand_dims(sg.input("x", ("n", 3)), (0, -1)).type)
    float32[1, n, 3, 1]
    """
    x = as_tensor(a)
    places = axis_list("expand_dims", axis)
    rank = x.ndim + len(places)
    try:
        new = normalize_axes(places, rank)
    except ShapeError as error:
        raise shape_error("expand_dims", (x,), *error.args) from None
    sizes = iter(x.shape)
    return reshaped(x, tuple(1 if k in new else next(sizes) for k in range(rank)))


def squeeze(a: ArrayLike, axis: int | Sequence[int] | None = None) -> Tensor:
    """Return `a` without axes of size 1: all of them, or those in `axis`.

    >>> import staticgrad as sg
    >>> print(sg.squeeze(sg.input("x", (1, "n", 1)), -1).type)
    float32[1, n]
    """
    x = as_tensor(a)
    if axis is None:
        return reshaped(x, tuple(dim for dim in x.shape if dim != 1))
    axes = some_axes("squeeze", x, axis)
    if any(x.shape[k] != 1 for k in axes):
        raise shape_error("squeeze", (), f"axes of size 1, got axis {axis} of {x.type}")
    return reshaped(x, tuple(n for k, n in enumerate(x.shape) if k not in axes))


def broadcast_to(array: ArrayLike, shape: ShapeLike) -> Tensor:
    """Return `array` repeated, without a copy, to `shape` by NumPy's rule.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("n", 1))
    >>> print(sg.broadcast_to(x, (2, x.shape[0], 3)).type)
    float32[2, n, 3]
    """
    return broadcasted(as_tensor(array), as_shape(shape))


def broadcast_arrays(*args: ArrayLike) -> tuple[Tensor, ...]:
    """Return every argument, broadcast to the shape that they have together.

    >>> import staticgrad as sg
    >>> a, b = sg.broadcast_arrays(sg.input("x", (2, 1)), [1, 2, 3])
    >>> a.shape, b.shape
    ((2, 3), (2, 3))
    """
    tensors = [as_tensor(arg) for arg in args]
    try:
        shape = broadcast_shapes([t.shape for t in tensors])
    except ShapeError:
        rule = "shapes that broadcast"
        raise shape_error("broadcast_arrays", tensors, rule) from None
    return tuple(broadcasted(t, shape) for t in tensors)


def axis_list(name: str, axis: int | Sequence[int]) -> tuple[int, ...]:
    """Return one axis or several, as a tuple, or a located ShapeError."""
    try:
        return axis_tuple(axis)
    except ShapeError as error:
        raise shape_error(name, (), *error.args) from None


__all__ = [
    "broadcast_arrays", "broadcast_to", "expand_dims", "matrix_transpose", "moveaxis",
    "ravel", "reshape", "rollaxis", "squeeze", "swapaxes", "transpose",
]  # fmt: skip
