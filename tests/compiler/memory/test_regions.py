"""Kernels that workers run together: which ones may, and do they stay apart?"""

from dataclasses import replace

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.kernel_ir.kernels import GemmKernel, LoopKernel, Tiles
from staticgrad.compiler.kernel_ir.plan import Region
from staticgrad.compiler.verify.disjoint import check_regions
from staticgrad.compiler.verify.verify_plan import verify_plan
from staticgrad.errors import CompilerBug

ROWS, WIDTH = 48, 96
RNG = np.random.default_rng(8)
X = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = sg.get_num_threads()
    yield
    sg.set_num_threads(before)


def weights(number):
    value = np.random.default_rng(number).standard_normal((WIDTH, WIDTH)) / 10
    return sg.parameter(value.astype(np.float32), name=f"w{number}")


def layers(x, count=6, between=sg.tanh):
    for number in range(count):
        x = between(x @ weights(number))
    return x


def compiled(build, **options):
    with sg.Graph():
        x = sg.input("x", ("n", WIDTH))
        return sg.compile(build(x), inputs=[x], **options)


def regions(f, rows=ROWS):
    f(X[:rows])
    return f.memory.plan.regions


def test_small_layers_one_after_the_other_are_one_region():
    f = compiled(layers)
    (region,) = regions(f)
    assert region.stop - region.first == len(f.memory.plan.schedule.kernels) == 12
    assert (region.rows, region.parts) == (8, 6)


@pytest.mark.parametrize("rows", [32, 33, 47, 48])
@pytest.mark.parametrize(
    "between",
    [
        sg.tanh,
        lambda h: sg.softmax(h, axis=-1),
        lambda h: h - sg.mean(h, axis=1, keepdims=True) + X[0],
        lambda h: sg.concatenate([h[:, 48:], sg.sin(h[:, :48])], axis=1),
        lambda h: sg.tanh(h)[:, ::-1] * sg.sin(sg.sum(h, axis=1))[:, None],
    ],
)
def test_numbers_are_those_of_the_reference_and_of_one_thread(between, rows):
    f = compiled(lambda x: layers(x, between=between), poison=True)
    wanted = compiled(lambda x: layers(x, between=between), target="reference")(
        X[:rows]
    )
    found = []
    for threads in (1, 2):
        sg.set_num_threads(threads)
        found.append(f(X[:rows]))
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], wanted, rtol=2e-3, atol=2e-4)
    assert f.memory.plan.regions


def test_runs_after_runs_do_not_race():
    sg.set_num_threads(2)
    f = compiled(lambda x: layers(x, between=lambda h: sg.softmax(h, axis=-1)))
    first = f(X)
    for _ in range(300):
        np.testing.assert_array_equal(f(X), first)


def test_training_steps_have_the_same_bits_for_any_number_of_threads():
    found = []
    for threads in (1, 2):
        sg.set_num_threads(threads)
        with sg.Graph():
            x = sg.input("x", ("n", WIDTH))
            own = [weights(number) for number in range(6)]
            h = x
            for w in own:
                h = sg.tanh(h @ w)
            loss = sg.mean(h * h)
            updates = sg.optim.SGD(0.5).updates(sg.grad(loss, own), own)
            f = sg.compile(loss, inputs=[x], updates=updates)
        losses = [f(X) for _ in range(20)]
        assert f.memory.plan.regions
        found.append([np.array(losses), *(w.value for w in own)])
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_few_rows_and_little_work_make_no_region():
    assert not regions(compiled(layers), rows=8)
    assert not regions(compiled(lambda x: layers(x, count=1)), rows=16)


@pytest.mark.parametrize(
    "between",
    [
        lambda h: h[::-1],  # other rows
        lambda h: h - sg.mean(h, axis=0),  # all rows
        lambda h: h[1:],  # fewer rows
        lambda h: sg.roll(h, 3, axis=0),
    ],
)
def test_what_reads_other_rows_is_not_inside(between):
    f = compiled(lambda x: layers(between(sg.tanh(layers(x, 3))), 3))
    found = regions(f)
    plan = f.memory.plan
    verify_plan(plan)
    assert all(r.stop - r.first < len(plan.schedule.kernels) for r in found)
    sg.set_num_threads(2)
    wanted = compiled(
        lambda x: layers(between(sg.tanh(layers(x, 3))), 3), target="reference"
    )(X)
    np.testing.assert_allclose(f(X), wanted, rtol=2e-3, atol=2e-4)


# verify_plan notices what a wrong search could give


@pytest.fixture(name="plan")
def _plan():
    f = compiled(lambda x: layers(layers(x)[::-1]))
    assert regions(f)
    return f.memory.plan


def assert_noticed(plan, region, match):
    with pytest.raises(CompilerBug, match=match):
        verify_plan(replace(plan, regions=(region,)))


def test_a_region_over_kernels_that_read_other_rows_is_noticed(plan):
    region = plan.regions[0]
    last = next(
        position
        for position, kernel in enumerate(plan.schedule.kernels)
        if position >= region.stop and isinstance(kernel, GemmKernel)
    )
    wider = replace(region, stop=last + 1, per_row=(0,) * (last + 1 - region.first))
    assert_noticed(plan, wider, "parts that meet")


def test_a_region_in_parts_of_other_rows_is_noticed(plan):
    region = plan.regions[0]
    assert_noticed(plan, replace(region, rows=region.rows + 8), "parts that meet")
    assert_noticed(plan, replace(region, rows=0), "parts of 0 rows")


def test_a_region_over_a_kernel_of_one_index_is_noticed(plan):
    region, kernels = plan.regions[0], list(plan.schedule.kernels)
    inside = range(region.first, region.stop)
    place = next(k for k in inside if isinstance(kernels[k], LoopKernel))
    kernels[place] = replace(kernels[place], axes=(1, *kernels[place].axes[1:]))
    schedule = replace(plan.schedule, kernels=tuple(kernels))
    with pytest.raises(CompilerBug, match="of one index is part of a region"):
        check_regions(replace(plan, schedule=schedule))


def test_a_region_that_is_left_out_of_lives_is_noticed(plan):
    with pytest.raises(CompilerBug, match="lives"):
        verify_plan(replace(plan, regions=()))


def test_regions_that_meet_are_noticed(plan):
    twice = (plan.regions[0], plan.regions[0])
    with pytest.raises(CompilerBug, match="meets another"):
        verify_plan(replace(plan, regions=twice))


# Kernels of tiles touch memory, though they have no loads and stores of their own.


def turned(x, w):
    return (x @ w)[:, ::-1].T


@pytest.mark.parametrize("rows", [16, 32, 128])
@pytest.mark.parametrize("columns", [16, 128, 256])
def test_tiles_turn_what_all_parts_have_made(rows, columns):
    with sg.Graph():
        x, w = sg.input("x", (rows, 16)), sg.input("w", (16, columns))
        f = sg.compile(turned(x, w), [x, w], poison=True)
    data = RNG.normal(size=(rows, 16)), RNG.normal(size=(16, columns))
    data = tuple(array.astype(np.float32) for array in data)
    for threads in (1, 2, 3):
        sg.set_num_threads(threads)
        expected = (data[0] @ data[1])[:, ::-1].T
        np.testing.assert_allclose(f(*data), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("batch", "inputs"), [(16, 256), (32, 512), (48, 96)])
@pytest.mark.parametrize("policy", [None, "float16"])
def test_steps_have_equal_bits_for_any_threads(batch, inputs, policy):
    x = np.random.default_rng(1).normal(size=(batch, inputs)).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        sg.set_num_threads(threads)
        with sg.Graph(seed=0):
            given = sg.input("x", (batch, inputs))
            layer = sg.nn.Linear(inputs, 32), sg.nn.Linear(32, inputs)
            hidden = sg.tanh(layer[0](given))
            if policy:
                with sg.amp.Policy(policy):
                    hidden = sg.tanh(layer[0](given))
            loss = sg.mean((layer[1](hidden) - given) ** 2)
            w = [p for part in layer for p in part.parameters().values()]
            updates = sg.optim.SGD(0.1, momentum=0.9).updates(sg.grad(loss, w), w)
            step = sg.compile(loss, [given], updates, mode="train", poison=True)
        losses = [float(step(x)) for _ in range(5)]
        results.append((losses, [p.value.tobytes() for p in w]))
    assert results[0] == results[1] == results[2]
    assert np.isfinite(results[0][0]).all()


def test_a_region_over_tiles_that_read_other_rows_is_noticed():
    with sg.Graph():
        x, w = sg.input("x", (128, 16)), sg.input("w", (16, 256))
        f = sg.compile(turned(x, w), [x, w])
    f(np.ones((128, 16), np.float32), np.ones((16, 256), np.float32))
    plan = f.memory.plan
    kernels = plan.schedule.kernels
    tiles = next(
        n
        for n, k in enumerate(kernels)
        if isinstance(k, LoopKernel) and isinstance(k.body[0], Tiles)
    )
    per_row = (0, kernels[tiles].axes[0] // 128)
    region = Region(tiles - 1, tiles + 1, 8, 16, per_row)
    assert_noticed(plan, region, "parts that meet")
