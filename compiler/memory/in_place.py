"""In-place writing: a kernel overwrites a temporary that it reads for the last time.

The two buffers become one, and the two operands one operand with access "update", if
every element is read before it is written: the reads and the writes have equal strides
that give each element an index of its own, and every read stands before the write.
A new value of a stored leaf that the kernel also reads is written in place likewise,
and a carry of a loop is in the place of what it starts as.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from operator import itemgetter

from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Invoke,
    Load,
    LoopKernel,
    Statement,
    Store,
    Tiles,
    When,
    at,
)
from staticgrad.compiler.kernel_ir.schedule import (
    Buffer,
    ControlKernel,
    Schedule,
    Step,
    started_in_place,
    with_buffers,
)
from staticgrad.compiler.kernel_ir.walks import Body, each_statement, with_axes
from staticgrad.errors import CompilerBug
from staticgrad.ir.size import product


def in_place(schedule: Schedule) -> Schedule:
    """Merge buffers of `schedule` so that kernels write in place."""
    joining = _Joining(schedule)
    kernels: list[Step] = []
    for position, kernel in enumerate(schedule.kernels):
        pairs = joining.join(kernel, position)
        if pairs and isinstance(kernel, LoopKernel):
            kernel = _with_pairs(kernel, dict(pairs))
        elif pairs and isinstance(kernel, ControlKernel):
            kernel = started_in_place(kernel, pairs)
        kernels.append(kernel)
    return _compact(schedule, kernels, joining)


def sharing(schedule: Schedule) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Return the buffer that each is aliased to, and the live ranges of the rest.

    The second dict has the first and the last kernel of every buffer that is left.
    """
    joining = _Joining(schedule)
    for position, kernel in enumerate(schedule.kernels):
        joining.join(kernel, position)
    first, last, merged = joining.first, joining.last, joining.merged
    end = len(schedule.kernels) - 1
    return merged, {b: (first[b], min(last[b], end)) for b in first if b not in merged}


def shareable(schedule: Schedule, kernel: Step) -> list[tuple[int, int]]:
    """Return pairs (read, written) of buffers that `in_place` makes one.

    It does where the first dies at `kernel` and the second is made by it.
    """
    numbers = [operand.buffer for operand in kernel.operands]
    buffers = schedule.buffers
    if isinstance(kernel, ControlKernel):
        pairs = _free_starts(kernel, numbers)
    elif isinstance(kernel, LoopKernel):
        uses = _Uses.of(kernel)
        pairs = [
            (read, write)
            for write, read in permutations(range(len(numbers)), 2)
            if kernel.operands[write].mode == "write"
            and kernel.operands[read].mode == "read"
            and not kernel.operands[write].per_chunk
            and _is_elementwise(buffers[numbers[write]], kernel, uses, read, write)
        ]
    else:
        pairs = []
    found = ((numbers[read], numbers[write]) for read, write in pairs)
    return [(a, b) for a, b in found if _are_alike(buffers[a], buffers[b])]


def _free_starts(
    kernel: ControlKernel, numbers: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the pairs of `starts` whose first operand is not needed otherwise."""
    read = {port.operand for ports in kernel.ports for port in ports}
    return [
        pair
        for pair in kernel.starts
        if list(numbers).count(numbers[pair[0]]) == 1 and pair[0] not in read
    ]


def _are_alike(old: Buffer, new: Buffer) -> bool:
    return (
        old.kind == new.kind == "temporary"
        and old.dtype == new.dtype
        and old.elements == new.elements
    )


class _Joining:
    """Merging of buffers, kernel by kernel, with the kernels between which they live.

    `merged` has the buffer that took the place of another.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.merged: dict[int, int] = {}
        for position, kernel in enumerate(schedule.kernels):
            for operand in kernel.operands:
                self.first.setdefault(operand.buffer, position)
                self.last[operand.buffer] = position
        for buffer in (*schedule.outputs, *schedule.finite):
            self.last[buffer] = len(schedule.kernels)

    def root(self, buffer: int) -> int:
        """Return the buffer into which `buffer` is merged."""
        while buffer in self.merged:
            buffer = self.merged[buffer]
        return buffer

    def join(self, kernel: Step, position: int) -> list[tuple[int, int]]:
        """Return pairs of operands that become one.

        Of a loop's (written, read): what is written is what dies here, or the same
        leaf. Of a step with bodies (start, operand), as in its `starts`.
        """
        numbers = [self.root(operand.buffer) for operand in kernel.operands]
        if isinstance(kernel, LoopKernel):
            return list(self._written(kernel, numbers, position).items())
        if isinstance(kernel, ControlKernel):
            return self._started(kernel, numbers, position)
        return []

    def _written(
        self, kernel: LoopKernel, numbers: Sequence[int], position: int
    ) -> dict[int, int]:
        """Return operand written -> operand read; `numbers` are the operands' buffers.

        Of those that may be, the one made last, which is in the nearest cache.
        """
        pairs: dict[int, int] = {}
        uses: _Uses | None = None
        latest = sorted(enumerate(numbers), key=lambda pair: -self.first[pair[1]])
        for write, target in enumerate(numbers):
            if kernel.operands[write].mode != "write":
                continue
            for read, source in latest:
                if kernel.operands[read].mode != "read" or read in pairs.values():
                    continue
                same = source == target
                fits = same or (
                    not kernel.operands[write].per_chunk
                    and self._may_share(position, source, target)
                )
                if fits and uses is None:
                    uses = _Uses.of(kernel)
                made = self.schedule.buffers[kernel.operands[write].buffer]
                if fits and uses and _is_elementwise(made, kernel, uses, read, write):
                    pairs[write] = read
                    if not same:
                        self._merge(source, target)
                    break
                if same:
                    raise CompilerBug(f"{kernel.name} cannot write its leaf in place")
        return pairs

    def _started(
        self, kernel: ControlKernel, numbers: Sequence[int], position: int
    ) -> list[tuple[int, int]]:
        """Return operands that start as another one, in its place."""
        found: list[tuple[int, int]] = []
        for pair in _free_starts(kernel, numbers):
            source, target = (numbers[n] for n in pair)
            if self._may_share(position, source, target):
                self._merge(source, target)
                found.append(pair)
        return found

    def _merge(self, source: int, target: int) -> None:
        self.merged[target] = source
        self.last[source] = self.last[target]

    def _may_share(self, position: int, source: int, target: int) -> bool:
        """Whether `target` begins where `source` ends, and is as large."""
        buffers = self.schedule.buffers
        return (
            self.first[target] == position
            and self.last[source] == position
            and _are_alike(buffers[source], buffers[target])
        )


def _is_elementwise(
    target: Buffer, kernel: LoopKernel, uses: _Uses, read: int, write: int
) -> bool:
    """Whether every element is written once, and read at its own index only before.

    The store may stand outside of inner loops, as that of what a row gave.
    """
    axes = uses.axes.get(write, ())
    if uses.conditional:
        return False  # its result may stay unwritten
    if product(tuple(kernel.axes[a] for a in axes)) != target.elements:
        return False
    both = (*uses.accesses.get(read, ()), *uses.accesses.get(write, ()))
    accesses = sorted(both, key=itemgetter(0))
    stores = [access for _, is_store, access in accesses if is_store]
    if len(stores) != 1 or not accesses[-1][1]:
        return False
    (store,) = stores
    place = (store.strides, store.offset)
    same = all((a.strides, a.offset) == place for _, _, a in accesses)
    fixed = store.dynamic is None and all(a.dynamic is None for _, _, a in accesses)
    own = all(store.strides[axis] != 0 or kernel.axes[axis] == 1 for axis in axes)
    return same and fixed and own


@dataclass(frozen=True, slots=True)
class _Uses:
    """Accesses to each operand in order, and the axes around its last store.

    Each access is (whether it stores, access). `conditional`: there may be others, or
    fewer.
    """

    accesses: dict[int, list[tuple[int, bool, Access]]]
    axes: dict[int, tuple[int, ...]]
    conditional: bool

    @staticmethod
    def of(kernel: LoopKernel) -> _Uses:
        """Collect the accesses in one walk over the statements."""
        accesses: dict[int, list[tuple[int, bool, Access]]] = {}
        axes: dict[int, tuple[int, ...]] = {}
        conditional = False
        for place, (statement, around) in enumerate(with_axes(kernel.body)):
            conditional |= isinstance(statement, When | Invoke | Tiles)
            if isinstance(statement, Load | Store):
                access, stores = statement.access, isinstance(statement, Store)
                accesses.setdefault(access.operand, []).append((place, stores, access))
                if stores:
                    axes[access.operand] = around
        return _Uses(accesses, axes, conditional)


def _with_pairs(kernel: LoopKernel, pairs: dict[int, int]) -> LoopKernel:
    """Return the kernel with each written operand merged into the overwritten one."""
    kept = [n for n in range(len(kernel.operands)) if n not in pairs]
    number = {old: new for new, old in enumerate(kept)}
    number.update((write, number[read]) for write, read in pairs.items())
    operands = tuple(
        replace(o, mode="update") if n in pairs.values() else o
        for n, o in enumerate(kernel.operands)
        if n not in pairs
    )
    return replace(kernel, operands=operands, body=_renumbered(kernel.body, number))


def _renumbered(body: Body, number: dict[int, int]) -> Body:
    def changed(statement: Statement) -> Statement:
        if not isinstance(statement, Load | Store):
            return statement
        a = statement.access
        operand = number.get(a.operand, a.operand)
        return at(statement, Access(operand, a.strides, a.offset, a.dynamic))

    return each_statement(body, changed)


def _compact(
    schedule: Schedule, kernels: Sequence[Step], joining: _Joining
) -> Schedule:
    """Return `schedule` with `kernels` and the buffers left, numbered from 0."""
    kept = [b for b in schedule.buffers if b.number not in joining.merged]
    left = {b.number: new for new, b in enumerate(kept)}
    number = [left[joining.root(b.number)] for b in schedule.buffers]
    buffers = tuple(
        b if b.number == new else replace(b, number=new) for new, b in enumerate(kept)
    )
    return replace(
        schedule,
        buffers=buffers,
        kernels=tuple(with_buffers(k, number.__getitem__) for k in kernels),
        outputs=tuple(number[b] for b in schedule.outputs),
        finite=tuple(number[b] for b in schedule.finite),
    )
