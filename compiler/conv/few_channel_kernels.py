"""Kernels of image gradients with few channels (few_channels.py)."""

from __future__ import annotations

from dataclasses import replace

from staticgrad.compiler.codegen.tiles.few_channels import line_length
from staticgrad.compiler.conv.convolution_layout import (
    Making,
    Sizes,
    image_of,
    lanes_for,
)
from staticgrad.compiler.host import processor
from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Kernel,
    Load,
    Loop,
    LoopKernel,
    Number,
    Operand,
    Reach,
    Scratch,
    Statement,
    Store,
    Tiles,
)
from staticgrad.compiler.kernel_ir.layouts import base_of, layout_over
from staticgrad.compiler.kernel_ir.schemes import FewChannelRows
from staticgrad.compiler.kernel_ir.walks import loops
from staticgrad.ir.op import Layout
from staticgrad.ir.size import Dim, Shape, product

FEW_CHANNELS, LEAST_FILTERS = 4, 8
MOST_SUMS = {16: 10, 32: 24}  # registers -> those for sums
ROWS_PER_TAP = 8  # of a chunk: windows at its ends are computed twice


def has_few_channels(sizes: Sizes) -> bool:
    """Whether lanes are elements of a window's row: few channels, many filters."""
    few = sizes.channels <= FEW_CHANNELS and sizes.filters >= LEAST_FILTERS
    near = sizes.columns.dilation == 1 and sizes.columns.taps > 1
    return few and near and sizes.groups == 1


def few_channels(m: Making) -> list[Kernel]:
    """Make kernels that pack among zeros, then rows of the image's gradient."""
    scheme = _scheme(m)
    sizes = m.shape
    lanes = scheme.vectors * scheme.lanes
    size: Shape = (sizes.filters, sizes.rows.taps, lanes)
    packed = m.new_buffer("temporary", size, m.dtype)
    elements = sizes.filters * sizes.rows.taps * lanes
    row = sizes.columns.size * sizes.channels
    reaches = (m.span(0), Reach(0, 0, elements - 1), Reach(row, 0, row - 1))
    operands = (
        m.operand(m.node.inputs[0]),
        Operand(packed, "read", m.dtype),
        m.result(),
    )
    per_row = sizes.rows.size
    kernel = m.kernel(
        sizes.batch * per_row,
        operands,
        Tiles(scheme, reaches),
        sizes.flops_per_image // per_row,
        min(per_row, ROWS_PER_TAP * sizes.rows.taps * sizes.rows.dilation),
    )
    area = Scratch(m.dtype, line_length(scheme) * per_row)
    return [_zeros(m, packed, size), _pack(m, packed, lanes),
            replace(kernel, scratch=(area,))]  # fmt: skip


def _scheme(m: Making) -> FewChannelRows:
    sizes = m.shape
    columns, rows = sizes.columns, sizes.rows
    touched = columns.taps * sizes.channels
    lanes = lanes_for(touched, m.bits)
    vectors = -(-touched // lanes)
    most = MOST_SUMS[processor.registers()]
    height = rows.taps
    if height * vectors > most // 2:
        height = max(most // (4 * vectors), 1)
    most_pixels = max(most // (height * vectors), 1)
    step = columns.stride * sizes.channels
    width, apart = _pixels(columns.count, most_pixels, -(-vectors * lanes // step))
    return FewChannelRows(
        bits=m.bits,
        lanes=lanes,
        rows=rows,
        columns=columns,
        channels=sizes.channels,
        filters=sizes.filters,
        image=image_of(m.node.inputs[0]),
        vectors=vectors,
        width=width,
        apart=apart,
        height=height,
    )


def _pixels(count: int, most: int, least_apart: int) -> tuple[int, int]:
    """Return pixels of a tile and their distance: whole tiles, far enough apart."""
    pairs = [
        (width, apart)
        for width in range(1, most + 1)
        for apart in range(1, count + 1)
        if count % (width * apart) == 0
    ]
    best = max(pairs, key=lambda p: (p[1] >= least_apart, p[0], -p[1]))
    if best[1] >= least_apart and 2 * best[0] >= most:
        return best
    apart = min(least_apart, count)
    return min(most, max(count // apart, 1)), apart


def _zeros(m: Making, packed: int, size: Shape) -> LoopKernel:
    body: tuple[Statement, ...] = (
        Number(0, 0.0, m.dtype),
        Loop(0, (Store(Access(0, (1,)), 0),)),
    )
    operands = (Operand(packed, "write", m.dtype),)
    return m.copies((product(size),), operands, body)


def _pack(m: Making, packed: int, lanes: int) -> LoopKernel:
    """Pack (row, column, channel, filter) as (filter, row, column and channel)."""
    sizes, w = m.shape, m.node.inputs[1]
    layout = layout_over(w, Layout.contiguous(base_of(w).shape))
    assert layout is not None
    down, right, channel, filters = layout.strides
    axes: tuple[Dim, ...] = (
        sizes.filters, sizes.rows.taps, sizes.columns.taps, sizes.channels,
    )  # fmt: skip
    read = Access(0, (filters, down, right, channel), layout.offset)
    written = Access(1, (sizes.rows.taps * lanes, lanes, sizes.channels, 1))
    body: tuple[Statement, ...] = (Load(0, read, m.dtype), Store(written, 0))
    operands = (m.operand(w), Operand(packed, "write", m.dtype))
    return m.copies(axes, operands, loops(range(len(axes)), body))
