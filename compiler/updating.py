"""Updates of leaves that run in the shadow of the product that makes the gradient.

The update of Adam and its relatives keeps the divider busy, or memory, and little else;
a product keeps the multiply-adds busy and little else. One after the other they take
the sum of their times, and the gradient goes through memory. Here ``g = A B`` and the
loop that reads g become one kernel: while a tile of g is summed, the tile before it is
applied (codegen/updating.py), and g is kept nowhere.

Only where the loop writes leaves and alone reads g, with arithmetic and roots; where
sizes are whole tiles; and where B stays in a cache while rows of g pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from staticgrad.compiler.codegen.gemm import LONG_ROWS, plan_of
from staticgrad.compiler.codegen.processor import vector_bytes
from staticgrad.compiler.codegen.updating import DEPTH
from staticgrad.compiler.kernels import (
    Compute,
    GemmKernel,
    Load,
    Loop,
    LoopKernel,
    Mode,
    Number,
    Operand,
    Reach,
    Scratch,
    Statement,
    Store,
    Tiles,
)
from staticgrad.compiler.lower import with_makers
from staticgrad.compiler.schedule import Schedule, Step, reads, stored_by, writes
from staticgrad.compiler.schemes import Act, Update
from staticgrad.ir.size import Dim, evaluate, symbols
from staticgrad.ir.types import FLOAT64

LEAST_TERMS = 16  # as many as a tile has rows, one of which is applied after some
MOST_BYTES = 1 << 22  # of B
FAR_BYTES = 1 << 20  # of C, which does not stay in a near cache then
PART_COLUMNS = 32  # as in gemm.py
FEW_PARTS = 4  # of so many columns, below which rows are shared out more evenly
MOST_UNKNOWN = LEAST_TERMS << 10  # of so many rows of B, if it may have any number
MINIBATCH = 32  # what a size that is not known counts as
FLOPS_PER_ADDITION = 3
COST = 2  # of an update's addition: as above, so that parts are as short as a product's

OPERATIONS = {
    "{0} * {1}": "multiply", "{0} + {1}": "add", "{0} - {1}": "subtract",
    "divide({0}, {1})": "divide", "sqrt({0})": "sqrt", "negative({0})": "negative",
}  # fmt: skip
ADDING = (
    Act("product"),
    Act("element", (0,)),
    Act("add", (0, 1)),
    Act("store", (0, 2)),
)
COPY, CAST = "{0}", "{S}({0})"


def in_shadow(schedule: Schedule) -> Schedule:
    """`schedule` with fewer kernels, for processors with 32 registers of 64 bytes."""
    if plan_of().rows != LONG_ROWS:
        return schedule
    merging = _Merging(schedule)
    kernels = list(schedule.kernels)
    gone: set[int] = set()
    for position, kernel in enumerate(kernels):
        if isinstance(kernel, GemmKernel):
            kernels[position] = _added(kernel) or kernel
        found = merging.product_of(position, kernel)
        if found is not None:
            product, kernels[position] = found
            gone.add(product)
    left = [kernel for n, kernel in enumerate(kernels) if n not in gone]
    commit = schedule.commit - sum(n < schedule.commit for n in gone)
    return replace(schedule, kernels=with_makers(left), commit=commit)


@dataclass(frozen=True, slots=True)
class _Program:
    """What a loop does per element: steps, and the operands that they name."""

    steps: tuple[Act, ...]
    operands: tuple[Operand, ...]
    reaches: tuple[Reach, ...]


class _Merging:
    """Which kernels make and read the buffers of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.touched: dict[int, list[int]] = {}
        for position, kernel in enumerate(schedule.kernels):
            for operand in kernel.operands:
                self.touched.setdefault(operand.buffer, []).append(position)

    def product_of(self, position: int, kernel: Step) -> tuple[int, LoopKernel] | None:
        """The position of the product that a loop applies, and both as one kernel."""
        if not isinstance(kernel, LoopKernel) or kernel.scratch or kernel.fails:
            return None
        if not stored_by(self.schedule, kernel):
            return None  # it may be part of a region, whose parts go through at once
        for operand in kernel.operands:
            maker = self._maker(operand.buffer, position)
            if maker is None:
                continue
            product = self.schedule.kernels[maker]
            if isinstance(product, GemmKernel) and self._may_wait(
                maker, position, operand.buffer
            ):
                merged = _merged(product, kernel, operand.buffer)
                if merged is not None:
                    return maker, merged
        return None

    def _maker(self, buffer: int, position: int) -> int | None:
        """The kernel that writes what only the one at `position` reads."""
        touched = self.touched[buffer]
        if len(touched) != 2 or self.schedule.buffers[buffer].kind != "temporary":
            return None
        if buffer in (*self.schedule.outputs, *self.schedule.finite):
            return None
        return touched[0] if touched[1] == position else None

    def _may_wait(self, maker: int, position: int, made: int) -> bool:
        """Whether the factors stay as they are, and take no more memory than g would.

        Where the commit stands between, products are made before it, updates behind.
        """
        read = set(reads(self.schedule.kernels[maker]))
        between = self.schedule.kernels[maker + 1 : position + 1]
        if not all(read.isdisjoint(writes(kernel)) for kernel in between):
            return False
        longer = (b for b in read if self.touched[b][-1] < position)
        kept = sum(self._bytes(b) for b in longer)
        return len(between) == 1 or kept <= self._bytes(made)

    def _bytes(self, number: int) -> int:
        """The memory of a temporary, where sizes that are not known are typical."""
        buffer = self.schedule.buffers[number]
        if buffer.kind != "temporary":
            return 0
        values = dict.fromkeys(symbols((buffer.elements,)), MINIBATCH)
        return evaluate(buffer.elements, values) * buffer.dtype.itemsize


def _merged(product: GemmKernel, loop: LoopKernel, made: int) -> LoopKernel | None:
    """Both as one kernel, or None where they do not fit."""
    scheme = _tiled(product) if product.beta == 0.0 else None
    if scheme is None or loop.axes != (product.m * scheme.columns,):
        return None
    program = _program(loop, made, _reach_of_result(scheme))
    if program is None:
        return None
    merged = _kernel(product, scheme, program)
    return replace(
        merged,
        name=f"{product.name}_{loop.name}",
        sites=product.sites + loop.sites,
        row_cost=merged.row_cost + COST * loop.row_cost * _elements(scheme),
    )


def _added(product: GemmKernel) -> LoopKernel | None:
    """A product that adds to a large C, whose parts are then fetched in time."""
    scheme = _tiled(product) if product.beta == 1.0 else None
    *read, written = (operand.buffer for operand in product.operands)
    if scheme is None or written in read or not isinstance(product.m, int):
        return None
    reach = _reach_of_result(scheme)
    return _kernel(product, scheme, _Program(ADDING, product.operands[2:], (reach,)))


def _kernel(product: GemmKernel, scheme: Update, program: _Program) -> LoopKernel:
    """A product whose result goes through a program."""
    k, (a, b, _) = product.k, product.operands
    last = scheme.b_start + (k - 1) * scheme.b_row + scheme.columns - 1
    left = _reach_of_a(product, scheme)
    reaches = (left, Reach(0, scheme.b_start, last), *program.reaches)
    flops, sizes = 2 * _elements(scheme), () if isinstance(k, int) else (k,)
    extent = scheme.columns // scheme.part if scheme.part else scheme.rows // LONG_ROWS
    return LoopKernel(
        name=product.name,
        axes=(extent,),
        operands=(a, b, *program.operands),
        scratch=(Scratch(a.dtype, LONG_ROWS * scheme.lanes),) * 2,
        body=(Tiles(replace(scheme, program=program.steps), reaches, sizes),),
        sites=product.sites,
        row_cost=k * (flops // FLOPS_PER_ADDITION),
    )


def _tiled(product: GemmKernel) -> Update | None:
    """How tiles of a product are summed; None where they are not whole."""
    dtype = product.operands[0].dtype
    lanes = vector_bytes() // dtype.itemsize
    numbers = _whole(product.m, product.n, *product.ld, *product.offsets)
    plain = product.batch == 1 and product.alpha == 1.0
    if not plain or not numbers or product.transposed[1]:
        return None
    k, (m, n, lda, ldb, ldc, a_start, b_start, c_start) = product.k, numbers
    terms, most = (k, MOST_BYTES) if isinstance(k, int) else (LEAST_TERMS, MOST_UNKNOWN)
    fits = m > 0 and m % LONG_ROWS == 0 and n % lanes == 0 and (ldc, c_start) == (n, 0)
    enough = LEAST_TERMS <= terms <= DEPTH  # with more the update is little beside them
    if not fits or not enough or terms * n * dtype.itemsize > most:
        return None
    steps = (1, lda) if product.transposed[0] else (lda, 1)
    near = m * n * dtype.itemsize <= FAR_BYTES
    return Update(
        bits=8 * dtype.itemsize,
        lanes=lanes,
        rows=m,
        columns=n,
        part=PART_COLUMNS if near and n % PART_COLUMNS == 0 and n >= FEW_PARTS * PART_COLUMNS else 0,
        terms=k if isinstance(k, int) else -1,
        a_start=a_start,
        a_row=steps[0],
        a_term=steps[1],
        b_start=b_start,
        b_row=ldb,
        program=(),
    )


def _whole(*dims: Dim) -> tuple[int, ...] | None:
    """Numbers that are all known."""
    found = tuple(dim for dim in dims if isinstance(dim, int))
    return found if len(found) == len(dims) else None


def _elements(scheme: Update) -> int:
    """Of the result, for an index of axis 0."""
    if scheme.part:
        return scheme.rows * scheme.part
    return LONG_ROWS * scheme.columns


def _reach_of_result(scheme: Update) -> Reach:
    if scheme.part:
        last = (scheme.rows - 1) * scheme.columns + scheme.part - 1
        return Reach(scheme.part, 0, last)
    block = LONG_ROWS * scheme.columns
    return Reach(block, 0, block - 1)


def _reach_of_a(product: GemmKernel, scheme: Update) -> Reach:
    """What an index reads of the left factor: all, or that of LONG_ROWS rows."""
    (lda, *_), (start, *_), k = product.ld, product.offsets, product.k
    if scheme.part:
        rows, row = (k, scheme.rows) if product.transposed[0] else (scheme.rows, k)
        return Reach(0, start, start + (rows - 1) * lda + row - 1)
    if product.transposed[0]:
        return Reach(LONG_ROWS, start, start + (k - 1) * lda + LONG_ROWS - 1)
    return Reach(LONG_ROWS * lda, start, start + (LONG_ROWS - 1) * lda + k - 1)


def _program(loop: LoopKernel, made: int, reach: Reach) -> _Program | None:
    """The steps of a loop over elements; None where it does something else."""
    *before, last = loop.body
    if not isinstance(last, Loop) or last.axis != 0 or last.polled:
        return None
    writing = _Writing(loop, made, reach)
    for statement in (*before, *last.body):
        if not writing.take(statement):
            return None
    return writing.program()


class _Writing:
    """The steps of a loop that have been written."""

    def __init__(self, loop: LoopKernel, made: int, reach: Reach) -> None:
        self.loop, self.made, self.reach = loop, made, reach
        self.dtype = next(o.dtype for o in loop.operands if o.buffer == made)
        self.steps: list[Act] = []
        self.value: dict[int, int] = {}  # of the loop -> the step that makes it
        self.wide: dict[int, tuple[int, int]] = {}
        self.place: dict[int, int] = {}  # buffer -> operand
        self.operands: list[Operand] = []
        self.reaches: list[Reach] = []

    def program(self) -> _Program:
        """All of them."""
        return _Program(tuple(self.steps), tuple(self.operands), tuple(self.reaches))

    def take(self, statement: Statement) -> bool:
        """Write a statement; False where that cannot be."""
        match statement:
            case Number() if statement.dtype == self.dtype:
                number = float(statement.value)
                self.value[statement.result] = len(self.steps)
                self.steps.append(Act("number", (), number))
                return isfinite(number)
            case Load():
                return self._load(statement)
            case Store():
                return self._store(statement)
            case Compute() if statement.dtype == self.dtype and not statement.attrs:
                return self._compute(statement)
        return False

    def _add(self, result: int, name: str, *args: int) -> bool:
        self.value[result] = len(self.steps)
        self.steps.append(Act(name, args))
        return True

    def _load(self, load: Load) -> bool:
        operand = self.loop.operands[load.access.operand]
        steps, start = load.access.strides, load.access.offset
        if load.access.operand < 0 or load.access.dynamic or not isinstance(start, int):
            return False
        if load.dtype != self.dtype:
            return self._load_wide(load, operand, start)
        if operand.buffer == self.made:
            return steps == (1,) and start == 0 and self._add(load.result, "product")
        if steps not in ((0,), (1,)) or (steps == (1,) and start != 0):
            return False
        number = self._operand(operand, "read", steps == (1,), start)
        if steps == (0,):
            return number >= 0 and self._add(load.result, "single", number, start)
        return number >= 0 and self._add(load.result, "element", number)

    def _load_wide(self, load: Load, operand: Operand, start: int) -> bool:
        """One number of float64, which the loop then rounds: a learning rate."""
        if load.dtype != FLOAT64 or load.access.strides != (0,):
            return False
        number = self._operand(operand, "read", False, start)
        self.wide[load.result] = number, start
        return number >= 0

    def _store(self, store: Store) -> bool:
        access = store.access
        operand = self.loop.operands[access.operand]
        plain = access.operand >= 0 and not access.dynamic and not operand.per_chunk
        if not plain or access.strides != (1,) or access.offset != 0:
            return False
        if operand.dtype != self.dtype:
            return False
        number = self._operand(operand, "write", True, 0)
        if number < 0:
            return False
        self.steps.append(Act("store", (number, self.value[store.value])))
        return True

    def _compute(self, compute: Compute) -> bool:
        if compute.template == CAST and compute.args[0] in self.wide:
            return self._add(compute.result, "rounded", *self.wide[compute.args[0]])
        if any(argument not in self.value for argument in compute.args):
            return False
        places = [self.value[argument] for argument in compute.args]
        if compute.template == COPY:
            self.value[compute.result] = places[0]
            return True
        name = OPERATIONS.get(compute.template)
        return name is not None and self._add(compute.result, name, *places)

    def _operand(self, operand: Operand, mode: Mode, moves: bool, start: int) -> int:
        """The operand of a buffer; -1 where it would be read in two ways."""
        reach = self.reach if moves else Reach(0, start, start)
        number = self.place.setdefault(operand.buffer, len(self.operands))
        if number == len(self.operands):
            self.operands.append(replace(operand, mode=mode))
            self.reaches.append(reach)
        elif self.reaches[number] != reach:
            return -1
        elif self.operands[number].mode != mode:
            self.operands[number] = replace(operand, mode="update")
        return number
