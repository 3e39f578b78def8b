"""custom_op with compiled functions, and pure_callback: numbers, errors, transforms."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from custom_functions import filled, filling_backward, mixed, returning, running
from hand_made import FLOAT

import staticgrad as sg
from staticgrad.compiler.codegen.fingerprint import fingerprint
from staticgrad.compiler.kernel_ir.kernels import Invoke, Loop, LoopKernel
from staticgrad.compiler.verify.wellformed import check_kernel
from staticgrad.testing import check_jvp, check_vmap, gradcheck, gradgradcheck

X = np.array([[0.3, -1.2, 2.1], [1.4, 0.7, -0.6]])
TARGETS = ("reference", "cpu")


def parameter(array: Any, name: str = "p") -> sg.Parameter:
    return sg.parameter(np.array(array, "float64"), name=name)


# ---- functions of numbers ------------------------------------------------------------


@numba.njit
def weighed(x, w):
    return x * x * w


@numba.njit
def weighed_backward(g, y, x, w):
    return 2 * g * x * w, g * x * x


@numba.njit
def weighed_by_x(g, y, x, w):
    return 2 * g * x * w


@numba.njit
def weighed_by_w(g, y, x, w):
    return g * x * x


joint = sg.custom_op(
    "weighed", kind="scalar", forward=weighed, backward=weighed_backward
)
parts = sg.custom_op(
    "weighed", kind="scalar", forward=weighed, backward=(weighed_by_x, weighed_by_w)
)
by_graph = sg.custom_op(
    "weighed",
    kind="scalar",
    forward=weighed,
    backward=lambda g, y, x, w: (2 * g * x * w, g * x * x),
)


of_ufuncs = sg.custom_op(
    "weighed",
    kind="scalar",
    forward=numba.vectorize(weighed.py_func),
    backward=(numba.vectorize(weighed_by_x.py_func), weighed_by_w),
)


@pytest.mark.parametrize("op", [joint, parts, by_graph, of_ufuncs])
def test_a_function_of_numbers_is_fused(op: Any) -> None:
    w = np.array([0.5, -1.5, 1.0])
    assert gradcheck(op, X, w)
    assert check_jvp(op, X, w)
    assert check_vmap(op, X, np.stack([w, w]))
    assert check_vmap(lambda x: op(x, w), X, size="n")
    x = parameter(X)
    loss = sg.sum(sg.exp(op(x, w)) * 2)
    f = sg.compile([loss, sg.grad(loss, x)])
    assert f.explain().splitlines()[1].startswith("1 kernels")
    want = sg.compile([loss, sg.grad(loss, x)], target="reference")()
    for got, expected in zip(f(), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_a_backward_of_the_graph_can_be_differentiated_again() -> None:
    assert gradgradcheck(by_graph, X, np.array([0.5, -1.5, 1.0]))

    @numba.njit
    def sine(x):
        return np.sin(x)

    @numba.njit
    def cosine(x):
        return np.cos(x)

    slope = sg.custom_op(
        "own_cos", kind="scalar", forward=cosine, backward=lambda g, y, x: -g * own(x)
    )
    own = sg.custom_op(
        "own_sin", kind="scalar", forward=sine, backward=lambda g, y, x: g * slope(x)
    )
    assert gradgradcheck(own, X)
    x = parameter(X)
    first = sg.grad(sg.sum(joint(x, x)), x)
    with pytest.raises(sg.GraphError, match="weighed requires a backward that can be"):
        sg.grad(sg.sum(first), x)


def test_a_thousand_samples_in_a_training_loop() -> None:
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(1000, 3)).astype("float32")}
    data["y"] = (data["x"] ** 2 @ [1, 2, 3]).astype("float32")

    def fitted(model: Any, target: Any) -> Any:
        with sg.Graph(seed=0):
            x, y = sg.input("x", ("batch", 3)), sg.input("y", ("batch",))
            w = sg.parameter(np.zeros(3, "float32"), name="w")
            loss = sg.mean((sg.sum(model(x, w), axis=1) - y) ** 2)
        trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.02), target=target)
        trainer.fit(data, epochs=3, batch_size=100, progress=False)
        return w.value

    want = fitted(lambda x, w: x * x * w, "cpu")
    for target in TARGETS:
        got = fitted(joint, target)
        np.testing.assert_allclose(got, want, rtol=1e-4)
    np.testing.assert_allclose(want, [1, 2, 3], atol=0.1)


def test_dtypes_of_functions_of_numbers() -> None:
    twice = sg.custom_op("twice", kind="scalar", forward=lambda x: x * 2.0)
    assert twice(sg.constant(np.float32(1.5))).dtype == "float32"
    assert twice(np.float64(1.5)).dtype == "float64"
    assert twice(np.int32(3)).dtype == "float64"
    sign = sg.custom_op("is_high", kind="scalar", forward=lambda x: x > 1)
    assert sign(X).dtype == bool
    count = sg.custom_op(
        "count", kind="scalar", forward=lambda x: np.int64(x), dtype="int32"
    )
    power = sg.custom_op("times", kind="scalar", forward=lambda x, n: x * n)
    result = sg.compile([sign(X), count(X), power(X, np.arange(3)), power(X, 2)])()
    assert result[0].tolist() == (X > 1).tolist()
    assert result[1].dtype == "int32"
    assert result[1].tolist() == X.astype("int32").tolist()
    np.testing.assert_array_equal(result[2], X * np.arange(3))
    np.testing.assert_array_equal(result[3], X * 2)
    with pytest.raises(sg.DTypeError, match=r"pair requires forward to return a num"):
        sg.custom_op("pair", kind="scalar", forward=lambda x: (x, x))(1.0)
    with pytest.raises(sg.DTypeError, match=r"twice requires forward .* complex128"):
        sg.custom_op("twice", kind="scalar", forward=lambda x: x * 2j)(1.0)
    with pytest.raises(sg.GraphError, match="that Numba can compile for float64"):
        sg.custom_op("mine", kind="scalar", forward=lambda x: x.name)(np.float64(1))
    with pytest.raises(sg.GraphError, match="twice requires an argument, got none"):
        twice()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_functions_of_half_numbers(dtype: str) -> None:
    x = sg.parameter(np.float32([0.5, 1.5, 2.5])).astype(dtype)
    y = joint(x, x)
    assert y.dtype == x.dtype
    got = [sg.compile(y.astype("float32"), target=t)().tolist() for t in TARGETS]
    assert got[0] == got[1] == [0.125, 3.375, 15.625]
    with pytest.raises(sg.DTypeError, match="arrays with which Numba computes"):
        returning(x)


def test_arguments_that_are_no_tensors() -> None:
    @numba.njit
    def scaled(x, by=1.0, kind="linear"):
        return by * x if kind == "linear" else by * x * x

    @numba.njit
    def slope(g, y, x, by=1.0, kind="linear"):
        return g * by if kind == "linear" else 2 * g * by * x

    op = sg.custom_op("scaled", kind="scalar", forward=scaled, backward=slope)
    x = parameter([1.0, 3.0])
    y = op(x, by=3.0) + op(x, by=5.0, kind="square") + op(x)
    for target in TARGETS:
        value, dx = sg.compile([y, sg.grad(sg.sum(y), x)], target=target)()
        assert value.tolist() == [9, 57]
        assert dx.tolist() == [14, 34]
    graph = sg.custom_op(
        "times", forward=lambda x, n: x * n, backward=lambda g, y, x, n: g * n
    )
    assert sg.compile(sg.grad(sg.sum(graph(x, n=7)), x))().tolist() == [7, 7]


def test_none_and_wrong_gradients_of_functions_of_numbers() -> None:
    x, w = parameter(X, "x"), parameter(2.0, "w")
    half = sg.custom_op(
        "half", kind="scalar", forward=weighed, backward=(weighed_by_x, None)
    )
    assert sg.compile(sg.grad(sg.sum(half(x, w)), x))().tolist() == (4 * X).tolist()
    with pytest.raises(sg.GraphError, match="depend on wrt"):
        sg.grad(sg.sum(half(x, w)), w)
    one = sg.custom_op("one", kind="scalar", forward=weighed, backward=weighed_by_x)
    with pytest.raises(sg.GraphError, match="one requires backward to give 2 results"):
        one(x, w)
    one = sg.custom_op("one", kind="scalar", forward=weighed, backward=(weighed_by_x,))
    with pytest.raises(sg.GraphError, match="2 results, one per input, got 1"):
        one(x, w)

    @numba.njit
    def integer(g, y, x):
        return 1

    op = sg.custom_op("op", kind="scalar", forward=lambda x: x, backward=integer)
    with pytest.raises(sg.DTypeError, match="op requires backward to return floats"):
        op(x)


# ---- exceptions ----------------------------------------------------------------------


@numba.njit
def root(x):
    if x < 0:
        raise ValueError("negative")
    return np.sqrt(x)


@numba.njit
def named_root(x):
    if x < 0:
        raise KeyError("negative", x)
    return np.sqrt(x)


@numba.njit
def array_root(x):
    if x.min() < 0:
        raise ValueError("negative")
    return np.sqrt(x)


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_function_raises_reaches_the_caller(target: Any) -> None:
    x = sg.input("x", ("n",), dtype="float64")
    bad = np.array([4.0, 9.0, -1.0, -2.0])
    op = sg.custom_op("root", kind="scalar", forward=root)
    f = sg.compile(op(x) * 2, target=target)
    assert f(bad[:2]).tolist() == [4, 6]
    message = r"root requires .* ValueError: negative.* position 2; .*native.py:\d+"
    with pytest.raises(ValueError, match=message):
        f(bad)
    assert f(bad[:2]).tolist() == [4, 6]
    op = sg.custom_op("root", kind="scalar", forward=named_root)
    with pytest.raises(KeyError, match=r"KeyError: negative, -1\.0"):
        sg.compile(op(x), target=target)(bad)
    op = sg.custom_op("roots", kind="array", forward=array_root)
    with pytest.raises(ValueError, match="roots requires its function not to raise"):
        sg.compile(op(x), target=target)(bad)
    quotient = sg.custom_op("quotient", kind="scalar", forward=lambda x: 1 / x)
    with pytest.raises(ZeroDivisionError, match="quotient"):
        sg.compile(quotient(x), target=target)(np.zeros(3))


@pytest.mark.parametrize("target", TARGETS)
def test_an_exception_leaves_everything_at_the_last_step(target: Any) -> None:
    op = sg.custom_op("root", kind="scalar", forward=root, backward=lambda g, y, x: g)
    with sg.Graph():
        x = sg.input("x", ("batch",))
        w = sg.parameter(np.float32(1.0), name="w")
        loss = sg.mean(w * op(x))
    trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(1.0), target=target)
    data = {"x": np.float32([4, 4, 9, -1])}
    with pytest.raises(ValueError, match="root requires its") as caught:
        trainer.fit(data, batch_size=1, shuffle=False, progress=False)
    assert "in step 4, epoch 1" in caught.value.__notes__
    assert float(w.value) == 1 - 2 - 2 - 3


def test_the_line_and_function_that_raised_are_named() -> None:
    op = sg.custom_op("root", kind="scalar", forward=root)
    f = sg.compile(op(parameter([-1.0])))
    with pytest.raises(ValueError, match=r"\(root, test_custom_native.py:\d+\)"):
        f()


# ---- functions of arrays -------------------------------------------------------------


@pytest.mark.parametrize("op", [returning, filled, mixed])
def test_a_function_of_arrays(op: Any) -> None:
    x = sg.input("x", ("n",), dtype="float64")
    loss = sg.sum(sg.sin(op(x * 2)))
    want = sg.compile(sg.grad(sg.sum(sg.sin(sg.cumsum(x * 2))), x))
    for target in TARGETS:
        f = sg.compile([op(x), sg.grad(loss, x)], target=target, poison=target == "cpu")
        value, dx = f(X[0])
        np.testing.assert_allclose(value, np.cumsum(X[0]))
        np.testing.assert_allclose(dx, want(X[0]), rtol=1e-12)
    assert gradcheck(lambda x: op(x), X[0])
    assert check_vmap(op, X, size="n")
    assert check_vmap(lambda x: sg.grad(sg.sum(op(x) ** 2), x), X, size="n")
    assert check_vmap(sg.vmap(op), X[None].repeat(3, 0), size="n")
    column = sg.compile(op(sg.transpose(sg.constant(X))[1]))
    np.testing.assert_allclose(column(), np.cumsum(X.T[1]))


def test_second_derivatives_and_tangents_of_functions_of_arrays() -> None:
    assert gradgradcheck(mixed, X[0])
    assert check_jvp(mixed, X[0])
    x = parameter(X[0])
    with pytest.raises(sg.GraphError, match="running requires a backward of graph op"):
        sg.grad(sg.sum(sg.grad(sg.sum(returning(x) ** 2), x)), x)


def test_saved_values_and_several_results() -> None:
    @numba.njit
    def polar(x, y):
        r = np.sqrt(x * x + y * y)
        angle = np.arctan2(y, x)
        return r, angle, np.cos(angle), np.sin(angle)

    @numba.njit
    def backward(g, results, x, y, cos, sin):
        dr, da = g
        r = results[0]
        return dr * cos - da * sin / r, dr * sin + da * cos / r

    op = sg.custom_op(
        "polar",
        kind="array",
        forward=polar,
        backward=backward,
        shape=lambda x, y: [x, x],
        saved=lambda x, y: [(x, "float64"), (x, "float64")],
    )
    r, angle = op(sg.constant(X[0]), sg.constant(X[1]))
    np.testing.assert_allclose(sg.compile(r)(), np.hypot(X[0], X[1]))
    np.testing.assert_allclose(sg.compile(angle)(), np.arctan2(X[1], X[0]))
    assert gradcheck(lambda x, y: op(x, y)[0], X[0], X[1])
    assert gradcheck(lambda x, y: sum(op(x, y)), X[0], X[1])
    assert check_vmap(lambda x, y: op(x, y)[1], X, X + 1)


def test_integers_sizes_and_scalars_of_functions_of_arrays() -> None:
    @numba.njit
    def picked(x, i):
        return x[i[()]] * 2

    @numba.njit
    def backward(g, y, x, i):
        dx = np.zeros_like(x)
        dx[i[()]] = 2 * g[()]
        return dx, None

    op = sg.custom_op(
        "picked",
        kind="array",
        forward=picked,
        backward=backward,
        shape=lambda x, i: (),
    )
    x = parameter(X[0])
    y = op(x, np.int64(2))
    for target in TARGETS:
        value, dx = sg.compile([y, sg.grad(y, x)], target=target)()
        assert value == 2 * X[0, 2]
        assert dx.tolist() == [0, 0, 2]
    made = sg.custom_op(
        "made", kind="array", forward=lambda n=2: np.arange(n), shape=(5,), dtype="i8"
    )
    assert sg.compile(made(n=5))().tolist() == [0, 1, 2, 3, 4]


BACKWARD = {
    "count": (lambda g, y, x: (g, g), sg.GraphError, "1 results, one per input, got 2"),
    "shape": (lambda g, y, x: g[1:], sg.ShapeError, "the shape of input 0"),
    "rank": (lambda g, y, x: g.sum(), sg.ShapeError, "the shape of input 0.*0 axes"),
    "dtype": (
        lambda g, y, x: g.astype(np.float32), sg.DTypeError, "the dtype of input 0"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BACKWARD)
def test_wrong_backward_is_an_error_when_the_graph_is_built(name: str) -> None:
    backward, error, match = BACKWARD[name]
    op = sg.custom_op(
        "mine", kind="array", forward=running, backward=numba.njit(backward)
    )
    x = sg.input("x", ("n",), dtype="float64")
    with pytest.raises(error, match=f"mine requires backward to give {match}"):
        op(x)


def test_wrong_forward_of_arrays() -> None:
    x = parameter(X[0])
    with pytest.raises(sg.ShapeError, match=r"forward to give the shape, float64\[2\]"):
        sg.custom_op("mine", kind="array", forward=running, shape=(2,))(x)
    with pytest.raises(sg.DTypeError, match="forward to give the dtype, float32"):
        sg.custom_op("mine", kind="array", forward=running, dtype="float32")(x)
    with pytest.raises(sg.GraphError, match="to take 1 arrays, or 2 with those it fil"):
        sg.custom_op("mine", kind="array", forward=filling_backward)(x)
    with pytest.raises(sg.GraphError, match="requires shape= and dtype="):
        sg.custom_op("mine", kind="array", forward=lambda: np.zeros(3))()
    with pytest.raises(sg.GraphError, match="readonly|read-only"):
        sg.custom_op("mine", kind="array", forward=numba.njit(_writes))(x)
    with pytest.raises(sg.GraphError, match=r"dtype for each of 1 results, got 2"):
        sg.custom_op("mine", kind="array", forward=running, dtype=["f4", "f4"])(x)


def _writes(x):
    x[0] = 1
    return x


def test_a_shape_that_depends_on_values_is_found_when_it_runs() -> None:
    op = sg.custom_op("few", kind="array", forward=lambda x: x[x > 0])
    x = sg.input("x", (3,), dtype="float64")
    f = sg.compile(op(x))
    assert f(np.ones(3)).tolist() == [1, 1, 1]
    with pytest.raises(sg.ShapeError, match=r"few .* forward to give the shape"):
        f(np.array([1.0, -1.0, 1.0]))


# ---- Python --------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_pure_callback(target: Any) -> None:
    x = sg.input("x", ("n", 3), dtype="float64")

    def ranked(a: Any) -> tuple[Any, Any]:
        assert not a.flags.writeable
        return np.sort(a, 1), np.argsort(a, 1)

    values, order = sg.pure_callback(ranked, [x.shape, x.shape], ["f8", "i8"], x)
    f = sg.compile([values * 2, order], target=target)
    got = f(X)
    np.testing.assert_array_equal(got[0], np.sort(X, 1) * 2)
    np.testing.assert_array_equal(got[1], np.argsort(X, 1))
    with pytest.raises(sg.GraphError, match="ranked requires a derivative"):
        sg.grad(sg.sum(values), x)
    rows = sg.vmap(lambda r: sg.pure_callback(np.sort, r.shape, r.dtype, r))(x)
    np.testing.assert_array_equal(sg.compile(rows, target=target)(X), np.sort(X, 1))
    none = sg.pure_callback(lambda: np.float32(7), (), "float32")
    assert sg.compile(none, target=target)() == 7


def test_explain_tells_what_python_costs() -> None:
    f = sg.compile(sg.pure_callback(np.sort, (2, 3), "float64", X))
    assert "calls Python and takes the GIL: 0 calls" in f.explain()
    f()
    f()
    assert "calls Python and takes the GIL: 2 calls" in f.explain()


@pytest.mark.parametrize("target", TARGETS)
def test_what_python_raises_is_raised(target: Any) -> None:
    class Mine(Exception):
        pass

    raised = Mine("no disk", 3)

    def fails(a: Any) -> Any:
        raise raised

    with pytest.raises(Mine) as caught:
        sg.compile(sg.pure_callback(fails, (2, 3), "float64", X), target=target)()
    assert caught.value is raised
    assert "raised in fails  at test_custom_native.py" in raised.__notes__[0]
    wrong = sg.pure_callback(lambda a: a[0], (2, 3), "float64", X)
    with pytest.raises(sg.ShapeError, match=r"requires a result of shape \(2, 3\)"):
        sg.compile(wrong, target=target)()
    wrong = sg.pure_callback(lambda a: a + 1j, (2, 3), "float64", X)
    with pytest.raises(sg.DTypeError, match="requires a result of dtype float64"):
        sg.compile(wrong, target=target)()
    wrong = sg.pure_callback(lambda a: (a, a), (2, 3), "float64", X)
    with pytest.raises(sg.GraphError, match="requires 1 results, got 2"):
        sg.compile(wrong, target=target)()
    with pytest.raises(sg.GraphError, match="pure_callback requires a function"):
        sg.pure_callback(3, (2, 3), "float64", X)


# ---- the cache and the verifier ------------------------------------------------------


def test_a_digest_covers_closures_globals_and_other_functions() -> None:
    def made(n: int, inner: Any) -> Any:
        return numba.njit(lambda x: inner(x) + n)

    fast = numba.njit(fastmath=True)
    one, two = numba.njit(lambda x: x + 1.0), numba.njit(lambda x: x + 2.0)
    assert fingerprint(made(3, one)) == fingerprint(made(3, one))
    others = [made(4, one), made(3, two), fast(made(3, one).py_func)]
    assert len({fingerprint(f) for f in (made(3, one), *others)}) == 4
    arrays = [np.zeros(3), np.ones(3)]
    assert fingerprint(made(arrays[0], one)) != fingerprint(made(arrays[1], one))
    assert fingerprint(made(object(), one)) != fingerprint(made(object(), one))


PROGRAM = """
import numba, numpy as np, staticgrad as sg
K = {constant}
@numba.njit
def helper(x):
    return x * K
op = sg.custom_op("op", kind="scalar", forward=numba.njit(lambda x: helper(x)))
ordered = numba.njit(lambda x: np.sort(x) * K)
whole = sg.custom_op("whole", kind="array", forward=ordered)
x = sg.parameter(np.array([3.0, 1.0]))
f = sg.compile([op(x), whole(x)])
print([a.tolist() for a in f()], f.explain().splitlines()[1].split(": ")[1])
"""


def test_kernels_on_disk_know_the_functions_they_call(tmp_path: Path) -> None:
    def run(constant: float) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(constant=constant)],
            env={
                "STATICGRAD_CACHE_DIR": str(tmp_path),
                "PYTHONPATH": ":".join(sys.path),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert run(2.0).startswith("[[6.0, 2.0], [2.0, 6.0]] 2 compiled")
    assert run(2.0).startswith("[[6.0, 2.0], [2.0, 6.0]] 0 compiled, 2 from the cache")
    assert run(3.0).startswith("[[9.0, 3.0], [3.0, 9.0]] 2 compiled")


def _call_kernel() -> tuple[LoopKernel, Any]:
    f = sg.compile(returning(sg.input("x", ("n",), dtype="float64")))
    (kernel,) = f.target.code.loops
    return kernel, f.target.code.schedule.buffers


def test_the_verifier_sees_a_corrupted_call() -> None:
    kernel, buffers = _call_kernel()
    check_kernel(kernel, buffers, {"n": 7})
    (loop,) = kernel.body
    index, invoke = loop.body
    assert isinstance(invoke, Invoke)
    read, written = invoke.arrays
    shifted = replace(read, first=replace(read.first, offset=1))
    larger = replace(written, shape=(*written.shape, 2))
    broken = [
        replace(invoke, arrays=(shifted, written)),
        replace(invoke, arrays=(read, larger)),
        replace(invoke, arrays=(read, replace(written, dtype=FLOAT))),
        replace(invoke, arrays=(written, read)),
        replace(invoke, site=1),
        replace(invoke, position=9),
        replace(invoke, target=0),
    ]
    for wrong in broken:
        body = (Loop(0, (index, wrong)),)
        with pytest.raises(sg.CompilerBug):
            check_kernel(replace(kernel, body=body), buffers, {"n": 7})
    with pytest.raises(sg.CompilerBug, match="can fail, but says it cannot"):
        check_kernel(replace(kernel, fails=False), buffers, {"n": 7})
