"""Depthwise convolutions: every channel has a kernel of its own; channels are lanes.

Image, kernels and result are read and written a register of channels at a time.
"""

from __future__ import annotations

from staticgrad.compiler.codegen.code import At, Code
from staticgrad.compiler.codegen.conv_rows import (
    Run,
    by_element,
    made_columns,
    made_rows,
    row_read,
    runs,
    tiles_of,
)
from staticgrad.compiler.codegen.conv_weights import row_span, spans
from staticgrad.compiler.codegen.emitter import Value
from staticgrad.compiler.schemes import Depthwise, DepthwiseWeights


def depthwise(c: Code, s: Depthwise, memory: list[Value], numbers: list[Value]) -> None:
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
    c: Code, s: Depthwise, memory: list[Value], run: Run,
    places: tuple[At, At, At, At], mask: Value | None,
) -> None:  # fmt: skip
    """Some columns of one row."""
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
    c: Code, s: DepthwiseWeights, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit a DepthwiseWeights scheme: (image, gradient, gradient of kernels)."""
    begin, end, *sizes = numbers
    blocks = -(-s.channels // s.lanes)
    images: tuple[At, At] = (0, sizes[0]) if s.by_filters else (begin, end)
    every = (begin, end) if s.by_filters else (0, blocks)
    with c.loop(every[1], start=every[0]) as block:
        lane = c.times(block, s.lanes)
        mask = None
        if s.channels % s.lanes:
            mask = c.mask_of(c.minus(s.channels, lane))
        with c.loop(s.rows.taps) as tap:
            _row_of_taps(c, s, memory, images, lane, tap, mask)


def _row_of_taps(
    c: Code, s: DepthwiseWeights, memory: list[Value], images: tuple[At, At],
    lane: At, tap: At, mask: Value | None,
) -> None:  # fmt: skip
    """The sums of one row of the window over all images."""
    totals = c.sums_of(range(s.columns.taps))
    for total in totals.values():
        c.b.store(c.zeros(), total)
    with c.loop(images[1], start=images[0]) as image:
        sums = c.sums_of((t, step) for t in range(s.columns.taps) for step in range(2))
        for total in sums.values():
            c.b.store(c.zeros(), total)
        read = c.plus(c.times(image, s.image.strides[0]), lane, s.image.start)
        given = c.plus(c.times(image, s.given.strides[0]), lane, s.given.start)
        first, last = row_span(c, s.rows, tap)
        with c.loop(last, start=first) as window:
            row = c.plus(
                c.times(window, s.rows.stride),
                c.minus(c.times(tap, s.rows.dilation), s.rows.low),
            )
            line = c.plus(read, c.times(row, s.image.strides[1]))
            other = c.plus(given, c.times(window, s.given.strides[1]))
            _columns(c, s, memory, sums, (line, other), mask)
        for column, total in totals.items():
            both = c.b.fadd(c.b.load(sums[column, 0]), c.b.load(sums[column, 1]))
            c.b.store(c.b.fadd(c.b.load(total), both), total)
    for column, total in totals.items():
        number = c.times(c.plus(c.times(tap, s.columns.taps), column), s.channels)
        c.put(c.b.load(total), memory[2], c.plus(number, lane), mask)


def _columns(
    c: Code, s: DepthwiseWeights, memory: list[Value],
    sums: dict[tuple[int, int], Value], places: tuple[At, At], mask: Value | None,
) -> None:  # fmt: skip
    """Margins one by one, pairs between them in a loop."""
    found = spans(s.columns)
    low = max(first for first, _ in found)
    high = min(last for _, last in found)
    count = max(high - low, 0) // 2 * 2
    edges = [*range(low), *range(low + count, s.columns.count)]
    if high <= low:
        edges, count = list(range(s.columns.count)), 0
    for number, column in enumerate(edges):
        taps = [t for t, (first, last) in enumerate(found) if first <= column < last]
        _one(c, s, memory, sums, places, (column, number % 2), taps, mask)
    if count:
        with c.loop(low + count, 2, start=low) as column:
            for step in range(2):
                place = (c.plus(column, step), step)
                taps = list(range(s.columns.taps))
                _one(c, s, memory, sums, places, place, taps, mask)


def _one(
    c: Code, s: DepthwiseWeights, memory: list[Value],
    sums: dict[tuple[int, int], Value], places: tuple[At, At],
    column: tuple[At, int], taps: list[int], mask: Value | None,
) -> None:  # fmt: skip
    if not taps:
        return
    image, given, _ = memory
    where, step = column
    g = c.vector(given, c.plus(places[1], c.times(where, s.given.strides[2])), mask)
    for tap in taps:
        meets = c.plus(
            c.times(where, s.columns.stride),
            tap * s.columns.dilation - s.columns.low,
        )
        x = c.vector(image, c.plus(places[0], c.times(meets, s.image.strides[2])), mask)
        c.add_product(sums[tap, step], x, g)
