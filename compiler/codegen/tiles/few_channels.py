"""Gradient of an image with few channels, such as a first layer's.

Lanes are the elements of a window's row with their channels, which are contiguous in
the image. For some pixels of the result's gradient the sums over the filters stay in
registers; then they are added to the image's rows where the windows lie. Pixels of a
tile are so far apart that what they touch does not overlap: an addition would wait for
the one before it.

Packed kernels are (filter, row tap, lanes), zeros in lanes that are not needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from staticgrad.compiler.codegen.llvm.index_code import At, IndexCode
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.kernel_ir.schemes import FewChannelRows

UNROLLED = 4  # filters per turn of the innermost loop


def line_length(s: FewChannelRows) -> int:
    """Return the length of a row of the area: whole registers, with room at the end."""
    columns = s.columns
    touched = (columns.count - 1) * columns.stride * s.channels + s.vectors * s.lanes
    whole = (columns.low + columns.size) * s.channels + s.lanes
    length = max(touched, whole)
    return length + -length % s.lanes


def spread(
    c: IndexCode, s: FewChannelRows, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit a Spread scheme: (gradient, packed kernels, result, area)."""
    begin, end = numbers
    length, rows = line_length(s), s.rows
    with c.parts(begin, end, rows.size) as (image, first, last):
        height = c.minus(last, first)
        with c.loop(c.times(height, length), s.lanes) as place:
            c.put(c.zeros(), memory[3], place)
        # windows whose last row is not before the first, whose first not behind
        lift = rows.taps + rows.stride
        ahead = c.plus(first, rows.low + lift * rows.stride - rows.taps + rows.stride)
        start = c.larger(c.minus(c.over(ahead, rows.stride), lift), 0)
        stop = c.plus(c.over(c.plus(last, rows.low - 1), rows.stride), 1)
        given = c.plus(c.times(image, s.image.strides[0]), s.image.start)
        with c.loop(c.smaller(stop, rows.count), start=start) as window:
            line = c.plus(given, c.times(window, s.image.strides[1]))
            top = c.minus(c.times(window, rows.stride), c.plus(first, rows.low))
            for column, pixels in _tiles(c, s):
                _tile(c, s, memory, (line, top, height), column, pixels)
        with c.loop(height) as row:
            number = c.plus(c.times(image, rows.size), first, row)
            _copy(c, s, memory, c.times(row, length), number)


def _tiles(c: IndexCode, s: FewChannelRows) -> Iterator[tuple[At, list[int]]]:
    """Yield the first column of each tile, and its pixels' distances from it."""
    block = s.width * s.apart
    whole = s.columns.count // block
    every = [pixel * s.apart for pixel in range(s.width)]
    if whole:
        with c.loop(whole) as number, c.loop(s.apart) as shift:
            yield c.plus(c.times(number, block), shift), every
    rest = s.columns.count - whole * block
    for shift in range(min(s.apart, rest)):
        yield whole * block + shift, list(range(0, rest - shift, s.apart))


def _tile(
    c: IndexCode, s: FewChannelRows, memory: list[Value], where: tuple[At, At, At],
    column: At, pixels: list[int],
) -> None:  # fmt: skip
    """Emit some pixels with all rows of the window, as many at a time as fit."""
    line, top, height = where
    for first in range(0, s.rows.taps, s.height):
        taps = range(first, min(first + s.height, s.rows.taps))
        sums = _sums(c, s, memory, c.plus(line, c.times(column, s.image.strides[2])),
                     pixels, taps)  # fmt: skip
        for tap in taps:
            row = c.number_of(c.plus(top, tap * s.rows.dilation))
            there = c.b.icmp_unsigned("<", row, c.number_of(height))
            with c.only_if(there):
                start = c.plus(
                    c.times(row, line_length(s)),
                    c.times(column, s.columns.stride * s.channels),
                )
                for pixel in pixels:
                    for v in range(s.vectors):
                        step = pixel * s.columns.stride * s.channels + v * s.lanes
                        place = c.plus(start, step)
                        before = c.vector(memory[3], place)
                        total = c.b.fadd(before, c.b.load(sums[pixel, tap, v]))
                        c.put(total, memory[3], place)


def _sums(
    c: IndexCode,
    s: FewChannelRows,
    memory: list[Value],
    start: At,
    pixels: list[int],
    taps: range,
) -> dict[tuple[int, int, int], Value]:
    """Sum over the filters, for each pixel, row of the window and register."""
    sums = c.sums_of((p, t, v) for p in pixels for t in taps for v in range(s.vectors))
    for total in sums.values():
        c.b.store(c.zeros(), total)
    lanes = s.vectors * s.lanes
    turn = UNROLLED if s.filters % UNROLLED == 0 else 1
    with c.loop(s.filters, turn) as filters:
        for more in range(turn):
            number = c.plus(filters, more)
            packed = c.times(number, s.rows.taps * lanes)
            w = {
                (t, v): c.vector(memory[1], c.plus(packed, t * lanes + v * s.lanes))
                for t in taps
                for v in range(s.vectors)
            }
            channel = c.times(number, s.image.strides[3])
            for pixel in pixels:
                place = c.plus(start, channel, pixel * s.image.strides[2])
                g = c.repeated(memory[0], place)
                for (t, v), value in w.items():
                    c.add_product(sums[pixel, t, v], g, value)
    return sums


def _copy(
    c: IndexCode, s: FewChannelRows, memory: list[Value], start: At, number: At
) -> None:
    """Copy a row of the area, without its margins, to the result."""
    length = s.columns.size * s.channels
    source = c.plus(start, s.columns.low * s.channels)
    target = c.times(number, length)
    whole = length - length % s.lanes
    if whole:
        with c.loop(whole, s.lanes) as place:
            value = c.vector(memory[3], c.plus(source, place))
            c.put(value, memory[2], c.plus(target, place))
    if whole < length:
        mask = c.mask_of(length - whole)
        value = c.vector(memory[3], c.plus(source, whole))
        c.put(value, memory[2], c.plus(target, whole), mask)
