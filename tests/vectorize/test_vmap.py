"""vmap: every op and sample against a loop, transforms inside, trees, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.graph import apply_multi
from staticgrad.ir.op import OPS, Leaf, Op, Sample
from staticgrad.testing import check_vmap, gradcheck

SAMPLES = [
    pytest.param(op, sample, id=f"{op.name}-{number}")
    for op in OPS.values()
    for number, sample in enumerate(op.samples())
    if not isinstance(op.code, Leaf) and sample.args
]
EXAMPLES = 3


def examples(array: Any, seed: int) -> Any:
    """The array with its elements in other orders, along a new first axis."""
    array = np.asarray(array)
    draw = np.random.default_rng(seed)
    rows = [draw.permutation(array.ravel()).reshape(array.shape) for _ in range(2)]
    return np.stack([array, *rows])


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_every_op_against_a_loop(op: Op, sample: Sample) -> None:
    args = [np.asarray(arg) for arg in sample.args]
    many = [examples(arg, seed) for seed, arg in enumerate(args)]

    def function(*xs: Any) -> Any:
        return list(apply_multi(op, *xs, **sample.attrs))

    check_vmap(function, *many)
    check_vmap(function, *many, size="batch")
    last = [np.moveaxis(a, 0, -1) for a in many]
    check_vmap(function, *last, in_axes=-1)
    for place in range(len(args) if len(args) > 1 else 0):
        mixed = [many[k] if k == place else arg for k, arg in enumerate(args)]
        axes = tuple(0 if k == place else None for k in range(len(args)))
        check_vmap(function, *mixed, in_axes=axes)


def value(tree: Any, **inputs: Any) -> Any:
    return sg.compile(tree, target="reference")(**inputs)


X = np.random.default_rng(0).normal(size=(4, 3))
W = np.random.default_rng(1).normal(size=(3, 3))


def weight() -> sg.Parameter:
    return sg.parameter(W, name="w")


def loss(row: Any, w: Any) -> Any:
    return sg.sum(sg.tanh(w @ row) ** 2) * sg.max(row)


INSIDE = {
    "grad": lambda row, w: sg.grad(loss(row, w), row),
    "grad of the weight": lambda row, w: sg.grad(loss(row, w), w),
    "jvp": lambda row, w: sg.jvp(loss(row, w), row, row * row),
    "jacobian": lambda row, w: sg.jacobian(sg.tanh(w @ row), row),
    "forward jacobian": lambda row, w: sg.jacobian(w @ row, row, mode="forward"),
    "hessian": lambda row, w: sg.hessian(loss(row, w), row),
    "hvp": lambda row, w: sg.hvp(loss(row, w), row, row),
    "grad of grad": lambda row, w: sg.grad(
        sg.sum(sg.grad(loss(row, w), row) ** 2), row
    ),
    "vmap": lambda row, w: sg.vmap(lambda x: x * row + w[0])(w),
    "vmap of grad": lambda row, w: sg.vmap(
        lambda x: sg.grad(sg.sum(sg.sin(x * row)), row)
    )(w),
    "softmax": lambda row, w: sg.softmax(w @ row),
    "take": lambda row, w: sg.take(w, sg.argmax(row), axis=1),
}


@pytest.mark.parametrize("name", INSIDE)
def test_transforms_inside(name: str) -> None:
    w = weight()
    assert check_vmap(lambda row: INSIDE[name](row, w), X)
    assert check_vmap(lambda row: INSIDE[name](row, w), X, size="batch")
    assert check_vmap(INSIDE[name], X, W, in_axes=(0, None))
    assert check_vmap(INSIDE[name], X, np.stack([W] * 4, axis=1), in_axes=(0, 1))


@pytest.mark.parametrize("name", ["jvp", "hessian", "softmax", "take", "vmap"])
def test_on_the_cpu_target(name: str) -> None:
    w, x = weight(), sg.parameter(X)
    many = sg.vmap(lambda row: INSIDE[name](row, w))(x)
    np.testing.assert_allclose(sg.compile(many)(), value(many), rtol=1e-9, atol=1e-12)


OUTSIDE = {
    "grad": lambda x: sg.grad(sg.sum(sg.vmap(lambda r: loss(r, W))(x) ** 2), x),
    "jvp": lambda x: sg.jvp(sg.vmap(lambda r: loss(r, W))(x), x, x),
    "hessian": lambda x: sg.hessian(sg.sum(sg.vmap(lambda r: loss(r, W))(x)), x),
    "take": lambda x: sg.grad(
        sg.sum(sg.vmap(lambda r: sg.take(r, sg.argmin(r)) ** 2)(x)), x
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_transforms_outside(name: str) -> None:
    assert gradcheck(OUTSIDE[name], X)


def test_gradient_of_vmap_equals_that_of_a_loop() -> None:
    x = sg.parameter(X)
    many = sg.sum(sg.vmap(lambda r: loss(r, W))(x))
    loop = sg.sum(sg.stack([loss(row, W) for row in x]))
    np.testing.assert_allclose(value(sg.grad(many, x)), value(sg.grad(loop, x)))


def test_trees_and_axes() -> None:
    w = sg.parameter(np.arange(6.0).reshape(2, 3), name="w")
    x = sg.parameter(np.arange(3.0), name="x")

    def function(tree: Any, scale: Any) -> Any:
        return {"a": tree["w"] * scale, "b": (tree["x"], None), "c": 1.0}

    axes = ({"x": None, "w": 1}, None)
    outs = {"a": -1, "b": (None, None), "c": 0}
    found = sg.vmap(function, axes, outs)({"w": w, "x": x}, 2.0)
    assert value(found["a"]).tolist() == [[0, 2, 4], [6, 8, 10]]
    assert found["b"][0] is x
    assert found["b"][1] is None
    assert value(found["c"]).tolist() == [1, 1, 1]


def test_per_example_gradients_in_one_call() -> None:
    with sg.Graph():
        x = sg.input("x", ("batch", 3))
        y = sg.input("y", ("batch",), dtype="int64")
        layer = sg.nn.Linear(3, 5)

    def one(row: Any, label: Any) -> Any:
        logits = layer(sg.expand_dims(row, 0))
        cost = sg.nn.cross_entropy(logits, sg.expand_dims(label, 0))
        return sg.grad(cost, layer.parameters())

    f = sg.compile(sg.vmap(one)(x, y), inputs=[x, y])
    rows, labels = X.astype("float32"), np.array([0, 4, 2, 2])
    many = f(x=rows, y=labels)
    loop = sg.compile(
        sg.grad(sg.nn.cross_entropy(layer(x), y), layer.parameters()), inputs=[x, y]
    )
    for number in range(4):
        one_ = loop(x=rows[number : number + 1], y=labels[number : number + 1])
        for name, g in one_.items():
            np.testing.assert_allclose(many[name][number], g, rtol=1e-5, atol=1e-6)


def test_a_bad_index_is_found() -> None:
    with sg.Graph():
        i = sg.input("i", (3,), dtype="int64")
    x = sg.parameter(np.arange(12.0).reshape(3, 4))
    f = sg.compile(sg.vmap(lambda row, k: row[k])(x, i), inputs=[i])
    assert f(i=[0, -1, 2]).tolist() == [0, 7, 10]
    with pytest.raises(sg.IndexOutOfRange):
        f(i=[0, 4, 2])


def test_random_keys() -> None:
    key = sg.random.key(3)
    keys = sg.random.fold_in(key, np.arange(4))

    def draw(k):
        return sg.random.uniform(k, (5,))

    many = sg.vmap(draw)(keys)
    loop = sg.stack([draw(k) for k in keys])
    np.testing.assert_array_equal(value(many), value(loop))
    np.testing.assert_array_equal(sg.compile(many)(), value(loop))
    same = sg.vmap(lambda x: x + draw(key))(sg.parameter(np.zeros((2, 1))))
    np.testing.assert_array_equal(value(same)[0], value(same)[1])


def test_what_is_made_inside_is_no_end_of_the_graph() -> None:
    with sg.Graph() as graph:
        x = sg.input("x", (4, 3))
        y = sg.vmap(lambda row: sg.sum(row * 2))(x)
    assert all(not t.shape or t.shape[0] == 4 for t in graph.ends)
    assert any(t is y for t in graph.ends)


def test_updates_inside() -> None:
    x = sg.parameter(X)
    with sg.Graph() as graph:
        total = sg.state(0.0, name="total")

        def counted(row: Any) -> Any:
            sg.update(total, total + 1)
            return row

        sg.vmap(counted)(x)
        assert len(graph.updates) == 1
        other = sg.state(np.zeros(3), name="other")

        def bad(row: Any) -> Any:
            sg.update(other, other + row)
            return row

        with pytest.raises(sg.GraphError, match="return the value and update outside"):
            sg.vmap(bad)(x)


def test_errors() -> None:
    x = sg.parameter(X)
    with pytest.raises(sg.GraphError, match="an argument to map over"):
        sg.vmap(lambda a: a, None)(x)
    with pytest.raises(sg.ShapeError, match="one number of examples, got 4 and 3"):
        sg.vmap(lambda a, b: a, (0, 1))(x, x)
    with pytest.raises(sg.ShapeError, match="with an axis 0 of examples"):
        sg.vmap(lambda a: a)(1.0)
    with pytest.raises(sg.GraphError, match="in_axes of integers, None, or a tree"):
        sg.vmap(lambda a: a, ({"a": 0},))(x)
    with pytest.raises(sg.GraphError, match="in_axes"):
        sg.vmap(lambda a: a, (0, 0))(x)
    with pytest.raises(sg.GraphError, match="that depends on them"):
        sg.vmap(lambda a: a, 0, None)(x)
    with pytest.raises(sg.ShapeError, match="an axis of the result"):
        sg.vmap(lambda a: a, 0, 2)(x)


def test_check_vmap_shows_differences() -> None:
    calls = iter([1.0, *range(2, 10)])
    with pytest.raises(AssertionError, match=r"output 0: [\s\S]* in the loop"):
        check_vmap(lambda x: x * next(calls), X)
