"""Functions that take the arguments of another function, and pass most of them on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, cast

from staticgrad.ir.node import Tensor

P = ParamSpec("P")


def twin_of(
    function: Callable[P, Tensor],
) -> Callable[[Callable[..., Tensor]], Callable[P, Tensor]]:
    """Give what is decorated the signature of `function`, for help and type checkers.

    >>> def scaled(x: float, by: float = 2.0): ...
    >>> @twin_of(scaled)
    ... def moved(x, *args): ...
    >>> print(inspect.signature(moved))
    (x: 'float', by: 'float' = 2.0)
    """

    def decorate(twin: Any) -> Callable[P, Tensor]:
        twin.__signature__ = inspect.signature(function)
        return cast(Callable[P, Tensor], twin)

    return decorate
