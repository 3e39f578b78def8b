"""Reverse mode with few states in memory: Revolve's numbers, equal bits, memory."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler import memory
from staticgrad.compiler.schedule import ControlKernel
from staticgrad.compiler.snapshots import forward_steps
from staticgrad.compiler.verify import verify_schedule
from staticgrad.errors import CompilerBug

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


def test_the_gradient_of_a_gradient_says_what_to_do():
    a = sg.input("a", (), "float64")
    g = sg.grad(grown(a)[0], a)
    with pytest.raises(sg.GraphError, match="forward mode"):
        sg.grad(g, a)
    twice = sg.jvp(sg.jvp(grown(a)[0], a, 1.0), a, 1.0)
    assert np.isfinite(sg.compile(twice)(1.3))


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


def test_the_verifier_notices_a_corrupted_replay():
    x = sg.input("x", (9,))
    y = sg.grad(loss(x, x[0], 3), x)
    schedule = sg.compile(y).target.code.root
    position, kernel = next(
        (n, k) for n, k in enumerate(schedule.kernels)
        if isinstance(k, ControlKernel) and k.form == "replay"
    )  # fmt: skip
    memory.plan(schedule, {})

    def refuse(match, **changes):
        kernels = list(schedule.kernels)
        kernels[position] = replace(kernel, **changes)
        with pytest.raises(CompilerBug, match=match):
            verify_schedule(replace(schedule, kernels=tuple(kernels)))

    refuse("snapshots", snapshots=0)
    refuse("no room for the positions", snapshots=4)
    refuse("no room for the positions", state=kernel.counter)
    refuse("no room for 3", kept=((kernel.kept[0][1], kernel.kept[0][0]),))
    refuse("scalar", steps=kernel.state)
    refuse("bodies", bodies=kernel.bodies[:1])
