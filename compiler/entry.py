"""An Entry: the way from Python arrays into a frame, as cheap as it can be.

Asking an array for its address costs more than running a small program. So a call
writes the identities of its arrays (the addresses of the Python objects) into words,
and LINK instructions ahead of the program read the data pointers, which an array object
holds at a fixed offset. The offset is checked once; where the pointer is not where
NumPy puts it, arrays are asked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from staticgrad.compiler import vm
from staticgrad.compiler.assembler import aligned_rows
from staticgrad.compiler.frame import Frame

Array = npt.NDArray[Any]


@cache
def data_offset() -> int | None:
    """Where in an array object its data pointer is; None if it cannot be found.

    CPython's object header comes first, then ``PyArrayObject_fields`` of NumPy's
    ndarraytypes.h, whose first field is ``char *data``.
    """
    offset = object.__basicsize__
    base = np.arange(12.0).reshape(3, 4)
    for array in (base, base[1:, ::2], np.zeros((), np.int8), np.zeros(0)):
        found = ctypes.c_int64.from_address(id(array) + offset).value
        if found != array.__array_interface__["data"][0]:
            return None
    return offset


class Entry:
    """A program that links arrays (inputs, then outputs) and then runs `frame`."""

    __slots__ = ("_identities", "_offset", "_words", "frame", "pc")

    def __init__(self, frame: Frame, inputs: int) -> None:
        self.frame = frame
        self._offset = data_offset()
        places = frame.places(inputs)
        rows = len(places) + 2
        words = sum(map(len, places))
        extra = -(-(len(places) + words) // vm.WORDS)
        self._words = aligned_rows(rows + extra)
        start = int(self._words.ctypes.data)
        first = rows * vm.WORDS
        flat = self._words.reshape(-1)
        listed = first + len(places)
        for number, targets in enumerate(places):
            row = (first + number, listed, len(targets), self._offset or 0)
            self._words[number, :5] = (
                vm.LINK, start + 8 * row[0], start + 8 * row[1], row[2], row[3],
            )  # fmt: skip
            flat[listed : listed + len(targets)] = targets
            listed += len(targets)
        self._words[rows - 2, :2] = vm.RUN, frame.pc
        self._words[rows - 1, 0] = vm.END
        self._identities = flat.data[first : first + len(places)]
        self.pc = frame.pc if self._offset is None else start

    def connect(self, arrays: Sequence[Array]) -> None:
        """Let the program read and write `arrays`, which have to outlive its run."""
        if self._offset is None:
            self.frame.connect(arrays)
            return
        identities = self._identities
        for number, array in enumerate(arrays):
            identities[number] = id(array)
