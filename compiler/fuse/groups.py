"""Groups: nodes that share one kernel, and the rules for joining one.

A node fits where its loop axes are the group's, up to views, broadcasting and axes of
size 1; two groups fit where one reads what the other makes element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from staticgrad.compiler.kernel_ir.layouts import (
    AxisMap,
    alignment,
    base_axes,
    base_of,
    loop_shape,
)
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.size import Dim, product

WHOLE_ROW = 16384  # elements up to which a full reduction stays in one row


@dataclass(slots=True, eq=False)
class Group:
    """Nodes of one kernel; `axis_of[t]` maps the axes of t to axes of the group.

    `bit` is this group in a set of groups; `parents` has one for every group that this
    one depends on, however indirectly, and `changed` is the number of groups when that
    changed. `gathered` are the reductions that are not row-wise; `finish` is the group
    that stands for their results, which exist only after the whole kernel.
    """

    number: int
    kind: str
    bit: int
    nodes: list[Node] = field(default_factory=list)
    axes: list[Dim] = field(default_factory=list)
    inner: frozenset[int] = frozenset()
    axis_of: dict[Tensor, AxisMap] = field(default_factory=dict)
    made: set[Tensor] = field(default_factory=set)
    loop_axes: dict[Node, AxisMap] = field(default_factory=dict)
    gathered: dict[Node, frozenset[int]] = field(default_factory=dict)
    finish: Group | None = None
    parents: int = 0
    changed: int = 0
    early: bool = False
    late: bool = False
    needed: bool = False  # whether any other group depends on this one


@dataclass(frozen=True, slots=True)
class Fit:
    """Place of a node in a group: its axes, and axes that it would add."""

    axes: AxisMap
    added: tuple[Dim, ...] = ()


def reduced_axes(node: Node, axes: AxisMap) -> frozenset[int]:
    """Return the group's axes that a Reduce node reduces."""
    found = (axes[dim] for dim in node.attrs["axes"])
    return frozenset(axis for axis in found if axis is not None)


def fit_of(node: Node, group: Group) -> Fit | None:
    """Return the axes that `node` would have in `group`; None if it does not fit."""
    shape = loop_shape(node)
    axes: list[int | None] = [None] * len(shape)
    for position, tensor in enumerate(node.inputs):
        base = base_of(tensor)
        made = base in group.made
        if base not in group.axis_of and not made:
            continue
        if not _align(node, position, tensor, group, axes) and made:
            return None
    return _complete(shape, axes, group)


def _align(
    node: Node, position: int, tensor: Tensor, group: Group, axes: list[int | None]
) -> bool:
    """Set the axes that one input determines; False if it contradicts others."""
    aligned, view = alignment(node, position), base_axes(tensor)
    if aligned is None or view is None:
        return False
    known = group.axis_of[base_of(tensor)]
    found = list(axes)
    for dim, base_axis in enumerate(view):
        axis = None if base_axis is None else known[base_axis]
        if axis is None:
            continue
        if found[aligned[dim]] not in (None, axis):
            return False
        if axis in found and found[aligned[dim]] is None:
            return False
        found[aligned[dim]] = axis
    axes[:] = found
    return True


def _complete(shape: Sequence[Dim], axes: list[int | None], group: Group) -> Fit | None:
    open_dims = [i for i, n in enumerate(shape) if n != 1 and axes[i] is None]
    used = {axis for axis in axes if axis is not None}
    everything = set(range(len(group.axes)))
    if not open_dims:
        outer = everything - group.inner
        fits = used == everything or bool(group.inner and used == outer)
        return Fit(tuple(axes)) if fits else None
    missing = sorted(everything - used)
    sizes = [shape[i] for i in open_dims]
    if [group.axes[axis] for axis in missing] == sizes:
        for dim, axis in zip(open_dims, missing, strict=True):
            axes[dim] = axis
        return Fit(tuple(axes))
    if missing or group.inner or group.late or not group.axes:
        return None
    within = [i for i, axis in enumerate(axes) if axis is not None]
    if within and open_dims[0] < within[-1]:
        # Memory is walked along the group's axes, so that their values would be
        # computed, and perhaps written, again for every index of the new ones. Cheap
        # values are rematerialised here later (recompute.py).
        return None
    for number, dim in enumerate(open_dims):
        axes[dim] = len(group.axes) + number
    return Fit(tuple(axes), tuple(sizes))


def is_row_wise(group: Group, axes: AxisMap, reduced: frozenset[int]) -> bool:
    """Whether the result of a reduction is known at the end of each row."""
    if not reduced or reduced == group.inner:
        return True
    if group.inner or group.late:
        return False
    whole = frozenset(range(len(group.axes)))
    if reduced == whole:
        count = product(tuple(group.axes))
        return isinstance(count, int) and count <= WHOLE_ROW
    loop_axes = [axis for axis in axes if axis is not None]
    return loop_axes[-1] in reduced


def spans(group: Group, base: Tensor) -> bool:
    """Whether a tensor that the group reads is as large as its loops.

    Sharing a smaller one saves nothing: it would only keep gradients alive until the
    last of the updates that read one learning rate.
    """
    axes = [axis for axis in group.axis_of.get(base, ()) if axis is not None]
    return bool(axes) and len(axes) == len(group.axes)


def agrees(reader: Group, maker: Group, axes: dict[int | None, int | None]) -> bool:
    """Whether `reader` reads what `maker` makes element by element.

    `axes` maps the axes of `maker` to those of `reader`.
    """
    return all(
        read_axes(node, position, reader.loop_axes[node])
        == tuple(axes[a] for a in maker.axis_of[base_of(tensor)])
        for node in reader.nodes
        for position, tensor in enumerate(node.inputs)
        if base_of(tensor) in maker.made
    )


def all_full(group: Group, other: Group) -> bool:
    """Whether the group without inner axes has no value that lacks the other's."""
    plain = other if group.inner else group
    whole = len(plain.axes)
    return all(
        sum(axis is not None for axis in plain.loop_axes[node]) == whole
        for node in plain.nodes
    )


def read_axes(node: Node, position: int, loop_axes: AxisMap) -> AxisMap | None:
    """Return the group's axes of an input's base, if the input is read cleanly."""
    tensor = node.inputs[position]
    aligned, view = alignment(node, position), base_axes(tensor)
    if aligned is None or view is None:
        return None
    axes: list[int | None] = [None] * base_of(tensor).ndim
    for dim, axis in enumerate(view):
        if axis is not None:
            axes[axis] = loop_axes[aligned[dim]]
    return tuple(axes)
