"""Functions of the user's own that kernels call.

The record says what every stage has to know of one: what it is called, the digest of
all that its code depends on, and what runs. Codegen makes native calls of it, the
reference target calls it as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


class ForeignError(Exception):
    """A function of the user's raised `error` in its call number `position`."""

    def __init__(self, function: Foreign, error: Exception, position: int) -> None:
        super().__init__(str(error))
        self.function = function
        self.error = error
        self.position = position


class PythonTarget(Protocol):
    """A Python function with an address, and what it left behind."""

    address: int
    calls: int
    seconds: float

    def taken(self, key: int) -> BaseException | None:
        """What the function has raised in the run called `key`; it is forgotten."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """One function, equal to every other of the same digest.

    `function` is compiled by Numba, or, where there is a `target`, Python's. On arrays
    it takes inputs and then results, which it fills; on numbers it returns the result.
    """

    name: str
    digest: str
    function: Callable[..., Any] = field(compare=False, repr=False)
    target: PythonTarget | None = field(default=None, compare=False, repr=False)

    def __call__(self, *arrays: Any, position: int = 0) -> Any:
        """The function's result, for the reference target.

        Raises ForeignError with what the function raised.
        """
        try:
            return self.function(*arrays)
        except Exception as error:
            raise ForeignError(self, error, position) from error

    @property
    def symbol(self) -> str:
        """Its name in kernel source, which no other function has."""
        return f"{self.name}_{self.digest[:16]}"
