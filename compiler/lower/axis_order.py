"""Axis order: a group's axes in the order of memory.

A group has its axes in the order in which nodes brought them: a value that is repeated
along a new axis has that one last, even where results and inputs have it first. The
loops would then step far at each element and could not use vectors. Here the axes are
renumbered, so that an axis along which memory is walked in longer steps comes before
one with shorter steps.

Each access that moves along several axes has a vote, what is written two; the mean of
the logarithms of an axis's steps is its place. Axes that nobody votes on stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from staticgrad.compiler.fuse.groups import Group
from staticgrad.compiler.kernel_ir.layouts import (
    AxisMap,
    alignment,
    base_of,
    gathered_strides,
    is_free,
    layout_of,
)
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Gather, Layout, Reduce
from staticgrad.ir.size import TYPICAL_SIZE, Dim, guessed

WRITTEN, READ = 2, 1  # votes

Steps = dict[int, Dim]  # axis of the group -> elements from one index to the next


def in_memory_order(
    group: Group, stored: Iterable[Tensor], layouts: Mapping[Tensor, Layout]
) -> None:
    """Renumber the axes of `group`, which writes `stored`, some of it to `layouts`."""
    tensors = list(stored)
    if len(group.axes) < 2 or any(_lacks_axes(group, t) for t in tensors):
        return
    totals = [0.0] * len(group.axes)
    votes = [0] * len(group.axes)
    for weight, steps in _accesses(group, tensors, layouts):
        if len(steps) < 2:
            continue
        for axis, step in steps.items():
            totals[axis] += weight * _length(step)
            votes[axis] += weight
    voted = [axis for axis, count in enumerate(votes) if count]
    wanted = sorted(voted, key=lambda axis: -totals[axis] / votes[axis])
    if wanted == voted:
        return
    if not any(_ends_row(group, node) for node in group.nodes):
        group.inner = frozenset()  # it was only needed to tell values of rows
    order = list(range(len(group.axes)))
    for place, axis in zip(voted, wanted, strict=True):
        order[place] = axis
    _renumber(group, order)


def _lacks_axes(group: Group, tensor: Tensor) -> bool:
    """Whether a value is written once for all indices of some axis: a value of rows.

    That axis has to stay behind, or each of its chunks would write the value. A sum
    over rows that leaves the group adds one up per row, not one per element.
    """
    axes = group.axis_of.get(tensor, group.loop_axes[tensor.node])
    return len({axis for axis in axes if axis is not None}) < len(group.axes)


def _ends_row(group: Group, node: Node) -> bool:
    return isinstance(node.op.code, Reduce) and node not in group.gathered


def _length(step: Dim) -> float:
    return math.log2(max(abs(guessed(step, TYPICAL_SIZE)), 1))


def _accesses(
    group: Group, stored: Iterable[Tensor], layouts: Mapping[Tensor, Layout]
) -> Iterator[tuple[int, Steps]]:
    """Yield the accesses' votes, and the strides of each write and read."""
    for tensor in stored:
        layout = layouts.get(tensor, Layout.contiguous(tensor.shape))
        axes = group.axis_of.get(tensor) or _kept(group, tensor.node)
        yield WRITTEN, _steps(axes, tensor.shape, layout.strides)
    seen: set[tuple[Tensor, AxisMap]] = set()
    for node in group.nodes:
        for position, tensor in enumerate(node.inputs):
            axes = _axes(group, node, position)
            if (tensor, axes) in seen or is_free(tensor):
                continue
            seen.add((tensor, axes))
            if base_of(tensor) not in group.made and axes:
                strides = _strides(node, position)
                yield READ, _steps(axes, _shape(node, position), strides)


def _kept(group: Group, node: Node) -> AxisMap:
    """Return the group's axes of a reduction's result that leaves the group."""
    own = enumerate(group.loop_axes[node])
    return tuple(axis for dim, axis in own if dim not in node.attrs.get("axes", ()))


def _axes(group: Group, node: Node, position: int) -> AxisMap:
    """Return the group's axes along which an input is read; none if unknown."""
    if isinstance(node.op.code, Gather) and position == 0:
        return group.loop_axes[node]
    aligned = alignment(node, position)
    own = group.loop_axes[node]
    return () if aligned is None else tuple(own[dim] for dim in aligned)


def _strides(node: Node, position: int) -> Sequence[Dim]:
    strides = layout_of(node.inputs[position]).strides
    if not isinstance(node.op.code, Gather) or position:
        return strides
    axis = node.attrs["axis"]
    moved = gathered_strides(node, node.inputs[1], strides[axis])
    return (*strides[:axis], *moved, *strides[axis + 1 :])


def _shape(node: Node, position: int) -> Sequence[Dim]:
    gathers = isinstance(node.op.code, Gather) and position == 0
    return node.types[0].shape if gathers else node.inputs[position].shape


def _steps(axes: AxisMap, shape: Sequence[Dim], strides: Sequence[Dim]) -> Steps:
    found = zip(axes, shape, strides, strict=True)
    return {a: s for a, n, s in found if a is not None and n != 1 and s != 0}


def _renumber(group: Group, order: Sequence[int]) -> None:
    """Renumber: axis ``order[k]`` becomes axis k."""
    place: dict[int | None, int | None] = {a: k for k, a in enumerate(order)}
    place[None] = None

    def moved(axes: AxisMap) -> AxisMap:
        return tuple(place[axis] for axis in axes)

    def moved_set(axes: frozenset[int]) -> frozenset[int]:
        return frozenset(k for k, axis in enumerate(order) if axis in axes)

    group.axes = [group.axes[axis] for axis in order]
    group.inner = moved_set(group.inner)
    group.axis_of = {t: moved(axes) for t, axes in group.axis_of.items()}
    group.loop_axes = {n: moved(axes) for n, axes in group.loop_axes.items()}
    group.gathered = {n: moved_set(axes) for n, axes in group.gathered.items()}
