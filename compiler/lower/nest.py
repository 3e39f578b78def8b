"""Loop nests: from a fused Group to a LoopKernel.

The nest has four levels: per chunk, per row (all outer axes), per element of a row (the
inner axes, walked once per stage: stages.py), and after the loops. Values are emitted
by emit.py; here they are put in order, reduced and stored.

Axis 0 of the kernel is chunked. Reductions over it write one slot per chunk, which a
FinishKernel combines in the order of the chunks: results do not depend on the number
of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from staticgrad.compiler.fuse.groups import Group
from staticgrad.compiler.fuse.stages import runs_full, stages_of
from staticgrad.compiler.kernel_ir.costs import cost_of
from staticgrad.compiler.kernel_ir.kernels import (
    ADD_UP,
    Access,
    Accumulate,
    Combine,
    Compute,
    Initial,
    Load,
    Loop,
    LoopKernel,
    Operand,
    Statement,
    Store,
)
from staticgrad.compiler.kernel_ir.walks import arranged, collapse, loops
from staticgrad.compiler.lower.emit import Scope, StatementEmitter
from staticgrad.ir.expression import Expr, parse
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Layout, Reduce, can_fail
from staticgrad.ir.size import Dim, product

SLOT_ROWS = 32  # indices per chunk at least where a slot has several elements

COMBINED: dict[Combine, Expr] = {
    "add": parse("{0} + {1}"),
    "multiply": parse("{0} * {1}"),
    "maximum": parse("maximum({0}, {1})"),
    "minimum": parse("minimum({0}, {1})"),
    "and": parse("c_and({0}, {1})"),
    "or": parse("c_or({0}, {1})"),
}


@dataclass(frozen=True, slots=True)
class Slots:
    """Reduction that needs a FinishKernel: its node, and the operand of its slots."""

    node: Node
    operand: int


@dataclass(frozen=True, slots=True)
class Nest:
    """Kernel and its reductions over chunks."""

    kernel: LoopKernel
    slots: tuple[Slots, ...]


def nest(
    group: Group,
    stored: dict[Tensor, int],
    slots_of: Callable[[Node], int],
    buffer_of: Callable[[Tensor], int],
    layouts: Mapping[Tensor, Layout],
) -> Nest:
    """Return the kernel of `group`.

    `stored` maps the tensors of the group that have to lie in memory to their buffers;
    `slots_of` makes a buffer of slots for a reduction; `buffer_of` gives the buffer of
    a tensor that another kernel, or the caller, made. `layouts` has those of tensors
    that are a part of their buffer; the others are their buffer, in C order.
    """
    return _Nesting(group, stored, slots_of, buffer_of, layouts).build()


class _Nesting:
    """Construction of the levels of one nest."""

    def __init__(
        self,
        group: Group,
        stored: dict[Tensor, int],
        slots_of: Callable[[Node], int],
        buffer_of: Callable[[Tensor], int],
        layouts: Mapping[Tensor, Layout],
    ) -> None:
        self.group = group
        self.stored = stored
        self.layouts = layouts
        self.slots_of = slots_of
        self.axes: list[Dim] = list(group.axes)
        self.inner = sorted(group.inner)
        self.outer = [a for a in range(len(group.axes)) if a not in group.inner]
        self.parallel = bool(self.outer)
        if not self.outer:
            self.outer = [len(self.axes)]
            self.axes.append(1)
        self.stages = stages_of(group, stored)
        self.emit = StatementEmitter(group, self.axes, self.stages, buffer_of)
        self.chunk_end: list[Statement] = []
        self.row_start: list[Statement] = []
        self.slots: list[Slots] = []
        self.least_rows = 1

    def build(self) -> Nest:
        """Emit every stage, then close the loops."""
        for stage, needed in enumerate(self.stages.needed):
            for node in self.group.nodes:
                of_row = not runs_full(self.group, node)
                if of_row and self.stages.of[node.outputs[0]] == stage:
                    self._emit_row(node, stage)
            for node in self.group.nodes:
                if node in needed:
                    self._emit_element(node, stage)
        return self._finish()

    def _emit_row(self, node: Node, stage: int) -> None:
        """Emit a value, or a gathered reduction, once per row."""
        scope = self.emit.rows[stage]
        if node in self.group.gathered:
            self._gather_up(node, self.emit.input(node, 0, scope, stage), scope)
            return
        value = self.emit.compute(node, scope, stage)
        scope.values[node.outputs[0]] = value
        self._store(node, value, scope)

    def _emit_element(self, node: Node, stage: int) -> None:
        """Emit a value, or a reduction, per element of a row."""
        scope = self.emit.elements[stage]
        if isinstance(node.op.code, Reduce):
            value = self.emit.input(node, 0, scope, stage)
            self._reduce(node, value, scope, stage)
            return
        value = self.emit.compute(node, scope, stage)
        result = node.outputs[0]
        scope.values[result] = value
        if self.stages.of[result] != stage:
            return
        self._store(node, value, scope)
        if result in self.emit.kept:
            scope.body.append(Store(self.emit.kept_access(result), value))

    def _store(self, node: Node, value: int, scope: Scope) -> None:
        result = node.outputs[0]
        if result in self.stored:
            plain = Layout.contiguous(result.shape)
            layout = self.layouts.get(result, plain)
            self.emit.store(node, value, scope, self.stored[result], layout)

    # Reductions

    def _reduce(self, node: Node, value: int, scope: Scope, stage: int) -> None:
        """Emit a reduction of values per element, whose result the next stage knows."""
        before, after = self.emit.rows[stage], self.emit.rows[stage + 1]
        if node not in self.group.gathered:
            register = self._register(node, scope, value, before.body)
            after.values[node.outputs[0]] = register
            self._store(node, register, after)
        elif self.group.inner <= self.group.gathered[node]:
            register = self._register(node, scope, value, before.body)
            self._gather_up(node, register, after)
        else:
            self._gather_up(node, value, scope)

    def _register(
        self, node: Node, scope: Scope, value: int, before: list[Statement]
    ) -> int:
        """Emit the reduction of `value` into a register that starts in `before`."""
        combine, dtype = _combine(node), node.outputs[0].dtype
        register = self.emit.new()
        before.append(Initial(register, combine, dtype))
        scope.body.append(Accumulate(register, combine, value, dtype))
        return register

    def _gather_up(self, node: Node, value: int, scope: Scope) -> None:
        """Emit the reduction of a value over rows, into the result or a slot of it."""
        result = node.outputs[0]
        axes = self.group.loop_axes[node]
        kept = [a for i, a in enumerate(axes) if i not in node.attrs["axes"]]
        # Chunks that share elements of the result need a slot each.
        shared = self.parallel and self.outer[0] in self.group.gathered[node]
        operand = self._slot(node) if shared else self._whole(node)
        access = Access(operand, self.emit.strides(result.shape, kept))
        if any(axis is not None for axis in kept):
            self._accumulate(node, access, value, scope)
            return
        register = self._register(node, scope, value, self.emit.chunk.body)
        self.chunk_end.append(Store(access, register))

    def _whole(self, node: Node) -> int:
        result = node.outputs[0]
        return self.emit.operand(self.stored[result], "write", result.dtype)

    def _slot(self, node: Node) -> int:
        result = node.outputs[0]
        slot = product(result.shape)
        operand = Operand(self.slots_of(node), "write", result.dtype, True, slot)
        self.emit.operands.append(operand)
        number = len(self.emit.operands) - 1
        self.slots.append(Slots(node, number))
        if slot != 1:
            self.least_rows = SLOT_ROWS
        return number

    def _accumulate(self, node: Node, access: Access, value: int, scope: Scope) -> None:
        """Emit ``memory = combine(memory, value)``, from the identity on.

        Where the result has the chunked axis each index starts its own part of it.
        """
        combine, dtype = _combine(node), node.outputs[0].dtype
        chunked = self.outer[0]
        own_part = access.strides[chunked] != 0
        identity = self.emit.new()
        fill: tuple[Statement, ...] = (Store(access, identity),)
        steps = enumerate(access.strides)
        along = [axis for axis, step in steps if step != 0 and axis != chunked]
        start = self.row_start if own_part else self.emit.chunk.body
        start.extend((Initial(identity, combine, dtype), *loops(along, fill)))
        old, new = self.emit.new(), self.emit.new()
        expr = ADD_UP if combine == "add" else COMBINED[combine]
        scope.body.append(Load(old, access, dtype))
        scope.body.append(Compute(new, expr, (old, value), dtype))
        scope.body.append(Store(access, new))

    # The end

    def _finish(self) -> Nest:
        rows: list[Statement] = []
        for row, elements in zip(self.emit.rows, self.emit.elements, strict=True):
            rows.extend(row.body)
            if elements.body:
                rows.extend(loops(self.inner, tuple(elements.body)))
        first, *others = self.outer
        whole = Loop(first, (*self.row_start, *loops(others, tuple(rows))))
        body = (*self.emit.chunk.body, whole, *self.chunk_end)
        plain = arranged(self.axes, [*self.outer, *self.inner], body)
        axes, body, joined = collapse(*plain, len(self.outer))
        nodes = self.group.nodes
        kernel = LoopKernel(
            name=kernel_name(nodes),
            axes=axes,
            operands=tuple(self.emit.operands),
            scratch=self.emit.scratch,
            body=body,
            sites=tuple(self.emit.sites),
            row_cost=self._cost(axes[1 : len(self.outer) - joined]),
            parallel=self.parallel,
            fails=any(can_fail(n.op.code) for n in nodes),
            least_rows=self.least_rows,
        )
        return Nest(kernel, tuple(self.slots))

    def _cost(self, rows: tuple[Dim, ...]) -> Dim:
        """Return the work of one index of axis 0, which has `rows` rows of the nest."""
        across = product(tuple(self.axes[a] for a in self.inner))
        cost: Dim = 0
        for node in self.group.nodes:
            times = across if runs_full(self.group, node) else 1
            cost = cost + cost_of(node) * times
        return cost * product(rows)


def _combine(node: Node) -> Combine:
    code = node.op.code
    assert isinstance(code, Reduce)
    return code.combine


def kernel_name(nodes: Sequence[Node]) -> str:
    """Return a kernel's name, made of its operations: ``mul_tanh_sum``."""
    names: list[str] = []
    for node in nodes:
        name = node.op.name.removeprefix("reduce_")
        if name not in names and name not in ("cast", "copy"):
            names.append(name)
    shown = names if len(names) <= 4 else [*names[:2], *names[-2:]]
    return "_".join(shown) or "copy"
