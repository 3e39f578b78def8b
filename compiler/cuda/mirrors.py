"""Mirrors: parameters and states that stay on the device between calls.

A storage is owned by the host or by one device. The first call on a device uploads it;
from then on it is *away* (see node.py): reading a value copies it back if a kernel
has changed it, and whoever wants to use the host's memory itself brings it home, so
that the next call on the device uploads it again.
"""

from __future__ import annotations

import weakref
from typing import Any

from staticgrad.compiler.cuda.device import Device
from staticgrad.ir.storage import AWAY, Storage, send_away


class Mirror:
    """Device copy of one storage."""

    __slots__ = ("__weakref__", "address", "changed", "device", "storage")

    def __init__(self, device: Device, storage: Storage) -> None:
        self.device = device
        self.storage = weakref.ref(storage)
        self.address = device.allocate(max(storage.size, 1))
        self.changed = False
        weakref.finalize(self, device.free, self.address)

    def fetch(self) -> None:
        """Update the host's bytes."""
        storage = self.storage()
        if self.changed and storage is not None:
            self.device.read(self.address, storage.bytes())
        self.changed = False

    def upload(self, storage: Storage) -> None:
        """Upload and own the storage."""
        owner = AWAY.get(weakref.ref(storage))
        if owner is self:
            return
        if owner is not None:
            owner.fetch()
        self.device.write(self.address, storage.bytes())
        self.changed = False
        send_away(storage, self)


_known: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Storage, Mirror]]
_known = weakref.WeakKeyDictionary()


def mirror_of(device: Device, storage: Storage) -> Mirror:
    """Return the one mirror of `storage` on `device`."""
    on_device = _known.setdefault(device, weakref.WeakKeyDictionary())
    if storage not in on_device:
        on_device[storage] = Mirror(device, storage)
    return on_device[storage]
