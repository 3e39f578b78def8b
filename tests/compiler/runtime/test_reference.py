"""The reference target: by_mode, sizes, index errors, what is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.runtime.targets.reference import bind_sizes, run
from staticgrad.ir.graph import Graph, apply
from staticgrad.ir.op import Elementwise, IndexCheck, Op
from staticgrad.ops.named import named


def counting(calls: list[str], name: str) -> Op:
    """An op that notes that it was computed."""

    def numpy(x: np.ndarray) -> np.ndarray:
        calls.append(name)
        return x

    return Op(
        name, lambda x: x.shape, lambda x: x.dtype, None, Elementwise("{0}"), numpy,
        tuple, tuple,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_only_the_side_of_the_mode_is_computed(mode: Any) -> None:
    calls: list[str] = []
    with sg.Graph():
        x = sg.input("x", (2,))
    sides = [apply(counting(calls, side), x) for side in ("train", "eval")]
    y = named("by_mode", *sides)
    given: Any = {"x": np.ones(2, np.float32)}
    run(Graph.closed((x,), (y,)), mode, given)
    assert calls == [mode]


def test_outputs_and_updates_are_copies() -> None:
    w = sg.parameter(np.zeros(2, np.float32), name="w")
    with sg.Graph():
        x = sg.input("x", (2,))
    given = {"x": np.ones(2, np.float32)}
    outputs, updates = run(Graph.closed((x,), (w, x), [(w, x)]), "eval", given)
    outputs[0][:] = outputs[1][:] = updates[0][1][:] = 5
    assert w.value.tolist() == [0, 0]
    assert given["x"].tolist() == [1, 1]
    assert updates[0][0] is w


def test_symbolic_attributes_are_evaluated() -> None:
    with sg.Graph():
        x = sg.input("x", ("n", 2))
    wide = named("broadcast_to", x, shape=(3, *x.shape))
    flat = named("reshape", wide, shape=(6 * x.shape[0],))
    (result,), _ = run(
        Graph.closed((x,), (flat,)), "eval", {"x": np.ones((5, 2), np.float32)}
    )
    assert result.shape == (30,)


def test_sizes_are_bound_from_the_inputs() -> None:
    with sg.Graph():
        x, y = sg.input("x", ("n", 2)), sg.input("y", ("m", "n"))
    assert bind_sizes([x, y], [np.ones((3, 2)), np.ones((4, 3))]) == {"n": 3, "m": 4}


@pytest.mark.parametrize("shape", [(3, 5), (5, 4), (4,), (1, 4, 3)])
def test_inputs_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with sg.Graph():
        x, y = sg.input("x", ("n", 2)), sg.input("y", (4, "n"))
    with pytest.raises(sg.ShapeError, match=r"input 'y' requires float32\[4, n\]"):
        bind_sizes([x, y], [np.ones((3, 2)), np.ones(shape)])


def test_a_bad_index_names_value_range_and_line() -> None:
    with sg.Graph():
        labels = sg.input("labels", ("n",), dtype="int64")
    checked = named("check_index", labels, extent=3, wrap=False)
    with pytest.raises(
        sg.IndexOutOfRange,
        match=r"check_index requires 0 <= index < 3, got 7 at position 1; .*"
        r"at test_reference.py:\d+",
    ):
        run(Graph.closed((labels,), (checked,)), "eval", {"labels": np.array([0, 7])})


@pytest.mark.parametrize(("value", "wrapped"), [(-3, 0), (-1, 2), (2, 2)])
def test_indices_wrap(value: int, wrapped: int) -> None:
    index = sg.constant(np.array([value]))
    checked = named("check_index", index, extent=3, wrap=True)
    (result,), _ = run(Graph.closed((), (checked,)), "eval", {})
    assert isinstance(checked.op.code, IndexCheck)
    assert result.tolist() == [wrapped]


def test_numpy_and_the_type_rules_must_agree() -> None:
    with sg.Graph():
        x = sg.input("x", (2,))
    op = Op(
        "halve", lambda x: x.shape, lambda x: x.dtype, None, Elementwise("{0}"),
        lambda x: x.astype(np.float64) / 2, tuple, tuple,
    )  # fmt: skip
    with pytest.raises(
        sg.CompilerBug, match=r"halve requires NumPy to give float32\[2\], got float64"
    ):
        run(Graph.closed((x,), (apply(op, x),)), "eval", {"x": np.ones(2, np.float32)})


def test_no_warning_leaves_the_reference() -> None:
    y = named("log", sg.constant(np.zeros(2)))
    (result,), _ = run(Graph.closed((), (y,)), "eval", {})
    assert np.isneginf(result).all()


def test_a_deep_graph_needs_no_recursion() -> None:
    with sg.Graph():
        x = sg.input("x", ())
    y = x
    for _ in range(5000):
        y = named("negative", y)
    (result,), _ = run(Graph.closed((x,), (y,)), "eval", {"x": np.float32(3)})
    assert result == 3
