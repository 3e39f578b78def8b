"""Products over chosen axes: einsum, tensordot, inner, vdot, vecdot, kron.

einsum takes two operands at a time, in the order that opt_einsum finds. Axes are named
by *labels*; a pair of operands is

* transposed and reshaped to one matrix product, where both have axes of their own,
* multiplied and summed in one loop otherwise, and for integers and bools.

Labels that only one operand has, and nothing after it needs, are summed first; a label
that stands twice in one operand is its diagonal.

Source: D. G. A. Smith and J. Gray, opt_einsum (2018), doi:10.21105/joss.00753.
Weakness: the order is chosen with 64 for each symbolic size.
"""

from __future__ import annotations

import string
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.lazy_module import Later
from staticgrad.ir.node import Tensor
from staticgrad.ir.size import TYPICAL_SIZE, Dim, Shape, Size, product
from staticgrad.ir.types import is_float, kind_of
from staticgrad.ops.linear.matrix_products import MATMUL
from staticgrad.ops.movement.diagonals import DIAGONAL
from staticgrad.ops.movement.reshaping import axis_list, moveaxis, ravel
from staticgrad.ops.movement.views import broadcasted, reshaped, transposed
from staticgrad.ops.named import named
from staticgrad.ops.promotion import ArrayLike, promoted
from staticgrad.ops.rules import one_axis, shape_error

opt_einsum = Later("opt_einsum")

Labels: TypeAlias = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """Operand with axes labelled by distinct names."""

    x: Tensor
    labels: Labels

    def size(self, label: Hashable) -> Dim:
        """Return the size of the axis called `label`."""
        return self.x.shape[self.labels.index(label)]


def summed(term: Term, kept: set[Hashable]) -> Term:
    """Return the sum over all axes but those of `kept`."""
    axes = tuple(k for k, label in enumerate(term.labels) if label not in kept)
    if not axes:
        return term
    op = "reduce_any" if kind_of(term.x.dtype) == "b" else "reduce_sum"
    labels = tuple(label for label in term.labels if label in kept)
    return Term(named(op, term.x, axes=axes), labels)


def ordered(term: Term, labels: Labels) -> Tensor:
    """Return the operand with its axes in the order of `labels`."""
    return transposed(term.x, tuple(term.labels.index(label) for label in labels))


def contracted(a: Term, b: Term, kept: set[Hashable], first: Labels = ()) -> Term:
    """Return the product of two operands, summed over the labels that are not `kept`.

    `first` is the order of labels that the result should have, if it costs nothing.
    """
    both = set(a.labels) & set(b.labels)
    a, b = summed(a, kept | both), summed(b, kept | both)
    batch = tuple(label for label in a.labels if label in both and label in kept)
    inner = tuple(label for label in a.labels if label in both and label not in kept)
    rows = tuple(label for label in a.labels if label not in both)
    columns = tuple(label for label in b.labels if label not in both)
    if not (inner and rows and columns and is_float(a.x.dtype)):
        return _in_one_loop(a, b, (*batch, *rows, *columns), inner)
    if _comes_first(columns, rows, first):
        a, b, rows, columns = b, a, columns, rows
    return _as_matrices(a, b, batch, rows, inner, columns)


def _comes_first(labels: Labels, others: Labels, order: Labels) -> bool:
    places = {label: place for place, label in enumerate(order)}
    known = [min(places.get(k, 0) for k in group) for group in (labels, others)]
    return known[0] < known[1]


def _in_one_loop(a: Term, b: Term, result: Labels, inner: Labels) -> Term:
    """Multiply and sum elementwise, in one fused loop.

    Where one operand has all axes they stay in its order, which is that of memory: a
    matrix times a vector is summed over rows row by row, not column by column.
    """
    widest = max(a.labels, b.labels, key=len)
    every = (*result, *inner)
    labels = widest if set(every) == set(widest) else every
    op = "logical_and" if kind_of(a.x.dtype) == "b" else "multiply"
    value = named(op, _spread(a, labels), _spread(b, labels))
    return summed(Term(value, labels), set(result))


def _spread(term: Term, labels: Labels) -> Tensor:
    """Return the operand with an axis of size 1 for each label that it lacks."""
    own = tuple(label for label in labels if label in term.labels)
    shape = tuple(term.size(k) if k in term.labels else 1 for k in labels)
    return reshaped(ordered(term, own), shape)


def _as_matrices(
    a: Term, b: Term, batch: Labels, rows: Labels, inner: Labels, columns: Labels
) -> Term:
    def sizes(term: Term, labels: Labels) -> Shape:
        return tuple(term.size(label) for label in labels)

    group, depth = sizes(a, batch), product(sizes(a, inner))
    left = reshaped(
        ordered(a, (*batch, *rows, *inner)), (*group, product(sizes(a, rows)), depth)
    )
    right = reshaped(
        ordered(b, (*batch, *inner, *columns)),
        (*group, depth, product(sizes(b, columns))),
    )
    shape = (*group, *sizes(a, rows), *sizes(b, columns))
    return Term(reshaped(apply(MATMUL, left, right), shape), (*batch, *rows, *columns))


def einsum(subscripts: str, *operands: ArrayLike, optimize: Any = True) -> Tensor:
    """Return the sum of products that `subscripts` describe, as np.einsum.

    Each operand's axes are letters; "..." stands for axes that broadcast; after "->"
    are the letters of the result, by default those that stand once, in alphabetical
    order. The order of products is always the best one; `optimize` changes nothing.

    Raises ShapeError for subscripts that do not fit.

    >>> import staticgrad as sg
    >>> q, k = sg.input("q", ("b", 5, 4, 8)), sg.input("k", ("b", 7, 4, 8))
    >>> print(sg.einsum("bqhd,bkhd->bhqk", q, k).type)
    float32[b, 4, 5, 7]
    """
    if not isinstance(subscripts, str):
        rule = "subscripts as a string, such as 'ij,jk->ik'"
        raise shape_error("einsum", (), f"{rule}, got {subscripts!r}")
    tensors = promoted(*operands) if operands else ()
    inputs, output = _parsed(subscripts.replace(" ", ""), tensors)
    terms = [_distinct(x, labels) for x, labels in zip(tensors, inputs, strict=True)]
    terms = _broadcasting(terms)
    result = _in_order(terms, output)
    dims = {k: t.size(k) for t in terms for k in t.labels}
    shape = tuple(dims[k] for k in output)
    return broadcasted(_spread(result, output), shape)


def _parsed(subscripts: str, tensors: Sequence[Tensor]) -> tuple[list[Labels], Labels]:
    """Return the labels of operands and result; axes of "..." are numbers."""
    left, arrow, right = subscripts.partition("->")
    parts = left.split(",")
    if len(parts) != len(tensors):
        rule = f"an operand for each of {len(parts)} subscripts, got {len(tensors)}"
        raise shape_error("einsum", (), rule)
    inputs = [_labels(part, x) for part, x in zip(parts, tensors, strict=True)]
    ranks = [sum(isinstance(k, int) for k in labels) for labels in inputs]
    widest: Labels = tuple(range(-max(ranks, default=0), 0))
    found = [k for labels in inputs for k in labels if isinstance(k, str)]
    if not arrow:
        once = sorted(k for k in set(found) if found.count(k) == 1)
        return inputs, (*widest, *once)
    output = _output(right, widest)
    letters = [k for k in output if isinstance(k, str)]
    if len(set(letters)) != len(letters) or not set(letters) <= set(found):
        rule = f"letters of the result that stand once and in an operand, got {right!r}"
        raise shape_error("einsum", (), rule)
    return inputs, output


def _labels(part: str, x: Tensor) -> Labels:
    letters = part.replace("...", "", 1)
    hidden = x.ndim - len(letters)
    if not set(letters) <= set(string.ascii_letters):
        raise shape_error("einsum", (), f"letters and at most one ..., got {part!r}")
    if hidden < 0 or (hidden > 0 and "..." not in part):
        rule = f"a letter per axis, got {part!r} for {x.type}"
        raise shape_error("einsum", (), rule)
    before, dots, after = part.partition("...")
    return (*before, *range(-hidden if dots else 0, 0), *after)


def _output(part: str, hidden: Labels) -> Labels:
    before, dots, after = part.partition("...")
    if not set(before + after) <= set(string.ascii_letters):
        raise shape_error("einsum", (), f"letters and at most one ..., got {part!r}")
    if hidden and not dots:
        rule = f"... in the result, since the operands have it, got {part!r}"
        raise shape_error("einsum", (), rule)
    return (*before, *(hidden if dots else ()), *after)


def _distinct(x: Tensor, labels: Labels) -> Term:
    """Take diagonals until each label occurs once."""
    while len(set(labels)) != len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        axes = [k for k, label in enumerate(labels) if label == twice][:2]
        if x.shape[axes[0]] != x.shape[axes[1]]:
            rule = f"equal sizes where {twice!r} is repeated, got {x.type}"
            raise shape_error("einsum", (), rule)
        x = apply(DIAGONAL, moveaxis(x, axes, (-2, -1)), offset=0)
        others = [label for k, label in enumerate(labels) if k not in axes]
        labels = (*others, twice)
    return Term(x, labels)


def _broadcasting(terms: list[Term]) -> list[Term]:
    """Drop axes of size 1 of a label that has another size elsewhere."""
    sizes: dict[Hashable, Dim] = {}
    for term in terms:
        for label, n in zip(term.labels, term.x.shape, strict=True):
            known = sizes.get(label, 1)
            if 1 not in (known, n) and known != n:
                rule = f"one size for {label!r}, got {known} and {n}"
                raise shape_error("einsum", [t.x for t in terms], rule)
            sizes[label] = n if known == 1 else known
    return [_without_ones(term, sizes) for term in terms]


def _without_ones(term: Term, sizes: dict[Hashable, Dim]) -> Term:
    pairs = list(zip(term.labels, term.x.shape, strict=True))
    kept = [(k, n) for k, n in pairs if not (n == 1 and sizes[k] != 1)]
    shape = tuple(n for _, n in kept)
    return Term(reshaped(term.x, shape), tuple(label for label, _ in kept))


def _in_order(terms: list[Term], output: Labels) -> Term:
    """Contract all operands, two at a time."""
    left = list(terms)
    for pair in _path(terms, output):
        chosen = [left[k] for k in pair]
        left = [term for k, term in enumerate(left) if k not in pair]
        kept = set(output).union(*(term.labels for term in left))
        if len(chosen) == 1:
            left.append(summed(chosen[0], kept))
            continue
        left.append(contracted(chosen[0], chosen[1], kept, output))
    (result,) = left
    return summed(result, set(output))


def _path(terms: Sequence[Term], output: Labels) -> list[tuple[int, ...]]:
    """Return the operands contracted in each step; a result is appended to them."""
    if len(terms) <= 2:
        return [tuple(range(len(terms)))]
    every = dict.fromkeys(k for term in terms for k in term.labels)
    names = {k: chr(192 + n) for n, k in enumerate(every)}
    inputs = ",".join("".join(names[k] for k in term.labels) for term in terms)
    known = [k for k in output if k in names]
    shapes = [
        tuple(TYPICAL_SIZE if isinstance(n, Size) else n for n in term.x.shape)
        for term in terms
    ]
    equation = f"{inputs}->{''.join(names[k] for k in known)}"
    path, _ = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="auto")
    return [tuple(step) for step in path]


def tensordot(a: ArrayLike, b: ArrayLike, axes: Any = 2) -> Tensor:
    """Return the sum of products over `axes`: a number of axes, or two lists.

    >>> import staticgrad as sg
    >>> x, y = sg.input("x", ("n", 3, 4)), sg.input("y", (3, 4, 5))
    >>> print(sg.tensordot(x, y, 2).type)
    float32[n, 5]
    """
    x, y = promoted(a, b)
    left, right = _summed_axes(x, y, axes)
    pairs = dict(zip(right, left, strict=False))
    unequal = any(x.shape[i] != y.shape[j] for j, i in pairs.items())
    if len(left) != len(right) or len(pairs) != len(left) or unequal:
        rule = "pairs of axes of equal sizes"
        raise shape_error("tensordot", (x, y), rule, "check axes")
    own: Labels = tuple(range(x.ndim))
    other: Labels = tuple(pairs.get(j, x.ndim + j) for j in range(y.ndim))
    kept = set(own) ^ set(other)
    result = tuple(k for k in (*own, *other) if k in kept)
    return ordered(contracted(Term(x, own), Term(y, other), kept, result), result)


def _summed_axes(
    x: Tensor, y: Tensor, axes: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(axes, int | np.integer):
        if not 0 <= axes <= min(x.ndim, y.ndim):
            raise shape_error("tensordot", (x, y), f"at most all axes, got {axes}")
        return tuple(range(x.ndim - int(axes), x.ndim)), tuple(range(int(axes)))
    left, right = (axis_list("tensordot", side) for side in axes)
    return (
        tuple(one_axis("tensordot", x, axis) for axis in left),
        tuple(one_axis("tensordot", y, axis) for axis in right),
    )


def inner(a: ArrayLike, b: ArrayLike) -> Tensor:
    """Return the sum of products over the last axis of both.

    >>> import staticgrad as sg
    >>> sg.compile(sg.inner([1, 2], [[3, 4], [5, 6]]), target="reference")().tolist()
    [11, 17]
    """
    x, y = promoted(a, b)
    if x.ndim == 0 or y.ndim == 0:
        return kron(x, y)
    return tensordot(x, y, axes=((-1,), (-1,)))


def vdot(a: ArrayLike, b: ArrayLike) -> Tensor:
    """Return the dot product of both arrays, raveled.

    >>> import staticgrad as sg
    >>> int(sg.compile(sg.vdot([[1, 2]], [3, 4]), target="reference")())
    11
    """
    x, y = promoted(a, b)
    return tensordot(ravel(x), ravel(y), 1)


def vecdot(x1: ArrayLike, x2: ArrayLike, axis: int = -1) -> Tensor:
    """Return the sum of products along `axis`; the other axes broadcast.

    >>> import staticgrad as sg
    >>> x = sg.input("x", ("n", 3))
    >>> print(sg.vecdot(x, [1.0, 2.0, 3.0]).type)
    float32[n]
    """
    x, y = promoted(x1, x2)
    x = moveaxis(x, one_axis("vecdot", x, axis), -1)
    y = moveaxis(y, one_axis("vecdot", y, axis), -1)
    if x.shape[-1] != y.shape[-1]:
        raise shape_error("vecdot", (x, y), f"equal sizes along axis {axis}")
    return einsum("...i,...i->...", x, y)


def matvec(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the product of matrices and vectors; axes before them broadcast.

    >>> import staticgrad as sg
    >>> print(sg.matvec(sg.input("x", ("n", 2, 3)), [1.0, 2.0, 3.0]).type)
    float32[n, 2]
    """
    x, y = _matrix_and_vector("matvec", x1, x2, -1)
    return einsum("...ij,...j->...i", x, y)


def vecmat(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return the product of vectors and matrices; axes before them broadcast.

    >>> import staticgrad as sg
    >>> print(sg.vecmat([1.0, 2.0], sg.input("x", ("n", 2, 3))).type)
    float32[n, 3]
    """
    y, x = _matrix_and_vector("vecmat", x2, x1, -2)
    return einsum("...i,...ij->...j", x, y)


def _matrix_and_vector(
    name: str, matrix: ArrayLike, vector: ArrayLike, axis: int
) -> tuple[Tensor, Tensor]:
    x, y = promoted(matrix, vector)
    if x.ndim < 2 or y.ndim < 1 or x.shape[axis] != y.shape[-1]:
        rule = "matrices, and vectors of the size of the axis that is summed"
        raise shape_error(name, (x, y), rule)
    return x, y


def kron(a: ArrayLike, b: ArrayLike) -> Tensor:
    """Return the Kronecker product: every element of `a` times the whole of `b`.

    >>> import staticgrad as sg
    >>> sg.compile(sg.kron([1, 10], [1, 2]), target="reference")().tolist()
    [1, 2, 10, 20]
    """
    x, y = promoted(a, b)
    rank = max(x.ndim, y.ndim)
    left = (1,) * (rank - x.ndim) + x.shape
    right = (1,) * (rank - y.ndim) + y.shape
    wide = reshaped(x, tuple(d for n in left for d in (n, 1)))
    fine = reshaped(y, tuple(d for m in right for d in (1, m)))
    op = "logical_and" if kind_of(x.dtype) == "b" else "multiply"
    both = named(op, wide, fine)
    return reshaped(both, tuple(n * m for n, m in zip(left, right, strict=True)))


__all__ = [
    "einsum", "inner", "kron", "matvec", "tensordot", "vdot", "vecdot", "vecmat",
]  # fmt: skip
