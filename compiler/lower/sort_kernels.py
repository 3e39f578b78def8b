"""Kernel of Sort: radix sort of rows, counting sort of short ones.

A key is an unsigned integer as wide as an element, in the order in which elements sort:
floats by their bits, those of negative ones in reverse order, NaN last; signed integers
with the sign flipped. Where places are wanted -0.0 becomes 0.0, whose place it shares.

Rows are sorted by one byte of their keys after the other, from the last: elements of
each byte are counted, counts become where those elements begin, and each element goes
to its next place (a radix sort; D. Knuth, TAOCP 3, 5.2.5). That is linear and stable
whatever the data are. A byte that is equal in all of a row, as most bytes of small
integers are, is a copy.

Short rows, whose length is known, are counted instead: an element's place is the number
of those that come before it, a comparison of each with each in vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from staticgrad.compiler.kernel_ir.kernels import (
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
    inside,
    site_of,
)
from staticgrad.compiler.kernel_ir.layouts import base_of, layout_of
from staticgrad.compiler.kernel_ir.walks import loops
from staticgrad.ir.expression import parse
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Layout, Sort
from staticgrad.ir.size import Dim, product
from staticgrad.ir.types import BOOL, INT32, INT64, DType, computed, kind_of

DIGIT = 8  # bits of a key that are sorted at a time
BINS = 1 << DIGIT
LANES = 16  # of the widest register: counted rows are whole ones, but of float64
FEW, FEW_PER_DIGIT = 96, 24  # elements of a row up to which it is counted
COST = 8  # additions that an element takes for each digit
FROM, TO, COUNTS, SUM, PLACES_FROM, PLACES_TO = range(-1, -7, -1)
"""Scratch areas, as operands are numbered: keys, twice; how often each digit occurs,
and where its elements go next; the sum of counts; places, twice."""


def sorted_rows(node: Node, buffer_of: Callable[[Tensor], int]) -> list[Kernel]:
    """Return one kernel that writes the values or the places of all rows."""
    code, (x,), result = node.op.code, node.inputs, node.outputs[0]
    assert isinstance(code, Sort)
    rows: tuple[Dim, ...] = x.shape[:-1] or (1,)
    n = x.shape[-1]
    body = _Body(x, code.places, len(rows))
    row = body.counted() if body.few else body.by_digits()
    kernel = LoopKernel(
        name=node.op.name,
        axes=(*rows, n, body.padded if body.few else BINS),
        operands=(
            Operand(buffer_of(base_of(x)), "read", x.dtype),
            Operand(buffer_of(result), "write", result.dtype),
        ),
        scratch=body.scratch(),
        body=loops(range(len(rows)), row),
        sites=(site_of(node),),
        row_cost=n * (n if body.few else COST * body.digits) * product(rows[1:]),
    )
    return [kernel]


class _Body:
    """Statements of one row; the axes behind those of rows are elements and bins."""

    def __init__(self, x: Tensor, places: bool, rank: int) -> None:
        self.x = x
        self.places = places
        self.rank = rank
        self.count = 0
        self.wide = computed(x.dtype)
        self.key = np.dtype(f"uint{8 * self.wide.itemsize}")
        self.digits = self.key.itemsize * 8 // DIGIT
        n = x.shape[-1]
        self.few = isinstance(n, int) and n <= min(FEW, FEW_PER_DIGIT * self.digits)
        fills = isinstance(n, int) and self.key.itemsize <= 4
        self.padded: Dim = -(-n // LANES) * LANES if fills else n
        self.place = INT32 if isinstance(n, int) and n < 2**31 else INT64

    def scratch(self) -> tuple[Scratch, ...]:
        """Return the areas by number; of one element where unused."""
        n, digits = self.x.shape[-1], 0 if self.few else self.digits
        twice = 1 if self.few else n
        placed = self.padded if self.few else n if self.places else 1
        return (
            Scratch(self.key, self.padded if self.few else n),
            Scratch(self.key, twice),
            Scratch(INT64, digits * BINS + 1),
            Scratch(INT64, 1),
            Scratch(self.place, placed),
            Scratch(self.place, twice if self.places else 1),
        )

    def _new(self) -> int:
        self.count += 1
        return self.count - 1

    def _strides(self, element: Dim = 0, bins: Dim = 0) -> tuple[Dim, ...]:
        return (*(0,) * self.rank, element, bins)

    def _at(self, area: int, second: bool = False) -> Access:
        """Return the element of an area; along the axis of bins if `second`."""
        return Access(area, self._strides(int(not second), int(second)))

    def _compute(
        self, body: list[Statement], formula: str, args: Sequence[int], dtype: DType
    ) -> int:
        result = self._new()
        body.append(Compute(result, parse(formula), tuple(args), dtype))
        return result

    def _inside(self, body: list[Statement], value: int, extent: Dim) -> int:
        result = self._new()
        body.append(Compute(result, inside(extent), (value,), INT64))
        return result

    def _load(self, body: list[Statement], access: Access, dtype: DType) -> int:
        result = self._new()
        body.append(Load(result, access, dtype))
        return result

    def _number(self, body: list[Statement], value: int, dtype: DType) -> int:
        result = self._new()
        body.append(Number(result, value, dtype))
        return result

    def _index(self, body: list[Statement], strides: tuple[Dim, ...]) -> int:
        result = self._new()
        body.append(Index(result, strides))
        return result

    def by_digits(self) -> tuple[Statement, ...]:
        """Count all digits, move the row once for each, write it."""
        last = (FROM, TO)[self.digits % 2]
        return (
            *self._empty_bins(),
            self._keys(),
            *(part for digit in range(self.digits) for part in self._moves(digit)),
            self._write(last),
        )

    def _empty_bins(self) -> tuple[Statement, ...]:
        body: list[Statement] = []
        zero = self._number(body, 0, INT64)
        tables = (
            Access(COUNTS, self._strides(bins=1), digit * BINS)
            for digit in range(self.digits)
        )
        return (*body, Loop(self.rank + 1, tuple(Store(at, zero) for at in tables)))

    def _keys(self) -> Loop:
        """Write keys and places, and count each digit of them."""
        body: list[Statement] = []
        key = self._key(body)
        body += [Store(self._at(area), key) for area in (FROM, TO)]
        if self.places:
            own = self._own_place(body)
            body += [Store(self._at(area), own) for area in (PLACES_FROM, PLACES_TO)]
        one = self._number(body, 1, INT64)
        for digit in range(self.digits):
            place = self._bin(body, key, digit)
            found = self._load(body, place, INT64)
            more = self._compute(body, "{0} + {1}", (found, one), INT64)
            body.append(Store(place, more))
        return Loop(self.rank, tuple(body))

    def _own_place(self, body: list[Statement]) -> int:
        index = self._index(body, self._strides(1))
        return self._compute(body, "{T}({0})", (index,), self.place)

    def _key(self, body: list[Statement]) -> int:
        """Return an element as an integer."""
        layout = layout_of(self.x)
        *rows, along = layout.strides if self.x.ndim else (0,)
        strides = (*(rows or (0,)), along, 0)
        value = self._load(body, Access(0, strides, layout.offset), self.x.dtype)
        kind = kind_of(self.x.dtype)
        if kind == "f":
            if self.places:
                zero = self._number(body, 0, self.wide)
                value = self._compute(body, "{0} + {1}", (value, zero), self.wide)
            return self._compute(body, "order_bits({0})", (value,), self.key)
        key = self._compute(body, "{T}({0})", (value,), self.key)
        return self._with_sign_turned(body, key) if kind == "i" else key

    def _with_sign_turned(self, body: list[Statement], key: int) -> int:
        sign = self._number(body, 1 << (8 * self.key.itemsize - 1), self.key)
        return self._compute(body, "bitwise_xor({0}, {1})", (key, sign), self.key)

    def _bin(self, body: list[Statement], key: int, digit: int) -> Access:
        """Return the access to the count of a digit of the key."""
        if digit:
            by = self._number(body, DIGIT * digit, self.key)
            key = self._compute(body, "right_shift({0}, {1})", (key, by), self.key)
        if self.digits > 1:
            mask = self._number(body, BINS - 1, self.key)
            key = self._compute(body, "bitwise_and({0}, {1})", (key, mask), self.key)
        wide = self._compute(body, "{T}({0})", (key,), INT64)
        inside = self._inside(body, wide, BINS)
        return Access(COUNTS, self._strides(), digit * BINS, (inside, 1))

    def _moves(self, digit: int) -> tuple[Statement, ...]:
        """Move the row by one digit; only copy it if the digit is constant."""
        body: list[Statement] = []
        counts = Access(COUNTS, self._strides(bins=1), digit * BINS)
        most, n = self._new(), self._new()
        count = self._new()
        look = (Load(count, counts, INT64), Accumulate(most, "maximum", count, INT64))
        body += [
            Initial(most, "maximum", INT64),
            Loop(self.rank + 1, look),
            Index(n, self._strides(), self.x.shape[-1]),
        ]
        others = self._compute(body, "{0} != {1}", (most, n), BOOL)
        alike = self._compute(body, "{0} == {1}", (most, n), BOOL) if digit else -1
        areas = ((FROM, TO, self.key), (PLACES_FROM, PLACES_TO, self.place))
        pairs = [
            (target, source, dtype) if digit % 2 else (source, target, dtype)
            for source, target, dtype in areas[: 1 + self.places]
        ]
        copies: list[Statement] = []
        for source, target, dtype in pairs:
            value = self._load(copies, self._at(source), dtype)
            copies.append(Store(self._at(target), value))
        if digit:  # ahead of the first both areas are alike
            body.append(When(alike, (Loop(self.rank, tuple(copies)),)))
        body.append(When(others, (*self._starts(counts), self._moved(digit, pairs))))
        return tuple(body)

    def _starts(self, counts: Access) -> tuple[Statement, ...]:
        """Replace counts by the sums of those before."""
        first: list[Statement] = []
        total = Access(SUM, self._strides())
        first.append(Store(total, self._number(first, 0, INT64)))
        body: list[Statement] = []
        count, before = (self._load(body, at, INT64) for at in (counts, total))
        body.append(Store(counts, before))
        after = self._compute(body, "{0} + {1}", (before, count), INT64)
        body.append(Store(total, after))
        return (*first, Loop(self.rank + 1, tuple(body)))

    def _moved(self, digit: int, pairs: Sequence[tuple[int, int, DType]]) -> Loop:
        """Move each element to the next place of its digit."""
        body: list[Statement] = []
        values = [self._load(body, self._at(s), dtype) for s, _, dtype in pairs]
        place = self._bin(body, values[0], digit)
        to = self._load(body, place, INT64)
        one = self._number(body, 1, INT64)
        more = self._compute(body, "{0} + {1}", (to, one), INT64)
        body.append(Store(place, more))
        inside = self._inside(body, to, self.x.shape[-1])
        for (_, target, _), value in zip(pairs, values, strict=True):
            body.append(Store(Access(target, self._strides(), 0, (inside, 1)), value))
        return Loop(self.rank, tuple(body))

    def _write(self, keys: int) -> Loop:
        """Write the row of the result."""
        body: list[Statement] = []
        if self.places:
            area = PLACES_FROM if keys == FROM else PLACES_TO
            value = self._place(body, self._load(body, self._at(area), self.place))
        else:
            value = self._value(body, self._load(body, self._at(keys), self.key))
        rows, along = self._result_strides()
        body.append(Store(Access(1, (*rows, along, 0)), value))
        return Loop(self.rank, tuple(body))

    def _result_strides(self) -> tuple[tuple[Dim, ...], Dim]:
        """Return the strides of the result's rows, and of their elements."""
        *rows, along = Layout.contiguous(self.x.shape).strides
        return tuple(rows) or (0,), along

    def _place(self, body: list[Statement], place: int) -> int:
        return self._compute(body, "{T}({0})", (place,), INT64)

    def _value(self, body: list[Statement], key: int) -> int:
        """Return the element of a key."""
        kind = kind_of(self.x.dtype)
        if kind == "f":
            value = self._compute(body, "order_float({0})", (key,), self.wide)
            return self._compute(body, "{T}({0})", (value,), self.x.dtype)
        if kind == "i":
            key = self._with_sign_turned(body, key)
        return self._compute(body, "{T}({0})", (key,), self.x.dtype)

    def counted(self) -> tuple[Statement, ...]:
        """Rank each element by counting those that precede it.

        The row is filled up to whole registers with what comes before nothing.
        """
        fill: list[Statement] = []
        last = self._number(fill, int(np.iinfo(self.key).max), self.key)
        index = self._index(fill, self._strides(bins=1))
        place = self._compute(fill, "{T}({0})", (index,), self.place)
        fill.append(Store(self._at(FROM, second=True), last))
        fill.append(Store(self._at(PLACES_FROM, second=True), place))
        body: list[Statement] = []
        key = self._key(body)
        body.append(Store(self._at(FROM), key))
        body.append(Store(self._at(PLACES_FROM), self._own_place(body)))
        return (
            Loop(self.rank + 1, tuple(fill)),
            Loop(self.rank, tuple(body)),
            Loop(self.rank, self._counted_step()),
        )

    def _counted_step(self) -> tuple[Statement, ...]:
        body: list[Statement] = []
        own = self._load(body, self._at(FROM), self.key)
        place = self._load(body, self._at(PLACES_FROM), self.place)
        before: list[Statement] = []
        key = self._load(before, self._at(FROM, second=True), self.key)
        other = self._load(before, self._at(PLACES_FROM, second=True), self.place)
        less = self._compute(before, "{0} < {1}", (key, own), BOOL)
        same = self._compute(before, "{0} == {1}", (key, own), BOOL)
        ahead = self._compute(before, "{0} < {1}", (other, place), BOOL)
        tied = self._compute(before, "c_and({0}, {1})", (same, ahead), BOOL)
        leads = self._compute(before, "c_or({0}, {1})", (less, tied), BOOL)
        one = self._compute(before, "{T}({0})", (leads,), self.place)
        total = self._new()
        before.append(Accumulate(total, "add", one, self.place))
        body += [Initial(total, "add", self.place), Loop(self.rank + 1, tuple(before))]
        wide = self._compute(body, "{T}({0})", (total,), INT64)
        inside = self._inside(body, wide, self.x.shape[-1])
        value = self._place(body, place) if self.places else self._value(body, own)
        rows, along = self._result_strides()
        there = Access(1, (*rows, 0, 0), 0, (inside, along))
        body.append(Store(there, value))
        return tuple(body)
