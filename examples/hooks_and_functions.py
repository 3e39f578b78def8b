"""Functions of one's own and hooks, as the tutorials of dynamic engines have them.

Custom functions (graph operations, compiled numbers, compiled arrays), clipped and
reversed gradients, straight-through estimators, hooks on tensors and modules, taps in a
running training loop, a gradient penalty. Each part checks its numbers. Run:
``python examples/hooks_and_functions.py [--short]``.
"""

import argparse

import numba
import numpy as np

import staticgrad as sg
from staticgrad.testing import gradcheck

X = np.float64([[0.3, -1.2, 2.1], [1.4, 0.7, -0.6]])


@numba.njit
def softsign(x, scale=1.0):
    """Of one number; Numba compiles it into the kernel."""
    return scale * x / (1.0 + abs(x))


@numba.njit
def softsign_backward(g, y, x, scale=1.0):
    """Of the cotangent, the result and the input."""
    return g * scale / (1.0 + abs(x)) ** 2


@numba.njit
def smoothed(x):
    """Of an array: an exponential average, and what backward needs of it."""
    y = np.empty_like(x)
    y[0] = x[0]
    for i in range(1, len(x)):
        y[i] = 0.7 * y[i - 1] + 0.3 * x[i]
    return y


@numba.njit
def smoothed_backward(g, y, x):
    """The same average, walked back."""
    dx = np.empty_like(x)
    carried = 0.0
    for i in range(len(x) - 1, 0, -1):
        carried = 0.7 * carried + g[i]
        dx[i] = 0.3 * carried
    dx[0] = g[0] + 0.7 * carried
    return dx


def own_functions():
    """Each kind of custom_op passes gradcheck; what they refuse is said at build."""
    scalar = sg.custom_op(
        "softsign", kind="scalar", forward=softsign, backward=softsign_backward
    )
    array = sg.custom_op(
        "smoothed", kind="array", forward=smoothed, backward=smoothed_backward
    )
    exp = sg.custom_op("my_exp", forward=sg.exp, backward=lambda g, y, x: g * y)
    assert gradcheck(lambda x: scalar(x, scale=2.0), X)
    assert gradcheck(array, X[0])
    assert gradcheck(exp, X)
    x = sg.input("x", ("rows", 3), dtype="float64")
    f = sg.compile(sg.exp(scalar(x)) + 1)
    kernels = f.explain().splitlines()[2]
    print(kernels)
    assert kernels.startswith("1 kernels")
    np.testing.assert_allclose(f(X), np.exp(X / (1 + abs(X))) + 1)
    rows = sg.compile(sg.vmap(array)(x))(X)
    np.testing.assert_allclose(rows[1], smoothed(X[1]))
    two = sg.custom_op("two", forward=sg.exp, backward=lambda g, y, x: (g, g))
    refusal = ""
    try:
        sg.grad(sg.sum(two(x)), x)
    except sg.GraphError as error:
        refusal = str(error)
    print(refusal)
    assert "1 results, one per input, got 2" in refusal


def hooks_on_tensors():
    """See, replace or drop a gradient; clip, reverse, pass straight through."""
    x = sg.parameter([1.0, -2.0], name="x")
    seen = []
    y = sg.on_gradient(x, seen.append, lambda g: 10 * g, lambda g: sg.clip(g, -5, 5))
    dx = sg.grad(sg.sum(y * y), x)
    assert len(seen) == 1  # a hook is called while the gradient is derived
    got = sg.compile([dx, seen[0]])()
    assert got[0].tolist() == [5, -5]
    assert got[1].tolist() == [2, -4]
    clipped = sg.grad(sg.sum(sg.clip_gradient(x, high=0.1) * 3), x)
    assert np.allclose(sg.compile(clipped)(), 0.1)
    reverse = sg.grad(sg.sum(sg.reverse_gradient(x) * 3), x)
    assert sg.compile(reverse)().tolist() == [-3, -3]
    root = sg.sqrt(sg.on_gradient(x, sg.nan_to_num))
    assert np.isfinite(sg.compile(sg.grad(sg.sum(root), x))()).all()


def hooks_on_modules(short):
    """Features of a layer, and the gradients of both its sides, while it trains."""
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(200, 4)).astype(np.float32)}
    data["y"] = np.tanh(data["x"] @ [1, -2, 0.5, 0]).astype(np.float32)
    with sg.Graph(seed=0):
        x, y = sg.input("x", ("batch", 4)), sg.input("y", ("batch",))
        hidden = sg.nn.Linear(4, 8)
        features, sides = [], {}
        handles = [
            hidden.on_forward(lambda module, args, result: features.append(result)),
            hidden.on_backward(lambda module, ins, outs: sides.update(outs=outs[0])),
        ]
        model = sg.nn.Sequential(hidden, sg.nn.Tanh(), sg.nn.Linear(8, 1))
        loss = sg.mean((model(x)[:, 0] - y) ** 2)
        trainer = sg.Trainer(loss, optimizer=sg.optim.Adam(1e-2))
        for handle in handles:
            handle.remove()
    epochs = 5 if short else 50
    means = []
    with sg.taps():  # all of them end here
        trainer.tap(features[0], lambda h: means.append(float(h.mean())))
        norms = trainer.tap(sg.linalg.norm(sides["outs"]), record=20)
        watch = trainer.watch_gradients()
        history = trainer.fit(data, epochs=epochs, batch_size=50, progress=False)
    print(watch)
    assert len(means) == norms.count == watch.steps == 4 * epochs
    assert len(norms.values) == 20
    assert np.isfinite(watch.global_norm).all()
    assert history["loss"][-1] < history["loss"][0]
    trainer.fit(data, epochs=1, batch_size=50, progress=False)
    assert watch.steps == 4 * epochs  # nothing is paid, or recorded, any more


def gradient_penalty():
    """A gradient is a tensor: it may be part of a loss, which is derived again."""
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 2))
        critic = sg.nn.Sequential(
            sg.nn.Linear(2, 16), sg.nn.Tanh(), sg.nn.Linear(16, 1)
        )
        slope = sg.grad(sg.sum(critic(x)), x)
        length = sg.sqrt(sg.sum(slope * slope, axis=1))
        loss = sg.mean((length - 1.0) ** 2)
    trainer = sg.Trainer(loss, optimizer=sg.optim.Adam(2e-2))
    data = {"x": np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)}
    history = trainer.fit(data, epochs=200, progress=False)
    print(f"slopes of the critic: (|slope| - 1)^2 = {history['loss'][-1]:.4f}")
    assert history["loss"][-1] < 0.05 * history["loss"][0]


def main():
    """All parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer epochs")
    options = parser.parse_args()
    own_functions()
    hooks_on_tensors()
    hooks_on_modules(options.short)
    gradient_penalty()


if __name__ == "__main__":
    main()
