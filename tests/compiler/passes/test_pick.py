"""The pass that turns a sum with one term into a load."""

from __future__ import annotations

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.compile import optimise
from staticgrad.compiler.passes.pick import pick
from staticgrad.ir.graph import Graph


def names(*outputs):
    graph = Graph.closed((), outputs)
    inputs = [n.outputs[0] for n in graph.nodes if n.op.name == "input"]
    return [n.op.name for n in optimise(Graph.closed(inputs, outputs), "eval").nodes]


def leaves(classes=5):
    x = sg.input("x", ("n", classes))
    return x, sg.input("y", ("n",), dtype="int64")


def test_cross_entropy_picks_the_label():
    x, y = leaves()
    found = names(sg.nn.cross_entropy(x, y, reduction="none"))
    assert "take" in found
    assert "equal" not in found


def test_its_gradient_compares_but_does_not_sum_the_comparison():
    x, y = leaves()
    found = names(sg.grad(sg.nn.cross_entropy(x, y), x))
    assert "take" not in found
    assert found.count("reduce_sum") == 1  # that of the softmax


def test_nothing_changes_where_the_pattern_is_not():
    x, _ = leaves()
    y = sg.sum(sg.where(x > 0, x, 0.0), axis=1)
    graph = Graph.closed([x], [y])
    assert pick(graph) is graph


@pytest.mark.parametrize("bias", [False, True])
def test_numbers_stay(bias):
    x, y = leaves()
    logits = x + np.arange(5, dtype="float32") if bias else x
    loss = sg.nn.cross_entropy(sg.tanh(logits), y)
    outputs = [loss, sg.grad(loss, x)]
    rng = np.random.default_rng(0)
    data = {
        "x": rng.standard_normal((7, 5)).astype("float32"),
        "y": rng.integers(0, 5, 7),
    }
    found = sg.compile(outputs, [x, y])(**data)
    wanted = sg.compile(outputs, [x, y], target="reference")(**data)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7)


def test_a_bad_label_is_still_found():
    x, y = leaves()
    f = sg.compile(sg.nn.cross_entropy(x, y), [x, y])
    with pytest.raises(sg.IndexOutOfRange, match="got 5 at position 1"):
        f(x=np.zeros((2, 5), "float32"), y=[0, 5])
