"""Forward mode: every op and sample, compositions, known values, structure, size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.graph import apply_multi, topological
from staticgrad.ir.op import OPS, Op, Sample
from staticgrad.ir.types import is_float
from staticgrad.testing import check_jvp, gradcheck

SAMPLES = [
    pytest.param(op, sample, id=f"{op.name}-{number}")
    for op in OPS.values()
    for number, sample in enumerate(op.samples())
    if op.vjp is not None and sample.grad
]


def as_float64(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return np.dtype("float64") if is_float(value) else value
    array = np.asarray(value)
    return array.astype("float64") if is_float(array.dtype) else array


def function_of(op: Op, sample: Sample) -> Any:
    attrs = {
        name: as_float64(value) if isinstance(value, np.dtype) else value
        for name, value in sample.attrs.items()
    }
    return lambda *xs: list(apply_multi(op, *xs, **attrs))


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_every_op_against_differences_and_reverse_mode(op: Op, sample: Sample) -> None:
    args = [as_float64(arg) for arg in sample.args]
    if any(is_float(arg.dtype) for arg in args):
        check_jvp(function_of(op, sample), *args, simplify=False)


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_every_op_forward_over_reverse(op: Op, sample: Sample) -> None:
    """The tangent of the gradient, against differences of the gradient."""
    args = [as_float64(arg) for arg in sample.args]
    function = function_of(op, sample)
    if not any(is_float(arg.dtype) for arg in args):
        return

    def gradient(*xs: Any) -> Any:
        ys = [y for y in function(*xs) if is_float(y.dtype)]
        floats = [x for x in xs if is_float(x.dtype)]
        weights = [np.linspace(0.5, 1.5, int(np.prod(y.shape))) for y in ys]
        seeds = [w.reshape(y.shape) for w, y in zip(weights, ys)]
        return sg.vjp(ys, floats, seeds, unused="zero", simplify=False)

    check_jvp(gradient, *args, simplify=False)


def value(tensor: Any) -> Any:
    return sg.compile(tensor, target="reference")()


def parameter(array: Any, name: str = "p") -> sg.Parameter:
    return sg.parameter(np.array(array, "float64"), name=name)


def directional(y: Any, x: Any) -> Any:
    return sg.jvp(y, x, np.full(x.shape, 0.7))


X = np.array([0.3, -1.2, 2.1])
COMPOSED = {
    "jvp": lambda x: directional(sg.sin(x) * sg.sum(x * x), x),
    "jvp of jvp": lambda x: directional(directional(sg.sin(x) * sg.sum(x * x), x), x),
    "jvp of grad": lambda x: directional(sg.grad(sg.sum(sg.exp(x) * x), x), x),
    "grad of jvp": lambda x: sg.grad(sg.sum(directional(sg.exp(x) * x, x)), x),
    "logsumexp": lambda x: directional(sg.log(sg.sum(sg.exp(x))), x),
    "softmax": lambda x: directional(sg.softmax(x), x),
    "by_mode": lambda x: directional(sg.by_mode(train=x, eval=x * x), x),
    "prod": lambda x: directional(sg.prod(x), x),
    "max": lambda x: directional(sg.max(x) * x, x),
    "matmul": lambda x: directional(sg.outer(x, x) @ x, x),
    "norm": lambda x: directional(sg.sqrt(sg.sum(x * x)), x),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_compositions(name: str) -> None:
    assert check_jvp(COMPOSED[name], X)
    assert gradcheck(COMPOSED[name], X)


def test_known_values() -> None:
    x, y = parameter([1.0, 2.0], "x"), parameter(3.0, "y")
    tangents = sg.jvp({"a": x * y, "b": [y, x]}, (x, y), ([1.0, 0.0], 2))
    assert value(tangents["a"]).tolist() == [5, 4]
    assert value(tangents["b"][0]) == 2
    assert value(tangents["b"][1]).tolist() == [1, 0]


def test_an_intermediate_and_what_it_is_made_of() -> None:
    x = parameter(2.0)
    h = x * x
    y = h * x
    # dy = x dh + h dx with dh = 2 x dx + its own tangent
    assert value(sg.jvp(y, [x, h], [1.0, 10.0])) == 2 * (4 + 10) + 4
    dx, dh = sg.grad(y, [x, h])
    assert value(dx) + 10 * value(dh) == 32


def test_vjp_of_several_outputs() -> None:
    x = parameter([1.0, 2.0])
    dx = sg.vjp([x * x, sg.sum(x)], x, [[1.0, 1.0], 10])
    assert value(dx).tolist() == [12, 14]
    assert value(sg.vjp([x, x], x, [[1, 2], [3, 4]])).tolist() == [4, 6]


def test_grad_in_forward_mode() -> None:
    x, w = parameter([1.0, 2.0], "x"), parameter([[1.0, 2.0], [3.0, 4.0]], "w")
    y = sg.sum(sg.tanh(w @ x))
    for a, b in zip(sg.grad(y, [x, w]), sg.grad(y, [x, w], mode="forward")):
        np.testing.assert_allclose(value(a), value(b))
    same, dx = sg.value_and_grad(y, x, mode="forward")
    assert same is y
    np.testing.assert_allclose(value(dx), value(sg.grad(y, x)))
    g = sg.grad(w @ x, x, cotangent=[1.0, 10.0], mode="forward")
    assert value(g).tolist() == [31, 42]


def test_masked_branches_do_not_poison() -> None:
    x = parameter([0.0, 4.0])
    y = sg.where(x > 0, sg.sqrt(x), 0.0)
    assert value(sg.jvp(y, x, [1.0, 1.0])).tolist() == [0, 0.25]
    big = parameter([1000.0, 999.0])
    slope = value(sg.jvp(sg.log(sg.sum(sg.exp(big))), big, [1.0, 1.0]))
    np.testing.assert_allclose(slope, 1.0)


def test_stop_gradient_has_no_tangent() -> None:
    x = parameter(3.0)
    assert value(sg.jvp(x * sg.stop_gradient(x), x, 1.0)) == 3


def test_unused() -> None:
    x, y = parameter(1.0, "x"), parameter(2.0, "y")
    with pytest.raises(sg.GraphError, match="jvp requires y to depend on wrt"):
        sg.jvp(x * x, [x, y], [1.0, 1.0])
    assert value(sg.jvp(x * x, [x, y], [1.0, 1.0], unused="zero")) == 2
    assert value(sg.jvp([x * x, y], x, 1.0)[1]) == 0
    with pytest.raises(sg.GraphError, match="vjp requires y to depend on wrt"):
        sg.vjp(x * x, [x, y], 1.0)
    assert value(sg.vjp(x * x, [x, y], 1.0, unused="zero")[1]) == 0


def test_bad_arguments() -> None:
    x = parameter([1.0, 2.0], "x")
    with pytest.raises(sg.ShapeError, match="jvp requires a tangent of the shape"):
        sg.jvp(x, x, np.ones(3))
    with pytest.raises(sg.DTypeError, match="jvp requires a tangent of the dtype"):
        sg.jvp(x, x, np.ones(2, "float32"))
    with pytest.raises(sg.ShapeError, match="vjp requires a cotangent of the shape"):
        sg.vjp(x, x, np.ones(3))
    with pytest.raises(sg.DTypeError, match="jvp requires a float y"):
        sg.jvp(x > 0, x, x)
    with pytest.raises(sg.DTypeError, match="jvp requires float tensors in wrt"):
        sg.jvp(x, sg.constant([1]), [1])
    with pytest.raises(sg.GraphError, match="lambda x, v: sg.jvp"):
        sg.jvp(sg.exp, x, x)
    with pytest.raises(sg.GraphError, match="'reverse' or 'forward'"):
        sg.grad(sg.sum(x), x, mode="backward")


def test_check_jvp_shows_differences() -> None:
    record = OPS["sin"]
    wrong = Op(
        "wrong", record.shape, record.dtype, lambda g, y, x: (g * 2,), record.code,
        record.numpy, tuple, tuple,
    )  # fmt: skip
    with pytest.raises(AssertionError, match=r"output 0\[0\]: tangent"):
        check_jvp(lambda x: apply_multi(wrong, x)[0], X)
    with pytest.raises(sg.DTypeError, match="float64"):
        check_jvp(sg.exp, X.astype("float32"))


def test_repeated_squares_stay_linear() -> None:
    x = parameter(1.0001)
    y: Any = x
    for _ in range(60):
        y = y * y
    dy = sg.jvp(y, x, 1.0)
    assert len(topological([dy])) < 60 * 6
    np.testing.assert_allclose(value(dy), value(sg.grad(y, x)))


@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_derivative_of_100_layers_is_small(mode: str) -> None:
    x = parameter(np.ones((4, 8)), "x")
    h: Any = x
    weights = [parameter(np.eye(8) * 0.5, f"w{k}") for k in range(100)]
    for w in weights:
        h = sg.tanh(h @ w + 0.1)
    loss = sg.sum(h)
    forward = len(topological([loss]))
    if mode == "reverse":
        derivative = sg.grad(loss, weights)
    else:
        derivative = [sg.jvp(loss, weights, weights)]
    assert len(topological(derivative)) <= 5 * forward
