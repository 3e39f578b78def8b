"""Draws inside kernels: a block of words at a time, the numbers the same as one by one.

The oracle is the reference target, which computes words in NumPy.
"""

import numpy as np
import pytest
from handwritten import apply as one_by_one
from tolerances import assert_ulp

import staticgrad as sg
from staticgrad.compiler.codegen.random.draws_ir import DRAWS
from staticgrad.ir.graph import apply
from staticgrad.ops.random.draws import NORMAL, UNIFORM, WORD

OPS = {"word": WORD, "uniform": UNIFORM, "normal": NORMAL}
KEY = np.array([0xA4093822, 0x299F31D0, 7, 0xFFFFFFFE], np.uint32)


def both(build, *args):
    """Return the draws of the cpu and the reference target, and the cpu's source."""
    with sg.Graph():
        found = sg.compile(build(*args))
        return found(), sg.compile(build(*args), target="reference")(), found.source()


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 31, 33, 511, 512, 513, 1027])
def test_blocks_give_the_numbers_that_single_elements_have(kind, bits, n):
    got, want, source = both(
        lambda: apply(OPS[kind], sg.constant(KEY), shape=(n,), bits=bits)
    )
    assert (f"fill_{kind}{bits}(" in source) == (n > 1)
    assert_ulp(got, want, 8 if kind == "normal" else 0)


@pytest.mark.parametrize("name", DRAWS)
def test_one_element_and_a_block_have_the_same_bits(name):
    """Elements that are asked for by their numbers are drawn one by one."""
    kind, bits = name[:-2], int(name[-2:])
    with sg.Graph():
        draw = apply(OPS[kind], sg.constant(KEY), shape=(1027,), bits=bits)
        whole = sg.compile(draw)()
    order = np.random.default_rng(0).permutation(1027)
    key = ", ".join(f"uint32({word})" for word in KEY)
    single = one_by_one(f"{name}({key}, {{0}})", order, result=DRAWS[name].dtype)
    assert single.tobytes() == whole[order].tobytes()


def test_rows_begin_anywhere_in_a_block():
    """Inner loops over rows of 7 begin at words 0, 7, 14...: all four places."""

    def rows():
        u = sg.random.uniform(KEY, (50, 7))
        return u - sg.mean(u, axis=1, keepdims=True)

    got, want, source = both(rows)
    assert "fill_uniform32(" in source
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_draw_the_same_numbers(threads):
    before = sg.get_num_threads()
    sg.set_num_threads(threads)
    try:
        with sg.Graph():
            drawn = sg.compile(
                [sg.random.uniform(KEY, (300_001,)), sg.random.normal(KEY, (300_001,))]
            )
        u, z = drawn()
    finally:
        sg.set_num_threads(before)
    assert len(drawn.memory.plan.chunks) >= 1
    assert u.tobytes() == UNIFORM.numpy(KEY, shape=(300_001,), bits=32).tobytes()
    assert_ulp(z, NORMAL.numpy(KEY, shape=(300_001,), bits=32), 8)


def test_every_key_of_a_vmap_draws_in_blocks():
    keys = np.stack([KEY, KEY + 1, KEY + 2])
    with sg.Graph():
        leaf = sg.input("keys", (3, 4), "uint32")
        f = sg.compile(sg.vmap(lambda k: sg.random.normal(k, (70,)))(leaf))
    assert "fill_normal32(" in f.source()
    for row, key in zip(f(keys), keys, strict=True):
        assert_ulp(row, NORMAL.numpy(key, shape=(70,), bits=32), 8)


def test_several_draws_of_a_kernel_have_areas_of_their_own():
    def mixed():
        one, two, three = sg.random.split(sg.random.key(5), 3)
        u = sg.random.uniform(one, (1000,))
        z = sg.random.normal(two, (1000,))
        long = sg.sin(sg.sin(sg.sin(sg.exp(u) + z)))  # in pieces
        return long * sg.random.uniform(three, (1000,), "float64")

    got, want, source = both(mixed)
    assert source.count("fill_") == 3
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_mask_of_dropout_is_drawn_again_in_the_backward_pass():
    """It lies nowhere in memory, and is the same mask."""
    with sg.Graph(seed=3):
        x = sg.input("x", ("n", 64))
        w = sg.parameter(np.full((64, 64), 0.1, "f4"), name="w")
        dropped = sg.nn.Dropout(0.4)(sg.tanh(x @ w))
        loss = sg.sum((dropped @ sg.transpose(w)) ** 2)
        f = sg.compile([loss, sg.grad(loss, w), dropped], mode="train")
        lean = sg.compile([loss, sg.grad(loss, w)], mode="train")
    data = np.random.default_rng(0).normal(size=(32, 64)).astype("f4")
    _, dw, y = f(data)
    mask = (y != 0) / 0.6
    t = np.tanh(data @ np.full((64, 64), 0.1, "f4"))
    v = np.full((64, 64), 0.1, "f4")
    dy = 2 * y @ v.T
    want = data.T @ (dy @ v * mask * (1 - t * t)) + dy.T @ y
    np.testing.assert_allclose(dw, want, rtol=2e-3, atol=1e-3)
    lean(data)
    names = {b.name for b in lean.memory.plan.schedule.buffers}
    assert not names & {"uniform", "greater_equal"}
    assert lean.source().count("fill_uniform32(") == 2


def test_a_key_per_row_that_varies_in_the_loop_is_drawn_one_by_one():
    keys = sg.random.fold_in(sg.random.key(0), np.arange(600))
    with sg.Graph():
        got = sg.compile(sg.vmap(lambda k: sg.random.uniform(k, ()))(keys))()
    rows = sg.compile(keys)()
    want = [UNIFORM.numpy(row, shape=(), bits=32) for row in rows]
    np.testing.assert_array_equal(got, want)
