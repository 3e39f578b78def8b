"""Rows of a convolution's result: lanes are channels of the result.

For a row of the result, the sums of some columns stay in registers while the taps of
the window and the channels that are summed pass. Each element of the image is broadcast
once and multiplied with every kernel element and column that it belongs to; products
outside of the image are not computed: columns are known when the code is emitted, rows
are tested once per tap. Columns in the middle have one code, in a loop.

Packed kernels are (group, block of lanes, channel, row tap, column tap, lanes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from staticgrad.compiler.codegen.llvm.index_code import At, IndexCode
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.kernel_ir.schemes import Depthwise, Rows, Slide

Meeting: TypeAlias = tuple[int, int, int]
"""An element that is read, the column of the tile that it adds to, the tap."""

UNROLLED = 2  # channels per turn of the innermost loop


@dataclass(frozen=True, slots=True)
class TileRun:
    """Run of `count` neighbouring tiles with equal code.

    The first makes columns from `start` on; `meetings` are relative to it and to the
    element `base`, and both move on by `step` and `base_step` from tile to tile.
    """

    start: int
    width: int
    count: int
    base: int
    base_step: int
    meetings: tuple[Meeting, ...]


def runs(slide: Slide, backwards: bool, width: int) -> list[TileRun]:
    """Return the tiles of a row, those of equal code merged."""
    made = slide.size if backwards else slide.count
    step = _step(slide, backwards, width)
    found: list[TileRun] = []
    number = 0
    while number * width < made:
        tile = _tile(slide, backwards, number * width, width, made)
        base = number * step if step >= 0 else 0
        moved = tuple((e - base, c, t) for e, c, t in tile)
        count = 1
        if step >= 0 and _is_inside(slide, backwards, number * width, width):
            count = _inside_from(slide, backwards, number, width)
        last = found[-1] if found else None
        if last is not None and step >= 0 and _equal(last, moved, made, number, width):
            count += last.count
            found[-1] = TileRun(
                last.start, width, count, last.base, step, last.meetings
            )
            number = last.start // width + count
            continue
        here = min(width, made - number * width)
        found.append(TileRun(number * width, here, count, base, max(step, 0), moved))
        number += count
    return found


def _is_inside(slide: Slide, backwards: bool, first: int, width: int) -> bool:
    """Whether a tile's columns are all computed, from elements all within the image."""
    last, span = first + width - 1, (slide.taps - 1) * slide.dilation
    if not backwards:
        low, high = first * slide.stride, last * slide.stride + span
        there = low >= slide.low and high - slide.low < slide.size
        return there and last < slide.count
    low, high = first + slide.low - span, last + slide.low
    there = low >= 0 and high <= (slide.count - 1) * slide.stride
    return there and last < slide.size


def _inside_from(slide: Slide, backwards: bool, number: int, width: int) -> int:
    """Return the number of inner tiles from `number` on, which all have equal code."""
    made = slide.size if backwards else slide.count
    low, high = number, made // width
    while low < high:
        middle = (low + high + 1) // 2
        if _is_inside(slide, backwards, middle * width, width):
            low = middle
        else:
            high = middle - 1
    return low - number + 1


def _equal(
    last: TileRun, meetings: tuple[Meeting, ...], made: int, number: int, width: int
) -> bool:
    whole = last.width == width and (number + 1) * width <= made
    return whole and last.meetings == meetings


def _step(slide: Slide, backwards: bool, width: int) -> int:
    """Return the distance of elements from tile to tile; -1 if it varies."""
    if not backwards:
        return width * slide.stride
    return width // slide.stride if width % slide.stride == 0 else -1


def _tile(
    slide: Slide, backwards: bool, first: int, width: int, made: int
) -> tuple[Meeting, ...]:
    found: list[Meeting] = []
    for column in range(min(width, made - first)):
        for tap in range(slide.taps):
            element = _read(slide, backwards, first + column, tap)
            if element >= 0:
                found.append((element, column, tap))
    return tuple(sorted(found))


def _read(slide: Slide, backwards: bool, column: int, tap: int) -> int:
    """Return the element that a column reads at a tap; -1 for none."""
    if not backwards:
        return slide.element(column, tap)
    window, rest = divmod(column + slide.low - tap * slide.dilation, slide.stride)
    return window if rest == 0 and 0 <= window < slide.count else -1


def row_read(
    c: IndexCode, slide: Slide, backwards: bool, row: Value, tap: At
) -> tuple[At, Value | None]:
    """Return the row read at a tap, and whether it exists (None: always)."""
    b = c.b
    moved = c.minus(c.times(tap, slide.dilation), slide.low)
    if not backwards:
        found = c.number_of(c.plus(c.times(row, slide.stride), moved))
        if slide.is_inside:
            return found, None
        return found, b.icmp_unsigned("<", found, c.number_of(slide.size))
    ahead = c.number_of(c.minus(row, moved))
    stride = c.number_of(slide.stride)
    found = ahead if slide.stride == 1 else b.sdiv(ahead, stride)
    there = b.icmp_unsigned("<", found, c.number_of(slide.count))
    if slide.stride > 1:
        whole = b.icmp_signed("==", b.mul(found, stride), ahead)
        there = b.and_(there, b.and_(whole, b.icmp_signed(">=", ahead, c.number_of(0))))
    return found, there


def by_element(meetings: Sequence[Meeting]) -> Iterator[tuple[int, list[Meeting]]]:
    """Yield the meetings grouped by the element that is read."""
    for element, found in groupby(meetings, key=lambda meeting: meeting[0]):
        yield element, list(found)


def tiles_of(
    c: IndexCode, found: Sequence[TileRun]
) -> Iterator[tuple[TileRun, At, At]]:
    """Yield the tiles of each run, with first column and base, in a loop."""
    for run in found:
        if run.count == 1:
            yield run, run.start, run.base
            continue
        with c.loop(run.count) as tile:
            start = c.plus(c.times(tile, run.width), run.start)
            yield run, start, c.plus(c.times(tile, run.base_step), run.base)


def made_rows(s: Rows | Depthwise) -> int:
    """Return the number of rows of an image of the result."""
    return s.rows.size if s.backwards else s.rows.count


def made_columns(s: Rows | Depthwise) -> int:
    """Return the number of columns of an image of the result."""
    return s.columns.size if s.backwards else s.columns.count


def rows(c: IndexCode, s: Rows, memory: list[Value], numbers: list[Value]) -> None:
    """Emit a Rows scheme: (image, packed kernels, result)."""
    begin, end = numbers
    found = runs(s.columns, s.backwards, s.width)
    height, width = made_rows(s), made_columns(s)
    lanes = s.vectors * s.lanes
    blocks = -(-s.filters // lanes)
    whole = s.groups * s.filters
    packed = s.rows.taps * s.channels * s.columns.taps * lanes
    with c.parts(begin, end, height) as (image, first, last):
        read = c.plus(c.times(image, s.image.strides[0]), s.image.start)
        with c.loop(s.groups) as group, c.loop(blocks) as block:
            number = c.plus(c.times(group, blocks), block)
            done = c.times(block, lanes)
            left = s.filters if blocks == 1 else c.minus(s.filters, done)
            masks = _masks(c, s, left)
            from_group = c.times(group, s.channels * s.image.strides[3])
            to_group = c.plus(c.times(group, s.filters), done)
            with c.loop(last, start=first) as row:
                written = c.times(c.plus(c.times(image, height), row), width * whole)
                place = _Place(
                    c.plus(read, from_group),
                    c.times(number, packed),
                    c.plus(written, to_group),
                    c.number_of(row),
                )
                for run, column, base in tiles_of(c, found):
                    _Tile(c, s, memory, run, masks).emit(place, column, base)


def _masks(c: IndexCode, s: Rows, left: At) -> list[Value | None]:
    if s.filters % (s.vectors * s.lanes) == 0:
        return [None] * s.vectors
    return [c.mask_of(c.minus(left, v * s.lanes)) for v in range(s.vectors)]


@dataclass(frozen=True, slots=True)
class _Place:
    """Addresses of a row's image, kernels and result, and its number."""

    image: At
    kernels: At
    result: At
    row: Value


class _Tile:
    """Sums of some columns of one row."""

    def __init__(
        self,
        c: IndexCode,
        s: Rows,
        memory: list[Value],
        run: TileRun,
        masks: list[Value | None],
    ) -> None:
        self.c, self.s, self.run, self.masks = c, s, run, masks
        self.image, self.kernels, self.result = memory
        self.sums = c.sums_of(
            (column, vector, number)
            for column in range(run.width)
            for vector in range(s.vectors)
            for number in range(s.sets)
        )
        self.turn = max(UNROLLED, s.sets)
        if s.channels % self.turn:
            self.turn = s.sets

    def emit(self, place: _Place, column: At, base: At) -> None:
        c, s = self.c, self.s
        for total in self.sums.values():
            c.b.store(c.zeros(), total)
        size = s.columns.taps * s.vectors * s.lanes
        with c.loop(s.rows.taps) as tap:
            row, there = row_read(c, s.rows, s.backwards, place.row, tap)
            with c.only_if(there):
                image = c.plus(
                    place.image,
                    c.times(row, s.image.strides[1]),
                    c.times(base, s.image.strides[2]),
                )
                kernels = c.plus(place.kernels, c.times(tap, size))
                with c.loop(s.channels, self.turn) as channel:
                    for more in range(self.turn):
                        self._add(image, kernels, c.plus(channel, more), more)
        self._write(c.plus(place.result, c.times(column, s.groups * s.filters)))

    def _add(self, image: At, kernels: At, channel: At, number: int) -> None:
        """Add the products of one channel and row of the window."""
        c, s = self.c, self.s
        lanes = s.vectors * s.lanes
        window = s.rows.taps * s.columns.taps
        start = c.plus(kernels, c.times(channel, window * lanes))
        read = c.plus(image, c.times(channel, s.image.strides[3]))
        loaded: dict[int, list[Value]] = {}
        for element, meetings in by_element(self.run.meetings):
            x = c.repeated(self.image, c.plus(read, element * s.image.strides[2]))
            for _, column, tap in meetings:
                if tap not in loaded:
                    loaded[tap] = [
                        c.vector(self.kernels, c.plus(start, tap * lanes + v * s.lanes))
                        for v in range(s.vectors)
                    ]
                for v, w in enumerate(loaded[tap]):
                    c.add_product(self.sums[column, v, number % s.sets], x, w)

    def _write(self, start: At) -> None:
        c, s = self.c, self.s
        for column in range(self.run.width):
            for v in range(s.vectors):
                total = c.b.load(self.sums[column, v, 0])
                for number in range(1, s.sets):
                    total = c.b.fadd(total, c.b.load(self.sums[column, v, number]))
                place = c.plus(start, column * s.groups * s.filters + v * s.lanes)
                c.put(total, self.result, place, self.masks[v])
