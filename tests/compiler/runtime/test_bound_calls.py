"""Bound functions: one native call each, with all that the call in Python did."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.runtime import calling

X = np.arange(6, dtype=np.float32)


def bound(build, **arrays):
    with sg.Graph():
        leaves = {k: sg.input(k, a.shape, a.dtype) for k, a in arrays.items()}
        f = sg.compile(build(**leaves), inputs=list(leaves.values()))
    return f.bind(**arrays)


def broken(*_):
    raise AttributeError("another llvmlite")


@pytest.fixture(params=["native", "python"])
def way(request, monkeypatch):
    """Bound calls as built-in functions, and where those cannot be made."""
    if request.param == "python":
        monkeypatch.setattr(calling, "_built_in", broken)
    return request.param


def test_a_bound_function_is_built_in(way):
    g = bound(lambda x: x + 1.0, x=X)
    kind = "function" if way == "python" else "builtin_function_or_method"
    assert type(g.__call__).__name__ == kind
    assert callable(g)


def test_results_come_in_their_structure(way):
    g = bound(lambda x: {"a": x + 1.0, "b": (x * 2.0, [x])}, x=X)
    found = g()
    np.testing.assert_array_equal(found["a"], X + 1)
    np.testing.assert_array_equal(found["b"][0], X * 2)
    np.testing.assert_array_equal(found["b"][1][0], X)
    assert g()["a"] is found["a"]
    assert bound(lambda x: [x + 1.0], x=X)()[0].tolist() == (X + 1).tolist()


def test_data_are_read_anew_and_outputs_are_kept(way):
    x = X.copy()
    g = bound(lambda x: x * 2.0, x=x)
    first = g()
    x[:] = 7
    assert g() is first
    assert first.tolist() == [14] * 6
    with pytest.raises(TypeError):
        g(1)


def test_errors_are_raised_and_forgotten(way):
    i = np.array([1, 9])
    g = bound(lambda x, i: x[i], x=X, i=i)
    for _ in range(2):
        with pytest.raises(sg.IndexOutOfRange, match="got 9 at position 1"):
            g()
    i[1] = -1
    assert g().tolist() == [1, 5]


def test_what_is_called_lives_as_long_as_its_call(way):
    call = bound(lambda x: x + 1.0, x=X.copy()).__call__
    gc.collect()
    assert call().tolist() == (X + 1).tolist()


def test_a_bound_function_leaves_nothing_behind(way):
    g = bound(lambda x: x + 1.0, x=X)
    result = g()
    before = sys.getrefcount(result)
    for _ in range(1000):
        g()
    assert sys.getrefcount(result) == before
    gone = weakref.ref(g)
    del g
    gc.collect()
    assert gone() is None


def test_updates_of_several_threads_are_all_made(way):
    with sg.Graph():
        count = sg.state(np.zeros(1000, "f4"))
        f = sg.compile([], inputs=[], updates=[(count, count + 1.0)])
    calls = [f.bind(), f.bind()]
    threads = [
        threading.Thread(target=lambda g=g: [g() for _ in range(500)])
        for g in calls * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (count.value == 2000).all()


def test_loops_of_unknown_length_stay_in_python_to_be_stopped():
    def halved(x):
        return sg.while_loop(lambda h: sg.sum(h) > 1.0, lambda h: h * 0.5, x)

    g = bound(halved, x=X)
    assert type(g.__call__).__name__ == "function"
    assert g().sum() <= 1
