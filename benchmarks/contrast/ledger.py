"""Costs of a step besides time: kernels, allocations, bytes moved, bytes alive."""

import weakref
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ledger:
    """Counts that an engine which runs op by op keeps; all bytes.

    A kernel is one operation that reads and writes arrays. `moved` is what it reads and
    what it writes; `peak` is the most of what it has allocated that was alive at once.
    """

    kernels: int = 0
    allocations: int = 0
    moved: int = 0
    alive: int = 0
    peak: int = 0
    _seen: set[int] = field(default_factory=set)

    def ran(self, read: int, written: int) -> None:
        """One kernel."""
        self.kernels += 1
        self.moved += read + written

    def allocated(self, owner: object, key: int, size: int) -> None:
        """Memory of `size` bytes that lives as long as `owner`, told apart by `key`."""
        if key in self._seen:
            return
        self._seen.add(key)
        self.allocations += 1
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(owner, self._freed, key, size).atexit = False

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.alive -= size

    def reset(self) -> None:
        """Count from here on; what is alive stays alive."""
        self.kernels = self.allocations = self.moved = 0
        self.peak = self.alive
