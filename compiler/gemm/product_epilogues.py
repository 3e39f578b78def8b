"""Fuse elementwise updates into the product that computes their gradient.

The update of Adam is bound by the divider or by memory, a product by multiply-adds.
One after the other they take the sum of their times, and the gradient goes through
memory. Here ``g = A B`` and the loop that reads g become one kernel: while a tile of g
is summed, the tile before it is applied (epilogue_tiles.py), and g is never stored.

The loops are updates of leaves, and epilogues of products that are divided by columns,
such as the bias and the activation of a large layer: a worker finds its columns in its
own cache, of which half would else come from another's. Workers keep the columns of
cached weights from the forward product to the update.

Fusion requires that the loop alone reads g, element by element; that sizes are whole
tiles; and that B stays in a cache during the rows of g.
"""

from __future__ import annotations

from dataclasses import replace

from staticgrad.compiler.codegen.tiles.epilogue_tiles import DEPTH
from staticgrad.compiler.codegen.tiles.product_tiles import LONG_ROWS, plan_of
from staticgrad.compiler.gemm import blas, tile_driver
from staticgrad.compiler.gemm.tile_programs import Reaches, TileProgram, program_of
from staticgrad.compiler.host.processor import vector_bytes
from staticgrad.compiler.kernel_ir.kernels import (
    GemmKernel,
    LoopKernel,
    Reach,
    Scratch,
    Tiles,
)
from staticgrad.compiler.kernel_ir.schedule import (
    Schedule,
    Step,
    reads,
    stored_by,
    with_makers,
    writes,
)
from staticgrad.compiler.kernel_ir.schemes import Act, Update
from staticgrad.ir.size import MINIBATCH, Dim, guessed

LEAST_TERMS = 16  # rows of a tile, one of which is applied after some terms
MOST_TERMS = 512  # beyond, an update's share of the time is small
MOST_BYTES = 1 << 22  # of B
FAR_C_BYTES = 1 << 20  # of C, which does not stay in a near cache then
FEW_PARTS = 4  # of so many columns, below which rows are shared out more evenly
MOST_UNKNOWN = LEAST_TERMS << 10  # of so many rows of B, if it may have any number
FLOPS_PER_COST = 3  # less than other products have (costs.py): shorter parts
COST = 2  # of an update's addition: as above, so that parts are as short as a product's

ADDING = (
    Act("product"),
    Act("element", (0,)),
    Act("add", (0, 1)),
    Act("store", (0, 2)),
)


def fuse_into_products(schedule: Schedule) -> Schedule:
    """Fuse loops of `schedule` into products, for 32 registers of 64 bytes."""
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


class _Merging:
    """Kernels that make and read each buffer of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.touched: dict[int, list[int]] = {}
        for position, kernel in enumerate(schedule.kernels):
            for operand in kernel.operands:
                self.touched.setdefault(operand.buffer, []).append(position)

    def product_of(self, position: int, kernel: Step) -> tuple[int, LoopKernel] | None:
        """Return the position of a loop's product, and both as one kernel."""
        if not isinstance(kernel, LoopKernel) or kernel.scratch or kernel.fails:
            return None
        merged_with = _updated if stored_by(self.schedule, kernel) else _followed
        for operand in kernel.operands:
            maker = self._maker(operand.buffer, position)
            if maker is None:
                continue
            product = self.schedule.kernels[maker]
            if isinstance(product, GemmKernel) and self._may_wait(
                maker, position, operand.buffer
            ):
                merged = merged_with(product, kernel, operand.buffer)
                if merged is not None:
                    return maker, merged
        return None

    def _maker(self, buffer: int, position: int) -> int | None:
        """Return the kernel that writes what only the one at `position` reads."""
        touched = self.touched[buffer]
        if len(touched) != 2 or self.schedule.buffers[buffer].kind != "temporary":
            return None
        if buffer in (*self.schedule.outputs, *self.schedule.finite):
            return None
        return touched[0] if touched[1] == position else None

    def _may_wait(self, maker: int, position: int, made: int) -> bool:
        """Whether the factors stay unchanged, and take no more memory than g would.

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
        """Return the bytes of a temporary, with typical values for unknown sizes."""
        buffer = self.schedule.buffers[number]
        if buffer.kind != "temporary":
            return 0
        return guessed(buffer.elements, MINIBATCH) * buffer.dtype.itemsize


def _updated(product: GemmKernel, loop: LoopKernel, made: int) -> LoopKernel | None:
    """Fuse a product and a loop that updates a leaf; None where they do not fit."""
    scheme = _tiled(product) if product.beta == 0.0 else None
    if scheme is None or scheme.terms > MOST_TERMS:
        return None
    return _merged(product, scheme, loop, made)


def _followed(product: GemmKernel, loop: LoopKernel, made: int) -> LoopKernel | None:
    """Fuse a parallel product and a loop that writes no leaf.

    Smaller products are part of regions, whose parts go through all kernels at once.
    """
    scheme = _tiled(product) if product.beta == 0.0 else None
    if scheme is None or not scheme.part or scheme.terms < 0:
        return None
    flops = 2 * scheme.rows * scheme.columns * scheme.terms
    if flops < 2 * tile_driver.FLOPS_PER_TILED_PART:
        return None
    return _merged(product, scheme, loop, made)


def _merged(
    product: GemmKernel, scheme: Update, loop: LoopKernel, made: int
) -> LoopKernel | None:
    m, n = scheme.rows, scheme.columns
    if loop.axes not in ((m * n,), (m, n)):
        return None
    program = program_of(loop, made, _reaches(scheme))
    if program is None:
        return None
    merged = _kernel(product, scheme, program)
    cost = loop.row_cost * (n if len(loop.axes) == 1 else 1)  # of a row
    share = _elements(scheme)
    return replace(
        merged,
        name=f"{product.name}_{loop.name}",
        sites=product.sites + loop.sites,
        row_cost=merged.row_cost + COST * (cost * share // n),
    )


def _added(product: GemmKernel) -> LoopKernel | None:
    """Return a product that adds to a large C, whose parts are prefetched."""
    scheme = _tiled(product) if product.beta == 1.0 else None
    *read, written = (operand.buffer for operand in product.operands)
    if scheme is None or written in read or scheme.terms > MOST_TERMS:
        return None
    if (
        not scheme.part
        and scheme.rows * scheme.columns * scheme.bits <= 8 * FAR_C_BYTES
    ):
        return None
    reach = _reaches(scheme).result
    return _kernel(product, scheme, TileProgram(ADDING, product.operands[2:], (reach,)))


def _kernel(product: GemmKernel, scheme: Update, program: TileProgram) -> LoopKernel:
    """Return a product whose result goes through a program."""
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
        row_cost=k * (flops // FLOPS_PER_COST),
    )


def _tiled(product: GemmKernel) -> Update | None:
    """Return the tiling of a product fused with its sums; None for partial tiles."""
    dtype = product.operands[0].dtype
    lanes = vector_bytes() // dtype.itemsize
    numbers = _whole(product.m, product.n, *product.ld, *product.offsets)
    plain = product.batch == 1 and product.alpha == 1.0
    if not plain or not numbers or product.transposed[1]:
        return None
    k, (m, n, lda, ldb, ldc, a_start, b_start, c_start) = product.k, numbers
    terms, most = (k, MOST_BYTES) if isinstance(k, int) else (LEAST_TERMS, MOST_UNKNOWN)
    fits = m > 0 and m % LONG_ROWS == 0 and n % lanes == 0 and (ldc, c_start) == (n, 0)
    if not fits or terms < LEAST_TERMS or terms * n * dtype.itemsize > most:
        return None
    steps = (1, lda) if product.transposed[0] else (lda, 1)
    width = tile_driver.PART_COLUMNS
    by_columns = n % width == 0 and n >= FEW_PARTS * width
    near = m * n * dtype.itemsize <= FAR_C_BYTES
    return Update(
        bits=8 * dtype.itemsize,
        lanes=lanes,
        rows=m,
        columns=n,
        part=width if near and by_columns else 0,
        terms=k if isinstance(k, int) else -1,
        depth=_depth(k, steps[1]),
        a_start=a_start,
        a_row=steps[0],
        a_term=steps[1],
        b_start=b_start,
        b_row=ldb,
        program=(),
    )


def _whole(*dims: Dim) -> tuple[int, ...] | None:
    """Return the numbers if all are known."""
    found = tuple(dim for dim in dims if isinstance(dim, int))
    return found if len(found) == len(dims) else None


def _elements(scheme: Update) -> int:
    """Return the elements of the result for an index of axis 0."""
    if scheme.part:
        return scheme.rows * scheme.part
    return LONG_ROWS * scheme.columns


def _depth(k: Dim, a_term: int) -> int:
    """Return the terms added up at a time, as in unfused products."""
    most = tile_driver.DEPTH_PLAIN if a_term == 1 else tile_driver.DEPTH_STRIDED
    if not isinstance(k, int):
        return DEPTH
    return blas.even_part(k, most, tile_driver.DEPTH_UNIT) if k > most else k


def _reaches(scheme: Update) -> Reaches:
    """Return the ranges that an index of axis 0 touches."""
    if scheme.part:
        last = (scheme.rows - 1) * scheme.columns + scheme.part - 1
        columns = Reach(scheme.part, 0, scheme.part - 1)
        return Reaches(Reach(scheme.part, 0, last), columns)
    block = LONG_ROWS * scheme.columns
    return Reaches(Reach(block, 0, block - 1), Reach(0, 0, scheme.columns - 1))


def _reach_of_a(product: GemmKernel, scheme: Update) -> Reach:
    """Return the range of the left factor that an index reads."""
    (lda, *_), (start, *_), k = product.ld, product.offsets, product.k
    if scheme.part:
        rows, row = (k, scheme.rows) if product.transposed[0] else (scheme.rows, k)
        return Reach(0, start, start + (rows - 1) * lda + row - 1)
    if product.transposed[0]:
        return Reach(LONG_ROWS, start, start + (k - 1) * lda + LONG_ROWS - 1)
    return Reach(LONG_ROWS * lda, start, start + (LONG_ROWS - 1) * lda + k - 1)
