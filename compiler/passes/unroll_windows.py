"""Unrolling of windows: one term for each element of a window, a *tap*.

Where w[r, s] meets the pixels x[r, s] (a slice of the padded image):

``conv(x, w)          = sum of x[r, s] @ w[r, s]``
``conv_input(g, w)    = sum of g @ w[r, s]^T, each put where x[r, s] lies``
``conv_weight(x, g)   = x[r, s]^T @ g for each r, s``
``max_pool(x)         = maximum of x[r, s]``
``max_pool_index(x)   = the first of r, s where x[r, s] is the maximum or a NaN``
``pool_pick(x, i)     = x[r, s] where i says so``
``pool_spread(g, i)   = g where i says so, put where x[r, s] lies``

Pools become elementwise loops this way, which fuse. A convolution is taken apart only
where there is no kernel for it: where its sizes are known when it runs.

Weakness: a slice of an image is copied before it is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

from staticgrad.compiler.passes.match import number
from staticgrad.ir.graph import Graph, apply, rewrite
from staticgrad.ir.node import Node, Tensor, static_shape
from staticgrad.ir.op import Convolution, Pool
from staticgrad.ir.size import Dim, Shape, product
from staticgrad.ops.movement.interleave import interleaved
from staticgrad.ops.movement.placement import PAD, joined
from staticgrad.ops.movement.slicing import SLICE
from staticgrad.ops.movement.views import broadcasted, reshaped, transposed
from staticgrad.ops.named import named

LONGEST_ROW = 32  # elements of a window's row that is unrolled
KERNELS = {"result": 1, "input": 1, "weight": 2}
"""Position of the kernels among the inputs and the result."""


def taps(graph: Graph) -> Graph:
    """Unroll windows; see the module docstring."""
    return _apart(graph, has_kernel)


def all_taps(graph: Graph) -> Graph:
    """Unroll as `taps`, for a target without kernels for convolutions."""
    return _apart(graph, lambda _: False)


def _apart(graph: Graph, kept: Callable[[Node], bool]) -> Graph:
    def rule(node: Node, _: Sequence[Tensor]) -> tuple[Tensor] | None:
        make = _maker(node, kept)
        return None if make is None else (make(node),)

    return rewrite(graph, rule)


def _maker(node: Node, kept: Callable[[Node], bool]) -> Callable[[Node], Tensor] | None:
    code = node.op.code
    if isinstance(code, Pool):
        return POOLS[code.part]
    if isinstance(code, Convolution) and not kept(node):
        return CONVOLUTIONS[code.part]
    return None


def has_kernel(node: Node) -> bool:
    """Whether the convolution has a kernel of its own.

    All sizes but the batch's are known then, none is 0, and rows of the window are
    short enough to be written out.
    """
    code, types = node.op.code, (*(t.type for t in node.inputs), *node.types)
    assert isinstance(code, Convolution)
    whole = KERNELS[code.part]
    shapes = [t.shape if k == whole else t.shape[1:] for k, t in enumerate(types)]
    known = [static_shape(shape) for shape in shapes]
    if not isinstance(node.attrs["groups"], int) or any(
        shape is None or 0 in shape for shape in known
    ):
        return False
    window = types[whole].shape[1]
    return isinstance(window, int) and window <= LONGEST_ROW


class _Windows:
    """Positions of a node's windows in the image."""

    def __init__(self, node: Node, image: Shape, window: Shape, counts: Shape) -> None:
        attrs = node.attrs
        self.image, self.window, self.counts = image, window, counts
        self.strides = attrs["strides"]
        self.dilation = attrs["dilation"]
        self.low = attrs.get("low", (0, 0))
        self.high = attrs.get("high", (0, 0))

    def taps(self) -> Iterator[tuple[int, int]]:
        """Yield row and column of each element, whose number is always known."""
        rows, columns = self.window
        assert isinstance(rows, int)
        assert isinstance(columns, int)
        for r in range(rows):
            for s in range(columns):
                yield r, s

    def padded(self, x: Tensor) -> Tensor:
        """Pad the image with its margins."""
        if not any((*self.low, *self.high)):
            return x
        low, high = (0, *self.low, 0), (0, *self.high, 0)
        return apply(PAD, x, low=low, high=high, interior=(0,) * 4, value=0)

    def seen(self, padded: Tensor, tap: tuple[int, int]) -> Tensor:
        """Return elements of all windows at `tap`: (batch, rows, columns, channels)."""
        starts = (0, *(t * d for t, d in zip(tap, self.dilation, strict=True)), 0)
        sizes = (padded.shape[0], *self.counts, padded.shape[3])
        steps = (1, *self.strides, 1)
        return apply(SLICE, padded, starts=starts, sizes=sizes, steps=steps)

    def put(self, part: Tensor, tap: tuple[int, int]) -> Tensor:
        """Put `part` in a padded image of zeros, where the windows have `tap`."""
        low: list[Dim] = [0]
        high: list[Dim] = [0]
        for axis in range(2):
            before = tap[axis] * self.dilation[axis]
            taken = (self.counts[axis] - 1) * self.strides[axis] + 1
            whole = self.image[axis] + self.low[axis] + self.high[axis]
            low.append(before)
            high.append(whole - before - taken)
        gaps = (0, *(stride - 1 for stride in self.strides), 0)
        attrs = {"low": (*low, 0), "high": (*high, 0), "interior": gaps, "value": 0}
        return apply(PAD, part, **attrs)

    def inner(self, padded: Tensor) -> Tensor:
        """Crop the margins of the image."""
        sizes = (padded.shape[0], *self.image, padded.shape[3])
        starts = (0, *self.low, 0)
        return apply(SLICE, padded, starts=starts, sizes=sizes, steps=(1,) * 4)


def _total(parts: Sequence[Tensor]) -> Tensor:
    return reduce(lambda x, y: named("add", x, y), parts)


def _matrices(x: Tensor, groups: int) -> Tensor:
    """Reshape (..., groups * c) to (groups, product of the others, c)."""
    rows, last = product(x.shape[:-1]), x.shape[-1]
    if groups == 1:
        return reshaped(x, (1, rows, last))
    own = last // groups
    return transposed(reshaped(x, (rows, groups, own)), (1, 0, 2))


def _image(x: Tensor, shape: Shape) -> Tensor:
    """Reshape back what _matrices reshaped."""
    if x.shape[0] == 1:
        return reshaped(x, shape)
    return reshaped(transposed(x, (1, 0, 2)), shape)


def _turned(x: Tensor) -> Tensor:
    return transposed(x, (0, 2, 1))


def _kernel_at(w: Tensor, tap: tuple[int, int]) -> Tensor:
    sizes = (1, 1, *w.shape[2:])
    starts = (*tap, 0, 0)
    found = apply(SLICE, w, starts=starts, sizes=sizes, steps=(1,) * 4)
    return reshaped(found, w.shape[2:])


def _conv(node: Node) -> Tensor:
    x, w = node.inputs
    groups, shape = node.attrs["groups"], node.types[0].shape
    windows = _Windows(node, x.shape[1:3], w.shape[:2], shape[1:3])
    padded = windows.padded(x)
    return _total(
        [
            _image(
                named(
                    "matmul",
                    _matrices(windows.seen(padded, tap), groups),
                    _matrices(_kernel_at(w, tap), groups),
                ),
                shape,
            )
            for tap in windows.taps()
        ]
    )


def _conv_input(node: Node) -> Tensor:
    g, w = node.inputs
    groups, shape = node.attrs["groups"], node.types[0].shape
    windows = _Windows(node, shape[1:3], w.shape[:2], g.shape[1:3])
    given = _matrices(g, groups)
    parts = []
    for tap in windows.taps():
        kernel = _turned(_matrices(_kernel_at(w, tap), groups))
        part = _image(named("matmul", given, kernel), (*g.shape[:3], shape[3]))
        parts.append(windows.put(part, tap))
    return windows.inner(_total(parts))


def _conv_weight(node: Node) -> Tensor:
    x, g = node.inputs
    groups, shape = node.attrs["groups"], node.types[0].shape
    windows = _Windows(node, x.shape[1:3], shape[:2], g.shape[1:3])
    padded, given = windows.padded(x), _matrices(g, groups)
    parts = []
    for tap in windows.taps():
        seen = _turned(_matrices(windows.seen(padded, tap), groups))
        part = _image(named("matmul", seen, given), shape[2:])
        parts.append(reshaped(part, (1, *shape[2:])))
    return reshaped(joined(parts, 0), shape)


CONVOLUTIONS: dict[str, Callable[[Node], Tensor]] = {
    "result": _conv,
    "input": _conv_input,
    "weight": _conv_weight,
}


def _pool_windows(node: Node) -> _Windows:
    """Return the windows of a node whose input is the image."""
    image = node.inputs[0].shape[1:3]
    return _Windows(node, image, node.attrs["window"], node.types[0].shape[1:3])


def _all_seen(node: Node) -> list[Tensor]:
    windows = _pool_windows(node)
    return [windows.seen(node.inputs[0], tap) for tap in windows.taps()]


def _maximum(node: Node) -> Tensor:
    return reduce(lambda x, y: named("maximum", x, y), _all_seen(node))


def _index(node: Node) -> Tensor:
    """Select from the last element on, so that an earlier one wins."""
    seen, dtype = _all_seen(node), node.types[0].dtype
    largest = reduce(lambda x, y: named("maximum", x, y), seen)
    last = len(seen) - 1
    found = broadcasted(number(last, dtype), node.types[0].shape)
    for place in reversed(range(last)):
        value = seen[place]
        wins = named(
            "logical_or",
            named("equal", value, largest),
            named("not_equal", value, value),
        )
        found = named("where", wins, number(place, dtype), found)
    return found


def _pick(node: Node) -> Tensor:
    seen, index = _all_seen(node), node.inputs[1]
    found = seen[-1]
    for place in reversed(range(len(seen) - 1)):
        here = named("equal", index, number(place, index.dtype))
        found = named("where", here, seen[place], found)
    return found


def _spread(node: Node) -> Tensor:
    g, index = node.inputs
    attrs = node.attrs
    windows = _Windows(node, attrs["size"], attrs["window"], g.shape[1:3])
    zero = number(0, g.dtype)
    parts = [
        named("where", named("equal", index, number(place, index.dtype)), g, zero)
        for place, _ in enumerate(windows.taps())
    ]
    spans = (
        (size - 1) * spread + 1
        for size, spread in zip(attrs["window"], attrs["dilation"], strict=True)
    )
    if attrs["dilation"] == (1, 1) and all(
        span <= stride for span, stride in zip(spans, attrs["strides"], strict=True)
    ):
        return interleaved(parts, attrs["size"], attrs["window"], attrs["strides"])
    return _total(
        [
            windows.put(part, tap)
            for part, tap in zip(parts, windows.taps(), strict=True)
        ]
    )


POOLS: dict[str, Callable[[Node], Tensor]] = {
    "maximum": _maximum,
    "index": _index,
    "pick": _pick,
    "spread": _spread,
}
