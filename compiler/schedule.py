"""Schedule: kernels in order, and the buffers that they read and write.

The commit rule: kernels before `commit` write temporaries and outputs only; from there
on no kernel can fail, and parameters and states are written. A run stops (stop poll,
failed check, non-finite loss) only at `commit`, so that everything stays at the last
finished step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy.typing as npt

from staticgrad.compiler.kernels import Kernel
from staticgrad.ir.node import Stored
from staticgrad.ir.size import Dim, Shape, product
from staticgrad.ir.types import DType

BufferKind: TypeAlias = Literal[
    "input", "stored", "constant", "output", "temporary", "slots"
]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory for one tensor.

    Kinds: "input" (given at the call; `position` in the inputs), "stored" (a parameter
    or state, in its own storage), "constant" (`value`), "output" (made at the call;
    `position` in the outputs), "temporary" (in the arena), "slots" (in the arena: one
    slot of `shape` per chunk of the kernel that writes it).
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
        """How many elements it (one slot of it) has."""
        return product(self.shape)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Kernels in order. `buffers[b].number == b`.

    `outputs` names the buffer of each output; several outputs may be one buffer.
    `finite` lists the buffers (float scalars) that have to be finite at `commit`.
    `unplanned` are the sizes in bytes of every tensor of the unfused graph.
    """

    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    commit: int
    outputs: tuple[int, ...]
    finite: tuple[int, ...] = ()
    unplanned: tuple[Dim, ...] = ()
