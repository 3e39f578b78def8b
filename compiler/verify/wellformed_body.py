"""Verification of a LoopKernel's body, in one walk in execution order.

Every value is made once, before its use and in a loop or condition that is still open;
dtypes agree; every access lies within its buffer, by interval arithmetic over the open
axes; no two chunks write the same element; what is updated in place is read where it is
written; nothing is added up or multiplied in 16 bits, which would round at every step.
Sizes that are not known are given large distinct values, so a symbolic access is tried
rather than proven; where they do not suit the graph, as they do not divide evenly,
kernels are looked at for the sizes of each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from staticgrad.compiler.kernel_ir.kernels import (
    Access,
    Accumulate,
    Block,
    Blocks,
    CheckIndex,
    Combine,
    Compute,
    Index,
    Initial,
    Invoke,
    Kernel,
    Load,
    Loop,
    LoopKernel,
    Number,
    Operand,
    Rest,
    Statement,
    Store,
    Tiles,
    When,
    calls_of,
)
from staticgrad.compiler.kernel_ir.schedule import Buffer, Step
from staticgrad.compiler.kernel_ir.walks import statements_of
from staticgrad.errors import CompilerBug
from staticgrad.ir.expression import Apply, Literal, missing
from staticgrad.ir.size import Dim, evaluate
from staticgrad.ir.types import BOOL, INT64, DType, is_half

Values = Mapping[str, int]

NO_AXIS = -1  # no loop


def check_body(kernel: LoopKernel, buffers: Sequence[Buffer], values: Values) -> None:
    """Raise CompilerBug if the body violates a rule when symbols have `values`."""
    if not kernel.axes:
        fail(kernel, "has no axis that is cut into chunks")
    _Walk(kernel, buffers, values).run()


def fail(kernel: Step, text: str) -> NoReturn:
    """Raise CompilerBug for what `kernel` does."""
    raise CompilerBug(f"kernel {kernel.name}: {text}")


def check_precision(kernel: Kernel, combine: Combine, dtype: DType) -> None:
    """Raise if 16-bit values are added up or multiplied; they may be compared."""
    if is_half(dtype) and combine in ("add", "multiply"):
        fail(kernel, f"accumulates in {dtype}: widen it to float32")


@dataclass(slots=True)
class _Level:
    """Remaining statements of one loop, and the values made in it.

    Of a When, `written` is what was written before it, and is again after it; of
    Blocks, `blocks` is what they are.
    """

    rest: Iterator[Statement]
    axis: int
    blocks: Blocks | Rest | None = None
    made: list[int] = field(default_factory=list)
    written: frozenset[int] | None = None


class _Walk:
    """Walk through the body of a LoopKernel."""

    def __init__(
        self, kernel: LoopKernel, buffers: Sequence[Buffer], values: Values
    ) -> None:
        self.kernel = kernel
        self.values = values
        self.extents = tuple(evaluate(axis, values) for axis in kernel.axes)
        self.elements = [
            evaluate(o.slot if o.per_chunk else buffers[o.buffer].elements, values)
            for o in kernel.operands
        ]
        self.levels = [_Level(iter(kernel.body), NO_AXIS)]
        self.visible: dict[int, DType] = {}
        self.ranges: dict[int, int] = {}
        self.registers: set[int] = set()
        self.known: set[int] = set()
        self.written: set[int] = set()
        self.rests: set[tuple[int, int, int]] = set()  # level, axis, unit
        self.places: dict[int, tuple[object, ...]] = {}
        self.checks = 0

    def run(self) -> None:
        self._check_slots()
        while self.levels:
            statement = next(self.levels[-1].rest, None)
            if statement is None:
                self._close()
            elif isinstance(statement, Loop):
                self._open(statement)
            elif isinstance(statement, Blocks | Rest):
                self._open_blocks(statement)
            elif isinstance(statement, When):
                self._open_when(statement)
            else:
                self._visit(statement)
        if self.checks and not self.kernel.fails:
            self.fail("checks an index or calls, so it can fail, but says it cannot")
        for number, operand in enumerate(self.kernel.operands):
            if operand.mode != "read" and number not in self.written:
                self.fail(
                    f"operand {number} is never written, its mode is {operand.mode}"
                )

    def fail(self, text: str) -> NoReturn:
        fail(self.kernel, text)

    def _check_slots(self) -> None:
        for number, operand in enumerate(self.kernel.operands):
            if operand.per_chunk and operand.mode != "write":
                self.fail(f"operand {number} has slots, but its mode is {operand.mode}")

    # Loops

    def _open(self, loop: Loop) -> None:
        if not 0 <= loop.axis < len(self.kernel.axes):
            self.fail(f"loop over axis {loop.axis} of {len(self.kernel.axes)}")
        if loop.axis in self._axes():
            self.fail(f"loop over axis {loop.axis} inside of itself")
        self.levels.append(_Level(iter(loop.body), loop.axis))

    def _open_blocks(self, blocks: Blocks | Rest) -> None:
        """Check and open blocks of an axis, whose loop is inside of them."""
        axis, unit = blocks.axis, blocks.unit
        if axis in self._axes():
            self.fail(f"blocks of axis {axis} inside of its loop")
        around = next((b for b in self._parts() if b.axis == axis), None)
        if isinstance(blocks, Rest):
            wrong = around is not None or unit < 1 or unit & (unit - 1) != 0
            self.rests.add((len(self.levels), axis, unit))
        else:
            wrong = self._is_part(blocks, around)
        if wrong:
            self.fail(f"{blocks.unit} indices of axis {axis} are no part of it")
        every = statements_of(blocks.body)
        if not any(isinstance(s, Loop) and s.axis == axis for s in every):
            self.fail(f"blocks of axis {axis} without a loop over it")
        self.levels.append(_Level(iter(blocks.body), NO_AXIS, blocks))

    def _is_part(self, blocks: Blocks, around: Blocks | Rest | None) -> bool:
        """Whether blocks leave out indices, or are none of those around them."""
        axis, size, unit = blocks.axis, blocks.size, blocks.unit
        if size < 1 or size % unit:
            return True
        if around is not None:
            outer = around.size if isinstance(around, Blocks) else 0
            return unit != around.unit or size >= outer
        is_even = axis != 0 and isinstance(self.kernel.axes[axis], int)
        if is_even and self.extents[axis] % unit == 0:
            return False
        return (len(self.levels), axis, unit) not in self.rests

    def _parts(self) -> Iterator[Blocks | Rest]:
        return (b.blocks for b in reversed(self.levels) if b.blocks is not None)

    def _open_when(self, when: When) -> None:
        self._use(when.condition, BOOL)
        before = frozenset(self.written)
        self.levels.append(_Level(iter(when.body), NO_AXIS, written=before))

    def _close(self) -> None:
        level = self.levels.pop()
        for value in level.made:
            del self.visible[value]
        if level.written is not None:
            self.written = set(level.written)

    def _axes(self) -> list[int]:
        return [level.axis for level in self.levels if level.axis != NO_AXIS]

    # Values

    def _make(self, value: int, dtype: DType) -> None:
        if value in self.known:
            self.fail(f"value {value} is made twice")
        self.known.add(value)
        self.visible[value] = dtype
        self.levels[-1].made.append(value)

    def _use(self, value: int, dtype: DType | None = None) -> DType:
        if value not in self.visible:
            where = (
                "in a loop that has ended" if value in self.known else "later or never"
            )
            self.fail(f"value {value} is used, but made {where}")
        found = self.visible[value]
        if dtype is not None and found != dtype:
            self.fail(f"value {value} is {found}, used as {dtype}")
        return found

    def _visit(self, statement: Statement) -> None:
        match statement:
            case Number():
                self._make(statement.result, statement.dtype)
            case Load():
                self._load(statement)
            case Store():
                self._store(statement)
            case Compute():
                self._compute(statement)
            case Index():
                self._strides(statement.strides)
                self._make(statement.result, INT64)
            case CheckIndex():
                self._check_index(statement)
            case Invoke():
                self._invoke(statement)
            case Initial():
                self._make(statement.register, statement.dtype)
                self.registers.add(statement.register)
            case Accumulate():
                self._accumulate(statement)
            case Tiles():
                self._tiles(statement)

    def _compute(self, compute: Compute) -> None:
        for value in compute.args:
            self._use(value)
        lacking = missing(compute.expr, len(compute.args))
        if lacking:
            self.fail(f"{compute.expr} lacks {lacking}")
        if compute.site >= len(self.kernel.sites):
            self.fail(f"site {compute.site} of {len(self.kernel.sites)}")
        self.checks += len(calls_of(compute))
        self._make(compute.result, compute.dtype)
        match compute.expr:
            case Apply("inside", (_, Literal(extent))) if not isinstance(extent, str):
                self.ranges[compute.result] = evaluate(extent, self.values)

    def _check_index(self, check: CheckIndex) -> None:
        self._use(check.value, INT64)
        self._use(check.position, INT64)
        if not 0 <= check.site < len(self.kernel.sites):
            self.fail(f"site {check.site} of {len(self.kernel.sites)}")
        self._make(check.result, INT64)
        self.ranges[check.result] = evaluate(check.extent, self.values)
        self.checks += 1

    def _invoke(self, invoke: Invoke) -> None:
        """Check that a call's arrays lie within their buffers."""
        self._use(invoke.position, INT64)
        if invoke.target >= 0:
            self._use(invoke.target, INT64)
        if not 0 <= invoke.site < len(self.kernel.sites):
            self.fail(f"site {invoke.site} of {len(self.kernel.sites)}")
        if (invoke.target >= 0) != (invoke.function.target is not None):
            self.fail(f"{invoke.function.name} is not called as what it is")
        first = len(invoke.arrays) - invoke.results
        for number, block in enumerate(invoke.arrays):
            self._block(block, number >= first)
        self.checks += 1

    def _block(self, block: Block, is_result: bool) -> None:
        access = block.first
        if access.operand < 0:
            self.fail("a function is given scratch")
        count = 1
        for size in block.shape:
            count *= evaluate(size, self.values)
        if count:
            self._access(access, block.dtype, count - 1)
        operand = self.kernel.operands[access.operand]
        if operand.mode != ("write" if is_result else "read"):
            self.fail(f"operand {access.operand} of a call has the mode {operand.mode}")
        if is_result:
            self.written.add(access.operand)
            self._check_race(access, operand)

    def _accumulate(self, accumulate: Accumulate) -> None:
        if accumulate.register not in self.registers:
            self.fail(f"value {accumulate.register} is accumulated, but no register")
        check_precision(self.kernel, accumulate.combine, accumulate.dtype)
        self._use(accumulate.register, accumulate.dtype)
        self._use(accumulate.value, accumulate.dtype)

    # Memory

    def _tiles(self, tiles: Tiles) -> None:
        """Check that reaches lie within buffers, and that chunks write apart."""
        kernel = self.kernel
        if kernel.body != (tiles,):
            self.fail("tiles are all that their kernel does")
        if len(tiles.reaches) != len(kernel.operands):
            self.fail(f"{len(tiles.reaches)} reaches, {len(kernel.operands)} operands")
        rows = self.extents[0]
        for number, operand in enumerate(kernel.operands):
            reach = tiles.reaches[number]
            step, first, last = (
                evaluate(d, self.values) for d in (reach.step, reach.first, reach.last)
            )
            self.written.add(number)
            if rows <= 0:
                continue
            far = step * (rows - 1)
            low, high = first + min(0, far), last + max(0, far)
            if low < 0 or high >= self.elements[number]:
                self.fail(
                    f"operand {number} is reached at {low}..{high}, "
                    f"it has {self.elements[number]} elements"
                )
            alone = operand.per_chunk or not kernel.parallel or rows == 1
            if operand.mode != "read" and step == 0 and not alone:
                self.fail(f"all chunks write the same elements of operand {number}")

    def _load(self, load: Load) -> None:
        access = load.access
        self._access(access, load.dtype)
        if access.operand < 0 and access.operand not in self.written:
            self.fail(f"scratch {-1 - access.operand} is read before it is written")
        if access.operand >= 0:
            mode = self.kernel.operands[access.operand].mode
            if mode == "write" and access.operand not in self.written:
                self.fail(f"operand {access.operand} is read, its mode is write")
            self._in_place(access)
        self._make(load.result, load.dtype)

    def _store(self, store: Store) -> None:
        access = store.access
        self._access(access, self._use(store.value))
        self.written.add(access.operand)
        if access.operand < 0:
            return
        operand = self.kernel.operands[access.operand]
        if operand.mode == "read":
            self.fail(f"operand {access.operand} is written, its mode is read")
        self._in_place(access)
        self._check_race(access, operand)

    def _in_place(self, access: Access) -> None:
        """Check that an updated operand is read where it is written."""
        if self.kernel.operands[access.operand].mode != "update":
            return
        strides = zip(access.strides, self.extents, strict=True)
        place = (
            tuple(stride if extent != 1 else 0 for stride, extent in strides),
            access.offset,
            access.dynamic,
        )
        if self.places.setdefault(access.operand, place) != place:
            self.fail(f"operand {access.operand} is updated at two places at once")

    def _check_race(self, access: Access, operand: Operand) -> None:
        if operand.per_chunk or not self.kernel.parallel:
            return
        if self.kernel.axes[0] == 1:
            return
        if 0 in self.kernel.axes and self.elements[access.operand] == 0:
            return  # nothing is written, and the strides of no elements are 0
        if 0 not in self._axes() or access.strides[0] == 0:
            self.fail(f"all chunks write the same elements of operand {access.operand}")

    def _access(self, access: Access, dtype: DType, more: int = 0) -> None:
        """Check an access, and `more` elements after it."""
        if not -len(self.kernel.scratch) <= access.operand < len(self.kernel.operands):
            self.fail(f"access to operand {access.operand}: none such")
        if access.operand >= 0:
            found = self.kernel.operands[access.operand].dtype
            elements = self.elements[access.operand]
        else:
            scratch = self.kernel.scratch[-1 - access.operand]
            found, elements = scratch.dtype, evaluate(scratch.extent, self.values)
        if found != dtype:
            self.fail(f"operand {access.operand} is {found}, accessed as {dtype}")
        self._check_bounds(access, elements - more)

    def _check_bounds(self, access: Access, elements: int) -> None:
        low = high = evaluate(access.offset, self.values)
        for step, extent in self._steps(access):
            if extent <= 0:
                return
            low += min(0, step * (extent - 1))
            high += max(0, step * (extent - 1))
        if low < 0 or high >= elements:
            self.fail(
                f"operand {access.operand} is accessed at {low}..{high}, "
                f"it has {elements} elements"
            )

    def _steps(self, access: Access) -> Iterator[tuple[int, int]]:
        """Yield stride and extent of all that moves the access."""
        self._strides(access.strides)
        for axis in self._axes():
            yield evaluate(access.strides[axis], self.values), self.extents[axis]
        if access.dynamic is None:
            return
        value, stride = access.dynamic
        self._use(value, INT64)
        if value in self.ranges:
            yield evaluate(stride, self.values), self.ranges[value]

    def _strides(self, strides: tuple[Dim, ...]) -> None:
        if len(strides) != len(self.kernel.axes):
            self.fail(f"{len(strides)} strides for {len(self.kernel.axes)} axes")
        axes = self._axes()
        for axis, stride in enumerate(strides):
            if stride != 0 and axis not in axes:
                self.fail(f"an index along axis {axis} outside of its loop")
