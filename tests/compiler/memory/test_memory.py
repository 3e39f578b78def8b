"""The planner: small arenas, proofs, speed, slots, and what lives how long."""

import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_schedules import (
    F32,
    Builder,
    lives_of,
    parameter,
    random_lives,
    random_schedule,
    random_tasks,
)

from staticgrad.compiler.memory import offsets, planner
from staticgrad.compiler.memory.exact_search import search
from staticgrad.compiler.memory.planner import arrange, live_peak, plan
from staticgrad.compiler.verify.verify_plan import verify_plan
from staticgrad.compiler.verify.verify_schedule import verify_schedule
from staticgrad.ir.size import Size


def conflict(first, last, a, b):
    return first[a] <= last[b] and first[b] <= last[a]


def assert_valid(sizes, first, last, found):
    """No two live buffers overlap, all lie in the arena, on multiples of 64."""
    assert all(offset % 64 == 0 and offset >= 0 for offset in found.offsets)
    assert found.arena_bytes % 64 == 0
    items = sorted(range(len(sizes)), key=lambda b: found.offsets[b])
    ends = [found.offsets[b] + sizes[b] for b in range(len(sizes))]
    assert max(ends, default=0) <= found.arena_bytes
    for place, a in enumerate(items):
        for b in items[place + 1 :]:
            if found.offsets[b] >= ends[a]:
                break
            assert not (sizes[a] and sizes[b] and conflict(first, last, a, b))


def smallest_arena(units, first, last):
    """By placing the buffers in every order, each as low as possible.

    Ends early where the arena is as small as what lives at one time.
    """
    best, bound = sum(units), live_peak(units, first, last)
    stack, seen = [((), 0)], set()
    while stack and best > bound:
        placed, top = stack.pop()
        if top >= best or frozenset(placed) in seen:
            continue
        seen.add(frozenset(placed))
        if len(placed) == len(units):
            best = top
            continue
        at = dict(placed)
        for b in sorted(set(range(len(units))) - set(at), key=units.__getitem__):
            low = lowest_offset(b, at, units, first, last)
            stack.append(((*placed, (b, low)), max(top, low + units[b])))
    return best


def lowest_offset(b, placed, units, first, last):
    low = 0
    taken = sorted((at, o) for o, at in placed.items() if conflict(first, last, b, o))
    for offset, other in taken:
        if offset >= low + units[b]:
            break
        low = max(low, offset + units[other])
    return low


def test_200_random_graphs_reach_the_bound():
    rng = random.Random(1)
    proofs = []
    for _ in range(200):
        sizes, first, last = random_lives(rng, rng.randint(5, 200))
        found = arrange(sizes, first, last)
        assert_valid(sizes, first, last, found)
        bound = live_peak(sizes, first, last)
        assert found.arena_bytes >= bound
        assert found.proof or found.arena_bytes / bound <= 1.02
        proofs.append(found.proof)
    assert sum(map(bool, proofs)) >= 180


def few_lives(rng, count):
    units = [rng.randint(1, 9) for _ in range(count)]
    first = [rng.randint(0, 9) for _ in range(count)]
    return units, first, [step + rng.randint(0, 5) for step in first]


def test_200_random_sets_of_few_buffers_have_the_smallest_arena():
    rng = random.Random(2)
    for _ in range(200):
        units, first, last = few_lives(rng, rng.randint(1, 12))
        sizes = [64 * size for size in units]
        found = arrange(sizes, first, last)
        assert_valid(sizes, first, last, found)
        assert found.arena_bytes == 64 * smallest_arena(units, first, last)
        assert found.proof in ("bound", "exact")


# Found by search: at most 12 units live at one time, but no arena of 12 will do.
ABOVE_THE_BOUND = (
    [5, 3, 4, 2, 7, 4, 2, 7],
    [4, 3, 4, 8, 9, 8, 6, 2],
    [4, 6, 8, 12, 12, 8, 9, 3],
)


def test_what_needs_more_than_the_bound_is_proven_by_search():
    units, first, last = ABOVE_THE_BOUND
    found = arrange([64 * size for size in units], first, last)
    assert found.proof == "exact"
    assert found.arena_bytes == 64 * 13 == 64 * smallest_arena(units, first, last)
    assert live_peak(units, first, last) == 12


def test_exact_search_alone_finds_the_smallest_arena():
    rng = random.Random(3)
    for lives in [ABOVE_THE_BOUND, *(few_lives(rng, 8) for _ in range(100))]:
        units, first, last = map(np.array, lives)
        found = units.cumsum() - units  # one upon the other
        assert search(units, first, last, found, 0, 10**9)
        assert max(found + units) == smallest_arena(*lives)


def test_exact_search_has_a_limit():
    units, first, last = map(np.array, ABOVE_THE_BOUND)
    found = units.cumsum() - units
    assert not search(units, first, last, found, 0, 5)
    assert found.tolist() == (units.cumsum() - units).tolist()


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(0, 20), st.integers(0, 9)),
        max_size=40,
    )
)
def test_any_lives_are_arranged(items):
    sizes = [size for size, _, _ in items]
    first = [begin for _, begin, _ in items]
    last = [begin + more for _, begin, more in items]
    found = arrange(sizes, first, last)
    assert_valid(sizes, first, last, found)
    assert found.arena_bytes >= live_peak(sizes, first, last)


def test_compiled_and_python_place_alike():
    rng = random.Random(3)
    for _ in range(20):
        lives = random_lives(rng, 40)
        python, native = improvable(*lives), improvable(*lives)
        assert offsets.improve(*python, 3) == planner._improve(*native, 3)
        assert python[-2].tolist() == native[-2].tolist()


def test_the_same_plan_before_and_after_loading_compiled_code(monkeypatch):
    rng = random.Random(8)
    lives = [random_lives(rng, 100) for _ in range(10)]
    planner._improve(*improvable(*lives[0]), 1)
    after = [arrange(*one) for one in lives]
    for one, plan_after in zip(lives, after, strict=True):
        monkeypatch.setattr(planner, "_improve", offsets.Compiled(offsets.improve))
        assert arrange(*one) == plan_after


def improvable(sizes, first, last):
    """Arguments of `improve`, but for the rounds: one order, one start, a stack."""
    units = [-(-size // 64) for size in sizes]
    items = planner._Items.of(units, first, last)
    area = items.units * (items.last - items.first + 1.0)
    lives = (items.units, items.first, items.last, items.born)
    found = items.units.cumsum() - items.units
    return (
        items.by_birth[None, :],
        area[None, :],
        *lives,
        found,
        live_peak(units, first, last),
    )


def test_1000_buffers_in_50_ms():
    tasks, sizes = random_tasks(random.Random(4), 1000)
    lives = lives_of(tasks, sizes, range(1000))
    arrange(*lives)  # compiles, or loads what has been compiled
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        found = arrange(*lives)
        seconds.append(time.process_time() - begin)
    assert_valid(*lives, found)
    assert min(seconds) < 0.2  # the goal, 0.05, is checked by benchmarks


@pytest.mark.parametrize("shape", ["chain", "nested"])
def test_long_chains_stay_fast(shape):
    count = 10_000
    rng = random.Random(5)
    sizes = [rng.randint(64, 4096) for _ in range(count)]
    first = list(range(count))
    last = [n + 1 if shape == "chain" else 2 * count - n for n in first]
    arrange(sizes[:100], first[:100], last[:100])
    begin = time.process_time()
    found = arrange(sizes, first, last)
    assert time.process_time() - begin < 8.0
    assert found.proof == "bound"


def test_the_same_plan_every_time():
    lives = random_lives(random.Random(6), 150)
    assert arrange(*lives) == arrange(*lives)


def test_a_cache_that_cannot_be_used_is_done_without(monkeypatch):
    def broken(function, nogil, cache=False):
        if cache:
            raise OSError("no space left on device")
        return function

    monkeypatch.setattr(offsets, "njit", broken)
    double = offsets.Compiled(lambda x: 2 * x)
    assert not double.is_ready
    assert double(2) == 4
    assert double.is_ready
    assert double(3) == 6


def chained(n=100_000, chunks=True):
    """input -> a -> sum -> output, with a temporary scalar."""
    b = Builder()
    x = b.buffer("input", (n,), position=0)
    a = b.buffer("temporary", (n,))
    b.elementwise([x], a)
    slots, total = b.buffer("slots", ()), b.buffer("temporary", ())
    b.reduce(a, slots, total)
    out = b.buffer("output", (), position=0)
    b.elementwise([total], out)
    return b.schedule(outputs=(out,), finite=(total,), unplanned=(n * 4, 4, 4))


def test_slots_have_one_slot_per_chunk():
    made = plan(chained(1_000_000), {})
    verify_plan(made)
    chunks = made.chunks[1][0]
    assert chunks > 1
    assert made.bytes[2] == 4 * chunks
    assert made.offsets[2] >= 0
    assert made.chunks[2] == (1, 0)
    assert (made.first[3], made.last[3]) == (2, 3)
    assert made.lower_bound_bytes == 4_000_000 + 4 * chunks
    assert made.unplanned_bytes == 4_000_008


def test_one_chunk_needs_no_slots():
    made = plan(chained(100), {})
    verify_plan(made)
    assert made.chunks[1:3] == ((1, 100), (0, 0))
    assert (made.bytes[2], made.offsets[2]) == (0, -1)
    assert (made.first[3], made.last[3]) == (1, 3)  # written by the sum itself


def test_symbolic_sizes_are_evaluated():
    schedule = chained(Size.symbol("n"))
    verify_schedule(schedule)
    for n in (0, 1, 1000, 3_000_000):
        made = plan(schedule, {"n": n})
        verify_plan(made)
        assert made.values == (("n", n),)
        assert made.bytes[1] == 4 * n


def test_outputs_and_finite_buffers_live_on():
    b = Builder()
    x = b.buffer("input", (64,), position=0)
    kept, checked, other = (b.buffer("temporary", s) for s in ((64,), (), (64,)))
    b.elementwise([x], kept)
    b.elementwise([], checked)
    b.elementwise([x], other)
    w = b.buffer("stored", (64,), leaf=parameter("w", np.zeros(64, np.float32)))
    b.elementwise([other], w)
    b.elementwise([x], b.buffer("output", (64,), position=1))
    schedule = b.schedule(3, outputs=(kept, 5), finite=(checked,))
    made = plan(schedule, {})
    verify_plan(made)
    assert (made.first[kept], made.last[kept]) == (0, 4)
    assert (made.first[checked], made.last[checked]) == (1, 3)
    assert made.offsets[x] == made.offsets[w] == made.first[w] == -1


def test_nothing_to_plan():
    made = plan(Builder().schedule(), {})
    verify_plan(made)
    assert (made.arena_bytes, made.lower_bound_bytes, made.proof) == (0, 0, "bound")


def test_buffers_without_elements_take_no_bytes():
    found = arrange([0, 100, 0], [0, 0, 0], [3, 3, 3])
    assert (found.arena_bytes, found.proof) == (128, "bound")


def test_random_schedules_pass_both_verifiers():
    rng = random.Random(7)
    for _ in range(40):
        schedule = random_schedule(rng, rng.randint(1, 60))
        verify_schedule(schedule)
        made = plan(schedule, {})
        verify_plan(made)
        assert made.proof or made.arena_bytes / made.lower_bound_bytes <= 1.02
    assert schedule.buffers[0].dtype == F32
