"""Shared allocations on a device."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Generic, TypeVar

import numpy as np

from staticgrad.compiler.cuda.device import Device

ALIGNMENT = 256

Name = TypeVar("Name")


class DeviceMemory(Generic[Name]):
    """Parts of one allocation, by name; freed with this object."""

    def __init__(self, device: Device, sizes: Mapping[Name, int]) -> None:
        offsets = np.cumsum([0, *map(aligned, sizes.values())])
        base = device.allocate(int(offsets[-1]))
        weakref.finalize(self, device.free, base)
        self.addresses = {
            name: base + int(offset)
            for name, offset in zip(sizes, offsets[:-1], strict=True)
        }


def aligned(size: int) -> int:
    """Return the multiple of ALIGNMENT that holds so many bytes."""
    return -(-size // ALIGNMENT) * ALIGNMENT
