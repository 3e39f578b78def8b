"""Optimisers: every step equals PyTorch's formulas replayed in NumPy."""

import numpy as np
import pytest

import staticgrad as sg

TARGETS = ("reference", "cpu")
START = np.array([1.0, -2.0, 0.5], np.float32)
TARGET = np.array([0.0, 1.0, 0.5], np.float32)


def gradient(p):
    return 2 * (p - TARGET)


def sgd(p, steps, lr, momentum=0.0, nesterov=False, weight_decay=0.0):
    velocity = np.zeros_like(p)
    for _ in range(steps):
        g = gradient(p) + weight_decay * p
        velocity = momentum * velocity + g
        p = p - lr * (g + momentum * velocity if nesterov else velocity)
    return p


def adam(p, steps, lr, betas, eps, weight_decay=0.0, decoupled=False):
    first, second = np.zeros_like(p), np.zeros_like(p)
    for t in range(1, steps + 1):
        g = gradient(p)
        if decoupled:
            p = p * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * p
        first = betas[0] * first + (1 - betas[0]) * g
        second = betas[1] * second + (1 - betas[1]) * g * g
        corrected = first / (1 - betas[0] ** t)
        root = np.sqrt(second / (1 - betas[1] ** t))
        p = p - lr * corrected / (root + eps)
    return p


def run(optimizer, steps, target, start=START):
    with sg.Graph():
        p = sg.parameter(start, name="p")
        loss = sg.sum((p - TARGET.astype(start.dtype)) ** 2)
        grad = sg.grad(loss, p)
    pairs = optimizer.updates(grad, p)
    step = sg.compile(loss, updates=pairs, mode="train", target=target)
    for _ in range(steps):
        step()
    return p.value


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"weight_decay": 0.1},
        {"momentum": 0.5, "weight_decay": 0.1},
    ],
)
def test_sgd(target, options):
    got = run(sg.optim.SGD(0.05, **options), 7, target)
    expected = sgd(START.astype(np.float64), 7, 0.05, **options)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert got.dtype == np.float32


ADAM = [
    (sg.optim.Adam(0.1), {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}),
    (
        sg.optim.Adam(0.01, betas=(0.0, 0.5), eps=1e-3, weight_decay=0.1),
        {"lr": 0.01, "betas": (0.0, 0.5), "eps": 1e-3, "weight_decay": 0.1},
    ),
    (
        sg.optim.AdamW(0.1, weight_decay=0.2),
        {
            "lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.2,
            "decoupled": True,
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("optimizer", "options"), ADAM, ids=["plain", "decay", "W"])
def test_adam(target, optimizer, options):
    got = run(optimizer, 10, target)
    expected = adam(START.astype(np.float64), 10, **options)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    assert got.dtype == np.float32


def test_adam_in_float64_is_exact():
    start = START.astype(np.float64)
    got = run(sg.optim.Adam(0.1), 20, "cpu", start)
    expected = adam(start, 20, 0.1, (0.9, 0.999), 1e-8)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)


def test_the_first_adam_step_is_the_learning_rate():
    moved = run(sg.optim.Adam(1e-3, eps=0.0), 1, "cpu") - START
    expected = [-1e-3, 1e-3]  # whatever the size of the gradient, which is 0 at [2]
    np.testing.assert_allclose(moved[:2], expected, rtol=2e-4)


def test_the_learning_rate_changes_without_compiling():
    optimizer = sg.optim.SGD(0.1)
    with sg.Graph():
        p = sg.parameter(np.float32(1), name="p")
        loss = p * 1.0
    pairs = optimizer.updates(sg.grad(loss, p), p)
    step = sg.compile(loss, updates=pairs)
    step()
    optimizer.learning_rate = 0.5
    step()
    assert optimizer.learning_rate == 0.5
    np.testing.assert_allclose(p.value, 0.4, rtol=1e-6)


def test_known_step_of_the_articles():
    """w=1, b=0, x=2, y=10: gradients -32 and -16; at rate 0.01 w 1.32, b 0.16."""
    with sg.Graph():
        w, b = (sg.parameter(np.float32(v), name=n) for v, n in ((1, "w"), (0, "b")))
        loss = (w * 2 + b - 10) ** 2
        grads = sg.grad(loss, [w, b])
    step = sg.compile(grads, updates=sg.optim.SGD(0.01).updates(grads, [w, b]))
    assert [float(g) for g in step()] == [-32, -16]
    np.testing.assert_allclose([w.value, b.value], [1.32, 0.16], rtol=1e-6)


def test_reset_clears_moments_but_not_the_learning_rate():
    optimizer = sg.optim.Adam(0.25)
    run(optimizer, 3, "reference")
    assert any(state.value.any() for state in optimizer.states.values())
    optimizer.reset()
    kept = {n: s.value.any() for n, s in optimizer.states.items()}
    assert [name for name, any_ in kept.items() if any_] == ["learning_rate"]


class Averaged(sg.optim.Adam):
    """Adam that keeps an average of the parameters as they are after each step."""

    def updates(self, grads, params):
        pairs = super().updates(grads, params)
        new = dict(pairs)
        for leaf in params:
            average = self.new_state(f"{leaf.name}.average", leaf.value)
            pairs.append((average, 0.9 * average + 0.1 * new[leaf]))
        return pairs


def test_an_average_of_weights_is_one_more_pair(tmp_path):
    def trained(steps, optimizer):
        with sg.Graph():
            p = sg.parameter(START, name="p")
            loss = sg.sum((p - TARGET) ** 2)
        trainer = sg.Trainer(loss, optimizer)
        trainer.fit({}, steps=steps, progress=False)
        return p, trainer

    kept, trainer = Averaged(0.1), None
    _, trainer = trained(3, kept)
    expected = START
    for steps in (1, 2, 3):
        after, _ = trained(steps, sg.optim.Adam(0.1))
        expected = 0.9 * expected + 0.1 * after.value
    np.testing.assert_allclose(kept.states["p.average"].value, expected, rtol=1e-6)
    trainer.save(tmp_path / "run")
    other = Averaged(0.1)
    _, again = trained(0, other)
    again.load(tmp_path / "run")
    assert np.array_equal(
        other.states["p.average"].value, kept.states["p.average"].value
    )


def test_an_optimiser_shows_its_arguments():
    shown = repr(sg.optim.AdamW(0.01, betas=(0.5, 0.9)))
    assert shown.startswith("Adam(learning_rate=0.01, ")
    assert "betas=(0.5, 0.9)" in shown
    assert "cosine" not in repr(sg.optim.SGD(0.1))
    with sg.Graph():
        x, w = sg.input("x", ("batch",)), sg.parameter(1.0, name="w")
        trainer = sg.Trainer(sg.mean(w * x), sg.optim.SGD(0.1))
    assert repr(trainer).startswith("Trainer(x: float32[batch]; SGD(learning_rate=0.1")


def test_bad_arguments():
    with pytest.raises(sg.GraphError, match="learning rate >= 0"):
        sg.optim.SGD(-1)
    with pytest.raises(sg.GraphError, match="learning rate >= 0"):
        sg.optim.SGD(float("nan"))
    for rate, advice in (("fast", "'fast'; 1e-3 is usual"), (None, "got None")):
        with pytest.raises(sg.GraphError, match=advice):
            sg.optim.Adam(rate)
    with pytest.raises(sg.GraphError, match=r"function of the step: sg\.optim\.Sched"):
        sg.optim.SGD(lambda t: 0.1 / t)
    with pytest.raises(sg.GraphError, match="SGD requires weight_decay >= 0, got x"):
        sg.optim.SGD(0.1, weight_decay="x")
    with pytest.raises(sg.GraphError, match="momentum > 0"):
        sg.optim.SGD(0.1, nesterov=True)
    with pytest.raises(sg.GraphError, match="betas"):
        sg.optim.Adam(0.1, betas=(0.9, 1.0))
    with pytest.raises(sg.GraphError, match="SGD requires momentum >= 0, got -1"):
        sg.optim.SGD(0.1, momentum=-1)
    with pytest.raises(sg.GraphError, match="SGD requires weight_decay >= 0"):
        sg.optim.SGD(0.1, weight_decay=-0.1)
    with pytest.raises(sg.GraphError, match="Adam requires eps >= 0"):
        sg.optim.Adam(0.1, eps=float("nan"))
    with pytest.raises(sg.GraphError, match="Adam requires weight_decay >= 0"):
        sg.optim.AdamW(0.1, weight_decay=-1)
    with sg.Graph():
        p, q = (sg.parameter(np.ones(n, np.float32)) for n in (2, 3))
    with pytest.raises(sg.GraphError, match="one structure"):
        sg.optim.SGD(0.1).updates({"p": q}, {"q": q})
    with pytest.raises(sg.ShapeError, match="parameter's type"):
        sg.optim.SGD(0.1).updates([q], [p])
    with pytest.raises(sg.GraphError, match="parameters and their gradients"):
        sg.optim.SGD(0.1).updates([1.0], [p])
