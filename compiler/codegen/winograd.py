"""3x3 convolutions by tiles: 16 products instead of 36 for 2x2 elements of the result.

    y = A^T [ (G w G^T) * (B^T x B) ] A

for a tile x of 4x4 elements of the image. The sums over channels are 16 matrix
products, one for each element of a transformed tile. With tiles of 2x2 the matrices
hold 0, 1 and 1/2 only, and the error is that of the direct sum.

Planes of the 16 products lie one cache line further apart than they are large: at a
distance of a power of two they would fall on one place of the cache.

Source: Lavin and Gray, Fast algorithms for convolutional neural networks (2016),
arXiv:1509.09308. Weakness: a NaN or an infinity reaches all four elements of the tiles
that it is in, not only those whose windows have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llvmlite import ir

from staticgrad.compiler.codegen.code import At, Code
from staticgrad.compiler.codegen.emitter import Value
from staticgrad.compiler.schemes import Winograd, WinogradKernels, WinogradWeights

Matrix: TypeAlias = Sequence[Sequence[float]]
Square: TypeAlias = list[list[Value]]

B_T: Matrix = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
G: Matrix = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
A_T: Matrix = ((1, 1, 1, 0), (0, 1, -1, -1))

EDGE = 4  # of a transformed tile
MADE = 2  # of a tile of the result
PLANES = EDGE * EDGE
PADDING = 16  # elements behind each plane: a cache line of float32
UNROLLED = 4  # terms per turn of a product's loop


def transposed_matrix(matrix: Matrix) -> Matrix:
    """Rows for columns."""
    return tuple(zip(*matrix, strict=True))


def applied(c: Code, matrix: Matrix, square: Square) -> Square:
    """``matrix @ square @ matrix^T``."""
    columns = [
        _combined(c, matrix, list(column)) for column in zip(*square, strict=True)
    ]
    rows = zip(*columns, strict=True)
    return [_combined(c, matrix, list(row)) for row in rows]


def _combined(c: Code, matrix: Matrix, values: list[Value]) -> list[Value]:
    """The matrix times a column of registers; terms with factor 1 come first."""
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


def _factor(c: Code, factor: float) -> Value:
    return ir.Constant(c.type, [float(factor)] * c.count)


def _times(c: Code, value: Value, factor: float) -> Value:
    return c.b.fneg(value) if factor == -1 else c.b.fmul(value, _factor(c, factor))


# ---- tiles of an image ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tile:
    """Image, and row and column of a tile among the image's tiles."""

    image: At
    row: At
    column: At


def tile_of(c: Code, number: At, counts: tuple[int, int]) -> Tile:
    """The tile with a number, counted over all images."""
    down, across = (count // MADE for count in counts)
    line = c.over(number, across)
    column = c.minus(number, c.times(line, across))
    image = c.over(line, down)
    return Tile(image, c.minus(line, c.times(image, down)), column)


def transform_tile(
    c: Code, s: Winograd | WinogradWeights, memory: tuple[Value, Value],
    numbered: tuple[At, Tile],
) -> None:  # fmt: skip
    """A tile of the image, into its place among those transformed."""
    image, tiles = memory
    number, tile = numbered

    def put(square: Square, channel: At) -> None:
        found = applied(c, B_T, square)
        scatter(c, tiles, s.tiles, s.channels, number, found, channel)

    _read_tile(c, s, image, tile, put)


def _read_tile(
    c: Code, s: Winograd | WinogradWeights, memory: Value, tile: Tile,
    put: Callable[[Square, At], None],
) -> None:  # fmt: skip
    """``put(4x4 registers, channel)`` for each block of channels; zeros outside."""
    top = c.minus(c.times(tile.row, MADE), s.low[0])
    left = c.minus(c.times(tile.column, MADE), s.low[1])
    start = c.plus(
        c.times(tile.image, s.image.strides[0]),
        c.times(top, s.image.strides[1]),
        c.times(left, s.image.strides[2]),
        s.image.start,
    )
    inside = _inside(c, top, s.size[0] - EDGE + 1)
    inside = c.b.and_(inside, _inside(c, left, s.size[1] - EDGE + 1))
    with c.b.if_else(inside) as (whole, partial):
        with whole, c.loop(s.channels, s.lanes) as channel:
            put(_square(c, s, memory, c.plus(start, channel)), channel)
        with partial, c.loop(s.channels, s.lanes) as channel:
            rows = [_inside(c, c.plus(top, r), s.size[0]) for r in range(EDGE)]
            columns = [_inside(c, c.plus(left, k), s.size[1]) for k in range(EDGE)]
            there = [[c.b.and_(row, column) for column in columns] for row in rows]
            put(_square(c, s, memory, c.plus(start, channel), there), channel)


def _inside(c: Code, index: At, size: int) -> Value:
    return c.b.icmp_unsigned("<", c.number_of(index), c.number_of(max(size, 0)))


def _square(
    c: Code, s: Winograd | WinogradWeights, memory: Value, start: At,
    there: list[list[Value]] | None = None,
) -> Square:  # fmt: skip
    """The registers of a tile; what is not there is loaded elsewhere and zeroed."""
    found = []
    for r in range(EDGE):
        row = []
        for k in range(EDGE):
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
    """Elements from plane to plane."""
    return tiles * width + PADDING


def scatter(
    c: Code, area: Value, tiles: int, width: int, tile: At, square: Square, channel: At
) -> None:
    """The elements of a transformed tile into their planes."""
    start = c.plus(c.times(tile, width), channel)
    for r in range(EDGE):
        for k in range(EDGE):
            number = (r * EDGE + k) * plane(tiles, width)
            c.put(square[r][k], area, c.plus(start, number))


# ---- results -------------------------------------------------------------------------


def winograd(c: Code, s: Winograd, memory: list[Value], numbers: list[Value]) -> None:
    """Emit a Winograd scheme: (image, kernels, result, tiles, products)."""
    begin, end = numbers
    image, kernels, result, tiles, products = memory
    across = s.counts[1] // MADE
    last = c.times(end, across)
    with c.loop(last, s.tiles, start=c.times(begin, across)) as first:
        count = c.smaller(s.tiles, c.minus(last, first))
        with c.loop(count) as number:
            tile = tile_of(c, c.plus(first, number), s.counts)
            transform_tile(c, s, (image, tiles), (number, tile))
        _products(c, s, tiles, kernels, products, count)
        with c.loop(count) as number:
            tile = tile_of(c, c.plus(first, number), s.counts)
            _write(c, s, products, result, number, tile)


def _products(
    c: Code, s: Winograd, tiles: Value, kernels: Value, products: Value, count: At
) -> None:
    """16 products of (tiles, channels) and (channels, filters)."""
    lanes = s.vectors * s.lanes
    with c.loop(PLANES) as number:
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


def _steps(c: Code, count: At, step: int) -> Iterator[tuple[At, int]]:
    """Starts and lengths of steps through `count` tiles; the last may be a half."""
    half = step // 2
    whole = c.times(c.over(c.plus(count, half - 1), step), step)
    with c.loop(whole, step) as first:
        yield first, step
    with c.only_if(c.b.icmp_signed("<", c.number_of(whole), c.number_of(count))):
        yield whole, half


def _product(
    c: Code, s: Winograd, memory: tuple[Value, ...], places: tuple[At, At, At],
    step: int,
) -> None:  # fmt: skip
    """`step` tiles by some registers of filters."""
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
    c: Code, s: Winograd, products: Value, result: Value, number: At, tile: Tile
) -> None:
    """A tile of 2x2 elements of the result."""
    height, width = s.counts
    line = c.plus(c.times(tile.image, height), c.times(tile.row, MADE))
    pixel = c.plus(c.times(line, width), c.times(tile.column, MADE))
    with c.loop(s.filters, s.lanes) as lane:
        start = c.plus(c.times(number, s.filters), lane)
        square = [
            [
                c.vector(
                    products,
                    c.plus(start, (r * EDGE + k) * plane(s.tiles, s.filters)),
                )
                for k in range(EDGE)
            ]
            for r in range(EDGE)
        ]
        made = applied(c, A_T, square)
        place = c.plus(c.times(pixel, s.filters), lane)
        for r in range(MADE):
            for k in range(MADE):
                c.put(made[r][k], result, c.plus(place, (r * width + k) * s.filters))


def winograd_kernels(
    c: Code, s: WinogradKernels, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit a WinogradKernels scheme: (packed kernels, transformed ones)."""
    begin, end = numbers
    packed, made = memory
    lanes = s.vectors * s.lanes
    edge = len(G[0])
    size = s.blocks * s.channels * lanes + PADDING
    with c.loop(end, start=begin) as block, c.loop(s.channels) as channel:
        row = c.plus(c.times(block, s.channels), channel)
        for v in range(s.vectors):
            start = c.plus(c.times(row, edge * edge * lanes), v * s.lanes)
            order = list(range(edge))
            taps = order[::-1] if s.flipped else order
            square = [
                [c.vector(packed, c.plus(start, (r * edge + k) * lanes)) for k in taps]
                for r in taps
            ]
            found = applied(c, G, square)
            place = c.plus(c.times(row, lanes), v * s.lanes)
            for r in range(EDGE):
                for k in range(EDGE):
                    c.put(found[r][k], made, c.plus(place, (r * EDGE + k) * size))
