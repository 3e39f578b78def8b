"""Numba's cache on disk for what is compiled once per machine.

Numba's key of a cached function covers that function and its file only, not the
functions that it calls. A stamp of all files, as a free variable, makes it complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def stamp_of(*files: str | None) -> str:
    """A hash of what is in `files`."""
    texts = [Path(str(file)).read_bytes() for file in files]
    return hashlib.sha256(b"".join(texts)).hexdigest()


def cached_or_not(build: Callable[[str, bool], T], stamp: str) -> T:
    """What ``build(stamp, cache)`` gives, with the cache if it works.

    `build` has to compile, so that whatever is wrong with the cache's folder
    (read-only, full, corrupt) shows there; then it compiles without.
    """
    try:
        return build(stamp, True)
    except Exception:  # noqa: BLE001
        return build("", False)
