"""From a fused Group to the loop nest of a LoopKernel.

The nest has four levels: per chunk, per row (all outer axes), per element of a row (the
inner axes), and after the loops. A row is walked once per *stage*: a value belongs to
the first stage in which everything it reads is known, and a row-wise reduction made in
stage k is known from stage k + 1 on. A value that a later stage needs again is computed
again if it is cheap and kept in scratch (one row, in L1) if it is not.

Axis 0 of the kernel is chunked. Reductions over it write one slot per chunk, which a
FinishKernel adds up in the order of the chunks: results do not depend on the number of
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from staticgrad.compiler.collapse import arranged, collapse
from staticgrad.compiler.fuse import Group
from staticgrad.compiler.kernels import (
    Access,
    Accumulate,
    CheckIndex,
    Combine,
    Compute,
    Index,
    Initial,
    Load,
    Loop,
    LoopKernel,
    Mode,
    Number,
    Operand,
    Scratch,
    Site,
    Statement,
    Store,
)
from staticgrad.compiler.layouts import (
    alignment,
    base_of,
    is_free,
    layout_of,
    layout_over,
)
from staticgrad.errors import CompilerBug
from staticgrad.ir.node import Constant, Node, Tensor
from staticgrad.ir.op import (
    Elementwise,
    Extent,
    Gather,
    IndexCheck,
    Layout,
    Position,
    Random,
    Reduce,
)
from staticgrad.ir.size import Dim, product
from staticgrad.ir.types import DType

CHEAP = 8  # additions up to which a value is computed again rather than kept
SLOT_ROWS = (
    32  # indices per chunk at least where a chunk has a slot of several elements
)

COMBINE_TEMPLATES: dict[Combine, str] = {
    "add": "{0} + {1}",
    "multiply": "{0} * {1}",
    "maximum": "maximum({0}, {1})",
    "minimum": "minimum({0}, {1})",
    "and": "c_and({0}, {1})",
    "or": "c_or({0}, {1})",
}


def row_cost(node: Node) -> int:
    """Work per element, in additions."""
    code = node.op.code
    return code.cost if isinstance(code, Elementwise | Random) else 2


@dataclass(slots=True)
class _Scope:
    """Statements of one level, and the values that they made."""

    body: list[Statement] = field(default_factory=list)
    values: dict[object, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slots:
    """A reduction that needs a FinishKernel: its node, and the operand of its slots."""

    node: Node
    operand: int


@dataclass(frozen=True, slots=True)
class Nest:
    """A kernel and its reductions over chunks."""

    kernel: LoopKernel
    slots: tuple[Slots, ...]


def nest(
    group: Group,
    stored: dict[Tensor, int],
    slots_of: Callable[[Node], int],
    buffer_of: Callable[[Tensor], int],
) -> Nest:
    """The kernel of `group`.

    `stored` maps the tensors of the group that have to lie in memory to their buffers;
    `slots_of` makes a buffer of slots for a reduction; `buffer_of` gives the buffer of
    a tensor that another kernel, or the caller, made.
    """
    return _Builder(group, stored, slots_of, buffer_of).build()


class _Builder:
    """Emits statements with strides over the group's axes; `_collapse` ends the
    work.
    """

    def __init__(
        self,
        group: Group,
        stored: dict[Tensor, int],
        slots_of: Callable[[Node], int],
        buffer_of: Callable[[Tensor], int],
    ) -> None:
        self.group = group
        self.stored = stored
        self.slots_of = slots_of
        self.buffer_of = buffer_of
        self.inner = group.inner
        self.axes: list[Dim] = list(group.axes)
        self.outer = [a for a in range(len(group.axes)) if a not in group.inner]
        self.parallel = bool(self.outer)
        if not self.outer:
            self.outer = [len(self.axes)]
            self.axes.append(1)
        self.operands: list[Operand] = []
        self.operand_of: dict[tuple[int, Mode], int] = {}
        self.scratch: list[Scratch] = []
        self.kept: dict[Tensor, int] = {}
        self.sites: list[Site] = []
        self.next_value = 0
        self.chunk = _Scope()
        self.chunk_end: list[Statement] = []
        self.row_start: list[Statement] = []
        self.rows: list[_Scope] = []
        self.stages: list[_Scope] = []
        self.row_end: list[Statement] = []
        self.slots: list[Slots] = []
        self.stage: dict[Tensor, int] = {}
        self.chunk_axis_sliced = False

    # Levels and stages

    def is_full(self, tensor: Tensor) -> bool:
        """True if the tensor has a value per element of a row."""
        axes = self.group.axis_of[tensor]
        return any(a in self.inner for a in axes if a is not None)

    def runs_full(self, node: Node) -> bool:
        """True if the node is evaluated per element of a row."""
        if isinstance(node.op.code, Reduce):
            return any(axis in self.inner for axis in self._loop_axes(node))
        return self.is_full(node.outputs[0])

    def _loop_axes(self, node: Node) -> list[int]:
        """The group's axes that the loop over `node` runs along."""
        return [axis for axis in self.group.loop_axes[node] if axis is not None]

    def _find_stages(self) -> None:
        for node in self.group.nodes:
            stage = 0
            for tensor in node.inputs:
                base = base_of(tensor)
                stage = max(stage, self.stage.get(base, 0))
            result = node.outputs[0]
            is_reduction = isinstance(node.op.code, Reduce) and self.runs_full(node)
            self.stage[result] = stage + 1 if is_reduction else stage
        count = 1 + max(self.stage.values(), default=0)
        self.rows = [_Scope() for _ in range(count)]
        self.stages = [_Scope() for _ in range(count)]

    def _own_stage(self, node: Node) -> int:
        return self.stage[node.outputs[0]]

    def _needs(self) -> list[set[Node]]:
        """For each stage the nodes to evaluate per element; chooses what is kept."""
        made_by = {t: n for n in self.group.nodes for t in n.outputs}
        needs: list[set[Node]] = [set() for _ in self.stages]
        for node in self.group.nodes:
            if isinstance(node.op.code, Reduce) and self.runs_full(node):
                needs[self.stage[node.outputs[0]] - 1].add(node)
            elif self.runs_full(node) and node.outputs[0] in self.stored:
                needs[self.stage[node.outputs[0]]].add(node)
        for stage in range(len(needs) - 1, -1, -1):
            for node in reversed(self.group.nodes):
                if node not in needs[stage]:
                    continue
                for tensor in node.inputs:
                    maker = made_by.get(base_of(tensor))
                    if maker is not None and self._is_element(maker):
                        self._need(maker, stage, needs)
        return needs

    def _is_element(self, node: Node) -> bool:
        reduces = isinstance(node.op.code, Reduce)
        return self.runs_full(node) and not reduces

    def _need(self, node: Node, stage: int, needs: list[set[Node]]) -> None:
        result = node.outputs[0]
        own = self.stage[result]
        if own < stage and row_cost(node) > CHEAP:
            needs[own].add(node)
            if result not in self.kept:
                extent = product(tuple(self.axes[a] for a in self._inner_order()))
                self.kept[result] = len(self.scratch)
                self.scratch.append(Scratch(result.dtype, extent))
            return
        needs[stage].add(node)

    def _inner_order(self) -> list[int]:
        return sorted(self.inner)

    # Building

    def build(self) -> Nest:
        self._find_stages()
        for stage, needed in enumerate(self._needs()):
            for node in self.group.nodes:
                if not self.runs_full(node) and self._own_stage(node) == stage:
                    self._emit_row(node)
            for node in self.group.nodes:
                if node in needed:
                    self._emit_element(node, stage)
        return self._finish()

    def _emit_row(self, node: Node) -> None:
        """A value, or a gathered reduction, that is evaluated once per row."""
        stage = self.stage[node.outputs[0]]
        scope = self.rows[stage]
        if node in self.group.gathered:
            value = self._input(node, 0, scope, stage, full=False)
            self._gather_up(node, value, scope)
            return
        value = self._compute(node, scope, stage, full=False)
        scope.values[node.outputs[0]] = value
        self._store(node, value, scope)

    def _emit_element(self, node: Node, stage: int) -> None:
        scope = self.stages[stage]
        if isinstance(node.op.code, Reduce):
            value = self._input(node, 0, scope, stage, full=True)
            self._reduce(node, value, scope, stage)
            return
        value = self._compute(node, scope, stage, full=True)
        result = node.outputs[0]
        scope.values[result] = value
        if self.stage[result] != stage:
            return
        self._store(node, value, scope)
        if result in self.kept:
            scope.body.append(Store(self._kept_access(result), value))

    def _kept_access(self, tensor: Tensor) -> Access:
        strides: list[Dim] = [0] * len(self.axes)
        step: Dim = 1
        for axis in reversed(self._inner_order()):
            strides[axis] = step
            step = step * self.axes[axis]
        return Access(-1 - self.kept[tensor], tuple(strides))

    def _store(self, node: Node, value: int, scope: _Scope) -> None:
        result = node.outputs[0]
        if result not in self.stored:
            return
        operand = self._operand(self.stored[result], "write", result.dtype)
        strides = self._strides(result.shape, self.group.axis_of[result])
        scope.body.append(Store(Access(operand, strides), value))

    def _strides(
        self, shape: tuple[Dim, ...], axes: Sequence[int | None]
    ) -> tuple[Dim, ...]:
        strides: list[Dim] = [0] * len(self.axes)
        plain = Layout.contiguous(shape).strides
        for axis, stride in zip(axes, plain, strict=True):
            if axis is not None:
                strides[axis] = stride
        return tuple(strides)

    # Values

    def _new(self) -> int:
        self.next_value += 1
        return self.next_value - 1

    def _site(self, node: Node) -> int:
        self.sites.append(Site(node.op.name, node.source, node.scope))
        return len(self.sites) - 1

    def _compute(self, node: Node, scope: _Scope, stage: int, full: bool) -> int:
        code, result = node.op.code, node.outputs[0]
        if isinstance(code, Gather):
            return self._gather(node, scope, stage, full)
        if isinstance(code, Random):
            return self._random(node, code, scope, stage, full)
        args = tuple(
            self._input(node, position, scope, stage, full)
            for position in range(len(node.inputs))
        )
        value = self._new()
        if isinstance(code, IndexCheck):
            where = self._flat_index(result, scope)
            extent, wrap = node.attrs["extent"], node.attrs["wrap"]
            site = self._site(node)
            scope.body.append(CheckIndex(value, args[0], extent, where, site, wrap))
            return value
        template = code.template if isinstance(code, Elementwise) else "{0}"
        attrs = _named(node, template)
        site = self._site(node)
        statement = Compute(value, template, args, result.dtype, attrs, site)
        scope.body.append(statement)
        return value

    def _flat_index(self, tensor: Tensor, scope: _Scope) -> int:
        strides = self._strides(tensor.shape, self.group.axis_of[tensor])
        return self._index(strides, 0, scope)

    def _index(self, strides: tuple[Dim, ...], offset: Dim, scope: _Scope) -> int:
        key = ("index", strides, offset)
        if key not in scope.values:
            scope.values[key] = self._new()
            scope.body.append(Index(scope.values[key], strides, offset))
        return scope.values[key]

    def _random(
        self, node: Node, code: Random, scope: _Scope, stage: int, full: bool
    ) -> int:
        result = node.outputs[0]
        key = node.inputs[0]
        layout = layout_of(key)
        words = [
            self._load(base_of(key), (0,) * len(self.axes), w * layout.strides[0])
            for w in range(4)
        ]
        more = [
            self._input(node, position, scope, stage, full)
            for position in range(1, len(node.inputs))
        ]
        index = self._flat_index(result, scope)
        value = self._new()
        names = {str(p): f"{{{p - 1}}}" for p in range(1, len(node.inputs))}
        names |= {f"k{w}": f"{{{len(more) + w}}}" for w in range(4)}
        names["i"] = f"{{{len(more) + 4}}}"
        template = code.template
        for name, slot in names.items():
            template = template.replace("{" + name + "}", slot)
        args = (*more, *words, index)
        attrs = _named(node, template)
        site = self._site(node)
        scope.body.append(Compute(value, template, args, result.dtype, attrs, site))
        return value

    def _gather(self, node: Node, scope: _Scope, stage: int, full: bool) -> int:
        index = self._input(node, 1, scope, stage, full)
        source, result = node.inputs[0], node.outputs[0]
        axis, pointwise = node.attrs["axis"], node.attrs["pointwise"]
        layout = layout_of(source)
        count = 1 if pointwise else node.inputs[1].ndim
        dims = list(layout.strides)
        dims[axis : axis + 1] = [0] * count
        strides: list[Dim] = [0] * len(self.axes)
        axes = self.group.axis_of[result]
        sizes = list(source.shape)
        sizes[axis : axis + 1] = [1] * count
        for own, stride, size in zip(axes, dims, sizes, strict=True):
            if own is not None and size != 1:
                strides[own] = stride
        operand = self._operand(self.buffer_of(base_of(source)), "read", source.dtype)
        access = Access(
            operand, tuple(strides), layout.offset, (index, layout.strides[axis])
        )
        value = self._new()
        scope.body.append(Load(value, access, source.dtype))
        return value

    def _input(
        self, node: Node, position: int, scope: _Scope, stage: int, full: bool
    ) -> int:
        tensor = node.inputs[position]
        base = base_of(tensor)
        if base in self.group.made:
            return self._made(base, scope, stage)
        axes = self._input_axes(node, position)
        if is_free(tensor):
            return self._free(tensor, axes, scope)
        layout = layout_of(tensor)
        strides: list[Dim] = [0] * len(self.axes)
        for axis, size, stride in zip(axes, tensor.shape, layout.strides, strict=True):
            if axis is not None and size != 1:
                strides[axis] = stride
        return self._load(base, tuple(strides), layout.offset, scope, stage)

    def _input_axes(self, node: Node, position: int) -> list[int | None]:
        """The group's axis of each axis of an input that lies in memory."""
        aligned = alignment(node, position)
        if aligned is None:
            raise CompilerBug(f"{node} does not read its input element by element")
        own = self.group.loop_axes[node]
        return [own[dim] for dim in aligned]

    def _made(self, base: Tensor, scope: _Scope, stage: int) -> int:
        """A value of this group: of this stage, of the row, or kept in scratch."""
        if base in scope.values:
            return scope.values[base]
        for row in self.rows[: stage + 1]:
            if base in row.values:
                return row.values[base]
        if base not in self.kept:
            raise CompilerBug(f"{base} is not known in stage {stage}")
        value = self._new()
        scope.body.append(Load(value, self._kept_access(base), base.dtype))
        scope.values[base] = value
        return value

    def _load(
        self,
        base: Tensor,
        strides: tuple[Dim, ...],
        offset: Dim,
        scope: _Scope | None = None,
        stage: int = 0,
    ) -> int:
        """A value from memory, read at the outermost level that knows its place."""
        inner = any(strides[axis] != 0 for axis in self.inner)
        outer = any(stride != 0 for stride in strides)
        place = self.chunk if not outer else self.rows[0]
        if inner and scope is not None:
            place = scope
        key = (base, strides, offset)
        if key not in place.values:
            operand = self._operand(self.buffer_of(base), "read", base.dtype)
            place.values[key] = self._new()
            access = Access(operand, strides, offset)
            place.body.append(Load(place.values[key], access, base.dtype))
        return place.values[key]

    def _free(self, tensor: Tensor, axes: list[int | None], scope: _Scope) -> int:
        base = base_of(tensor)
        if isinstance(base, Constant):
            return self._number(base.value.reshape(()).item(), base.dtype)
        nowhere: tuple[Dim, ...] = (0,) * len(self.axes)
        if isinstance(base.op.code, Extent):
            return self._counted(nowhere, base.node.attrs["size"], base.dtype, scope)
        if isinstance(base.op.code, Elementwise):
            return self._free_scalar(base)
        if not isinstance(base.op.code, Position):
            raise CompilerBug(f"{base} cannot be made in a loop")
        along = base.node.attrs["axis"]
        unit: list[Dim] = [0] * base.ndim
        unit[along] = 1
        layout = layout_over(tensor, Layout(base.shape, tuple(unit)))
        if layout is None:
            raise CompilerBug(f"{tensor} should have been copied")
        strides: list[Dim] = [0] * len(self.axes)
        for axis, size, stride in zip(axes, tensor.shape, layout.strides, strict=True):
            if axis is not None and size != 1:
                strides[axis] = stride
        return self._counted(tuple(strides), layout.offset, base.dtype, scope)

    def _free_scalar(self, base: Tensor) -> int:
        """A scalar that every kernel computes for itself, once per chunk."""
        if base not in self.chunk.values:
            code = base.op.code
            template = code.template if isinstance(code, Elementwise) else "{0}"
            args = tuple(self._free(t, [], self.chunk) for t in base.inputs)
            value = self._new()
            attrs = _named(base.node, template)
            site = self._site(base.node)
            self.chunk.body.append(
                Compute(value, template, args, base.dtype, attrs, site)
            )
            self.chunk.values[base] = value
        return self.chunk.values[base]

    def _counted(
        self, strides: tuple[Dim, ...], offset: Dim, dtype: DType, scope: _Scope
    ) -> int:
        """An index, or a size, as a number of `dtype`."""
        key = ("position", strides, offset, dtype)
        if key not in scope.values:
            index = self._index(strides, offset, scope)
            scope.values[key] = self._new()
            convert = Compute(scope.values[key], "{T}({0})", (index,), dtype)
            scope.body.append(convert)
        return scope.values[key]

    def _number(self, value: float | int | bool, dtype: DType) -> int:
        key = ("number", repr(value), dtype)
        if key not in self.chunk.values:
            self.chunk.values[key] = self._new()
            self.chunk.body.append(Number(self.chunk.values[key], value, dtype))
        return self.chunk.values[key]

    def _operand(self, buffer: int, mode: Mode, dtype: DType) -> int:
        key = (buffer, mode)
        if key not in self.operand_of:
            self.operand_of[key] = len(self.operands)
            self.operands.append(Operand(buffer, mode, dtype))
        return self.operand_of[key]

    # Reductions

    def _reduce(self, node: Node, value: int, scope: _Scope, stage: int) -> None:
        """A reduction of values per element."""
        code = node.op.code
        if not isinstance(code, Reduce):
            raise CompilerBug(f"{node} is not a reduction")
        result = node.outputs[0]
        if node not in self.group.gathered:
            register = self._register(node, scope, value, self.rows[stage].body)
            self.rows[stage + 1].values[result] = register
            self._store(node, register, self.rows[stage + 1])
            return
        if self.inner <= self.group.gathered[node]:
            register = self._register(node, scope, value, self.rows[stage].body)
            self._gather_up(node, register, self.rows[stage + 1])
            return
        self._gather_up(node, value, scope)

    def _register(
        self, node: Node, scope: _Scope, value: int, before: list[Statement]
    ) -> int:
        """Reduce `value` into a register that starts in `before`."""
        code, dtype = node.op.code, node.outputs[0].dtype
        if not isinstance(code, Reduce):
            raise CompilerBug(f"{node} is not a reduction")
        register = self._new()
        before.append(Initial(register, code.combine, dtype))
        scope.body.append(Accumulate(register, code.combine, value, dtype))
        return register

    def _gather_up(self, node: Node, value: int, scope: _Scope) -> None:
        """Combine a value of `scope` over rows, into the result or a slot of it."""
        result = node.outputs[0]
        reduced = self.group.gathered[node]
        loop_axes = self.group.loop_axes[node]
        kept = [a for i, a in enumerate(loop_axes) if i not in node.attrs["axes"]]
        sliced = self._is_sliced(reduced)
        operand = self._reduction_operand(node, sliced)
        strides = self._strides(result.shape, kept)
        if not any(axis is not None for axis in kept):
            register = self._register(node, scope, value, self.chunk.body)
            self.chunk_end.append(Store(Access(operand, strides), register))
            return
        self._accumulate_in_memory(node, Access(operand, strides), value, scope, sliced)

    def _is_sliced(self, reduced: frozenset[int]) -> bool:
        """True if chunks share elements of the result, so that each needs a slot."""
        return not self.parallel or self._chunk_axis() in reduced

    def _chunk_axis(self) -> int:
        return self.outer[0]

    def _reduction_operand(self, node: Node, sliced: bool) -> int:
        result = node.outputs[0]
        if not sliced or not self.parallel:
            buffer = self.stored[result]
            self.operands.append(Operand(buffer, "write", result.dtype))
            return len(self.operands) - 1
        slot = product(result.shape)
        buffer = self.slots_of(node)
        self.operands.append(Operand(buffer, "write", result.dtype, True, slot))
        self.slots.append(Slots(node, len(self.operands) - 1))
        self.chunk_axis_sliced = self.chunk_axis_sliced or slot != 1
        return len(self.operands) - 1

    def _accumulate_in_memory(
        self, node: Node, access: Access, value: int, scope: _Scope, sliced: bool
    ) -> None:
        code, dtype = node.op.code, node.outputs[0].dtype
        if not isinstance(code, Reduce):
            raise CompilerBug(f"{node} is not a reduction")
        identity = self._new()
        start: list[Statement] = [Initial(identity, code.combine, dtype)]
        fill: tuple[Statement, ...] = (Store(access, identity),)
        chunk_axis = self._chunk_axis()
        for axis in reversed(range(len(access.strides))):
            if access.strides[axis] != 0 and (sliced or axis != chunk_axis):
                fill = (Loop(axis, fill),)
        start.extend(fill)
        (self.chunk.body if sliced else self.row_start).extend(start)
        old, new = self._new(), self._new()
        scope.body.append(Load(old, access, dtype))
        template = COMBINE_TEMPLATES[code.combine]
        scope.body.append(Compute(new, template, (old, value), dtype))
        scope.body.append(Store(access, new))

    # The end

    def _finish(self) -> Nest:
        inner = self._inner_order()
        rows: list[Statement] = []
        for row, stage in zip(self.rows, self.stages, strict=True):
            rows.extend(row.body)
            if stage.body:
                rows.extend(loops(inner, tuple(stage.body)))
        rows.extend(self.row_end)
        outer = self.outer
        body: list[Statement] = list(loops(outer[1:], tuple(rows)))
        body = [Loop(outer[0], (*self.row_start, *body))]
        statements = (*self.chunk.body, *body, *self.chunk_end)
        plain = arranged(self.axes, [*outer, *inner], statements)
        axes, statements, joined = collapse(*plain, len(outer))
        kernel = LoopKernel(
            name=kernel_name(self.group.nodes),
            axes=axes,
            operands=tuple(self.operands),
            scratch=tuple(self.scratch),
            body=statements,
            sites=tuple(self.sites),
            row_cost=self._cost(axes[1 : len(outer) - joined], inner),
            parallel=self.parallel,
            fails=any(isinstance(n.op.code, IndexCheck) for n in self.group.nodes),
            least_rows=SLOT_ROWS if self.chunk_axis_sliced else 1,
        )
        return Nest(kernel, tuple(self.slots))

    def _cost(self, rows: tuple[Dim, ...], inner: list[int]) -> Dim:
        """The work of one index of axis 0."""
        across = product(tuple(self.axes[a] for a in inner))
        cost: Dim = 0
        for node in self.group.nodes:
            cost = cost + row_cost(node) * (across if self.runs_full(node) else 1)
        return cost * product(rows)


def _named(node: Node, template: str) -> tuple[tuple[str, object], ...]:
    """The attributes of `node` that `template` names."""
    found = (item for item in node.attrs.items() if "{" + item[0] + "}" in template)
    return tuple(sorted(found))


def loops(axes: Sequence[int], body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """`body` inside one loop per axis, the first axis outermost."""
    for axis in reversed(axes):
        body = (Loop(axis, body),)
    return body


def kernel_name(nodes: Sequence[Node]) -> str:
    """What a kernel does, from its operations: ``mul_tanh_sum``."""
    names: list[str] = []
    for node in nodes:
        name = node.op.name.removeprefix("reduce_")
        if name not in names and name not in ("cast", "copy"):
            names.append(name)
    shown = names if len(names) <= 4 else [*names[:2], *names[-2:]]
    return "_".join(shown) or "copy"
