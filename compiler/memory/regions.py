"""Regions: successive kernels that workers run by rows, without barriers.

A worker takes some rows of a batch through all kernels of a region: a small layer after
a small layer, each too small to be shared out by itself. That is right if nothing that
a kernel writes is read at other rows by another: every buffer that is written in the
region is as many rows of equal length as there are rows, and all accesses to it keep to
the row that the kernel is at. What is only read may be read anywhere.

A region grows from a matrix product, whose rows it takes, in both directions. Products
and loops that are shared out by themselves end it, and so do reductions that have to be
finished. Rows, not threads, decide, so a result has the same bits for any number of
threads. Everything that a region touches lives through all of it, which is why it ends
before that is more than MOST_BYTES.

Weakness: a bias gradient ends a region, so backward passes consist of short ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from staticgrad.compiler.gemm.blas import shape_of
from staticgrad.compiler.gemm.tile_driver import stands_alone, work_of
from staticgrad.compiler.kernel_ir.chunks import chunking
from staticgrad.compiler.kernel_ir.kernels import (
    GemmKernel,
    Invoke,
    Load,
    LoopKernel,
    Store,
    Tiles,
)
from staticgrad.compiler.kernel_ir.plan import Region
from staticgrad.compiler.kernel_ir.schedule import Buffer, Schedule, Step
from staticgrad.compiler.kernel_ir.walks import statements_of
from staticgrad.ir.size import evaluate

UNIT = 8  # rows of a tile of a product: a part is a whole number of them
MOST_REGIONS = 16
LEAST_ROWS = 2 * UNIT
LEAST_WORK = 100_000
"""Additions from which a region is made: about 15 us, in two halves. An LSTM's step
back is one: two threads take 1.5 ms for fifty of them, there and back, not 1.8."""
MOST_BYTES = 1 << 19
"""Of the buffers of a region: half of a second-level cache."""

Values = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Use:
    """Use of a buffer by a kernel: whether it writes, and keeps to its row."""

    buffer: int
    writes: bool
    keeps: bool


@dataclass(frozen=True, slots=True)
class _Part:
    """Accesses of a kernel at a row, with its work in additions."""

    uses: tuple[_Use, ...]
    per_row: int
    work: int


def find(schedule: Schedule, values: Values) -> tuple[Region, ...]:
    """Return the regions of `schedule`, from the first kernel on, for given sizes."""
    found: list[Region] = []
    end = 0
    for position, kernel in enumerate(schedule.kernels):
        if position < end or not isinstance(kernel, GemmKernel):
            continue
        region = _around(schedule, values, position, end)
        if region is not None:
            found.append(region)
            end = region.stop
    return tuple(found)


def _around(schedule: Schedule, values: Values, seed: int, start: int) -> Region | None:
    """Grow the region from the product at `seed`, from `start` on."""
    kernel = schedule.kernels[seed]
    assert isinstance(kernel, GemmKernel)
    count = evaluate(kernel.m, values)
    if count < LEAST_ROWS:
        return None
    growing = _Growing(schedule, values, count)
    if not growing.take(seed):
        return None
    first, stop = seed, seed + 1
    while stop < len(schedule.kernels) and stop != schedule.commit:
        if not growing.take(stop):
            break
        stop += 1
    while first > start and first != schedule.commit and growing.take(first - 1):
        first -= 1
    if stop - first < 2 or growing.work < LEAST_WORK:
        return None
    rows = UNIT * -(-count // (UNIT * MOST_REGIONS))
    per_row = tuple(growing.parts[k].per_row for k in range(first, stop))
    return Region(first, stop, rows, -(-count // rows), per_row)


class _Growing:
    """Accesses of a growing region's kernels to buffers."""

    def __init__(self, schedule: Schedule, values: Values, count: int) -> None:
        self.schedule = schedule
        self.values = values
        self.count = count
        self.parts: dict[int, _Part] = {}
        self.work = 0
        self.bytes = 0
        self._written: set[int] = set()
        self._straying: set[int] = set()
        self._touched: set[int] = set()

    def take(self, position: int) -> bool:
        """Add a kernel, if it fits."""
        part = self._part(self.schedule.kernels[position])
        if part is None:
            return False
        written = {use.buffer for use in part.uses if use.writes}
        straying = {use.buffer for use in part.uses if not use.keeps}
        if (self._written | written) & (self._straying | straying):
            return False
        touched = {use.buffer for use in part.uses}
        added = sum(map(self._bytes, touched - self._touched))
        if self.bytes + added > MOST_BYTES:
            return False
        self.bytes += added
        self.work += part.work
        self.parts[position] = part
        self._written |= written
        self._straying |= straying
        self._touched |= touched
        return True

    def _bytes(self, number: int) -> int:
        buffer = self.schedule.buffers[number]
        if buffer.kind != "temporary":
            return 0
        return evaluate(buffer.elements, self.values) * buffer.dtype.itemsize

    def _part(self, kernel: Step) -> _Part | None:
        if isinstance(kernel, GemmKernel):
            return self._product(kernel)
        if isinstance(kernel, LoopKernel):
            return self._loop(kernel)
        return None

    def _product(self, kernel: GemmKernel) -> _Part | None:
        m, n, k, batch = (
            evaluate(d, self.values)
            for d in (kernel.m, kernel.n, kernel.k, kernel.batch)
        )
        lds = [evaluate(ld, self.values) for ld in kernel.ld]
        starts = [evaluate(offset, self.values) for offset in kernel.offsets]
        if m != self.count or batch != 1 or kernel.transposed[0] or n == 1:
            return None
        table = shape_of(kernel, self.values)
        if stands_alone(table):
            return None
        left, right, result = (operand.buffer for operand in kernel.operands)
        keeps = self._row(left) == lds[0] and starts[0] + k <= lds[0]
        writes = self._row(result) == lds[2] and starts[2] + n <= lds[2]
        uses = (
            _Use(left, False, keeps),
            _Use(right, False, False),
            _Use(result, True, writes),
        )
        return _Part(uses, 0, work_of(table)) if n and k else None

    def _loop(self, kernel: LoopKernel) -> _Part | None:
        calls = any(isinstance(s, Invoke) for s in statements_of(kernel.body))
        if not kernel.parallel or calls:
            return None  # a function of the user's sees whole arrays
        extent = evaluate(kernel.axes[0], self.values)
        per_row, rest = divmod(extent, self.count)
        slots = any(operand.per_chunk for operand in kernel.operands)
        if rest or not per_row or slots or chunking(kernel, self.values)[0] > 1:
            return None
        uses = tuple(self._accesses(kernel, per_row))
        work = extent * evaluate(kernel.row_cost, self.values)
        return _Part(uses, per_row, work)

    def _accesses(self, kernel: LoopKernel, per_row: int) -> Iterator[_Use]:
        extents = [evaluate(axis, self.values) for axis in kernel.axes]
        extents[0] = per_row
        for statement in statements_of(kernel.body):
            if isinstance(statement, Tiles):
                yield from self._reached(kernel, statement, per_row)
            if not isinstance(statement, Load | Store):
                continue
            access = statement.access
            if access.operand < 0:  # scratch
                continue
            strides = [evaluate(stride, self.values) for stride in access.strides]
            start = evaluate(access.offset, self.values)
            spans = [s * (n - 1) for s, n in zip(strides, extents, strict=True)]
            low = start + sum(span for span in spans if span < 0)
            high = start + sum(span for span in spans if span > 0)
            buffer = kernel.operands[access.operand].buffer
            row = self._row(buffer)
            keeps = strides[0] * per_row == row and low >= 0 and high < row
            free = access.dynamic is not None or not row
            yield _Use(buffer, isinstance(statement, Store), keeps and not free)

    def _reached(
        self, kernel: LoopKernel, tiles: Tiles, per_row: int
    ) -> Iterator[_Use]:
        """Yield the uses of operands by tiles, which have no access of their own."""
        for operand, reach in zip(kernel.operands, tiles.reaches, strict=True):
            step, low, high = (
                evaluate(d, self.values) for d in (reach.step, reach.first, reach.last)
            )
            row = self._row(operand.buffer)
            within = low >= 0 and high + step * (per_row - 1) < row
            keeps = row > 0 and step * per_row == row and within
            if operand.mode != "write":
                yield _Use(operand.buffer, False, keeps)
            if operand.mode != "read":
                yield _Use(operand.buffer, True, keeps)

    def _row(self, number: int) -> int:
        """Return the elements of a row of a buffer with the region's number of rows."""
        buffer: Buffer = self.schedule.buffers[number]
        row, rest = divmod(evaluate(buffer.elements, self.values), self.count)
        return 0 if rest else row
