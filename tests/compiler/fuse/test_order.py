"""Order: valid, never worse than given, good where the best order is known."""

import itertools
import random
import time

import pytest

from staticgrad.compiler.fuse.order import Task, order, peak_bytes
from staticgrad.errors import CompilerBug


def random_tasks(rng: random.Random, count: int, window: int = 10**9):
    """Tasks in a random valid order; task n writes value n, reads a few before it."""
    tasks, sizes = [], []
    for number in range(count):
        low = max(0, number - window)
        reads = sorted({rng.randrange(low, number) for _ in range(rng.randint(0, 3))}
                       if number else ())  # fmt: skip
        tasks.append(Task(tuple(reads), (number,), tuple(reads)))
        sizes.append(rng.choice((0, 64, 256, 1024, 4096)))
    return tasks, sizes


def assert_valid(tasks, found):
    assert sorted(found) == list(range(len(tasks)))
    place = {number: index for index, number in enumerate(found)}
    for number, task in enumerate(tasks):
        assert all(place[other] < place[number] for other in task.after)


def valid_orders(tasks):
    for found in itertools.permutations(range(len(tasks))):
        place = {number: index for index, number in enumerate(found)}
        if all(place[a] < place[n] for n, t in enumerate(tasks) for a in t.after):
            yield found


def test_valid_and_never_worse_than_given():
    rng = random.Random(1)
    for _ in range(200):
        tasks, sizes = random_tasks(rng, rng.randint(1, 40), rng.choice((3, 10**9)))
        keep = tuple(rng.sample(range(len(tasks)), rng.randint(0, len(tasks) // 4)))
        found = order(tasks, sizes, keep)
        assert_valid(tasks, found)
        given = peak_bytes(tasks, sizes, range(len(tasks)), keep)
        assert peak_bytes(tasks, sizes, found, keep) <= given


def test_close_to_the_best_of_all_orders():
    rng = random.Random(2)
    ratios = []
    for _ in range(40):
        tasks, sizes = random_tasks(rng, rng.randint(4, 7))
        best = min(peak_bytes(tasks, sizes, found) for found in valid_orders(tasks))
        peak = peak_bytes(tasks, sizes, order(tasks, sizes))
        assert peak >= best
        ratios.append(peak / best if best else 1.0)
    assert sum(ratio == 1.0 for ratio in ratios) >= 38
    assert max(ratios) <= 1.25


def test_two_branches_one_after_the_other():
    # each branch: a big value, reduced to a small one; given interleaved
    tasks = [
        Task((), (0,), ()),
        Task((), (1,), ()),
        Task((0,), (2,), (0,)),
        Task((1,), (3,), (1,)),
        Task((2, 3), (4,), (2, 3)),
    ]
    sizes = [1000, 1000, 8, 8, 8]
    assert peak_bytes(tasks, sizes, range(5)) == 2008
    assert peak_bytes(tasks, sizes, order(tasks, sizes)) == 1016


def test_weight_gradient_consumed_by_its_update():
    # cotangents 0..n-1 in a chain; each gives a big weight gradient and an update of it
    n = 6
    tasks = [Task((i - 1,) if i else (), (i,), (i - 1,) if i else ()) for i in range(n)]
    tasks += [Task((i,), (n + i,), (i,)) for i in range(n)]
    tasks += [Task((n + i,), (), (n + i,)) for i in range(n)]
    sizes = [8] * n + [1000] * n
    assert peak_bytes(tasks, sizes, order(tasks, sizes)) <= 1000 + 8 * n


def test_several_writers_and_kept_values():
    # 0 and 1 write into value 0, which is kept; 2 and 3 make and use a big value
    tasks = [
        Task((), (0,), ()),
        Task((), (0,), (0,)),
        Task((), (1,), ()),
        Task((1,), (), (2,)),
    ]
    sizes = [100, 1000]
    found = order(tasks, sizes, keep=(0,))
    assert_valid(tasks, found)
    assert peak_bytes(tasks, sizes, found, keep=(0,)) == 1000


def test_tasks_given_before_what_they_need():
    tasks = [Task((1,), (0,), (1,)), Task((), (1,), ())]
    assert order(tasks, [64, 64]) == [1, 0]


def test_nothing_to_order():
    assert order([], []) == []
    assert order([Task((), (), ())], []) == [0]


def test_a_circle_is_a_bug():
    tasks = [Task((), (), (1,)), Task((), (), (0,))]
    with pytest.raises(CompilerBug, match="without a circle"):
        order(tasks, [])


def test_the_same_order_every_time():
    tasks, sizes = random_tasks(random.Random(3), 200)
    assert order(tasks, sizes) == order(list(tasks), list(sizes))


@pytest.mark.parametrize(("count", "seconds"), [(10_000, 1.0), (30_000, 3.0)])
def test_time_is_nearly_linear(count, seconds):
    tasks, sizes = random_tasks(random.Random(4), count, window=50)
    begin = time.process_time()
    assert_valid(tasks, order(tasks, sizes))
    assert time.process_time() - begin < 4 * seconds


def test_one_value_read_by_all():
    count = 10_000
    tasks = [Task((), (0,), ())]
    tasks += [Task((0,), (n,), (0,)) for n in range(1, count)]
    tasks.append(Task(tuple(range(1, count)), (), tuple(range(1, count))))
    begin = time.process_time()
    assert_valid(tasks, order(tasks, [64] * count))
    assert time.process_time() - begin < 4.0
