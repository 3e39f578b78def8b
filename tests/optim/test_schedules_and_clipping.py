"""Schedules, clipping and RMSprop: formulas replayed in NumPy, messages."""

import numpy as np
import pytest

import staticgrad as sg

TARGETS = ("reference", "cpu")
both = pytest.mark.parametrize("target", TARGETS)
START = np.array([1.0, -2.0, 0.5], np.float32)


def rates(schedule, steps, target="cpu"):
    """The rates of the first steps of SGD: what p loses under a gradient of 1."""
    with sg.Graph():
        p = sg.parameter(np.zeros(()), name="p")
    optimizer = sg.optim.SGD(schedule)
    pairs = optimizer.updates(sg.constant(np.float64(1)), p)
    step = sg.compile(p, updates=pairs, mode="train", target=target)
    values = np.array([float(step()) for _ in range(steps + 1)])
    return -np.diff(values)


@both
def test_cosine_with_warm_up(target):
    got = rates(sg.optim.cosine(0.1, steps=20, warmup=5, final=0.01), 25, target)
    t = np.arange(25)
    done = np.clip((t - 5) / 15, 0, 1)
    want = 0.01 + 0.09 * 0.5 * (1 + np.cos(np.pi * done))
    want[:5] = 0.1 * t[:5] / 5
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-15)


@both
def test_steps_and_exponential(target):
    t = np.arange(10)
    got = rates(sg.optim.step_decay(0.5, every=3, factor=0.1), 10, target)
    np.testing.assert_allclose(got, 0.5 * 0.1 ** (t // 3), rtol=1e-9)
    got = rates(sg.optim.exponential(0.5, 0.9), 10, target)
    np.testing.assert_allclose(got, 0.5 * 0.9**t, rtol=1e-9)


def test_a_schedule_of_the_users_own():
    inverse = sg.optim.Schedule(0.5, lambda t: 1 / (1 + t))
    np.testing.assert_allclose(rates(inverse, 6), 0.5 / np.arange(1, 7), rtol=1e-12)


@both
def test_the_schedule_runs_in_the_loop_and_scales_with_the_rate(target):
    x = sg.input("x", ("batch",), "float64")
    w = sg.parameter(np.zeros(()), name="w")
    optimizer = sg.optim.SGD(sg.optim.exponential(1.0, 0.5))
    trainer = sg.Trainer(sg.mean(x * w), optimizer, target=target)
    data = {"x": np.ones(4)}
    trainer.fit(data, steps=3, epochs=9, progress=False)
    assert w.value == pytest.approx(-1.75)
    assert trainer.learning_rate == 1.0
    trainer.learning_rate = 2.0
    trainer.fit(data, epochs=1, progress=False)
    assert w.value == pytest.approx(-2.0)
    trainer.reset_optimizer()
    trainer.fit(data, epochs=1, progress=False)
    assert w.value == pytest.approx(-4.0)


def rmsprop(p, steps, lr, alpha, eps, momentum=0.0, centered=False, decay=0.0):
    square = mean = buffer = np.zeros_like(p)
    for _ in range(steps):
        g = 2 * p + decay * p
        square = alpha * square + (1 - alpha) * g * g
        mean = alpha * mean + (1 - alpha) * g
        spread = square - mean * mean if centered else square
        buffer = momentum * buffer + g / (np.sqrt(spread) + eps)
        p = p - lr * buffer
    return p


@both
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": 0.9}, {"centered": True}, {"momentum": 0.5, "centered": True}],
)
def test_rmsprop_equals_its_formula(target, options):
    with sg.Graph():
        p = sg.parameter(START.astype(np.float64), name="p")
        grad = sg.grad(sg.sum(p**2), p)
    optimizer = sg.optim.RMSprop(0.01, 0.9, 1e-6, weight_decay=0.1, **options)
    pairs = optimizer.updates(grad, p)
    step = sg.compile(grad, updates=pairs, mode="train", target=target)
    for _ in range(7):
        step()
    want = rmsprop(START.astype(np.float64), 7, 0.01, 0.9, 1e-6, decay=0.1, **options)
    np.testing.assert_allclose(p.value, want, rtol=1e-12)


def test_momentum_is_sgd_with_momentum():
    assert isinstance(sg.optim.Momentum(0.1, nesterov=True), sg.optim.SGD)


GRADS = {"a": np.float32([3, 0]), "b": np.float32([[0, -4], [0, 0]])}


def clipped(clip, target):
    leaves = {name: sg.constant(value) for name, value in GRADS.items()}
    found, hit = clip.apply(list(leaves.values()))
    again = clip(leaves)
    assert list(again) == ["a", "b"]
    return sg.compile([*found, hit, again], target=target)()


@both
def test_clip_by_global_norm(target):
    for bound, scale in ((1.0, 1 / (5 + 1e-6)), (10.0, 1.0)):
        a, b, hit, again = clipped(sg.optim.clip_by_global_norm(bound), target)
        assert bool(hit) == (bound < 5)
        np.testing.assert_allclose(a, GRADS["a"] * scale, rtol=1e-6)
        np.testing.assert_allclose(b, GRADS["b"] * scale, rtol=1e-6)
        np.testing.assert_array_equal(again["b"], b)


@both
def test_clip_by_value(target):
    a, b, hit, _ = clipped(sg.optim.clip_by_value(3.0), target)
    assert hit
    assert a.tolist() == [3, 0]
    assert b.tolist() == [[0, -3], [0, 0]]
    assert not clipped(sg.optim.clip_by_value(4.0), target)[2]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_gradients_have_their_norm_in_float32(dtype):
    g = sg.constant(np.full(4, 200.0).astype(dtype))
    norm, small = sg.compile(
        [sg.optim.global_norm([g]), sg.optim.clip_by_global_norm(g, 4.0)]
    )()
    assert norm == 400
    assert small.dtype == dtype
    assert small.astype(float) == pytest.approx([2.0] * 4, rel=1e-2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "make", [sg.optim.SGD, sg.optim.Momentum, sg.optim.Adam, sg.optim.RMSprop]
)
def test_moments_of_16_bit_parameters_are_float32(make, dtype):
    with sg.Graph():
        p = sg.parameter(START.astype(dtype), name="p")
        grad = sg.grad(sg.sum(p * p), p)
    optimizer = make(0.125)
    pairs = optimizer.updates(grad, p)
    assert {s.dtype for s in optimizer.states.values()} <= {
        np.dtype(name) for name in ("float32", "float64", "int64")
    }
    sg.compile(grad, updates=pairs, mode="train")()
    assert p.value.dtype == dtype
    if make in (sg.optim.SGD, sg.optim.Momentum):
        assert p.value.tolist() == [0.75, -1.5, 0.375]


REFUSED = [
    (lambda: sg.optim.cosine(0.1, steps=5, warmup=5), "steps beyond its warm-up"),
    (lambda: sg.optim.cosine(0.1, steps=5, final=0.2), "rates in 0..0.1, got 0.2"),
    (lambda: sg.optim.step_decay(0.1, 0), "cosine|step_decay requires steps"),
    (lambda: sg.optim.step_decay(0.1, 3, 0.0), "step_decay requires a factor > 0"),
    (lambda: sg.optim.exponential(0.1, -1), "exponential requires a factor > 0"),
    (lambda: sg.optim.SGD(sg.optim.exponential(-0.1, 0.5)), "a learning rate >= 0"),
    (lambda: sg.optim.RMSprop(alpha=1.0), "RMSprop requires alpha"),
    (lambda: sg.optim.RMSprop(eps=-1), "RMSprop requires eps >= 0"),
    (lambda: sg.optim.clip_by_global_norm(0.0), "a bound > 0, got 0.0"),
    (lambda: sg.optim.clip_by_value([], 0), "a bound > 0, got 0"),
    (lambda: sg.optim.global_norm([]), "requires gradients, got none"),
]


@pytest.mark.parametrize(("call", "match"), REFUSED)
def test_messages(call, match):
    with pytest.raises(sg.GraphError, match=match):
        call()
