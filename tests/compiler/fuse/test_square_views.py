"""Do kernels keep apart axes of equal length? Views that turn them, around cheap work.

A value that is cheap to compute is computed again where it is read; between it and its
inputs there may be a view that turns axes. Where these are equally long, no shape
gives a mistake away: values and gradients are compared with the reference target.
"""

import itertools

import numpy as np
import pytest

import staticgrad as sg

PRODUCERS = {
    "double": lambda a, b: 2 * a,
    "sum": lambda a, b: a + b,
    "chosen": lambda a, b: sg.where(a > b, a, -b),
    "rolled": lambda a, b: sg.roll(a, 1, axis=0) * 2,
    "outer": lambda a, b: a[0] * b[:, :1],
    "running": lambda a, b: sg.cumsum(a, axis=1) + a,
    "product": lambda a, b: a @ b + a,
}
VIEWS = {
    "turned": lambda c: c.T,
    "half turned": lambda c: (c + 1).T * 2,
    "rotated": lambda c: sg.rot90(c),
    "reshaped": lambda c: c.T.reshape(9).reshape(3, 3),
    "twice": lambda c: (c.T * 3).T,
    "deep": lambda c: sg.swapaxes(c.reshape(1, 3, 3) * 2, 1, 2)[0],
}
REDUCTIONS = {
    "sum 0": lambda c: sg.sum(c, axis=0),
    "max 1": lambda c: sg.max(c, axis=1, keepdims=True),
    "mean": lambda c: sg.mean(c * c),
    "running": lambda c: sg.cumsum(c, axis=1),
}
COMBINED = {
    "times": lambda c, s, d: c * d + s,
    "with its turn": lambda c, s, d: c * c.T + s,
    "softmax": lambda c, s, d: sg.softmax(c * d, axis=0) - s,
}
CASES = list(itertools.product(PRODUCERS, VIEWS))


def built(producer, view):
    """Every reduction and combination of one producer and view, and its gradients."""
    a, b, d = (sg.input(name, (3, 3), "float64") for name in "abd")
    c = VIEWS[view](PRODUCERS[producer](a, b))
    weights = np.arange(9.0).reshape(3, 3)
    outputs = []
    for reduction, combine in itertools.product(REDUCTIONS, COMBINED):
        y = COMBINED[combine](c, REDUCTIONS[reduction](c), d)
        g = sg.grad(sg.sum(weights * sg.sin(y)), a)
        outputs.append([y, g, sg.grad(sg.sum(weights * g), a)])
    return [a, b, d], outputs


@pytest.mark.parametrize(("producer", "view"), CASES)
def test_values_and_gradients_of_turned_squares(producer, view):
    rng = np.random.default_rng(CASES.index((producer, view)))
    arrays = [rng.standard_normal((3, 3)) for _ in range(3)]
    inputs, outputs = built(producer, view)
    for one in outputs:  # alone, as fusion then has the most room
        found = sg.compile(one, inputs=inputs, poison=True)(*arrays)
        wanted = sg.compile(one, inputs=inputs, target="reference")(*arrays)
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)
