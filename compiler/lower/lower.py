"""Lowering of an optimised Graph to a Schedule.

``materialise`` puts copies where memory needs them, ``fuse`` groups nodes, ``nest`` and
``unfused`` make kernels of the groups, ``order`` says when each runs; later
``in_place`` lets a kernel write over what it read last. The order obeys the commit rule
(schedule.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from staticgrad.compiler.conv.convolution_kernels import convolved
from staticgrad.compiler.fuse.fuse import Timing, fuse
from staticgrad.compiler.fuse.groups import Group
from staticgrad.compiler.fuse.order import Task, order
from staticgrad.compiler.fuse.recompute import recompute
from staticgrad.compiler.kernel_ir.buffers import Buffers, StoreRegion
from staticgrad.compiler.kernel_ir.kernels import FinishKernel, Operand, site_of
from staticgrad.compiler.kernel_ir.layouts import awaited, base_of, is_view
from staticgrad.compiler.kernel_ir.schedule import (
    Buffer,
    Schedule,
    Step,
    reads,
    with_makers,
    writes,
)
from staticgrad.compiler.lower.axis_order import in_memory_order
from staticgrad.compiler.lower.call_kernels import called
from staticgrad.compiler.lower.concatenated_stores import regions
from staticgrad.compiler.lower.control_kernels import controlled, may_fail, may_last
from staticgrad.compiler.lower.inline_loops import inlined
from staticgrad.compiler.lower.materialise import materialise
from staticgrad.compiler.lower.nest import nest
from staticgrad.compiler.lower.scan_kernels import scanned
from staticgrad.compiler.lower.select_kernels import selected
from staticgrad.compiler.lower.shuffle_kernels import shuffled
from staticgrad.compiler.lower.sort_kernels import sorted_rows
from staticgrad.compiler.lower.strided_copies import straightened
from staticgrad.compiler.lower.tiled_transpose import transposed
from staticgrad.compiler.lower.unfused import gemm, gemm_add, placed, scattered
from staticgrad.compiler.memory.in_place import in_place
from staticgrad.errors import CompilerBug
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import (
    Call,
    Control,
    Convolution,
    Leaf,
    Matmul,
    MatmulAdd,
    Place,
    Reduce,
    Scan,
    Scatter,
    Select,
    Shuffle,
    Sort,
)
from staticgrad.ir.size import Dim, product


def lower(
    graph: Graph,
    finite: Sequence[Tensor] = (),
    sizes: Mapping[str, int] | None = None,
    is_body: bool = False,
) -> Schedule:
    """Return the Schedule of `graph`; see `arranged`."""
    return in_place(arranged(graph, finite, sizes, is_body))


def arranged(
    graph: Graph,
    finite: Sequence[Tensor] = (),
    sizes: Mapping[str, int] | None = None,
    is_body: bool = False,
) -> Schedule:
    """Return the Schedule of `graph` before kernels write in place.

    `finite` are tensors (outputs of the graph) that have to be finite before anything
    is committed; `sizes` are typical values of symbols, used to compare orders. The
    body of a ControlKernel (`is_body`) commits nothing; its updates are of carries.
    """
    positions = [_position(graph.outputs, tensor) for tensor in finite]
    unplanned = tuple(unplanned_bytes(graph))
    graph = materialise(graph)
    checked = [graph.outputs[position] for position in positions]
    timing = timing_of(graph, checked, is_body)
    groups = fuse(graph, timing)
    late = (t for node in timing.late for t in node.outputs)
    roots = {*map(base_of, (*graph.outputs, *checked)), *late}
    recompute(groups, graph, roots, timing)
    inside = regions(groups, graph, roots)
    lowering = _Lowering(graph, timing, groups, checked, inside, is_body)
    return lowering.schedule(sizes or {}, unplanned)


def _position(outputs: Sequence[Tensor], tensor: Tensor) -> int:
    return next(i for i, output in enumerate(outputs) if output is tensor)


def unplanned_bytes(graph: Graph) -> Iterable[Dim]:
    """Yield the bytes of every tensor of the graph, leaves excepted."""
    for node in graph.nodes:
        if not isinstance(node.op.code, Leaf):
            for kind in node.types:
                yield product(kind.shape) * kind.dtype.itemsize


def timing_of(graph: Graph, finite: Sequence[Tensor], is_body: bool = False) -> Timing:
    """Return which nodes run before the commit, and which write leaves."""
    late = {new.node: leaf for leaf, new in graph.updates}
    leaves = set(late.values())
    readers: dict[Tensor, list[Node]] = {}
    for node in graph.nodes:
        for base in {base_of(t) for t in node.inputs} & leaves:
            if not is_view(node.outputs[0]):
                readers.setdefault(base, []).append(node)
    after = {
        node: tuple(other for other in readers.get(leaf, ()) if other is not node)
        for node, leaf in late.items()
    }
    if is_body:
        return Timing(frozenset(), late, after)
    checks = [n.outputs[0] for n in graph.nodes if may_fail(n) or may_last(n)]
    early = Graph.closed((), (*checks, *finite)).nodes
    return Timing(frozenset(early), late, after)


@dataclass(frozen=True, slots=True)
class _Step:
    """Kernel before its place in the order is known."""

    kernel: Step
    early: bool
    late: bool
    parts: frozenset[int] = frozenset()  # buffers of which it writes a part of its own
    waits: frozenset[int] = frozenset()  # buffers that have to be there before it runs


class _Lowering:
    """Lowering of one graph to buffers and kernels."""

    def __init__(
        self,
        graph: Graph,
        timing: Timing,
        groups: Sequence[Group],
        finite: Sequence[Tensor],
        inside: Mapping[Tensor, StoreRegion],
        is_body: bool,
    ) -> None:
        self.graph = graph
        self.is_body = is_body
        self.buffers = Buffers(graph, timing.late, inside, is_body)
        self.layouts = {tensor: region.layout for tensor, region in inside.items()}
        self.timing = timing
        self.groups = groups
        self.finite = finite
        self.steps: list[_Step] = []

    def schedule(
        self, sizes: Mapping[str, int], unplanned: tuple[Dim, ...]
    ) -> Schedule:
        needed = self._needed()
        for group in self.groups:
            first = len(self.steps)
            if group.kind in ("loop", "widening") and group.nodes:
                self._lower_loop(group, needed)
            elif group.kind == "single":
                self._lower_call(group)
            self._wait(group, needed, first)
        sequence, commit = self._order(sizes)
        if self.is_body:
            commit = len(sequence)
        outputs = tuple(self.buffers(base_of(t)) for t in self.graph.outputs)
        finite = tuple(self.buffers(base_of(t)) for t in self.finite)
        return Schedule(
            buffers=tuple(self.buffers.made),
            kernels=with_makers([transposed(self.steps[n].kernel) for n in sequence]),
            commit=commit,
            outputs=outputs,
            finite=finite,
            unplanned=unplanned,
        )

    def _needed(self) -> set[Tensor]:
        """Return the tensors that have to lie in memory."""
        needed = set(map(base_of, (*self.graph.outputs, *self.finite)))
        needed.update(t for node in self.timing.late for t in node.outputs)
        for group in self.groups:
            needed.update(
                base_of(tensor)
                for node in group.nodes
                for tensor in node.inputs
                if base_of(tensor) not in group.made
            )
            needed.update(t for node in group.gathered for t in node.outputs)
        return needed

    # Kernels

    def _wait(self, group: Group, needed: set[Tensor], first: int) -> None:
        """Make the steps of a group, from number `first` on, wait as After says."""
        left = [b for n in group.nodes for t in n.inputs for b in awaited(t)]
        if not left:
            return
        waits: set[int] = set()
        seen: set[Tensor] = set()
        while left:  # a tensor outside memory is computed from ones in memory
            base = left.pop()
            if base in seen or isinstance(base.op.code, Leaf):
                continue
            seen.add(base)
            if base in needed:
                waits.add(self.buffers(base))
            else:
                left += map(base_of, base.inputs)
        for number in range(first, len(self.steps)):
            step = self.steps[number]
            own = writes(step.kernel)
            self.steps[number] = replace(step, waits=frozenset(waits.difference(own)))

    def _lower_loop(self, group: Group, needed: set[Tensor]) -> None:
        made = [t for node in group.nodes for t in node.outputs if t in needed]
        stored = {tensor: self.buffers(tensor) for tensor in made}
        in_memory_order(group, stored, self.layouts)
        result = nest(group, stored, self.buffers.slots, self.buffers, self.layouts)
        parts = frozenset(stored[t] for t in made if _is_part(t, self.buffers.inside))
        kernel, copies = straightened(result.kernel, self.buffers.new)
        self.steps += [_Step(copy, group.early, group.late) for copy in copies]
        self.steps.append(_Step(kernel, group.early, group.late, parts))
        for slots in result.slots:
            self._finish(slots.node, result.kernel.operands[slots.operand].buffer)

    def _finish(self, node: Node, slots: int) -> None:
        tensor = node.outputs[0]
        read = Operand(slots, "read", tensor.dtype)
        write = Operand(self.buffers(tensor), "write", tensor.dtype)
        code = node.op.code
        assert isinstance(code, Reduce)
        kernel = FinishKernel(
            name=f"finish_{code.combine}",
            operands=(read, write),
            extent=product(tensor.shape),
            combine=code.combine,
            dtype=tensor.dtype,
            sites=(site_of(node),),
        )
        self.steps.append(_Step(kernel, node in self.timing.early, False))

    def _lower_call(self, group: Group) -> None:
        *before, node = group.nodes
        make = KERNELS.get(type(node.op.code))
        if make is None:
            raise CompilerBug(f"no kernel for {node}")
        late = node in self.timing.late
        kernels = make(node, self.buffers, *before)
        self.steps.extend(_Step(k, group.early, late) for k in kernels)

    # Order

    def _order(self, sizes: Mapping[str, int]) -> tuple[list[int], int]:
        """Return the order of the steps, and how many run before the commit."""
        tasks = [_task(step) for step in self.steps]
        before = _dependencies(self.steps, self.buffers.made)
        gate = len(tasks)
        early = [number for number, step in enumerate(self.steps) if step.early]
        whole = [
            Task(read, written, tuple(after) + ((gate,) if step.late else ()))
            for (read, written), after, step in zip(
                tasks, before, self.steps, strict=True
            )
        ]
        whole.append(Task((), (), tuple(early)))
        if not early:  # nothing can fail: the commit is at the start
            whole = [Task(t.reads, t.writes, _without(t.after, gate)) for t in whole]
            return order(whole[:gate], self.buffers.bytes(sizes)), 0
        found = order(whole, self.buffers.bytes(sizes))
        place = found.index(gate)
        return [number for number in found if number != gate], place


def _without(numbers: Sequence[int], number: int) -> tuple[int, ...]:
    return tuple(other for other in numbers if other != number)


def _controlled(node: Node, buffers: Buffers) -> list[Step]:
    kernel = controlled(node, buffers, buffers.new, partial(lower, is_body=True))
    small = inlined(kernel, buffers.made)
    if small is None:
        return [kernel]
    own = {kernel.operands[n].buffer for n in (kernel.counter, kernel.arena)}
    del buffers.made[min(own) :]
    return [small]


KERNELS: dict[type, Callable[..., Sequence[Step]]] = {
    Matmul: gemm,
    MatmulAdd: gemm_add,
    Convolution: convolved,
    Place: placed,
    Scatter: scattered,
    Select: selected,
    Sort: sorted_rows,
    Scan: scanned,
    Call: called,
    Shuffle: shuffled,
    Control: _controlled,
}
"""The kernels of each kind of node that shares none with others.

They are made of the node and the Buffers; an index that is checked on the way follows.
"""


def _is_part(tensor: Tensor, inside: Mapping[Tensor, StoreRegion]) -> bool:
    """Whether a tensor is one of several that are written into one buffer."""
    region = inside.get(tensor)
    return region is not None and isinstance(region.place.op.code, Place)


def _updates(step: _Step, buffer: int) -> bool:
    """Whether a step changes the contents of a buffer written by others."""
    operands = step.kernel.operands
    return any(o.buffer == buffer and o.mode == "update" for o in operands)


def _task(step: _Step) -> tuple[tuple[int, ...], tuple[int, ...]]:
    kernel = step.kernel
    return tuple(dict.fromkeys(reads(kernel))), tuple(dict.fromkeys(writes(kernel)))


def _dependencies(
    steps: Sequence[_Step], buffers: Sequence[Buffer]
) -> list[tuple[int, ...]]:
    """Return, for each step, the steps that have to run before it."""
    writers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        read, written = _task(step)
        for buffer in read:
            readers.setdefault(buffer, []).append(number)
        for buffer in written:
            writers.setdefault(buffer, []).append(number)
    result: list[tuple[int, ...]] = []
    for number, step in enumerate(steps):
        read, written = _task(step)
        before: set[int] = set()
        for buffer in step.waits:
            before.update(writers.get(buffer, ()))
        for buffer in read:
            if buffers[buffer].kind not in ("stored", "carry"):
                before.update(w for w in writers.get(buffer, ()))
        for buffer in written:
            if buffers[buffer].kind in ("stored", "carry"):
                before.update(readers.get(buffer, ()))
            if buffer not in step.parts:
                own = _updates(step, buffer), number
                earlier = (
                    w for w in writers[buffer] if (_updates(steps[w], buffer), w) < own
                )
                before.update(w for w in earlier if buffer not in steps[w].parts)
        before.discard(number)
        result.append(tuple(sorted(before)))
    return result
