"""sg.random's distributions: against SciPy's, their gradients, shapes and refusals.

Seeds are fixed, so a test that passes passes always; a wrong distribution fails: a
Kolmogorov-Smirnov distance of 1.95 / sqrt(n) has probability 0.001, and a shift of a
mean by a hundredth of a deviation is four times that.
"""

import math

import numpy as np
import pytest
from scipy import stats

import staticgrad as sg
from staticgrad.errors import DTypeError, GraphError, ShapeError

N = 1 << 16
KEY = sg.random.key(20)
r = sg.random


def drawn(tensor):
    return sg.compile(tensor)()


def assert_distributed(x, cdf):
    """The Kolmogorov-Smirnov distance, and neighbours are not correlated."""
    x = np.asarray(x, "f8").ravel()
    n = len(x)
    p = cdf(np.sort(x))
    steps = np.arange(n + 1) / n
    distance = max(np.max(steps[1:] - p), np.max(p - steps[:-1]))
    assert distance * math.sqrt(n) < 1.95
    u = cdf(x) - 0.5
    for lag in (1, 2, 4, 8):
        assert abs(np.sum(u[lag:] * u[:-lag])) < 4 * math.sqrt(n) / 12


CONTINUOUS = {
    "normal": (lambda k, d: r.normal(k, (N,), d, 3.0, 2.0), stats.norm(3, 2)),
    "uniform": (lambda k, d: r.uniform(k, (N,), d, -1.0, 4.0), stats.uniform(-1, 5)),
    "exponential": (lambda k, d: r.exponential(k, (N,), d, 0.5), stats.expon(0, 0.5)),
    "gumbel": (lambda k, d: r.gumbel(k, (N,), d, 1.0, 2.0), stats.gumbel_r(1, 2)),
    "laplace": (lambda k, d: r.laplace(k, (N,), d, 1.0, 2.0), stats.laplace(1, 2)),
    "logistic": (lambda k, d: r.logistic(k, (N,), d, 1.0, 2.0), stats.logistic(1, 2)),
    "truncated": (
        lambda k, d: r.truncated_normal(k, -1.0, 2.5, (N,), d),
        stats.truncnorm(-1, 2.5),
    ),
    "gamma_small": (lambda k, d: r.gamma(k, 0.3, (N,), d), stats.gamma(0.3)),
    "gamma_one": (lambda k, d: r.gamma(k, 1.0, (N,), d, 3.0), stats.gamma(1, 0, 3)),
    "gamma_large": (lambda k, d: r.gamma(k, 50.0, (N,), d), stats.gamma(50)),
    "beta": (lambda k, d: r.beta(k, 2.0, 0.7, (N,), d), stats.beta(2, 0.7)),
    "dirichlet": (
        lambda k, d: r.dirichlet(k, [1.0, 2.0, 3.0], (N,), d)[:, 1],
        stats.beta(2, 4),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name, dtype):
    build, law = CONTINUOUS[name]
    x = drawn(build(KEY, dtype))
    assert x.dtype == dtype
    assert x.shape == (N,)
    assert np.all(np.isfinite(x))
    assert_distributed(x, law.cdf)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_are_a_rounding_of_float32(dtype):
    for name in ("normal", "gumbel", "gamma_large", "beta", "truncated"):
        build, _ = CONTINUOUS[name]
        half, full = drawn(build(KEY, dtype)), drawn(build(KEY, "float32"))
        assert half.dtype.name == dtype
        np.testing.assert_array_equal(half, full.astype(half.dtype))
    u = drawn(r.uniform(KEY, (N,), dtype)).astype("f8")
    assert u.max() < 1


def test_a_wrong_distribution_is_noticed():
    x = drawn(r.normal(KEY, (N,)))
    with pytest.raises(AssertionError):
        assert_distributed(x * 1.02, stats.norm.cdf)
    with pytest.raises(AssertionError):
        assert_distributed(np.repeat(x[: N // 2], 2), stats.norm.cdf)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments_and_tails_of_normal(dtype):
    z = drawn(r.normal(KEY, (1 << 20,), dtype)).astype("f8")
    n = len(z)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        deviation = math.sqrt(stats.norm.moment(2 * power) - moment**2)
        assert abs(np.mean(z**power) - moment) < 4 * deviation / math.sqrt(n)
    expected = 2 * stats.norm.sf(4) * n
    assert abs(np.sum(np.abs(z) > 4) - expected) < 4 * math.sqrt(expected)
    pairs = z.reshape(-1, 2)  # cosine and sine of one angle
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 4 / math.sqrt(n / 2)
    assert abs(np.corrcoef((pairs**2).T)[0, 1]) < 4 / math.sqrt(n / 2)


def chi2_of(counts, expected):
    return stats.chisquare(counts, expected).pvalue


def test_integers_are_even():
    i = drawn(r.integers(KEY, -3, 10, (N,)))
    assert i.dtype == np.int64
    assert chi2_of(np.bincount(i + 3, minlength=13), np.full(13, N / 13)) > 1e-3
    die = drawn(r.integers(KEY, 1, 6, (N,), "uint8", endpoint=True))
    assert die.dtype == np.uint8
    assert chi2_of(np.bincount(die)[1:], np.full(6, N / 6)) > 1e-3


def test_integers_take_the_whole_of_every_dtype():
    for dtype in ("int8", "uint8", "int32", "uint32", "int64", "uint64"):
        limits = np.iinfo(dtype)
        last = int(limits.max)
        i = drawn(r.integers(KEY, int(limits.min), last, (N,), dtype, endpoint=True))
        assert i.dtype == dtype
        u = (i.astype("f8") - float(limits.min)) / (float(limits.max) - limits.min + 1)
        assert abs(u.mean() - 0.5) < 4 / math.sqrt(12 * N)
        assert u.min() < 0.005
        assert u.max() > 0.995


def test_integers_of_large_ranges_are_what_the_words_give():
    n = 3 * 2**40 + 7
    words = drawn(r.bits(KEY, (100,), "uint64")).tolist()
    got = drawn(r.integers(KEY, -5, n - 5, (100,))).tolist()
    assert got == [(w * n >> 64) - 5 for w in words]


def test_bounds_that_are_tensors():
    low = sg.input("low", (3,), "int64")
    i = r.integers(KEY, low, 10, (1000, 3))
    got = sg.compile(i)(np.array([0, 9, 12]))
    assert set(got[:, 0]) == set(range(10))
    assert set(got[:, 1]) == {9}
    assert set(got[:, 2]) == {12}  # nothing is left
    known = drawn(r.integers(KEY, 0, 10, (1000, 3)))
    np.testing.assert_array_equal(got[:, 0], known[:, 0])


def test_categorical():
    p = np.array([0.1, 0.0, 0.6, 0.3])
    with np.errstate(divide="ignore"):
        i = drawn(r.categorical(KEY, np.log(p), shape=(N,)))
    counts = np.bincount(i, minlength=4)
    assert counts[1] == 0
    assert chi2_of(counts[p > 0], N * p[p > 0]) > 1e-3
    many = r.fold_in(KEY, np.arange(N // 8))
    one = drawn(sg.vmap(lambda k: r.categorical(k, np.log(p + 1e-9)))(many))
    found = np.bincount(one, minlength=4)[p > 0]
    assert chi2_of(found, len(one) * p[p > 0]) > 1e-3
    rows = r.categorical(KEY, np.zeros((4, 7, 2)), axis=1)
    assert rows.shape == (4, 2)
    assert rows.dtype == np.int64


def test_rare_categories_are_drawn():
    """A probability of 1e-6 needs more than 24 bits beside 2^16 draws of 64 ..."""
    logits = np.log(np.array([1e-4, 1 - 1e-4], "f4"))
    i = drawn(r.categorical(KEY, logits, shape=(1 << 20,)))
    expected = 1e-4 * (1 << 20)
    assert abs(np.sum(i == 0) - expected) < 4 * math.sqrt(expected)


def test_orders_are_equally_likely():
    keys = r.fold_in(KEY, np.arange(24 * 400))
    orders = drawn(sg.vmap(lambda k: r.permutation(k, 4))(keys))
    codes = orders @ np.array([64, 16, 4, 1])
    values, counts = np.unique(codes, return_counts=True)
    assert len(values) == 24
    assert chi2_of(counts, np.full(24, 400.0)) > 1e-3


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_permutation_of_numbers(n):
    order = drawn(r.permutation(KEY, n))
    assert order.dtype == np.int64
    assert sorted(order) == list(range(n))


def test_permutation_of_slices():
    x = np.arange(24.0).reshape(4, 6)
    with sg.Graph():
        leaf = sg.input("x", ("n", 6), "float64")
        rows = sg.compile(r.permutation(KEY, leaf))(x)
        columns = sg.compile(r.permutation(KEY, leaf, axis=1))(x)
    order = drawn(r.permutation(KEY, 4))
    np.testing.assert_array_equal(rows, x[order])
    np.testing.assert_array_equal(columns, x[:, drawn(r.permutation(KEY, 6))])


def test_choice():
    counts = np.bincount(drawn(r.choice(KEY, 5, (N,))), minlength=5)
    assert chi2_of(counts, np.full(5, N / 5)) > 1e-3
    p = np.array([0.5, 0.0, 0.2, 0.3])
    found = drawn(r.choice(KEY, np.array([10, 20, 30, 40]), (N,), p=p))
    counts = np.array([np.sum(found == v) for v in (10, 30, 40)])
    assert counts.sum() == N
    assert chi2_of(counts, N * p[p > 0]) > 1e-3
    each = r.fold_in(KEY, np.arange(N))
    mapped = drawn(sg.vmap(lambda k: r.choice(k, 4, (), p=p))(each))
    assert chi2_of(np.bincount(mapped, minlength=4)[p > 0], N * p[p > 0]) > 1e-3
    assert set(mapped) == {0, 2, 3}
    once = drawn(r.choice(KEY, 1000, (20, 30), replace=False))
    assert once.shape == (20, 30)
    assert len(set(once.ravel())) == 600


def test_choice_without_replacement_by_weight():
    """The first of two is drawn by p, the second by what is left."""
    p = np.array([0.5, 0.3, 0.2])
    keys = r.fold_in(KEY, np.arange(4000))
    pairs = drawn(sg.vmap(lambda k: r.choice(k, 3, (2,), False, p))(keys))
    expected = {(a, b): p[a] * p[b] / (1 - p[a]) for a in range(3) for b in range(3)}
    counts = [np.sum((pairs == ab).all(axis=1)) for ab in expected if ab[0] != ab[1]]
    wanted = [4000 * q for (a, b), q in expected.items() if a != b]
    assert chi2_of(counts, wanted) > 1e-3


# ---- gradients -----------------------------------------------------------------------


def test_reparameterised_gradients():
    with sg.Graph(dtype="float64"):
        loc, scale = sg.input("loc", (3,)), sg.input("scale", (3,))
        key = sg.random.key(1)
        for draw in (r.normal, r.gumbel, r.laplace, r.logistic):
            x = draw(key, (4, 3), None, loc, scale)
            dloc, dscale = sg.grad(sg.sum(x * x), [loc, scale])
            f = sg.compile([x, dloc, dscale])
            a, b = np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 0.5])
            value, da, db = f(a, b)
            np.testing.assert_allclose(da, 2 * value.sum(axis=0))
            np.testing.assert_allclose(db, (2 * value * (value - a) / b).sum(axis=0))


@pytest.mark.parametrize("a", [0.1, 0.7, 1.0, 3.0, 60.0, 3000.0, 2e4])
def test_the_implicit_gradient_of_gamma(a):
    """dx/da = -(dF/da) / density, the former from differences of SciPy's function."""
    with sg.Graph(dtype="float64"):
        shape = sg.input("a", ())
        x = r.gamma(sg.random.key(2), shape, (300,))
        f = sg.compile([x, sg.jvp(x, shape, 1.0)])
    value, slope = f(a)
    step = 1e-4 * a
    law = stats.gamma
    upper, lower = (law.cdf(value, a + s) for s in (step, -step))
    expected = -(upper - lower) / (2 * step) / law.pdf(value, a)
    middle = (law.cdf(value, a) > 1e-3) & (law.cdf(value, a) < 0.999)
    rtol = 2e-4 if a < 1e4 else 1e-3  # where an approximation begins
    np.testing.assert_allclose(slope[middle], expected[middle], rtol=rtol)


def test_gamma_has_one_derivative():
    a = sg.input("a", ())
    da = sg.grad(r.gamma(KEY, a), a)
    with pytest.raises(GraphError, match="one derivative"):
        sg.grad(da, a)


# ---- Poisson -------------------------------------------------------------------------


def poisson_pvalue(x, rate):
    """Of counts in cells of about equal probability."""
    law = stats.poisson(rate)
    edges = np.unique(law.ppf(np.linspace(0.01, 0.99, 50)))
    inner = np.diff(law.cdf(edges))
    expected = np.array([law.cdf(edges[0]), *inner, law.sf(edges[-1])])
    cells = np.searchsorted(edges, x, side="left")
    counts = np.bincount(cells, minlength=len(edges) + 1)
    kept = expected > 0
    return chi2_of(counts[kept], expected[kept] / expected[kept].sum() * len(x))


@pytest.mark.parametrize("rate", [0.02, 0.7, 4.0, 9.9, 10.0, 17.0, 250.0, 1e5, 1e9])
def test_poisson(rate):
    x = drawn(r.poisson(KEY, rate, (N,)))
    assert x.dtype == np.int64
    assert poisson_pvalue(x, rate) > 1e-3
    wrong = x + np.arange(N) % 2 * math.ceil(math.sqrt(rate) / 4)
    assert poisson_pvalue(wrong, rate) < 1e-6
    assert abs(x.mean() - rate) < 4 * math.sqrt(rate / N)
    spread = math.sqrt((2 + 1 / rate) / N)
    assert abs(x.var() / rate - 1) < 4 * spread
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 4 / math.sqrt(N)


def test_poisson_numbers_are_those_of_numpy_on_any_number_of_threads():
    rates = np.geomspace(1e-3, 1e12, 1 << 15)
    y = r.poisson(KEY, rates)
    want = sg.compile(y, target="reference")()
    threads = sg.get_num_threads()
    try:
        for number in (1, 2):
            sg.set_num_threads(number)
            np.testing.assert_array_equal(drawn(y), want)
    finally:
        sg.set_num_threads(threads)


def test_poisson_numbers_of_dtypes_and_of_what_is_no_rate():
    assert drawn(r.poisson(KEY, 3.0, (5,), "int8")).dtype == np.int8
    assert drawn(r.poisson(KEY)).shape == ()
    assert drawn(r.poisson(KEY, [0, 0, 0])).tolist() == [0, 0, 0]
    odd = [-1e-9, -np.inf, np.nan, np.inf, 1e19]
    assert drawn(r.poisson(KEY, odd)).tolist() == [-1] * 5
    rate = sg.input("rate", ("n",))
    total = sg.sum(r.poisson(KEY, rate) * rate)
    (slope,) = sg.compile(sg.grad(total, [rate]), inputs=[rate])(np.float32([2.0]))
    assert slope == sg.compile(r.poisson(KEY, np.float32([2.0])))()


# ---- interface -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [
        lambda k: r.normal(k, (6,)),
        lambda k: r.uniform(k, (3, 2), "float64"),
        lambda k: r.integers(k, 0, 100, (6,)),
        lambda k: r.exponential(k, (6,)),
        lambda k: r.gamma(k, [0.5, 2.0, 9.0], (2, 3)),
        lambda k: r.poisson(k, [0.5, 2.0, 90.0], (2, 3)),
        lambda k: r.categorical(k, [0.0, 1.0, 2.0], shape=(6,)),
        lambda k: r.permutation(k, 6),
        lambda k: r.choice(k, 9, (6,), False),
        lambda k: r.bernoulli(k, 0.5, (6,)),
    ],
)
def test_vmap_over_keys_is_a_loop_over_keys(build):
    keys = drawn(r.fold_in(KEY, np.arange(3)))
    got = drawn(sg.vmap(build)(sg.constant(keys)))
    for row, key in zip(got, keys, strict=True):
        want = drawn(build(sg.constant(key)))
        assert row.dtype == want.dtype
        np.testing.assert_array_equal(row, want)


def test_shapes_come_from_the_parameters():
    assert r.normal(KEY, loc=np.zeros((4, 1)), scale=np.ones(3)).shape == (4, 3)
    assert r.normal(KEY, loc=np.zeros(3)).dtype == np.float64
    assert r.normal(KEY, loc=np.zeros(3, "f4")).dtype == np.float32
    assert r.normal(KEY, (2,), "float32", loc=np.zeros(2)).dtype == np.float32
    assert r.gamma(KEY, np.ones(3, "i8")).dtype == np.float64
    assert r.exponential(KEY).shape == ()
    assert r.beta(KEY, 1.0, np.ones(3)).shape == (3,)
    assert str(r.normal(KEY, ("n", 2)).type) == "float32[n, 2]"


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda: r.normal(KEY, (2,), "int32"), DTypeError, "floating-point dtype"),
        (lambda: r.normal(KEY, (2,), loc=np.ones(3)), ShapeError, "broadcast"),
        (lambda: r.normal(KEY, (1,), loc=np.ones(3)), ShapeError, "broadcast to"),
        (lambda: r.integers(KEY, 3, 3), GraphError, "at least one integer"),
        (lambda: r.integers(KEY, 0, 300, dtype="uint8"), GraphError, "within uint8"),
        (lambda: r.integers(KEY, 0.5, 3), DTypeError, "integers as bounds"),
        (lambda: r.integers(KEY, 0, 3, dtype="float32"), DTypeError, "integer dtype"),
        (lambda: r.bits(KEY, (), "bool"), DTypeError, "integer dtype"),
        (lambda: r.poisson(KEY, 2.0, (), "float32"), DTypeError, "integer dtype"),
        (lambda: r.poisson(KEY, np.ones(3), (2,)), ShapeError, "broadcast"),
        (lambda: r.categorical(KEY, 1.0), ShapeError, "at least one axis"),
        (lambda: r.dirichlet(KEY, 1.0), ShapeError, "at least one axis"),
        (lambda: r.permutation(KEY, 1.5), ShapeError, "at least one axis"),
        (lambda: r.choice(KEY, 1.5), ShapeError, "at least one axis"),
        (lambda: r.choice(KEY, 3, (4,), False), GraphError, "at most 3 elements"),
        (lambda: r.choice(KEY, 3, p=[0.5, 0.5]), ShapeError, "probabilities of shape"),
        (
            lambda: r.choice(KEY, 3, ("n",), False, [0.2, 0.3, 0.5]),
            GraphError,
            "static shape",
        ),
    ],
)
def test_refusals(build, error, match):
    with pytest.raises(error, match=match) as caught:
        build()
    assert "test_distributions.py:" in str(caught.value)


def test_categorical_of_nan_is_the_first_nan():
    logits = sg.constant(np.float32([0, 1, np.nan, np.nan]))
    assert sg.compile(r.categorical(KEY, logits))() == 2
    assert (drawn(r.categorical(KEY, logits, shape=(3, 2))) == 2).all()


def test_categorical_of_infinite_logits():
    logits = np.float64([0, np.inf, -np.inf, np.inf])
    i = drawn(r.categorical(KEY, logits, shape=(N,)))
    counts = np.bincount(i, minlength=4)
    assert counts[0] == counts[2] == 0
    assert chi2_of(counts[[1, 3]], np.array([N / 2, N / 2])) > 1e-3
