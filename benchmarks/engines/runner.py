"""Runner: a workload made ready by an engine."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def nothing() -> None:
    """Do nothing: the default of engines without asynchronous calls."""


@dataclass(frozen=True, slots=True)
class Runner:
    """`step` runs once, as a call from Python; `loop(n)` runs n steps in one call.

    `wait` returns when all steps are done. `reset` puts the parameters back to their
    first values. `result` gives the parameters, or what the last step returned.
    """

    step: Callable[[], object]
    result: Callable[[], list[np.ndarray]]
    reset: Callable[[], None] = nothing
    loop: Callable[[int], object] | None = None
    wait: Callable[[], object] = nothing
