"""Every op's type rule, NumPy function and reference result at each of its samples."""

import itertools

import numpy as np
import pytest
from tolerances import assert_ulp

import staticgrad as sg
from staticgrad.compiler.runtime.targets import reference
from staticgrad.ir.graph import Graph, apply_multi
from staticgrad.ir.op import OPS, Control, IndexCheck, Leaf

CASES = [
    pytest.param(op, sample, id=f"{name}-{number}")
    for name, op in OPS.items()
    if not isinstance(op.code, Leaf)
    for number, sample in enumerate(op.samples())
]


def node_of(op, sample):
    """The op's outputs on inputs that have the sample's types, and the values."""
    arrays = [np.asarray(arg) for arg in sample.args]
    inputs = [sg.input(f"x{n}", a.shape, a.dtype) for n, a in enumerate(arrays)]
    return apply_multi(op, *inputs, **sample.attrs), inputs, arrays


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_type_rule_is_what_numpy_gives(op, sample):
    outputs, _, arrays = node_of(op, sample)
    results = op.numpy(*arrays, **sample.attrs)
    results = results if op.outputs != 1 else (results,)
    for tensor, result in zip(outputs, results, strict=True):
        assert np.shape(result) == tensor.shape
        assert np.asarray(result).dtype == tensor.dtype


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_reference_gives_what_numpy_gives(op, sample):
    outputs, inputs, arrays = node_of(op, sample)
    graph = Graph.closed(inputs, outputs)
    given = {x.name: a for x, a in zip(inputs, arrays, strict=True)}
    got, _ = reference.run(graph, "eval", given)
    want = op.numpy(*arrays, **sample.attrs)
    for left, right in zip(got, want if op.outputs != 1 else (want,), strict=True):
        assert_ulp(left, right, 0)


@pytest.mark.parametrize("name", OPS)
def test_an_op_has_samples(name):
    op = OPS[name]
    if isinstance(op.code, Leaf | IndexCheck | Control):
        return  # what control flow runs is in tests/control/test_control.py
    samples = op.samples()
    assert samples
    assert all(isinstance(s.args, tuple) for s in samples)


UNARY = {
    "exp": "f", "expm1": "f", "log": "f", "log1p": "f", "tanh": "f", "sqrt": "f",
    "sin": "f", "cos": "f", "floor": "biuf", "ceil": "biuf", "rint": "f",
    "absolute": "biuf", "negative": "iuf", "sign": "iuf", "square": "biuf",
    "isnan": "biuf", "isfinite": "biuf", "isinf": "biuf", "logical_not": "biuf",
    "sum": "biuf", "prod": "biuf", "max": "biuf", "min": "biuf", "mean": "biuf",
    "var": "biuf", "std": "biuf", "argmax": "biuf", "argmin": "biuf", "all": "biuf",
    "any": "biuf", "positive": "iuf", "nan_to_num": "f",
}  # fmt: skip
DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64".split()
)


ONE_ARGUMENT = [
    (name, dtype)
    for name, kinds in UNARY.items()
    for dtype in DTYPES
    if np.dtype(dtype).kind in kinds
]


@pytest.mark.parametrize(("name", "dtype"), ONE_ARGUMENT)
def test_functions_of_one_argument_equal_numpys(name, dtype):
    x = np.array([[1, 0, 2], [3, 1, 1]]).astype(dtype)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(x)
    got = evaluate(getattr(sg, name)(x))
    assert_ulp(got, want, 1)


BINARY = {
    "add": "biuf", "subtract": "iuf", "multiply": "biuf", "divide": "biuf",
    "floor_divide": "biuf", "remainder": "biuf", "power": "biuf", "maximum": "biuf",
    "minimum": "biuf", "equal": "biuf", "not_equal": "biuf", "less": "biuf",
    "less_equal": "biuf", "greater": "biuf", "greater_equal": "biuf",
    "logical_and": "biuf", "logical_or": "biuf", "logical_xor": "biuf",
    "logaddexp": "f",
}  # fmt: skip


@pytest.mark.parametrize("right", [*DTYPES, "int", "float", "scalar"])
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arguments_promote_as_numpy(name, right):
    y = {"int": 2, "float": 2.5, "scalar": np.float64(2.5)}.get(right)
    y = np.array([3, 1, 2]).astype(right) if y is None else y
    for dtype in DTYPES:
        x = np.array([[3, 0, 2], [1, 1, 5]]).astype(dtype)
        kinds = {x.dtype.kind, np.asarray(y).dtype.kind}
        if not kinds <= set(BINARY[name]) or np.result_type(x, y) == np.float16:
            continue
        with np.errstate(all="ignore"):
            want = getattr(np, name)(x, y)
        assert_ulp(evaluate(getattr(sg, name)(x, y)), want, 3)
        with np.errstate(all="ignore"):
            want = getattr(np, name)(y, x)
        assert_ulp(evaluate(getattr(sg, name)(y, x)), want, 3)


HALVES = ["float16"]
OF_FLOATS = ["hypot", "arctan2", "logaddexp", "copysign", "heaviside"]
OF_NUMBERS = [
    "add", "multiply", "divide", "floor_divide", "remainder", "power", "maximum",
    "less", "fmod", "float_power", "outer", "kron", "dot", "average",
]  # fmt: skip


@pytest.mark.parametrize("name", [*OF_NUMBERS, *OF_FLOATS])
def test_every_pair_of_dtypes_promotes_as_numpy(name):
    """But float functions of 8-bit integers, which NumPy gives in float16."""
    function, ours = getattr(np, name), getattr(sg, name)
    if name == "average":
        function, ours = (lambda a, w, f=f: f(a, weights=w) for f in (function, ours))
    numbers = [2, 2.5, True] if isinstance(function, np.ufunc) else []
    every = [*DTYPES, *HALVES]
    for dtype, other in itertools.product(every, [*every, *numbers]):
        x, y = np.ones(3, dtype), np.ones(3, other) if isinstance(other, str) else other
        with np.errstate(all="ignore"):
            want = function(x, y).dtype
        t = sg.input("t", (3,), dtype=dtype)
        u = sg.input("u", (3,), dtype=other) if isinstance(other, str) else other
        if want == np.float16 and "float16" not in (dtype, other):
            want = np.float32
        assert ours(t, u).dtype == want, (dtype, other)


def evaluate(tensor):
    """The value of `tensor`, which needs no input, on the reference target."""
    ((value,), _) = reference.run(Graph.closed((), (tensor,)), "eval", {})
    return value


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16"])
def test_small_integers_become_float32(dtype):
    # NumPy gives float16 for the 8-bit ones; 16 bits are for those who ask for them.
    assert sg.exp(np.ones(2, dtype)).dtype == np.float32


def test_weak_numbers_take_the_dtype_that_they_meet():
    x = sg.input("x", (3,), "float32")
    assert (x * 2.5).dtype == np.float32
    assert (x * sg.constant(2.5)).dtype == np.float32
    assert (x * np.float64(2.5)).dtype == np.float64
    assert (x * np.array(2.5)).dtype == np.float64
    assert (x + [1.0, 2.0, 3.0]).dtype == np.float32
    assert (x + [1, 2, 3]).dtype == np.float64
    assert (sg.exp(sg.constant(1.0)) * x).dtype == np.float32
    assert sg.exp(1.0).dtype == np.float64
    assert (sg.constant(1) / sg.constant(2) * x).dtype == np.float32


def test_a_weak_number_keeps_its_digits():
    got = evaluate(sg.constant(0.1) * np.ones(1, "float64"))
    assert got[0] == 0.1


def test_lists_of_tensors_are_stacked():
    a, b = sg.constant([1.0, 2.0]), sg.constant([3.0, 4.0])
    got = evaluate(sg.add([[a, b], [b, a]], 1))
    np.testing.assert_array_equal(got, [[[2, 3], [4, 5]], [[4, 5], [2, 3]]])
    assert evaluate(sg.sum([a[0], 2.0, b[1]])) == 7


@pytest.mark.parametrize("size", [0, 1, 5])
def test_symbolic_sizes_are_numbers(size):
    x = sg.input("x", ("n", 3))
    n = x.shape[0]
    y = [x / (n + 1), n * sg.sum(x), n * 2.0 + sg.sum(x), sg.mean(x, axis=0)]
    graph = Graph.closed((x,), tuple(y))
    value = np.arange(size * 3, dtype="float32").reshape(size, 3)
    got, _ = reference.run(graph, "eval", {"x": value})
    with np.errstate(all="ignore"):
        mean = value.sum(0) / np.float32(size)
    want = [
        value / np.float32(size + 1),
        size * value.sum(),
        size * 2 + value.sum(),
        mean,
    ]
    for left, right in zip(got, want, strict=True):
        assert_ulp(left, np.float32(right), 2)


def test_size_arithmetic_stays_a_size_where_it_can():
    n = sg.input("x", ("n",)).shape[0]
    for size in (n + 1, 2 * n, n - 3, n // 2, n**2, n * n, -n):
        assert isinstance(size, sg.Size)
    assert n**2 == n * n
    for tensor in (n * 2.5, 1 / n, n / 2, n**0.5, n * np.ones(3), np.ones(3) + n):
        assert isinstance(tensor, sg.Tensor)
    assert (n**0.5).type.weak
    assert not sg.astype(n, "float64").type.weak


def test_size_expressions_are_tensors():
    x = sg.input("x", ("n", "m"))
    n, m = x.shape
    graph = Graph.closed((x,), (sg.as_tensor((n * m + 2 * n - 3) // 2),))
    ((got,), _) = reference.run(graph, "eval", {"x": np.zeros((3, 4), "float32")})
    assert got == (3 * 4 + 2 * 3 - 3) // 2


@pytest.mark.parametrize("exponent", [-3, -1, 0, 1, 2, 3, 5, 8, 9, 0.5, 2.5, -0.5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_powers_of_floats(exponent, dtype):
    x = np.array([0.3, 1.0, 2.7, 13.0, 0.0], dtype)
    with np.errstate(all="ignore"):
        want = x**exponent
    assert_ulp(evaluate(sg.constant(x) ** exponent), want, 6)


def test_powers_of_integers():
    x = np.array([0, 1, -2, 3])
    for exponent in (0, 1, 2, 3, 10):
        assert_ulp(evaluate(sg.constant(x) ** exponent), x**exponent, 0)
    with pytest.raises(sg.DTypeError, match="power requires exponents >= 0"):
        sg.constant(x) ** -1


def test_square_powers_are_products():
    x = sg.input("x", ())
    assert (x**2).op.name == "multiply"
    assert (x**0.5).op.name == "sqrt"
    assert (x**-1).op.name == "divide"
    assert (x**2.5).op.name == "power"


CLIPS = [(-1, 1), (None, 0.5), (0.5, None), (2.0, -2.0), (np.zeros(6), 1.0)]


@pytest.mark.parametrize(("low", "high"), CLIPS)
def test_clip_equals_numpys(low, high):
    x = np.array([-3.0, -1.0, 0.0, 0.7, 2.0, np.nan])
    assert_ulp(evaluate(sg.clip(x, low, high)), np.clip(x, low, high), 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logsumexp_of_extremes(dtype):
    rows = [[1000.0, 999.0], [-1000.0, -1001.0], [np.inf, 1.0], [-np.inf, -np.inf]]
    x = np.array([*rows, [np.nan, 1.0], [-np.inf, 2.0]], dtype)
    got = evaluate(sg.logsumexp(x, axis=1))
    with np.errstate(invalid="ignore"):
        assert_ulp(got, np.logaddexp.reduce(x, axis=1), 2)
    assert_ulp(evaluate(sg.logsumexp(x, axis=1, keepdims=True)), got[:, None], 0)


def test_logaddexp_of_extremes():
    some = np.array([0.0, -1.5, 800.0, -800.0, np.inf, -np.inf, np.nan])
    x, y = some[:, None], some[None, :]
    with np.errstate(invalid="ignore"):
        want = np.logaddexp(x, y)
    assert_ulp(evaluate(sg.logaddexp(x, y)), want, 2)


def test_softplus_and_softmax():
    x = np.array([-800.0, -40.0, -1.0, 0.0, 1.0, 39.0, 41.0, 800.0])
    assert_ulp(evaluate(sg.softplus(x)), np.logaddexp(x, 0), 2)
    y = evaluate(sg.softmax(x.reshape(2, 4), axis=0))
    np.testing.assert_allclose(y.sum(0), 1, rtol=1e-15)
    logs = evaluate(sg.log_softmax(x))
    assert_ulp(logs, x - np.logaddexp.reduce(x), 4)


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), ()])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std"])
def test_reductions_over_axes_equal_numpys(name, axis, keepdims):
    x = np.arange(1.0, 25.0).reshape(2, 3, 4) / 8
    got = evaluate(getattr(sg, name)(x, axis=axis, keepdims=keepdims))
    want = getattr(np, name)(x, axis=axis, keepdims=keepdims)
    assert_ulp(got, want, 8)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_first_extreme_or_nan(name, axis, keepdims):
    x = np.array([[3.0, 1, 3], [np.nan, 7, np.nan], [2, 2, 1], [-np.inf, 0, np.inf]])
    for values in (x, x[:1], x[2:], np.array([[2, 2, 1], [0, 2, 2]])):
        got = evaluate(getattr(sg, name)(values, axis=axis, keepdims=keepdims))
        assert_ulp(got, getattr(np, name)(values, axis=axis, keepdims=keepdims), 0)


def test_statistics_with_options():
    x = np.array([[1.0, 2.0, 4.0], [0.0, 1.0, 5.0]])
    assert_ulp(evaluate(sg.var(x, axis=1, ddof=1)), np.var(x, axis=1, ddof=1), 4)
    assert_ulp(evaluate(sg.std(x, ddof=1)), np.std(x, ddof=1), 4)
    w = np.array([[1.0, 0.0, 2.0], [3.0, 1.0, 0.5]])
    got = evaluate(sg.average(x, axis=0, weights=w))
    assert_ulp(got, np.average(x, axis=0, weights=w), 4)
    assert evaluate(sg.sum(np.ones(3, "int8"), dtype="float32")).dtype == np.float32


def test_round_and_others():
    x = np.array([-1.55, 0.5, 1.5, 2.675, 123.456])
    for decimals in (0, 1, 2, -1):
        assert_ulp(evaluate(sg.round(x, decimals)), np.round(x, decimals), 0)
    for whole in (np.array([-35, 14, 15, 25, 2**40]), np.array([255, 4], np.uint8)):
        for decimals in (1, 0, -1, -2):
            assert_ulp(evaluate(sg.round(whole, decimals)), whole.round(decimals), 0)
    assert_ulp(evaluate(sg.fabs(whole[:0].astype(int))), np.zeros(0), 0)
    assert_ulp(evaluate(sg.fabs(np.array([-(2**63)]))), np.array([2.0**63]), 0)
    odd = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert_ulp(evaluate(sg.nan_to_num(odd)), np.nan_to_num(odd), 0)
    got = evaluate(sg.nan_to_num(odd, nan=1.0, posinf=2.0, neginf=3.0))
    np.testing.assert_array_equal(got, [1, 2, 3, 1])
    y = np.array([np.nan, np.inf, np.inf, 1.0 + 1e-9])
    for equal_nan in (False, True):
        want = np.isclose(odd, y, equal_nan=equal_nan)
        assert_ulp(evaluate(sg.isclose(odd, y, equal_nan=equal_nan)), want, 0)
    np.testing.assert_array_equal(
        evaluate(sg.heaviside(odd, 0.5)), np.heaviside(odd, 0.5)
    )


def test_fillings():
    for dtype in (None, "float64", "int32", "bool"):
        np.testing.assert_array_equal(
            evaluate(sg.zeros((2, 3), dtype)), np.zeros((2, 3))
        )
        np.testing.assert_array_equal(evaluate(sg.ones(2, dtype)), np.ones(2))
    assert sg.zeros(2).dtype == sg.eye(2).dtype == sg.linspace(0, 1).dtype == np.float32
    assert_ulp(evaluate(sg.full((2,), 1.5)), np.full((2,), 1.5), 0)
    assert_ulp(evaluate(sg.full((2,), 3, "float32")), np.full((2,), 3, "float32"), 0)
    np.testing.assert_array_equal(evaluate(sg.eye(2, 3, 1)), np.eye(2, 3, 1))
    for args in ((5,), (1, 7, 2), (0.5, 2.0, 0.25), (3, 0, -1)):
        assert_ulp(evaluate(sg.arange(*args)), np.arange(*args), 0)
    assert_ulp(evaluate(sg.linspace(0, 1, 7, dtype="float64")), np.linspace(0, 1, 7), 1)
    ends = sg.constant([0.0, 1.0]), sg.constant([1.0, 3.0])
    got = evaluate(sg.linspace(*ends, 5))
    np.testing.assert_allclose(got, np.linspace([0, 1], [1, 3], 5), rtol=1e-6)


def test_fillings_of_symbolic_shape():
    x = sg.input("x", ("n", 2), "float64")
    n = x.shape[0]
    outputs = (
        sg.ones_like(x),
        sg.zeros(x.shape),
        sg.arange(n),
        sg.eye(n),
        sg.full(n, 2),
    )
    graph = Graph.closed((x,), outputs)
    got, _ = reference.run(graph, "eval", {"x": np.zeros((3, 2))})
    want = [np.ones((3, 2)), np.zeros((3, 2)), np.arange(3), np.eye(3), np.full(3, 2)]
    for left, right in zip(got, want, strict=True):
        np.testing.assert_array_equal(left, right)
    assert [t.dtype.name for t in outputs] == [
        "float64", "float32", "int64", "float32", "int64",
    ]  # fmt: skip


def test_a_graph_sets_the_default_dtype():
    with sg.Graph(dtype="float64"):
        made = (
            sg.input("x"),
            sg.zeros(2),
            sg.eye(2),
            sg.linspace(0, 1),
            sg.parameter([1.0]),
        )
    assert {t.dtype.name for t in made} == {"float64"}


def test_python_sum_works():
    a, b = sg.constant([1.0]), sg.constant([2.0])
    assert evaluate(sum([a, b])) == 3
    assert evaluate(sum([a, b])).dtype == np.float32
