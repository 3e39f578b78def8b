"""Arrays aligned to cache lines."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
_PAGE = 4096
LARGE = 4 * _PAGE
_starts = itertools.cycle(range(0, _PAGE, 512))
"""Where in a page large arrays begin, each elsewhere than those before it. A processor
compares addresses within pages: it takes a load just behind a store for one of what was
stored, and places of equal address in many arrays push each other out of the L1 cache.
"""


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised C-order array whose first byte is 64-byte aligned."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    unit, first = (ALIGNMENT, 0) if size < LARGE else (_PAGE, next(_starts))
    raw = np.empty(size + unit, np.uint8)
    start = (first - raw.ctypes.data) % unit
    return raw[start : start + size].view(dtype).reshape(shape)


def aligned_copy(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `value` as a C-order array in native byte order, 64-byte aligned."""
    result = aligned_empty(value.shape, value.dtype.newbyteorder("="))
    result[...] = value
    return result
