"""Python's garbage collector while something large is made.

Looking for garbage among objects that all live on brings nothing, and makes it more
likely that all objects of the process are looked at: with Numba imported that takes
70 ms, as long as a small graph takes to compile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """The collector waits, if it runs at all.

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
    """Free what was made lately and is not used any more: cycles, such as modules."""
    gc.collect(0)
