"""Layers that draw inside of loops: other numbers in each step, the same ones again."""

import numpy as np
import pytest

import staticgrad as sg

ONES = np.ones((6, 32))


def masks(loop, mode="train", target="cpu", seed=3, **options):
    """Return `loop` of dropped elements, in two calls."""
    with sg.Graph(seed=seed):
        x = sg.input("x", ONES.shape, "float64")
        y = loop(sg.nn.Dropout(0.5), x, **options)
        f = sg.compile(y, inputs=[x], mode=mode, target=target)
        return f(ONES), f(ONES)


def along(drop, x, reverse=False):
    return sg.scan(lambda c, v: (c, drop(v)), 0.0, x, reverse=reverse)[1]


def nested(drop, x):
    def step(c, v):
        return c, sg.scan(lambda d, _: (d, drop(v)), 0.0, length=3)[1]

    return sg.scan(step, 0.0, x)[1].reshape((18, 32))


def until(drop, x):
    """Step n adds 4**n to a mask of zeros and twos, so each can be read off."""
    start = (sg.zeros(32, "float64"), 1.0)

    def step(c):
        return c[0] + c[1] * drop(x[0]), c[1] * 4

    return sg.while_loop(lambda c: c[1] < 4.0**6, step, start)[0]


def counted(drop, x):
    n = sg.sum(x[:, 0]).astype("int64")

    def step(i, c):
        return c + 4.0**i * drop(x[0])

    return sg.fori_loop(0, n, step, sg.zeros(32, "float64"))


def digits(numbers):
    whole = numbers.astype(int)
    return np.stack([whole // 4**n % 4 for n in range(6)])


@pytest.mark.parametrize("loop", [along, nested])
def test_a_mask_for_each_step_of_a_scan(loop):
    first, second = masks(loop)
    assert len({row.tobytes() for row in (*first, *second)}) == 2 * len(first)
    assert 0.3 < np.mean(first == 0) < 0.7
    for p, q in zip(masks(loop, target="reference"), (first, second), strict=True):
        np.testing.assert_array_equal(p, q)
    assert (masks(loop, mode="eval")[0] == 1).all()
    assert (masks(loop)[0] == first).all()
    assert (masks(loop, seed=4)[0] != first).any()


@pytest.mark.parametrize("loop", [until, counted])
def test_a_mask_for_each_step_of_a_loop_of_unknown_length(loop):
    first, second = map(digits, masks(loop))
    assert set(first.ravel()) == {0, 2}
    assert len({row.tobytes() for row in (*first, *second)}) == 12
    np.testing.assert_array_equal(digits(masks(loop, target="reference")[0]), first)
    assert (digits(masks(loop, mode="eval")[0]) == 1).all()


def test_a_step_that_is_run_again_draws_the_same_numbers():
    def gradient(drop, x, through, checkpoints):
        y = through(drop, x, checkpoints)
        return sg.stack([sg.grad(sg.sum(y**2), x), sg.broadcast_to(y, x.shape)])

    def scanned(drop, x, checkpoints):
        return sg.scan(
            lambda c, v: (sg.sin(c + drop(v)), None), x[0], x, checkpoints=checkpoints
        )[0]

    def repeated(drop, x, checkpoints):
        return sg.while_loop(
            lambda c: c[1] < 6, lambda c: (sg.sin(c[0] * drop(x[1])), c[1] + 1),
            (x[0], 0), checkpoints=checkpoints,
        )[0]  # fmt: skip

    for loop in (scanned, repeated):
        wanted = masks(gradient, through=loop, checkpoints=64)[0]
        for checkpoints in (1, 2, 4):
            got = masks(gradient, through=loop, checkpoints=checkpoints)[0]
            np.testing.assert_array_equal(got, wanted)
        again = masks(gradient, through=loop, checkpoints=2, target="reference")[0]
        np.testing.assert_allclose(again, wanted, rtol=1e-12)

    def under_checkpoint(drop, x):
        step = sg.checkpoint(lambda c, v: sg.sin(c + drop(v)))
        y = sg.scan(lambda c, v: (step(c, v), None), x[0], x)[0]
        return sg.stack([sg.grad(sg.sum(y**2), x), sg.broadcast_to(y, x.shape)])

    wanted = masks(gradient, through=scanned, checkpoints=64)[0]
    np.testing.assert_allclose(masks(under_checkpoint)[0], wanted, rtol=1e-12)


def test_examples_of_a_vmap_share_the_masks_of_their_steps():
    def rows(drop, x):
        both = sg.vmap(lambda r: along(drop, r))(sg.stack([x, 2 * x]))
        return both.reshape((12, 32))

    found = masks(rows)[0]
    np.testing.assert_array_equal(found[6:], 2 * found[:6])
    assert len({row.tobytes() for row in found[:6]}) == 6


def test_a_key_from_outside_is_the_same_in_every_step():
    key = sg.random.key(0)
    ys = sg.scan(lambda c, _: (c, sg.random.uniform(key, (8,))), 0.0, length=3)[1]
    found = sg.compile(ys)()
    assert (found == found[0]).all()

    def other(i, c):
        return c.at[i].set(sg.random.uniform(sg.random.fold_in(key, i), (8,)))

    found = sg.compile(sg.fori_loop(0, 3, other, sg.zeros((3, 8))))()
    assert len({row.tobytes() for row in found}) == 3
