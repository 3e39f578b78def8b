"""Branches and loops over many examples at once, against a loop in Python."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.graph import Graph
from staticgrad.trees import flatten

RNG = np.random.default_rng(0)
ROWS = RNG.uniform(-1, 1, (6, 4))
COUNTS = np.array([0, 3, 1, 2, 5, 2])


def running(x):
    last, ys = sg.scan(lambda c, v: (sg.sin(c * v) + v, (c, v * 2)), 0.5, x)
    return last, ys


def weighted(x, w):
    """Only the carry depends on the examples."""
    last, ys = sg.scan(lambda c, v: (c * v, c), x[0], w, reverse=True)
    return last, ys


def counted(x, n):
    """As many steps as the example says."""
    return sg.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * x), (0, x))[1]


def indexed(x, n):
    """Run a loop whose step could fail where an example is done."""
    return sg.fori_loop(0, n, lambda i, c: c + x[i % 4] * 2, x[0])


def halved(x):
    return sg.while_loop(lambda v: sg.max(v) > 0.2, lambda v: v / 2, x)


def chosen(x):
    return sg.cond(x[0] > 0, lambda: sg.sqrt(abs(x)), lambda: x * 3)


def chosen_by_rows(x):
    return sg.cond(x[0] > 0, lambda: sg.sum(x) * x, lambda: sg.cumsum(x))


def switched(x, n):
    return sg.switch(n, [lambda: x, lambda: x * x, lambda: x @ x * x])


def shared(x, n):
    """The branch is the same for all."""
    return sg.cond(n > 2, lambda: x * 2, lambda: sg.ones(4, dtype="float64"))


CASES = [
    (running, (ROWS,), 0),
    (weighted, (ROWS, ROWS[0]), (0, None)),
    (weighted, (ROWS[0], ROWS), (None, 0)),
    (counted, (ROWS, COUNTS), 0),
    (counted, (ROWS, np.array(3)), (0, None)),
    (indexed, (ROWS, COUNTS), 0),
    (halved, (ROWS,), 0),
    (chosen, (ROWS,), 0),
    (chosen_by_rows, (ROWS,), 0),
    (switched, (ROWS, COUNTS), 0),
    (shared, (ROWS, np.array(3)), (0, None)),
    (shared, (ROWS, np.array(1)), (0, None)),
]


def rows_of(function, args, axes):
    """The results of each example, stacked, by the reference target."""
    axes = axes if isinstance(axes, tuple) else (axes,) * len(args)
    count = next(len(a) for a, axis in zip(args, axes, strict=True) if axis == 0)
    found = []
    for row in range(count):
        own = [
            a if axis is None else a[row] for a, axis in zip(args, axes, strict=True)
        ]
        tensors = [sg.input(f"x{k}", a.shape, a.dtype) for k, a in enumerate(own)]
        f = sg.compile(function(*tensors), inputs=tensors, target="reference")
        leaves, _ = flatten(f(*own))
        found.append(leaves)
    return [np.stack(column) for column in zip(*found, strict=True)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_values(case):
    function, args, axes = case
    wanted = rows_of(function, args, axes)
    tensors = [sg.input(f"x{k}", a.shape, a.dtype) for k, a in enumerate(args)]
    outputs = sg.vmap(function, in_axes=axes)(*tensors)
    for target in ("cpu", "reference"):
        f = sg.compile(outputs, inputs=tensors, target=target)
        got, _ = flatten(f(*args))
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_gradients_inside_and_outside():
    x = sg.input("x", (6, 4), "float64")

    def loss(row):
        last, (ys, _) = running(row)
        return last + sg.sum(ys * chosen(row))

    inside = sg.vmap(lambda row: sg.grad(loss(row), row))(x)
    outside = sg.grad(sg.sum(sg.vmap(loss)(x)), x)
    forward = sg.grad(loss(x[2]), x, mode="forward")
    a, b, c = sg.compile([inside, outside, forward])(ROWS)
    np.testing.assert_allclose(a, b, rtol=1e-10)
    np.testing.assert_allclose(a[2], c[2], rtol=1e-10)
    one = sg.input("one", (4,), "float64")
    f = sg.compile(sg.grad(loss(one), one), target="reference")
    np.testing.assert_allclose(a, np.stack([f(row) for row in ROWS]), rtol=1e-10)


def test_a_batched_loop_and_its_derivative_are_merged():
    x = sg.input("x", (6, 4))

    def both(row):
        last, _ = sg.scan(lambda c, v: (sg.sin(c * v), None), 0.5, row)
        return last, sg.grad(last, row)

    outputs = sg.vmap(both)(x)
    f = sg.compile(list(outputs))
    names = [k.name for k in f.target.code.root.kernels if k.name.startswith("scan")]
    assert len(names) == 2


def test_sizes_may_be_symbolic():
    x = sg.input("x", ("examples", "time"))
    f = sg.compile(sg.vmap(lambda r: sg.scan(lambda c, v: (c + v, c), 0.0, r)[0])(x))
    np.testing.assert_allclose(f(np.ones((3, 5), np.float32)), [5, 5, 5])
    y = sg.vmap(chosen_by_rows)(sg.input("y", ("examples", 4), "float64"))
    np.testing.assert_allclose(sg.compile(y)(ROWS[:2]).shape, (2, 4))


def test_only_the_branches_that_are_taken_run():
    """A gather that would fail in the branch that no example takes."""
    x, i = sg.input("x", (3,)), sg.input("i", ("n",), "int64")
    y = sg.vmap(lambda k: sg.cond(k < 3, lambda: x[k], lambda: x[0] * 0))(i)
    got = sg.compile(y, inputs=[x, i])(np.array([1, 2, 3], np.float32), [0, 9, 2])
    assert got.tolist() == [1, 0, 3]
    assert isinstance(Graph.closed((x, i), (y,)), Graph)
