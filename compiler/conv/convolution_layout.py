"""Sizes, strides and packed kernels shared by all convolutions.

`Making` is a Convolution node on its way to kernels; convolution_kernels.py and
winograd_kernels.py choose schemes for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from staticgrad.compiler.codegen.tiles.winograd_matrices import TRANSFORMS
from staticgrad.compiler.host import processor
from staticgrad.compiler.kernel_ir.buffers import Buffers
from staticgrad.compiler.kernel_ir.costs import FLOPS_PER_ADDITION
from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    FinishKernel,
    Load,
    LoopKernel,
    Operand,
    Reach,
    Statement,
    Store,
    Tiles,
    site_of,
)
from staticgrad.compiler.kernel_ir.layouts import base_of, layout_over
from staticgrad.compiler.kernel_ir.schemes import ImageView, Slide
from staticgrad.compiler.kernel_ir.walks import collapse, loops
from staticgrad.errors import CompilerBug
from staticgrad.ir.node import Node, Tensor, static_shape
from staticgrad.ir.op import Convolution, Layout
from staticgrad.ir.size import Dim, Shape, product

LEAST_CHANNELS, LEAST_PIXELS = 16, 64  # least sizes for transformed tiles
LEAST_GAIN = 1.3  # reduction of products that pays for transforms


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a convolution, all known but the number of images."""

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
        """Flops per image of the direct computation, outside taps included."""
        products = self.rows.count * self.columns.count * self.taps * self.channels
        return 2 * products * self.groups * self.filters

    @property
    def taps(self) -> int:
        """Number of elements of the window."""
        return self.rows.taps * self.columns.taps


def sizes_of(node: Node) -> Sizes:
    """Return the sizes of a Convolution node."""
    code, attrs = node.op.code, node.attrs
    assert isinstance(code, Convolution)
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


def transforms_of(sizes: Sizes, bits: int, part: str) -> tuple[str, str] | None:
    """Return the transforms of tiles of rows and columns, or None.

    3x3, a whole number of tiles, whole registers of lanes.
    """
    unit = max(processor.vector_bytes() * 8 // bits, 8)  # registers, and steps
    ends = (sizes.channels, sizes.filters)
    if sizes.groups > 1 or any(n % unit or n < LEAST_CHANNELS for n in ends):
        return None
    if sizes.rows.count * sizes.columns.count < LEAST_PIXELS:
        return None
    back = part == "input"
    down, rows = _best(sizes.rows, back, whole=True)
    across, columns = _best(sizes.columns, back, whole=False)
    return (rows, columns) if down * across >= LEAST_GAIN else None


def _best(slide: Slide, back: bool, whole: bool) -> tuple[float, str]:
    """Return the transform of an axis that saves most products, and the factor.

    A row of tiles is written by one chunk, so rows are a whole number of tiles; the
    last tile of a row may begin before the one in front of it ends.
    """
    made = slide.size if back else slide.count
    direct = 3 * made / (slide.stride if back else 1)
    found = [(0.0, "")]
    for name in _names(slide, back)[: 1 if whole else None]:
        t = TRANSFORMS[name]
        parts = t.count if whole else max(t.count // t.step, 1)
        if made >= t.count and made % parts == 0:
            found.append((direct / (-(-made // t.count) * t.products), name))
    return max(found)


def _names(slide: Slide, back: bool) -> tuple[str, ...]:
    """Return the transforms that fit an axis; those of rows are the first."""
    if (slide.taps, slide.dilation) != (3, 1) or slide.low > 2:
        return ()
    if slide.stride == 1:
        return ("two back", "four back") if back else ("two", "four")
    if slide.stride == 2 and back:
        return (f"apart back {'odd' if slide.low % 2 else 'even'}",)
    return ("apart",) if slide.stride == 2 else ()


def readable(node: Node, position: int, tensor: Tensor) -> bool:
    """Whether the kernels of a convolution can read `tensor` where it lies.

    Strides have to be known. Lanes lie beside each other: those of the gradient that
    the gradient of kernels reads, and all images of a depthwise convolution and of one
    by tiles.
    """
    layout = layout_over(tensor, Layout.contiguous(base_of(tensor).shape))
    if layout is None:
        return False
    code, sizes = node.op.code, sizes_of(node)
    depthwise = sizes.is_depthwise
    assert isinstance(code, Convolution)
    if position == 1 and code.part != "weight":
        return layout.is_contiguous or not depthwise
    known = all(isinstance(n, int) for n in (*layout.strides, layout.offset))
    tiled = transforms_of(sizes, 8 * tensor.dtype.itemsize, code.part) is not None
    lanes = depthwise or tiled or (position == 1 and code.part == "weight")
    beside = layout.strides[3] == 1 or layout.shape[3] == 1
    return known and (beside or not lanes)


def image_of(tensor: Tensor) -> ImageView:
    """Return the offset and strides of an image that is `readable`."""
    layout = layout_over(tensor, Layout.contiguous(base_of(tensor).shape))
    if layout is None:
        raise CompilerBug(f"{tensor} has no layout; it should have been copied")
    start, strides = layout.offset, layout.strides
    assert isinstance(start, int)
    n, h, w, c = (int(step) for step in strides if isinstance(step, int))
    return ImageView(start, (n, h, w, c))


def lanes_for(count: int, bits: int) -> int:
    """Return the lanes for `count` channels: a register's, or fewer if enough."""
    widest = processor.vector_bytes() * 8 // bits
    lanes = 128 // bits
    while lanes < min(count, widest):
        lanes *= 2
    return lanes


def span(start: Dim, strides: Shape, sizes: Shape) -> tuple[Dim, Dim]:
    """Return the least and greatest index of elements, strides positive."""
    low = high = start
    for step, size in zip(strides, sizes, strict=True):
        if isinstance(step, int) and step < 0:
            low = low + step * (size - 1)
        else:
            high = high + step * (size - 1)
    return low, high


def even(length: int, most: int) -> int:
    """Return about equal parts of at most `most`."""
    return -(-length // -(-length // most))


class Making:
    """Construction of one node's kernels."""

    def __init__(self, node: Node, buffers: Buffers) -> None:
        code = node.op.code
        assert isinstance(code, Convolution)
        self.node, self.part = node, code.part
        self.buffer_of, self.new_buffer = buffers, buffers.new
        self.slots_of = buffers.slots
        self.shape = sizes_of(node)
        self.dtype = node.types[0].dtype
        self.bits = 8 * self.dtype.itemsize
        self.site = site_of(node)

    def operand(self, tensor: Tensor) -> Operand:
        """Return the operand of an input."""
        return Operand(self.buffer_of(base_of(tensor)), "read", self.dtype)

    def result(self) -> Operand:
        """Return the operand of the node's result."""
        buffer = self.buffer_of(self.node.outputs[0])
        return Operand(buffer, "write", self.dtype)

    def kernel(
        self, extent: Dim, operands: tuple[Operand, ...], tiles: Tiles, flops: int,
        least_rows: int = 1, times: Dim = 1,
    ) -> LoopKernel:  # fmt: skip
        """Make a kernel of tiles; an index of axis 0 costs `times` as many `flops`."""
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

    def row_reach(self) -> Reach:
        """Return the reach of a row of the result per index."""
        row = product(self.node.types[0].shape[2:])
        return Reach(row, 0, row - 1)

    def span(self, number: int) -> Reach:
        """Return the reach of all elements of an input that may be read."""
        layout = layout_over(
            self.node.inputs[number],
            Layout.contiguous(base_of(self.node.inputs[number]).shape),
        )
        assert layout is not None
        return Reach(0, *span(layout.offset, layout.strides, layout.shape))

    def packing(
        self, packed: int, sizes: tuple[int, int, int], back: bool
    ) -> list[LoopKernel]:
        """Copy kernels to (group, block, summed, row tap, column tap, lanes).

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
        taps = (summed, shape.rows.taps, shape.columns.taps)
        axes: tuple[Dim, ...] = (shape.groups, count, *taps, used)
        read = (
            filters * shape.filters,
            of_lane * lanes,
            of_summed,
            down,
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
        nested = loops(range(len(axes)), body)
        axes, nested, _ = collapse(axes, nested, len(axes))
        operands = (self.operand(w), Operand(packed, "write", self.dtype))
        return self.copies(axes, operands, nested)

    def copies(
        self, axes: tuple[Dim, ...], operands: tuple[Operand, ...],
        body: tuple[Statement, ...],
    ) -> LoopKernel:  # fmt: skip
        """Make a loop nest that packs."""
        return LoopKernel(
            name="pack",
            axes=axes,
            operands=operands,
            scratch=(),
            body=body,
            sites=(self.site,),
            row_cost=product(axes[1:]),
        )

    def images(self) -> tuple[ImageView, ...]:
        """Return the images that are read."""
        given = self.node.inputs if self.part == "weight" else self.node.inputs[:1]
        return tuple(image_of(tensor) for tensor in given)

    def finish(self, slots: int, elements: int) -> FinishKernel:
        """Make the sum over the chunks of a kernel that has sums for each."""
        return FinishKernel(
            name="finish_add",
            operands=(Operand(slots, "read", self.dtype), self.result()),
            extent=elements,
            combine="add",
            dtype=self.dtype,
            sites=(self.site,),
        )
