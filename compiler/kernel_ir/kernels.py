"""Kernels: units of native work, the source for every target.

A LoopKernel is a nest of loops over `axes` with an SSA body: each value is assigned
once (registers of reductions aside) and carries the dtype it has. Axis 0 is the chunked
one: the launcher calls the kernel for ranges [begin, end) of it, and ``Loop(0, ...)``
runs over that range; statements outside of it run once per chunk. A GemmKernel is a
call of a matrix product.

Buffers are named by number (see schedule.py); a kernel reads and writes them through
its operands. One operand is one pointer: what is read and written in place is one
operand with access "update".
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import TypeAlias

from staticgrad.compiler.kernel_ir.schemes import Scheme
from staticgrad.ir.expression import Apply, Arg, Expr, Literal, parse
from staticgrad.ir.foreign import Foreign
from staticgrad.ir.node import Node
from staticgrad.ir.size import Dim
from staticgrad.ir.source import Source
from staticgrad.ir.types import INT64, DType

Mode: TypeAlias = typing.Literal["read", "write", "update"]
Combine: TypeAlias = typing.Literal[
    "add", "multiply", "maximum", "minimum", "and", "or"
]

CONVERTED = parse("{T}({0})")

ADD_UP = parse("accumulate_add({0}, {1})")
"""A term added to a sum in memory, in any order."""


def inside(extent: Dim) -> Expr:
    """Argument 0 made to be in 0..extent-1: a result that may move an access."""
    return Apply("inside", (Arg(0), Literal(extent)))


@dataclass(frozen=True, slots=True)
class Operand:
    """Buffer as a kernel sees it.

    `per_chunk`: the buffer has one slot per chunk, and the kernel writes its own slot;
    `slot` elements apart. A Finish kernel combines the slots.
    """

    buffer: int
    mode: Mode
    dtype: DType
    per_chunk: bool = False
    slot: Dim = 0


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch of `extent` elements, private to each thread."""

    dtype: DType
    extent: Dim


@dataclass(frozen=True, slots=True)
class Access:
    """Element at ``offset + sum(strides[a] * index of axis a) + dynamic``.

    `operand` counts operands from 0; scratch number s is -1 - s. `dynamic` is a pair of
    an int64 value, the result of a CheckIndex or of `inside`, and its stride.
    """

    operand: int
    strides: tuple[Dim, ...]
    offset: Dim = 0
    dynamic: tuple[int, Dim] | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """Literal: ``result = number``."""

    result: int
    value: float | int | bool
    dtype: DType


@dataclass(frozen=True, slots=True)
class Load:
    """Load: ``result = memory[access]``."""

    result: int
    access: Access
    dtype: DType


@dataclass(frozen=True, slots=True)
class Compute:
    """``result = expr(args)``.

    `site` is an index into the kernel's sites.
    """

    result: int
    expr: Expr
    args: tuple[int, ...]
    dtype: DType
    site: int = -1


@dataclass(frozen=True, slots=True)
class Index:
    """Index: ``result = offset + sum(strides[a] * index of axis a)``, an int64."""

    result: int
    strides: tuple[Dim, ...]
    offset: Dim = 0


@dataclass(frozen=True, slots=True)
class CheckIndex:
    """Index check: ``value`` wrapped to 0..extent-1; a bad one is reported, and 0.

    `position` is an int64 value, the number of the bad element of the index. With
    extent 0 nothing may be read: the kernel is launched on an empty range.
    """

    result: int
    value: int
    extent: Dim
    position: int
    site: int
    wrap: bool = True


@dataclass(frozen=True, slots=True)
class Store:
    """Store: ``memory[access] = value``."""

    access: Access
    value: int


@dataclass(frozen=True, slots=True)
class Block:
    """Array that a function sees: `shape` in C order, its first element `first`."""

    first: Access
    shape: tuple[Dim, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Invoke:
    """Call: ``function(*arrays)``, which writes the last `results` of them.

    `position` is an int64 value, the number of the call. An exception is reported with
    `site`. `target` is the value that holds the address of a Python function; -1 for a
    compiled one.
    """

    function: Foreign
    arrays: tuple[Block, ...]
    results: int
    position: int
    site: int
    target: int = -1


@dataclass(frozen=True, slots=True)
class Initial:
    """Start of a register at the identity of `combine`, before its loop."""

    register: int
    combine: Combine
    dtype: DType


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Accumulation: ``register = combine(register, value)``; sums may reassociate."""

    register: int
    combine: Combine
    value: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Loop:
    """Loop: `body` for every index of `axis` (of [begin, end) for axis 0).

    Where it is `polled` it may end early, when the run is stopped: the commit, which
    sees the same stop cell, then drops what was computed.
    """

    axis: int
    body: tuple[Statement, ...]
    polled: bool = False


@dataclass(frozen=True, slots=True)
class Rest:
    """Remainder loop: `body` for indices of `axis` behind whole blocks of `unit`.

    A Loop over the axis in it runs over them. `unit` is a power of two.
    """

    axis: int
    unit: int
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocked loop: `body` for each block of at most `size` indices of `axis`.

    A Loop over the axis in it, or Blocks of a smaller size, runs over that block. All
    of them together are the whole blocks of `unit` indices; a Rest stands before the
    outermost. Where `size` is `unit` the loop is one of known length.
    """

    axis: int
    size: int
    body: tuple[Statement, ...]
    unit: int


@dataclass(frozen=True, slots=True)
class Reach:
    """Elements ``step * i + first .. step * i + last``, for index i of axis 0."""

    step: Dim
    first: Dim
    last: Dim


@dataclass(frozen=True, slots=True)
class Tiles:
    """Vector code of a scheme (tile_calls.py), for all of [begin, end).

    It is the only statement of its kernel. There is a reach for each operand; `sizes`
    are what the code has to know beside the scheme's own numbers. What indices of axis
    0 write does not overlap.
    """

    scheme: Scheme
    reaches: tuple[Reach, ...]
    sizes: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class When:
    """Condition: `body` if the bool `condition` is true; for rare cases.

    Values made in it are known in it only, and what it writes counts as not written.
    """

    condition: int
    body: tuple[Statement, ...]


Statement: TypeAlias = (
    Number
    | Load
    | Compute
    | Index
    | CheckIndex
    | Store
    | Invoke
    | Initial
    | Accumulate
    | Loop
    | Rest
    | Blocks
    | Tiles
    | When
)

Value: TypeAlias = Number | Load | Compute | Index | CheckIndex
"""The statements that make a value, `result`."""


def is_polled(kernel: Kernel) -> bool:
    """Whether a kernel has a loop that polls for a stop of the run."""
    body = kernel.body if isinstance(kernel, LoopKernel) else ()
    return any(isinstance(part, Loop) and part.polled for part in body)


def at(statement: Load | Store, access: Access) -> Load | Store:
    """Return the same statement with another access."""
    if isinstance(statement, Load):
        return Load(statement.result, access, statement.dtype)
    return Store(access, statement.value)


def result_of(statement: Statement) -> int | None:
    """Return the value that a statement makes, or None."""
    return statement.result if isinstance(statement, Value) else None


def dtype_of(statement: Value) -> DType:
    """Return the dtype of the value that a statement makes."""
    return INT64 if isinstance(statement, Index | CheckIndex) else statement.dtype


WHERE = 3  # arguments that locate a call: position, site, status


def calls_of(statement: Statement) -> tuple[tuple[Foreign, int], ...]:
    """Return the users' functions that a statement calls, with argument counts."""
    if isinstance(statement, Invoke):
        count = len(statement.arrays)
        if statement.target >= 0:
            count += 1 + sum(len(block.shape) for block in statement.arrays)
        return ((statement.function, count + WHERE),)
    match statement:
        case Compute(_, Apply(Foreign() as function, args)):
            return ((function, len(args)),)
    return ()


@dataclass(frozen=True, slots=True)
class Site:
    """Operation, source line and scope of a statement, for errors and profiles."""

    op: str
    source: Source | None
    scope: str = ""


def site_of(node: Node) -> Site:
    """Return the Site of a kernel's statements that compute `node`."""
    return Site(node.op.name, node.source, node.scope)


@dataclass(frozen=True, slots=True)
class LoopKernel:
    """Loop nest; `axes` are its extents, outermost (chunked) first, at least one.

    `name` describes it to people. `row_cost` is the work of one index of axis 0 in
    additions, from which the launcher derives chunks and whether to use threads.
    `parallel` is False where chunks would not be independent: it is then one chunk. A
    chunk has at least `least_rows` indices, so that slots stay small beside the data.
    """

    name: str
    axes: tuple[Dim, ...]
    operands: tuple[Operand, ...]
    scratch: tuple[Scratch, ...]
    body: tuple[Statement, ...]
    sites: tuple[Site, ...]
    row_cost: Dim
    parallel: bool = True
    fails: bool = False
    least_rows: int = 1


@dataclass(frozen=True, slots=True)
class GemmKernel:
    """Product ``C = alpha * A @ B + beta * C`` in row-major terms, `batch` times.

    Operands are A (m, k), B (k, n), C (m, n). A row is `ld` elements after the one
    before; a transposed operand is stored as (k, m) or (n, k). `offsets` and
    `batch_strides` are in elements.
    """

    name: str
    operands: tuple[Operand, Operand, Operand]
    m: Dim
    n: Dim
    k: Dim
    transposed: tuple[bool, bool]
    ld: tuple[Dim, Dim, Dim]
    offsets: tuple[Dim, Dim, Dim]
    batch: Dim
    batch_strides: tuple[Dim, Dim, Dim]
    alpha: float
    beta: float
    sites: tuple[Site, ...]
    fails: bool = False


@dataclass(frozen=True, slots=True)
class FinishKernel:
    """Combination of chunks' slots: ``out = combine(slots)``; dropped for one chunk.

    `chunks_of` is the position in the schedule of the kernel that wrote the slots. With
    one chunk that kernel writes `out` directly and this one is dropped. It is -1 until
    the order is known.
    """

    name: str
    operands: tuple[Operand, Operand]
    extent: Dim
    combine: Combine
    dtype: DType
    sites: tuple[Site, ...]
    fails: bool = False
    chunks_of: int = -1


Kernel: TypeAlias = LoopKernel | GemmKernel | FinishKernel
