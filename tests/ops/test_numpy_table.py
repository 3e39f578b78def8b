"""Every public function of NumPy on a Tensor: it works, or says what to use instead.

The table is the one that the library uses (protocol.EQUIVALENTS): each name in it is
called below, on arrays and on Tensors, and must give the same. Everything else in the
namespaces of NumPy must raise a TypeError.
"""

import inspect

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.ir.node import Tensor
from staticgrad.ops import protocol

SPACES = {"": np, "linalg.": np.linalg, "fft.": np.fft}
V = np.array([0.5, -1.5, 2.25])
M = np.array([[0.25, 0.5, -0.75], [0.75, -0.5, 0.125]])
S = np.array([[0.5, -1.0, 0.25], [2.0, 0.75, -0.5], [1.0, 0.5, 1.5]])
GAPS = np.array([[1.0, np.nan, 3.0], [4.0, 5.0, np.nan]])
N = np.array([6, 1, 4])
K = np.array([2, 0, 3])

INTEGERS = {
    "bitwise_and", "bitwise_count", "bitwise_or", "bitwise_xor", "gcd", "invert", "lcm",
    "left_shift", "right_shift",
}  # fmt: skip
ABOVE_ONE = {"arccosh"}
MATRICES = {"matmul", "vecdot", "matvec", "vecmat"}


def of_ufunc(name):
    """A call of a ufunc, at arguments where it is defined."""
    ufunc = getattr(np, name)
    if ufunc.__name__ in INTEGERS:
        arguments = (N, K)
    elif ufunc.__name__ in MATRICES:
        arguments = (S, S)
    else:
        shift = 2 if ufunc.__name__ in ABOVE_ONE else 0
        arguments = (M + shift, np.array([1.5, 2.0, 0.5]))
    if ufunc.__name__ == "ldexp":
        arguments = (M, N)
    return lambda f, a=arguments[: ufunc.nin]: f(*a)


# name: the call, given the function; arrays in it become Tensors for the second call
CALLS = {
    "ndim": lambda f: f(M), "shape": lambda f: f(M), "size": lambda f: f(M),
    "iscomplexobj": lambda f: f(M), "isrealobj": lambda f: f(M),
    "real_if_close": lambda f: f(M), "all": lambda f: f(M, axis=1),
    "allclose": lambda f: f(M, M), "amax": lambda f: f(M, axis=0),
    "amin": lambda f: f(M, axis=0), "any": lambda f: f(M, axis=1, keepdims=True),
    "append": lambda f: f(M, M, axis=0), "argmax": lambda f: f(M, axis=1),
    "argmin": lambda f: f(M), "argsort": lambda f: f(M, axis=0),
    "around": lambda f: f(M, 1),
    "array_equal": lambda f: f(M, M), "array_equiv": lambda f: f(M, M[0]),
    "array_split": lambda f: f(V, 2), "astype": lambda f: f(M, np.dtype("float32")),
    "atleast_1d": lambda f: f(V), "atleast_2d": lambda f: f(V),
    "atleast_3d": lambda f: f(V), "average": lambda f: f(M, axis=1, weights=V),
    "block": lambda f: f([[M, M], [M, M]]),
    "broadcast_arrays": lambda f: f(M, V), "broadcast_to": lambda f: f(V, (2, 3)),
    "clip": lambda f: f(M, -0.5, 0.5), "column_stack": lambda f: f([V, V]),
    "concat": lambda f: f([M, M], axis=1), "concatenate": lambda f: f([M, M], axis=1),
    "conj": lambda f: f(M), "copy": lambda f: f(M), "corrcoef": lambda f: f(S),
    "count_nonzero": lambda f: f(N, axis=0), "cov": lambda f: f(S, ddof=1),
    "cross": lambda f: f(S, S[0]), "cumprod": lambda f: f(M, axis=1),
    "cumsum": lambda f: f(M, axis=0), "cumulative_prod": lambda f: f(V),
    "cumulative_sum": lambda f: f(M, axis=1, include_initial=True),
    "delete": lambda f: f(V, 1), "diag": lambda f: f(S), "diagflat": lambda f: f(V),
    "diagonal": lambda f: f(S, 1), "diff": lambda f: f(M, n=2),
    "digitize": lambda f: f(V, np.array([0.0, 1.0])), "dot": lambda f: f(M, S),
    "dsplit": lambda f: f(M.reshape(1, 3, 2), 2), "dstack": lambda f: f([M, M]),
    "ediff1d": lambda f: f(V, to_end=1.0), "einsum": lambda f: f("ij,jk->ik", M, S),
    "expand_dims": lambda f: f(M, 1), "fix": lambda f: f(M * 4),
    "flip": lambda f: f(M, axis=1), "fliplr": lambda f: f(M), "flipud": lambda f: f(M),
    "full_like": lambda f: f(M, 7.0), "hsplit": lambda f: f(M, 3),
    "hstack": lambda f: f([M, M]), "imag": lambda f: f(M),
    "inner": lambda f: f(M, S), "insert": lambda f: f(V, 1, 5.0),
    "isclose": lambda f: f(M, M + 1e-9), "iscomplex": lambda f: f(M),
    "isneginf": lambda f: f(M), "isposinf": lambda f: f(M), "isreal": lambda f: f(M),
    "kron": lambda f: f(M, V), "linspace": lambda f: f(V, V + 1, 4),
    "logspace": lambda f: f(V, V + 1, 4), "matrix_transpose": lambda f: f(M),
    "max": lambda f: f(M, axis=1), "mean": lambda f: f(M, axis=1),
    "meshgrid": lambda f: f(V, V), "min": lambda f: f(M, axis=1),
    "moveaxis": lambda f: f(M, 0, 1), "nan_to_num": lambda f: f(GAPS),
    "nanargmax": lambda f: f(GAPS, axis=1), "nanargmin": lambda f: f(GAPS, axis=1),
    "nancumprod": lambda f: f(GAPS, axis=1), "nancumsum": lambda f: f(GAPS, axis=1),
    "nanmax": lambda f: f(GAPS, axis=1), "nanmean": lambda f: f(GAPS, axis=1),
    "nanmin": lambda f: f(GAPS, axis=1), "nanprod": lambda f: f(GAPS, axis=1),
    "nanstd": lambda f: f(GAPS, axis=1), "nansum": lambda f: f(GAPS, axis=1),
    "nanvar": lambda f: f(GAPS, axis=1), "ones_like": lambda f: f(M),
    "outer": lambda f: f(V, V), "pad": lambda f: f(M, 1),
    "permute_dims": lambda f: f(M, (1, 0)), "polyval": lambda f: f(V, M),
    "prod": lambda f: f(M, axis=1), "ptp": lambda f: f(M, axis=1),
    "ravel": lambda f: f(M), "real": lambda f: f(M),
    "repeat": lambda f: f(M, 2, axis=1), "reshape": lambda f: f(M, (3, 2)),
    "roll": lambda f: f(M, 1, axis=1), "rollaxis": lambda f: f(M, 1),
    "rot90": lambda f: f(M), "round": lambda f: f(M, 1),
    "sort": lambda f: f(M), "searchsorted": lambda f: f(np.array([0.0, 1.0, 2.0]), V),
    "select": lambda f: f([M > 0, M > -0.5], [M, -M], 9.0),
    "sinc": lambda f: f(M), "split": lambda f: f(M, 3, axis=1),
    "squeeze": lambda f: f(M[:, :1]), "stack": lambda f: f([M, M], axis=1),
    "std": lambda f: f(M, axis=1), "sum": lambda f: f(M, axis=1),
    "swapaxes": lambda f: f(M, 0, 1), "take": lambda f: f(M, K[:2], axis=1),
    "take_along_axis": lambda f: f(M, np.array([[2], [0]]), axis=1),
    "tensordot": lambda f: f(M, S, axes=1), "tile": lambda f: f(M, (1, 2)),
    "trace": lambda f: f(S), "transpose": lambda f: f(M),
    "trapezoid": lambda f: f(M, np.array([0.0, 1.0, 3.0])), "tril": lambda f: f(S),
    "triu": lambda f: f(S, 1), "unstack": lambda f: f(M, axis=1),
    "vander": lambda f: f(V, 3), "var": lambda f: f(M, axis=1, ddof=1),
    "vdot": lambda f: f(V, V), "vsplit": lambda f: f(M, 2),
    "vstack": lambda f: f([M, M]), "where": lambda f: f(M > 0, M, 0.0),
    "angle": lambda f: f(M), "bitwise_count": lambda f: f(N),
    "convolve": lambda f: f(V, V, "same"), "correlate": lambda f: f(V, V),
    "geomspace": lambda f: f(V[::2], V[::2] + 1, 4), "gradient": lambda f: f(S, axis=0),
    "histogram": lambda f: f(M, 3), "histogram_bin_edges": lambda f: f(M, 3),
    "interp": lambda f: f(M, np.array([-0.5, 0.0, 0.5]), V),
    "isin": lambda f: f(N, K), "ix_": lambda f: f(N, K),
    "poly": lambda f: f(V), "polyadd": lambda f: f(V, V[1:]),
    "polyder": lambda f: f(V), "polyint": lambda f: f(V),
    "polymul": lambda f: f(V, V), "polysub": lambda f: f(V, V),
    "ravel_multi_index": lambda f: f((K, K), (4, 5)),
    "result_type": lambda f: np.zeros((), f(M, N)),
    "unravel_index": lambda f: f(N, (3, 4)),
    "unwrap": lambda f: f(V * 4),
    "zeros_like": lambda f: f(M),
    "linalg.cross": lambda f: f(S, S),
    "linalg.diagonal": lambda f: f(np.stack([S, S])),
    "linalg.matmul": lambda f: f(M, S),
    "linalg.matrix_norm": lambda f: f(S, ord=np.inf),
    "linalg.matrix_power": lambda f: f(S, 3),
    "linalg.matrix_transpose": lambda f: f(M),
    "linalg.multi_dot": lambda f: f([M, S, S]),
    "linalg.norm": lambda f: f(M, axis=1), "linalg.outer": lambda f: f(V, V),
    "linalg.tensordot": lambda f: f(M, S, axes=1),
    "linalg.trace": lambda f: f(np.stack([S, S])),
    "linalg.vecdot": lambda f: f(M, M),
    "linalg.vector_norm": lambda f: f(M, ord=1, axis=1),
}  # fmt: skip

# Of the functions with NumPy's names, those that take no array: sg.zeros and the like.
NO_ARGUMENTS = {
    "arange", "diag_indices", "eye", "full", "identity", "indices", "ones", "tri",
    "tril_indices", "triu_indices", "zeros",
}  # fmt: skip

# What has NumPy's name and cannot have its meaning: put_along_axis gives a result where
# NumPy changes its argument, bincount needs the length of its result.
DIFFERENT = {"bincount", "put_along_axis"}


def public(space):
    """The functions of a namespace: ufuncs, and what dispatches on its arguments."""
    for name in sorted(dir(space)):
        value = getattr(space, name)
        dispatches = isinstance(value, np.ufunc) or hasattr(value, "_implementation")
        if not name.startswith("_") and dispatches:
            yield name, value


FOUND = {
    prefix + name: value
    for prefix, space in SPACES.items()
    for name, value in public(space)
}


def known(name, function):
    """Whether the table has the function, under this or its own name."""
    prefix = name[: name.rfind(".") + 1]
    return bool({name, prefix + function.__name__} & protocol.EQUIVALENTS.keys())


WORKING = sorted(name for name, f in FOUND.items() if known(name, f))
REFUSED = sorted(FOUND.keys() - set(WORKING))


def on_tensors(function, inputs):
    """`function` with every float or integer array among its arguments as a Tensor."""

    def lift(value):
        if isinstance(value, np.ndarray):
            x = sg.input(f"x{len(inputs)}", value.shape, value.dtype)
            inputs[x] = value
            return x
        return [lift(v) for v in value] if isinstance(value, list) else value

    def call(*args, **kwargs):
        lifted = [lift(arg) for arg in args]
        return function(*lifted, **{k: lift(v) for k, v in kwargs.items()})

    return call


def call_of(name):
    if name in CALLS:
        return CALLS[name]
    assert isinstance(FOUND[name], np.ufunc), f"test_numpy_table has no call of {name}"
    return of_ufunc(name)


@pytest.mark.parametrize("name", [name for name in WORKING if name not in DIFFERENT])
def test_what_is_in_the_table_gives_what_numpy_gives(name):
    inputs = {}
    call, function = call_of(name), FOUND[name]
    got = call(on_tensors(function, inputs))
    with np.errstate(all="ignore"):
        want = call(function)
    gots = list(got) if isinstance(got, tuple | list) else [got]
    wants = list(want) if isinstance(want, tuple | list) else [want]
    tensors = [t for t in gots if isinstance(t, Tensor)]
    f = sg.compile(tensors, inputs=list(inputs), target="reference")
    values = iter(f(*inputs.values()) if tensors else ())
    for left, right in zip(gots, wants, strict=True):
        value = next(values) if isinstance(left, Tensor) else left
        np.testing.assert_allclose(value, right, rtol=1e-13, atol=1e-15)
        assert np.asarray(value).dtype == np.asarray(right).dtype


def test_every_entry_of_the_table_is_called():
    called = set(WORKING) | NO_ARGUMENTS
    assert protocol.EQUIVALENTS.keys() - called == {"logsumexp"}  # logaddexp.reduce


def arguments_of(function, x):
    """A Tensor for each argument that has to be given."""
    if isinstance(function, np.ufunc):
        return [x] * function.nin
    if function.__name__.startswith("save"):
        return ["file", x]
    parameters = inspect.signature(function).parameters.values()
    given = [
        p
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return [x] * max(1, len(given))


@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_says_what_to_use_instead(name):
    x = sg.input("x", (2, 3))
    with pytest.raises(TypeError) as caught:
        FOUND[name](*arguments_of(FOUND[name], x))
    text = str(caught.value)
    assert "requires NumPy arrays, got a Tensor; " in text
    assert "use sg." in text or "staticgrad has no equivalent" in text
    assert "  at test_numpy_table.py:" in text


@pytest.mark.parametrize("name", ["asarray", "array", "ascontiguousarray"])
def test_conversions_ask_for_values(name):
    with pytest.raises(TypeError, match="asarray requires values"):
        getattr(np, name)(sg.input("x", (2, 3)))
