"""Entry: a fast path from Python arrays into a frame.

Asking an array for its address, shape and dtype costs more than running a small
program. So a call writes the identities of its arguments (the addresses of the Python
objects) into words, and LINK instructions ahead of the program look whether they are
arrays of the dtypes and shapes for which it was made, C-contiguous and aligned, and
read the data pointers: an array object holds all of it at fixed offsets. The offsets
are checked once; where fields are not where NumPy puts them, arrays are asked.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from staticgrad.compiler.runtime import vm
from staticgrad.compiler.runtime.assembler import aligned_rows
from staticgrad.compiler.runtime.frame import Frame

Array = npt.NDArray[Any]


Kinds: TypeAlias = Sequence[tuple[np.dtype[Any], tuple[int, ...]]]
"""Dtype and shape of each input."""

PLAIN = 0x0001 | 0x0100
"""NPY_ARRAY_C_CONTIGUOUS and NPY_ARRAY_ALIGNED."""

FIELDS = struct.Struct("qi4xqqqqi")
"""data, nd, dimensions, strides, base, descr and flags of an array object."""


@cache
def fields_offset() -> int | None:
    """Return the offset of the fields in an array object; None if not found.

    CPython's object header comes first, whose last word is the type, then
    ``PyArrayObject_fields`` of NumPy's ndarraytypes.h, whose first is ``char *data``.
    """
    offset = object.__basicsize__
    base = np.arange(12.0).reshape(3, 4)
    read_only = np.zeros(2, np.int32)
    read_only.flags.writeable = False
    samples = (base, base[1:, ::2], np.zeros((), np.int8), np.zeros(0), read_only)
    return offset if all(_has_fields(array, offset) for array in samples) else None


def _has_fields(array: Array, offset: int) -> bool:
    start = id(array) + offset
    data, rank, sizes, _, _, descr, flags = FIELDS.unpack_from(
        ctypes.string_at(start, FIELDS.size)
    )
    kind = ctypes.c_int64.from_address(start - 8).value
    if kind != id(type(array)) or data != array.__array_interface__["data"][0]:
        return False
    if rank != array.ndim or descr != id(array.dtype):
        return False
    shape = tuple(ctypes.c_int64.from_address(sizes + 8 * a).value for a in range(rank))
    known = array.flags
    plain = known.c_contiguous and known.aligned
    return shape == array.shape and plain == (flags & PLAIN == PLAIN)


class Entry:
    """Program that links arrays (inputs, then outputs) and then runs `frame`.

    It returns MISFIT if an input is not of its kind; `checks` says whether it looks.
    """

    __slots__ = ("_identities", "_words", "checks", "frame", "pc")

    def __init__(self, frame: Frame, kinds: Kinds) -> None:
        self.frame = frame
        offset = fields_offset()
        self.checks = offset is not None
        places = frame.places(len(kinds))
        wanted = [_wanted(dtype, shape) for dtype, shape in kinds]
        wanted += [[] for _ in places[len(kinds) :]]
        rows = len(places) + 2
        words = sum(map(len, (*places, *wanted)))
        extra = -(-(len(places) + words) // vm.WORDS)
        self._words = aligned_rows(rows + extra)
        start = int(self._words.ctypes.data)
        first = rows * vm.WORDS
        flat = self._words.reshape(-1)
        free = first + len(places)
        for number, lists in enumerate(zip(places, wanted, strict=True)):
            addresses = []
            for words_of in lists:
                flat[free : free + len(words_of)] = words_of
                addresses.append(start + 8 * free if words_of else 0)
                free += len(words_of)
            self._words[number, :6] = (
                vm.LINK, start + 8 * (first + number), addresses[0], len(lists[0]),
                offset or 0, addresses[1],
            )  # fmt: skip
        self._words[rows - 2, :2] = vm.RUN, frame.pc
        self._words[rows - 1, 0] = vm.END
        self._identities = flat.data[first : first + len(places)]
        self.pc = start if self.checks else frame.pc

    def connect(self, arrays: Sequence[Array]) -> None:
        """Link `arrays`, which have to outlive the run."""
        if not self.checks:
            self.frame.connect(arrays)
            return
        identities = self._identities
        for number, array in enumerate(arrays):
            identities[number] = id(array)


def _wanted(dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[int]:
    """Return the words that LINK compares an array object with."""
    return [id(np.ndarray), id(dtype), PLAIN, len(shape), *shape]
