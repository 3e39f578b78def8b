"""Users' functions that kernels call.

The record has the name, the digest of all that the code depends on, and the function
itself. Codegen makes native calls of it, the reference target calls it as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


class ForeignError(Exception):
    """Error raised by a user's function in its call number `position`."""

    def __init__(self, function: Foreign, error: Exception, position: int) -> None:
        super().__init__(str(error))
        self.function = function
        self.error = error
        self.position = position


class PythonTarget(Protocol):
    """Python function with an address, and the exceptions it raised."""

    address: int
    calls: int
    seconds: float

    def taken(self, key: int) -> BaseException | None:
        """Return and forget the exception raised in the run called `key`."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Compiled user function; functions of one digest are equal.

    `function` is compiled by Numba, or, where there is a `target`, Python's. On arrays
    it takes inputs and then results, which it fills; on numbers it returns the result.
    """

    name: str
    digest: str
    function: Callable[..., Any] = field(compare=False, repr=False)
    target: PythonTarget | None = field(default=None, compare=False, repr=False)

    def __call__(self, *arrays: Any, position: int = 0) -> Any:
        """Return the function's result, for the reference target.

        Raises ForeignError with what the function raised.
        """
        try:
            return self.function(*arrays)
        except Exception as error:
            raise ForeignError(self, error, position) from error

    @property
    def symbol(self) -> str:
        """Unique name in kernel source."""
        return f"{self.name}_{self.digest[:16]}"
