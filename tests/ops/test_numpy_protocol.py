"""NumPy functions and arrays that meet Tensors build graph, or say what to do."""

import re

import numba
import numpy as np
import pytest
import scipy.special

import staticgrad as sg
from staticgrad.ir.node import Tensor
from staticgrad.ops import methods, protocol

VALUE = np.array([[0.25, 1.5, -2.0], [3.0, -0.5, 0.75]])


def value_of(tensor, x):
    return sg.compile(tensor, inputs=[x], target="reference")(VALUE)


UFUNCS = [
    np.exp, np.tanh, np.absolute, np.negative, np.sign, np.square, np.sin, np.cos,
    np.floor, np.ceil, np.rint, np.expm1, np.isnan, np.isfinite, np.logical_not, np.abs,
    np.positive,
]  # fmt: skip


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda f: f.__name__)
def test_ufuncs_of_one_argument(ufunc):
    x = sg.input("x", (2, 3), "float64")
    y = ufunc(x)
    assert isinstance(y, Tensor)
    np.testing.assert_allclose(value_of(y, x), ufunc(VALUE), rtol=1e-14)


BINARY = [
    np.add, np.subtract, np.multiply, np.divide, np.floor_divide, np.remainder,
    np.maximum, np.minimum, np.equal, np.less, np.greater_equal, np.logical_and,
    np.logaddexp, np.true_divide, np.mod, np.heaviside, np.power,
]  # fmt: skip


@pytest.mark.parametrize("ufunc", BINARY, ids=lambda f: f.__name__)
def test_ufuncs_with_an_array_on_either_side(ufunc):
    x = sg.input("x", (2, 3), "float64")
    other = np.array([2.0, 1.0, 3.0])
    for y, want in (
        (ufunc(x, other), ufunc(VALUE, other)),
        (ufunc(other, x), ufunc(other, VALUE)),
        (ufunc(x, 2), ufunc(VALUE, 2)),
    ):
        assert isinstance(y, Tensor)
        np.testing.assert_allclose(value_of(y, x), want, rtol=1e-14)


FUNCTIONS = {
    "sum": lambda m, x: m.sum(x, axis=1),
    "sum_keepdims": lambda m, x: m.sum(x, 0, keepdims=True),
    "mean": lambda m, x: m.mean(x, axis=0),
    "prod": lambda m, x: m.prod(x),
    "max": lambda m, x: m.max(x, axis=1),
    "amin": lambda m, x: m.amin(x),
    "argmax": lambda m, x: m.argmax(x, axis=1),
    "var": lambda m, x: m.var(x, ddof=1),
    "std": lambda m, x: m.std(x, axis=0),
    "clip": lambda m, x: m.clip(x, -1, 1),
    "where": lambda m, x: m.where(x > 0, x, 0.0),
    "reshape": lambda m, x: m.reshape(x, (3, 2)),
    "transpose": lambda m, x: m.transpose(x),
    "concatenate": lambda m, x: m.concatenate([x, x], axis=1),
    "stack": lambda m, x: m.stack([x, x]),
    "matmul": lambda m, x: m.matmul(x, x.T),
    "dot": lambda m, x: m.dot(x, x.T),
    "broadcast_to": lambda m, x: m.broadcast_to(x, (4, 2, 3)),
    "expand_dims": lambda m, x: m.expand_dims(x, 1),
    "squeeze": lambda m, x: m.squeeze(x[:, :1]),
    "flip": lambda m, x: m.flip(x, axis=0),
    "zeros_like": lambda m, x: m.zeros_like(x),
    "full_like": lambda m, x: m.full_like(x, 7),
    "nan_to_num": lambda m, x: m.nan_to_num(x),
    "round": lambda m, x: m.round(x, 1),
    "pad": lambda m, x: m.pad(x, 1),
    "any": lambda m, x: m.any(x > 2, axis=0),
    "isclose": lambda m, x: m.isclose(x, x),
    "take": lambda m, x: m.take(x, np.array([0, 2]), axis=1),
    "swapaxes": lambda m, x: m.swapaxes(x, 0, 1),
    "moveaxis": lambda m, x: m.moveaxis(x, 0, 1),
    "ravel": lambda m, x: m.ravel(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_build_graph(name):
    x = sg.input("x", (2, 3), "float64")
    y = FUNCTIONS[name](np, x)
    assert isinstance(y, Tensor)
    want = FUNCTIONS[name](np, VALUE)
    got = value_of(y, x)
    np.testing.assert_allclose(got, want, rtol=1e-13)
    assert got.dtype == want.dtype
    same = FUNCTIONS[name](sg, x)
    np.testing.assert_array_equal(value_of(same, x), got)


def test_split_gives_a_list():
    x = sg.input("x", (2, 3), "float64")
    parts = np.split(x, 3, axis=1)
    assert [part.shape for part in parts] == [(2, 1)] * 3


def test_facts_about_a_tensor():
    x = sg.input("x", ("n", 3))
    assert np.ndim(x) == 2
    assert np.shape(x) == x.shape
    assert np.size(x) == 3 * x.shape[0]


def test_reduce_method_of_ufuncs():
    x = sg.input("x", (2, 3), "float64")
    for ufunc in (np.add, np.multiply, np.maximum, np.minimum, np.logaddexp):
        got = value_of(ufunc.reduce(x, axis=1), x)
        np.testing.assert_allclose(got, ufunc.reduce(VALUE, axis=1), rtol=1e-14)
    assert np.add.reduce(x).shape == (3,)


def test_accumulate_method_of_ufuncs():
    x = sg.input("x", (2, 3), "float64")
    for ufunc in (np.add, np.multiply):
        got = value_of(ufunc.accumulate(x, axis=1), x)
        np.testing.assert_array_equal(got, ufunc.accumulate(VALUE, axis=1))


OPERATORS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: abs(a) ** abs(b),
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "&": lambda a, b: (a > 0) & (b > 0),
    "|": lambda a, b: (a > 0) | (b > 0),
    "^": lambda a, b: (a > 0) ^ (b > 0),
    "@": lambda a, b: a @ (np.ones((3, 2)) * 2 if b is None else b.T),
}
OTHERS = {
    "array": np.array([[1.0, 2.0, 0.5], [3.0, -2.0, 4.0]]),
    "scalar": np.float64(1.5),
    "number": 2,
    "list": [1.0, 2.0, 4.0],
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("sign", OPERATORS)
def test_operators_with_what_is_no_tensor(sign, other):
    right = OTHERS[other]
    if sign in ("@", "&", "|", "^", "**"):
        right = OTHERS["array"]
    apply = OPERATORS[sign]
    x = sg.input("x", (2, 3), "float64")
    for y, want in (
        (apply(x, right), apply(VALUE, np.asarray(right))),
        (apply(right, x), apply(np.asarray(right), VALUE)),
    ):
        assert isinstance(y, Tensor)
        np.testing.assert_allclose(value_of(y, x), want, rtol=1e-13)


def test_unary_operators():
    x = sg.input("x", (2, 3), "float64")
    made = [-x, +x, abs(x), ~(x > 0), round(x, 1), *divmod(x, 2.0)]
    want = [-VALUE, VALUE, abs(VALUE), ~(VALUE > 0), np.round(VALUE, 1)]
    want += divmod(VALUE, 2.0)
    for y, array in zip(made, want, strict=True):
        np.testing.assert_array_equal(value_of(y, x), array)


def test_methods():
    x = sg.input("x", (2, 3), "float64")
    pairs = [
        (x.T, VALUE.T), (x.mT, VALUE.mT), (x.sum(0), VALUE.sum(0)),
        (x.mean(axis=1, keepdims=True), VALUE.mean(axis=1, keepdims=True)),
        (x.max(), VALUE.max()), (x.min(1), VALUE.min(1)), (x.prod(), VALUE.prod()),
        (x.reshape(3, 2), VALUE.reshape(3, 2)), (x.reshape((6,)), VALUE.reshape(6)),
        (x.reshape(-1), VALUE.ravel()), (x.transpose(1, 0), VALUE.T),
        (x.transpose((0, 1)), VALUE), (x.transpose(), VALUE.T),
        (x.astype("int32"), VALUE.astype("int32")), (x.argmax(1), VALUE.argmax(1)),
        (x.argmin(), VALUE.argmin()), ((x > 0).any(0), (VALUE > 0).any(0)),
        ((x > -3).all(), (VALUE > -3).all()), (x.flatten(), VALUE.flatten()),
        (x.ravel(), VALUE.ravel()), (x[:, :1].squeeze(1), VALUE[:, 0]),
        (x.swapaxes(0, 1), VALUE.T), (x.clip(-1, 1), VALUE.clip(-1, 1)),
        (x.clip(min=0), VALUE.clip(min=0)), (x.var(), VALUE.var()),
        (x.std(0), VALUE.std(0)), (x.round(1), VALUE.round(1)),
        (x.dot(x.T), VALUE @ VALUE.T), (x.take([1], axis=1), VALUE[:, [1]]),
        (x[1, ::-1], VALUE[1, ::-1]), (x[..., None], VALUE[..., None]),
    ]  # fmt: skip
    outputs = sg.compile([y for y, _ in pairs], inputs=[x], target="reference")(VALUE)
    for got, (_, want) in zip(outputs, pairs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-14)
        assert got.shape == np.shape(want)
    assert (x.size, len(x), x.ndim) == (6, 2, 2)
    assert [row.shape for row in x] == [(3,), (3,)]


def test_all_that_type_checkers_see_is_installed():
    assert Tensor.__bases__ == (object,)
    installed = {n for n in vars(methods.Methods) if vars(Tensor).get(n) is not None}
    assert vars(methods.Methods).keys() - installed == {"__dict__"}
    assert "item" in vars(Tensor)
    assert not hasattr(methods.Methods, "item")


def test_hash_and_identity_survive():
    a, b = sg.input("a", (2,)), sg.input("b", (2,))
    assert {a: 1, b: 2}[a] == 1
    assert a in (a, b)
    assert isinstance(a == b, Tensor)


UNSUPPORTED = [
    (lambda x: np.i0(x), "np.i0 requires NumPy arrays, got a Tensor; "
     "staticgrad has no equivalent"),
    (lambda x: np.linalg.svd(x), "np.linalg.svd requires NumPy arrays, got a Tensor"),
    (lambda x: np.linalg.inv(x), "use sg.custom_op(kind='array')"),
    (lambda x: np.fft.fft(x), "staticgrad has no equivalent"),
    (lambda x: np.unique(x), "use sg.bincount"),
    (lambda x: np.nonzero(x), "use sg.where"),
    (lambda x: np.median(x), "use sg.sort"),
    (lambda x: np.maximum.accumulate(x), "np.maximum.accumulate requires NumPy arrays"),
    (lambda x: np.add.at(x, 0, 1), "np.add.at requires NumPy arrays"),
    (lambda x: np.sum(x, out=np.zeros(3)), "np.sum of a Tensor got an unexpected"),
    (lambda x: np.exp(x, out=np.zeros((2, 3))), "requires no out="),
    (lambda x: np.exp(x, where=np.ones(3, bool)), "requires no where="),
    (lambda x: np.cumsum(x, out=np.zeros(6)), "got an unexpected"),
    (lambda x: np.nanmedian(x), "use sg.sort, and its elements at the places that are "
     "wanted"),
    (lambda x: np.partition(x, 1), "use sg.sort, argsort or top_k"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "match"), UNSUPPORTED)
def test_what_is_not_supported_says_so(call, match):
    with pytest.raises(TypeError, match=re.escape(match)) as caught:
        call(sg.input("x", (2, 3)))
    assert "  at test_numpy_protocol.py:" in str(caught.value)


@pytest.mark.parametrize("name", ["lexsort", "median", "percentile", "nonzero"])
def test_names_of_numpys_that_are_missing_lead_to_others(name):
    advice = re.escape(protocol.OTHER_NAMES[name])
    text = rf"no attribute '{name}'; use sg\.{advice}  at test_numpy_protocol.py"
    with pytest.raises(AttributeError, match=text):
        getattr(sg, name)
    assert not hasattr(sg, "nothing_of_this_name")


@pytest.mark.parametrize("name", ["solve", "cholesky"])
def test_factorisations_lead_to_custom_op(name):
    text = f"module 'staticgrad.linalg' has no attribute '{name}'; use sg.custom_op"
    with pytest.raises(AttributeError, match=re.escape(text)):
        getattr(sg.linalg, name)
    assert not hasattr(sg.linalg, "nothing_of_this_name")
    assert dir(sg.linalg) == sorted(sg.linalg.__all__)


@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.arctan2, np.less, np.hypot])
def test_outer_ufuncs(ufunc):
    x, other = sg.input("x", (2, 3), "float64"), np.array([0.5, -2.0])
    for y, known in (
        (ufunc.outer(x, other), ufunc.outer(VALUE, other)),
        (ufunc.outer(other, x), ufunc.outer(other, VALUE)),
        (ufunc.outer(x, 2.0), ufunc.outer(VALUE, 2.0)),
    ):
        assert isinstance(y, Tensor)
        np.testing.assert_allclose(value_of(y, x), known, rtol=1e-14)


SPECIAL = ("erf", "erfc", "expit", "psi", "gammaln", "log1p")


@pytest.mark.parametrize("name", SPECIAL)
def test_ufuncs_of_scipy(name):
    function = getattr(scipy.special, name)
    x = sg.input("x", (2, 3), "float64")
    y = function(abs(x))
    assert isinstance(y, Tensor)
    np.testing.assert_allclose(value_of(y, x), function(abs(VALUE)), rtol=1e-12)


@numba.vectorize(["float64(float64)"])
def square(x):
    return x * x * x


@pytest.mark.parametrize(
    "ufunc", [square, np.frompyfunc(abs, 1, 1), scipy.special.ndtr]
)
def test_a_ufunc_of_somebody_else_is_not_taken_for_ours(ufunc):
    with pytest.raises(TypeError, match=r"sg\.custom_op.*  at test_numpy_protocol\.py"):
        ufunc(sg.input("x", (2, 3), "float64"))


def test_every_suggestion_exists():
    for name in protocol.OTHER_NAMES.values():
        assert hasattr(sg, re.match(r"\w+", name).group()), name


ELSEWHERE = [
    ("backward", "sg.grad(y, wrt)"),
    ("detach", "use sg.stop_gradient"),
    ("numpy", "sg.compile(y)()"),
    ("exp", "use sg.exp(x)"),
    ("to", "use .astype"),
    ("expand", "sg.broadcast_to"),
]


@pytest.mark.parametrize(("name", "advice"), ELSEWHERE)
def test_attributes_of_other_libraries_lead_to_ours(name, advice):
    x = sg.input("x", (2, 3))
    with pytest.raises(AttributeError, match=re.escape(advice)) as caught:
        getattr(x, name)
    assert "  at test_numpy_protocol.py:" in str(caught.value)
    assert not hasattr(x, "nothing_of_this_name")
