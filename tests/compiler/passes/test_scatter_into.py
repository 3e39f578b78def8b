"""Gradients of taken rows are scattered into the table, not into zeros beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.compile import optimise
from staticgrad.compiler.kernel_ir.kernels import LoopKernel
from staticgrad.compiler.lower.lower import lower
from staticgrad.compiler.passes.scatter_into import scatter_into
from staticgrad.compiler.verify.verify_schedule import verify_schedule
from staticgrad.ir.graph import Graph
from staticgrad.ir.graph_text import text
from staticgrad.ir.node import Tensor
from staticgrad.ir.verify_graph import verify_graph

ROWS, WIDTH = 50, 4
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(ROWS, WIDTH)).astype("f4")
INDEX = np.array([3, 7, 3, 0, -1, 3])  # equal ones, and one from the end
TARGET = RNG.normal(size=(len(INDEX), WIDTH)).astype("f4")


def parts() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = sg.input("x", (ROWS, WIDTH))
    i = sg.input("i", (6,), "int64")
    u, c = sg.input("u", (6, WIDTH)), sg.input("c", ())
    return x, i, u, c


def rewritten(inputs: Any, y: Tensor) -> list[str]:
    """The names of the ops of `y` behind the pass, in order."""
    graph = Graph.closed(inputs, (y,))
    after = scatter_into(graph)
    verify_graph(after)
    assert scatter_into(after) is after
    others = ("input", "constant", "check_index", "broadcast_to", "reshape")
    return sorted(n.op.name for n in after.nodes if n.op.name not in others)


CASES = [
    # x + scatter(0, i, u) = scatter(x, i, u)
    (lambda x, z, u, c: x + z, ["scatter"]),
    (lambda x, z, u, c: z + x, ["scatter"]),
    # x - scatter(0, i, u) = scatter(x, i, -u)
    (lambda x, z, u, c: x - z, ["negative", "scatter"]),
    (lambda x, z, u, c: z - x, ["negative", "scatter"]),
    # c scatter(0, i, u) = scatter(0, i, c u)
    (lambda x, z, u, c: c * z, ["multiply", "scatter"]),
    (lambda x, z, u, c: z / c, ["divide", "scatter"]),
    (lambda x, z, u, c: -z, ["negative", "scatter"]),
    (lambda x, z, u, c: x - c * z, ["multiply", "negative", "scatter"]),
    # several at once
    (lambda x, z, u, c: x + z * c - x, ["multiply", "scatter", "subtract"]),
    # a second use keeps the zeros
    (lambda x, z, u, c: x + z * z, ["scatter", "multiply", "add"]),
    (lambda x, z, u, c: x * z, ["scatter", "multiply"]),
    # a result that is larger than the zeros
    (lambda x, z, u, c: sg.stack([x, x]) + z, ["scatter", "concatenate", "add"]),
]


@pytest.mark.parametrize(("build", "names"), CASES)
def test_what_is_rewritten(build: Any, names: list[str]) -> None:
    x, i, u, c = parts()
    z = sg.scatter_add((ROWS, WIDTH), i, u)
    assert rewritten((x, i, u, c), build(x, z, u, c)) == sorted(names)


@pytest.mark.parametrize(("build", "names"), CASES)
def test_the_numbers_stay(build: Any, names: list[str]) -> None:
    x, i, u, c = parts()
    y = build(x, sg.scatter_add((ROWS, WIDTH), i, u), u, c)
    given = {"x": TABLE, "i": INDEX, "u": TARGET, "c": np.float32(0.5)}
    wanted = sg.compile(y, inputs=[x, i, u, c], target="reference")(**given)
    got = sg.compile(y, inputs=[x, i, u, c], poison=True)(**given)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def trained(optimizer: Any, steps: int, **options: Any) -> np.ndarray:
    with sg.Graph(seed=0):
        table = sg.parameter(TABLE, name="table")
        i = sg.input("i", ("batch",), "int64")
        y = sg.input("y", ("batch", WIDTH))
        loss = sg.mean((table[i] - y) ** 2)
        updates = optimizer().updates({"t": sg.grad(loss, table)}, {"t": table})
        f = sg.compile(loss, inputs=[i, y], updates=updates, mode="train", **options)
    for _ in range(steps):
        f(i=INDEX, y=TARGET)
    return np.array(table.value)


OPTIMIZERS = [
    lambda: sg.optim.SGD(0.1),
    lambda: sg.optim.SGD(0.1, momentum=0.9),
    lambda: sg.optim.SGD(0.1, weight_decay=0.01),
    lambda: sg.optim.Adam(0.1),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_of_optimisers_equal_those_of_the_reference(optimizer: Any) -> None:
    wanted = trained(optimizer, 3, target="reference")
    got = trained(optimizer, 3)
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5)
    assert not np.array_equal(got, TABLE)


def test_a_step_of_descent_touches_the_rows_alone() -> None:
    with sg.Graph():
        table = sg.parameter(TABLE, name="table")
        i, y = sg.input("i", (6,), "int64"), sg.input("y", (6, WIDTH))
        loss = sg.mean((table[i] - y) ** 2)
        new = table - 0.1 * sg.grad(loss, table)
    graph = Graph.closed((i, y), (loss,), [(table, new)])
    schedule = lower(optimise(graph, "train"))
    verify_schedule(schedule)
    loops = [s for s in schedule.kernels if isinstance(s, LoopKernel)]
    assert all(ROWS not in k.axes and ROWS * WIDTH not in k.axes for k in loops)
    sizes = [b.elements for b in schedule.buffers if b.kind == "temporary"]
    assert ROWS * WIDTH not in sizes


def test_a_bad_index_leaves_the_table_as_it_was() -> None:
    with sg.Graph():
        table = sg.parameter(TABLE, name="table")
        i = sg.input("i", (2,), "int64")
        loss = sg.sum(table[i])
        new = table - sg.grad(loss, table)
        f = sg.compile(loss, inputs=[i], updates=[(table, new)])
    with pytest.raises(sg.IndexOutOfRange):
        f(i=np.array([1, ROWS]))
    assert np.array_equal(table.value, TABLE)


def test_what_is_scattered_into_is_made_where_the_result_lies() -> None:
    x, i, u, _ = parts()
    y = sg.exp(x) + sg.scatter_add((ROWS, WIDTH), i, u)
    graph = optimise(Graph.closed((x, i, u), (sg.sum(y),)), "eval")
    schedule = lower(graph)
    verify_schedule(schedule)
    large = [b for b in schedule.buffers if b.elements == ROWS * WIDTH]
    assert len([b for b in large if b.kind == "temporary"]) == 1


def test_text() -> None:
    x, i, u, c = parts()
    y = x - c * sg.scatter_add((ROWS, WIDTH), i, u)
    graph = Graph.closed((x, i, u, c), (y,))
    assert "subtract" in text(graph)
    assert "subtract" not in text(scatter_into(graph))
