"""Python functions that kernels call by address.

A kernel hands over a table of int64: the address of the status (which names the run),
the position of the call, and for each array its address and sizes. The GIL is taken by
ctypes. What the function raises is kept until the run has ended, under the run's name.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Kind = tuple[int, np.dtype[Any]]
"""Rank and dtype of an array."""

HEADER = 2  # words before the arrays: status and position


class Thunk:
    """Python function ``function(*reads, *writes)`` behind an address.

    Arrays look at memory of the run: those read cannot be written to, and none of them
    may be kept. `calls` and `seconds` are its cost so far.
    """

    def __init__(
        self, function: Callable[..., None], reads: Sequence[Kind], writes: int
    ) -> None:
        self.calls = 0
        self.seconds = 0.0
        self._function = function
        self._kinds = tuple(reads)
        self._first_written = len(self._kinds) - writes
        self._words = HEADER + sum(1 + rank for rank, _ in self._kinds)
        self._raised: dict[int, BaseException] = {}
        self._native = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(self._called)
        address = ctypes.cast(self._native, ctypes.c_void_p).value
        assert address is not None
        self.address = address

    def taken(self, key: int) -> BaseException | None:
        """Return and forget the first exception raised in the run `key`."""
        return self._raised.pop(key, None)

    def _called(self, table: int) -> int:
        start = time.perf_counter()
        words = list((ctypes.c_int64 * self._words).from_address(table))
        try:
            self._function(*self._arrays(words))
        except BaseException as error:  # noqa: BLE001  raised when the run has ended
            self._raised.setdefault(words[0], error)
            return 1
        finally:
            self.calls += 1
            self.seconds += time.perf_counter() - start
        return 0

    def _arrays(self, words: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        arrays = []
        place = HEADER
        for number, (rank, dtype) in enumerate(self._kinds):
            shape = tuple(words[place + 1 : place + 1 + rank])
            array = _looking_at(words[place], shape, dtype)
            array.flags.writeable = number >= self._first_written
            arrays.append(array)
            place += 1 + rank
        return arrays


def _looking_at(
    address: int, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    count = math.prod(shape) * dtype.itemsize
    if not count:
        return np.empty(shape, dtype)
    raw = memoryview((ctypes.c_uint8 * count).from_address(address)).cast("B")
    array: np.ndarray[Any, Any] = np.frombuffer(raw, dtype).reshape(shape)
    return array
