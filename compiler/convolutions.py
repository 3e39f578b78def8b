"""Kernels of convolutions: which scheme, with which sizes.

A convolution is one kernel, after one that packs its kernels for it, and in one case
before one that adds up the sums of chunks:

* depthwise, where every channel has a kernel of its own: lanes are channels;
* the result, and the gradient of the image, which is the same with windows and elements
  exchanged: lanes are the channels that are made (Rows);
* the gradient of kernels: lanes are filters (Weights). Chunks are blocks of filters, or
  images where there are few blocks, and then every chunk has sums of its own.

Weakness: a last block of lanes that are not all needed costs as much as a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from staticgrad.compiler.codegen import processor
from staticgrad.compiler.collapse import collapse
from staticgrad.compiler.kernels import (
    Access,
    FinishKernel,
    Kernel,
    Load,
    Loop,
    LoopKernel,
    Operand,
    Reach,
    Site,
    Statement,
    Store,
    Tiles,
)
from staticgrad.compiler.layouts import base_of, layout_over
from staticgrad.compiler.schedule import BufferKind
from staticgrad.compiler.schemes import (
    Depthwise,
    DepthwiseWeights,
    Image,
    Rows,
    Slide,
    Weights,
)
from staticgrad.errors import CompilerBug
from staticgrad.ir.node import Node, Tensor, static_shape
from staticgrad.ir.op import Convolution, Layout
from staticgrad.ir.size import Dim, product
from staticgrad.ir.types import DType

BufferOf: TypeAlias = Callable[[Tensor], int]
NewBuffer: TypeAlias = Callable[[BufferKind, tuple[Dim, ...], DType], int]

FLOPS_PER_ADDITION = 15  # as for matrix products (blas.py)
FEW_BLOCKS = 4  # blocks of filters from which they are chunks
FLOPS_PER_SLOT = 4096  # of a chunk for each sum that it has of its own
CACHED_BYTES = 1 << 16  # packed kernels that may be read anew for every row
MOST_SUMS = {16: 10, 32: 24}  # registers -> those for sums


# ---- geometry ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a convolution, all known but the number of images."""

    batch: Dim
    rows: Slide
    columns: Slide
    groups: int
    channels: int  # of a group
    filters: int  # of a group

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel has one kernel of its own."""
        return self.groups > 1 and self.channels == self.filters == 1

    @property
    def flops_per_image(self) -> int:
        """Of the direct computation, taps outside of the image included."""
        products = self.rows.count * self.columns.count * self.taps * self.channels
        return 2 * products * self.groups * self.filters

    @property
    def taps(self) -> int:
        """Elements of the window."""
        return self.rows.taps * self.columns.taps


def sizes_of(node: Node) -> Sizes:
    """The sizes of a Convolution node."""
    code, attrs = node.op.code, node.attrs
    if not isinstance(code, Convolution):
        raise CompilerBug(f"{node} is no convolution")
    first, second = (t.shape for t in node.inputs)
    made = node.types[0].shape
    image, window, counts = {
        "result": (first, second, made),
        "input": (made, second, first),
        "weight": (first, made, second),
    }[code.part]
    known = static_shape((*image[1:], *window, *counts[1:3]))
    if known is None:
        raise CompilerBug(f"{node} has sizes that are not known")
    rows, columns = (
        Slide(
            known[axis],
            known[3 + axis],
            known[7 + axis],
            attrs["strides"][axis],
            attrs["dilation"][axis],
            attrs["low"][axis],
        )
        for axis in range(2)
    )
    groups: int = attrs["groups"]
    return Sizes(image[0], rows, columns, groups, known[5], known[6] // groups)


def readable(node: Node, position: int, tensor: Tensor) -> bool:
    """Whether the kernels of a convolution can read `tensor` where it lies.

    Strides have to be known. Lanes lie beside each other: those of the gradient that
    the gradient of kernels reads, and everything of a depthwise convolution.
    """
    layout = layout_over(tensor, Layout.contiguous(base_of(tensor).shape))
    if layout is None:
        return False
    code, depthwise = node.op.code, sizes_of(node).is_depthwise
    assert isinstance(code, Convolution)
    if position == 1 and code.part != "weight":
        return layout.is_contiguous or not depthwise
    known = all(isinstance(n, int) for n in (*layout.strides, layout.offset))
    lanes = depthwise or (position == 1 and code.part == "weight")
    beside = layout.strides[3] == 1 or layout.shape[3] == 1
    return known and (beside or not lanes)


def _image(tensor: Tensor) -> Image:
    layout = layout_over(tensor, Layout.contiguous(base_of(tensor).shape))
    if layout is None:
        raise CompilerBug(f"{tensor} has no layout; it should have been copied")
    start, strides = layout.offset, layout.strides
    assert isinstance(start, int)
    n, h, w, c = (int(step) for step in strides if isinstance(step, int))
    return Image(start, (n, h, w, c))


def lanes_for(count: int, bits: int) -> int:
    """Lanes for `count` channels: a register's, or fewer that are enough."""
    widest = processor.vector_bytes() * 8 // bits
    lanes = 128 // bits
    while lanes < min(count, widest):
        lanes *= 2
    return lanes


def _even(length: int, most: int) -> int:
    """Parts of at most `most` that are about equal."""
    return -(-length // -(-length // most))


# ---- kernels -------------------------------------------------------------------------


def convolved(
    node: Node, buffer_of: BufferOf, new_buffer: NewBuffer, slots_of: Callable[..., int]
) -> list[Kernel]:
    """The kernels of a Convolution node."""
    making = _Making(node, buffer_of, new_buffer, slots_of)
    if making.part == "weight":
        return making.weights()
    return making.depthwise() if making.shape.is_depthwise else making.rows()


class _Making:
    """One node on its way."""

    def __init__(
        self, node: Node, buffer_of: BufferOf, new_buffer: NewBuffer,
        slots_of: Callable[..., int],
    ) -> None:  # fmt: skip
        code = node.op.code
        assert isinstance(code, Convolution)
        self.node, self.part = node, code.part
        self.buffer_of, self.new_buffer, self.slots_of = buffer_of, new_buffer, slots_of
        self.shape = sizes_of(node)
        self.dtype = node.types[0].dtype
        self.bits = 8 * self.dtype.itemsize
        self.site = Site(node.op.name, node.source, node.scope)

    def _operand(self, tensor: Tensor) -> Operand:
        return Operand(self.buffer_of(base_of(tensor)), "read", self.dtype)

    def _result(self) -> Operand:
        buffer = self.buffer_of(self.node.outputs[0])
        return Operand(buffer, "write", self.dtype)

    def _kernel(
        self, extent: Dim, operands: tuple[Operand, ...], tiles: Tiles, flops: int,
        least_rows: int = 1, times: Dim = 1,
    ) -> LoopKernel:  # fmt: skip
        return LoopKernel(
            name=self.node.op.name,
            axes=(extent,),
            operands=operands,
            scratch=(),
            body=(tiles,),
            sites=(self.site,),
            row_cost=times * max(flops // FLOPS_PER_ADDITION, 1),
            least_rows=least_rows,
        )

    # Rows of images

    def rows(self) -> list[Kernel]:
        """Packed kernels, then the rows of the result."""
        shape, back = self.shape, self.part == "input"
        made, summed = shape.filters, shape.channels
        if back:
            made, summed = summed, made
        scheme = self._rows_scheme(made, summed, back)
        lanes = scheme.lanes * scheme.vectors
        blocks = -(-made // lanes)
        size = (shape.groups, blocks, shape.rows.taps, summed, shape.columns.taps)
        packed = self.new_buffer("temporary", (*size, lanes), self.dtype)
        weights = (made, summed, lanes)
        kernels: list[Kernel] = list(self._packing(packed, weights, back))
        per_row = shape.rows.size if back else shape.rows.count
        elements = prod((*size, lanes))
        bytes_packed = elements * self.dtype.itemsize
        least = min(per_row, max(1, bytes_packed // CACHED_BYTES))
        operands = (
            self._operand(self.node.inputs[0]),
            Operand(packed, "read", self.dtype),
            self._result(),
        )
        reach = Reach(0, 0, elements - 1)
        reaches = (self._span(0), reach, self._row_reach())
        flops = shape.flops_per_image // per_row
        tiles = Tiles(scheme, reaches)
        extent = shape.batch * per_row
        return [*kernels, self._kernel(extent, operands, tiles, flops, least)]

    def _row_reach(self) -> Reach:
        """A row of the result per index."""
        row = product(self.node.types[0].shape[2:])
        return Reach(row, 0, row - 1)

    def _span(self, number: int) -> Reach:
        """All that an input may be read at."""
        layout = layout_over(
            self.node.inputs[number],
            Layout.contiguous(base_of(self.node.inputs[number]).shape),
        )
        assert layout is not None
        low: Dim = layout.offset
        high: Dim = layout.offset
        for size, step in zip(layout.shape, layout.strides, strict=True):
            if isinstance(step, int) and step < 0:
                low = low + step * (size - 1)
            else:
                high = high + step * (size - 1)
        return Reach(0, low, high)

    def _rows_scheme(self, made: int, summed: int, back: bool) -> Rows:
        shape = self.shape
        lanes = lanes_for(made, self.bits)
        sums = MOST_SUMS[processor.registers()]
        taps, columns = shape.columns.taps, shape.columns
        vectors = 2 if shape.taps == 1 and made % (2 * lanes) == 0 else 1
        across = columns.size if back else columns.count
        most = max(sums // vectors - (taps - 1) // 2, 4)
        width = _even(across, min(most, 16 if vectors == 1 else 14))
        if back and width < across:
            width = max(width - width % columns.stride, 1)
        few = 2 * width * vectors <= sums + 4 and shape.taps > 1
        return Rows(
            bits=self.bits,
            lanes=lanes,
            rows=shape.rows,
            columns=columns,
            backwards=back,
            groups=shape.groups,
            channels=summed,
            filters=made,
            image=_image(self.node.inputs[0]),
            width=width,
            vectors=vectors,
            sets=2 if few and summed % 2 == 0 else 1,
        )

    def _packing(
        self, packed: int, sizes: tuple[int, int, int], back: bool
    ) -> list[LoopKernel]:
        """Copies of kernels to (group, block, row tap, summed, column tap, lanes).

        What a last block has too many lanes for stays as it is: those are not written.
        """
        made, _, lanes = sizes
        whole, rest = divmod(made, lanes)
        blocks = whole + (rest > 0)
        kernels = [self._pack(packed, sizes, back, blocks, (0, whole, lanes))]
        if rest:
            kernels.append(self._pack(packed, sizes, back, blocks, (whole, 1, rest)))
        return [kernel for kernel in kernels if kernel is not None]

    def _pack(
        self, packed: int, sizes: tuple[int, int, int], back: bool, blocks: int,
        part: tuple[int, int, int],
    ) -> LoopKernel | None:  # fmt: skip
        shape, (_, summed, lanes) = self.shape, sizes
        first, count, used = part
        if count == 0:
            return None
        w = self.node.inputs[1]
        layout = layout_over(w, Layout.contiguous(base_of(w).shape))
        assert layout is not None
        down, right, channel, filters = layout.strides
        of_lane, of_summed = (channel, filters) if back else (filters, channel)
        taps = (shape.rows.taps, summed, shape.columns.taps)
        axes: tuple[Dim, ...] = (shape.groups, count, *taps, used)
        read = (
            filters * shape.filters,
            of_lane * lanes,
            down,
            of_summed,
            right,
            of_lane,
        )
        written = Layout.contiguous((shape.groups, blocks, *taps, lanes)).strides
        body: tuple[Statement, ...] = (
            Load(
                0, Access(0, read, layout.offset + of_lane * lanes * first), self.dtype
            ),
            Store(Access(1, written, written[1] * first), 0),
        )
        for axis in reversed(range(len(axes))):
            body = (Loop(axis, body),)
        axes, body, _ = collapse(axes, body, len(axes))
        return LoopKernel(
            name="pack",
            axes=axes,
            operands=(self._operand(w), Operand(packed, "write", self.dtype)),
            scratch=(),
            body=body,
            sites=(self.site,),
            row_cost=product(axes[1:]),
        )

    # Depthwise

    def depthwise(self) -> list[Kernel]:
        """Rows whose lanes are channels; the kernels are not packed."""
        shape, back = self.shape, self.part == "input"
        columns = shape.columns
        across = columns.size if back else columns.count
        width = _even(across, MOST_SUMS[processor.registers()] // 2)
        if back and width < across:
            width = max(width - width % columns.stride, 1)
        scheme = Depthwise(
            bits=self.bits,
            lanes=lanes_for(shape.groups, self.bits),
            rows=shape.rows,
            columns=columns,
            backwards=back,
            channels=shape.groups,
            image=_image(self.node.inputs[0]),
            width=width,
        )
        per_row = shape.rows.size if back else shape.rows.count
        operands = (*map(self._operand, self.node.inputs), self._result())
        taps = shape.taps * shape.groups
        reaches = (self._span(0), Reach(0, 0, taps - 1), self._row_reach())
        flops = shape.flops_per_image // per_row
        extent = shape.batch * per_row
        return [self._kernel(extent, operands, Tiles(scheme, reaches), flops)]

    # Gradients of kernels

    def weights(self) -> list[Kernel]:
        """By blocks of filters, or by images with sums for each chunk."""
        shape = self.shape
        depthwise = shape.is_depthwise
        lanes = lanes_for(shape.groups if depthwise else shape.filters, self.bits)
        blocks = -(-shape.filters // lanes) * shape.groups
        if depthwise:
            blocks = -(-shape.groups // lanes)
        by_filters = blocks >= FEW_BLOCKS
        scheme = self._weights_scheme(lanes, by_filters, depthwise)
        shape_of_kernels = static_shape(self.node.types[0].shape)
        assert shape_of_kernels is not None
        elements = prod(shape_of_kernels)
        inputs = tuple(map(self._operand, self.node.inputs))
        reads = (self._span(0), self._span(1))
        if by_filters:
            step = lanes if shape.filters % lanes == 0 or depthwise else 1
            written = Reach(step, 0, elements - 1 - step * (blocks - 1))
            tiles = Tiles(scheme, (*reads, written), (shape.batch,))
            flops = shape.flops_per_image // blocks
            operands = (*inputs, self._result())
            return [self._kernel(blocks, operands, tiles, flops, times=shape.batch)]
        slots = self.slots_of(self.node)
        own = Operand(slots, "write", self.dtype, per_chunk=True, slot=elements)
        tiles = Tiles(scheme, (*reads, Reach(0, 0, elements - 1)))
        flops = shape.flops_per_image
        least = -(-FLOPS_PER_SLOT * elements // max(flops, 1))
        kernel = self._kernel(shape.batch, (*inputs, own), tiles, flops, max(least, 1))
        return [kernel, self._finish(slots, elements)]

    def _weights_scheme(
        self, lanes: int, by_filters: bool, depthwise: bool
    ) -> Weights | DepthwiseWeights:
        shape = self.shape
        image, given = (_image(tensor) for tensor in self.node.inputs)
        if depthwise:
            return DepthwiseWeights(
                bits=self.bits,
                lanes=lanes,
                rows=shape.rows,
                columns=shape.columns,
                channels=shape.groups,
                image=image,
                given=given,
                by_filters=by_filters,
            )
        most = max(MOST_SUMS[processor.registers()] // shape.columns.taps, 1)
        width = _even(shape.channels, most)
        sums = width * shape.columns.taps
        few = 2 * sums <= MOST_SUMS[processor.registers()]
        return Weights(
            bits=self.bits,
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

    def _finish(self, slots: int, elements: int) -> FinishKernel:
        return FinishKernel(
            name="finish_add",
            operands=(Operand(slots, "read", self.dtype), self._result()),
            extent=elements,
            combine="add",
            dtype=self.dtype,
            sites=(self.site,),
        )
