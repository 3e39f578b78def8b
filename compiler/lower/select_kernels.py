"""Kernel of Select: the first k elements of each row, by insertion while reading.

Each row has k slots in scratch, of a value and the position that it has in the row.
Elements are compared with the last slot, a block at a time by vectors; in most blocks
none is ahead of it, and the block is left. An element that is ahead moves the slots
that it is ahead of by one and takes the place that becomes free. Slots are walked from
the last to the first, so each step reads what no step before it has written, and the
walk vectorises. Slot 0 is a guard that nothing is ahead of; an empty slot gives way to
everything.

Of n elements in random order about ``k (1 + log(n / k))`` get into the slots. Weakness:
in the worst order, increasing, all do, which is k comparisons per element; for k beyond
about 100 a sort would take less.
"""

from __future__ import annotations

from collections.abc import Callable

from staticgrad.compiler.kernel_ir.kernels import (
    CONVERTED,
    Access,
    Accumulate,
    Compute,
    Index,
    Initial,
    Kernel,
    Load,
    Loop,
    LoopKernel,
    Number,
    Operand,
    Scratch,
    Statement,
    Store,
    When,
    site_of,
)
from staticgrad.compiler.kernel_ir.layouts import base_of, layout_of
from staticgrad.compiler.kernel_ir.walks import loops
from staticgrad.ir.expression import Expr, filled, parse
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Layout, Select
from staticgrad.ir.size import Dim, product
from staticgrad.ir.types import BOOL, INT32, INT64, DType

BLOCK = 16  # elements that are compared at once: one or a few vectors
EMPTY, GUARD = -1, -2  # positions of slots that hold no element
VALUES, PLACES = -1, -2  # scratch areas, as operands are numbered
LEADS = parse(f"c_or({{2}} == {EMPTY}, c_and({{2}} != {GUARD}, {{ahead}}))")
SELECT = parse("select({0}, {1}, {2})")


def selected(node: Node, buffer_of: Callable[[Tensor], int]) -> list[Kernel]:
    """Return one kernel that writes both outputs of a Select."""
    code, (x,) = node.op.code, node.inputs
    assert isinstance(code, Select)
    values, places = node.outputs
    k: Dim = node.attrs["k"]
    rows: tuple[Dim, ...] = x.shape[:-1] or (1,)
    blocks = x.shape[-1] // BLOCK
    axes = (*rows, blocks, k, BLOCK, x.shape[-1] - blocks * BLOCK)
    operands = (
        Operand(buffer_of(base_of(x)), "read", x.dtype),
        Operand(buffer_of(values), "write", values.dtype),
        Operand(buffer_of(places), "write", places.dtype),
    )
    leads = filled(LEADS, {"ahead": code.expr})
    row = _Body(x, k, leads, len(rows)).row()
    kernel = LoopKernel(
        name=node.op.name,
        axes=axes,
        operands=operands,
        scratch=(Scratch(x.dtype, k + 1), Scratch(_places_of(x), k + 1)),
        body=loops(range(len(rows)), row),
        sites=(site_of(node),),
        row_cost=(x.shape[-1] * 4 + k * 16) * product(rows[1:]),
        parallel=k != 0,
    )
    return [kernel]


def _places_of(x: Tensor) -> DType:
    """Return the dtype of positions: as wide as values, for vectors of equal lanes."""
    n = x.shape[-1]
    short = x.dtype.itemsize <= 4 and isinstance(n, int) and n < 2**31
    return INT32 if short else INT64


class _Body:
    """Statements of one row.

    The axes behind those of rows: blocks, slots, elements of a block, and those of what
    is left behind the last block.
    """

    def __init__(self, x: Tensor, k: Dim, leads: Expr, rank: int) -> None:
        self.x = x
        self.k = k
        self.leads = leads
        self.rank = rank
        self.count = 0
        self.dtypes = {VALUES: x.dtype, PLACES: _places_of(x)}

    def row(self) -> tuple[Statement, ...]:
        """Return empty slots, then every element, then the results."""
        return (*self._clear(), self._blocks(), self._rest(), self._write())

    def _strides(self, **steps: Dim) -> tuple[Dim, ...]:
        """Return strides of 0 along rows, and `steps` along the axes behind them."""
        names = ("block", "slot", "element", "rest")
        return (*(0,) * self.rank, *(steps.get(name, 0) for name in names))

    def _new(self) -> int:
        self.count += 1
        return self.count - 1

    def _slots(self, step: int, first: Dim) -> tuple[Access, Access]:
        """Return value and place of slot ``first + step * j`` in step j."""
        strides = self._strides(slot=step)
        return Access(VALUES, strides, first), Access(PLACES, strides, first)

    def _clear(self) -> tuple[Statement, ...]:
        zero, guard, empty = self._new(), self._new(), self._new()
        value: bool | int = False if self.x.dtype == BOOL else 0
        (first, place), (later, places) = self._slots(0, 0), self._slots(1, 1)
        fill = (Store(later, zero), Store(places, empty))
        return (
            Number(zero, value, self.x.dtype),
            Number(guard, GUARD, self.dtypes[PLACES]),
            Number(empty, EMPTY, self.dtypes[PLACES]),
            Store(first, zero),
            Store(place, guard),
            Loop(self.rank + 1, fill),
        )

    def _element(self, offset: Dim, **steps: Dim) -> Access:
        """Return an element of the row: `offset` and `steps` count elements."""
        layout = layout_of(self.x)
        along = layout.strides[-1]
        rows = layout.strides[:-1] if self.x.ndim > 1 else (0,)
        behind = {name: step * along for name, step in steps.items()}
        strides = (*rows, *self._strides(**behind)[self.rank :])
        return Access(0, strides, layout.offset + offset * along)

    def _blocks(self) -> Loop:
        """Return blocks of elements; in most of them none precedes the last slot."""
        value, leads, found = self._new(), self._new(), self._new()
        loads, last = self._loaded(self._slots(0, self.k))
        access = self._element(0, block=BLOCK, element=1)
        look = (
            Load(value, access, self.x.dtype),
            Compute(leads, self.leads, (value, *last), BOOL),
            Accumulate(found, "or", leads, BOOL),
        )
        step = self._step(access, self._strides(block=BLOCK, element=1), 0)
        body = (
            *loads,
            Initial(found, "or", BOOL),
            Loop(self.rank + 2, look),
            When(found, (Loop(self.rank + 2, step),)),
        )
        return Loop(self.rank, body)

    def _rest(self) -> Loop:
        first = self.x.shape[-1] // BLOCK * BLOCK
        access = self._element(first, rest=1)
        return Loop(self.rank + 3, self._step(access, self._strides(rest=1), first))

    def _step(
        self, access: Access, strides: tuple[Dim, ...], first: Dim
    ) -> tuple[Statement, ...]:
        """Insert one element, if it precedes the last slot."""
        value, index, place, leads = (self._new() for _ in range(4))
        loads, last = self._loaded(self._slots(0, self.k))
        return (
            Load(value, access, self.x.dtype),
            Index(index, strides, first),
            Compute(place, CONVERTED, (index,), self.dtypes[PLACES]),
            *loads,
            Compute(leads, self.leads, (value, *last), BOOL),
            When(leads, (Loop(self.rank + 1, self._insert(value, place)),)),
        )

    def _insert(self, value: int, place: int) -> tuple[Statement, ...]:
        """Insert an element, shifting the slots behind it by one.

        The slots are k, k - 1, ..., 1.
        """
        own, before = self._slots(-1, self.k), self._slots(-1, self.k - 1)
        loads, (x, at, x_before, at_before) = self._loaded((*own, *before))
        leads, passes = self._new(), self._new()
        body: list[Statement] = [
            *loads,
            Compute(leads, self.leads, (value, x, at), BOOL),
            Compute(passes, self.leads, (value, x_before, at_before), BOOL),
        ]
        triples = ((value, x, x_before), (place, at, at_before))
        for target, (new, old, moved) in zip(own, triples, strict=True):
            kept, result = self._new(), self._new()
            dtype = self.dtypes[target.operand]
            body += [
                Compute(kept, SELECT, (leads, new, old), dtype),
                Compute(result, SELECT, (passes, moved, kept), dtype),
                Store(target, result),
            ]
        return tuple(body)

    def _loaded(self, places: tuple[Access, ...]) -> tuple[list[Statement], list[int]]:
        numbers = [self._new() for _ in places]
        loads: list[Statement] = [
            Load(n, access, self.dtypes[access.operand])
            for n, access in zip(numbers, places, strict=True)
        ]
        return loads, numbers

    def _write(self) -> Loop:
        """Write slots 1, 2, ..., k to the results."""
        loads, (value, place) = self._loaded(self._slots(1, 1))
        index = self._new()
        widened = Compute(index, CONVERTED, (place,), INT64)
        shape = (*self.x.shape[:-1], self.k)
        plain = Layout.contiguous(shape).strides
        rows = plain[:-1] if self.x.ndim > 1 else (0,)
        strides = (*rows, *self._strides(slot=1)[self.rank :])
        stores = Store(Access(1, strides), value), Store(Access(2, strides), index)
        return Loop(self.rank + 1, (*loads, widened, *stores))
