"""Whole derivatives: jacobian, hessian, and the product of a Hessian with a vector.

A Jacobian is all its columns at once, by vmap of jvp over the unit tangents, or all its
rows, by vmap of vjp over the unit cotangents: whichever are fewer. The forward part is
computed once. A Hessian is the forward Jacobian of the gradient.

Source: Griewank and Walther, Evaluating Derivatives (2008), chapters 3 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from staticgrad.differentiate.gradients import (
    MISSING,
    Unused,
    basis,
    check_arguments,
    grad,
    gradients,
    jvp,
    reached,
    tangents_of,
    with_unused,
)
from staticgrad.differentiate.reverse import zeros
from staticgrad.errors import GraphError, ShapeError
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Dim, product
from staticgrad.ir.source import at, here
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.views import broadcasted, reshaped
from staticgrad.ops.sizes import never_negative
from staticgrad.trees import flatten, unflatten
from staticgrad.vectorize.mapping import vmap

Mode: TypeAlias = Literal["reverse", "forward"] | None


def jacobian(
    y: Any,
    x: Any = MISSING,
    mode: Mode = None,
    unused: Unused = "error",
    simplify: bool = True,
) -> Any:
    """Return the derivative of every element of `y` by every element of `x`.

    For tensors it has the shape ``(*y.shape, *x.shape)``: that of x for a scalar y. For
    trees it has the structure of `y`, each leaf replaced by the structure of `x`.
    ``mode="reverse"`` takes one pass per element of y, ``"forward"`` one per element of
    x, all of them at once; None takes the fewer, and reverse where that is not known.
    A tensor of `x` that no y depends on is a GraphError, or zeros with
    ``unused="zero"``.

    Raises DTypeError for integers and bools.

    >>> import staticgrad as sg
    >>> x = sg.parameter([1.0, 2.0], name="x")
    >>> sg.compile(sg.jacobian(x * x, x), target="reference")().tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    ys, structure = flatten(y)
    xs, treedef = flatten(x)
    check_arguments("jacobian", ys, xs, unused)
    with_unused("jacobian", ys, xs, treedef, reached(ys, xs), unused)
    if mode not in ("reverse", "forward", None):
        rule = f"mode to be 'reverse', 'forward' or None, got {mode!r}"
        raise GraphError(f"jacobian requires {rule}{at(here())}")
    if mode is None:
        mode = "forward" if _fewer(xs, ys) else "reverse"
    found = (_columns if mode == "forward" else _rows)(ys, xs, simplify)
    return unflatten(structure, [unflatten(treedef, row) for row in found])


def hessian(
    y: Tensor, x: Any = MISSING, unused: Unused = "error", simplify: bool = True
) -> Any:
    """Return the second derivatives of the scalar `y`: ``(*x.shape, *x.shape)``.

    For a tree it has the structure of `x`, each leaf replaced by the structure of `x`:
    ``hessian(y, {"a": a, "b": b})["a"]["b"]`` has the shape ``(*a.shape, *b.shape)``.

    Raises ShapeError for a y that is no scalar, and as jacobian does.

    >>> import staticgrad as sg
    >>> x = sg.parameter([1.0, 2.0], name="x")
    >>> sg.compile(sg.hessian(x[0] * x[1] ** 2, x), target="reference")().tolist()
    [[0.0, 4.0], [4.0, 2.0]]
    """
    check_scalar("hessian", y, x, unused)
    slopes = grad(y, x, unused=unused, simplify=simplify)
    return jacobian(slopes, x, "forward", "zero", simplify)


def hvp(
    y: Tensor,
    x: Any = MISSING,
    v: Any = MISSING,
    unused: Unused = "error",
    simplify: bool = True,
) -> Any:
    """Return the Hessian of the scalar `y` times `v`, by forward over reverse.

    `v` has the structure and the types of `x`, and so has the result.

    Raises as hessian does, and where the types of v differ.

    >>> import staticgrad as sg
    >>> x = sg.parameter([1.0, 2.0], name="x")
    >>> f = sg.compile(sg.hvp(x[0] * x[1] ** 2, x, [1.0, 0.0]), target="reference")
    >>> f().tolist()
    [0.0, 4.0]
    """
    check_scalar("hvp", y, x, unused)
    slopes = grad(y, x, unused=unused, simplify=simplify)
    return jvp(slopes, x, v, "zero", simplify)


def check_scalar(name: str, y: Any, x: Any, unused: Unused) -> None:
    """Raise for a y without a Hessian, in the name of the function `name`."""
    xs, treedef = flatten(x)
    check_arguments(name, [y], xs, unused)
    if y.shape != ():
        raise ShapeError(
            f"{name} requires a scalar y, got {y.type}; take its sum or mean, or the "
            f"jacobian of its gradient{at(here())}"
        )
    with_unused(name, [y], xs, treedef, reached([y], xs), unused)


def _fewer(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> bool:
    """Whether `xs` have fewer elements than `ys` for all sizes."""
    return never_negative(_elements(ys) - _elements(xs) - 1)


def _elements(tensors: Sequence[Tensor]) -> Dim:
    count: Dim = 0
    for tensor in tensors:
        count = count + product(tensor.shape)
    return count


def _rows(
    ys: Sequence[Tensor], xs: Sequence[Tensor], simplify: bool
) -> list[list[Tensor]]:
    """Compute each y's derivative by each x in reverse mode."""
    return [_rows_of(y, xs, simplify) for y in ys]


def _rows_of(y: Tensor, xs: Sequence[Tensor], simplify: bool) -> list[Tensor]:
    if y.shape == ():
        one = frozen(y.dtype.type(1))
        found = gradients([y], xs, [one], simplify)
        return [found[x] if x in found else zeros(x) for x in xs]
    used = list(reached([y], xs))
    if not used:
        return [_nothing(y, x) for x in xs]

    def row(g: Tensor) -> list[Tensor]:
        found = gradients([y], used, [g], simplify)
        return [found[x] for x in used]

    rows = dict(zip(used, vmap(row)(basis(y)), strict=True))
    return [
        reshaped(rows[x], y.shape + x.shape) if x in rows else _nothing(y, x)
        for x in xs
    ]


def _columns(
    ys: Sequence[Tensor], xs: Sequence[Tensor], simplify: bool
) -> list[list[Tensor]]:
    """Compute each y's derivative by each x in forward mode."""
    columns = [_columns_of(ys, x, simplify) for x in xs]
    return [list(row) for row in zip(*columns, strict=True)]


def _columns_of(ys: Sequence[Tensor], x: Tensor, simplify: bool) -> list[Tensor]:
    def column(v: Tensor) -> list[Tensor]:
        return tangents_of(ys, [x], [v], simplify)

    found = vmap(column, out_axes=-1)(basis(x))
    return [reshaped(t, y.shape + x.shape) for y, t in zip(ys, found, strict=True)]


def _nothing(y: Tensor, x: Tensor) -> Tensor:
    return broadcasted(frozen(x.dtype.type(0)), y.shape + x.shape)
