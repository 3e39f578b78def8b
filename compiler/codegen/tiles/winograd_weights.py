"""Winograd gradient of 3x3 kernels: the adjoint of winograd_tiles.py.

    w' = G^T [ sum over tiles of (B^T x C) * (A g D^T) ] H

for tiles g of the result's gradient. The sums over tiles are matrix products; their
results are kept until all tiles of a chunk have passed.
"""

from __future__ import annotations

from staticgrad.compiler.codegen.llvm.index_code import At, IndexCode
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.tiles.winograd_matrices import transposed
from staticgrad.compiler.codegen.tiles.winograd_tiles import (
    PADDING,
    Tile,
    applied,
    both,
    gathered,
    grid,
    plane,
    planes,
    scatter,
    tile_of,
    transform_tile,
)
from staticgrad.compiler.kernel_ir.schemes import WinogradWeights


def winograd_weights(
    c: IndexCode, s: WinogradWeights, memory: list[Value], numbers: list[Value]
) -> None:
    """Emit a WinogradWeights scheme: (image, gradient, result, three areas)."""
    begin, end, *sizes = numbers
    image, given, result, tiles, others, sums = memory
    (down, across), block = grid(s), s.vectors * s.lanes
    rows: tuple[At, At] = (begin, end)
    filters: tuple[At, At] = (0, s.filters)
    if s.by_filters:
        rows = (0, c.times(sizes[0], down))
        filters = (c.times(begin, block), c.times(end, block))
    size = s.channels * s.filters + PADDING
    with (
        c.loop(planes(both(s))) as number,
        c.loop(s.channels) as channel,
        c.loop(filters[1], s.lanes, start=filters[0]) as lane,
    ):
        row = c.plus(c.times(number, size), c.times(channel, s.filters))
        c.put(c.zeros(), sums, c.plus(row, lane))
    last = c.times(rows[1], across)
    with c.loop(last, s.tiles, start=c.times(rows[0], across)) as first:
        count = c.smaller(s.tiles, c.minus(last, first))
        with c.loop(count) as number:
            tile = tile_of(c, s, c.plus(first, number))
            transform_tile(c, s, (image, tiles), (number, tile))
            _transform_given(c, s, given, others, (number, tile), filters)
        _products(c, s, (tiles, others, sums), count, filters)
    with (
        c.loop(s.channels) as channel,
        c.loop(filters[1], s.lanes, start=filters[0]) as lane,
    ):
        place = c.plus(c.times(channel, s.filters), lane)
        square = gathered(c, sums, place, size, both(s))
        kernels = [transposed(transform.kernels) for transform in both(s)]
        found = applied(c, kernels[0], kernels[1], square)
        for r, row in enumerate(found):
            for k, value in enumerate(row):
                tap = (r * len(row) + k) * s.channels * s.filters
                c.put(value, result, c.plus(place, tap))


def _transform_given(
    c: IndexCode, s: WinogradWeights, given: Value, others: Value,
    numbered: tuple[At, Tile], filters: tuple[At, At],
) -> None:  # fmt: skip
    """Transform a tile of the gradient, of some filters."""
    number, tile = numbered
    rows, columns = both(s)
    _, down, right, _ = s.given.strides
    start = c.plus(
        c.times(tile.image, s.given.strides[0]),
        c.times(c.times(tile.row, rows.count), down),
        c.times(tile.column, right),
        s.given.start,
    )
    new = _new(c, s, tile.column, columns.count)
    with c.loop(filters[1], s.lanes, start=filters[0]) as lane:
        square = []
        for r in range(rows.count):
            place = c.plus(start, lane, r * down)
            row = [
                c.vector(given, c.plus(place, k * right)) for k in range(columns.count)
            ]
            square.append([_where(c, n, v) for n, v in zip(new, row, strict=True)])
        made = transposed(rows.made), transposed(columns.made)
        found = applied(c, *made, square)
        scatter(c, others, s.tiles, s.filters, number, found, lane)


def _new(
    c: IndexCode, s: WinogradWeights, column: At, count: int
) -> list[Value | None]:
    """Return for each column a flag that no earlier tile has it; None for always."""
    rest = s.counts[1] % count
    common = count - rest if rest else 0
    if not common:
        return [None] * count
    last = c.number_of(s.counts[1] - count)
    inner = c.b.icmp_signed("<", c.number_of(column), last)
    return [inner if k < common else None for k in range(count)]


def _where(c: IndexCode, condition: Value | None, value: Value) -> Value:
    return value if condition is None else c.b.select(condition, value, c.zeros())


def _products(
    c: IndexCode, s: WinogradWeights, memory: tuple[Value, Value, Value], count: At,
    filters: tuple[At, At],
) -> None:  # fmt: skip
    """Add (channels, tiles) times (tiles, filters) to the sums of each plane."""
    lanes = s.vectors * s.lanes
    with (
        c.loop(planes(both(s))) as number,
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
    c: IndexCode, s: WinogradWeights, memory: tuple[Value, Value, Value],
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
