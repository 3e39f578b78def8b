"""The gradient of a convolution's kernels: lanes are filters.

For one row of the window, the sums of its columns and of some channels stay in
registers while an image passes; then they are added to the result. A register of the
result's gradient meets the elements of the image that its windows have there. Columns
at the margins, where some taps are outside, have code of their own.

The result is (row taps, column taps, channels, groups * filters).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from staticgrad.compiler.codegen.llvm.index_code import At, IndexCode
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.kernel_ir.schemes import Slide, Weights


def spans(slide: Slide) -> list[tuple[int, int]]:
    """Return, for each tap, the range of windows that have it inside."""
    found = []
    for tap in range(slide.taps):
        ahead = slide.low - tap * slide.dilation
        first = max(-(-ahead // slide.stride), 0)
        last = min((slide.size - 1 + ahead) // slide.stride + 1, slide.count)
        found.append((first, last) if first < last else (0, 0))
    return found


def row_span(c: IndexCode, slide: Slide, tap: At) -> tuple[At, At]:
    """Return the range of windows whose row `tap` is inside the image."""
    if slide.is_inside:
        return 0, slide.count
    # p * stride + moved in 0..size - 1; lifted, because division is of what is >= 0
    moved = c.minus(c.times(tap, slide.dilation), slide.low)
    lift = slide.low + slide.taps * slide.dilation
    up = lift * slide.stride
    first = c.minus(c.over(c.minus(up + slide.stride - 1, moved), slide.stride), lift)
    room = c.minus(up + slide.size - 1 + slide.stride, moved)
    last = c.minus(c.over(room, slide.stride), lift)
    return c.larger(first, 0), c.smaller(last, slide.count)


@dataclass(frozen=True, slots=True)
class _Block:
    """Block of filters: its group, its first lane in the result, its mask."""

    group: At
    lane: At
    mask: Value | None


def _block(c: IndexCode, s: Weights, number: At) -> _Block:
    blocks = -(-s.filters // s.lanes)
    group = c.over(number, blocks)
    block = c.minus(number, c.times(group, blocks)) if s.groups > 1 else number
    done = c.times(block, s.lanes)
    whole = s.filters % s.lanes == 0
    mask = None if whole else c.mask_of(c.minus(s.filters, done))
    return _Block(group, c.plus(c.times(group, s.filters), done), mask)


def weights(
    c: IndexCode, s: Weights, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit a Weights scheme: (image, gradient of the result, gradient of kernels)."""
    begin, end, *sizes = numbers
    window = s.rows.taps * s.columns.taps * s.channels
    images: tuple[At, At] = (0, sizes[0]) if s.by_filters else (begin, end)
    blocks = s.groups * -(-s.filters // s.lanes)
    every: tuple[At, At] = (begin, end) if s.by_filters else (0, blocks)
    with c.loop(every[1], start=every[0]) as number:
        block = _block(c, s, number)
        with c.loop(window) as place:
            start = c.plus(c.times(place, s.groups * s.filters), block.lane)
            c.put(c.zeros(), memory[2], start, block.mask)
    with (
        c.loop(images[1], start=images[0]) as image,
        c.loop(every[1], start=every[0]) as number,
    ):
        block = _block(c, s, number)
        first_channel = c.times(block.group, s.channels * s.image.strides[3])
        read = c.plus(c.times(image, s.image.strides[0]), first_channel, s.image.start)
        given = c.plus(c.times(image, s.given.strides[0]), block.lane, s.given.start)
        with c.loop(s.rows.taps) as tap:
            _Tile(c, s, memory, block.mask).row(read, given, block.lane, tap)


class _Tile:
    """Sums for one row of the window: all column taps of some channels."""

    def __init__(
        self, c: IndexCode, s: Weights, memory: list[Value], mask: Value | None
    ) -> None:
        self.c, self.s, self.mask = c, s, mask
        self.image, self.given, self.result = memory
        self.spans = spans(s.columns)

    def row(self, image: At, given: At, lane: At, tap: At) -> None:
        """Emit all channels, as many at a time as the scheme says."""
        c, s = self.c, self.s
        whole = s.channels - s.channels % s.width
        first, last = row_span(c, s.rows, tap)
        if whole:
            with c.loop(whole, s.width) as channel:
                self._some(image, given, lane, tap, channel, s.width, (first, last))
        if whole < s.channels:
            rest = s.channels - whole
            self._some(image, given, lane, tap, whole, rest, (first, last))

    def _some(
        self, image: At, given: At, lane: At, tap: At, channel: At, width: int,
        every: tuple[At, At],
    ) -> None:  # fmt: skip
        c, s = self.c, self.s
        sums = c.sums_of(
            (column, more, step)
            for column in range(s.columns.taps)
            for more in range(width)
            for step in range(s.steps)
        )
        for total in sums.values():
            c.b.store(c.zeros(), total)
        with c.loop(every[1], start=every[0]) as window:
            row = c.plus(
                c.times(window, s.rows.stride),
                c.minus(c.times(tap, s.rows.dilation), s.rows.low),
            )
            start = c.plus(
                image,
                c.times(row, s.image.strides[1]),
                c.times(channel, s.image.strides[3]),
            )
            self._columns(
                sums, width, start, c.plus(given, c.times(window, s.given.strides[1]))
            )
        self._add_up(sums, width, lane, tap, channel)

    def _columns(self, sums: Any, width: int, image: At, given: At) -> None:
        """Emit margins column by column, the inside in a loop."""
        c, s = self.c, self.s
        low = max(first for first, _ in self.spans)
        high = min(last for _, last in self.spans)
        count = max(high - low, 0) // s.steps * s.steps
        edges = [*range(low), *range(low + count, s.columns.count)]
        if high <= low:
            edges, count = list(range(s.columns.count)), 0
        for number, column in enumerate(edges):
            taps = [
                t
                for t, (first, last) in enumerate(self.spans)
                if first <= column < last
            ]
            self._one(sums, width, image, given, column, taps, number % s.steps)
        if count:
            every = list(range(s.columns.taps))
            with c.loop(low + count, s.steps, start=low) as column:
                for step in range(s.steps):
                    place = c.plus(column, step)
                    self._one(sums, width, image, given, place, every, step)

    def _one(
        self, sums: Any, width: int, image: At, given: At, column: At,
        taps: Sequence[int], step: int,
    ) -> None:  # fmt: skip
        c, s = self.c, self.s
        if not taps:
            return
        place = c.plus(given, c.times(column, s.given.strides[2]))
        g = c.vector(self.given, place, self.mask)
        for tap in taps:
            meets = c.plus(
                c.times(column, s.columns.stride),
                tap * s.columns.dilation - s.columns.low,
            )
            start = c.plus(image, c.times(meets, s.image.strides[2]))
            for more in range(width):
                x = c.repeated(self.image, c.plus(start, more * s.image.strides[3]))
                c.add_product(sums[tap, more, step], x, g)

    def _add_up(self, sums: Any, width: int, lane: At, tap: At, channel: At) -> None:
        c, s = self.c, self.s
        whole = s.groups * s.filters
        for column in range(s.columns.taps):
            for more in range(width):
                total = c.b.load(sums[column, more, 0])
                for step in range(1, s.steps):
                    total = c.b.fadd(total, c.b.load(sums[column, more, step]))
                window = c.plus(c.times(tap, s.columns.taps), column)
                row = c.plus(c.times(window, s.channels), channel, more)
                place = c.plus(c.times(row, whole), lane)
                before = c.vector(self.result, place, self.mask)
                c.put(c.b.fadd(before, total), self.result, place, self.mask)
