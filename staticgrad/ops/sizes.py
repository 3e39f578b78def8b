"""Conversion of sizes and shapes, and what is known of a symbolic size."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex, TypeAlias

import numpy as np

from staticgrad.ir.node import Tensor
from staticgrad.ir.size import Atom, Dim, FloorDiv, Shape, Size
from staticgrad.ops.rules import shape_error, size_is_data

ShapeLike: TypeAlias = "SupportsIndex | Size | Sequence[SupportsIndex | Size]"


def as_dim(size: object) -> Dim:
    """Return `size` as a dimension: a Size as it is, anything else as an int."""
    if isinstance(size, Size):
        return size
    if isinstance(size, Tensor):
        raise size_is_data("a shape", size)
    try:
        return operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        raise shape_error("a size", (), f"an int or a Size, got {size!r}") from None


def as_shape(shape: ShapeLike) -> Shape:
    """Return `shape` as a tuple of dimensions; a single size is a shape of one axis.

    >>> as_shape(3), as_shape([2, Size.symbol("n")])
    ((3,), (2, Size('n')))
    """
    if isinstance(shape, np.ndarray):
        shape = shape.tolist()
    if isinstance(shape, Size | SupportsIndex):
        return (as_dim(shape),)
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise shape_error("a shape", (), f"ints or Sizes, got {shape!r}")
    return tuple(as_dim(size) for size in shape)


def shape_text(shape: Sequence[Dim]) -> str:
    """Format a shape, as ``(n, 3)``."""
    return f"({', '.join(map(str, shape))})"


def never_negative(dim: Dim) -> bool:
    """Whether `dim` is provably >= 0 for all sizes.

    >>> n = Size.symbol("n")
    >>> never_negative(n + 2), never_negative(n - 1), never_negative(n - n // 2)
    (True, False, True)
    """
    while (found := _subtracted_division(dim)) is not None:
        # -c * (a // k) >= -c * a / k; all times k
        term, count, division = found
        dim = (dim - term) * division.denominator + count * division.numerator
    if isinstance(dim, int):
        return dim >= 0
    return all(
        count >= 0 and all(_atom_never_negative(atom) for atom, _ in monomial)
        for monomial, count in dim.terms
    )


def _subtracted_division(dim: Dim) -> tuple[Dim, int, FloorDiv] | None:
    for monomial, count in dim.terms if isinstance(dim, Size) else ():
        if count >= 0 or len(monomial) != 1:
            continue
        ((atom, power),) = monomial
        if power == 1 and isinstance(atom, FloorDiv) and _positive(atom.denominator):
            return Size(((monomial, count),)), count, atom
    return None


def _atom_never_negative(atom: Atom) -> bool:
    if isinstance(atom, str):
        return True
    return _positive(atom.denominator) and never_negative(atom.numerator)


def _positive(dim: Dim) -> bool:
    return isinstance(dim, int) and dim > 0
