"""Channels-last layout of images between convolutions.

Convolutions and pools make images with the channels last, which the user sees through
a transpose. That transpose moves behind whatever treats every element, or every
channel, alike:

``f(first(x), y)      = first(f(x, last(y)))``
``reduce(first(x))    = reduce(x)`` over the axes where they are
``slice(first(x))     = first(slice(x))``; pad and concatenate alike

where ``first`` brings the channels of (batch, height, width, channels) to the front and
``last`` is its inverse. The next convolution undoes it, and both are gone: images are
stored in the order in which their kernels read and write them, and only what leaves a
part of convolutions is transposed, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staticgrad.compiler.passes.match import by_rule, is_op
from staticgrad.ir.graph import Graph, apply, rewrite
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Elementwise, Reduce
from staticgrad.ops.movement.views import reshaped, transposed

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def channels_last(graph: Graph) -> Graph:
    """Rewrite images to channels last; see the module docstring."""
    return rewrite(graph, by_rule(_behind))


def _behind(node: Node) -> Tensor | None:
    if not any(map(_is_first, node.inputs)):
        return None
    if isinstance(node.op.code, Elementwise):
        return _elementwise(node)
    if isinstance(node.op.code, Reduce):
        return _reduce(node)
    rule = RULES.get(node.op.name)
    return None if rule is None else rule(node)


def _is_first(x: Tensor) -> bool:
    return is_op(x, "transpose") and x.node.attrs["axes"] == FIRST


def _elementwise(node: Node) -> Tensor | None:
    """Move the transposition behind an elementwise op with an image as an input."""
    shape = node.types[0].shape
    if not any(_is_first(x) and x.shape == shape for x in node.inputs):
        return None
    inputs = [_with_channels_last(x) for x in node.inputs]
    return transposed(apply(node.op, *inputs, **node.attrs), FIRST)


def _with_channels_last(x: Tensor) -> Tensor:
    if _is_first(x):
        return x.inputs[0]
    if x.ndim == 0:
        return x
    return transposed(reshaped(x, (1,) * (4 - x.ndim) + x.shape), LAST)


def _reduce(node: Node) -> Tensor:
    """Move the transposition behind a reduction, whose axes left may be reordered."""
    x = node.inputs[0].inputs[0]
    axes = tuple(sorted(FIRST[axis] for axis in node.attrs["axes"]))
    found = apply(node.op, x, **{**node.attrs, "axes": axes})
    wanted = [FIRST[axis] for axis in range(4) if axis not in node.attrs["axes"]]
    left = sorted(wanted)
    return transposed(found, tuple(left.index(axis) for axis in wanted))


def _per_axis(*names: str) -> Callable[[Node], Tensor]:
    """Return the rule for an op of one input with an attribute per axis."""

    def rule(node: Node) -> Tensor:
        attrs: dict[str, Any] = dict(node.attrs)
        for name in names:
            attrs[name] = tuple(attrs[name][LAST[axis]] for axis in range(4))
        return transposed(apply(node.op, node.inputs[0].inputs[0], **attrs), FIRST)

    return rule


def _concatenate(node: Node) -> Tensor | None:
    """Move the transposition behind a concatenation of such images."""
    if not all(map(_is_first, node.inputs)):
        return None
    parts = [x.inputs[0] for x in node.inputs]
    axis = FIRST[node.attrs["axis"]]
    return transposed(apply(node.op, *parts, axis=axis), FIRST)


RULES: dict[str, Callable[[Node], Tensor | None]] = {
    "slice": _per_axis("starts", "sizes", "steps"),
    "pad": _per_axis("low", "high", "interior"),
    "concatenate": _concatenate,
}
