"""Gradients: every op and sample to order 2, known values, structure, cuts, size."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import staticgrad as sg
from staticgrad.compiler.compile import optimise
from staticgrad.compiler.runtime.targets.reference import run
from staticgrad.ir.graph import Graph, topological
from staticgrad.ir.node import Tensor
from staticgrad.ir.op import OPS, Elementwise, Op, Sample
from staticgrad.ir.verify_graph import verify_graph
from staticgrad.ops.named import named
from staticgrad.testing import check_op, gradcheck, gradgradcheck

SAMPLES = [
    pytest.param(op, sample, id=f"{op.name}-{number}")
    for op in OPS.values()
    for number, sample in enumerate(op.samples())
    if op.vjp is not None and sample.grad
]


@pytest.mark.parametrize(("op", "sample"), SAMPLES)
def test_every_op_to_second_order(op: Op, sample: Sample) -> None:
    check_op(op, sample)


def value(tensors: Any, mode: Any = "eval", **inputs: Any) -> Any:
    """The arrays of a list of tensors, on the reference target."""
    outputs = tensors if isinstance(tensors, list | tuple) else [tensors]
    leaves = [
        t
        for node in topological(outputs)
        for t in node.outputs
        if isinstance(t, sg.Input)
    ]
    graph = Graph.closed(leaves, outputs)
    verify_graph(graph)
    arrays, _ = run(graph, mode, {k: np.asarray(v) for k, v in inputs.items()})
    return arrays if isinstance(tensors, list | tuple) else arrays[0]


def parameter(array: Any, name: str = "p", dtype: str = "float64") -> sg.Parameter:
    return sg.parameter(np.array(array, dtype), name=name)


# ---- known values --------------------------------------------------------------------


@pytest.mark.parametrize("simplify", [True, False])
def test_square_of_three_x(simplify: bool) -> None:
    x = parameter(2.0)
    assert value(sg.grad((3 * x) ** 2, x, simplify=simplify)) == 36


def test_linear_regression_step() -> None:
    w, b = parameter([1.0], "w"), parameter([0.0], "b")
    loss = sg.sum((w * 2.0 + b - 10.0) ** 2)
    dw, db = sg.grad(loss, (w, b))
    assert value([dw, db]) == [[-32], [-16]]
    new = value([w - 0.01 * dw, b - 0.01 * db])
    np.testing.assert_allclose(new, [[1.32], [0.16]])


def test_a_shared_parameter_sums_its_uses() -> None:
    x = parameter(3.0)
    y = sg.sin(x) * x + x
    np.testing.assert_allclose(value(sg.grad(y, x)), np.sin(3) + 3 * np.cos(3) + 1)


def test_second_derivatives_of_cubes() -> None:
    x = parameter([2.0, 3.0])
    first = sg.grad(sg.sum(x**3), x)
    second = sg.grad(sg.sum(first), x)
    third = sg.grad(sg.sum(second), x)
    np.testing.assert_allclose(value(first), [12, 27])
    np.testing.assert_allclose(value(second), [12, 18])
    np.testing.assert_allclose(value(third), [6, 6])


def test_stop_gradient_and_copy() -> None:
    x = parameter(3.0)
    assert value(sg.grad(sg.stop_gradient(x) * x, x)) == 3
    assert value(sg.grad(named("copy", x) * x, x)) == 6


def test_a_frozen_part_needs_no_backward() -> None:
    x = sg.constant(np.ones((2, 3)))
    frozen, w = parameter(np.ones((3, 3)), "frozen"), parameter(np.ones((3, 2)), "w")
    loss = sg.sum(sg.tanh(sg.tanh(x @ frozen) @ w))
    names = [node.op.name for node in topological([sg.grad(loss, w)])]
    assert names.count("matmul") == 3  # two forward, one for the weight


def test_gradient_with_respect_to_an_input_and_an_intermediate() -> None:
    with sg.Graph():
        x = sg.input("x", (2,), dtype="float64")
    h = sg.exp(x)
    y = sg.sum(h * h)
    dh, dx = value(sg.grad(y, [h, x]), x=[0.0, 1.0])
    np.testing.assert_allclose(dh, 2 * np.exp([0.0, 1.0]))
    np.testing.assert_allclose(dx, 2 * np.exp([0.0, 2.0]))


def test_y_itself_and_constants_may_be_in_wrt() -> None:
    c = sg.constant(np.float64(2))
    y = c * c
    assert value(sg.grad(y, [y, c])) == [1, 4]


def test_backward_of_a_vector_with_a_cotangent() -> None:
    x = parameter([1.0, 2.0, 3.0])
    y = x * x
    assert value(sg.grad(y, x, np.array([1.0, 0.1, 0.01]))).tolist() == [2, 0.4, 0.06]
    assert value(sg.grad(y, x, 1)).tolist() == [2, 4, 6]
    assert value(sg.grad(y, x, sg.ones_like(y))).tolist() == [2, 4, 6]


def test_value_and_grad() -> None:
    x = parameter(3.0)
    y = x * x
    same, dx = sg.value_and_grad(y, x)
    assert same is y
    assert value(dx) == 6


def test_the_structure_of_wrt_comes_back() -> None:
    a, b = parameter(2.0, "a"), parameter(3.0, "b")
    g = sg.grad(a * b, {"one": [a, None], "two": (b, a)})
    assert value([g["one"][0], *g["two"]]) == [3, 2, 3]
    assert g["one"][1] is None


# ---- broadcasting --------------------------------------------------------------------

SHAPES = [(), (1,), (3,), (2, 1), (2, 3), (1, 3), (1, 1), (4, 1, 3), (4, 2, 3)]


@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES), st.randoms())
@settings(max_examples=40, deadline=None)
def test_broadcast_inputs_get_the_sum(left: Any, right: Any, random: Any) -> None:
    try:
        shape = np.broadcast_shapes(left, right)
    except ValueError:
        return
    draw = np.random.default_rng(random.randrange(1000))
    a, b, w = (draw.normal(size=s) for s in (left, right, shape))
    x, y = parameter(a, "x"), parameter(b, "y")
    dx, dy = value(sg.grad(x * y, [x, y], w))
    np.testing.assert_allclose(dx, unbroadcast(w * b, left))
    np.testing.assert_allclose(dy, unbroadcast(w * a, right))


def unbroadcast(g: Any, shape: Any) -> Any:
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    kept = tuple(k for k, n in enumerate(shape) if n == 1)
    return g.sum(axis=kept, keepdims=True)


def test_symbolic_axes_are_summed() -> None:
    with sg.Graph():
        x = sg.input("x", ("n", 3), dtype="float64")
    b, r = parameter(np.ones(3), "b"), parameter(np.ones((1, 3)), "r")
    s, c = parameter(2.0, "s"), parameter(np.ones((1, 1)), "c")
    y = sg.sum((x + b) * r * s * c)
    found = sg.grad(y, [b, r, s, c, x])
    assert [g.shape for g in found] == [t.shape for t in (b, r, s, c, x)]
    array = np.arange(12.0).reshape(4, 3)
    db, dr, ds, dc, dx = value(found, x=array)
    np.testing.assert_allclose(db, [8, 8, 8])
    np.testing.assert_allclose(dr, 2 * (array + 1).sum(0, keepdims=True))
    np.testing.assert_allclose(ds, (array + 1).sum())
    np.testing.assert_allclose(dc, [[2 * (array + 1).sum()]])
    np.testing.assert_allclose(dx, np.full((4, 3), 2.0))


def test_a_smaller_cotangent_counts_once_per_element() -> None:
    """A rule may return a cotangent that is smaller than the result."""
    op = Op(
        "seven", lambda x, y: y.shape, lambda x, y: y.dtype,
        lambda g, z, x, y: (sg.constant(np.float64(7)), None),
        Elementwise("{0}"), lambda x, y: y + 0 * x, tuple, tuple,
    )  # fmt: skip
    x, y = parameter(np.zeros(3), "x"), sg.constant(np.zeros((2, 3)))
    z = sg.ir.graph.apply(op, x, y)
    assert value(sg.grad(sg.sum(z), x)).tolist() == [14, 14, 14]


# ---- modes, stable forms -------------------------------------------------------------


def test_each_mode_has_its_own_gradient() -> None:
    x, y = parameter(3.0, "x"), parameter(2.0, "y")
    z = sg.by_mode(train=x * x * y, eval=x)
    gradients = sg.grad(z, [x, y])
    assert value(gradients, "train") == [12, 9]
    assert value(gradients, "eval") == [1, 0]
    (again,) = sg.grad(gradients[0], [x])
    assert value(again, "train") == 4
    assert value(again, "eval") == 0


def test_no_zeros_of_the_other_mode_poison_the_gradient() -> None:
    x = parameter(0.0)
    y = sg.by_mode(train=x * x, eval=sg.log(x))  # d log(x) is inf at 0
    assert value(sg.grad(y, x), "train") == 0
    assert value(sg.grad(y * 1.0, x, simplify=False), "train") == 0


def test_gradient_with_respect_to_a_tensor_of_a_mode() -> None:
    x = parameter(3.0)
    h = sg.by_mode(train=x * 2.0, eval=x)
    dh = sg.grad(h * h, h)
    assert [value(dh, mode) for mode in ("train", "eval")] == [12, 6]
    again = sg.grad(dh * h, h)
    assert [value(again, mode) for mode in ("train", "eval")] == [24, 12]


def test_stable_forms_have_finite_gradients() -> None:
    x = parameter([1000.0, 0.0])
    for y in (
        sg.log(sg.sum(sg.exp(x))),
        sg.log(1.0 + sg.exp(x))[0],
        (1.0 / (1.0 + sg.exp(-x)))[1],
    ):
        graph = optimise(Graph.closed((), [sg.grad(y, x)]), "eval")
        (dx,), _ = run(graph, "eval", {})
        assert np.isfinite(dx).all()


def test_wrt_inside_a_stable_form_survives() -> None:
    x = parameter([0.5, 1.0])
    e = sg.exp(x)
    y = sg.log(sg.sum(e))
    de, dx = value(sg.grad(y, [e, x]))
    total = np.exp([0.5, 1.0]).sum()
    np.testing.assert_allclose(de, [1 / total] * 2)
    np.testing.assert_allclose(dx, np.exp([0.5, 1.0]) / total)


def test_equal_tensors_have_gradients_of_their_own() -> None:
    x = parameter(2.0)
    a, b = x * 1.0, x * 1.0
    assert value(sg.grad(sg.sin(a) + b * b, [a, b, x])) == pytest.approx(
        [np.cos(2), 4, np.cos(2) + 4]
    )


def test_the_gradient_refers_to_the_tensors_of_the_user() -> None:
    """So that it can be differentiated with respect to any of them."""
    x = parameter(0.5)
    z = sg.log(1.0 + x)  # becomes log1p
    h = z * x
    y = h**2
    dx = sg.grad(y, x)
    again = sg.grad(dx, h)  # dx = 2 h dh/dx
    np.testing.assert_allclose(value(again), 2 * (np.log(1.5) + 0.5 / 1.5))


# ---- lines ---------------------------------------------------------------------------


def test_nodes_of_the_gradient_carry_the_forward_line_and_scope() -> None:
    x = parameter(0.5)
    with sg.scope("layer"):
        y = sg.tanh(x)
    dx = sg.grad(y * 2.0, x)
    assert dx.source == y.source
    assert dx.scope == "layer"
    after = sg.exp(x)
    assert after.source != y.source
    assert after.scope == ""


# ---- errors --------------------------------------------------------------------------


def test_y_has_to_be_a_float_scalar() -> None:
    x = parameter([1.0, 2.0])
    with pytest.raises(
        sg.ShapeError,
        match=r"grad requires a scalar y, got float64\[2\]; take its sum or mean, or "
        r"give a cotangent  at test_gradients.py:\d+",
    ):
        sg.grad(x * x, x)
    with pytest.raises(sg.DTypeError, match=r"grad requires a float y, got int64\[\]"):
        sg.grad(sg.argmax(x), x)


def test_wrt_has_to_hold_float_tensors() -> None:
    n = sg.state(np.array(3), name="count")
    x = parameter(1.0)
    with pytest.raises(sg.DTypeError, match=r"float tensors in wrt, got state 'count'"):
        sg.grad(x * x, [x, n])
    with pytest.raises(sg.GraphError, match="Tensors in wrt, got float"):
        sg.grad(x * x, 3.0)


def test_a_function_is_answered_with_the_lambda_to_write() -> None:
    def loss(x: Tensor) -> Tensor:
        return x * x

    with pytest.raises(
        sg.GraphError, match=r"got a function; write lambda x: sg.grad\(loss\(x\), x\)"
    ):
        sg.grad(loss, parameter(1.0))  # type: ignore[arg-type]
    with pytest.raises(sg.GraphError, match="a Tensor y, got float"):
        sg.grad(1.0, parameter(1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacobian", "hessian"])
def test_one_argument_is_answered_with_what_to_write(name: str) -> None:
    derivative = getattr(sg, name)
    with pytest.raises(sg.GraphError, match=r"got a function; write lambda x: sg\."):
        derivative(lambda x: x * x)
    with pytest.raises(sg.GraphError, match=r"write sg.\w+\(y, x\)  at test_grad"):
        derivative(parameter(1.0) * 2.0)


@pytest.mark.parametrize("name", ["vjp", "jvp", "hvp"])
def test_a_missing_vector_is_answered_with_what_to_write(name: str) -> None:
    x = parameter(1.0)
    with pytest.raises(sg.GraphError, match=r"write sg.\w+\(y, x, v\)  at test_grad"):
        getattr(sg, name)(x * x, x)
    with pytest.raises(
        sg.GraphError, match=r"write lambda x, v: sg\.\w+\(f\(x\), x, v\)"
    ):
        getattr(sg, name)(lambda x: x * x)


@pytest.mark.parametrize(
    ("cotangent", "error", "match"),
    [
        (np.ones(3), sg.ShapeError, r"of the shape of float64\[2\], got float64\[3\]"),
        (np.ones(2, "f4"), sg.DTypeError, "of the dtype of float64"),
    ],
)
def test_a_cotangent_has_the_type_of_y(cotangent: Any, error: Any, match: str) -> None:
    x = parameter([1.0, 2.0])
    with pytest.raises(error, match=match):
        sg.grad(x * x, x, cotangent)


def test_an_unused_tensor_is_named() -> None:
    x, w = parameter(1.0, "x"), parameter([1.0], "w")
    with pytest.raises(
        sg.GraphError,
        match=r"got wrt\['w'\], parameter 'w' float64\[1\]  at test_gradients.py:\d+, "
        r"which y does not use; leave it out or pass unused='zero'",
    ):
        sg.grad(x * x, {"x": x, "w": w})
    assert value(sg.grad(x * x, [w], unused="zero")[0]).tolist() == [0]
    with pytest.raises(sg.GraphError, match="unused to be 'error' or 'zero'"):
        sg.grad(x * x, x, unused="none")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cut", "name"),
    [
        (lambda x: sg.stop_gradient(x), "stop_gradient"),
        (lambda x: sg.floor(x), "floor"),
        (lambda x: (x > 0).astype("float64"), "greater"),
        (lambda x: x.astype("int32").astype("float64"), "cast"),
    ],
)
def test_a_cut_path_names_the_op_and_its_line(cut: Any, name: str) -> None:
    x = parameter([1.0], "x")
    y = sg.sum(cut(sg.exp(x)) * 2.0)
    pattern = rf"whose path to y is cut by {name}  at test_gradients.py:\d+;"
    with pytest.raises(sg.GraphError, match=pattern):
        sg.grad(y, x)
    assert value(sg.grad(y, x, unused="zero")).tolist() == [0]


def test_zeros_of_a_symbolic_shape() -> None:
    with sg.Graph():
        x = sg.input("x", ("n", 2), dtype="float64")
    y = sg.sum(sg.floor(x))
    dx, _ = value([sg.grad(y, x, unused="zero"), x], x=np.ones((3, 2)))
    assert dx.tolist() == [[0, 0]] * 3


def test_a_rule_that_gives_a_wrong_type_is_a_bug_of_ours() -> None:
    def apply(vjp: Any, x: Tensor) -> Tensor:
        op = Op(
            "wrong", lambda x: x.shape, lambda x: x.dtype, vjp, Elementwise("{0}"),
            lambda x: x, tuple, tuple,
        )  # fmt: skip
        return sg.sum(sg.ir.graph.apply(op, x))

    x = parameter([1.0, 2.0])
    with pytest.raises(sg.CompilerBug, match="vjp of wrong requires a cotangent of"):
        sg.grad(apply(lambda g, y, x: (g.astype("float32"),), x), x)
    with pytest.raises(sg.CompilerBug, match="vjp of wrong requires 1 results, got 2"):
        sg.grad(apply(lambda g, y, x: (g, g), x), x)


# ---- size and time -------------------------------------------------------------------


def size(tensors: list[Tensor]) -> int:
    return len(topological(tensors))


def test_repeated_squares_stay_linear() -> None:
    x = parameter(1.0)
    y: Tensor = x
    for _ in range(60):
        y = y * y
    dx = sg.grad(y, x)
    assert size([y, dx]) <= 6 * 60
    assert value(dx) == 2.0**60


def test_a_hundred_layers_stay_below_five_times_the_forward() -> None:
    with sg.Graph():
        h: Tensor = sg.input("x", ("batch", 8))
    weights = [
        sg.parameter(np.ones((8, 8), np.float32), name=f"w{k}") for k in range(100)
    ]
    for w in weights:
        h = sg.tanh(h @ w)
    loss = sg.mean(h * h)
    gradients = sg.grad(loss, weights)
    backward = size([loss, *gradients]) - size([loss])
    assert size([loss, *gradients]) <= 5 * size([loss]), backward


def test_thirty_thousand_nodes_without_recursion() -> None:
    with sg.Graph():
        x = sg.input("x", (4,))
    y: Tensor = x
    half = sg.constant(np.float32(0.5))
    for _ in range(10_000):
        y = named("add", named("multiply", named("tanh", y), half), x)
    start = time.perf_counter()
    sg.grad(sg.sum(y), x)
    assert time.perf_counter() - start < 40  # about 2 s where nothing else runs


# ---- substitute ----------------------------------------------------------------------


def test_substitute_computes_the_same_with_other_tensors() -> None:
    x, w = parameter(2.0, "x"), parameter(3.0, "w")
    y = x * w
    moved = sg.substitute({"y": y}, {w: w - 0.1 * sg.grad(y, w)})["y"]
    np.testing.assert_allclose(value(moved), 2 * (3 - 0.2))
    np.testing.assert_allclose(value(sg.grad(moved, x)), 3 - 0.4)  # through the step


def test_substitute_shares_what_does_not_change() -> None:
    x, w = parameter(2.0, "x"), parameter(3.0, "w")
    kept = sg.exp(x)
    (after,) = sg.substitute([kept * w], {w: 5.0})
    assert after.inputs[0] is kept
    assert sg.substitute(kept, {w: x}) is kept


def test_substitute_keeps_types() -> None:
    x = parameter([2.0])
    with pytest.raises(sg.ShapeError, match=r"the shape of float64\[1\]"):
        sg.substitute(x * x, {x: np.ones(2)})
    with pytest.raises(sg.DTypeError, match=r"the dtype of float64\[1\]"):
        sg.substitute(x * x, {x: np.ones(1, "f4")})


# ---- gradcheck -----------------------------------------------------------------------


def test_gradcheck_of_a_function() -> None:
    x, y = np.array([[0.5, -0.3]]), np.array([0.7])
    assert gradcheck(lambda x, y: sg.tanh(x) * y, x, y)
    assert gradgradcheck(lambda x, y: sg.tanh(x) * y, x, y)
    assert gradgradcheck(lambda x: sg.sum(x**3), np.array([2.0, 3.0]), directions=None)


def test_gradcheck_of_a_graph() -> None:
    with sg.Graph(dtype="float64"):
        x = sg.input("x", ("n", 3))
        w = parameter([[0.1], [0.2], [0.3]], "w")
        loss = sg.mean(sg.exp(x @ w))
    data = np.linspace(0, 1, 12).reshape(4, 3)
    assert gradcheck(loss, wrt={"w": w, "x": x}, inputs={"x": data})
    assert gradgradcheck(loss, wrt=w, inputs={"x": data})
    assert w.value.tolist() == [[0.1], [0.2], [0.3]]


def test_gradcheck_lists_the_differences() -> None:
    def wrong(x: Tensor) -> Tensor:
        return sg.sum(sg.stop_gradient(x[0]) * x)

    with pytest.raises(
        AssertionError,
        match=r"(?s)gradients equal to differences, got\n  argument_0\[0\]: gradient "
        r"\S+, \S+ found$",
    ):
        gradcheck(wrong, np.array([2.0, 3.0]))
    with pytest.raises(AssertionError, match="direction 0: gradient"):
        gradcheck(wrong, np.array([2.0, 3.0]), directions=1)


def test_gradcheck_refuses_what_it_would_misjudge() -> None:
    with pytest.raises(sg.DTypeError, match=r"float64, got float32\[2\]"):
        gradcheck(lambda x: x * x, np.ones(2, np.float32))
    with pytest.raises(sg.DTypeError, match="a float output"):
        gradcheck(lambda x: x > 0, np.ones(2))
    with pytest.raises(sg.DTypeError, match="a float64 argument"):
        gradcheck(lambda x: x * 1.0, np.ones(2, np.int64))
    x = parameter([1.0])
    with pytest.raises(sg.GraphError, match="inputs and parameters in wrt"):
        gradcheck(sg.sum(sg.exp(x) * 2), wrt=sg.exp(x))
