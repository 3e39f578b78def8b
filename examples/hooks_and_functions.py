"""Functions of one's own and hooks, as the tutorials of dynamic engines have them.

Custom functions (graph operations, compiled numbers, compiled arrays), clipped and
reversed gradients, straight-through estimators, hooks on tensors and modules, taps in a
running training loop, traps, a gradient penalty. Each part checks its numbers. Run:
``python examples/hooks_and_functions.py [--short]``.
"""

import argparse
import warnings

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


softsign_op = sg.custom_op(
    "softsign", kind="scalar", forward=softsign, backward=softsign_backward
)
smoothed_op = sg.custom_op(
    "smoothed", kind="array", forward=smoothed, backward=smoothed_backward
)
exp_op = sg.custom_op("my_exp", forward=sg.exp, backward=lambda g, y, x: g * y)


def own_functions():
    """Each kind of custom_op passes gradcheck; what they refuse is said at build."""
    assert gradcheck(lambda x: softsign_op(x, scale=2.0), X)
    assert gradcheck(smoothed_op, X[0])
    assert gradcheck(exp_op, X)
    x = sg.input("x", ("rows", 3), dtype="float64")
    f = sg.compile(sg.exp(softsign_op(x)) + 1)
    kernels = f.explain().splitlines()[2]
    print(kernels)
    assert kernels.startswith("1 kernels")
    np.testing.assert_allclose(f(X), np.exp(X / (1 + abs(X))) + 1)
    rows = sg.compile(sg.vmap(smoothed_op)(x))(X)
    np.testing.assert_allclose(rows[1], smoothed(X[1]))
    two = sg.custom_op("two", forward=sg.exp, backward=lambda g, y, x: (g, g))
    refusal = ""
    try:
        sg.grad(sg.sum(two(x)), x)
    except sg.GraphError as error:
        refusal = str(error)
    print(refusal)
    assert "1 results, one per input, got 2" in refusal


def changed_gradients(x):
    """Gradients with respect to `x` that a hook sees, replaces, bounds, turns round."""
    seen = []
    y = sg.on_gradient(x, seen.append, lambda g: 10 * g, lambda g: sg.clip(g, -5, 5))
    replaced = sg.grad(sg.sum(y * y), x)
    assert len(seen) == 1  # a hook is called while the gradient is derived
    return {
        "seen": seen[0],
        "replaced": replaced,
        "bounded": sg.grad(sg.sum(sg.clip_gradient(x, high=0.1) * 3), x),
        "reversed": sg.grad(sg.sum(sg.reverse_gradient(x) * 3), x),
        "finite": sg.grad(sg.sum(sg.sqrt(sg.on_gradient(x, sg.nan_to_num))), x),
    }


def hooks_on_tensors():
    """See, replace or drop a gradient; clip, reverse, pass straight through."""
    x = sg.parameter([1.0, -2.0], name="x")
    found = sg.compile(changed_gradients(x))()
    assert found["seen"].tolist() == [2, -4]
    assert found["replaced"].tolist() == [5, -5]
    assert np.allclose(found["bounded"], 0.1)
    assert found["reversed"].tolist() == [-3, -3]
    assert found["finite"].tolist() == [0.5, 0]


def hooked_network():
    """Model, loss, what the first layer gives, and the gradient that comes back."""
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
        sg.grad(loss, model.parameters())  # which calls the hooks
        for handle in handles:
            handle.remove()
    return model, loss, features[0], sides["outs"]


def hooks_on_modules(short):
    """Features of a layer, and the gradients of both its sides, while it trains."""
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(200, 4)).astype(np.float32)}
    data["y"] = np.tanh(data["x"] @ [1, -2, 0.5, 0]).astype(np.float32)
    _, loss, features, coming_back = hooked_network()
    trainer = sg.Trainer(loss, optimizer=sg.optim.Adam(1e-2))
    epochs = 5 if short else 50
    means = []
    with sg.taps():  # all of them end here
        trainer.tap(features, lambda h: means.append(float(h.mean())))
        norms = trainer.tap(sg.linalg.norm(coming_back), record=20)
        watch = trainer.watch_gradients()
        history = trainer.fit(data, epochs=epochs, batch_size=50, progress=False)
    print(watch)
    assert len(means) == norms.count == watch.steps == 4 * epochs
    assert len(norms.values) == 20
    assert np.isfinite(watch.global_norm).all()
    assert history["loss"][-1] < history["loss"][0]
    trainer.fit(data, epochs=1, batch_size=50, progress=False)
    assert watch.steps == 4 * epochs  # nothing is paid, or recorded, any more


def traps():
    """Show common mistakes with hooks: they are reported, or impossible."""
    with sg.Graph():
        x = sg.parameter([1.0, -2.0], name="x")
        loss = sg.sum(x * x)
        sg.on_gradient(x, lambda g: 2 * g)  # what it returns is not used: a dead path
    f = sg.compile(loss)
    seen = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        sg.grad(loss, x)
        f.tap(loss, seen.append)  # its handle is not kept, and it lives on
        f.tap(loss, seen.append)  # as in every epoch of a loop: still one tap
    for warning in told:
        print(warning.message)
    assert [w.category for w in told] == [sg.HookWarning] * 2
    assert "so the hook is never called" in str(told[0].message)
    f()
    assert len(seen) == 1


def slopes_of_one():
    """A critic, and how far the lengths of its slopes are from 1."""
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 2))
        critic = sg.nn.Sequential(
            sg.nn.Linear(2, 16), sg.nn.Tanh(), sg.nn.Linear(16, 1)
        )
        slope = sg.grad(sg.sum(critic(x)), x)
        length = sg.sqrt(sg.sum(slope * slope, axis=1))
        return critic, sg.mean((length - 1.0) ** 2)


def gradient_penalty():
    """A gradient is a tensor: it may be part of a loss, which is derived again."""
    _, loss = slopes_of_one()
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
    traps()
    gradient_penalty()


if __name__ == "__main__":
    main()
