"""Custom operations and callbacks in the bodies of control flow."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from custom_functions import filled, mixed

import staticgrad as sg
from staticgrad.testing import gradcheck, gradgradcheck

X = np.array([[0.3, -1.2, 2.1], [1.4, 0.7, -0.6]])
TARGETS = ("reference", "cpu")


@numba.njit
def root(x):
    if x < 0:
        raise ValueError("negative")
    return np.sqrt(x)


by_numbers = sg.custom_op(
    "softly",
    kind="scalar",
    forward=lambda x: x / (1 + abs(x)),
    backward=lambda g, y, x: g / (1 + abs(x)) ** 2,
)
BODIES = {
    "scan": lambda op, x: sg.scan(
        lambda c, v: (op(c) * 0.5 + v, c), x, sg.constant(np.ones((4, 3)))
    )[0],
    "cond": lambda op, x: sg.cond(sg.sum(x) > 0, op, lambda x: x, x),
    "fori": lambda op, x: sg.fori_loop(0, 3, lambda i, c: op(c) * 0.5, x),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("op", [by_numbers, mixed, filled], ids=["scalar", "a", "f"])
def test_in_the_body_of_control_flow(name: str, op: Any) -> None:
    assert gradcheck(lambda x: BODIES[name](op, x), X[0])
    x = sg.input("x", (3,), dtype="float64")
    result = BODIES[name](op, x)
    both = [sg.compile(result, target=target)(X[0]) for target in TARGETS]
    np.testing.assert_allclose(both[0], both[1], rtol=1e-12)


def test_double_backward_through_a_loop_and_a_branch() -> None:
    assert gradgradcheck(lambda x: BODIES["scan"](by_numbers, x), X[0])
    assert gradgradcheck(lambda x: BODIES["cond"](mixed, x), X[0])


def test_a_branch_that_is_not_taken_does_not_call_python() -> None:
    calls: list[int] = []

    def doubled(a: Any) -> Any:
        calls.append(1)
        return a * 2

    x = sg.input("x", (3,), dtype="float64")
    f = sg.compile(
        sg.cond(
            sg.sum(x) > 0,
            lambda x: sg.pure_callback(doubled, (3,), "float64", x),
            lambda x: x,
            x,
        )
    )
    assert f(-np.ones(3)).tolist() == [-1, -1, -1]
    assert calls == []
    assert f(np.ones(3)).tolist() == [2, 2, 2]
    assert calls == [1]


def test_what_is_raised_in_a_body_is_named() -> None:
    op = sg.custom_op("root", kind="scalar", forward=root)
    x = sg.input("x", (), dtype="float64")
    f = sg.compile(sg.fori_loop(0, 5, lambda i, c: op(c) - 1, x))
    with pytest.raises(ValueError, match=r"root requires .* at test_custom_bodies.py"):
        f(2.0)

    def fails(a: Any) -> Any:
        raise OSError("no disk")

    def body(i, c):
        return sg.pure_callback(fails, (), "float64", c)

    with pytest.raises(OSError, match="no disk"):
        sg.compile(sg.fori_loop(0, 5, body, x))(2.0)
