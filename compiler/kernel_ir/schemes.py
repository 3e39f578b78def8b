"""Schemes: vector code of a kernel, in numbers that are all known.

A scheme is part of a kernel's source (its repr), so equal schemes are one kernel. The
code is emitted by tile_calls.py and the files that it names; which scheme serves a
convolution is decided in convolution_kernels.py.

Strides and starts are in elements. An image has four axes: batch, rows, columns,
channels. With groups, a group's channels and filters lie beside each other. What is
written is in C order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Four: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Slide:
    """Window that slides along one axis.

    Window number p meets element ``p * stride + tap * dilation - low`` of `size`, for
    each of its `taps`, wherever that is inside; there are `count` windows.
    """

    size: int
    taps: int
    count: int
    stride: int
    dilation: int
    low: int

    def element(self, window: int, tap: int) -> int:
        """Return the element that a window reads at a tap; -1 where it is outside."""
        found = window * self.stride + tap * self.dilation - self.low
        return found if 0 <= found < self.size else -1

    @property
    def is_inside(self) -> bool:
        """Whether no window reaches beyond the elements."""
        last = (self.count - 1) * self.stride + (self.taps - 1) * self.dilation
        return self.low <= 0 and last - self.low < self.size


@dataclass(frozen=True, slots=True)
class ImageView:
    """Offset and four strides of an image."""

    start: int
    strides: Four


@dataclass(frozen=True, slots=True)
class Rows:
    """Convolution, lanes being channels of the result: y of (x, packed kernels).

    Backwards, windows are what is read and elements what is made: the gradient of an
    image. `channels` and `filters` are those that a group reads and makes. Axis 0
    counts rows of all images. `width` columns are summed at a time, `sets` of sums
    apart.
    """

    bits: int
    lanes: int
    rows: Slide
    columns: Slide
    backwards: bool
    groups: int
    channels: int
    filters: int
    image: ImageView
    width: int
    vectors: int
    sets: int


@dataclass(frozen=True, slots=True)
class Weights:
    """Gradient of kernels, lanes being filters: w of (x, g).

    Axis 0 counts blocks of filters if `by_filters`; the number of images is then the
    first of the sizes. Otherwise it counts images. `width` channels are summed at a
    time, over `steps` columns apart.
    """

    bits: int
    lanes: int
    rows: Slide
    columns: Slide
    groups: int
    channels: int
    filters: int
    image: ImageView
    given: ImageView
    width: int
    steps: int
    by_filters: bool


@dataclass(frozen=True, slots=True)
class FewChannelRows:
    """Gradient of an image of few channels, by rows: x of (g, packed kernels).

    Lanes are the elements of a row of the window with their channels, in `vectors`
    registers. Axis 0 counts rows of all images. `width` pixels, `apart` columns from
    each other, meet `height` rows of the window at a time. The scratch area holds rows
    of the image with their margins.
    """

    bits: int
    lanes: int
    rows: Slide
    columns: Slide
    channels: int
    filters: int
    image: ImageView
    vectors: int
    width: int
    apart: int
    height: int


@dataclass(frozen=True, slots=True)
class Depthwise:
    """Depthwise convolution by rows, lanes being channels.

    As Rows, but that kernels lie as (rows, columns, channels).
    """

    bits: int
    lanes: int
    rows: Slide
    columns: Slide
    backwards: bool
    channels: int
    image: ImageView
    width: int


@dataclass(frozen=True, slots=True)
class DepthwiseWeights:
    """Gradient of depthwise kernels; axis 0 as Weights.

    Blocks are those of channels. `width` columns meet `height` rows of the window at a
    time.
    """

    bits: int
    lanes: int
    rows: Slide
    columns: Slide
    channels: int
    image: ImageView
    given: ImageView
    width: int
    height: int
    by_filters: bool


@dataclass(frozen=True, slots=True)
class Transposed:
    """Transposing copy: reads along one axis, writes along another.

    `sizes` are those of the axes after axis 0; strides are of all axes. `across` is the
    axis along which elements lie beside each other where they are read, `down` that
    where they are written.
    """

    bits: int
    lanes: int
    sizes: tuple[int, ...]
    read: tuple[int, ...]
    read_start: int
    written: tuple[int, ...]
    written_start: int
    across: int
    down: int


@dataclass(frozen=True, slots=True)
class Winograd:
    """Winograd convolution, 3x3: y of (x, transformed kernels).

    `transforms` name the matrices of rows and columns (winograd_matrices.py);
    rows of the result are a whole number of tiles. `low` are the margins before an
    image of `size`, below 0 what no tile reads. Axis 0 counts rows of tiles; `tiles`
    are transformed at a time, of which `step` are multiplied with `vectors` registers
    of filters at a time. Scratch areas are for transformed tiles and their products.
    """

    bits: int
    lanes: int
    size: tuple[int, int]
    counts: tuple[int, int]
    low: tuple[int, int]
    channels: int
    filters: int
    image: ImageView
    tiles: int
    step: int
    vectors: int
    transforms: tuple[str, str]


@dataclass(frozen=True, slots=True)
class WinogradKernels:
    """Winograd transform of packed kernels.

    The result is (plane, block, channel, lanes of a block), each of the planes followed
    by one cache line, so that they do not fall on one place of the cache. Axis 0 counts
    blocks.
    """

    bits: int
    lanes: int
    blocks: int
    channels: int
    vectors: int
    transforms: tuple[str, str]


@dataclass(frozen=True, slots=True)
class WinogradWeights:
    """Winograd gradient of 3x3 kernels; see Winograd.

    Axis 0 counts blocks of filters if `by_filters` (the number of images is then the
    first of the sizes), else rows of tiles. `step` channels are multiplied with
    `vectors` registers of filters at a time. Scratch areas are for transformed tiles of
    the image, of the gradient, and for the sums.
    """

    bits: int
    lanes: int
    size: tuple[int, int]
    counts: tuple[int, int]
    low: tuple[int, int]
    channels: int
    filters: int
    image: ImageView
    given: ImageView
    tiles: int
    step: int
    vectors: int
    by_filters: bool
    transforms: tuple[str, str]


@dataclass(frozen=True, slots=True, repr=False)
class Act:
    """Step of an Update's program: an operation on values, operands, a number."""

    name: str
    args: tuple[int, ...] = ()
    number: float = 0.0

    def __repr__(self) -> str:
        given = (self.name, self.args, self.number)
        short = given if self.number else given[: 1 + bool(self.args)]
        return f"Act({', '.join(map(repr, short))})"


@dataclass(frozen=True, slots=True)
class Update:
    """Fused update: rows of ``g = A B`` applied as they are made, never stored.

    Axis 0 counts blocks of 16 of the `rows` of g, or, with a `part`, parts of so many
    of its `columns`, under which all rows pass. How many `terms` there are is the first
    of the sizes if it is not known (-1); `depth` are added up at a time. Row i of A has
    its term k at ``a_start + i * a_row + k * a_term``, that of B begins at
    ``b_start + k * b_row``.

    `program` is done with each element. Step n makes value n: "product" g itself,
    "number", "element" of an operand, "column" of an operand that is one row, "single"
    of an operand and a place, one element for all, "rounded" the same of float64, or an
    operation such as "add" on values; "store" to an operand of a value, and "mark" to
    one of bools, make none. Operands are counted behind B.
    """

    bits: int
    lanes: int
    rows: int
    columns: int
    part: int
    terms: int
    depth: int
    a_start: int
    a_row: int
    a_term: int
    b_start: int
    b_row: int
    program: tuple[Act, ...]


Scheme: TypeAlias = (
    Rows
    | FewChannelRows
    | Weights
    | Depthwise
    | DepthwiseWeights
    | Winograd
    | WinogradKernels
    | WinogradWeights
    | Transposed
    | Update
)
