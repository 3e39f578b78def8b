"""sg.checkpoint: what the function itself gives, with less that is kept."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.errors import GraphError
from staticgrad.testing import check_jvp, gradcheck, gradgradcheck

RNG = np.random.default_rng(0)
WIDTH, BATCH = 32, 2048


def network(blocks, wrap, dropout=0.0):
    """Loss, input, parameters: blocks of four layers, each of them wrapped."""
    with sg.Graph(seed=2):
        x = sg.input("x", (BATCH, WIDTH))
        parts = [block(dropout) for _ in range(blocks)]
        h = x
        for part in parts:
            h = wrap(part)(h)
        loss = sg.mean(h * h)
    named = ((k, p.parameters()) for k, p in enumerate(parts))
    return loss, x, {f"{k}.{n}": w for k, found in named for n, w in found.items()}


def block(dropout):
    layers = []
    for _ in range(4):
        layers += [sg.nn.Linear(WIDTH, WIDTH), sg.nn.Tanh()]
        layers += [sg.nn.Dropout(dropout)] if dropout else []
    return sg.nn.Sequential(*layers)


def compiled(wrap, blocks=6, dropout=0.0, **more):
    loss, x, parameters = network(blocks, wrap, dropout)
    outputs = [loss, sg.grad(loss, parameters)]
    return sg.compile(outputs, inputs=[x], mode="train", **more)


def itself(f):
    return f


def same(got, want):
    """Equal but for the order of sums, which depends on what is in one kernel."""
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    for name, g in want[1].items():
        np.testing.assert_allclose(got[1][name], g, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_same_gradients_with_less_memory(dropout):
    plain = compiled(itself, dropout=dropout)
    lean = compiled(sg.checkpoint, dropout=dropout, poison=True)
    x = RNG.normal(size=(BATCH, WIDTH)).astype("f4")
    for _ in range(2):  # the second call draws other masks
        same(lean(x), plain(x))
    assert lean.memory.arena_bytes < 0.6 * plain.memory.arena_bytes


def test_the_reference_target_agrees():
    x = RNG.normal(size=(BATCH, WIDTH)).astype("f4")
    got = compiled(sg.checkpoint, 2, 0.2)(x)
    want = compiled(sg.checkpoint, 2, 0.2, target="reference")(x)
    for name, g in want[1].items():
        np.testing.assert_allclose(got[1][name], g, rtol=1e-4, atol=1e-6)


def test_what_is_computed_again_is_not_merged_with_the_first_time():
    loss, _, w = network(2, sg.checkpoint)
    kernels = compiled(sg.checkpoint, 2).memory.plan.schedule.kernels
    names = [k.name for k in kernels]
    products = len(w) // 2
    assert names.count("matmul") + names.count("matmul_add") >= 4 * products - 2


def test_without_a_gradient_nothing_is_computed_again():
    loss, x, _ = network(2, sg.checkpoint)
    other, z, _ = network(2, itself)
    assert sg.compile(loss, [x]).source() == sg.compile(other, [z]).source()


def test_trees_captures_and_several_results():
    with sg.Graph(dtype="float64"):
        a, b, c = (sg.input(name, (3,)) for name in "abc")

        def f(pair, scale):
            u = sg.tanh(pair["left"] * c)
            return {"u": u, "v": (u * pair["right"], sg.sum(u) * scale), "n": None}

        def value(g):
            found = g({"left": a, "right": b}, 2.0)
            assert found["n"] is None
            return sg.sum(found["u"] * found["v"][0]) + found["v"][1]

        outs = [[value(g), sg.grad(value(g), [a, b, c])] for g in (f, sg.checkpoint(f))]
    plain, lean = sg.compile(outs)(*RNG.normal(size=(3, 3)))
    np.testing.assert_allclose(lean[0], plain[0], rtol=1e-14)
    for got, want in zip(lean[1], plain[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-14)


def test_only_one_result_is_used():
    x = sg.input("x", (3,))
    y, _, i = sg.checkpoint(lambda v: (sg.exp(v), sg.sin(v), sg.argmax(v)))(x)
    dx = sg.compile([sg.grad(sg.sum(y), x), i])([0.0, 1.0, 2.0])
    np.testing.assert_allclose(dx[0], np.exp([0.0, 1.0, 2.0]), rtol=1e-6)
    assert dx[1] == 2


def smooth(x):
    f = sg.checkpoint(lambda u, v: sg.tanh(u * sg.exp(v)) * sg.sin(u + v))
    return f(x[0], x[1])


def test_derivatives_of_both_modes_and_orders():
    points = RNG.normal(size=(2, 4))
    assert gradcheck(smooth, points)
    assert gradgradcheck(smooth, points)
    assert check_jvp(smooth, points)


def test_nested():
    inner = sg.checkpoint(lambda v: sg.tanh(v) * v)
    outer = sg.checkpoint(lambda v: inner(sg.exp(inner(v))))
    assert gradcheck(outer, RNG.normal(size=4) / 2)
    assert gradgradcheck(outer, RNG.normal(size=4) / 2)


def test_vmap_around_and_within():
    w = sg.parameter(RNG.normal(size=(3, 3)), name="w")
    xs = RNG.normal(size=(5, 3))

    def value(wrap):
        f = wrap(lambda v: sg.tanh(w @ v) * v)
        outside = sg.sum(sg.vmap(f)(xs))
        inside = sg.vmap(lambda v: sg.grad(sg.sum(f(v)), v))
        points = sg.constant(xs)
        return [sg.grad(outside, w), inside(points)]

    got, want = sg.compile([value(sg.checkpoint), value(itself)])()
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def scanned(wrap):
    with sg.Graph(dtype="float64"):
        w = sg.input("w", (4, 4))
        xs = sg.input("xs", (20, 4))
        step = wrap(lambda h, x: sg.tanh(sg.sin(sg.exp(h @ w)) + x))
        last, _ = sg.scan(lambda h, x: (step(h, x), None), sg.zeros((4,)), xs)
        loss = sg.sum(last * last)
        return sg.compile([loss, *sg.grad(loss, [w, xs])], inputs=[w, xs])


def test_in_the_body_of_a_scan():
    plain, lean = scanned(itself), scanned(sg.checkpoint)
    given = RNG.normal(size=(4, 4)) / 2, RNG.normal(size=(20, 4))
    for got, want in zip(lean(*given), plain(*given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    assert lean.memory.arena_bytes < plain.memory.arena_bytes


def test_in_a_branch():
    x = sg.input("x", ())
    f = sg.checkpoint(lambda v: sg.exp(v) * sg.tanh(v))
    y = sg.cond(x > 0, lambda: f(x), lambda: f(-x) * 2)
    dx = sg.compile([y, sg.grad(y, x)], inputs=[x])
    for at in (0.7, -0.4):
        s, k = abs(at), 1.0 if at > 0 else -2.0
        slope = np.exp(s) * (np.tanh(s) + 1 - np.tanh(s) ** 2)
        np.testing.assert_allclose(dx(at)[1], k * slope, rtol=1e-5)


def test_a_budget_beside_it():
    plain = compiled(itself)
    lean = compiled(sg.checkpoint)
    least = int(0.8 * lean.memory.arena_bytes)
    both = compiled(sg.checkpoint, memory_budget=least)
    x = RNG.normal(size=(BATCH, WIDTH)).astype("f4")
    same(both(x), plain(x))
    assert both.memory.arena_bytes <= least


def test_refusals():
    with pytest.raises(GraphError, match="checkpoint requires functions"):
        sg.checkpoint(3)(sg.input("x", ()))
    with sg.Graph():
        x = sg.input("x", ())
        count = sg.state(0.0, name="count")

        def updating(v):
            sg.update(count, count + 1)
            return v

        with pytest.raises(GraphError, match="checkpoint requires a body without"):
            sg.checkpoint(updating)(x)
