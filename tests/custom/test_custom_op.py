"""custom_op: values, derivatives of its own, transforms, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.testing import check_jvp, check_vmap, gradcheck, gradgradcheck

X = np.array([[0.3, -1.2, 2.1], [1.4, 0.7, -0.6]])


def value(tensor: Any) -> Any:
    return sg.compile(tensor, target="reference")()


def parameter(array: Any, name: str = "p") -> sg.Parameter:
    return sg.parameter(np.array(array, "float64"), name=name)


scaled_exp = sg.custom_op(
    "scaled_exp",
    forward=lambda x, s: sg.exp(x) * sg.sum(s),
    backward=lambda g, y, x, s: (
        g * y,
        sg.broadcast_to(sg.sum(g * sg.exp(x)), s.shape),
    ),
)
clipped = sg.custom_op(
    "clipped", forward=lambda x: x * 1.0, backward=lambda g, y, x: sg.clip(g, -1, 1)
)
straight = sg.custom_op("straight", forward=sg.rint, backward=lambda g, y, x: g)


def test_the_gradient_is_the_users() -> None:
    x = parameter([0.4, 1.6])
    y = straight(x)
    for target in ("reference", "cpu"):
        f = sg.compile([y, sg.grad(sg.sum(y * y), x)], target=target)
        first, slope = f()
        assert first.tolist() == [0, 2]
        assert slope.tolist() == [0, 4]
    steep = sg.grad(sg.sum(clipped(x) * [5.0, 0.5]), x)
    assert value(steep).tolist() == [1, 0.5]


def test_a_right_backward_passes_all_checks() -> None:
    s = np.array([0.5, 1.5])
    assert gradcheck(scaled_exp, X, s)
    assert gradgradcheck(scaled_exp, X, s)
    assert check_jvp(scaled_exp, X, s)
    assert check_vmap(scaled_exp, X, s)
    assert check_vmap(lambda x: scaled_exp(x, s), X, size="batch")
    assert check_vmap(lambda x: sg.grad(sg.sum(scaled_exp(x, s)), x), X, size="batch")
    assert gradcheck(lambda x: sg.vmap(lambda row: scaled_exp(row, s))(x), X)


def test_jvp_transposes_backward() -> None:
    x = parameter([0.4, 1.6])
    assert value(sg.jvp(straight(x), x, [1.0, 3.0])).tolist() == [1, 3]
    assert value(sg.jacobian(straight(x), x)).tolist() == [[1, 0], [0, 1]]


def test_vmap_of_a_gradient_that_differs() -> None:
    x = parameter([[0.4, 1.6], [2.6, -0.7]])
    rows = sg.vmap(lambda row: sg.grad(sg.sum(straight(row) ** 2), row))(x)
    assert value(rows).tolist() == [[0, 4], [6, -2]]


def test_none_is_zero() -> None:
    first = sg.custom_op(
        "first", forward=lambda x, y: x * y, backward=lambda g, z, x, y: (g * y, None)
    )
    x, y = parameter(3.0, "x"), parameter(2.0, "y")
    assert value(sg.grad(first(x, y), x)) == 2
    with pytest.raises(sg.GraphError, match="depend on wrt"):
        sg.grad(first(x, y), y)
    flat = sg.custom_op("flat", forward=lambda x: x * x)
    assert value(sg.grad(flat(x) + x, x)) == 1


def test_integers_may_be_inputs() -> None:
    pick = sg.custom_op(
        "pick",
        forward=lambda x, i: sg.take(x, i),
        backward=lambda g, y, x, i: (sg.scatter_add(x.shape, i, g), None),
    )
    x = parameter([1.0, 2.0, 3.0])
    assert value(sg.grad(sg.sum(pick(x, [0, 2, 0])), x)).tolist() == [2, 0, 1]


def test_declared_shape_and_dtype() -> None:
    op = sg.custom_op(
        "total",
        forward=lambda x: sg.sum(x),
        backward=lambda g, y, x: sg.broadcast_to(g, x.shape),
        shape=lambda shape: (),
        dtype=lambda dtype: dtype,
    )
    assert op(parameter(X)).shape == ()
    wrong = sg.custom_op("wrong", forward=lambda x: x, shape=(5,))
    with pytest.raises(sg.ShapeError, match=r"wrong requires forward .* shape \(5,\)"):
        wrong(parameter(X))
    wrong = sg.custom_op("wrong", forward=lambda x: x, dtype="float32")
    with pytest.raises(sg.DTypeError, match="wrong requires forward .* float32"):
        wrong(parameter(X))


BACKWARD = {
    "count": (lambda g, y, x: (g, g), sg.GraphError, "1 results, one per input"),
    "shape": (lambda g, y, x: sg.sum(g), sg.ShapeError, "the shape of input 0"),
    "dtype": (
        lambda g, y, x: g.astype("float32"), sg.DTypeError, "the dtype of input 0"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BACKWARD)
def test_wrong_backward(name: str) -> None:
    backward, error, match = BACKWARD[name]
    x = parameter(X)
    y = sg.custom_op("mine", forward=sg.sin, backward=backward)(x)
    with pytest.raises(error, match=f"mine requires backward to give {match}"):
        sg.grad(sg.sum(y), x)


def test_wrong_definitions() -> None:
    with pytest.raises(sg.GraphError, match="'scalar' or 'array', got 'vector'"):
        sg.custom_op("a", forward=sg.sin, kind="vector")  # type: ignore[arg-type]
    with pytest.raises(sg.GraphError, match="name that is an identifier"):
        sg.custom_op("a b", forward=sg.sin)
    with pytest.raises(
        sg.GraphError, match="nothing requires forward to give a Tensor"
    ):
        sg.custom_op("nothing", forward=lambda x: None)(1.0)
