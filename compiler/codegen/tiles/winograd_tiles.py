"""Winograd convolution: 3x3 by tiles, e.g. 24 products for 2x4 elements, not 72.

    y = A^T [ (G w H^T) * (B^T x C) ] D

for a tile x of the image; winograd_matrices.py has the matrices: A, G, B of rows and D,
H, C of columns. The sums over channels are matrix products, one for each element of a
transformed tile.

Planes of the products lie one cache line further apart than they are large: at a
distance of a power of two they would fall on one place of the cache.

Source: Lavin and Gray, Fast algorithms for convolutional neural networks (2016),
arXiv:1509.09308. Weakness: a NaN or an infinity reaches all elements of the tiles that
it is in, not only those whose windows have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir

from staticgrad.compiler.codegen.llvm.index_code import At, IndexCode
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.tiles.winograd_matrices import (
    TRANSFORMS,
    Factors,
    Matrix,
    Transform,
)
from staticgrad.compiler.kernel_ir.schemes import (
    Winograd,
    WinogradKernels,
    WinogradWeights,
)

Square: TypeAlias = list[list[Value]]
Both: TypeAlias = "tuple[Transform, Transform]"

PADDING = 16  # elements behind each plane: a cache line of float32
UNROLLED = 4  # terms per turn of a product's loop


def both(s: Winograd | WinogradKernels | WinogradWeights) -> Both:
    """Return the transforms of rows and columns."""
    rows, columns = s.transforms
    return TRANSFORMS[rows], TRANSFORMS[columns]


def planes(transforms: Both) -> int:
    """Return the number of elements of a transformed tile."""
    return transforms[0].products * transforms[1].products


def applied(c: IndexCode, rows: Factors, columns: Factors, square: Square) -> Square:
    """Return ``rows @ square @ columns^T``."""
    found = [_chained(c, rows, list(column)) for column in zip(*square, strict=True)]
    return [_chained(c, columns, list(row)) for row in zip(*found, strict=True)]


def _chained(c: IndexCode, factors: Factors, values: list[Value]) -> list[Value]:
    for matrix in factors:
        values = _combined(c, matrix, values)
    return values


def _combined(c: IndexCode, matrix: Matrix, values: list[Value]) -> list[Value]:
    """Multiply the matrix with a column of registers; factors of 1 come first."""
    found = []
    for row in matrix:
        terms = [(f, v) for f, v in zip(row, values, strict=True) if f != 0]
        terms.sort(key=lambda term: (abs(term[0]) != 1, term[0] < 0))
        factor, total = terms[0]
        if factor != 1:
            total = _times(c, total, factor)
        for factor, value in terms[1:]:
            if factor == 1:
                total = c.b.fadd(total, value)
            elif factor == -1:
                total = c.b.fsub(total, value)
            else:
                total = c.fma(value, _factor(c, factor), total)
        found.append(total)
    return found


def _factor(c: IndexCode, factor: float) -> Value:
    return ir.Constant(c.type, [float(factor)] * c.count)


def _times(c: IndexCode, value: Value, factor: float) -> Value:
    return c.b.fneg(value) if factor == -1 else c.b.fmul(value, _factor(c, factor))


@dataclass(frozen=True, slots=True)
class Tile:
    """Tile: image, row of tiles, and first column of the result.

    The last tile of a row ends where the row ends; what it has in common with the one
    before it is written twice.
    """

    image: At
    row: At
    column: At


def grid(s: Winograd | WinogradWeights) -> tuple[int, int]:
    """Return the numbers of tiles of an image: down, across."""
    rows, columns = both(s)
    return s.counts[0] // rows.count, -(-s.counts[1] // columns.count)


def tile_of(c: IndexCode, s: Winograd | WinogradWeights, number: At) -> Tile:
    """Return the tile with a number, counted over all images."""
    down, across = grid(s)
    line = c.over(number, across)
    column = c.minus(number, c.times(line, across))
    image = c.over(line, down)
    count = both(s)[1].count
    start = c.times(column, count)
    if s.counts[1] % count:
        start = c.smaller(start, s.counts[1] - count)
    return Tile(image, c.minus(line, c.times(image, down)), start)


def transform_tile(
    c: IndexCode, s: Winograd | WinogradWeights, memory: tuple[Value, Value],
    numbered: tuple[At, Tile],
) -> None:  # fmt: skip
    """Transform a tile of the image."""
    image, tiles = memory
    number, tile = numbered
    rows, columns = both(s)

    def put(square: Square, channel: At) -> None:
        found = applied(c, rows.image, columns.image, square)
        scatter(c, tiles, s.tiles, s.channels, number, found, channel)

    _read_tile(c, s, image, tile, put)


def _read_tile(
    c: IndexCode, s: Winograd | WinogradWeights, memory: Value, tile: Tile,
    put: Callable[[Square, At], None],
) -> None:  # fmt: skip
    """Call ``put(registers, channel)`` for each block of channels; zeros outside."""
    rows, columns = both(s)
    top = c.minus(c.times(tile.row, rows.step), s.low[0])
    left = c.minus(_moved(c, tile.column, columns), s.low[1])
    start = c.plus(
        c.times(tile.image, s.image.strides[0]),
        c.times(top, s.image.strides[1]),
        c.times(left, s.image.strides[2]),
        s.image.start,
    )
    inside = _inside(c, top, s.size[0] - rows.read + 1)
    inside = c.b.and_(inside, _inside(c, left, s.size[1] - columns.read + 1))
    with c.b.if_else(inside) as (whole, partial):
        with whole, c.loop(s.channels, s.lanes) as channel:
            put(_square(c, s, memory, c.plus(start, channel)), channel)
        with partial, c.loop(s.channels, s.lanes) as channel:
            down = [_inside(c, c.plus(top, r), s.size[0]) for r in range(rows.read)]
            across = [
                _inside(c, c.plus(left, k), s.size[1]) for k in range(columns.read)
            ]
            there = [[c.b.and_(row, column) for column in across] for row in down]
            put(_square(c, s, memory, c.plus(start, channel), there), channel)


def _moved(c: IndexCode, column: At, columns: Transform) -> At:
    """Return the offset of a tile's first element from that of the first tile."""
    if columns.step >= columns.count:
        return c.times(column, columns.step // columns.count)
    return c.over(column, columns.count // columns.step)


def _inside(c: IndexCode, index: At, size: int) -> Value:
    return c.b.icmp_unsigned("<", c.number_of(index), c.number_of(max(size, 0)))


def _square(
    c: IndexCode, s: Winograd | WinogradWeights, memory: Value, start: At,
    there: list[list[Value]] | None = None,
) -> Square:  # fmt: skip
    """Load the registers of a tile; what is outside is loaded elsewhere and zeroed."""
    found = []
    rows, columns = both(s)
    for r in range(rows.read):
        row = []
        for k in range(columns.read):
            step = r * s.image.strides[1] + k * s.image.strides[2]
            if there is None:
                row.append(c.vector(memory, c.plus(start, step)))
                continue
            place = c.b.select(
                there[r][k],
                c.number_of(c.plus(start, step)),
                c.number_of(s.image.start),
            )
            value = c.vector(memory, place)
            row.append(c.b.select(there[r][k], value, c.zeros()))
        found.append(row)
    return found


def plane(tiles: int, width: int) -> int:
    """Return the elements from plane to plane."""
    return tiles * width + PADDING


def scatter(
    c: IndexCode,
    area: Value,
    tiles: int,
    width: int,
    tile: At,
    square: Square,
    channel: At,
) -> None:
    """Scatter the elements of a transformed tile to their planes."""
    start = c.plus(c.times(tile, width), channel)
    values = [value for row in square for value in row]
    for number, value in enumerate(values):
        c.put(value, area, c.plus(start, number * plane(tiles, width)))


def gathered(
    c: IndexCode, area: Value, start: At, distance: int, transforms: Both
) -> Square:
    """Gather the elements of a transformed tile from planes at a distance."""
    rows, columns = transforms
    return [
        [
            c.vector(area, c.plus(start, (r * columns.products + k) * distance))
            for k in range(columns.products)
        ]
        for r in range(rows.products)
    ]


def winograd(
    c: IndexCode, s: Winograd, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit a Winograd scheme: (image, kernels, result, tiles, products)."""
    begin, end = numbers
    image, kernels, result, tiles, products = memory
    across = grid(s)[1]
    last = c.times(end, across)
    with c.loop(last, s.tiles, start=c.times(begin, across)) as first:
        count = c.smaller(s.tiles, c.minus(last, first))
        with c.loop(count) as number:
            tile = tile_of(c, s, c.plus(first, number))
            transform_tile(c, s, (image, tiles), (number, tile))
        _products(c, s, tiles, kernels, products, count)
        with c.loop(count) as number:
            tile = tile_of(c, s, c.plus(first, number))
            _write(c, s, products, result, number, tile)


def _products(
    c: IndexCode, s: Winograd, tiles: Value, kernels: Value, products: Value, count: At
) -> None:
    """Multiply (tiles, channels) and (channels, filters) for each plane."""
    lanes = s.vectors * s.lanes
    with c.loop(planes(both(s))) as number:
        left = c.times(number, plane(s.tiles, s.channels))
        right = c.times(number, s.channels * s.filters + PADDING)
        made = c.times(number, plane(s.tiles, s.filters))
        with c.loop(s.filters // lanes) as block:
            for first, step in _steps(c, count, s.step):
                places = (
                    c.plus(left, c.times(first, s.channels)),
                    c.plus(right, c.times(block, s.channels * lanes)),
                    c.plus(made, c.times(first, s.filters), c.times(block, lanes)),
                )
                _product(c, s, (tiles, kernels, products), places, step)


def _steps(c: IndexCode, count: At, step: int) -> Iterator[tuple[At, int]]:
    """Yield starts and lengths of steps through `count` tiles."""
    half = step // 2
    whole = c.times(c.over(c.plus(count, half - 1), step), step)
    with c.loop(whole, step) as first:
        yield first, step
    with c.only_if(c.b.icmp_signed("<", c.number_of(whole), c.number_of(count))):
        yield whole, half


def _product(
    c: IndexCode, s: Winograd, memory: tuple[Value, ...], places: tuple[At, At, At],
    step: int,
) -> None:  # fmt: skip
    """Multiply `step` tiles by some registers of filters."""
    left, right, made = places
    lanes = s.vectors * s.lanes
    sums = c.sums_of((t, v) for t in range(step) for v in range(s.vectors))
    for total in sums.values():
        c.b.store(c.zeros(), total)
    with c.loop(s.channels, UNROLLED) as channel:
        for more in range(UNROLLED):
            row = c.plus(right, c.times(c.plus(channel, more), lanes))
            w = [
                c.vector(memory[1], c.plus(row, v * s.lanes)) for v in range(s.vectors)
            ]
            for t in range(step):
                x = c.repeated(memory[0], c.plus(left, t * s.channels, channel, more))
                for v in range(s.vectors):
                    c.add_product(sums[t, v], x, w[v])
    for (t, v), total in sums.items():
        place = c.plus(made, t * s.filters + v * s.lanes)
        c.put(c.b.load(total), memory[2], place)


def _write(
    c: IndexCode, s: Winograd, products: Value, result: Value, number: At, tile: Tile
) -> None:
    """Store a tile of the result."""
    height, width = s.counts
    rows, columns = both(s)
    line = c.plus(c.times(tile.image, height), c.times(tile.row, rows.count))
    pixel = c.plus(c.times(line, width), tile.column)
    with c.loop(s.filters, s.lanes) as lane:
        start = c.plus(c.times(number, s.filters), lane)
        square = gathered(c, products, start, plane(s.tiles, s.filters), both(s))
        made = applied(c, rows.made, columns.made, square)
        place = c.plus(c.times(pixel, s.filters), lane)
        for r, row in enumerate(made):
            for k, value in enumerate(row):
                c.put(value, result, c.plus(place, (r * width + k) * s.filters))


def winograd_kernels(
    c: IndexCode, s: WinogradKernels, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit a WinogradKernels scheme: (packed kernels, transformed ones)."""
    begin, end = numbers
    packed, made = memory
    rows, columns = both(s)
    lanes = s.vectors * s.lanes
    edge = len(rows.kernels[0][0])
    size = s.blocks * s.channels * lanes + PADDING
    with c.loop(end, start=begin) as block, c.loop(s.channels) as channel:
        row = c.plus(c.times(block, s.channels), channel)
        for v in range(s.vectors):
            start = c.plus(c.times(row, edge * edge * lanes), v * s.lanes)
            square = [
                [
                    c.vector(packed, c.plus(start, (r * edge + k) * lanes))
                    for k in range(edge)
                ]
                for r in range(edge)
            ]
            found = applied(c, rows.kernels, columns.kernels, square)
            place = c.plus(c.times(row, lanes), v * s.lanes)
            values = [value for line in found for value in line]
            for number, value in enumerate(values):
                c.put(value, made, c.plus(place, number * size))
