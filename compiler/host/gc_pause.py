"""Pauses of Python's garbage collector while something large is made.

A collection among objects that all survive frees nothing, and makes a full collection
more likely: with Numba imported that takes 70 ms, as long as a small graph takes to
compile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the collector, if it runs at all.

    >>> import gc
    >>> with without_collections():
    ...     print(gc.isenabled())
    False
    """
    waits = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if waits:
            gc.enable()


def collect_young() -> None:
    """Collect recent garbage: cycles, such as modules."""
    gc.collect(0)
