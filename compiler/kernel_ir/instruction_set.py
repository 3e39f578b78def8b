"""Instructions: what a program does, one after the other, before there are addresses.

Buffers are numbers of a Schedule whose bodies stand in one row (flat.py). Control flow
goes on at a JumpTarget: no instruction, it stands where what follows it begins.
encoding.py makes rows of words of them for the virtual machine, launches.py steps
for a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from staticgrad.compiler.kernel_ir.kernels import Site
from staticgrad.ir.size import Dim
from staticgrad.ir.types import DType


@dataclass(frozen=True, slots=True)
class JumpTarget:
    """The place at which a jump to `number` goes on."""

    number: int


@dataclass(frozen=True, slots=True)
class CallKernel:
    """Run kernel `kernel`."""

    kernel: int


@dataclass(frozen=True, slots=True)
class RunRegion:
    """Let workers run the kernels from `first` to the one before `stop` in `parts`."""

    first: int
    stop: int
    parts: int


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """End here if a stop is asked for or a value is not finite; no later step fails."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Tell kernels that poll where the stop cell is."""


@dataclass(frozen=True, slots=True)
class End:
    """The program has ended."""


@dataclass(frozen=True, slots=True)
class Fill:
    """Set every byte of `buffer` to 0xFF: a NaN, or -1."""

    buffer: int


@dataclass(frozen=True, slots=True)
class Copy:
    """The bytes of buffer `source` to `target`."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class _Turn:
    """A step of loop `loop`, whose position is in buffer `counter`.

    `length` is None for a loop that its condition ends. The last position comes first
    if it is `reverse`. The windows of the loop move with it.
    """

    counter: int
    loop: int
    length: Dim | None
    reverse: bool
    target: int


@dataclass(frozen=True, slots=True)
class Enter(_Turn):
    """The first step; on to `target` if there is none."""


@dataclass(frozen=True, slots=True)
class Again(_Turn):
    """The next step, back at `target`, until the loop's end."""


@dataclass(frozen=True, slots=True)
class Unless:
    """On to `target` unless the number in `buffer` is `value`."""

    buffer: int
    dtype: DType
    value: int
    target: int


@dataclass(frozen=True, slots=True)
class Limit:
    """LoopLimitError of limit `number` if the int64 in `buffer` is `value`.

    `site` is the loop, `target` where it ends.
    """

    buffer: int
    value: int
    number: int
    site: Site
    target: int


@dataclass(frozen=True, slots=True)
class Jump:
    """On to `target`."""

    target: int


@dataclass(frozen=True, slots=True)
class Clear:
    """The loop whose snapshots `state` tells of begins anew (revolve.py)."""

    state: int


@dataclass(frozen=True, slots=True)
class Note:
    """Decide by `state` whether a loop's step is kept, and where; else to `target`."""

    state: int
    snapshots: int
    target: int


@dataclass(frozen=True, slots=True)
class Next:
    """Decide by `state` what a replay of as many steps as `steps` holds does next.

    A step forward comes behind it, the others at `targets`: back, store, restore, done.
    `counter` becomes the position of loop `loop`. A state that is `noted` comes from
    the loop forward, another one was cleared.
    """

    state: int
    steps: int
    counter: int
    loop: int
    snapshots: int
    noted: bool
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """Copy `carry` to the place in `room` that `state` names, or `back` from there."""

    carry: int
    room: int
    state: int
    back: bool


Flow: TypeAlias = Enter | Again | Unless | Limit | Jump | Clear | Note | Next
"""What decides where to go on, or what that depends on."""

Instruction: TypeAlias = (
    CallKernel | RunRegion | CommitPoint | Listen | End | Fill | Copy | Slot | Flow
)
