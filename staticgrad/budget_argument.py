"""Memory budgets: a number of bytes, or text with a unit."""

from __future__ import annotations

import operator
import re

from staticgrad.errors import GraphError
from staticgrad.ir.source import at, here

_TEXT = re.compile(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def budget_bytes(name: str, budget: int | str | None) -> int | None:
    """Return `budget` in bytes: 64e6 for "64MB", 2**26 for "64MiB"; None stays None.

    Raises GraphError, on behalf of the function `name`, for anything else.

    >>> budget_bytes("compile", "1.5 KB"), budget_bytes("compile", "2MiB")
    (1500, 2097152)
    """
    if budget is None:
        return None
    if isinstance(budget, str):
        found = _TEXT.fullmatch(budget)
        if found:
            number, unit, binary = found.groups()
            return int(
                float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()]
            )
    else:
        try:
            size = operator.index(budget)
        except TypeError:
            size = -1
        if size >= 0:
            return size
    raise GraphError(
        f"{name} requires memory_budget in bytes, as a whole number or as text like "
        f"'64MB', got {budget!r}{at(here())}"
    )
