"""The bytes of parameters and states, and who holds their current value.

Executables take a storage's address once, so its array never moves. A device that
computes on a copy of its own owns the value until the host asks for it.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import ref

import numpy as np
import numpy.typing as npt

from staticgrad.errors import DTypeError, ShapeError
from staticgrad.ir.alignment import aligned_copy
from staticgrad.ir.source import at, here
from staticgrad.ir.types import require_range


class Owner(Protocol):
    """Holder of a storage's current value in place of the host."""

    def fetch(self) -> None:
        """Bring the host's bytes up to date."""


class Storage:
    """A C-order array, aligned to 64 bytes, that never moves.

    Writing through `write` keeps shape, dtype and address. `name` is empty until the
    leaf's place in a module is known: only then does the leaf's path exist. While a
    device owns the value, the storage is a key of AWAY; `array` brings it home.
    """

    __slots__ = ("__weakref__", "_array", "name")

    def __init__(self, value: npt.ArrayLike) -> None:
        self._array = aligned_copy(np.asarray(value))
        self.name = ""

    @property
    def array(self) -> npt.NDArray[Any]:
        """The host's array, which the host owns from now on."""
        owner = AWAY.pop(ref(self), None) if AWAY else None
        if owner is not None:
            owner.fetch()
        return self._array

    @property
    def size(self) -> int:
        """Size in bytes."""
        return int(self._array.nbytes)

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self._array.ctypes.data)

    def bytes(self) -> npt.NDArray[Any]:
        """The host's array as it is, whoever owns the value."""
        return self._array

    def copy(self) -> npt.NDArray[Any]:
        """Return a copy of the current value; its owner stays."""
        owner = AWAY.get(ref(self))
        if owner is not None:
            owner.fetch()
        return self._array.copy()

    def write(self, name: str, value: npt.ArrayLike) -> None:
        """Copy `value` in; it needs an equal shape and a castable dtype."""
        try:
            new = np.asarray(value)
        except ValueError as error:
            raise ShapeError(
                f"assigning to {name} requires an array, got {type(value).__name__} "
                f"({error}); make the rows equally long{at(here())}"
            ) from None
        if new.shape != self.array.shape:
            raise ShapeError(
                f"assigning to {name} requires shape {self.array.shape}, "
                f"got {new.shape}; make a new parameter for another shape{at(here())}"
            )
        if not np.can_cast(new.dtype, self.array.dtype, "same_kind"):
            raise DTypeError(
                f"assigning to {name} requires {self.array.dtype}, got {new.dtype}; "
                f"cast it with .astype({str(self.array.dtype)!r}){at(here())}"
            )
        require_range(f"assigning to {name}", self.array.dtype, new)
        np.copyto(self.array, new, "same_kind")


AWAY: dict[ref[Storage], Owner] = {}
"""Storages whose current value a device holds, and what holds it.

A plain dict, so that native code sees at once that nothing is away.
"""


def send_away(storage: Storage, owner: Owner) -> None:
    """Let `owner` hold the value of `storage` from now on, for as long as it lives."""
    AWAY[ref(storage, AWAY.pop)] = owner


def bring_home() -> None:
    """Let the host own every storage: ahead of code that uses their addresses."""
    for key in list(AWAY):
        owner = AWAY.pop(key, None)
        if owner is not None:
            owner.fetch()
