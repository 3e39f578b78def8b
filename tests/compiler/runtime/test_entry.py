"""Are arguments looked at rightly on the fast way into a compiled program?"""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.runtime import fast_call

X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(params=["native", "python"], name="doubled")
def _doubled(request, monkeypatch):
    """An executable that has its fast way already."""
    if request.param == "python":
        monkeypatch.setattr(fast_call, "fields_offset", lambda: None)
    x = sg.input("x", ("n", 4))
    f = sg.compile(x * 2.0, inputs=[x])
    f(X)
    return f


class Kin(np.ndarray):
    pass


def reversed_rows():
    return X[::-1]


def unaligned():
    raw = np.zeros(X.nbytes + 1, np.uint8)
    raw[1:] = np.frombuffer(X.tobytes(), np.uint8)
    return raw[1:].view(np.float32).reshape(3, 4)


def read_only():
    array = X.copy()
    array.flags.writeable = False
    return array


FITTING = {
    "another array": lambda: X.copy(),
    "more rows": lambda: np.concatenate([X, X]),
    "no rows": lambda: X[:0],
    "float64": lambda: X.astype(np.float64),
    "columns first": lambda: np.asfortranarray(X),
    "a list": X.tolist,
    "a subclass": lambda: X.view(Kin),
    "other byte order": lambda: X.astype(">f4"),
    "reversed": reversed_rows,
    "unaligned": unaligned,
    "read-only": read_only,
}


@pytest.mark.parametrize("name", FITTING)
def test_what_can_be_read_or_cast_is(doubled, name):
    value = FITTING[name]()
    for _ in range(2):
        np.testing.assert_array_equal(doubled(value), np.asarray(value) * 2)
        np.testing.assert_array_equal(doubled(x=value), np.asarray(value) * 2)
        np.testing.assert_array_equal(doubled(X), X * 2)


@pytest.mark.parametrize(
    "value", [None, 3, "x", X[0], X[:, :3], X.astype(complex), object(), [[1, 2]]]
)
def test_what_does_not_fit_is_refused_as_before(doubled, value):
    with pytest.raises((sg.GraphError, sg.ShapeError, sg.DTypeError)):
        doubled(value)
    np.testing.assert_array_equal(doubled(X), X * 2)


def test_the_number_of_arguments_is_looked_at(doubled):
    for arguments in ((), (X, X)):
        with pytest.raises(sg.GraphError):
            doubled(*arguments)


def test_fields_are_where_numpy_puts_them():
    assert fast_call.fields_offset() == object.__basicsize__


def test_misplaced_fields_are_noticed():
    assert not fast_call._has_fields(X, object.__basicsize__ + 8)


@pytest.mark.parametrize(
    "value", [[2**40 + 5], [2**63], np.array([2**40]), np.array([2**32 - 1], "u4")]
)
def test_integers_are_not_wrapped(value):
    x = sg.input("x", ("n",), "int32")
    f = sg.compile(x)
    for _ in range(2):
        with pytest.raises(sg.DTypeError, match="outside of its range"):
            f(value)
    np.testing.assert_array_equal(f([2**31 - 1]), [2**31 - 1])
    state = sg.state(np.zeros(1, np.int32), name="narrow")
    with pytest.raises(sg.DTypeError, match="outside of its range"):
        state.value = value
    state.value = [-(2**31)]
    assert state.value[0] == -(2**31)
