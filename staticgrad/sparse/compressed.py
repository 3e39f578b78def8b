"""Sparse Jacobians and Hessians: few products instead of one per column.

The pattern is found from the graph (dependence.py), the columns are coloured
(colouring.py), and all products, one per colour, are computed in one pass by vmap. A
gather then takes each element of the pattern from where it is alone.

Source: Gebremedhin, Manne and Pothen, "What color is your Jacobian?" (2005).
Weakness: sizes have to be static; the pattern is found when the graph is built.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.differentiate.gradients import (
    check_arguments,
    grad,
    gradients,
    reached,
    tangents_of,
    with_unused,
)
from staticgrad.differentiate.jacobians import check_scalar
from staticgrad.differentiate.reverse import zeros
from staticgrad.errors import CompilerBug, GraphError
from staticgrad.ir.node import Tensor, static_shape
from staticgrad.ir.source import at, here
from staticgrad.ops.casting import cast
from staticgrad.ops.leaves import frozen
from staticgrad.ops.movement.checked_index import checked, position, taken
from staticgrad.ops.movement.views import broadcasted, reshaped
from staticgrad.ops.named import named
from staticgrad.sparse.colouring import Colours, column_colours, star_colours
from staticgrad.sparse.dependence import dependence
from staticgrad.sparse.patterns import Indices, Pattern
from staticgrad.trees import flatten
from staticgrad.vectorize.mapping import vmap

Mode: TypeAlias = Literal["reverse", "forward"] | None


class SparseMatrix(NamedTuple):
    """Matrix whose pattern is known when the graph is built.

    `data` is a tensor of the elements that may not be zero, `indices` their rows and
    columns, in the order of the rows; `shape` is that of the whole. Compiled, it is a
    SparseMatrix with the value of `data`, on which ``to_scipy()`` is called; or compile
    `data` and hand its value to ``to_scipy``.
    """

    data: Tensor
    indices: tuple[Indices, Indices]
    shape: tuple[int, int]

    def to_scipy(self, values: npt.ArrayLike | None = None) -> Any:
        """Return `values`, a value of `data`, as a scipy.sparse.csr_matrix.

        What a call gave has them itself. Raises GraphError without values, ImportError
        where SciPy is not installed.

        >>> import staticgrad as sg
        >>> x = sg.parameter([1.0, 2.0], name="x")
        >>> f = sg.compile(sg.sparse_jacobian(x * x, x), target="reference")
        >>> f().to_scipy().toarray().tolist()
        [[2.0, 0.0], [0.0, 4.0]]
        """
        found = self.data if values is None else values
        if isinstance(found, Tensor):
            raise GraphError(
                f"to_scipy requires values, got {found!r}; compile the matrix and take "
                f"what a call gives{at(here())}"
            )
        sparse = importlib.import_module("scipy.sparse")  # optional, and slow to load
        return sparse.csr_matrix((np.asarray(found), self.indices), self.shape)


def sparse_jacobian(
    y: Tensor, x: Tensor, mode: Mode = None, simplify: bool = True
) -> SparseMatrix:
    """Return the Jacobian of `y` by `x` as a sparse matrix (y.size, x.size).

    Elements of y and x are counted in C order. ``mode="forward"`` takes one product per
    colour of the columns, ``"reverse"`` one per colour of the rows; None takes the
    fewer.

    Raises ShapeError for symbolic sizes, and as jacobian does.

    >>> import staticgrad as sg
    >>> x = sg.parameter([1.0, 2.0, 4.0], name="x")
    >>> matrix = sg.sparse_jacobian(x[1:] * x[:-1], x)
    >>> sg.compile(matrix.data, target="reference")().tolist()
    [2.0, 1.0, 4.0, 2.0]
    >>> matrix.indices[1].tolist()
    [0, 1, 1, 2]
    """
    check_arguments("sparse_jacobian", [y], [x], "error")
    used = reached([y], [x])
    with_unused("sparse_jacobian", [y], [x], flatten(x)[1], used, "error")
    if mode not in ("reverse", "forward", None):
        rule = f"mode to be 'reverse', 'forward' or None, got {mode!r}"
        raise GraphError(f"sparse_jacobian requires {rule}{at(here())}")
    pattern = dependence(y, x)
    rows, columns = pattern.row_indices, pattern.indices
    by_column = None if mode == "reverse" else column_colours(pattern)
    by_row = None if mode == "forward" else column_colours(pattern.transposed())
    if by_row is None or (
        by_column is not None and _count(by_column) <= _count(by_row)
    ):
        assert by_column is not None
        products = _products(
            lambda v: tangents_of([y], [x], [v], simplify)[0], x, by_column
        )
        where = by_column[columns], rows
    else:
        products = _products(lambda g: gradients([y], [x], [g], simplify)[x], y, by_row)
        where = by_row[rows], columns
    return _matrix(products, where, pattern)


def sparse_hessian(y: Tensor, x: Tensor, simplify: bool = True) -> SparseMatrix:
    """Return the Hessian of the scalar `y` as a sparse matrix (x.size, x.size).

    One product of the Hessian with a vector per colour of a star colouring, all at
    once; elements of x are counted in C order.

    Raises ShapeError for symbolic sizes, and as hessian does.

    >>> import staticgrad as sg
    >>> x = sg.parameter([1.0, 2.0, 4.0], name="x")
    >>> matrix = sg.sparse_hessian(sg.sum((x[1:] * x[:-1]) ** 2), x)
    >>> matrix.to_scipy(sg.compile(matrix.data, target="reference")()).toarray()
    array([[ 8.,  8.,  0.],
           [ 8., 34., 32.],
           [ 0., 32.,  8.]], dtype=float32)
    """
    check_scalar("sparse_hessian", y, x, "error")
    slopes = grad(y, x, simplify=simplify)
    pattern = _symmetric(dependence(slopes, x))
    colours = min(star_colours(pattern), column_colours(pattern), key=_count)
    if not reached([slopes], [x]):
        product = zeros(x)
        products = broadcasted(product, (_count(colours), *x.shape))
    else:
        products = _products(
            lambda v: tangents_of([slopes], [x], [v], simplify)[0], x, colours
        )
    return _matrix(products, _alone(pattern, colours), pattern)


def _symmetric(pattern: Pattern) -> Pattern:
    rows, columns = pattern.row_indices, pattern.indices
    both = np.concatenate([rows, columns]), np.concatenate([columns, rows])
    return Pattern.of(*both, pattern.shape)


def _count(colours: Colours) -> int:
    return int(colours.max(initial=-1)) + 1


def _products(
    product: Callable[[Tensor], Tensor], like: Tensor, colours: Colours
) -> Tensor:
    """Return `product` for each colour's sum of unit tensors, along a first axis."""
    count = _count(colours)
    own = position((count, colours.size), 0)
    chosen = cast(named("equal", own, frozen(colours)), like.dtype)
    found: Tensor = vmap(product)(reshaped(chosen, (count, *like.shape)))
    return found


def _alone(pattern: Pattern, colours: Colours) -> tuple[Indices, Indices]:
    """Return, for each element, a colour and a place in which no other element is."""
    rows, columns = pattern.row_indices, pattern.indices
    count = max(_count(colours), 1)
    keys = rows * count + colours[columns]
    _, inverse, times = np.unique(keys, return_inverse=True, return_counts=True)
    alone = times[inverse] == 1
    mirrored = columns * count + colours[rows]
    alone_there = np.isin(mirrored, keys[alone])
    if not (alone | alone_there).all():
        raise CompilerBug("a star colouring requires every element alone somewhere")
    return (
        np.where(alone, colours[columns], colours[rows]),
        np.where(alone, rows, columns),
    )


def _matrix(
    products: Tensor, where: tuple[Indices, Indices], pattern: Pattern
) -> SparseMatrix:
    sizes = static_shape(products.shape)
    assert sizes is not None
    size, width = math.prod(sizes), math.prod(sizes[1:])
    flat = reshaped(products, (size,))
    index = checked(frozen(where[0] * width + where[1]), size, wrap=False)
    indices = pattern.row_indices, pattern.indices
    return SparseMatrix(taken(flat, index, 0), indices, pattern.shape)
