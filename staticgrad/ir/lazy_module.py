"""Lazy imports: modules imported at first use.

What a GPU, a drawing, a progress bar or an einsum needs is a quarter of what importing
staticgrad would take beyond Numba, and most programs need none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """Lazy import of the module `name`.

    >>> fractions = Later("fractions")
    >>> fractions.Fraction(1, 2)
    Fraction(1, 2)
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
