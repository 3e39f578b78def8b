"""Are sums of padded tensors cut rightly, and slices moved to where they save work?"""

import math
from collections.abc import Callable

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.compile import optimise
from staticgrad.compiler.passes.cut_sums import MOST_PIECES, cut_sums
from staticgrad.compiler.passes.sink_slices import sink_slices
from staticgrad.compiler.runtime.targets.reference import run
from staticgrad.ir.graph import Graph
from staticgrad.ir.node import Tensor
from staticgrad.ir.verify_graph import verify_graph
from staticgrad.ops.named import named

RNG = np.random.default_rng(0)


def padded(x: Tensor, *widths: tuple[int, int], interior: int = 0) -> Tensor:
    low, high = (tuple(w) for w in zip(*widths, strict=True))
    gaps = (interior,) * len(widths)
    return named("pad", x, low=low, high=high, interior=gaps, value=0)


def graph_of(build: Callable[..., Tensor], *shapes: tuple[int | str, ...]) -> Graph:
    with sg.Graph() as graph:
        inputs = [sg.input(f"x{k}", shape) for k, shape in enumerate(shapes)]
        graph.outputs = (build(*inputs),)
    return graph


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes if node.inputs]


def assert_same_values(before: Graph, after: Graph) -> None:
    verify_graph(after)
    data = {
        x.name: RNG.standard_normal(tuple(map(int, x.shape))) for x in before.inputs
    }
    arrays = {name: np.float32(value) for name, value in data.items()}
    (expected,), _ = run(before, "eval", arrays)
    (found,), _ = run(after, "eval", arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_two_shifted_terms_become_three_pieces() -> None:
    graph = graph_of(lambda a, b: padded(a, (1, 0)) + padded(b, (0, 1)), (4,), (4,))
    after = cut_sums(graph)
    assert sorted(names(after)) == ["add", "concatenate", *["slice"] * 4]
    assert_same_values(graph, after)


def test_terms_side_by_side_are_not_added() -> None:
    graph = graph_of(lambda a, b: padded(a, (3, 0)) + padded(b, (0, 4)), (4,), (3,))
    assert names(cut_sums(graph)) == ["concatenate"]


def test_gaps_are_zeros() -> None:
    graph = graph_of(lambda a, b: padded(a, (5, 1)) + padded(b, (0, 6)), (2,), (2,))
    assert_same_values(graph, cut_sums(graph))


def test_terms_are_added_from_left_to_right() -> None:
    def build(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return (padded(a, (1, 1)) + c) + (padded(b, (2, 0)) + d)

    graph = graph_of(build, (4,), (4,), (6,), (6,))
    after = cut_sums(graph)
    assert_same_values(graph, after)
    assert names(after).count("add") == 1 + 2 + 3 + 2  # pieces 0, 1, 2-4 and 5


@pytest.mark.parametrize("shape", [(3,), (1, 3)], ids=str)
def test_a_term_that_is_repeated_is_not_cut_along_what_it_is_repeated(shape) -> None:
    def build(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        rows = padded(b, (0, 0), (2, 0)) + padded(c, (1, 0), (0, 2))
        return padded(a, *[(0, 0)] * (len(shape) - 1), (1, 1)) + rows

    graph = graph_of(build, shape, (4, 3), (3, 3))
    assert_same_values(graph, cut_sums(graph))


@pytest.mark.parametrize("seed", range(30))
def test_random_sums_keep_their_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    shape = tuple(int(n) for n in rng.integers(1, 5, rank))
    lows = [[int(rng.integers(0, n)) for n in shape] for _ in range(3)]
    sizes = [
        tuple(int(rng.integers(0, n - a + 1)) for n, a in zip(shape, low, strict=True))
        for low in lows
    ]

    def build(whole: Tensor, *parts: Tensor) -> Tensor:
        total = whole if seed % 2 else named("negative", whole)
        for part, low in zip(parts, lows, strict=True):
            ends = zip(low, part.shape, shape, strict=True)
            total = total + padded(part, *((a, n - a - k) for a, k, n in ends))
        return total

    graph = graph_of(build, shape, *sizes)
    assert_same_values(graph, cut_sums(graph))
    assert_same_values(graph, optimise(graph, "eval"))


def left_alone() -> list[Graph]:
    side = math.isqrt(MOST_PIECES) + 1  # a diagonal cuts into side * side pieces
    return [
        graph_of(lambda a, b: padded(a, (1, 0)) + b, (3,), (4,)),
        graph_of(lambda a, b: padded(a, (1, 0)) + padded(b, (0, 1)), ("n",), ("n",)),
        graph_of(
            lambda a, b: padded(a, (1, 0), interior=1) + padded(b, (0, 1), interior=1),
            (3,),
            (3,),
        ),
        graph_of(
            lambda *parts: sum(
                padded(p, (k, side - 1 - k), (k, side - 1 - k))
                for k, p in enumerate(parts)
            ),
            *[(1, 1)] * side,
        ),
        graph_of(lambda a: a + a, (3,)),
    ]


def test_a_sum_may_fall_into_a_piece_for_each_of_many_terms() -> None:
    n = 3 * MOST_PIECES
    graph = graph_of(
        lambda *parts: sum(padded(p, (k, n - 1 - k)) for k, p in enumerate(parts)),
        *[(1,)] * n,
    )
    done = cut_sums(graph)
    names = [node.op.name for node in done.nodes]
    assert names.count("concatenate") == 1
    assert "pad" not in names
    assert_same_values(graph, done)


def test_code_that_reads_every_element_has_a_gradient_of_few_kernels() -> None:
    n = 100
    x = sg.input("x", (n,), "float64")
    y = sum(sg.sin(x[i]) * x[(i + 1) % n] for i in range(n))
    f = sg.compile(sg.grad(y, x))
    given = np.linspace(0, 2, n)
    want = np.cos(given) * np.roll(given, -1) + np.sin(np.roll(given, 1))
    np.testing.assert_allclose(f(given), want, rtol=1e-14)
    assert int(f.explain().splitlines()[2].split()[0]) < 10


@pytest.mark.parametrize("graph", left_alone())
def test_other_sums_are_left_alone(graph: Graph) -> None:
    assert cut_sums(graph) is graph


def test_slices_sink_into_what_only_they_read() -> None:
    def build(x: Tensor, y: Tensor) -> Tensor:
        h = sg.exp(x * y)
        return sg.sum(h[1:, 2:4] * 3)

    graph = graph_of(build, (5, 6), (6,))
    after = sink_slices(graph)
    assert_same_values(graph, after)
    exponential = next(n for n in after.nodes if n.op.name == "exp")
    assert exponential.types[0].shape == (4, 2)


def test_costly_values_are_not_computed_for_each_slice() -> None:
    def build(x: Tensor) -> Tensor:
        h = sg.exp(sg.exp(sg.exp(x)))
        return h[1:] * h[:-1]

    graph = graph_of(build, (5,))
    assert sink_slices(graph) is graph


def test_values_that_something_else_reads_stay_whole() -> None:
    def build(x: Tensor) -> Tensor:
        h = x * x
        return sg.sum(h) + sg.sum(h[1:])

    graph = graph_of(build, (5,))
    assert sink_slices(graph) is graph


def test_reversed_and_symbolic_slices_sink() -> None:
    graph = graph_of(lambda x, y: (x * y)[::-2], ("n",), (1,))
    after = sink_slices(graph)
    assert names(after) == ["slice", "multiply"]
    x, y = np.arange(5, dtype=np.float32), np.float32([2])
    (found,), _ = run(after, "eval", {"x0": x, "x1": y})
    np.testing.assert_array_equal(found, [8, 4, 0])


def test_the_gradient_of_a_stencil_is_one_kernel_and_its_ends() -> None:
    x = sg.input("x", (1000,))
    loss = sg.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)
    f = sg.compile(sg.grad(loss, x), inputs=[x])
    data = RNG.standard_normal(1000).astype(np.float32)
    found = f(x=data)
    assert len(f.memory.plan.schedule.kernels) == 2
    assert f.memory.arena_bytes == 0
    wide = data.astype(np.float64)
    apart = wide[1:] - wide[:-1] ** 2
    expected = np.zeros(1000)
    expected[1:] += 200 * apart
    expected[:-1] -= 400 * apart * wide[:-1] + 2 * (1 - wide[:-1])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
