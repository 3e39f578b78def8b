"""Kernels of convolutions: the choice of scheme and sizes.

A convolution is one kernel, after one that packs its kernels for it, and in one case
before one that adds up the sums of chunks:

* depthwise, where every channel has a kernel of its own: lanes are channels;
* 3x3 with many channels: transformed tiles (winograd_kernels.py);
* the result, and the gradient of the image, which is the same with windows and elements
  exchanged: lanes are the channels that are made (Rows);
* the gradient of an image of few channels: lanes are a row of the window
  (few_channel_kernels.py);
* the gradient of kernels: lanes are filters (Weights). Chunks are blocks of filters, or
  images where there are few blocks, and then every chunk has sums of its own.

Weakness: a last block of lanes that are not all needed costs as much as a whole one.
"""

from __future__ import annotations

from math import prod

from staticgrad.compiler.conv.convolution_layout import (
    Making,
    even,
    image_of,
    lanes_for,
    transforms_of,
)
from staticgrad.compiler.conv.few_channel_kernels import few_channels, has_few_channels
from staticgrad.compiler.conv.winograd_kernels import winograd, winograd_weights
from staticgrad.compiler.host import processor
from staticgrad.compiler.kernel_ir.buffers import Buffers
from staticgrad.compiler.kernel_ir.kernels import Kernel, Operand, Reach, Tiles
from staticgrad.compiler.kernel_ir.schemes import (
    Depthwise,
    DepthwiseWeights,
    Rows,
    Weights,
)
from staticgrad.ir.node import Node, static_shape

FEW_BLOCKS = 4  # blocks of filters from which they are chunks
FLOPS_PER_SLOT = 4096  # of a chunk per private sum
CACHED_BYTES = 1 << 16  # packed kernels that may be read anew for every row
MOST_SUMS = {16: 10, 32: 24}  # registers -> those for sums


def convolved(node: Node, buffers: Buffers) -> list[Kernel]:
    """The kernels of a Convolution node."""
    m = Making(node, buffers)
    transforms = transforms_of(m.shape, m.bits, m.part)
    if m.part == "weight":
        return winograd_weights(m, transforms) if transforms else weights(m)
    if m.shape.is_depthwise:
        return depthwise(m)
    if transforms:
        return winograd(m, transforms)
    return (
        few_channels(m) if m.part == "input" and has_few_channels(m.shape) else rows(m)
    )


def rows(m: Making) -> list[Kernel]:
    """Make kernels that pack, then compute the rows of the result."""
    shape, back = m.shape, m.part == "input"
    made, summed = shape.filters, shape.channels
    if back:
        made, summed = summed, made
    scheme = _rows_scheme(m, made, summed, back)
    lanes = scheme.lanes * scheme.vectors
    blocks = -(-made // lanes)
    size = (shape.groups, blocks, summed, shape.rows.taps, shape.columns.taps)
    packed = m.new_buffer("temporary", (*size, lanes), m.dtype)
    weights = (made, summed, lanes)
    kernels: list[Kernel] = list(m.packing(packed, weights, back))
    per_row = shape.rows.size if back else shape.rows.count
    elements = prod((*size, lanes))
    bytes_packed = elements * m.dtype.itemsize
    least = min(per_row, max(1, bytes_packed // CACHED_BYTES))
    operands = (
        m.operand(m.node.inputs[0]),
        Operand(packed, "read", m.dtype),
        m.result(),
    )
    reach = Reach(0, 0, elements - 1)
    reaches = (m.span(0), reach, m.row_reach())
    flops = shape.flops_per_image // per_row
    tiles = Tiles(scheme, reaches)
    extent = shape.batch * per_row
    return [*kernels, m.kernel(extent, operands, tiles, flops, least)]


def _rows_scheme(m: Making, made: int, summed: int, back: bool) -> Rows:
    shape = m.shape
    lanes = lanes_for(made, m.bits)
    sums = MOST_SUMS[processor.registers()]
    taps, columns = shape.columns.taps, shape.columns
    vectors = 2 if shape.taps == 1 and made % (2 * lanes) == 0 else 1
    across = columns.size if back else columns.count
    most = max(sums // vectors - (taps - 1) // 2, 4)
    width = even(across, min(most, 16 if vectors == 1 else 14))
    if back and width < across:
        width = max(width - width % columns.stride, 1)
    few = 2 * width * vectors <= sums + 4 and shape.taps > 1
    return Rows(
        bits=m.bits,
        lanes=lanes,
        rows=shape.rows,
        columns=columns,
        backwards=back,
        groups=shape.groups,
        channels=summed,
        filters=made,
        image=image_of(m.node.inputs[0]),
        width=width,
        vectors=vectors,
        sets=2 if few and summed % 2 == 0 else 1,
    )


def depthwise(m: Making) -> list[Kernel]:
    """Make rows whose lanes are channels; the kernels are not packed."""
    shape, back = m.shape, m.part == "input"
    columns = shape.columns
    across = columns.size if back else columns.count
    width = even(across, MOST_SUMS[processor.registers()] // 2)
    if back and width < across:
        width = max(width - width % columns.stride, 1)
    scheme = Depthwise(
        bits=m.bits,
        lanes=lanes_for(shape.groups, m.bits),
        rows=shape.rows,
        columns=columns,
        backwards=back,
        channels=shape.groups,
        image=image_of(m.node.inputs[0]),
        width=width,
    )
    per_row = shape.rows.size if back else shape.rows.count
    operands = (*map(m.operand, m.node.inputs), m.result())
    taps = shape.taps * shape.groups
    reaches = (m.span(0), Reach(0, 0, taps - 1), m.row_reach())
    flops = shape.flops_per_image // per_row
    extent = shape.batch * per_row
    return [m.kernel(extent, operands, Tiles(scheme, reaches), flops)]


def weights(m: Making) -> list[Kernel]:
    """Make blocks of filters, or of images with sums for each chunk."""
    shape = m.shape
    depthwise = shape.is_depthwise
    lanes = lanes_for(shape.groups if depthwise else shape.filters, m.bits)
    blocks = -(-shape.filters // lanes) * shape.groups
    if depthwise:
        blocks = -(-shape.groups // lanes)
    by_filters = blocks >= FEW_BLOCKS
    scheme = _weights_scheme(m, lanes, by_filters, depthwise)
    shape_of_kernels = static_shape(m.node.types[0].shape)
    assert shape_of_kernels is not None
    elements = prod(shape_of_kernels)
    inputs = tuple(map(m.operand, m.node.inputs))
    reads = (m.span(0), m.span(1))
    if by_filters:
        step = lanes if shape.filters % lanes == 0 or depthwise else 1
        written = Reach(step, 0, elements - 1 - step * (blocks - 1))
        tiles = Tiles(scheme, (*reads, written), (shape.batch,))
        flops = shape.flops_per_image // blocks
        operands = (*inputs, m.result())
        return [m.kernel(blocks, operands, tiles, flops, times=shape.batch)]
    slots = m.slots_of(m.node)
    own = Operand(slots, "write", m.dtype, per_chunk=True, slot=elements)
    tiles = Tiles(scheme, (*reads, Reach(0, 0, elements - 1)))
    flops = shape.flops_per_image
    least = -(-FLOPS_PER_SLOT * elements // max(flops, 1))
    kernel = m.kernel(shape.batch, (*inputs, own), tiles, flops, max(least, 1))
    return [kernel, m.finish(slots, elements)]


def _weights_scheme(
    m: Making, lanes: int, by_filters: bool, depthwise: bool
) -> Weights | DepthwiseWeights:
    shape = m.shape
    image, given = (image_of(tensor) for tensor in m.node.inputs)
    free = MOST_SUMS[processor.registers()]
    if depthwise:
        return DepthwiseWeights(
            bits=m.bits,
            lanes=lanes,
            rows=shape.rows,
            columns=shape.columns,
            channels=shape.groups,
            image=image,
            given=given,
            width=even(shape.columns.count, free // 3),
            height=min(shape.rows.taps, max(free // shape.columns.taps, 1)),
            by_filters=by_filters,
        )
    most = max(free // shape.columns.taps, 1)
    width = even(shape.channels, most)
    sums = width * shape.columns.taps
    few = 2 * sums <= free
    return Weights(
        bits=m.bits,
        lanes=lanes,
        rows=shape.rows,
        columns=shape.columns,
        groups=shape.groups,
        channels=shape.channels,
        filters=shape.filters,
        image=image,
        given=given,
        width=width,
        steps=2 if few else 1,
        by_filters=by_filters,
    )
