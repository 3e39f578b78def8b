"""Schemes: what the vector code of a kernel computes, in numbers that are all known.

A scheme is part of a kernel's source (its repr), so equal schemes are one kernel. The
code is emitted by codegen/tiles.py and the files that it names; which scheme serves a
convolution is decided in convolutions.py.

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
    """A window that slides along one axis.

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
        """The element that a window meets; -1 where it is outside."""
        found = window * self.stride + tap * self.dilation - self.low
        return found if 0 <= found < self.size else -1

    @property
    def is_inside(self) -> bool:
        """Whether no window reaches beyond the elements."""
        last = (self.count - 1) * self.stride + (self.taps - 1) * self.dilation
        return self.low <= 0 and last - self.low < self.size


@dataclass(frozen=True, slots=True)
class Image:
    """How an image is read: where it begins and its four strides."""

    start: int
    strides: Four


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a result whose channels are the lanes: y of (x, packed kernels).

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
    image: Image
    width: int
    vectors: int
    sets: int


@dataclass(frozen=True, slots=True)
class Weights:
    """The gradient of kernels, whose filters are the lanes: w of (x, g).

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
    image: Image
    given: Image
    width: int
    steps: int
    by_filters: bool


@dataclass(frozen=True, slots=True)
class Depthwise:
    """Rows of a result where every channel has its own kernel: channels are lanes.

    As Rows, but that kernels lie as (rows, columns, channels).
    """

    bits: int
    lanes: int
    rows: Slide
    columns: Slide
    backwards: bool
    channels: int
    image: Image
    width: int


@dataclass(frozen=True, slots=True)
class DepthwiseWeights:
    """The gradient of kernels of which every channel has its own; axis 0 as Weights.

    Blocks are those of channels.
    """

    bits: int
    lanes: int
    rows: Slide
    columns: Slide
    channels: int
    image: Image
    given: Image
    by_filters: bool


Scheme: TypeAlias = Rows | Weights | Depthwise | DepthwiseWeights
