"""Logic: and, or, xor, not, of what is not 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from staticgrad.ir.graph import apply
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import Op
from staticgrad.ir.types import BOOL
from staticgrad.ops import examples
from staticgrad.ops.casting import cast
from staticgrad.ops.examples import bool_pairs
from staticgrad.ops.promotion import ArrayLike, as_tensor
from staticgrad.ops.rules import elementwise


def _logical(name: str, template: str, numpy: Callable[..., Any]) -> Op:
    return elementwise(
        name, "b", numpy, samples=bool_pairs, template=template, result=BOOL
    )


LOGICAL_AND = _logical("logical_and", "c_and({0}, {1})", np.logical_and)


LOGICAL_OR = _logical("logical_or", "c_or({0}, {1})", np.logical_or)


LOGICAL_XOR = _logical("logical_xor", "c_xor({0}, {1})", np.logical_xor)


LOGICAL_NOT = elementwise(
    "logical_not",
    "b",
    np.logical_not,
    samples=examples.unary_bools,
    template="c_not({0})",
    inputs=1,
    result=BOOL,
)


def as_bool(x: ArrayLike) -> Tensor:
    """Return `x` as bool: ``x != 0``."""
    return cast(as_tensor(x), BOOL)


def logical_and(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return True where both are not 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.logical_and([1, 0], True), target="reference")()
    array([ True, False])
    """
    return apply(LOGICAL_AND, as_bool(x1), as_bool(x2))


def logical_or(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return True where one or both are not 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.logical_or([1, 0], False), target="reference")()
    array([ True, False])
    """
    return apply(LOGICAL_OR, as_bool(x1), as_bool(x2))


def logical_xor(x1: ArrayLike, x2: ArrayLike) -> Tensor:
    """Return True where exactly one is not 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.logical_xor([1, 0], True), target="reference")()
    array([False,  True])
    """
    return apply(LOGICAL_XOR, as_bool(x1), as_bool(x2))


def logical_not(x: ArrayLike) -> Tensor:
    """Return True where x is 0.

    >>> import staticgrad as sg
    >>> sg.compile(sg.logical_not([1, 0]), target="reference")()
    array([False,  True])
    """
    return apply(LOGICAL_NOT, as_bool(x))


__all__ = ["logical_and", "logical_not", "logical_or", "logical_xor"]
