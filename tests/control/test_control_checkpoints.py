"""Reverse mode with few states in memory: Revolve's numbers, equal bits, memory."""

from dataclasses import replace
from functools import cache
from math import comb

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.kernel_ir.schedule import ControlKernel
from staticgrad.compiler.memory import planner
from staticgrad.compiler.runtime.revolve import (
    DONE,
    FORWARD,
    POSITION,
    decide,
    forward_steps,
    note,
)
from staticgrad.compiler.verify.verify_schedule import verify_schedule
from staticgrad.errors import CompilerBug
from staticgrad.ir.op import snapshot_words

RNG = np.random.default_rng(0)
X = RNG.uniform(0.3, 0.9, 9)


@cache
def least(steps, snapshots):
    """The least number of forward steps, by dynamic programming."""
    if steps <= 1:
        return 0
    if snapshots == 1:
        return steps * (steps - 1) // 2
    return min(
        m + least(steps - m, snapshots - 1) + least(m, snapshots)
        for m in range(1, steps)
    )


def test_forward_steps_are_the_fewest_possible():
    for steps in range(41):
        for snapshots in range(1, 7):
            assert forward_steps(steps, snapshots) == least(steps, snapshots)


@pytest.mark.parametrize(
    ("steps", "snapshots", "forward"),
    [(100, 10, 222), (1000, 10, 3636), (1000, 64, 1934), (10_000, 100, 24_747)],
)
def test_the_closed_form(steps, snapshots, forward):
    assert forward_steps(steps, snapshots) == forward


def test_snapshots_of_a_loop_that_may_end_at_any_step():
    assert forward_steps(10_000, 100, noted=True) == 14_849
    assert forward_steps(10_000, 100) - 9_999 == 14_748  # had the number been known
    for snapshots in range(1, 7):
        for steps in range(41):
            again = forward_steps(steps, snapshots, noted=True)
            assert again >= least(steps, snapshots) - max(steps - 1, 0)
            assert again <= least(steps, snapshots)
            assert (again == 0) == (steps <= max(snapshots, 1))
            assert most_repeated(steps, snapshots) <= repetition(steps, snapshots)


def repetition(steps, snapshots):
    """Return the most runs of any step (Griewank): n <= C(s + r, s)."""
    number = 0
    while comb(snapshots + number, snapshots) < steps:
        number += 1
    return number


def most_repeated(steps, snapshots):
    """Return the number of runs of the step that runs most often."""
    state = np.zeros(snapshot_words(snapshots), np.int64)
    address = int(state.ctypes.data)
    for _ in range(steps):
        note(address, snapshots)
    runs, position = np.zeros(steps, int), 0
    while (action := decide(address, steps, snapshots)) != DONE:
        if action == FORWARD:
            runs[position] += 1
        position = state[POSITION] + (action == FORWARD)
    return runs.max(initial=0)


def loss(x, a, checkpoints, reverse=False):
    last, ys = sg.scan(
        lambda c, v: (sg.sin(c * a) * v + c, c * v), 0.4, x,
        reverse=reverse, checkpoints=checkpoints,
    )  # fmt: skip
    return last * last + sg.sum(ys**2)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("checkpoints", [1, 2, 3, 20])
def test_the_bits_are_those_of_keeping_everything(checkpoints, reverse):
    x, a = sg.input("x", ("n",), "float64"), sg.input("a", (), "float64")
    all_kept = sg.grad(loss(x, a, None, reverse), [x, a])
    few = sg.grad(loss(x, a, checkpoints, reverse), [x, a])
    for target in ("cpu", "reference"):
        f = sg.compile([all_kept, few], inputs=[x, a], target=target)
        for n in (0, 1, 2, 9):
            wanted, got = f(X[:n], 0.7)
            for p, q in zip(wanted, got, strict=True):
                np.testing.assert_array_equal(p, q)


@pytest.mark.parametrize("checkpoints", [1, 3])
def test_equal_bits_of_a_single_carry(checkpoints):
    x, a = sg.input("x", (9,), "float64"), sg.input("a", (), "float64")

    def gradient(some):
        def step(c, v):
            return (sg.sin(c * a) * v + c * a, None)

        return sg.grad(sg.scan(step, 0.4, x, checkpoints=some)[0], [x, a])

    wanted, got = sg.compile([gradient(None), gradient(checkpoints)])(X, 0.7)
    for p, q in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(p, q)


def test_ten_thousand_steps_take_a_hundredth_of_the_memory():
    n = 10_000
    x = sg.input("x", (32,))

    def arena(checkpoints):
        def step(i, c):
            return sg.sin(c) * sg.cos(c * 0.5) + sg.exp(-c * c) * 0.1

        last = sg.fori_loop(0, n, step, x, checkpoints=checkpoints)
        f = sg.compile(sg.grad(sg.sum(last), x), inputs=[x])
        start = RNG.uniform(-1, 1, 32).astype(np.float32)
        return f(start), f.memory.arena_bytes

    all_kept, whole = arena(None)
    few, small = arena(100)
    np.testing.assert_allclose(few, all_kept, rtol=1e-5, atol=1e-30)
    assert small <= 0.011 * whole


def test_derivatives_of_checkpointed_gradients():
    def f(x):
        return loss(x, x[0], 2)

    sg.testing.gradcheck(f, X)
    sg.testing.gradgradcheck(f, X, directions=3)
    sg.testing.check_jvp(lambda x: sg.grad(f(x), x), X)
    x = sg.input("x", (2, 9), "float64")
    rows = sg.vmap(lambda r: sg.grad(f(r), r))(x)
    got = sg.compile(rows)(np.stack([X, X[::-1]]))
    one = sg.input("one", (9,), "float64")
    g = sg.compile(sg.grad(f(one), one), target="reference")
    np.testing.assert_allclose(got, np.stack([g(X), g(X[::-1])]), rtol=1e-10)


def grown(a, checkpoints=3):
    return sg.while_loop(
        lambda c: c[0] < 50, lambda c: (c[0] * a + 0.1, sg.sin(c[1] * a)), (a, a * a),
        checkpoints=checkpoints,
    )  # fmt: skip


def test_reverse_mode_through_a_loop_of_unknown_length():
    for start in (1.05, 1.4, 3.0, 60.0):
        sg.testing.gradcheck(
            lambda a: sum(t * (k + 1) for k, t in enumerate(grown(a))), np.array(start)
        )
    a = sg.input("a", (), "float64")
    for checkpoints in (1, 5, 64):
        y, z = grown(a, checkpoints)
        g = sg.grad(y + z, a)
        forward = sg.jvp(y + z, a, 1.0)
        for target in ("cpu", "reference"):
            p, q = sg.compile([g, forward], target=target)(1.3)
            assert p == pytest.approx(q, rel=1e-10)


@pytest.mark.parametrize("checkpoints", [1, 2, 5, None])
def test_derivatives_of_any_order_through_a_loop_of_unknown_length(checkpoints):
    sg.testing.gradgradcheck(lambda a: grown(a, checkpoints), np.array(1.3))
    a = sg.input("a", (), "float64")
    y = grown(a, checkpoints)[1]
    back, ahead = [y], [y]
    for _ in range(3):
        back.append(sg.grad(back[-1], a))
        ahead.append(sg.jvp(ahead[-1], a, 1.0))
    mixed = [sg.jvp(back[2], a, 1.0), sg.grad(ahead[2], a)]
    for target in ("cpu", "reference"):
        p, q, (r, s) = sg.compile([back, ahead, mixed], target=target)(1.3)
        np.testing.assert_allclose(p, q, rtol=1e-9)
        np.testing.assert_allclose([r, s], q[3], rtol=1e-9)


def recurrent(x, w, checkpoints):
    """A state, a counter that nobody differentiates, and a product of all steps."""

    def step(c):
        return sg.tanh(c[0] @ w) + x, c[1] + 1, c[2] * sg.exp(-c[0])

    start = (x, 0, sg.ones(3, dtype="float64"))
    last = sg.while_loop(
        lambda c: c[1] < 7, step, start, checkpoints=checkpoints
    )  # fmt: skip
    return last[0], last[2]


def composed(x, checkpoints):
    """A scan, a branch and another while_loop in each step."""

    def step(c):
        v, i = c
        inner = sg.scan(lambda a, t: (sg.sin(a * t) + v[0] * 0.1, None), v[1], v)[0]
        some = sg.cond(v[0] > 0.3, lambda: v * inner, lambda: sg.sin(v) + inner)
        return sg.while_loop(
            lambda d: d[1] < i, lambda d: (sg.sin(d[0]) + 0.3 * some, d[1] + 1),
            (some, 0), checkpoints=2,
        )[0] * 0.9, i + 1  # fmt: skip

    return sg.while_loop(lambda c: c[1] < 4, step, (x, 0), checkpoints=checkpoints)[0]


def test_second_derivatives_of_captures_and_of_what_is_nested():
    w = RNG.normal(size=(3, 3)) * 0.4
    sg.testing.gradgradcheck(lambda x, w: recurrent(x, w, 2), X[:3], w, directions=2)
    sg.testing.gradgradcheck(lambda x: composed(x, 2), X[:3], directions=2)
    sg.testing.check_jvp(lambda x: sg.grad(sg.sum(composed(x, 2)), x), X[:3])


def rows(c, x, checkpoints):
    """Return the stacks of an inner loop."""
    return sg.scan(
        lambda a, v: (sg.sin(a) * v, a), c, sg.stack([c, x]), checkpoints=checkpoints
    )[1]


NESTED = {
    "scan": lambda x: sg.scan(
        lambda c, v: (sg.sum(rows(c, v, 1), 0), c), x, sg.stack([x, 2 * x]),
        checkpoints=1,
    )[0],
    "fori_loop": lambda x: sg.fori_loop(
        0, 3, lambda _, c: c / (1 + c * c) + sg.sum(rows(c, x, 2), 0), x, checkpoints=2
    ),
    "cond": lambda x: sg.fori_loop(
        0, 3,
        lambda i, c: sg.cond(i > 0, lambda: sg.tanh(sg.sum(rows(c, x, 1), 0)),
                             lambda: 2 * c),
        x, checkpoints=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTED)
def test_second_derivatives_of_loops_with_checkpoints_in_each_other(name):
    """The forward body reads nothing of the reverse carries, nor of loops that do."""
    sg.testing.gradgradcheck(lambda x: NESTED[name](x), X[:3], directions=3)
    sg.testing.check_jvp(lambda x: sg.grad(sg.sum(NESTED[name](x) ** 2), x), X[:3])


def coupled(x, w):
    """Carries that read each other, each used twice behind the loop."""
    a, b, c = sg.while_loop(
        lambda c: sg.mean(c[0] ** 2) > 0.05,
        lambda c: (
            c[0] * 0.7 * sg.cos(c[2]) ** 2,
            c[1] + sg.sin(c[0]) * c[2] * w,
            c[2] * 0.9 + 0.1 * c[0] * w,
        ),
        (sg.tanh(x), x * 0.1, x * w),
    )
    return sg.sum(b**2) + sg.sum(c * a)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_second_derivatives_of_carries_that_read_each_other(target):
    x, w = (sg.input(name, (3,), "float64") for name in "xw")
    v = np.array([1.0, -2.0, 0.5])
    y = coupled(x, w)
    slopes = sg.grad(y, [x, w])
    twice = sg.grad(sum(sg.sum(g * v) for g in slopes), [x, w])
    ahead = sg.jvp(slopes, [x, w], [v, v])
    for outputs in ([twice, ahead], twice, ahead):  # what is fused differs
        sg.compile(outputs, inputs=[x, w], target=target)
    found = sg.compile([twice, ahead], target=target)([0.5, 1.0, 2.0], [0.3, 0.2, 0.1])
    np.testing.assert_allclose(*found, rtol=1e-12)
    sg.testing.gradgradcheck(coupled, X[:3], X[3:6], directions=2)


def test_gradients_of_loops_over_examples():
    x = sg.input("x", (4,), "float64")
    one = sg.input("one", (), "float64")

    def both(a):
        y, z = grown(a)
        slope = sg.grad(y + z, a)
        return slope, sg.grad(slope, a)

    rows = sg.compile(sg.vmap(both)(x))(starts := np.array([1.05, 1.4, 3.0, 60.0]))
    each = sg.compile(both(one))
    for row, wanted in zip(zip(*rows, strict=True), map(each, starts), strict=True):
        np.testing.assert_allclose(row, wanted, rtol=1e-10)


def test_a_gradient_runs_the_loop_once_forward():
    a = sg.input("a", (), "float64")
    y, z = grown(a)
    f = sg.compile([y, sg.grad(y + z, a), sg.grad(z, a)])
    kernels = [k for k in f.target.code.root.kernels if isinstance(k, ControlKernel)]
    assert [k.form for k in kernels] == ["repeat", "replay", "replay"]
    f = sg.compile([y, sg.grad(y + z, a)])
    loop, back = (k for k in f.target.code.root.kernels if isinstance(k, ControlKernel))
    assert loop.snapshots == back.snapshots == 3
    # nothing is copied: the way back goes on with the snapshots themselves
    rooms = {loop.operands[room].buffer for _, room in loop.kept}
    assert rooms == {back.operands[room].buffer for _, room in back.kept}


def test_memory_of_the_way_back_does_not_grow_with_the_steps():
    x, n = sg.input("x", (64,)), sg.input("n", (), "int64")
    y = sg.fori_loop(0, n, lambda i, c: sg.sin(c * 1.01), x, checkpoints=10)
    second = sg.grad(sg.sum(sg.grad(sg.sum(y), x) ** 2), x)
    f = sg.compile([y, second], inputs=[x, n])
    f(X[:1].repeat(64), 5)
    few = f.memory.arena_bytes
    f(X[:1].repeat(64), 3000)
    assert f.memory.arena_bytes == few < 20_000


def test_a_gradient_that_is_clipped_on_the_way_back():
    def slope(x, bend, checkpoints=2):
        def step(i, c):
            return sg.on_gradient(sg.sin(c * x), bend)

        return sg.grad(sg.fori_loop(0, 5, step, x, checkpoints=checkpoints), x)

    x = sg.input("x", (), "float64")
    halves = [sg.grad(slope(x, lambda g: g * 0.5, few), x) for few in (2, None)]
    few, kept = sg.compile(halves)(0.8)
    assert few == pytest.approx(kept, rel=1e-12)
    clipped = slope(x, lambda g: sg.clip(g, -0.1, 0.1))
    with pytest.raises(sg.GraphError, match=r"linear in what comes back.*sg\.jvp"):
        sg.grad(clipped, x)
    assert np.isfinite(sg.compile(sg.jvp(clipped, x, 1.0))(0.8))


def test_fori_loop_with_a_tensor_for_a_bound():
    x, n = sg.input("x", (4,), "float64"), sg.input("n", (), "int64")
    y = sg.fori_loop(0, n, lambda i, c: c * x[i % 4], 1.0)
    f = sg.compile(sg.grad(y, x), inputs=[x, n])
    np.testing.assert_allclose(f([1.0, 2.0, 3.0, 4.0], 5), [48, 12, 8, 6])


def test_messages():
    with pytest.raises(sg.GraphError, match="checkpoints >= 1"):
        sg.scan(lambda c, v: (c, v), 0.0, X, checkpoints=0)
    with pytest.raises(sg.GraphError, match="checkpoints >= 1"):
        sg.while_loop(lambda c: c < 1, lambda c: c, 0.0, checkpoints=0)


def verified(schedule, form):
    """The step of that form, and a check that the verifier refuses changes of it."""
    position, kernel = next(
        (n, k) for n, k in enumerate(schedule.kernels)
        if isinstance(k, ControlKernel) and k.form == form
    )  # fmt: skip

    def refuse(match, **changes):
        kernels = list(schedule.kernels)
        kernels[position] = replace(kernel, **changes)
        with pytest.raises(CompilerBug, match=match):
            verify_schedule(replace(schedule, kernels=tuple(kernels)))

    return kernel, refuse


def test_the_verifier_notices_a_corrupted_replay():
    x = sg.input("x", (9,))
    y = sg.grad(loss(x, x[0], 3), x)
    schedule = sg.compile(y).target.code.root
    kernel, refuse = verified(schedule, "replay")
    planner.plan(schedule, {})
    refuse("snapshots", snapshots=0)
    refuse("no room for the positions", snapshots=4)
    refuse("no room for the positions", state=kernel.counter)
    refuse("no room for 3", kept=((kernel.kept[0][1], kernel.kept[0][0]),))
    refuse("scalar", steps=kernel.state)
    refuse("bodies", bodies=kernel.bodies[:1])


def test_the_verifier_notices_a_loop_without_room_for_its_snapshots():
    a = sg.input("a", (), "float64")
    schedule = sg.compile(sg.grad(grown(a)[0], a)).target.code.root
    kernel, refuse = verified(schedule, "repeat")
    refuse("snapshots", snapshots=0)
    refuse("no room for the positions", snapshots=4)
    refuse("no room for 3", kept=((kernel.kept[0][1], kernel.kept[0][0]),))


def test_several_tangents_of_one_loop_have_names_of_their_own():
    a, b = sg.input("a", (), "float64"), sg.input("b", (), "float64")
    y = sg.scan(lambda c, v: (sg.sin(c * a) + b * v, None), a, X)[0]
    one, other = sg.jvp(y, a, 1.0), sg.jvp(y, b, 1.0)
    got = sg.compile([one, other, sg.jvp(one, b, 1.0), sg.jvp(other, a, 1.0)])(1.2, 0.3)
    np.testing.assert_allclose(got[2], got[3], rtol=1e-12)
    np.testing.assert_allclose(got[:2], sg.compile(sg.grad(y, [a, b]))(1.2, 0.3))
