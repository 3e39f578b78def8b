"""jacobian, hessian and hvp: values, modes, trees, compositions, cost."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.graph import topological
from staticgrad.testing import gradcheck

X = np.array([0.3, -1.2, 2.1])
W = np.random.default_rng(1).normal(size=(4, 3))


def value(tensor: Any, **inputs: Any) -> Any:
    return sg.compile(tensor, target="reference")(**inputs)


def parameter(array: Any, name: str = "p") -> sg.Parameter:
    return sg.parameter(np.array(array, "float64"), name=name)


def test_the_known_one() -> None:
    x = parameter([1.0, 2.0])
    y = sg.stack([x[0] ** 2 * x[1], 5 * x[0] + sg.sin(x[1])])
    for mode in ("reverse", "forward", None):
        found = value(sg.jacobian(y, x, mode=mode))
        np.testing.assert_allclose(found, [[4, 1], [5, np.cos(2.0)]])


FUNCTIONS = {
    "elementwise": lambda x: sg.exp(x) * x,
    "product": lambda x: sg.tanh(W @ x),
    "outer": lambda x: sg.outer(x, x * x),
    "scalar": lambda x: sg.sum(x**3),
    "reduction": lambda x: sg.max(sg.outer(x, x), axis=0),
    "moves": lambda x: sg.concatenate([x[::-1], sg.pad(x[1:], 1), x.reshape(1, 3)[0]]),
    "gather": lambda x: sg.take(x, [2, 0, 0, 1]) ** 2,
    "chosen": lambda x: sg.where(x > 0, sg.sqrt(abs(x)), x * 2),
    "same": lambda x: x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_modes_agree_with_differences(name: str) -> None:
    x = parameter(X)
    y = FUNCTIONS[name](x)
    reverse, forward = (sg.jacobian(y, x, mode=m) for m in ("reverse", "forward"))
    assert reverse.shape == forward.shape == (*y.shape, 3)
    np.testing.assert_allclose(value(reverse), value(forward), rtol=1e-12)
    np.testing.assert_allclose(sg.compile(reverse)(), value(reverse), rtol=1e-10)
    np.testing.assert_allclose(sg.compile(forward)(), value(forward), rtol=1e-10)
    eps = 1e-6
    for k in range(3):
        step = np.zeros(3)
        step[k] = eps
        high, low = (value(FUNCTIONS[name](parameter(X + s))) for s in (step, -step))
        numeric = (high - low) / (2 * eps)
        np.testing.assert_allclose(value(forward)[..., k], numeric, atol=1e-7)


def shapes(tensor: Any) -> set[Any]:
    return {t.shape for node in topological([tensor]) for t in node.outputs}


def test_the_smaller_side_is_chosen() -> None:
    x, wide = parameter(np.ones(20), "x"), parameter(np.ones((1000, 20)), "wide")
    y = sg.sin(wide @ x)
    assert (20, 20) in shapes(sg.jacobian(y, x))  # 20 unit tangents
    assert (1000, 1000) not in shapes(sg.jacobian(y, x))
    short = sg.sin(wide.T @ y)
    assert (20, 20) in shapes(sg.jacobian(short, y))  # 20 unit cotangents
    assert (1000, 1000) not in shapes(sg.jacobian(short, y))


def test_trees() -> None:
    a, b = parameter([1.0, 2.0], "a"), parameter(3.0, "b")
    found = sg.jacobian((a * b, sg.sum(a)), {"a": a, "b": b}, unused="zero")
    assert value(found[0]["a"]).tolist() == [[3, 0], [0, 3]]
    assert value(found[0]["b"]).tolist() == [1, 2]
    assert value(found[1]["a"]).tolist() == [1, 1]
    assert value(found[1]["b"]) == 0
    second = sg.hessian(sg.sum(a * a) * b, {"a": a, "b": b})
    assert value(second["a"]["a"]).tolist() == [[6, 0], [0, 6]]
    assert value(second["a"]["b"]).tolist() == [2, 4]
    assert value(second["b"]["a"]).tolist() == [2, 4]
    assert value(second["b"]["b"]) == 0


def test_symbolic_sizes() -> None:
    with sg.Graph(dtype="float64"):
        x = sg.input("x", ("n",))
    y = sg.tanh(x) * sg.sum(x)
    for mode in ("reverse", "forward", None):
        f = sg.compile(sg.jacobian(y, x, mode=mode), inputs=[x])
        for n in (1, 3):
            t, want = X[:n], np.tanh(X[:n])
            slope = np.diag((1 - want**2) * t.sum()) + want[:, None]
            np.testing.assert_allclose(f(x=t), slope, rtol=1e-12)


def rosenbrock(x: Any) -> Any:
    return sg.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def test_hessian_of_rosenbrock() -> None:
    x = parameter([1.2, 0.7, -0.5])
    a, b, c = x.value
    want = np.array(
        [
            [1200 * a**2 - 400 * b + 2, -400 * a, 0],
            [-400 * a, 202 + 1200 * b**2 - 400 * c, -400 * b],
            [0, -400 * b, 200],
        ]
    )
    np.testing.assert_allclose(value(sg.hessian(rosenbrock(x), x)), want)
    v = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(value(sg.hvp(rosenbrock(x), x, v)), want @ v)
    again = sg.jacobian(sg.grad(rosenbrock(x), x), x, mode="reverse")
    np.testing.assert_allclose(value(again), want, atol=1e-12)


def test_hessian_of_what_is_linear() -> None:
    x = parameter(X)
    assert not value(sg.hessian(sg.sum(x * 2), x)).any()
    assert not value(sg.hvp(sg.sum(x), x, x)).any()


COMPOSED = {
    "grad of jacobian": lambda x: sg.grad(sg.sum(sg.jacobian(sg.sin(x * x), x)), x),
    "grad of hessian": lambda x: sg.grad(sg.sum(sg.hessian(rosenbrock(x), x) ** 2), x),
    "jacobian of jacobian": lambda x: sg.jacobian(sg.jacobian(sg.sin(x) * x[0], x), x),
    "jacobian of jvp": lambda x: sg.jacobian(sg.jvp(sg.exp(x) * x[1], x, x), x),
    "hvp of hvp": lambda x: sg.hvp(sg.sum(sg.hvp(rosenbrock(x), x, x)), x, x),
    "hessian of vmap": lambda x: sg.hessian(
        sg.sum(sg.vmap(lambda a: sg.sin(a) * sg.sum(x))(x)), x
    ),
    "jacobian of vmap of grad": lambda x: sg.jacobian(
        sg.vmap(lambda a: sg.grad(a * sg.sum(x * a) ** 2, a))(x), x
    ),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_compositions(name: str) -> None:
    assert gradcheck(COMPOSED[name], X)


def test_errors() -> None:
    x, z = parameter(X, "x"), parameter(X, "z")
    with pytest.raises(sg.GraphError, match="jacobian requires y to depend on wrt"):
        sg.jacobian(x * x, [x, z])
    with pytest.raises(sg.GraphError, match="'reverse', 'forward' or None"):
        sg.jacobian(x, x, mode="both")
    with pytest.raises(sg.GraphError, match=r"lambda x: sg.jacobian\(f\(x\), x\)"):
        sg.jacobian(lambda t: t, x)
    with pytest.raises(sg.ShapeError, match="hessian requires a scalar y"):
        sg.hessian(x, x)
    with pytest.raises(sg.ShapeError, match="hvp requires a scalar y"):
        sg.hvp(x, x, x)
    with pytest.raises(sg.ShapeError, match="a tangent of the shape"):
        sg.hvp(rosenbrock(x), x, np.ones(2))
    with pytest.raises(sg.GraphError, match="hessian requires y to depend"):
        sg.hessian(rosenbrock(x), z)


@pytest.mark.slow
def test_hvp_costs_at_most_four_gradients() -> None:
    rng = np.random.default_rng(0)
    sizes = [256, 256, 256, 256, 10]
    ws = [
        sg.parameter(rng.normal(size=s).astype("f4") / 16, name=f"w{k}")
        for k, s in enumerate(zip(sizes[:-1], sizes[1:]))
    ]
    h: Any = sg.parameter(rng.normal(size=(256, 256)).astype("f4"), name="data")
    for w in ws[:-1]:
        h = sg.tanh(h @ w)
    loss = sg.mean((h @ ws[-1]) ** 2)
    gradient = sg.compile(sg.grad(loss, ws))
    product = sg.compile(sg.hvp(loss, ws, ws))

    def seconds(f: Any) -> float:
        f()
        times = []
        for _ in range(50):
            start = time.perf_counter()
            f()
            times.append(time.perf_counter() - start)
        return min(times)

    threads = sg.get_num_threads()
    sg.set_num_threads(1)
    try:
        assert seconds(product) <= 4 * seconds(gradient)
    finally:
        sg.set_num_threads(threads)
