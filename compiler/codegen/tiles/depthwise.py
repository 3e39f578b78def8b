"""Depthwise convolutions: every channel has a kernel of its own; channels are lanes.

Image, kernels and result are read and written a register of channels at a time.
"""

from __future__ import annotations

from staticgrad.compiler.codegen.llvm.index_code import At, IndexCode
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.tiles.convolution_rows import (
    TileRun,
    by_element,
    made_columns,
    made_rows,
    row_read,
    runs,
    tiles_of,
)
from staticgrad.compiler.kernel_ir.schemes import Depthwise, DepthwiseWeights


def depthwise(
    c: IndexCode, s: Depthwise, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit a Depthwise scheme: (image, kernels, result)."""
    begin, end = numbers
    found = runs(s.columns, s.backwards, s.width)
    height, width = made_rows(s), made_columns(s)
    blocks = -(-s.channels // s.lanes)
    with c.parts(begin, end, height) as (image, first, last):
        read = c.plus(c.times(image, s.image.strides[0]), s.image.start)
        with c.loop(blocks) as block:
            lane = c.times(block, s.lanes)
            mask = None
            if s.channels % s.lanes:
                mask = c.mask_of(c.minus(s.channels, lane))
            with c.loop(last, start=first) as row:
                line = c.plus(c.times(image, height), row)
                written = c.plus(c.times(line, width * s.channels), lane)
                for run, column, base in tiles_of(c, found):
                    start = c.plus(read, lane, c.times(base, s.image.strides[2]))
                    place = c.plus(written, c.times(column, s.channels))
                    _tile(c, s, memory, run, (start, lane, place, row), mask)


def _tile(
    c: IndexCode, s: Depthwise, memory: list[Value], run: TileRun,
    places: tuple[At, At, At, At], mask: Value | None,
) -> None:  # fmt: skip
    """Emit some columns of one row."""
    image, kernels, result = memory
    start, lane, place, row = places
    sums = c.sums_of(range(run.width))
    for total in sums.values():
        c.b.store(c.zeros(), total)
    for tap in range(s.rows.taps):
        line, there = row_read(c, s.rows, s.backwards, c.number_of(row), tap)
        with c.only_if(there):
            first = c.plus(start, c.times(line, s.image.strides[1]))
            loaded: dict[int, Value] = {}
            for element, meetings in by_element(run.meetings):
                x = c.vector(image, c.plus(first, element * s.image.strides[2]), mask)
                for _, column, other in meetings:
                    if other not in loaded:
                        number = (tap * s.columns.taps + other) * s.channels
                        loaded[other] = c.vector(kernels, c.plus(lane, number), mask)
                    c.add_product(sums[column], x, loaded[other])
    for column, total in sums.items():
        where = c.plus(place, column * s.channels)
        c.put(c.b.load(total), result, where, mask)


def depthwise_weights(
    c: IndexCode, s: DepthwiseWeights, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit a DepthwiseWeights scheme: (image, gradient, gradient of kernels)."""
    begin, end, *sizes = numbers
    blocks = -(-s.channels // s.lanes)
    images: tuple[At, At] = (0, sizes[0]) if s.by_filters else (begin, end)
    every: tuple[At, At] = (begin, end) if s.by_filters else (0, blocks)
    with c.loop(every[1], start=every[0]) as block:
        lane = c.times(block, s.lanes)
        mask = None
        if s.channels % s.lanes:
            mask = c.mask_of(c.minus(s.channels, lane))
        for first in range(0, s.rows.taps, s.height):
            taps = range(first, min(first + s.height, s.rows.taps))
            _Sums(c, s, memory, taps, mask).emit(images, lane)


class _Sums:
    """Sums of some rows of the window over all images."""

    def __init__(
        self, c: IndexCode, s: DepthwiseWeights, memory: list[Value], taps: range,
        mask: Value | None,
    ) -> None:  # fmt: skip
        self.c, self.s, self.mask, self.taps = c, s, mask, taps
        self.image, self.given, self.result = memory
        self.runs = runs(s.columns, False, s.width)
        keys = [(tap, column) for tap in taps for column in range(s.columns.taps)]
        self.totals, self.sums = c.sums_of(keys), c.sums_of(keys)

    def emit(self, images: tuple[At, At], lane: At) -> None:
        """Add the sums of one image to those of all."""
        c, s = self.c, self.s
        self._clear(self.totals)
        with c.loop(images[1], start=images[0]) as image:
            self._clear(self.sums)
            read = c.plus(c.times(image, s.image.strides[0]), lane, s.image.start)
            given = c.plus(c.times(image, s.given.strides[0]), lane, s.given.start)
            with c.loop(s.rows.count) as row:
                line = c.plus(given, c.times(row, s.given.strides[1]))
                for run, column, base in tiles_of(c, self.runs):
                    start = c.plus(read, c.times(base, s.image.strides[2]))
                    place = c.plus(line, c.times(column, s.given.strides[2]))
                    self._tile(run, start, place, c.number_of(row))
            for key, total in self.totals.items():
                both = c.b.fadd(c.b.load(total), c.b.load(self.sums[key]))
                c.b.store(both, total)
        for (tap, column), total in self.totals.items():
            number = (tap * s.columns.taps + column) * s.channels
            c.put(c.b.load(total), self.result, c.plus(lane, number), self.mask)

    def _clear(self, sums: dict[tuple[int, int], Value]) -> None:
        for total in sums.values():
            self.c.b.store(self.c.zeros(), total)

    def _tile(self, run: TileRun, start: At, place: At, row: Value) -> None:
        """Multiply some columns of the gradient with the elements they read."""
        c, s = self.c, self.s
        step = s.given.strides[2]
        columns = sorted({column for _, column, _ in run.meetings})
        g = {
            k: c.vector(self.given, c.plus(place, k * step), self.mask) for k in columns
        }
        for tap in self.taps:
            line, there = row_read(c, s.rows, False, row, tap)
            with c.only_if(there):
                first = c.plus(start, c.times(line, s.image.strides[1]))
                for element, meetings in by_element(run.meetings):
                    where = c.plus(first, element * s.image.strides[2])
                    x = c.vector(self.image, where, self.mask)
                    for _, column, other in meetings:
                        c.add_product(self.sums[tap, other], x, g[column])
