"""verify_plan notices whatever is corrupted in a valid Plan."""

import random
from dataclasses import replace

import numpy as np
import pytest
from random_schedules import F32, Builder, parameter, random_schedule

from staticgrad.compiler.memory.planner import plan
from staticgrad.compiler.verify.verify_plan import verify_plan
from staticgrad.compiler.verify.verify_schedule import verify_schedule
from staticgrad.errors import CompilerBug


@pytest.fixture(scope="module")
def made():
    """Two vectors a and b alive together, a sum in several chunks, an update."""
    n = 1_000_000
    b = Builder()
    x = b.buffer("input", (n,), position=0)
    w = b.buffer("stored", (n,), leaf=parameter("w", np.zeros(n, np.float32)))
    a, c = b.buffer("temporary", (n,)), b.buffer("temporary", (n,))
    slots, total = b.buffer("slots", ()), b.buffer("temporary", ())
    out = b.buffer("output", (n,), position=0)
    unused = b.buffer("temporary", (n,))
    b.elementwise([x], a)  # 0
    b.elementwise([x, a], c)  # 1
    b.reduce(c, slots, total)  # 2 3
    b.elementwise([a, c], out)  # 4
    b.elementwise([c], w, "update")  # 5
    assert unused == 7
    schedule = b.schedule(5, (out,), (total,), (4 * n, 4 * n))
    verify_schedule(schedule)
    result = plan(schedule, {})
    verify_plan(result)
    return result


A, C, SLOTS, TOTAL, OUT, UNUSED = 2, 3, 4, 5, 6, 7


def changed(values, index, value):
    return (*values[:index], value, *values[index + 1 :])


def assert_noticed(broken, match):
    with pytest.raises(CompilerBug, match=match):
        verify_plan(broken)


def with_offset(made, buffer, offset):
    return replace(made, offsets=changed(made.offsets, buffer, offset))


def test_overlapping_offsets(made):
    assert_noticed(with_offset(made, A, made.offsets[C]), "overlap at kernel 1")
    assert_noticed(with_offset(made, A, made.offsets[C] + 64), "overlap|ends at")


def test_kernels_for_the_sizes_of_the_plan(made):
    schedule = made.schedule
    kernel = schedule.kernels[0]
    longer = replace(kernel, axes=(kernel.axes[0] + 1,))
    kernels = changed(schedule.kernels, 0, longer)
    broken = replace(made, schedule=replace(schedule, kernels=kernels))
    verify_plan(made, kernels=True)
    with pytest.raises(CompilerBug, match=r"accessed at 0\.\.1000000, it has 1000000"):
        verify_plan(broken, kernels=True)


def test_overlap_of_a_small_buffer_inside_of_a_large_one(made):
    assert_noticed(with_offset(made, TOTAL, made.offsets[C] + 640), "overlap at kernel")
    assert_noticed(with_offset(made, TOTAL, made.offsets[C]), "overlap at kernel")


def test_a_misaligned_offset(made):
    assert_noticed(with_offset(made, TOTAL, made.offsets[TOTAL] + 4), "multiple of 64")


def test_an_offset_outside_of_the_arena(made):
    assert_noticed(with_offset(made, TOTAL, -64), "multiple of 64")
    assert_noticed(with_offset(made, A, made.arena_bytes), "ends at")


def test_an_offset_for_what_is_not_in_the_arena(made):
    assert_noticed(with_offset(made, OUT, 0), "not in the arena")
    assert_noticed(with_offset(made, UNUSED, 0), "not in the arena")


@pytest.mark.parametrize("change", [-64, 64])
def test_a_wrong_arena(made, change):
    broken = replace(made, arena_bytes=made.arena_bytes + change)
    assert_noticed(broken, "ends at|an arena of")


@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_lower_bound(made, change):
    broken = replace(made, lower_bound_bytes=made.lower_bound_bytes + change)
    assert_noticed(broken, "lower bound")


def test_a_wrong_size(made):
    for buffer in (0, A, SLOTS, TOTAL):
        size = made.bytes[buffer] - 4
        broken = replace(made, bytes=changed(made.bytes, buffer, size))
        assert_noticed(broken, f"buffer {buffer} of {size} bytes")


@pytest.mark.parametrize(("name", "value"), [("first", 1), ("last", 3)])
def test_a_wrong_life(made, name, value):
    broken = replace(made, **{name: changed(getattr(made, name), A, value)})
    assert_noticed(broken, "buffer 2 lives 0..4")


def test_a_finite_buffer_that_dies_before_the_commit(made):
    broken = replace(made, last=changed(made.last, TOTAL, 3))
    assert_noticed(broken, "buffer 5 lives 3..5")


@pytest.mark.parametrize(
    ("kernel", "chunks", "match"),
    [
        (2, (1, 10), "do not cover"),
        (2, (0, 1), "do not cover"),
        (2, (3, 1_000_000), "too many"),
        (3, (0, 0), "its slots in"),
        (3, (2, 0), "its slots in"),
    ],
)
def test_wrong_chunks(made, kernel, chunks, match):
    assert_noticed(replace(made, chunks=changed(made.chunks, kernel, chunks)), match)


def test_chunks_of_a_kernel_that_cannot_be_cut(made):
    kernels = made.schedule.kernels
    serial = replace(kernels[2], parallel=False)
    schedule = replace(made.schedule, kernels=changed(kernels, 2, serial))
    assert_noticed(replace(made, schedule=schedule), "depend on each other")


def test_chunks_of_a_matrix_product():
    b = Builder()
    x, y = (b.buffer("input", (4, 4), position=n) for n in range(2))
    out = b.buffer("output", (4, 4), position=0)
    b.gemm(x, y, out, 4, 4, 4)
    product = plan(b.schedule(outputs=(out,)), {})
    verify_plan(product)
    assert_noticed(replace(product, chunks=((2, 2),)), "a matrix product")


def test_tables_of_wrong_length(made):
    assert_noticed(replace(made, offsets=made.offsets[:-1]), "offsets of 7 buffers")
    assert_noticed(replace(made, chunks=made.chunks[:-1]), "chunks of 5 kernels")


@pytest.mark.parametrize("proof", ["", "exact", "certainly"])
def test_a_wrong_proof(made, proof):
    assert made.proof == "bound"
    assert_noticed(replace(made, proof=proof), "proof")


def test_wrong_unplanned_bytes(made):
    assert_noticed(replace(made, unplanned_bytes=1), "unplanned bytes 1")


def test_slots_that_were_not_dropped():
    b = Builder()
    x = b.buffer("input", (10,), position=0)
    slots, out = b.buffer("slots", ()), b.buffer("output", (), position=0)
    b.reduce(x, slots, out)
    small = plan(b.schedule(outputs=(out,)), {})
    verify_plan(small)
    assert small.chunks[0][0] == 1
    assert_noticed(replace(small, bytes=changed(small.bytes, slots, 4)), "needs 0 x 4")
    assert_noticed(with_offset(small, slots, 0), "not in the arena")


def test_any_corrupted_offset_or_life_is_noticed():
    rng = random.Random(0)
    for _ in range(60):
        good = plan(random_schedule(rng, rng.randint(2, 30)), {})
        verify_plan(good)
        placed = [b for b, offset in enumerate(good.offsets) if offset >= 0]
        buffer = rng.choice(placed)
        for name in ("first", "last", "bytes"):
            table = getattr(good, name)
            broken = changed(table, buffer, table[buffer] + rng.choice((-1, 1)))
            assert_noticed(replace(good, **{name: broken}), f"buffer {buffer} ")
        others = [
            o
            for o in placed
            if o != buffer
            and good.first[o] <= good.last[buffer]
            and good.first[buffer] <= good.last[o]
        ]
        if others:
            place = good.offsets[rng.choice(others)]
            assert_noticed(with_offset(good, buffer, place), "overlap|ends at")
    assert good.schedule.buffers[0].dtype == F32
