"""The steps of a Plan on a device: work, and the control flow that the host follows.

Addresses are not known yet: a Place is a buffer, and bytes from where it begins. Where
control flow goes is a number of a step, behind which it goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from staticgrad.compiler.cuda.device import Product
from staticgrad.compiler.cuda.host_functions import HostCall
from staticgrad.compiler.cuda.source.cuda_loops import CudaSource
from staticgrad.ir.source import Source
from staticgrad.ir.types import DType

STATUS = -1
"""The buffer that stands for the status."""


@dataclass(frozen=True, slots=True)
class BufferAddress:
    """The address of `buffer`, `offset` bytes further.

    Buffer -2 - k is the scratch area k.
    """

    buffer: int
    offset: int = 0


Argument: TypeAlias = int | BufferAddress


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel over `grid` blocks of `block` threads."""

    source: CudaSource
    grid: tuple[int, int]
    block: int
    arguments: tuple[Argument, ...]
    scratch: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Multiply:
    """One product of cuBLAS."""

    product: Product
    a: BufferAddress
    b: BufferAddress
    c: BufferAddress


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes from a buffer to another."""

    target: BufferAddress
    source: BufferAddress
    size: int


@dataclass(frozen=True, slots=True)
class Zero:
    """A buffer becomes 0."""

    target: BufferAddress
    size: int


@dataclass(frozen=True, slots=True)
class _Turn:
    """A step of loop `loop`, whose position is the int64 at `counter`.

    The last position comes first if `reverse`. `length` is None for a loop that its
    condition ends.
    """

    loop: int
    counter: BufferAddress
    length: int | None
    reverse: bool
    target: int = -1


@dataclass(frozen=True, slots=True)
class Enter(_Turn):
    """The first step; past `target` if there is none."""


@dataclass(frozen=True, slots=True)
class Again(_Turn):
    """The next step, back behind `target`, until the loop's end."""


@dataclass(frozen=True, slots=True)
class Unless:
    """Behind `target` unless the number at `place` is `value`: the host has to look."""

    place: BufferAddress
    dtype: DType
    value: int
    target: int = -1


@dataclass(frozen=True, slots=True)
class Limit:
    """LoopLimitError for limit `number` if the int64 at `place` is `value`."""

    place: BufferAddress
    value: int
    source: Source | None
    number: int
    target: int = -1


@dataclass(frozen=True, slots=True)
class Jump:
    """Behind `target`."""

    target: int = -1


@dataclass(frozen=True, slots=True)
class Clear:
    """The state of a loop's snapshots begins anew."""

    state: BufferAddress
    words: int


@dataclass(frozen=True, slots=True)
class Note:
    """Decide by `state` whether a loop's step is kept; behind `target` if it is not."""

    state: BufferAddress
    snapshots: int
    target: int = -1


@dataclass(frozen=True, slots=True)
class Next:
    """Decide by `state` what a replay of `count` steps does next (revolve.py).

    A step forward comes behind it, the others behind `targets`: back, store, restore,
    done. A state that is `noted` comes from the loop forward, else it begins anew. The
    int64 at `counter` becomes the position of loop `loop`.
    """

    state: BufferAddress
    words: int
    count: BufferAddress | int
    counter: BufferAddress
    loop: int
    snapshots: int
    noted: bool
    targets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """Copy a carry to the place of the snapshot decided on, or `back` from there."""

    carry: BufferAddress
    room: BufferAddress
    size: int
    back: bool


Control: TypeAlias = Enter | Again | Unless | Limit | Jump | Clear | Note | Next
Work: TypeAlias = Launch | Multiply | Copy | Zero | HostCall | Slot
Step: TypeAlias = Work | Control
