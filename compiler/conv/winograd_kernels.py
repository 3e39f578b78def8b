"""Kernels of Winograd convolutions, 3x3 (winograd_tiles.py).

They serve where 1.3 to 3 times fewer products are worth the transforms: with many
channels and filters, whole registers of them.
"""

from __future__ import annotations

from dataclasses import replace

from staticgrad.compiler.codegen.tiles.winograd_matrices import TRANSFORMS
from staticgrad.compiler.codegen.tiles.winograd_tiles import PADDING, both, grid, planes
from staticgrad.compiler.conv.convolution_layout import Making
from staticgrad.compiler.host import processor
from staticgrad.compiler.kernel_ir.kernels import (
    Kernel,
    LoopKernel,
    Operand,
    Reach,
    Scratch,
    Tiles,
)
from staticgrad.compiler.kernel_ir.schemes import (
    Slide,
    Winograd,
    WinogradKernels,
    WinogradWeights,
)

LARGE_BYTES = 1 << 20  # of transformed kernels, beyond the L2 cache
PLANES = 1024  # elements of transformed tiles at a time, for each channel
TILES_OF_LITTLE, LITTLE = 16, 1024  # channels times filters: areas stay in cache
TILES_OF_MUCH = 32  # so that the areas do not evict the kernels
TILES_PER_SLOT = 128  # of a chunk with private sums


def winograd(m: Making, transforms: tuple[str, str]) -> list[Kernel]:
    """Make kernels that pack and transform, then rows of tiles of the result."""
    scheme = _scheme(m, transforms)
    made, summed = scheme.filters, scheme.channels
    lanes = scheme.lanes * scheme.vectors
    size = (1, made // lanes, summed, 3, 3, lanes)
    packed = m.new_buffer("temporary", size, m.dtype)
    number = planes(both(scheme))
    elements = number * (made * summed + PADDING)
    transformed = m.new_buffer("temporary", (elements,), m.dtype)
    back = m.part == "input"
    down, across = grid(scheme)
    row = scheme.counts[0] // down * scheme.counts[1] * made
    operands = (
        m.operand(m.node.inputs[0]),
        Operand(transformed, "read", m.dtype),
        m.result(),
    )
    reaches = (m.span(0), Reach(0, 0, elements - 1), Reach(row, 0, row - 1))
    kernel = m.kernel(
        m.shape.batch * down,
        operands,
        Tiles(scheme, reaches),
        m.shape.flops_per_image // down // 2,
        min(down, -(-scheme.tiles // across)),  # rows that fill the areas
    )
    areas = (number * (scheme.tiles * n + PADDING) for n in (summed, made))
    scratch = tuple(Scratch(m.dtype, area) for area in areas)
    return [
        *m.packing(packed, (made, summed, lanes), back),
        _transform(m, scheme, packed, transformed),
        replace(kernel, scratch=scratch),
    ]


def _scheme(m: Making, transforms: tuple[str, str]) -> Winograd:
    """Return the scheme of the result, or of the image's gradient, exchanged."""
    slides = (m.shape.rows, m.shape.columns)
    size, counts, low = (
        (slides[0].size, slides[1].size),
        (slides[0].count, slides[1].count),
        (slides[0].low, slides[1].low),
    )
    made, summed = m.shape.filters, m.shape.channels
    if m.part == "input":
        made, summed, size, counts = summed, made, counts, size
        low = (_margin(slides[0]), _margin(slides[1]))
    number = planes((TRANSFORMS[transforms[0]], TRANSFORMS[transforms[1]]))
    tiles = TILES_OF_LITTLE if made * summed <= LITTLE else _tiles(number)
    if number * made * summed * m.dtype.itemsize > LARGE_BYTES:
        tiles = TILES_OF_MUCH
    lanes = processor.vector_bytes() * 8 // m.bits
    return Winograd(
        bits=m.bits,
        lanes=lanes,
        size=size,
        counts=counts,
        low=low,
        channels=summed,
        filters=made,
        image=m.images()[0],
        tiles=tiles,
        step=_step(),
        vectors=_vectors(made, lanes),
        transforms=transforms,
    )


def _margin(slide: Slide) -> int:
    """Return the margin before the windows of the first tile of an image's gradient."""
    if slide.stride == 1:
        return 2 - slide.low
    return (slide.low + 1) % 2 - slide.low // 2


def _tiles(number: int) -> int:
    """Return the tiles transformed at a time, of so many planes: whole steps."""
    return PLANES // number // 8 * 8


def _step() -> int:
    """Return the tiles, or channels, whose sums fit into registers together."""
    return 4 if processor.registers() < 32 else 8


def _vectors(made: int, lanes: int) -> int:
    return 2 if made % (2 * lanes) == 0 else 1


def _transform(
    m: Making, scheme: Winograd, packed: int, transformed: int
) -> LoopKernel:
    """Return the kernel that transforms packed kernels, block by block."""
    lanes = scheme.lanes * scheme.vectors
    blocks, per_block = scheme.filters // lanes, 9 * scheme.channels * lanes
    own = scheme.channels * lanes
    elements = planes(both(scheme)) * (scheme.channels * scheme.filters + PADDING)
    transform = WinogradKernels(
        m.bits, scheme.lanes, blocks, scheme.channels, scheme.vectors,
        scheme.transforms,
    )  # fmt: skip
    reaches = (
        Reach(per_block, 0, per_block - 1),
        Reach(own, 0, elements - 1 - own * (blocks - 1)),
    )
    operands = (
        Operand(packed, "read", m.dtype),
        Operand(transformed, "write", m.dtype),
    )
    return m.kernel(blocks, operands, Tiles(transform, reaches), 16 * per_block)


def winograd_weights(m: Making, transforms: tuple[str, str]) -> list[Kernel]:
    """Make rows of tiles with sums for each chunk, or blocks of many filters."""
    shape = m.shape
    lanes = processor.vector_bytes() * 8 // m.bits
    vectors = _vectors(shape.filters, lanes)
    image, given = m.images()
    number = planes((TRANSFORMS[transforms[0]], TRANSFORMS[transforms[1]]))
    tiles = _tiles(number)
    own_bytes = number * shape.channels * shape.filters * m.dtype.itemsize
    by_filters = own_bytes > LARGE_BYTES
    scheme = WinogradWeights(
        bits=m.bits,
        lanes=lanes,
        size=(shape.rows.size, shape.columns.size),
        counts=(shape.rows.count, shape.columns.count),
        low=(shape.rows.low, shape.columns.low),
        channels=shape.channels,
        filters=shape.filters,
        image=image,
        given=given,
        tiles=tiles,
        step=_step(),
        vectors=vectors,
        by_filters=by_filters,
        transforms=transforms,
    )
    elements = 9 * shape.channels * shape.filters
    inputs = tuple(map(m.operand, m.node.inputs))
    widths = (shape.channels, shape.filters)
    areas = [number * (tiles * n + PADDING) for n in widths]
    areas.append(number * (shape.channels * shape.filters + PADDING))
    scratch = tuple(Scratch(m.dtype, area) for area in areas)
    flops = shape.flops_per_image // 2
    reads = (m.span(0), m.span(1))
    if by_filters:
        blocks = shape.filters // (vectors * lanes)
        written = Reach(
            vectors * lanes, 0, elements - shape.filters + vectors * lanes - 1
        )
        kernel = m.kernel(
            blocks,
            (*inputs, m.result()),
            Tiles(scheme, (*reads, written), (shape.batch,)),
            flops // blocks,
            -(-blocks // 2),  # images are transformed anew for each chunk
            shape.batch,
        )
        return [replace(kernel, scratch=scratch)]
    slots = m.slots_of(m.node)
    own = Operand(slots, "write", m.dtype, per_chunk=True, slot=elements)
    down, across = grid(scheme)
    kernel = m.kernel(
        shape.batch * down,
        (*inputs, own),
        Tiles(scheme, (*reads, Reach(0, 0, elements - 1))),
        flops // down,
        -(-TILES_PER_SLOT // across),
    )
    return [replace(kernel, scratch=scratch), m.finish(slots, elements)]
