"""Symbolic sizes: polynomials over named sizes, with floor division.

A dimension of a shape is an ``int`` or a ``Size``. A ``Size`` is kept in canonical
form, a sum of integer multiples of monomials, so two sizes are equal exactly when their
forms are. An atom of a monomial is a name or a floor division that does not come out
even.

Weakness: ``n // 2 * 2`` and ``n`` are different sizes, as they must be; facts such as
"n is even" cannot be stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """The atom ``numerator // denominator``."""

    numerator: Dim
    denominator: Dim

    def __str__(self) -> str:
        return f"({self.numerator})//({self.denominator})"


Atom: TypeAlias = "str | FloorDiv"
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]


def _order(monomial: Monomial) -> tuple[int, str]:
    return -sum(power for _, power in monomial), str(monomial)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Size:
    """A polynomial with integer coefficients over named sizes.

    >>> n = Size.symbol("n")
    >>> 2 * n + n == 3 * n
    True
    >>> (n * 4) // 2
    Size('2*n')
    >>> (n + 1).evaluate({"n": 7})
    8
    """

    terms: tuple[tuple[Monomial, int], ...]
    _hash: int

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "_hash", hash(terms))

    @staticmethod
    def symbol(name: str) -> Size:
        """The size called `name`."""
        return Size(((((name, 1),), 1),))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms == other.terms

    def __add__(self, other: Dim) -> Dim:
        if not _is_dim(other):
            return NotImplemented
        total = dict(_terms(self))
        for monomial, count in _terms(other):
            total[monomial] = total.get(monomial, 0) + count
        return _canonical(total)

    __radd__ = __add__

    def __neg__(self) -> Dim:
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        if not _is_dim(other):
            return NotImplemented
        return self + (-other)

    def __rsub__(self, other: Dim) -> Dim:
        if not _is_dim(other):
            return NotImplemented
        return (-self) + other

    def __mul__(self, other: Dim) -> Dim:
        if not _is_dim(other):
            return NotImplemented
        total: dict[Monomial, int] = {}
        for left, a in _terms(self):
            for right, b in _terms(other):
                monomial = _product(left, right)
                total[monomial] = total.get(monomial, 0) + a * b
        return _canonical(total)

    __rmul__ = __mul__

    def __pow__(self, other: int) -> Dim:
        if not isinstance(other, int) or other < 0:
            return NotImplemented
        return product((self,) * other)

    def __floordiv__(self, other: Dim) -> Dim:
        if not _is_dim(other):
            return NotImplemented
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Dim) -> Dim:
        if not _is_dim(other):
            return NotImplemented
        return floor_divide(other, self)

    def symbols(self) -> frozenset[str]:
        """The names that this size depends on."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                found |= _atom_symbols(atom)
        return frozenset(found)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number that this size is when its symbols have `values`."""
        total = 0
        for monomial, count in self.terms:
            for atom, power in monomial:
                count *= _atom_value(atom, values) ** power
            total += count
        return total

    def __str__(self) -> str:
        text = " + ".join(_term_text(monomial, count) for monomial, count in self.terms)
        return text.replace("+ -", "- ")

    def __repr__(self) -> str:
        return f"Size({str(self)!r})"


Dim: TypeAlias = int | Size
Shape: TypeAlias = tuple[Dim, ...]


def _is_dim(value: object) -> bool:
    return isinstance(value, int | np.integer | Size)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The number that `dim` is when its symbols have `values`."""
    return dim if isinstance(dim, int) else dim.evaluate(values)


def symbols(dims: tuple[Dim, ...]) -> frozenset[str]:
    """The names that any of `dims` depends on."""
    names = (d.symbols() for d in dims if isinstance(d, Size))
    return frozenset().union(*names)


def product(dims: tuple[Dim, ...]) -> Dim:
    """The product of `dims`; 1 for none.

    >>> product((2, Size.symbol("n"), 3))
    Size('6*n')
    """
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def floor_divide(numerator: Dim, denominator: Dim) -> Dim:
    """``numerator // denominator``, exact where the division comes out even."""
    if isinstance(numerator, int) and isinstance(denominator, int):
        return numerator // denominator
    if denominator == 1:
        return numerator
    quotient = exact_divide(numerator, denominator)
    if quotient is not None:
        return quotient
    return Size(((((FloorDiv(numerator, denominator), 1),), 1),))


def exact_divide(numerator: Dim, denominator: Dim) -> Dim | None:
    """The size q with ``q * denominator == numerator`` for every value, or None.

    The denominator has to be a single term; a sum divides only itself.
    """
    if isinstance(numerator, int) and isinstance(denominator, int):
        even = denominator != 0 and numerator % denominator == 0
        return numerator // denominator if even else None
    if numerator == denominator:
        return 1
    if denominator == 0:
        return None
    parts = _terms(denominator)
    if len(parts) != 1:
        return None
    ((divisor, scale),) = parts
    result: dict[Monomial, int] = {}
    for monomial, count in _terms(numerator):
        left = _divide(monomial, divisor)
        if left is None or count % scale:
            return None
        result[left] = count // scale
    return _canonical(result)


def _terms(dim: Dim) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(dim, Size):
        return dim.terms
    return (((), int(dim)),)


def _canonical(total: dict[Monomial, int]) -> Dim:
    kept = {monomial: count for monomial, count in total.items() if count}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Size(tuple(sorted(kept.items(), key=lambda item: _order(item[0]))))


def _product(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for atom, power in right:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: str(item[0])))


def _divide(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    powers = dict(monomial)
    for atom, power in divisor:
        left = powers.get(atom, 0) - power
        if left < 0:
            return None
        powers[atom] = left
    kept = ((atom, power) for atom, power in powers.items() if power)
    return tuple(sorted(kept, key=lambda item: str(item[0])))


def _atom_symbols(atom: Atom) -> frozenset[str]:
    if isinstance(atom, str):
        return frozenset((atom,))
    return symbols((atom.numerator, atom.denominator))


def _atom_value(atom: Atom, values: Mapping[str, int]) -> int:
    if isinstance(atom, str):
        return values[atom]
    return evaluate(atom.numerator, values) // evaluate(atom.denominator, values)


def _term_text(monomial: Monomial, count: int) -> str:
    factors = [
        str(atom) if power == 1 else f"{atom}**{power}" for atom, power in monomial
    ]
    if count == -1 and factors:
        return "-" + "*".join(factors)
    if count != 1 or not factors:
        factors.insert(0, str(count))
    return "*".join(factors)
