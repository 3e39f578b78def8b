"""First steps: what a gradient is here, and the other derivatives.

A step of descent by hand, a parameter that is used twice, forward mode, Jacobians,
second derivatives, gradients of what is no scalar, and gradients checked by numbers.
Run: ``python examples/derivatives.py [--short]``.
"""

import argparse

import numpy as np

import staticgrad as sg
from staticgrad.testing import gradcheck


def first_steps():
    """(3x)^2 at 2, and one step of descent on (w x + b - y)^2, by name."""
    with sg.Graph():
        x = sg.parameter(2.0, name="x")
        z = (3 * x) ** 2
        w, b = sg.parameter(1.0, name="w"), sg.parameter(0.0, name="b")
        loss = (w * 2.0 + b - 10.0) ** 2
        dw, db = sg.grad(loss, [w, b])
    return {
        "dz/dx": sg.grad(z, x),
        "dL/dw": dw,
        "dL/db": db,
        "new w": w - 0.01 * dw,
        "new b": b - 0.01 * db,
    }


def orders(x):
    """Derivatives of sum(x^3): first, second, and the whole matrix of the second."""
    y = sg.sum(x**3)
    first = sg.grad(y, x)
    return {
        "first": first,
        "second": sg.grad(sg.sum(first), x),
        "hessian": sg.hessian(y, x),
    }


def directions(x):
    """The Jacobian of (x0^2, x1 x0), its products from both sides, seeds for a row."""
    y = sg.stack([x[0] ** 2, x[1] * x[0]])
    return {
        "jacobian": sg.jacobian(y, x),
        "forward": sg.jvp(y, x, [1.0, 0.0]),
        "reverse": sg.vjp(y, x, [0.0, 1.0]),
        "seeded": sg.grad(y, x, cotangent=[0.0, 1.0]),
    }


def shared(w):
    """A parameter that is used twice gets the sum of both gradients."""
    once, twice = sg.tanh(w), sg.tanh(w) * sg.exp(w)
    parts = sg.grad(sg.sum(once), w) + sg.grad(sg.sum(twice), w)
    return sg.grad(sg.sum(once + twice), w), parts


def frozen():
    """The gradient of a layer behind a frozen one, and which kernels both take."""
    with sg.Graph(seed=0):
        x = sg.input("x", (256, 64))
        layers = [sg.nn.Linear(64, 64) for _ in range(4)]
        h = x
        for layer in layers:
            h = sg.tanh(layer(h))
        loss = sg.mean(h * h)
        last = sg.grad(loss, layers[-1].parameters())
        every = sg.grad(loss, [layer.parameters() for layer in layers])
    return [sg.compile(grads, inputs=[x], sizes={}) for grads in (last, every)]


def main():
    """All of it, with checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="the same: it is short")
    parser.parse_args()
    found = {name: float(v) for name, v in sg.compile(first_steps())().items()}
    print(found)
    wanted = {"dz/dx": 36, "dL/dw": -32, "dL/db": -16, "new w": 1.32, "new b": 0.16}
    assert {name: round(v, 5) for name, v in found.items()} == wanted

    x = sg.input("x", (2,))
    of_cubes = sg.compile(orders(x))([2.0, 3.0])
    print({name: v.tolist() for name, v in of_cubes.items()})
    assert of_cubes["first"].tolist() == [12, 27]
    assert of_cubes["second"].tolist() == [12, 18]
    assert of_cubes["hessian"].tolist() == [[12, 0], [0, 18]]
    seen = sg.compile(directions(x))([2.0, 3.0])
    print({name: v.tolist() for name, v in seen.items()})
    assert seen["jacobian"].tolist() == [[4, 0], [3, 2]]
    assert seen["forward"].tolist() == [4, 3]
    assert seen["reverse"].tolist() == seen["seeded"].tolist() == [3, 2]

    total, parts = sg.compile(shared(x))([0.5, -1.0])
    np.testing.assert_allclose(total, parts, rtol=1e-6)
    last, every = (f.memory.arena_bytes for f in frozen())
    print(f"gradients of the last of four layers: {last:,} bytes, of all: {every:,}")
    assert last < 0.75 * every

    def function(v):
        return sg.sum(sg.tanh(v) * sg.exp(-v * v))

    assert gradcheck(function, np.float64([0.3, -1.2, 2.0]))
    refused = ""
    try:
        gradcheck(
            lambda v: sg.sum(sg.stop_gradient(v) * v), np.float64([0.3, -1.2, 2.0])
        )
    except AssertionError as error:
        refused = str(error)
    print("gradcheck:", " ".join(refused.split()))
    assert refused


if __name__ == "__main__":
    main()
