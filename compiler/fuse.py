"""Fusion: which nodes share one kernel.

Nodes are taken in topological order; each joins the group of one of its inputs, or a
group that reads the same tensor (of single numbers: another element of it), if

* its loop axes are the group's (up to views, broadcasting and axes of size 1),
* no path leads from the group to the node through another group (convexity),
* the group stays below the size cap.

A group is a loop nest over `axes`. Once it has a reduction over the axes `inner`, it is
row-wise: the other axes are outer loops, a row is walked by several inner loops, and
values without inner axes exist once per row. Softmax, layer norm, cross entropy and
their gradients become one group this way, from their structure alone. Any other
reduction ("gathered") only leaves the group: its consumers belong to later groups.

An index that nothing but one scatter of as many elements reads is checked in the loop
of the scatter: it is not written and read once more.

What widens 16-bit memory for a call (the operand of a product) stays alone: merged with
what makes that memory, its 32-bit copy would live from the forward product to the
backward one.

Weakness: greedy; a node never leaves a group again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from staticgrad.compiler.checking import checked_by_scatters
from staticgrad.compiler.layouts import (
    AxisMap,
    alignment,
    awaited,
    base_axes,
    base_of,
    is_free,
    loop_shape,
)
from staticgrad.compiler.passes.widen import operand_casts
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Node, Stored, Tensor
from staticgrad.ir.op import (
    Elementwise,
    Gather,
    IndexCheck,
    Leaf,
    Random,
    Reduce,
)
from staticgrad.ir.size import Dim, product

MAX_NODES = 64
MAX_READS = 24
SHARED_GROUPS = 4  # how many groups that read the same tensor are tried
WHOLE_ROW = 16384  # elements up to which a full reduction stays in one row


@dataclass(slots=True, eq=False)
class Group:
    """Nodes of one kernel. `axis_of[t]` maps the axes of t to axes of the group.

    `bit` is this group in a set of groups;
    `parents` has one for every group that this one depends on, however indirectly.
    `gathered` are the reductions that are not row-wise; `finish` is the group that
    stands for their results, which exist only after the whole kernel.
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
    early: bool = False
    late: bool = False
    needed: bool = False  # whether any other group depends on this one


@dataclass(frozen=True, slots=True)
class Timing:
    """Which nodes have to run before the commit, and which write stored leaves.

    `early`: everything that a check depends on. `late`: node -> the leaf it replaces.
    `after`: nodes that read the old value, which have to run before.
    """

    early: frozenset[Node]
    late: Mapping[Node, Stored]
    after: Mapping[Node, tuple[Node, ...]]


@dataclass(frozen=True, slots=True)
class Fit:
    """How a node would sit in a group: its axes, and axes that it would add."""

    axes: AxisMap
    added: tuple[Dim, ...] = ()


def is_loop(node: Node) -> bool:
    """True if the node can share a loop nest with others."""
    code = node.op.code
    return isinstance(code, Elementwise | IndexCheck | Random | Reduce | Gather)


def reduced_axes(node: Node, axes: AxisMap) -> frozenset[int]:
    """The group's axes that a Reduce node reduces."""
    found = (axes[dim] for dim in node.attrs["axes"])
    return frozenset(axis for axis in found if axis is not None)


def fuse(graph: Graph, timing: Timing) -> list[Group]:
    """Groups of `graph`'s nodes, in no particular order."""
    return _Fusion(timing).run(graph)


class _Fusion:
    """The state of one run of `fuse`."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.groups: list[Group] = []
        self.live: dict[Group, None] = {}
        self.home: dict[Tensor, Group] = {}
        self.readers: dict[Tensor, list[Group]] = {}
        # the last group of single numbers that took one out of each tensor
        self.singles: dict[Tensor, Group] = {}
        self.stored_in: dict[Node, Group] = {}
        self.place: dict[Node, int] = {}
        self.before_commit = 0
        self.after_commit = 0

    def run(self, graph: Graph) -> list[Group]:
        alone = operand_casts(graph)
        checked = checked_by_scatters(graph, self.timing.late)
        within = set(checked.values())
        for node in ordered(graph, self.timing):
            if node in within or is_transparent(node):
                continue
            if node in alone:
                self._open_loop(node, "widening")
            elif is_loop(node):
                self._place(node)
            elif not isinstance(node.op.code, Leaf):
                group = self._open("single")
                if node in checked:
                    self._enter(group, checked[node])
                self._enter(group, node)
        for group in self.groups:
            group.early = bool(group.bit & self.before_commit)
        return self.groups

    def _place(self, node: Node) -> None:
        for group in self._candidates(node):
            fit = fit_of(node, group)
            if fit is not None and self._may_join(node, group, fit):
                self._join(node, group, fit)
                self._absorb_makers(node, group)
                self._absorb_sharers(node, group)
                return
        self._open_loop(node, "loop")

    def _open_loop(self, node: Node, kind: str) -> None:
        group = self._open(kind)
        dims = [dim for dim in loop_shape(node) if dim != 1]
        group.axes = dims
        counter = iter(range(len(dims)))
        axes = tuple(None if d == 1 else next(counter) for d in loop_shape(node))
        self._join(node, group, Fit(axes))

    def _candidates(self, node: Node) -> Iterable[Group]:
        seen: list[Group] = []
        bases = [base_of(t) for t in node.inputs]
        makers = [self.home[b] for b in bases if b in self.home]
        makers.sort(key=lambda group: -group.number)
        sharing = [
            group
            for base in bases
            for group in self.readers.get(base, [])[-SHARED_GROUPS:][::-1]
            if _spans(group, base)
        ]
        single = all(dim == 1 for dim in loop_shape(node))
        near = [self.singles[b] for b in bases if single and b in self.singles]
        near = [group for group in near if group in self.live]
        for group in makers + sharing + near:
            if group.kind == "loop" and group not in seen:
                seen.append(group)
        return seen

    def _may_join(self, node: Node, group: Group, fit: Fit) -> bool:
        if len(group.nodes) >= MAX_NODES or len(group.axis_of) > 2 * MAX_NODES:
            return False
        reads = len(group.axis_of) - len(group.made)
        if reads + len(node.inputs) > MAX_READS:
            return False
        if not self._keeps_commit(node, group):
            return False
        if not self._writes_in_place(node, group, fit):
            return False
        return not any(
            other is not group and other.parents & group.bit
            for other in self._before(node)
        )

    def _keeps_commit(self, node: Node, group: Group) -> bool:
        """No group that has to run before the commit depends on one that writes."""
        if node in self.timing.late:
            return not group.bit & self.before_commit
        if not (node in self.timing.early or group.bit & self.before_commit):
            return True
        needs = group.bit | group.parents
        for other in self._before(node):
            needs |= other.bit | other.parents
        return not needs & self.after_commit

    def _writes_in_place(self, node: Node, group: Group, fit: Fit) -> bool:
        """A leaf that the group reads is replaced only element by element."""
        new = self.timing.late.get(node)
        if new is None:
            return True
        reads = [
            read_axes(other, position, group.loop_axes[other])
            for other in group.nodes
            for position, tensor in enumerate(other.inputs)
            if base_of(tensor) is new
        ]
        return not reads or (not group.inner and set(reads) == {fit.axes})

    # Merging

    def _absorb_makers(self, node: Node, group: Group) -> None:
        """Merge the other groups that made inputs of `node` into its group."""
        for base in {base_of(t): None for t in node.inputs}:
            other = self.home.get(base)
            if other is None or other is group or other.kind != "loop":
                continue
            axes = self._matching(node, other, group)
            if axes is not None and self._may_merge(group, other, axes):
                self._merge(group, other, axes)

    def _absorb_sharers(self, node: Node, group: Group) -> None:
        """Merge groups that walked rows of what `node` reads for values per row.

        The sum of a row of g, for instance, where g itself is read once more.
        """
        for base in {base_of(t): None for t in node.inputs}:
            for other in self.readers.get(base, [])[-SHARED_GROUPS:]:
                needed = group.inner and other.inner and group.parents & other.bit
                if not needed or not (_spans(group, base) and _spans(other, base)):
                    continue
                pairs = zip(other.axis_of[base], group.axis_of[base], strict=True)
                axes: dict[int | None, int | None] = {None: None, **dict(pairs)}
                if self._may_merge(group, other, axes):
                    self._merge(group, other, axes)
                    break

    def _matching(
        self, node: Node, other: Group, group: Group
    ) -> dict[int | None, int | None] | None:
        """Axes of `other` -> axes of `group`, as `node`, which is in it, has them."""
        fit = fit_of(node, other)
        if fit is None or fit.added or node not in group.loop_axes:
            return None
        pairs = zip(fit.axes, group.loop_axes[node], strict=True)
        axes: dict[int | None, int | None] = {None: None}
        axes.update((theirs, ours) for theirs, ours in pairs if theirs is not None)
        target = len(group.axes)
        if group.inner and not other.inner:  # what `other` makes exists once per row
            target -= len(group.inner.difference(axes.values()))
        complete = len(axes) == len(other.axes) + 1 == target + 1
        return axes if complete and len(set(axes.values())) == len(axes) else None

    def _may_merge(
        self, group: Group, other: Group, axes: dict[int | None, int | None]
    ) -> bool:
        if len(group.nodes) + len(other.nodes) > MAX_NODES:
            return False
        both = group.bit | other.bit
        if both & self.before_commit:
            needs = both | group.parents | other.parents
            if needs & self.after_commit:
                return False
        if group.late or other.late:
            return False
        reads = len(group.axis_of) + len(other.axis_of)
        if reads - len(group.made) - len(other.made) > MAX_READS:
            return False
        inner = frozenset(axes[a] for a in other.inner)
        if group.inner and other.inner and inner != group.inner:
            return False
        if bool(group.inner) != bool(other.inner) and not _all_full(group, other):
            return False
        back = {ours: theirs for theirs, ours in axes.items()}
        if not (_agrees(group, other, axes) and _agrees(other, group, back)):
            return False
        one, two = group.bit, other.bit
        between = (group.parents | other.parents) & ~(one | two)
        return not any(
            x.bit & between
            and (
                (x.parents & one and other.parents & x.bit)
                or (x.parents & two and group.parents & x.bit)
            )
            for x in self.live
        )

    def _merge(
        self, group: Group, other: Group, axes: dict[int | None, int | None]
    ) -> None:
        def moved(found: AxisMap) -> AxisMap:
            return tuple(axes[a] for a in found)

        if other.inner:
            group.inner = frozenset(
                a for a in map(axes.get, other.inner) if a is not None
            )
        group.nodes = sorted(group.nodes + other.nodes, key=self.place.__getitem__)
        for tensor, found in other.axis_of.items():
            group.axis_of.setdefault(tensor, moved(found))
        for node, found in other.loop_axes.items():
            group.loop_axes[node] = moved(found)
        for node, reduced in other.gathered.items():
            group.gathered[node] = frozenset(
                a for a in map(axes.get, reduced) if a is not None
            )
        group.made |= other.made
        group.needed = group.needed or other.needed
        group.finish = group.finish or other.finish
        self._replace(group, other)

    def _replace(self, group: Group, other: Group) -> None:
        """Everything that named `other` names `group`."""
        for node in other.nodes:
            self.stored_in[node] = group
            for tensor in node.outputs:
                if self.home[tensor] is other:
                    self.home[tensor] = group
        for tensor in other.axis_of:
            readers = self.readers.get(tensor)
            if readers and other in readers:
                readers[readers.index(other)] = group
        parents = (group.parents | other.parents) & ~group.bit & ~other.bit
        group.parents = parents
        del self.live[other]
        for x in self.live:
            if x is not group and x.parents & (group.bit | other.bit):
                x.parents = x.parents & ~other.bit | group.bit | parents
        other.kind, other.nodes, other.parents = "merged", [], 0
        if (group.bit | other.bit) & self.before_commit:
            self.before_commit |= group.bit | parents

    def _before(self, node: Node) -> list[Group]:
        bases = [base_of(t) for t in node.inputs]
        bases += [b for t in node.inputs for b in awaited(t)]
        groups = [self.home[b] for b in bases if b in self.home]
        earlier = self.timing.after.get(node, ())
        return groups + [self.stored_in[n] for n in earlier if n in self.stored_in]

    def _open(self, kind: str) -> Group:
        number = len(self.groups)
        group = Group(number, kind, 1 << number)
        self.groups.append(group)
        self.live[group] = None
        return group

    def _join(self, node: Node, group: Group, fit: Fit) -> None:
        if fit.added:
            first = len(group.axes)
            group.axes.extend(fit.added)
            group.inner = frozenset(range(first, len(group.axes)))
        group.loop_axes[node] = fit.axes
        for position, tensor in enumerate(node.inputs):
            self._note_read(node, position, tensor, group, fit)
        result = node.outputs[0]
        code = node.op.code
        if isinstance(code, Reduce):
            reduced = reduced_axes(node, fit.axes)
            dims = [a for i, a in enumerate(fit.axes) if i not in node.attrs["axes"]]
            if not is_row_wise(group, fit.axes, reduced):
                self._enter(group, node, gathered=reduced)
                return
            if reduced:
                group.inner = reduced
            group.axis_of[result] = tuple(dims)
        else:
            group.axis_of[result] = fit.axes
        self._enter(group, node)

    def _note_read(
        self, node: Node, position: int, tensor: Tensor, group: Group, fit: Fit
    ) -> None:
        base = base_of(tensor)
        if base in group.axis_of or is_free(tensor):
            return
        axes = read_axes(node, position, fit.axes)
        if axes is None:
            if not group.axes:
                self.singles[base] = group
            return
        group.axis_of[base] = axes
        self.readers.setdefault(base, []).append(group)

    def _enter(
        self, group: Group, node: Node, gathered: frozenset[int] | None = None
    ) -> None:
        """Add `node`, and tell everything downstream what the group now depends on."""
        new = 0
        for other in self._before(node):
            if other is not group:
                other.needed = True
                new |= other.bit | other.parents
        group.nodes.append(node)
        self.place[node] = len(self.place)
        if node in self.timing.late:
            group.late = True
            self.after_commit |= group.bit
        self.stored_in[node] = group
        self._add_parents(group, new)
        if node in self.timing.early or group.bit & self.before_commit:
            self.before_commit |= group.bit | group.parents
        home = group
        if gathered is not None:
            group.gathered[node] = gathered
            if group.finish is None:
                group.finish = self._open("finish")
            home = group.finish
            group.needed = True
            self._add_parents(home, group.bit | group.parents)
        else:
            group.made.update(node.outputs)
        self.home.update((t, home) for t in node.outputs)

    def _add_parents(self, group: Group, new: int) -> None:
        if not new & ~group.parents:
            return
        group.parents |= new
        if not group.needed:
            return
        for other in self.live:
            if other.parents & group.bit:
                other.parents |= group.parents


def _spans(group: Group, base: Tensor) -> bool:
    """Whether a tensor that the group reads is as large as its loops.

    Sharing a smaller one saves nothing: it would only keep gradients alive until the
    last of the updates that read one learning rate.
    """
    axes = [axis for axis in group.axis_of.get(base, ()) if axis is not None]
    return bool(axes) and len(axes) == len(group.axes)


def _agrees(reader: Group, maker: Group, axes: dict[int | None, int | None]) -> bool:
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


def _all_full(group: Group, other: Group) -> bool:
    """True if the group without inner axes has no value that lacks the other's."""
    plain = other if group.inner else group
    whole = len(plain.axes)
    return all(
        sum(axis is not None for axis in plain.loop_axes[node]) == whole
        for node in plain.nodes
    )


def read_axes(node: Node, position: int, loop_axes: AxisMap) -> AxisMap | None:
    """The group's axes of an input's base, if the input is read cleanly."""
    tensor = node.inputs[position]
    aligned, view = alignment(node, position), base_axes(tensor)
    if aligned is None or view is None:
        return None
    axes: list[int | None] = [None] * base_of(tensor).ndim
    for dim, axis in enumerate(view):
        if axis is not None:
            axes[axis] = loop_axes[aligned[dim]]
    return tuple(axes)


def is_transparent(node: Node) -> bool:
    """True if the node needs no kernel: a view, or a value that loops make."""
    return base_of(node.outputs[0]) is not node.outputs[0] or is_free(node.outputs[0])


def ordered(graph: Graph, timing: Timing) -> Sequence[Node]:
    """The nodes, each after its inputs; those that write leaves come last."""
    late = [node for node in graph.nodes if node in timing.late]
    pending = set(late)
    result = [node for node in graph.nodes if node not in pending]
    while late:
        ready = [n for n in late if not pending.intersection(timing.after.get(n, ()))]
        ready = ready or late
        result.extend(ready)
        pending.difference_update(ready)
        late = [node for node in late if node in pending]
    return result


def fit_of(node: Node, group: Group) -> Fit | None:
    """The axes that `node` would have in `group`; None if it does not fit."""
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
    """Set the axes that one input decides; False if it contradicts what is set."""
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
        # computed, and perhaps written, again for every index of the new ones. What is
        # cheap is brought here later (recompute.py).
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


__all__ = ["Fit", "Group", "Timing", "fuse", "is_loop", "ordered", "reduced_axes"]
