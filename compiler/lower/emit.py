"""Emission of a loop nest's values: loads, computations, indices, at each level.

An Emitter has one scope per chunk, one per row and stage, and one per element and
stage. A value is made at the outermost level that knows its place, once per scope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from staticgrad.compiler.fuse.groups import Group
from staticgrad.compiler.fuse.stages import Stages
from staticgrad.compiler.kernel_ir.kernels import (
    CONVERTED,
    Access,
    CheckIndex,
    Compute,
    Index,
    Load,
    Mode,
    Number,
    Operand,
    Scratch,
    Site,
    Statement,
    Store,
    site_of,
)
from staticgrad.compiler.kernel_ir.layouts import (
    COPIED,
    alignment,
    base_of,
    gathered_strides,
    is_free,
    layout_of,
    layout_over,
)
from staticgrad.errors import CompilerBug
from staticgrad.ir.expression import Apply, Arg, Expr, Literal, filled
from staticgrad.ir.node import Constant, Node, Tensor
from staticgrad.ir.op import (
    Elementwise,
    Extent,
    Gather,
    IndexCheck,
    Layout,
    Position,
    Random,
    can_fail,
)
from staticgrad.ir.size import Dim, product
from staticgrad.ir.types import DType

_DRAWN = ("k0", "k1", "k2", "k3", "i")  # what the formula of a Random names


@dataclass(slots=True)
class Scope:
    """Statements of one level, and the values that they made."""

    body: list[Statement] = field(default_factory=list)
    values: dict[object, int] = field(default_factory=dict)


class StatementEmitter:
    """Emitter of statements with strides over the group's axes.

    `axes` are the group's, or one of size 1 more if all of them are inner.
    """

    def __init__(
        self,
        group: Group,
        axes: Sequence[Dim],
        stages: Stages,
        buffer_of: Callable[[Tensor], int],
    ) -> None:
        self.group = group
        self.axes = axes
        self.inner = sorted(group.inner)
        self.buffer_of = buffer_of
        self.operands: list[Operand] = []
        self.operand_of: dict[tuple[int, Mode], int] = {}
        self.sites: list[Site] = []
        self.next_value = 0
        count = len(stages.needed)
        self.chunk = Scope()
        self.rows = [Scope() for _ in range(count)]
        self.elements = [Scope() for _ in range(count)]
        self.kept = {tensor: number for number, tensor in enumerate(stages.kept)}

    @property
    def scratch(self) -> tuple[Scratch, ...]:
        """Rows of scratch, one for every tensor that is kept."""
        extent = product(tuple(self.axes[a] for a in self.inner))
        return tuple(Scratch(tensor.dtype, extent) for tensor in self.kept)

    def new(self) -> int:
        """Return the number of a new value."""
        self.next_value += 1
        return self.next_value - 1

    def site(self, node: Node) -> int:
        """Return the number of the node's site in the kernel."""
        self.sites.append(site_of(node))
        return len(self.sites) - 1

    def compute(self, node: Node, scope: Scope, stage: int) -> int:
        """Emit the value of `node`, made in `scope`."""
        code, result = node.op.code, node.outputs[0]
        if isinstance(code, Gather):
            return self._gather(node, scope, stage)
        if isinstance(code, Random):
            return self._random(node, code, scope, stage)
        args = tuple(
            self.input(node, position, scope, stage)
            for position in range(len(node.inputs))
        )
        value = self.new()
        if isinstance(code, IndexCheck):
            at = self._flat_index(result, scope)
            extent, wrap = node.attrs["extent"], node.attrs["wrap"]
            site = self.site(node)
            scope.body.append(CheckIndex(value, args[0], extent, at, site, wrap))
            return value
        expr, site = _expression(node), self.site(node)
        if can_fail(code) and isinstance(expr, Apply):
            where = Arg(len(args)), Literal(f"site + {site}"), Literal("status")
            expr = Apply(expr.name, (*expr.args, *where))
            args = (*args, self._flat_index(result, scope))
        scope.body.append(Compute(value, expr, args, result.dtype, site))
        return value

    def _flat_index(self, tensor: Tensor, scope: Scope) -> int:
        strides = self.strides(tensor.shape, self.group.axis_of[tensor])
        return self._index(strides, 0, scope)

    def _index(self, strides: tuple[Dim, ...], offset: Dim, scope: Scope) -> int:
        key = ("index", strides, offset)
        if key not in scope.values:
            scope.values[key] = self.new()
            scope.body.append(Index(scope.values[key], strides, offset))
        return scope.values[key]

    def _random(self, node: Node, code: Random, scope: Scope, stage: int) -> int:
        words = self._key_words(node, scope)
        more = [
            self.input(node, position, scope, stage)
            for position in range(1, len(node.inputs))
        ]
        index = self._drawn_index(node, scope)
        value = self.new()
        args = (*more, *words, index)
        drawn = {name: Arg(len(more) + place) for place, name in enumerate(_DRAWN)}
        expr = filled(code.expr, {**node.attrs, **drawn})
        dtype, site = node.outputs[0].dtype, self.site(node)
        scope.body.append(Compute(value, expr, args, dtype, site))
        return value

    def _key_words(self, node: Node, scope: Scope) -> list[int]:
        """Emit the four words of the key, whose other axes lead the result's."""
        key, result = node.inputs[0], node.outputs[0]
        layout, keys = layout_of(key), key.shape[:-1]
        strides: list[Dim] = [0] * len(self.axes)
        axes = self.group.axis_of[result][: len(keys)]
        for own, stride, size in zip(axes, layout.strides[:-1], keys, strict=True):
            if own is not None and size != 1:
                strides[own] = stride
        starts = [layout.offset + w * layout.strides[-1] for w in range(4)]
        base = base_of(key)
        return [self._load(base, tuple(strides), at, scope) for at in starts]

    def _drawn_index(self, node: Node, scope: Scope) -> int:
        """Emit the flat index of the element among those that its key draws."""
        result, leading = node.outputs[0], node.inputs[0].ndim - 1
        axes = list(self.group.axis_of[result])
        axes[:leading] = [None] * leading
        return self._index(self.strides(result.shape, axes), 0, scope)

    def _gather(self, node: Node, scope: Scope, stage: int) -> int:
        index = self.input(node, 1, scope, stage)
        source, result = node.inputs[0], node.outputs[0]
        axis = node.attrs["axis"]
        layout = layout_of(source)
        along = layout.strides[axis]
        moved = gathered_strides(node, node.inputs[1], along)
        steps = (*layout.strides[:axis], *moved, *layout.strides[axis + 1 :])
        strides: list[Dim] = [0] * len(self.axes)
        axes = self.group.axis_of[result]
        for own, stride, size in zip(axes, steps, result.shape, strict=True):
            if own is not None and size != 1:
                strides[own] = stride
        operand = self.operand(self.buffer_of(base_of(source)), "read", source.dtype)
        access = Access(operand, tuple(strides), layout.offset, (index, along))
        value = self.new()
        scope.body.append(Load(value, access, source.dtype))
        return value

    def input(self, node: Node, position: int, scope: Scope, stage: int) -> int:
        """Emit the value of one input of `node`, known in `scope` from now on."""
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
        return self._load(base, tuple(strides), layout.offset, scope)

    def _input_axes(self, node: Node, position: int) -> list[int | None]:
        """Return the group's axis of each axis of an input that lies in memory."""
        aligned = alignment(node, position)
        if aligned is None:
            raise CompilerBug(f"{node} does not read its input element by element")
        own = self.group.loop_axes[node]
        return [own[dim] for dim in aligned]

    def _made(self, base: Tensor, scope: Scope, stage: int) -> int:
        """Return a value of this group: of this stage or row, or kept in scratch."""
        if base in scope.values:
            return scope.values[base]
        for row in self.rows[: stage + 1]:
            if base in row.values:
                return row.values[base]
        if base not in self.kept:
            raise CompilerBug(f"{base} is not known in stage {stage}")
        value = self.new()
        scope.body.append(Load(value, self.kept_access(base), base.dtype))
        scope.values[base] = value
        return value

    def _load(
        self, base: Tensor, strides: tuple[Dim, ...], offset: Dim, scope: Scope
    ) -> int:
        """Emit a load at the outermost level that determines its address."""
        inner = any(strides[axis] != 0 for axis in self.inner)
        outer = any(stride != 0 for stride in strides)
        place = self.chunk if not outer else self.rows[0]
        if inner:
            place = scope
        key = (base, strides, offset)
        if key not in place.values:
            operand = self.operand(self.buffer_of(base), "read", base.dtype)
            place.values[key] = self.new()
            access = Access(operand, strides, offset)
            place.body.append(Load(place.values[key], access, base.dtype))
        return place.values[key]

    def _free(self, tensor: Tensor, axes: list[int | None], scope: Scope) -> int:
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
        """Emit a scalar that every kernel computes for itself, once per chunk."""
        if base not in self.chunk.values:
            args = tuple(self._free(t, [], self.chunk) for t in base.inputs)
            value = self.new()
            expr, site = _expression(base.node), self.site(base.node)
            self.chunk.body.append(Compute(value, expr, args, base.dtype, site))
            self.chunk.values[base] = value
        return self.chunk.values[base]

    def _counted(
        self, strides: tuple[Dim, ...], offset: Dim, dtype: DType, scope: Scope
    ) -> int:
        """Emit an index, or a size, as a number of `dtype`."""
        key = ("position", strides, offset, dtype)
        if key not in scope.values:
            index = self._index(strides, offset, scope)
            scope.values[key] = self.new()
            convert = Compute(scope.values[key], CONVERTED, (index,), dtype)
            scope.body.append(convert)
        return scope.values[key]

    def _number(self, value: float | int | bool, dtype: DType) -> int:
        key = ("number", repr(value), dtype)
        if key not in self.chunk.values:
            self.chunk.values[key] = self.new()
            self.chunk.body.append(Number(self.chunk.values[key], value, dtype))
        return self.chunk.values[key]

    def operand(self, buffer: int, mode: Mode, dtype: DType) -> int:
        """Return the number of the operand for `buffer`."""
        key = (buffer, mode)
        if key not in self.operand_of:
            self.operand_of[key] = len(self.operands)
            self.operands.append(Operand(buffer, mode, dtype))
        return self.operand_of[key]

    def strides(
        self, shape: tuple[Dim, ...], axes: Sequence[int | None]
    ) -> tuple[Dim, ...]:
        """Return strides over the group's axes of a C-order tensor of these `axes`."""
        strides: list[Dim] = [0] * len(self.axes)
        plain = Layout.contiguous(shape).strides
        for axis, stride in zip(axes, plain, strict=True):
            if axis is not None:
                strides[axis] = stride
        return tuple(strides)

    def kept_access(self, tensor: Tensor) -> Access:
        """Return the access to a tensor that is kept in scratch for later stages."""
        strides: list[Dim] = [0] * len(self.axes)
        step: Dim = 1
        for axis in reversed(self.inner):
            strides[axis] = step
            step = step * self.axes[axis]
        return Access(-1 - self.kept[tensor], tuple(strides))

    def store(
        self, node: Node, value: int, scope: Scope, buffer: int, layout: Layout
    ) -> None:
        """Store the node's result to `buffer`, by `layout`."""
        result = node.outputs[0]
        operand = self.operand(buffer, "write", result.dtype)
        strides: list[Dim] = [0] * len(self.axes)
        pairs = zip(self.group.axis_of[result], layout.strides, strict=True)
        for axis, stride in pairs:
            if axis is not None:
                strides[axis] = stride
        scope.body.append(Store(Access(operand, tuple(strides), layout.offset), value))


def _expression(node: Node) -> Expr:
    """Return the expression of `node` over an element of each of its inputs."""
    code = node.op.code
    if not isinstance(code, Elementwise):
        return COPIED
    return filled(code.expr, node.attrs) if node.attrs else code.expr
