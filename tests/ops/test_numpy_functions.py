"""Functions with NumPy's names and keywords give NumPy's values and dtypes.

Each case is a call, made with NumPy's function on arrays and with ours on Tensors, on
the reference and on the cpu target.
"""

import inspect

import numpy as np
import pytest
from tolerances import assert_near

import staticgrad as sg
from staticgrad.ir.node import Tensor

RNG = np.random.default_rng(3)
A = RNG.normal(size=(3, 4))
N = RNG.integers(1, 9, (3, 4))
B = RNG.random((3, 4)) > 0.4
B[2] = False
GAPS = np.where(RNG.random((3, 4)) > 0.7, np.nan, A)
V = np.array([0.5, -1.5, 2.25, 0.5, 3.0])
W = np.array([1.0, 2.0, -0.5])
LONG = RNG.normal(size=40)
X = np.array([-2.0, 0.0, 0.3, 1.0, 1.5, 2.0, 2.5, 9.0, np.nan])
XP, FP = np.array([0.0, 1.0, 1.5, 2.5]), np.array([1.0, -2.0, 4.0, 0.5])
ANGLES = np.array([0.0, 3.0, -3.0, 6.2, 0.1, 0.1 + np.pi])

REDUCTIONS = ("sum", "prod", "max", "min", "nansum", "nanprod", "nanmax", "nanmin")
MOMENTS = ("var", "std", "nanvar", "nanstd")


def reductions():
    for name in REDUCTIONS:
        for x in (A, GAPS, N, A.astype("f4")):
            yield name, (x,), {"axis": 1, "initial": 2.5, "where": B}
            yield name, (x,), {"initial": 2.5, "keepdims": True}
    for name in ("all", "any", "mean", "nanmean", "sum", "nansum"):
        yield name, (A,), {"axis": 0, "where": B}
        yield name, (GAPS,), {"where": B[:, :1]}
    for name in MOMENTS:
        yield name, (GAPS,), {"axis": 1, "where": B}
        yield name, (A,), {"axis": (0, 1), "correction": 1}
        yield name, (N,), {"axis": 0, "ddof": 2, "where": B}
        yield name, (A,), {"axis": 1, "mean": A.mean(1, keepdims=True)}
    yield "max", (np.zeros((0, 3)),), {"axis": 0, "initial": 1.5}
    yield "min", (np.zeros((0, 3)),), {"axis": 0, "initial": 1.5, "keepdims": True}
    yield "average", (A,), {"axis": 1, "weights": V[:4] + 9, "returned": True}
    yield "average", (A,), {"axis": (1, 0), "weights": (N * 1.0).T}
    yield "average", (N,), {"returned": True, "keepdims": True}


def scaled():
    """Powers of two that are infinite or 0 where the result is neither."""
    tiny = np.array([0.0, -0.0, 1.5, -3.1, np.inf, -np.inf, np.nan, 1e-40, -1.5e-38])
    for x in (tiny.astype("f4"), tiny, np.array([5e-324, 1e308, -7e-310])):
        for power in (
            0,
            1,
            -1,
            127,
            250,
            -250,
            277,
            -300,
            2098,
            -2098,
            2**40,
            -(2**40),
        ):
            yield "ldexp", (x, np.full(x.shape, power)), {}


def series():
    for mode in ("full", "same", "valid"):
        for a, v in ((V, W), (W, V), (V, LONG), (LONG, V), (V, V), (V, V[:2])):
            yield "convolve", (a, v, mode), {}
            yield "correlate", (a, v, mode), {}
        yield "convolve", (LONG, LONG[:23]), {"mode": mode}
    yield "correlate", (N[0], N[1][:2]), {}
    for order in (1, 2):
        yield "gradient", (A,), {"edge_order": order}
        yield "gradient", (V,), {"edge_order": order}
        yield "gradient", (A, 2.0), {"axis": 1, "edge_order": order}
        yield "gradient", (A, np.array([0.0, 1, 3, 3.5])), {"axis": 1}
        yield "gradient", (A, W[::-1].copy(), 2.0), {"edge_order": order}
    yield "gradient", (N, 2), {"axis": (1, 0)}
    yield "interp", (X, XP, FP), {}
    yield "interp", (X, XP, FP), {"left": -7.0, "right": 8.0}
    yield "interp", (X[:-1], XP[:1], FP[:1]), {}
    yield "interp", (A.astype("f4"), [0, 1, 2], [3, 5, 4]), {}
    yield "unwrap", (ANGLES,), {}
    yield "unwrap", (np.stack([ANGLES, ANGLES[::-1]]),), {"axis": 0, "period": 4.0}
    yield "unwrap", (np.array([0, 1, 2, -1, 0, 5, 9]),), {"period": 4}
    yield "unwrap", (np.array([0, 1, 2, -1, 0, 5, 9]),), {"period": 5}
    yield "unwrap", (ANGLES * 3,), {"discont": 5.0}
    yield "isin", (N, N[0]), {}
    yield "isin", (A, GAPS), {"invert": True}
    yield "cov", (A,), {"fweights": np.array([1, 2, 3, 1])}
    yield "cov", (A,), {"fweights": np.array([1, 2, 3, 1]), "aweights": V[:4] + 2}
    yield "cov", (A, A[::-1].copy()), {"aweights": V[:4] + 2, "ddof": 0}
    yield "cov", (A,), {"dtype": np.float32}


def polynomials():
    yield "polyadd", (V, W), {}
    yield "polysub", (W, V), {}
    yield "polymul", (V, W), {}
    yield "polyval", (V, A), {}
    yield "polyder", (V,), {}
    yield "polyder", (N[0], 2), {}
    yield "polyint", (V,), {}
    yield "polyint", (V,), {"m": 2, "k": np.array([3.0, 4.0])}
    yield "poly", (V,), {}


def ranges():
    pairs = np.array([[1.0, 1000.0], [-2.0, -0.125]])
    for ends in (tuple(pairs[0]), tuple(pairs[1]), (W[:2] + 3, W[1:] + 9)):
        yield "geomspace", ends, {"num": 5}
        yield "geomspace", ends, {"num": 4, "endpoint": False, "axis": -1}
        yield "linspace", ends, {"num": 5, "axis": -1, "retstep": True}
    yield "logspace", (W, W + 1), {"num": 4, "axis": 1}
    yield "logspace", (0.0, 2.0), {"num": 4, "base": np.array([2.0, 3.0])}
    yield "logspace", (np.array(0.0), np.array(2.0)), {"num": 3, "dtype": np.int32}
    yield "zeros_like", (A,), {"shape": (2, 2)}
    yield "ones_like", (N,), {"shape": 3}
    yield "full_like", (A, 7.0), {"shape": (1, 2), "dtype": np.float32}
    yield "concatenate", ([A, N],), {"dtype": np.float32}
    yield "stack", ([N, N],), {"dtype": np.float32}
    yield "vstack", ([N, A],), {"dtype": np.float64}
    yield "hstack", ([N, N],), {"dtype": np.int32}


def indices():
    yield "searchsorted", (V, A), {"sorter": np.argsort(V)}
    yield "ravel_multi_index", ((np.array([0, 2]), np.array([3, 1])), (3, 4)), {}
    yield (
        "ravel_multi_index",
        ((np.array([5, -1]), np.array([3, 1])), (3, 4), "wrap"),
        {},
    )
    yield (
        "ravel_multi_index",
        ((np.array([0, 2]), np.array([3, 1])), (3, 4), "clip", "F"),
        {},
    )
    yield "unravel_index", (np.array([[0, 7], [11, 3]]), (3, 4)), {}
    yield "unravel_index", (np.array([0, 7]), (3, 4), "F"), {}
    for bins in (3, np.array([-1.0, 0.0, 0.5, 2.0])):
        yield "histogram", (A, bins), {}
        yield "histogram", (A,), {"bins": bins, "density": True}
        yield "histogram", (A,), {"bins": bins, "weights": A + 2}
    yield "histogram", (N,), {"range": (2, 5)}
    yield "histogram", (np.full(3, 2.0), 4), {}
    yield "histogram", (N, 4), {"weights": N}
    yield "histogram_bin_edges", (A, 4), {}


def numbers():
    special = np.array([0.0, -0.0, 1.0, -1.0, 1e-310, np.inf, -np.inf, np.nan, 3e30])
    for x in (special, special.astype("f4"), A, N):
        yield "spacing", (x,), {}
        yield "frexp", (x,), {}
        yield "angle", (x,), {}
        yield "nextafter", (x, 1.0), {}
    yield "angle", (A,), {"deg": True}
    for kind in ("i1", "u2", "i8"):
        yield "bitwise_count", (np.array([0, 1, 7, 100]).astype(kind),), {}
    yield "matvec", (np.stack([A, A]), V[:4]), {}
    yield "vecmat", (W, np.stack([A, A])), {}


CASES = [
    case
    for cases in (reductions, scaled, series, polynomials, ranges, indices, numbers)
    for case in cases()
]
IDS = [f"{name}-{number}" for number, (name, _, _) in enumerate(CASES)]


def lifted(value, inputs):
    """Float and integer arrays of at least one axis as Tensors."""
    if isinstance(value, tuple | list):
        return type(value)(lifted(v, inputs) for v in value)
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        return value
    x = sg.input(f"x{len(inputs)}", value.shape, value.dtype)
    inputs[x] = value
    return x


KNOWN = {"shape", "dtype", "range"}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=IDS)
def test_a_function_gives_what_numpy_gives(name, args, kwargs):
    inputs = {}
    ours = [lifted(a, inputs) for a in args]
    named = {k: v if k in KNOWN else lifted(v, inputs) for k, v in kwargs.items()}
    got = getattr(sg, name)(*ours, **named)
    want = getattr(np, name)(*args, **kwargs)
    gots = list(got) if isinstance(got, tuple) else [got]
    wants = list(want) if isinstance(want, tuple) else [want]
    assert all(isinstance(g, Tensor) for g in gots)
    for target in ("reference", "cpu"):
        f = sg.compile(gots, inputs=list(inputs), target=target)
        for left, right in zip(f(*inputs.values()), wants, strict=True):
            right = np.asarray(right)
            assert (left.dtype, left.shape) == (right.dtype, right.shape)
            assert_near(left, right)


def test_keywords_are_numpys():
    """Of functions with several arguments, all that make sense for Tensors."""
    changed = {"out", "order", "like", "device", "casting", "subok", "kwargs"}
    other = {"bincount": {"minlength"}, "imag": {"val"}, "real": {"val"}}
    for name in sg.ops.__all__:
        numpy = getattr(np, name, None)
        if not callable(numpy) or isinstance(numpy, np.ufunc | type):
            continue
        try:
            wanted = inspect.signature(numpy).parameters.values()
        except ValueError:
            continue
        names = {p.name for p in wanted if p.kind is not p.POSITIONAL_ONLY}
        own = set(inspect.signature(getattr(sg, name)).parameters)
        left = names - own - changed - other.get(name, set())
        assert not left, name


BAD = [
    (lambda: sg.sum(A, where=B[:, :2]), "sum requires a where= that broadcasts"),
    (lambda: sg.max(A, where=B), "max requires initial= beside where="),
    (lambda: sg.var(A, ddof=1, correction=1), "var requires ddof= or correction="),
    (lambda: sg.average(A, axis=0, weights=V), "average requires weights of"),
    (lambda: sg.gradient(A[:1]), "gradient requires at least 2 elements"),
    (lambda: sg.gradient(A, 1.0, 2.0, 3.0), "gradient requires one distance"),
    (lambda: sg.gradient(A, edge_order=3), "gradient requires edge_order 1 or 2"),
    (lambda: sg.gradient(A, V, axis=0), "gradient requires as many coordinates"),
    (lambda: sg.interp(X, XP, FP[:2]), "interp requires xp and fp of one axis"),
    (lambda: sg.interp(X, XP, FP, period=0), "interp requires a period that is not"),
    (lambda: sg.interp(X, sg.constant(XP), FP, period=2), "interp requires an xp that"),
    (lambda: sg.convolve(A, V), "convolve requires two arrays of one axis"),
    (lambda: sg.convolve(V, W, "some"), "convolve requires mode full, same or valid"),
    (lambda: sg.convolve([True], [True]), "convolve requires numbers"),
    (lambda: sg.polyder(V, -1), "polyder requires an order m >= 0"),
    (lambda: sg.polyint(V, -1), "polyint requires an order m >= 0"),
    (lambda: sg.polyint(V, 3, [1, 2]), "polyint requires one constant"),
    (lambda: sg.poly(A), "poly requires a static number of coefficients"),
    (lambda: sg.geomspace(0.0, 1.0), "geomspace requires ends that are not 0"),
    (lambda: sg.linspace(0, 1, -1), "linspace requires a number num >= 0"),
    (lambda: sg.histogram(A, "auto"), "histogram requires a number of bins"),
    (lambda: sg.histogram(A, 0), "histogram requires at least one bin"),
    (lambda: sg.histogram(A, A), "histogram requires edges along one axis"),
    (lambda: sg.histogram(A, [1.0]), "histogram requires a static number of edges"),
    (lambda: sg.histogram(A, 3, weights=V), "histogram requires a weight for each"),
    (lambda: sg.ix_(A), "ix_ requires integers along one axis"),
    (lambda: sg.ravel_multi_index(([1],), (2, 3)), "ravel_multi_index requires an ind"),
    (lambda: sg.unravel_index([1], (2, 3), "A"), "unravel_index requires order C or F"),
    (lambda: sg.matvec(A, W), "matvec requires matrices, and vectors"),
    (lambda: sg.vecmat(V, A), "vecmat requires matrices, and vectors"),
    (lambda: sg.bitwise_count(A), "bitwise_count requires integers"),
    (lambda: sg.linalg.outer(A, V), "outer requires two vectors"),
]


@pytest.mark.parametrize(("call", "text"), BAD, ids=[text[:24] for _, text in BAD])
def test_bad_arguments_are_refused(call, text):
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert str(caught.value).startswith(text)
    assert "  at test_numpy_functions.py:" in str(caught.value)


def test_interp_takes_points_modulo_a_period():
    x = np.array([-180.0, -170, -185, 185, -10, -5, 0, 365])
    xp, fp = [190, -190, 350, -350], [5, 10, 3, 4]
    got = sg.compile(sg.interp(sg.input("x", (8,), "float64"), xp, fp, period=360))(x)
    np.testing.assert_allclose(got, np.interp(x, xp, fp, period=360))


def smooth():
    x = sg.parameter(A)
    v, w = sg.parameter(V), sg.parameter(W)
    return {
        "interp": (sg.interp(x[0], v[:2] * [-2.0, 2.0], w[:2]), [x, v, w]),
        "gradient": (sg.gradient(x, w[0] + 4.0, axis=0), [x, w]),
        "convolve": (sg.convolve(v, w, "same"), [v, w]),
        "windows": (sg.convolve(sg.constant(LONG), sg.concatenate([v] * 4)), [v]),
        "unwrap": (sg.unwrap(x * 5.0), [x]),
        "masked": (sg.prod(x, 1, where=B, initial=3.0), [x]),
        "spread": (sg.std(x, where=B[:2, 0][:, None].repeat(4, 1)[:1]), [x]),
        "poly": (sg.poly(v), [v]),
        "fraction": (sg.frexp(x)[0], [x]),
        "density": (sg.histogram(A, 3, density=True, weights=x * x)[0], [x]),
        "means": (sg.segment_mean(x, [0, 2, 0], 3), [x]),
        "between": (sg.geomspace(w[0], w[1], 4), [w]),
    }


@pytest.mark.parametrize("name", list(smooth()))
def test_gradients_are_right_to_second_order(name):
    y, leaves = smooth()[name]
    y = sg.sum(sg.sin(y))
    sg.testing.gradcheck(y, wrt=leaves)
    sg.testing.gradgradcheck(y, wrt=leaves)


def test_a_masked_out_element_never_poisons_a_gradient():
    x = sg.parameter(np.array([0.0, 2.0, -1.0]))
    y = sg.sum(sg.log(x), where=x > 0, initial=0.0)
    assert sg.compile(sg.grad(y, x))().tolist() == [0.0, 0.5, 0.0]
