"""Stamps of source files for cache keys, and Numba's own cache.

Numba's key of a cached function covers that function and its file only, not the
functions that it calls. A stamp of all files, as a free variable, makes it complete.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def stamp_of(*files: str | None) -> str:
    """Return a hash of the names and contents of `files`."""
    total = hashlib.sha256()
    for file in files:
        with open(str(file), "rb", buffering=0) as opened:
            name = os.path.basename(str(file)).encode()
            total.update(name + b"\0" + opened.readall())
    return total.hexdigest()


def cached_or_not(build: Callable[[str, bool], T], stamp: str) -> T:
    """Return ``build(stamp, cache)``, without the cache if that fails.

    `build` has to compile, so that whatever is wrong with the cache's folder
    (read-only, full, corrupt) shows there; then it compiles without.
    """
    try:
        return build(stamp, True)
    except Exception:  # noqa: BLE001
        return build("", False)
