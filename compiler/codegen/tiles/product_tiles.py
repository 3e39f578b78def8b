"""Register tiles of matrix products, as vector IR.

A tile is a few rows by a few registers of C, whose sums stay in registers while k runs:
a row of B is loaded, elements of A are broadcast from any stride, so A may be stored
either way. One tile per processor is the largest (see `plan_of`); rows that are left
over take smaller ones, columns that are left over are masked. Tiles of few sums add
several terms apart, so that additions do not wait for each other.

B whose rows are not contiguous is copied into a panel first, transposed square by
square in registers. With few rows that does not pay: `dots` then sums along k in the
lanes and adds the lanes at the end.

Arguments are addresses, strides in elements, and counts; the type of `alpha` is that of
the matrices. No instruction has a fast-math flag, nothing is skipped where A or B is 0,
so NaNs and infinities arrive; C is read only if beta is not 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import types
from numba.core import cgutils

from staticgrad.compiler.codegen.llvm.intrinsics import taking
from staticgrad.compiler.codegen.llvm.ir_emitter import Value
from staticgrad.compiler.codegen.llvm.vectors import VectorLanes
from staticgrad.compiler.host import processor
from staticgrad.compiler.host.numba_internals import target

_LONG = types.int64
LONG_ROWS = 16  # of a tile where there are 32 registers of 64 bytes
_CHAINS = 8  # sums in flight: two multiply-adds a cycle of four cycles each


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Sizes of the largest tile, rows by registers, and of the highest of one register.

    And whether masks are instructions.
    """

    rows: int
    vectors: int
    high: int
    masks: bool


def plan_of() -> TilePlan:
    """Return tile sizes for 32 registers of 64 bytes, 16 of 32, or 16 bytes.

    16 x 1 of 64 bytes takes fewer instructions for a term than 8 x 2, because
    AVX-512's multiply-add broadcasts the element of A itself.
    """
    width = processor.vector_bytes()
    if width == 64:
        return TilePlan(LONG_ROWS, 1, high=LONG_ROWS, masks=True)
    if width == 32:
        return TilePlan(6, 2, high=12, masks=True)
    many = target().triple.startswith(("aarch64", "arm64"))  # 32 registers
    return TilePlan(*((8, 2, 16) if many else (4, 2, 8)), masks=False)


def on_lanes(
    form: str, emit: Callable[[VectorLanes, Any], Any], result: Any = types.void
) -> Any:
    """An intrinsic of arguments that are "i", integers, or "n", numbers of one type.

    ``emit(v, args)`` makes its result with registers of such numbers.
    """

    def definition(_typing: Any, *kinds: Any) -> Any:
        number = kinds[form.index("n")]

        def generate(context: Any, b: Any, _signature: Any, args: Any) -> Any:
            found = emit(VectorLanes(b, number.bitwidth), args)
            return context.get_dummy_value() if found is None else found

        return result(*(number if i == "n" else _LONG for i in form)), generate

    return taking(len(form), definition)


def constant(value_of: Any) -> Any:
    """A function of alpha that is a number: `value_of` the registers of its type."""
    return on_lanes("n", lambda v, _: v.whole(value_of(v)), _LONG)


element_bytes = constant(lambda v: v.size)
lanes_of = constant(lambda v: v.count)
rows_of = constant(lambda v: plan_of().rows)
high_of = constant(lambda v: plan_of().high)
vectors_of = constant(lambda v: plan_of().vectors)


def write_tile(
    v: VectorLanes, sums: list[Value], places: list[Value], masks: list[Value | None],
    alpha: Value, beta: Value, clipped: bool,
) -> None:  # fmt: skip
    """Emit ``C = alpha * sums + beta * C``; C is not read if beta is 0.

    If clipped, places name one row several times: all are read before any is written.
    So it is with masks, because a masked store delays a load from the lanes that it
    leaves out (rows of ten float32: 70 GF/s instead of 51). To multiply by 1 would take
    a sixtieth of the time of 64 terms.
    """
    b, wide_alpha, wide_beta = v.b, v.splat(alpha), v.splat(beta)
    cells = list(zip(sums, places, masks, strict=True))

    def is_number(factor: Value, number: float) -> Value:
        return b.fcmp_ordered("==", factor, factor.type(number))

    with b.if_else(is_number(beta, 0.0)) as (fresh, added):
        with fresh, b.if_else(is_number(alpha, 1.0)) as (plain, scaled):
            with plain:
                for total, place, mask in cells:
                    v.store(total, place, mask)
            with scaled:
                for total, place, mask in cells:
                    v.store(b.fmul(total, wide_alpha), place, mask)
        with added:
            first = clipped or masks[-1] is not None
            for group in [cells] if first else [[cell] for cell in cells]:
                before = [b.fmul(v.load(p, m), wide_beta) for _, p, m in group]
                for (total, place, mask), old in zip(group, before, strict=True):
                    v.store(v.fma(total, wide_alpha, old), place, mask)


class _Tile:
    """Emitter of one tile: `rows` x `vectors`, the last register masked or not.

    `left` is how many rows there are; where it may be less than `rows` (`clipped`), the
    last one stands in for those that are not there.
    """

    def __init__(
        self,
        v: VectorLanes,
        rows: int,
        vectors: int,
        args: Any,
        masked: bool,
        clipped: bool,
    ) -> None:
        (self.a, self.a_row, self.a_step, self.b, self.b_step, self.c, self.c_row,
         self.k, self.alpha, self.beta, columns, left) = args  # fmt: skip
        self.v, self.rows, self.vectors, self.clipped = v, rows, vectors, clipped
        self.numbers = [v.whole(i) for i in range(rows)]
        if clipped:
            last = v.b.sub(left, v.whole(1))
            self.numbers = [v.least(i, last) for i in self.numbers]
        self.masks: list[Value | None] = [None] * vectors
        if masked:
            done = v.whole((vectors - 1) * v.count)
            self.masks[-1] = v.below(v.b.sub(columns, done))

    def emit(self) -> None:
        v, b = self.v, self.v.b
        terms = max(1, _CHAINS // (self.rows * self.vectors))
        sums = [
            [v.variable(v.zeros()) for _ in range(self.rows * self.vectors)]
            for _ in range(terms)
        ]
        size = v.whole(v.size)
        rows = [b.mul(b.mul(self.a_row, i), size) for i in self.numbers]
        rounds = b.sdiv(self.k, v.whole(terms)) if terms > 1 else self.k
        with cgutils.for_range(b, rounds) as loop:
            for term in range(terms):
                k = b.add(b.mul(loop.index, v.whole(terms)), v.whole(term))
                self._add(k, rows, sums[term])
        if terms > 1:
            start = b.mul(rounds, v.whole(terms))
            with cgutils.for_range_slice(b, start, self.k, v.whole(1)) as (k, _):
                self._add(k, rows, sums[0])
        write_tile(
            v, [self._total(column) for column in zip(*sums, strict=True)],
            self._places(), self.masks * self.rows, self.alpha, self.beta, self.clipped,
        )  # fmt: skip

    def _add(self, k: Value, rows: list[Value], sums: list[Value]) -> None:
        """Add the k-th term of every sum."""
        v, b = self.v, self.v.b
        left = v.at(self.a, b.mul(k, self.a_step))
        right = v.at(self.b, b.mul(k, self.b_step))
        across = [
            v.load(b.add(right, v.whole(j * v.count * v.size)), self._b_mask(j))
            for j in range(self.vectors)
        ]
        for i, row in enumerate(rows):
            x = v.splat(v.number(b.add(left, row)))
            for j, y in enumerate(across):
                place = sums[i * self.vectors + j]
                b.store(v.fma(x, y, b.load(place)), place)

    def _b_mask(self, vector: int) -> Value | None:
        """Return the mask of a register of B; None where panels are padded."""
        return self.masks[vector] if plan_of().masks else None

    def _total(self, terms: tuple[Value, ...]) -> Value:
        found = [self.v.b.load(term) for term in terms]
        while len(found) > 1:
            pairs = zip(found[0::2], found[1::2], strict=True)
            found = [self.v.b.fadd(x, y) for x, y in pairs]
        return found[0]

    def _places(self) -> list[Value]:
        v, b = self.v, self.v.b
        starts = [v.at(self.c, b.mul(self.c_row, i)) for i in self.numbers]
        return [
            b.add(start, v.whole(j * v.count * v.size))
            for start in starts
            for j in range(self.vectors)
        ]


def _tile(
    size_of: Callable[[TilePlan], tuple[int, int]],
    masked: bool = False,
    clipped: bool = False,
) -> Any:
    """Return a tile's intrinsic: ``C = alpha A B + beta C`` for up to its size."""

    def emit(v: VectorLanes, args: Any) -> None:
        _Tile(v, *size_of(plan_of()), args, masked, clipped).emit()

    return on_lanes("iiiiiiiinnii", emit)


WIDE = 4  # registers of a tile of two rows
FEW = 4  # rows of the tile for those that are left over

tile_full = _tile(lambda p: (p.rows, p.vectors))
tile_few = _tile(lambda p: (FEW, p.vectors), clipped=True)
tile_two = _tile(lambda _: (2, WIDE))
tile_one = _tile(lambda p: (1, p.vectors))
edge_full = _tile(lambda p: (p.high, 1), masked=True)
edge_few = _tile(lambda p: (FEW, 1), masked=True, clipped=True)
edge_two = _tile(lambda _: (2, 1), masked=True)
edge_one = _tile(lambda p: (1, 1), masked=True)


def _copy_row(v: VectorLanes, args: Any) -> None:
    """One row of a panel, filled up with zeros behind `columns`."""
    source, panel, columns, _ = args
    for j in range(plan_of().vectors):
        done = v.whole(j * v.count)
        mask = v.below(v.b.sub(columns, done))
        v.store(v.load(v.at(source, done), mask), v.at(panel, done))


copy_row = on_lanes("iiin", _copy_row)


def _row_places(
    v: VectorLanes, start: Value, step: Value, rows: Value, count: int
) -> list[Value]:
    """Return addresses of `count` rows; those past the last are the last."""
    last = v.b.sub(rows, v.whole(1))
    numbers = [v.least(v.whole(i), last) for i in range(count)]
    return [v.at(start, v.b.mul(number, step)) for number in numbers]


def _square(masked: bool) -> Any:
    """A square of B^T into the panel, whose rows are `width` apart.

    Of `source` at most `rows` rows are read, and `depth` elements if masked.
    """

    def emit(v: VectorLanes, args: Any) -> None:
        source, step, rows, depth, panel, width, _ = args
        mask = v.below(depth) if masked else None
        places = _row_places(v, source, step, rows, v.count)
        found = [v.load(place, mask) for place in places]
        for k, column in enumerate(v.transposed(found)):
            v.store(column, v.at(panel, v.b.mul(width, v.whole(k))))

    return on_lanes("iiiiiin", emit)


square_full, square_edge = _square(False), _square(True)


MANY = 1 << 10  # as many as there are lanes


class Dots:
    """Emitter of products of `rows` rows of A with as many rows of B^T as fit.

    As many sums as there are lanes, so that adding up the lanes of all of them gives
    one register. Where `most` rows of B^T are fewer than fit, each has several sums, of
    every so many registers of terms.
    """

    def __init__(self, v: VectorLanes, rows: int, most: int, args: Any) -> None:
        (a, self.a_row, b, b_row, self.c, self.c_row, self.k, self.alpha, self.beta,
         self.columns, self.left) = args  # fmt: skip
        self.v, self.rows = v, min(rows, v.count)
        self.across = min(v.count // self.rows, most)
        self.terms = v.count // (self.rows * self.across)
        self.a = _row_places(v, a, self.a_row, self.left, self.rows)
        self.b = _row_places(v, b, b_row, self.columns, self.across)

    def emit(self) -> None:
        """Emit all terms, then the sums of the lanes."""
        v, b = self.v, self.v.b
        sums = [v.variable(v.zeros()) for _ in range(v.count)]
        step, own = v.count * self.terms, self.rows * self.across
        rounds = b.sdiv(self.k, v.whole(step))
        with cgutils.for_range(b, rounds) as loop:
            for term in range(self.terms):
                start = b.add(b.mul(loop.index, v.whole(step)), v.whole(term * v.count))
                self.add(start, None, sums[term * own :])
        done = b.mul(rounds, v.whole(step))
        with cgutils.for_range_slice(b, done, self.k, v.whole(v.count)) as (start, _):
            self.add(start, v.below(b.sub(self.k, start)), sums)
        total, apart = v.sums([b.load(place) for place in sums]), v.count
        while apart > own:
            apart //= 2
            turned = [(lane + apart) % v.count for lane in range(v.count)]
            total = b.fadd(total, v.shuffle(total, total, turned))
        self.write(total)

    def write(self, total: Value) -> None:
        """Store the sums from a register that has those of a row side by side."""
        v = self.v
        order = list(range(v.count))
        totals = [
            v.shuffle(total, total, order[i * self.across :] + order[: i * self.across])
            for i in range(self.rows)
        ]
        places = _row_places(v, self.c, self.c_row, self.left, self.rows)
        most = v.least(self.columns, v.whole(self.across))
        masks = [v.below(most)] * self.rows
        write_tile(v, totals, places, masks, self.alpha, self.beta, clipped=True)

    def add(self, start: Value, mask: Value | None, sums: list[Any]) -> None:
        """Add a register of terms of every row, from `start` on."""
        v = self.v
        right = [v.load(v.at(place, start), mask) for place in self.b]
        for i, place in enumerate(self.a):
            x = v.load(v.at(place, start), mask)
            for j, y in enumerate(right):
                total = sums[i * self.across + j]
                v.b.store(v.fma(x, y, v.b.load(total)), total)


def _dots(rows: int, most: int = MANY) -> Any:
    """Compute ``C = A B^T`` for up to so many rows, both contiguous along k."""
    return on_lanes("iiiiiiinnii", lambda v, args: Dots(v, rows, most, args).emit())


dots_1, dots_2, dots_4 = _dots(1), _dots(2), _dots(4)
dots_long, dots_pair = _dots(1, FEW), _dots(1, 1)
