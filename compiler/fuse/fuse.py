"""Fusion: grouping of nodes into kernels.

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
from dataclasses import dataclass
from itertools import takewhile

from staticgrad.compiler.fuse.fused_index_check import checked_by_scatters
from staticgrad.compiler.fuse.groups import (
    Fit,
    Group,
    agrees,
    all_full,
    fit_of,
    is_row_wise,
    read_axes,
    reduced_axes,
    spans,
)
from staticgrad.compiler.kernel_ir.layouts import (
    AxisMap,
    awaited,
    base_of,
    is_free,
    loop_shape,
)
from staticgrad.compiler.passes.operand_casts import operand_casts
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Node, Stored, Tensor
from staticgrad.ir.op import Leaf, Reduce

MAX_NODES = 64
MAX_READS = 24
SHARED_GROUPS = 4  # how many groups that read the same tensor are tried


@dataclass(frozen=True, slots=True)
class Timing:
    """Nodes that run before the commit, and those that write stored leaves.

    `early`: everything that a check depends on. `late`: node -> the leaf it replaces.
    `after`: nodes that read the old value, which have to run before.
    """

    early: frozenset[Node]
    late: Mapping[Node, Stored]
    after: Mapping[Node, tuple[Node, ...]]


def is_loop(node: Node) -> bool:
    """True if the node can share a loop nest with others."""
    return node.op.code.kind.fused


def fuse(graph: Graph, timing: Timing) -> list[Group]:
    """Partition `graph`'s nodes into groups, in no particular order."""
    return _Fusion(timing).run(graph)


class _Fusion:
    """State of one run of `fuse`."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.groups: list[Group] = []
        self.live: dict[Group, None] = {}  # the last changed at the end
        self.home: dict[Tensor, Group] = {}
        self.readers: dict[Tensor, list[Group]] = {}
        # last group of scalars that read an element of each tensor
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
            if spans(group, base)
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
        """Whether no group that must precede the commit depends on one that writes."""
        if node in self.timing.late:
            return not group.bit & self.before_commit
        if not (node in self.timing.early or group.bit & self.before_commit):
            return True
        needs = group.bit | group.parents
        for other in self._before(node):
            needs |= other.bit | other.parents
        return not needs & self.after_commit

    def _writes_in_place(self, node: Node, group: Group, fit: Fit) -> bool:
        """Whether the group replaces leaves that it reads only element by element."""
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
        """Merge groups that share row-wise reads with `node`.

        The sum of a row of g, for instance, where g itself is read once more.
        """
        for base in {base_of(t): None for t in node.inputs}:
            for other in self.readers.get(base, [])[-SHARED_GROUPS:]:
                needed = group.inner and other.inner and group.parents & other.bit
                if not needed or not (spans(group, base) and spans(other, base)):
                    continue
                pairs = zip(other.axis_of[base], group.axis_of[base], strict=True)
                axes: dict[int | None, int | None] = {None: None, **dict(pairs)}
                if self._may_merge(group, other, axes):
                    self._merge(group, other, axes)
                    break

    def _matching(
        self, node: Node, other: Group, group: Group
    ) -> dict[int | None, int | None] | None:
        """Map axes of `other` to axes of `group`, aligned by `node`, which is in it."""
        fit = fit_of(node, other)
        if fit is None or fit.added or node not in group.loop_axes:
            return None
        pairs = zip(fit.axes, group.loop_axes[node], strict=True)
        axes: dict[int | None, int | None] = {None: None}
        axes.update((theirs, ours) for theirs, ours in pairs if theirs is not None)
        target = len(group.axes)
        if group.inner and not other.inner:  # values of `other` exist once per row
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
        if bool(group.inner) != bool(other.inner) and not all_full(group, other):
            return False
        back = {ours: theirs for theirs, ours in axes.items()}
        if not (agrees(group, other, axes) and agrees(other, group, back)):
            return False
        one, two = group.bit, other.bit
        return not any(
            (x.parents & one and other.parents & x.bit)
            or (x.parents & two and group.parents & x.bit)
            for x in self._changed_since(group, other)
            if x is not group and x is not other
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
        """Replace `other` by `group` everywhere."""
        for node in other.nodes:
            self.stored_in[node] = group
            for tensor in node.outputs:
                if self.home[tensor] is other:
                    self.home[tensor] = group
        for tensor in other.axis_of:
            readers = self.readers.get(tensor)
            if readers and other in readers:
                readers[readers.index(other)] = group
        both = group.bit | other.bit
        parents = (group.parents | other.parents) & ~both
        self._set_parents(group, parents)
        del self.live[other]
        for x in self._changed_since(group, other):
            if x is not group and x.parents & both:
                self._set_parents(x, x.parents & ~other.bit | group.bit | parents)
        other.kind, other.nodes, other.parents = "merged", [], 0
        if both & self.before_commit:
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
        self._set_parents(group, 0)
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
        """Add `node`, and update the dependences of everything downstream."""
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
        self._set_parents(group, group.parents | new)
        if not group.needed:
            return
        for other in self._changed_since(group):
            if other.parents & group.bit:
                self._set_parents(other, other.parents | group.parents)

    def _set_parents(self, group: Group, parents: int) -> None:
        """Set a group's dependences; `live` is in the order of such changes."""
        group.parents = parents
        group.changed = len(self.groups)
        del self.live[group]
        self.live[group] = None

    def _changed_since(self, *groups: Group) -> list[Group]:
        """Return the live groups that may depend on `groups`, one of them the oldest.

        What depends on a group has changed since that was made; in a long chain those
        are few.
        """
        oldest = min(group.number for group in groups)
        return list(takewhile(lambda x: x.changed > oldest, reversed(self.live)))


def is_transparent(node: Node) -> bool:
    """Whether the node needs no kernel: a view, or a value that loops make."""
    return base_of(node.outputs[0]) is not node.outputs[0] or is_free(node.outputs[0])


def ordered(graph: Graph, timing: Timing) -> Sequence[Node]:
    """Return the nodes in topological order; those that write leaves come last."""
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
