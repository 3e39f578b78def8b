"""Schedule: kernels in order, and the buffers that they read and write.

The commit rule: kernels before `commit` write temporaries and outputs only; from there
on no kernel can fail, and parameters and states are written. A run stops (stop poll,
failed check, non-finite loss) only at `commit`, so that everything stays at the last
finished step. The body of a ControlKernel has no commit of its own: it writes carries
when all that reads them has run, and fails with the kernel around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

import numpy.typing as npt

from staticgrad.compiler.kernel_ir.kernels import (
    FinishKernel,
    Kernel,
    LoopKernel,
    Operand,
    Site,
)
from staticgrad.ir.node import Stored
from staticgrad.ir.op import ControlForm
from staticgrad.ir.size import Dim, Shape, product
from staticgrad.ir.types import DType

BufferKind: TypeAlias = Literal[
    "input", "stored", "constant", "output", "temporary", "slots", "carry", "arena"
]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory for one tensor.

    Kinds: "input" (given at the call; `position` in the inputs), "stored" (a parameter
    or state, in its own storage), "constant" (`value`), "output" (made at the call;
    `position` in the outputs), "temporary" (in the arena), "slots" (in the arena: one
    slot of `shape` per chunk of the kernel that writes it), "carry" (in the body of a
    loop: the input `position`, which is also written), "arena" (in the arena: all that
    the bodies of a ControlKernel keep there, as large as the largest of them needs).
    """

    number: int
    kind: BufferKind
    shape: Shape
    dtype: DType
    name: str
    position: int = -1
    leaf: Stored | None = None
    value: npt.NDArray[Any] | None = None

    @property
    def elements(self) -> Dim:
        """Number of elements of one slot."""
        return product(self.shape)


@dataclass(frozen=True, slots=True)
class Port:
    """Port: a buffer of a body bound to an operand of the kernel around it.

    It is the operand's buffer, or a part of it as large as itself: at position p of a
    loop the one that begins ``p * step`` elements after the start.
    """

    inner: int
    operand: int
    step: Dim = 0


@dataclass(frozen=True, slots=True)
class ControlKernel:
    """Schedules that run depending on data, or repeatedly.

    `form` is as in Control (op.py). ``ports[b]`` names the buffers of body b that
    are operands; its temporaries lie in the operand `arena`. Before the first step the
    operands `starts` are copied, each pair from the first to the second. The operand
    `counter` (int64) is the index of a branch, the position of a loop, or the number of
    steps of a repetition, whose condition writes the operand `going`. A replay has a
    `state` (revolve.py), `steps` says how many there are, and of each pair of `kept`
    the first operand is copied to and from one of `snapshots` places in the second. So
    it is in a repetition that keeps snapshots, with which a replay that is `noted`
    begins.
    """

    name: str
    form: ControlForm
    operands: tuple[Operand, ...]
    bodies: tuple[Schedule, ...]
    ports: tuple[tuple[Port, ...], ...]
    starts: tuple[tuple[int, int], ...]
    arena: int
    counter: int
    sites: tuple[Site, ...]
    fails: bool = False
    going: int = -1
    length: Dim = 0
    reverse: bool = False
    limit: int = -1
    state: int = -1
    steps: int = -1
    kept: tuple[tuple[int, int], ...] = ()
    snapshots: int = 0
    noted: bool = False


Step: TypeAlias = Kernel | ControlKernel
AnyStep = TypeVar("AnyStep", bound=Step)


def with_buffers(kernel: AnyStep, number: Callable[[int], int]) -> AnyStep:
    """Return `kernel` on other buffers: ``number(b)`` instead of b."""
    old = [operand.buffer for operand in kernel.operands]
    numbers = list(map(number, old))
    if numbers == old:
        return kernel
    operands = tuple(
        [
            Operand(new, o.mode, o.dtype, o.per_chunk, o.slot)
            for o, new in zip(kernel.operands, numbers, strict=True)
        ]
    )
    # Products and finishes have a fixed number of operands, here as many as before.
    return replace(kernel, operands=operands)  # type: ignore[arg-type]


def started_in_place(
    kernel: ControlKernel, pairs: Sequence[tuple[int, int]]
) -> ControlKernel:
    """Return `kernel` with one updated operand for each of `pairs` of `starts`."""
    source_of = {target: source for source, target in pairs}
    gone = set(source_of.values())
    left = [n for n in range(len(kernel.operands)) if n not in gone]
    number = {old: new for new, old in enumerate(left)}
    number[-1] = -1
    operands = tuple(
        replace(kernel.operands[source_of[n]], mode="update")
        if n in source_of
        else kernel.operands[n]
        for n in left
    )
    ports = tuple(
        tuple(replace(port, operand=number[port.operand]) for port in own)
        for own in kernel.ports
    )
    rest = [pair for pair in kernel.starts if pair not in pairs]
    return replace(
        kernel,
        operands=operands,
        ports=ports,
        starts=tuple((number[a], number[b]) for a, b in rest),
        kept=tuple((number[a], number[b]) for a, b in kernel.kept),
        arena=number[kernel.arena],
        counter=number[kernel.counter],
        going=number[kernel.going],
        state=number[kernel.state],
        steps=number[kernel.steps],
    )


def reads(kernel: Step) -> list[int]:
    """Return the buffers that a kernel reads, updated ones included."""
    return [o.buffer for o in kernel.operands if o.mode != "write"]


def writes(kernel: Step) -> list[int]:
    """Return the buffers that a kernel writes, updated ones included."""
    return [o.buffer for o in kernel.operands if o.mode != "read"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Kernels in order, and their buffers: `buffers[b].number == b`.

    `outputs` names the buffer of each output; several outputs may be one buffer.
    `finite` lists the buffers (float scalars) that have to be finite at `commit`.
    `unplanned` are the sizes in bytes of every tensor of the unfused graph. `again` are
    the positions of kernels that only make anew what was not kept (rematerialise.py).
    Where it is `tight`, nothing lives longer than it must, so that there are no
    regions.
    """

    buffers: tuple[Buffer, ...]
    kernels: tuple[Step, ...]
    commit: int
    outputs: tuple[int, ...]
    finite: tuple[int, ...] = ()
    unplanned: tuple[Dim, ...] = ()
    again: tuple[int, ...] = ()
    tight: bool = False


def stored_by(schedule: Schedule, kernel: Step) -> frozenset[int]:
    """Return the parameters and states that `kernel` writes."""
    written = (o.buffer for o in kernel.operands if o.mode != "read")
    return frozenset(b for b in written if schedule.buffers[b].kind == "stored")


def output_targets(
    schedule: Schedule,
) -> tuple[tuple[int, ...], list[tuple[bool, int, int]]]:
    """Return the buffer of each output, and copies (at start?, source, target).

    Leaves are copied before a step changes them, outputs named twice at the end.
    Numbers past the schedule's buffers are outputs without a buffer of their own.
    """
    targets: list[int] = []
    copies: list[tuple[bool, int, int]] = []
    for position, number in enumerate(schedule.outputs):
        own = schedule.buffers[number].kind == "output"
        if own and number not in targets:
            targets.append(number)
            continue
        targets.append(len(schedule.buffers) + position)
        copies.append((not own, number, targets[-1]))
    return tuple(targets), copies


def with_makers(kernels: Sequence[Step]) -> tuple[Step, ...]:
    """Finish kernels that know the position of the kernel whose slots they combine."""
    maker: dict[int, int] = {}
    result: list[Step] = []
    for position, kernel in enumerate(kernels):
        if isinstance(kernel, FinishKernel):
            kernel = replace(kernel, chunks_of=maker[kernel.operands[0].buffer])
        elif isinstance(kernel, LoopKernel):
            maker.update((o.buffer, position) for o in kernel.operands if o.per_chunk)
        result.append(kernel)
    return tuple(result)
