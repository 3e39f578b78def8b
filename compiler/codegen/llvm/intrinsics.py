"""Intrinsics of Numba from functions that emit LLVM IR."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
from typing import Any

from numba import types
from numba.extending import intrinsic


def taking(
    count: int, definition: Callable[..., Any], make: Callable[..., Any] = intrinsic
) -> Any:
    """An intrinsic of `count` arguments; Numba takes no variable number of them."""

    def own(typing: Any, *kinds: Any) -> Any:
        return definition(typing, *kinds)

    names = ("typing", *(f"a{n}" for n in range(count)))
    own.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )
    return make(own)


def lowers(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic of ``emit(b, *values)``, whose result may be void.

    `signature` is Numba's, or a function that gives it, or None where there is none,
    for the types of the arguments.
    """

    def made(emit: Callable[..., Any]) -> Any:
        @wraps(emit)  # so that Numba sees how many arguments there are
        def definition(_typing: Any, *kinds: Any) -> Any:
            found = signature(*kinds) if callable(signature) else signature

            def generate(context: Any, b: Any, own: Any, args: Any) -> Any:
                value = emit(b, *args)
                void = own.return_type == types.void
                return context.get_dummy_value() if void else value

            return None if found is None else (found, generate)

        return intrinsic(definition)

    return made
