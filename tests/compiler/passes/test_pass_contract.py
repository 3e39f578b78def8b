"""Contract of all passes: pure, valid, idempotent, the same numbers."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_graphs import GRAPHS, Build, c, graph_of, perceptron

import staticgrad as sg
from staticgrad.compiler.compile import PASSES, Stage, optimise
from staticgrad.compiler.passes.cancel_moves import cancel_moves
from staticgrad.compiler.passes.cse import merge_common
from staticgrad.compiler.passes.drop_markers import drop_markers
from staticgrad.compiler.passes.fold_constants import fold_constants
from staticgrad.compiler.passes.resolve_mode import resolve_mode
from staticgrad.compiler.passes.simplify import simplify
from staticgrad.compiler.runtime.targets.reference import run
from staticgrad.ir.graph import Graph
from staticgrad.ir.graph_text import text
from staticgrad.ir.node import Node, Tensor
from staticgrad.ir.op import Control, Op
from staticgrad.ir.verify_graph import verify_graph
from staticgrad.ops.named import named

ALL = {
    **{stage.run.__name__: stage.run for stage in PASSES},
    "resolve_mode": partial(resolve_mode, mode="train"),
}


def arguments(graph: Graph) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        leaf.name: random.uniform(0.1, 1.0, [5 if d == "n" else d for d in shape(leaf)])
        .astype(leaf.dtype)
        for leaf in graph.inputs
    }  # fmt: skip


def shape(leaf: Tensor) -> list[Any]:
    return [d if isinstance(d, int) else str(d) for d in leaf.shape]


@pytest.mark.parametrize("build", GRAPHS)
@pytest.mark.parametrize("name", ALL)
def test_contract(name: str, build: Build) -> None:
    """Pure, valid, idempotent, same object if idle, the same numbers."""
    graph = graph_of(build)
    before = text(graph)
    after = ALL[name](graph)
    assert text(graph) == before
    verify_graph(after)
    assert ALL[name](after) is after
    if text(after) == before:
        assert after is graph
    assert_same_numbers(graph, after)


@pytest.mark.parametrize("build", GRAPHS)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_pipeline_keeps_the_numbers(build: Build, mode: Any) -> None:
    graph = graph_of(build)
    after = optimise(graph, mode)
    assert_same_numbers(graph, after, mode)
    assert optimise(after, mode) is after


def assert_same_numbers(before: Graph, after: Graph, mode: Any = "train") -> None:
    given = arguments(before)
    old, old_updates = run(before, mode, given)
    new, new_updates = run(after, mode, given)
    old += [array for _, array in old_updates]
    new += [array for _, array in new_updates]
    for expected, found in zip(old, new, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -0.5, 1e-45, 3e38, np.inf, -np.inf, np.nan]
UNARY = ["negative", "absolute", "sign", "floor", "copy"]
BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum"]


@st.composite
def exact_graphs(draw: Any) -> Graph:
    """Arithmetic, moves and numbers, in which every rounding is defined."""
    with sg.Graph():
        x, y = sg.input("x", (2, 3)), sg.input("y", (3,))
    pool: list[Tensor] = [x, y]
    for _ in range(draw(st.integers(2, 12))):
        pool.append(draw(st.sampled_from(STEPS))(draw, pool))
    return Graph.closed((x, y), pool[2:])


def _number(draw: Any, pool: list[Tensor]) -> Tensor:
    value = c(draw(st.sampled_from(SPECIAL)))
    shapes = st.sampled_from([(), (3,), (1, 3)])
    return named("broadcast_to", value, shape=draw(shapes))


def _unary(draw: Any, pool: list[Tensor]) -> Tensor:
    return named(draw(st.sampled_from(UNARY)), draw(st.sampled_from(pool)))


def _binary(draw: Any, pool: list[Tensor]) -> Tensor:
    a = draw(st.sampled_from(pool))
    fits = [t for t in pool if _broadcast(t.shape, a.shape)]
    fits += [_number(draw, pool)] if draw(st.booleans()) else []
    b = draw(st.sampled_from(fits))
    pair = (a, b) if draw(st.booleans()) else (b, a)
    return named(draw(st.sampled_from(BINARY)), *pair)


def _broadcast(*shapes: Any) -> bool:
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


def _moved(draw: Any, pool: list[Tensor]) -> Tensor:
    x = draw(st.sampled_from(pool))
    kind = draw(st.sampled_from(["transpose", "reshape", "broadcast", "flip"]))
    if kind == "transpose":
        return named("transpose", x, axes=tuple(draw(st.permutations(range(x.ndim)))))
    if kind == "broadcast":
        return named("broadcast_to", x, shape=(2, *x.shape)) if x.ndim < 3 else x
    if kind == "flip" and x.ndim:
        return x[::-1]
    size = int(np.prod(x.shape))
    shapes = [
        (size,),
        (1, size),
        (size, 1),
        (size // 3, 3) if size % 3 == 0 else (size,),
    ]
    return named("reshape", x, shape=draw(st.sampled_from(shapes)))


STEPS = [_number, _unary, _unary, _binary, _binary, _binary, _moved, _moved]


@given(exact_graphs(), st.integers(0, 2**31))
@settings(max_examples=150, deadline=None)
def test_exact_rules_hold_for_every_value(graph: Graph, seed: int) -> None:
    """Zeros keep their sign, NaN and inf stay, no other bit changes."""
    random = np.random.default_rng(seed)
    given_values = {
        leaf.name: random.choice(SPECIAL, leaf.shape).astype("f4")
        for leaf in graph.inputs
    }
    expected, _ = run(graph, "eval", given_values)
    after = graph
    for function in (
        drop_markers,
        cancel_moves,
        fold_constants,
        simplify,
        merge_common,
    ):
        after = function(after)
        verify_graph(after)
        found, _ = run(after, "eval", given_values)
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_array_equal(b, a)
            finite = ~np.isnan(a)
            np.testing.assert_array_equal(np.signbit(b)[finite], np.signbit(a)[finite])


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_observers_see_every_pass(target: str) -> None:
    seen: list[Stage[Graph]] = []
    values: list[tuple[Graph, Graph]] = []

    def observe(stage: Stage[Graph], before: Graph, after: Graph) -> None:
        seen.append(stage)
        values.append((before, after))

    after = optimise(graph_of(perceptron), "eval", target, observe)
    assert seen == [stage for stage in PASSES if target in stage.targets]
    assert all(new is old for (_, new), (old, _) in pairwise(values))
    assert values[-1][1] is after


def test_a_wrong_pass_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def halve(graph: Graph) -> Graph:
        (y,) = graph.outputs
        return Graph.closed(graph.inputs, [named("reduce_sum", y, axes=(0,))])

    wrong = (Stage(halve, "wrong"),)
    monkeypatch.setattr("staticgrad.compiler.compile.PASSES", wrong)
    with pytest.raises(sg.CompilerBug, match="halve requires the types of outputs"):
        optimise(graph_of(lambda x: sg.exp(x)), "eval")


def test_the_pipeline_is_linear_in_the_nodes() -> None:
    """30,000 nodes; a chain like that is in the main check of deep graphs."""
    with sg.Graph() as graph:
        x = sg.input("x", (4,))
    y = x
    for _ in range(10_000):
        y = named("add", named("multiply", named("tanh", y), c(0.5)), x)
    graph = Graph.closed((x,), (y,))
    seen: list[Node] = []
    optimise(graph, "eval", "cpu", lambda _, __, after: seen.extend(after.nodes[:1]))
    assert len(seen) == sum("cpu" in stage.targets for stage in PASSES)


def test_passes_descend_into_nested_graphs() -> None:
    op = Op(
        "once", lambda _, x: x.shape, lambda _, x: x.dtype, None, Control(),
        lambda _, x, graphs: graphs[0](x)[0], tuple, tuple,
    )  # fmt: skip
    with sg.Graph():
        x = sg.input("x", (3,))
    with sg.Graph():
        inner = sg.input("inner", (3,))
    side = named("by_mode", named("log", named("add", c(1), inner)), inner)
    body = Graph.closed((inner,), (named("multiply", side, c(1)),))
    node = Node(op, (c(0, "int64"), x), {}, (x.type,), graphs=(body,))
    graph = Graph.closed((x,), node.outputs)
    after = optimise(graph, "train")
    assert text(after.outputs[0].node.graphs[0], lines=False).splitlines()[1:] == [
        "%1: float32[3] = log1p(%0)",
        "return %1",
    ]
    assert_same_numbers(graph, after)
