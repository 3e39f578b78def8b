"""The gradient of 3x3 kernels by tiles: the adjoint of winograd.py.

    w' = G^T [ sum over tiles of (B^T x B) * (A g A^T) ] G

for tiles g of 2x2 elements of the result's gradient. The sum over tiles is 16 matrix
products; their results are kept until all tiles of a chunk have passed.
"""

from __future__ import annotations

from staticgrad.compiler.codegen.code import At, Code
from staticgrad.compiler.codegen.emitter import Value
from staticgrad.compiler.codegen.winograd import (
    A_T,
    EDGE,
    MADE,
    PADDING,
    PLANES,
    G,
    Tile,
    applied,
    plane,
    scatter,
    tile_of,
    transform_tile,
    transposed_matrix,
)
from staticgrad.compiler.schemes import WinogradWeights


def winograd_weights(
    c: Code, s: WinogradWeights, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit a WinogradWeights scheme: (image, gradient, result, three areas)."""
    begin, end, *sizes = numbers
    image, given, result, tiles, others, sums = memory
    across, block = s.counts[1] // MADE, s.vectors * s.lanes
    rows: tuple[At, At] = (begin, end)
    filters: tuple[At, At] = (0, s.filters)
    if s.by_filters:
        rows = (0, c.times(sizes[0], s.counts[0] // MADE))
        filters = (c.times(begin, block), c.times(end, block))
    size = s.channels * s.filters + PADDING
    with (
        c.loop(PLANES) as number,
        c.loop(s.channels) as channel,
        c.loop(filters[1], s.lanes, start=filters[0]) as lane,
    ):
        row = c.plus(c.times(number, size), c.times(channel, s.filters))
        c.put(c.zeros(), sums, c.plus(row, lane))
    last = c.times(rows[1], across)
    with c.loop(last, s.tiles, start=c.times(rows[0], across)) as first:
        count = c.smaller(s.tiles, c.minus(last, first))
        with c.loop(count) as number:
            tile = tile_of(c, c.plus(first, number), s.counts)
            transform_tile(c, s, (image, tiles), (number, tile))
            _transform_given(c, s, given, others, (number, tile), filters)
        _products(c, s, (tiles, others, sums), count, filters)
    with (
        c.loop(s.channels) as channel,
        c.loop(filters[1], s.lanes, start=filters[0]) as lane,
    ):
        place = c.plus(c.times(channel, s.filters), lane)
        square = [
            [c.vector(sums, c.plus(place, (r * EDGE + k) * size)) for k in range(EDGE)]
            for r in range(EDGE)
        ]
        found = applied(c, transposed_matrix(G), square)
        for r, row in enumerate(found):
            for k, value in enumerate(row):
                tap = (r * len(row) + k) * s.channels * s.filters
                c.put(value, result, c.plus(place, tap))


def _transform_given(
    c: Code, s: WinogradWeights, given: Value, others: Value,
    numbered: tuple[At, Tile], filters: tuple[At, At],
) -> None:  # fmt: skip
    """A tile of the gradient, of some filters."""
    number, tile = numbered
    start = c.plus(
        c.times(tile.image, s.given.strides[0]),
        c.times(c.times(tile.row, MADE), s.given.strides[1]),
        c.times(c.times(tile.column, MADE), s.given.strides[2]),
        s.given.start,
    )
    with c.loop(filters[1], s.lanes, start=filters[0]) as lane:
        square = [
            [
                c.vector(
                    given,
                    c.plus(
                        start,
                        lane,
                        r * s.given.strides[1] + k * s.given.strides[2],
                    ),
                )
                for k in range(MADE)
            ]
            for r in range(MADE)
        ]
        found = applied(c, transposed_matrix(A_T), square)
        scatter(c, others, s.tiles, s.filters, number, found, lane)


def _products(
    c: Code, s: WinogradWeights, memory: tuple[Value, Value, Value], count: At,
    filters: tuple[At, At],
) -> None:  # fmt: skip
    """16 products of (channels, tiles) and (tiles, filters), added to the sums."""
    lanes = s.vectors * s.lanes
    with (
        c.loop(PLANES) as number,
        c.loop(filters[1], lanes, start=filters[0]) as lane,
    ):
        left = c.times(number, plane(s.tiles, s.channels))
        right = c.plus(c.times(number, plane(s.tiles, s.filters)), lane)
        made = c.plus(c.times(number, s.channels * s.filters + PADDING), lane)
        with c.loop(s.channels, s.step) as channel:
            places = (
                c.plus(left, channel),
                right,
                c.plus(made, c.times(channel, s.filters)),
            )
            _product(c, s, memory, places, count)


def _product(
    c: Code, s: WinogradWeights, memory: tuple[Value, Value, Value],
    places: tuple[At, At, At], count: At,
) -> None:  # fmt: skip
    left, right, made = places
    sums = c.sums_of((t, v) for t in range(s.step) for v in range(s.vectors))
    for total in sums.values():
        c.b.store(c.zeros(), total)
    with c.loop(count) as tile:
        row = c.plus(right, c.times(tile, s.filters))
        g = [c.vector(memory[1], c.plus(row, v * s.lanes)) for v in range(s.vectors)]
        start = c.plus(left, c.times(tile, s.channels))
        for t in range(s.step):
            x = c.repeated(memory[0], c.plus(start, t))
            for v in range(s.vectors):
                c.add_product(sums[t, v], x, g[v])
    for (t, v), total in sums.items():
        place = c.plus(made, t * s.filters + v * s.lanes)
        before = c.vector(memory[2], place)
        c.put(c.b.fadd(before, c.b.load(total)), memory[2], place)
