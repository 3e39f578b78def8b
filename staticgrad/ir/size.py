"""Symbolic sizes: polynomials over named sizes, with floor division.

A dimension of a shape is an ``int`` or a ``Size``. A ``Size`` is kept in canonical
form, a sum of integer multiples of monomials, so two sizes are equal exactly when their
forms are. An atom of a monomial is a name or a floor division that does not come out
even.

Weakness: ``n // 2 * 2`` and ``n`` are different sizes, as they must be; facts such as
"n is even" cannot be stated. Only a reshape takes one for the other (`equal_if_even`),
and requires of each call that they are equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """Atom ``numerator // denominator``."""

    numerator: Dim
    denominator: Dim

    def __str__(self) -> str:
        return f"{_side(self.numerator)}//{_side(self.denominator)}"


Atom: TypeAlias = "str | FloorDiv"
Monomial: TypeAlias = tuple[tuple[Atom, int], ...]


def _order(monomial: Monomial) -> tuple[int, str]:
    return -sum(power for _, power in monomial), str(monomial)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class Size:
    """Polynomial with integer coefficients over named sizes.

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
        """Return the size called `name`."""
        return Size(((((name, 1),), 1),))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.terms == other.terms

    def __add__(self, other: Dim) -> Dim:
        if not _is_dim(other):
            return NotImplemented
        if other == 0:
            return self
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
        if other == 1:
            return self
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
        """Return the names that this size depends on."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                found |= _atom_symbols(atom)
        return frozenset(found)

    def evaluate(self, values: Mapping[str, int]) -> int:
        """Return the number that this size is when its symbols have `values`."""
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


_DIMS = (int, np.integer, Size)  # isinstance would rebuild a union at each test


def _is_dim(value: object) -> bool:
    return isinstance(value, _DIMS)


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """Return the number that `dim` is when its symbols have `values`."""
    return dim if isinstance(dim, int) else dim.evaluate(values)


def symbols(dims: tuple[Dim, ...]) -> frozenset[str]:
    """Return the names that any of `dims` depends on."""
    names = (d.symbols() for d in dims if isinstance(d, Size))
    return frozenset().union(*names)


TYPICAL_SIZE = 64  # of a symbol, where orders of computation are compared
MINIBATCH = 32  # of a symbol that is most likely the number of examples in a step


def guessed(dim: Dim, size: int) -> int:
    """Return the value of `dim` if each of its symbols is `size`.

    >>> guessed(3 * Size.symbol("n"), 32)
    96
    """
    return evaluate(dim, dict.fromkeys(symbols((dim,)), size))


def product(dims: tuple[Dim, ...]) -> Dim:
    """Return the product of `dims`; 1 for none.

    >>> product((2, Size.symbol("n"), 3))
    Size('6*n')
    """
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def floor_divide(numerator: Dim, denominator: Dim) -> Dim:
    """Return ``numerator // denominator``, exact where the division has no remainder.

    >>> n = Size.symbol("n")
    >>> floor_divide(6 * n, 4), floor_divide(6 * n + 4, 3)
    (Size('3*n//2'), Size('2*n + 1'))
    """
    if isinstance(numerator, int) and isinstance(denominator, int):
        return numerator // denominator
    if numerator == denominator:
        return 1
    whole, rest = _divided(numerator, denominator)
    if rest == 0:
        return whole
    over, under = reduced(rest, denominator)
    if isinstance(over, int) and isinstance(under, int):
        return whole + over // under
    return whole + Size(((((FloorDiv(over, under), 1),), 1),))


def exact_divide(numerator: Dim, denominator: Dim) -> Dim | None:
    """Return the size q with ``q * denominator == numerator`` for every value, or None.

    The denominator has to be a single term; a sum divides only itself.
    """
    if denominator == 0:
        return None
    if numerator == denominator:
        return 1
    whole, rest = _divided(numerator, denominator)
    return whole if rest == 0 else None


def reduced(numerator: Dim, denominator: Dim) -> tuple[Dim, Dim]:
    """Return both divided by the factors that all their terms have in common.

    >>> n, m = Size.symbol("n"), Size.symbol("m")
    >>> reduced(6 * n * m, 4 * n)
    (Size('3*m'), 2)
    """
    terms = (*_terms(numerator), *_terms(denominator))
    scale = math.gcd(*(count for _, count in terms))
    shared = dict(terms[0][0])
    for monomial, _ in terms:
        powers = dict(monomial)
        shared = {a: min(power, powers.get(a, 0)) for a, power in shared.items()}
    factor = _canonical({_product((), tuple(shared.items())): scale})
    return _divided(numerator, factor)[0], _divided(denominator, factor)[0]


def equal_if_even(left: Dim, right: Dim) -> bool:
    """Whether both are equal for all values for which their divisions are exact.

    >>> n = Size.symbol("n")
    >>> equal_if_even(n // 2 * 2, n), equal_if_even(n // 2, n)
    (True, False)
    """
    (over, under), (above, below) = _ratio(left), _ratio(right)
    return over * below == above * under


def has_division(dim: Dim) -> bool:
    """Whether `dim` contains a division that may have a remainder."""
    atoms = (atom for monomial, _ in _terms(dim) for atom, _ in monomial)
    return any(isinstance(atom, FloorDiv) for atom in atoms)


def _ratio(dim: Dim) -> tuple[Dim, Dim]:
    """Return numerator and denominator of `dim`, with divisions as fractions."""
    over: Dim = 0
    under: Dim = 1
    for monomial, count in _terms(dim):
        above: Dim = count
        below: Dim = 1
        for atom, power in monomial:
            a, b = _atom_ratio(atom)
            above, below = above * product((a,) * power), below * product((b,) * power)
        over, under = over * below + above * under, under * below
    return over, under


def _atom_ratio(atom: Atom) -> tuple[Dim, Dim]:
    if isinstance(atom, str):
        return Size.symbol(atom), 1
    (a, b), (c, d) = _ratio(atom.numerator), _ratio(atom.denominator)
    return a * d, b * c


def _divided(numerator: Dim, denominator: Dim) -> tuple[Dim, Dim]:
    """Return (q, r) with ``q * denominator + r == numerator``, r the remainder."""
    parts = _terms(denominator)
    if len(parts) != 1:
        return 0, numerator
    ((divisor, scale),) = parts
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, count in _terms(numerator):
        left = _divide(monomial, divisor)
        if left is None or scale == 0 or count % scale:
            rest[monomial] = count
        else:
            whole[left] = count // scale
    return _canonical(whole), _canonical(rest)


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


def _side(dim: Dim) -> str:
    """Return `dim` as one side of a division."""
    single = isinstance(dim, int) or (len(dim.terms) == 1 and not has_division(dim))
    return str(dim) if single else f"({dim})"


def _term_text(monomial: Monomial, count: int) -> str:
    alone = len(monomial) == 1 and count == 1
    factors = [_factor(atom, power, alone) for atom, power in monomial]
    if count == -1 and factors:
        return "-" + "*".join(factors)
    if count != 1 or not factors:
        factors.insert(0, str(count))
    return "*".join(factors)


def _factor(atom: Atom, power: int, alone: bool) -> str:
    text = str(atom)
    if isinstance(atom, FloorDiv) and not (alone and power == 1):
        text = f"({text})"
    return text if power == 1 else f"{text}**{power}"
