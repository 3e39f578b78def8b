"""Long sums: how far they are from exact ones, and what their blocks have to keep.

A sum of which each term passes through h additions is off by at most h u sum(|x|), with
u half a unit in the last place of 1 (Higham, Accuracy and Stability of Numerical
Algorithms, section 4.2). The bounds here are that, with h from the lengths of blocks.
"""

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from random_schedules import F32, Builder

import staticgrad as sg
from staticgrad.compiler.gemm.tile_driver import dot_depth
from staticgrad.compiler.kernel_ir.chunks import MOST_CHUNKS
from staticgrad.compiler.kernel_ir.kernels import (
    ADD_UP,
    Access,
    Accumulate,
    Blocks,
    Compute,
    Initial,
    Load,
    Loop,
    LoopKernel,
    Operand,
    Rest,
    Store,
    is_polled,
)
from staticgrad.compiler.kernel_ir.walks import statements_of
from staticgrad.compiler.lower import blocked_sums
from staticgrad.compiler.lower.blocked_sums import BLOCKS, ROWS, TERMS, cascaded
from staticgrad.compiler.verify.verify_schedule import verify_schedule
from staticgrad.errors import CompilerBug
from staticgrad.ir.size import Size

LANES = 4  # of the smallest vectors, which share the terms of a block
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MOST = 1 << 21  # terms; more take longer and show the same


def additions(first, terms=MOST):
    """Count the partial sums of a term: its block, outer blocks, the rest, chunks."""
    return 2 * first + BLOCKS + terms / (first * BLOCKS) + MOST_CHUNKS


VECTORS = additions(TERMS) - 2 * TERMS + 2 * TERMS / LANES + math.log2(LANES)
ONE_BY_ONE = additions(ROWS)


def unit(dtype):
    """Half a unit in the last place, of what sums of a dtype are made in."""
    return 2.0**-53 if dtype == "float64" else 2.0**-24


def values(kind, shape, dtype):
    rng = np.random.default_rng(0)
    x = {
        "equal": lambda: np.full(shape, 0.1),
        "positive": lambda: rng.random(shape),
        "signed": lambda: rng.normal(size=shape),
        "large and small": lambda: 10.0 ** rng.uniform(-6, 6, shape),
    }[kind]()
    return x.astype(dtype)


def exact(x, axes):
    """The sum of a matrix's terms, rounded once."""
    wide = np.moveaxis(np.asarray(x, np.float64), axes, range(-len(axes), 0))
    rows = wide.reshape(*wide.shape[: wide.ndim - len(axes)], -1)
    return np.apply_along_axis(math.fsum, -1, rows)


REDUCTIONS = {
    # name: (shape, axes, additions of a term)
    "all": ((MOST,), (0,), VECTORS),
    "all, known": ((MOST,), (0,), VECTORS),
    "uneven": ((MOST - 3,), (0,), VECTORS),
    "rows": ((3, MOST // 3), (1,), VECTORS),
    "columns": ((MOST // 5, 5), (0,), ONE_BY_ONE),
    "many columns": ((MOST // 600, 600), (0,), ONE_BY_ONE),
    "in the middle": ((3, MOST // 12, 4), (1,), ONE_BY_ONE),
    "around": ((MOST // 124, 4, 31), (0, 2), ONE_BY_ONE + 31),
    "several rows": ((MOST // 124, 31, 4), (0, 1), ONE_BY_ONE),
}


@pytest.mark.parametrize("kind", ["equal", "positive", "signed", "large and small"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_sums_of_many_terms(name, kind):
    shape, axes, h = REDUCTIONS[name]
    known = name.endswith("known")
    symbols = tuple(n if known or n < 1000 else f"n{k}" for k, n in enumerate(shape))
    x = sg.input("x", symbols)
    f = sg.compile(sg.sum(x, axis=axes), inputs=[x])
    given = values(kind, shape, "float32")
    error = np.abs(f(given) - exact(given, axes))
    assert np.all(error <= h * unit("float32") * exact(np.abs(given), axes))


@pytest.mark.parametrize("dtype", ["float64", "float16", BFLOAT16])
@pytest.mark.parametrize("name", ["all", "columns"])
def test_every_dtype(name, dtype):
    """Halves are added up in float32, and rounded at the end."""
    shape, axes, h = REDUCTIONS[name]
    x = sg.input("x", tuple(n if n < 1000 else "n" for n in shape), dtype)
    f = sg.compile(sg.mean(x, axis=axes), inputs=[x])
    given = values("equal", shape, dtype)
    want = exact(given, axes) / math.prod(shape[a] for a in axes)
    rounding = 0 if dtype == "float64" else float(ml_dtypes.finfo(dtype).eps) / 2
    error = np.abs(f(given).astype("float64") - want)
    assert np.all(error <= (h * unit(dtype) + rounding) * want)


@pytest.mark.parametrize("n", [0, 1, 511, 512, 513, 1024, 1025, 32767, 40_000, 70_001])
@pytest.mark.parametrize("symbolic", [True, False])
def test_every_length_is_added_up_once(n, symbolic):
    """Whole numbers are exact in any order."""
    size = "n" if symbolic else n
    x, y = sg.input("x", (size,)), sg.input("y", (size, 3))
    outputs = [sg.sum(x), sg.sum(y, axis=0), sg.sum(y, axis=1), sg.sum(y[:, :2])]
    f = sg.compile(outputs, inputs=[x, y])
    a = np.random.default_rng(n).integers(-5, 5, n).astype("f4")
    b = np.random.default_rng(n).integers(-5, 5, (n, 3)).astype("f4")
    wants = a.sum(), b.sum(0), b.sum(1), b[:, :2].sum()
    for got, want in zip(f(a, b), wants, strict=True):
        assert np.array_equal(got, want)


def test_what_a_loop_computes_beside_its_sum():
    """Each element is written once, in whole blocks and in the rest."""
    x = sg.input("x", ("n",))
    e = sg.exp(x)
    f = sg.compile([e / sg.sum(e), sg.sum(sg.sin(x) * x)], inputs=[x])
    for n in (3, 512, 5000):
        given = values("signed", (n,), "float32")
        wide = given.astype("f8")
        softmax, total = f(given)
        want = np.exp(wide) / np.exp(wide).sum()
        np.testing.assert_allclose(softmax, want, 1e-6)
        np.testing.assert_allclose(total, (np.sin(wide) * wide).sum(), 1e-6)


@pytest.mark.parametrize("terms", [2048, 2047])
def test_what_follows_a_sum_in_its_row(terms):
    """Sines of far sums, long chains and draws: all in the loop with the blocks."""
    with sg.Graph():
        x = sg.input("x", (32, terms))
        total = sg.sum(x, axis=1)
        chain = total
        for _ in range(8):
            chain = sg.sin(chain + 1)
        noise = sg.random.uniform(sg.random.key(3), (32,))
        outputs = [sg.sin(total), chain, total * noise]
    given = {
        "x": np.repeat(2.0 ** np.arange(-10, 22, dtype="f4"), terms).reshape(32, -1)
    }
    wanted = sg.compile(outputs, target="reference")(**given)
    for found, want in zip(sg.compile(outputs)(**given), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_composites_are_as_accurate():
    """Variance, norm, log-sum-exp and the gradient of a bias are sums inside."""
    x, b = sg.input("x", ("n",)), sg.input("b", (3,))
    bias = sg.grad(sg.sum(sg.reshape(x, (-1, 1)) * b), b)
    outputs = [sg.var(x), sg.linalg.norm(x), sg.logsumexp(x), bias]
    f = sg.compile(outputs, inputs=[x, b])
    given = values("positive", (MOST,), "float32")
    wide = given.astype("f8")
    total = math.fsum(wide)
    wants = wide.var(), math.sqrt(math.fsum(wide * wide)), np.log(np.exp(wide).sum())
    for got, want in zip(f(given, np.zeros(3, "f4")), (*wants, total), strict=True):
        np.testing.assert_allclose(got, want, 2 * VECTORS * unit("float32"))


@pytest.mark.parametrize("kind", ["equal", "positive", "signed"])
def test_products_of_many_terms(kind):
    """Lanes share the terms of a part, whose sums are then added up."""
    depth = dot_depth(MOST)
    h = depth / LANES + math.log2(LANES) + MOST / depth + 2
    x, y = sg.input("x", ("n",)), sg.input("y", (3, "n"))
    f = sg.compile([sg.dot(x, x), y @ x, y @ y.T], inputs=[x, y])
    a = values(kind, (MOST,), "float32")
    b = np.stack([a, a[::-1], np.roll(a, 7)])
    wide, rows = a.astype("f8"), b.astype("f8")
    pairs = [(wide[None], wide[:, None]), (rows, wide[:, None]), (rows, rows.T)]
    for got, (left, right) in zip(f(a, b), pairs, strict=True):
        error = np.abs(got - (left @ right).reshape(got.shape))
        most = (np.abs(left) @ np.abs(right)).reshape(got.shape)
        assert np.all(error <= h * unit("float32") * most)


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_sums(axis, target):
    """The sum before a register is float64: what is rounded is in one register."""
    h = math.log2(64) + 2  # of the largest registers
    shape = (MOST // 3, 3) if axis == 0 else (3, MOST // 3)
    x = sg.input("x", tuple(n if n < 1000 else "n" for n in shape))
    f = sg.compile(sg.cumsum(x, axis=axis), inputs=[x], target=target)
    given = values("equal", shape, "float32")
    want = np.cumsum(given, axis, "f8")
    assert np.all(np.abs(f(given) - want) <= h * unit("float32") * want)


def test_the_reference_adds_up_in_pairs_over_any_axes():
    x = sg.input("x", ("n", 3, "m"))
    given = values("equal", (1 << 14, 3, 5), "float32")
    for axes in ((0,), (0, 1), (0, 2), (0, 1, 2), (1,), (2,)):
        f = sg.compile(sg.sum(x, axis=axes), inputs=[x], target="reference")
        want = exact(given, axes)
        assert np.all(np.abs(f(given) - want) <= 50 * unit("float32") * want)


def test_bits_do_not_depend_on_threads():
    """Scratch of a block is each worker's own."""
    x = sg.input("x", ("n", 7))
    f = sg.compile([sg.sum(x), sg.sum(x, axis=0), sg.cumsum(x)], inputs=[x])
    given = values("signed", (400_003, 7), "float32")
    before = sg.get_num_threads()
    found = set()
    for count in (1, 2, 1, 2):
        sg.set_num_threads(count)
        found.add(b"".join(y.tobytes() for y in f(given)))
    sg.set_num_threads(before)
    assert len(found) == 1


# The rewriting

N = Size.symbol("n")
TOTAL, TERM, OLD, NEW = range(4)


def sum_kernel(extent, dtype=F32, combine="add"):
    body = (
        Initial(TOTAL, combine, dtype),
        Loop(1, (Load(TERM, Access(0, (0, 1)), dtype),
                 Accumulate(TOTAL, combine, TERM, dtype))),
        Store(Access(1, (1, 0)), TOTAL),
    )  # fmt: skip
    operands = Operand(0, "read", dtype), Operand(1, "write", dtype)
    return LoopKernel("sum", (1, extent), operands, (), (Loop(0, body),), (), extent)


def columns_kernel(rows, columns):
    add = (
        Load(TERM, Access(0, (0, columns, 1)), F32),
        Load(OLD, Access(1, (0, 0, 1)), F32),
        Compute(NEW, ADD_UP, (OLD, TERM), F32),
        Store(Access(1, (0, 0, 1)), NEW),
    )
    body = (
        Initial(TOTAL, "add", F32),
        Loop(2, (Store(Access(1, (0, 0, 1)), TOTAL),)),
        Loop(1, (Loop(2, add),)),
    )
    operands = Operand(0, "read", F32), Operand(1, "write", F32)
    axes = 1, rows, columns
    return LoopKernel("sum", axes, operands, (), (Loop(0, body),), (), rows * columns)


@pytest.mark.parametrize(
    "kernel",
    [
        sum_kernel(2 * TERMS),
        sum_kernel(N, np.dtype("int64")),
        sum_kernel(N, combine="maximum"),
        columns_kernel(2 * ROWS, 64),
        columns_kernel(N, blocked_sums.WIDEST + 1),
    ],
    ids=["short", "integers", "maximum", "few rows", "wide"],
)
def test_left_alone(kernel):
    assert cascaded(kernel) is kernel


def test_known_lengths_have_the_blocks_that_they_need():
    def sizes(kernel):
        every = list(statements_of(cascaded(kernel).body))
        rests = sum(isinstance(s, Rest) for s in every)
        return [s.size for s in every if isinstance(s, Blocks)], rests

    assert sizes(sum_kernel(4 * TERMS)) == ([TERMS], 0)
    assert sizes(sum_kernel(4 * TERMS + 1)) == ([TERMS], 1)
    assert sizes(sum_kernel(N)) == ([BLOCKS * TERMS, TERMS], 1)
    assert sizes(columns_kernel(4 * ROWS, 8)) == ([ROWS], 0)


def test_loops_that_poll_for_a_stop_go_on_doing_so():
    x = sg.input("x", (1100,))
    y = sg.fori_loop(0, 10**7, lambda i, s: s / 2 + sg.sum(x * s), np.float32(1))
    (kernel,) = sg.compile(y, inputs=[x]).target.code.loops
    assert is_polled(kernel)
    assert any(isinstance(s, Blocks) for s in statements_of(kernel.body))


def test_sums_in_memory_have_scratch_for_a_block():
    areas = cascaded(columns_kernel(N, 8)).scratch
    assert [area.extent for area in areas] == [8, 8]


# What verify_schedule notices


def schedule(body, extent=4 * TERMS):
    b = Builder()
    x = b.buffer("input", (extent,), position=0)
    out = b.buffer("output", (1,), position=0)
    operands = Operand(x, "read", F32), Operand(out, "write", F32)
    b.loops("sum", (1, extent), operands, body)
    return b.schedule(outputs=(out,))


def changed(change, extent=4 * TERMS):
    """The schedule of a sum whose blocks are `change`d."""

    def apply(body):
        result = []
        for s in body:
            if isinstance(s, Loop | Rest | Blocks):
                s = replace(s, body=apply(s.body))
            result.extend(change(s))
        return tuple(result)

    return schedule(apply(cascaded(sum_kernel(extent)).body), extent)


def only(kind, **fields):
    def change(s):
        return (replace(s, **fields),) if isinstance(s, kind) else (s,)

    return change


def test_blocks_that_are_right():
    verify_schedule(changed(lambda s: (s,)))
    verify_schedule(changed(lambda s: (s,), extent=4 * TERMS + 1))


@pytest.mark.parametrize(
    ("change", "extent", "match"),
    [
        (only(Blocks, size=0), 2048, "no part"),
        (only(Blocks, size=3), 2048, "no part"),
        (only(Blocks, unit=3, size=3), 2048, "no part"),
        (only(Rest, unit=3), 2049, "no part"),
        (only(Rest, unit=256), 2049, "no part"),
        (lambda s: () if isinstance(s, Rest) else (s,), 2049, "no part"),
        (only(Blocks, axis=0), 2048, "inside of its loop"),
        (only(Blocks, body=()), 2048, "without a loop"),
        (
            lambda s: (
                (Blocks(s.axis, s.size, (s,), s.unit),)
                if isinstance(s, Blocks)
                else (s,)
            ),
            2048,
            "no part",
        ),
    ],
)
def test_blocks_that_are_not(change, extent, match):
    with pytest.raises(CompilerBug, match=match):
        verify_schedule(changed(change, extent))
