"""Which nodes share a kernel, and that every schedule computes the right numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_graphs import BOUND, random_graph

import staticgrad as sg
from staticgrad.compiler.compile import optimise
from staticgrad.compiler.fuse import fuse
from staticgrad.compiler.kernel_ir.kernels import (
    FinishKernel,
    GemmKernel,
    Loop,
    LoopKernel,
    Store,
)
from staticgrad.compiler.kernel_ir.walks import statements_of
from staticgrad.compiler.lower.lower import lower
from staticgrad.compiler.verify.verify_schedule import verify_schedule
from staticgrad.ir.graph import Graph
from staticgrad.ir.size import evaluate, product


def schedule(outputs: Any, updates: Any = (), mode: str = "train") -> Any:
    graph = Graph.closed((), list(outputs), list(updates))
    inputs = [n.outputs[0] for n in graph.nodes if n.op.name == "input"]
    graph = optimise(Graph.closed(inputs, outputs, updates), mode)
    result = lower(graph)
    verify_schedule(result)
    return result


def kernels(outputs: Any, kind: type = LoopKernel) -> list[Any]:
    return [k for k in schedule(outputs).kernels if isinstance(k, kind)]


def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    """A composite of this test's own: nothing in the compiler knows it."""
    centred = x - sg.mean(x, axis=-1, keepdims=True)
    variance = sg.mean(centred * centred, axis=-1, keepdims=True)
    return centred * sg.rsqrt(variance + 1e-5) * gain + bias


def softmax(x: Any) -> Any:
    shifted = sg.exp(x - sg.max(x, axis=-1, keepdims=True))
    return shifted / sg.sum(shifted, axis=-1, keepdims=True)


def test_an_elementwise_chain_is_one_kernel_over_one_axis():
    x = sg.input("x", ("batch", 7))
    (kernel,) = kernels([sg.tanh(x * 2.0 + 1.0) * sg.exp(-x)])
    assert len(kernel.axes) == 1


def test_softmax_is_one_kernel():
    x = sg.input("x", ("batch", 10))
    assert len(kernels([softmax(x)])) == 1


def test_a_composite_that_only_this_test_knows_is_one_kernel():
    x = sg.input("x", ("batch", 64))
    gain, bias = sg.input("gain", (64,)), sg.input("bias", (64,))
    assert len(kernels([layer_norm(x, gain, bias)])) == 1


def test_gradients_of_row_wise_composites_are_at_most_two_kernels():
    x, w = sg.input("x", ("batch", 64)), sg.input("w", ("batch", 64))
    for made in (softmax(x), layer_norm(x, w, w)):
        dx = sg.grad(sg.sum(made * w), x)
        assert len(kernels([dx])) <= 2


def test_cross_entropy_and_its_gradient_need_no_second_pass_over_memory():
    x = sg.input("x", ("batch", 10))
    labels = sg.input("labels", ("batch",), dtype="int64")
    loss = sg.nn.cross_entropy(x, labels)
    assert len(kernels([loss, sg.grad(loss, x)])) <= 2


def moved_over_least(outputs: Any) -> tuple[int, float]:
    """Loop kernels, and bytes that all kernels move against inputs and outputs once."""
    found = schedule(outputs)
    sizes = {"batch": 512}
    bytes_of = [evaluate(b.elements, sizes) * b.dtype.itemsize for b in found.buffers]
    moved = sum(
        bytes_of[o.buffer] * (2 if o.mode == "update" else 1)
        for kernel in found.kernels
        for o in kernel.operands
    )
    kinds = ("input", "output")
    least = sum(
        n for n, b in zip(bytes_of, found.buffers, strict=True) if b.kind in kinds
    )
    loops = sum(isinstance(kernel, LoopKernel) for kernel in found.kernels)
    return loops, moved / least


COMPOSITES = {
    "softmax": lambda x, g, gain: softmax(x),
    "log_softmax": lambda x, g, gain: sg.log_softmax(x, axis=-1),
    "layer_norm": lambda x, g, gain: layer_norm(x, gain, gain),
    "gelu": lambda x, g, gain: sg.gelu(x),
    "gelu_tanh": lambda x, g, gain: sg.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("columns", [64, 1000])
@pytest.mark.parametrize("name", COMPOSITES)
def test_composites_and_their_gradients_move_what_they_must(name, columns):
    x, g = (sg.input(k, ("batch", columns)) for k in ("x", "g"))
    gain = sg.input("gain", (columns,))
    y = COMPOSITES[name](x, g, gain)
    wrt = [x, gain] if name == "layer_norm" else [x]
    loops, moved = moved_over_least([y])
    assert loops == 1
    assert moved <= 1.1
    loops, moved = moved_over_least(sg.grad(y, wrt, cotangent=g))
    assert loops <= 2
    assert moved <= 1.1


def test_cross_entropy_moves_what_it_must():
    x = sg.input("x", ("batch", 1000))
    labels = sg.input("labels", ("batch",), dtype="int64")
    loss = sg.nn.cross_entropy(x, labels)
    assert moved_over_least([loss])[1] <= 1.1
    assert moved_over_least([loss, sg.grad(loss, x)])[1] <= 1.1


def test_a_view_between_elementwise_nodes_does_not_split_them():
    x = sg.input("x", (4, 5))
    y = sg.transpose(sg.tanh(x)) * 2.0
    assert len(kernels([sg.sin(y)])) == 1


def test_a_reshape_that_adds_an_axis_does_not_split():
    x, y = sg.input("x", ("n",)), sg.input("y", ("n", 5))
    assert len(kernels([sg.expand_dims(sg.tanh(x), 1) * y])) == 1


def test_a_bias_gradient_is_gathered_in_the_kernel_that_makes_its_rows():
    x, b = sg.input("x", ("n", 8)), sg.input("b", (8,))
    y = sg.sum(sg.tanh(x + b))
    found = schedule([sg.grad(y, b)]).kernels
    assert [type(k) for k in found] == [LoopKernel, FinishKernel]


def test_equal_layers_have_equal_kernels():
    x = sg.input("x", ("n", 16))
    y = x
    for number in range(20):
        w = sg.parameter(np.eye(16, dtype="float32"), name=f"w{number}")
        y = sg.tanh(y @ w)
    found = kernels([y * 1.0])
    bodies = {(k.axes, k.body) for k in found[:-1]}
    assert len(found) == 20
    assert len(bodies) <= 2


def test_updates_are_written_in_place_after_the_commit():
    w = sg.parameter(np.ones((3, 4)), name="w")
    x = sg.input("x", (3, 4), dtype="float64")
    found = schedule([sg.sum(x)], [(w, w - 0.1 * x * w)])
    (stored,) = [b.number for b in found.buffers if b.kind == "stored"]
    writing = [
        position
        for position, kernel in enumerate(found.kernels)
        for operand in kernel.operands
        if operand.buffer == stored and operand.mode != "read"
    ]
    assert len(writing) == 1
    assert writing[0] >= found.commit


def test_swapped_states_go_through_a_temporary():
    a, b = sg.state(np.zeros(3), name="a"), sg.state(np.ones(3), name="b")
    f = sg.compile([a + b], updates=[(a, b), (b, a)], mode="train")
    f()
    assert (a.value == 1.0).all()
    assert (b.value == 0.0).all()


def test_a_leaf_that_is_read_in_another_order_is_not_overwritten_early():
    a = sg.state(np.arange(4.0), name="a")
    f = sg.compile([], updates=[(a, a + a[::-1])], mode="train")
    f()
    assert a.value.tolist() == [3.0, 3.0, 3.0, 3.0]


def test_a_symmetric_sum_of_a_square_leaf_is_right():
    start = np.arange(9.0).reshape(3, 3)
    a = sg.state(start, name="square")
    sg.compile([], updates=[(a, a + sg.transpose(a))], mode="train")()
    assert (a.value == start + start.T).all()


def test_a_product_becomes_one_gemm_without_copies():
    x, w = sg.input("x", ("n", 6)), sg.input("w", (5, 6))
    found = schedule([x @ sg.transpose(w)]).kernels
    assert [type(k) for k in found] == [GemmKernel]
    assert found[0].transposed == (False, True)


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_equal_the_reference(seed):
    made = random_graph(seed)
    start = [s.value for s in made.states]
    expected = sg.compile(
        made.outputs, made.inputs, made.updates, mode="train", target="reference"
    )
    wanted = expected(**made.data)
    after = [s.value for s in made.states]
    for state, value in zip(made.states, start, strict=True):
        state.value = value
    run = sg.compile(made.outputs, made.inputs, made.updates, mode="train", poison=True)
    found = run(**made.data)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    for state, value in zip(made.states, after, strict=True):
        np.testing.assert_allclose(state.value, value, rtol=1e-9, atol=1e-9)
    assert run.memory.arena_bytes >= 0
    assert BOUND["n"] == 6


@pytest.mark.parametrize("seed", range(60, 90))
def test_gradients_of_random_graphs_equal_the_reference(seed):
    made = random_graph(seed, steps=8)
    total = sum(sg.sum(sg.tanh(y)) for y in made.outputs)
    wrt = made.inputs + made.states
    plain = sg.grad(total, wrt, unused="zero", simplify=False)
    quick = sg.grad(total, wrt, unused="zero")
    wanted = sg.compile(plain, made.inputs, target="reference")(**made.data)
    found = sg.compile(quick, made.inputs, poison=True)(**made.data)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_only_groups_that_changed_since_can_depend_on_one(seed, monkeypatch):
    """Looking at all groups instead finds the same ones."""
    made = random_graph(seed)
    total = sum(sg.sum(sg.tanh(y)) for y in made.outputs)
    outputs = [*made.outputs, *sg.grad(total, made.inputs, unused="zero")]
    graph = optimise(Graph.closed(made.inputs, outputs, made.updates), "train")
    some = lower(graph)
    every = lambda self, *_: list(self.live)  # noqa: E731
    monkeypatch.setattr(fuse._Fusion, "_changed_since", every)
    assert repr(lower(graph)) == repr(some)


def test_a_cheap_value_is_computed_again_instead_of_stored():
    x = sg.input("x", ("n", 16))
    w = sg.parameter(np.eye(16, dtype="float32"), name="w_again")
    y = sg.sum(sg.tanh(x @ w) @ w)
    found = schedule([sg.grad(y, w)])
    names = [b.name for b in found.buffers if b.kind == "temporary"]
    assert "subtract" not in names  # 1 - tanh^2, made from tanh where it is needed


@pytest.mark.parametrize("shape", [("n",), ("n", "k")])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_an_output_that_others_read_is_stored_by_its_maker_alone(shape, axis):
    with sg.Graph():
        x = sg.input("x", shape)
        mean = sg.mean(x, axis=axis, keepdims=True)
        outputs = [mean, sg.var(x, axis=axis), x - mean]
    value = np.arange(12, dtype=np.float32).reshape(
        (12,) if len(shape) == 1 else (4, 3)
    )
    got = sg.compile(outputs)(value)
    want = sg.compile(outputs, target="reference")(value)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    writers: dict[int, int] = {}
    for kernel in schedule(outputs).kernels:
        for operand in getattr(kernel, "operands", ()):
            if operand.mode == "write":
                writers[operand.buffer] = writers.get(operand.buffer, 0) + 1
    assert set(writers.values()) == {1}


@pytest.mark.parametrize("n", [1, 2, 3, 18])
def test_products_of_matrices_with_fewer_columns_than_a_symbol(n):
    with sg.Graph(dtype="float64"):
        x = sg.input("x", ("n", 4))
        step = sg.diff(x.T)  # 4 rows of n - 1
        outputs = [x @ step, step.T @ step, step[:, ::-1] @ step.T, step @ x[1:]]
        outputs.append(sg.grad(sg.sum(sg.sin(outputs[0])), x))
    value = np.random.default_rng(0).standard_normal((n, 4))
    got = sg.compile(outputs)(value)
    want = sg.compile(outputs, target="reference")(value)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_no_columns_beside_columns_are_no_race():
    with sg.Graph():
        x = sg.input("x", ("n", 1))
        none = sg.diff(sg.sin(x))
        outputs = [sg.cos(x), none, sg.cos(none), sg.sum(none, axis=1)]
    got = sg.compile(outputs)(np.ones((3, 1)))
    assert [value.shape for value in got] == [(3, 1), (3, 0), (3, 0), (3,)]


def test_parts_of_one_tensor_may_be_written_in_any_order():
    # s becomes b - s / 2; one part of the concatenation needs it before, one after.
    s, t = sg.state(np.ones(3), name="s_part"), sg.state(np.arange(3.0), name="t_part")
    y = sg.exp(t - sg.max(t))
    y = y / sg.sum(y)
    total = sg.sum(sg.concatenate([y, sg.sin(s)]))
    updates = [(s, y * 0.5 + sg.tanh(s)), (t, s - t)]
    run = sg.compile([total], updates=updates, mode="train", poison=True)
    e = np.exp(np.arange(3.0) - 2.0)
    e /= e.sum()
    np.testing.assert_allclose(run()[0], 1 + 3 * np.sin(1.0))
    np.testing.assert_allclose(s.value, e * 0.5 + np.tanh(1.0))
    np.testing.assert_allclose(t.value, 1 - np.arange(3.0))


def innermost(kernel: LoopKernel) -> set[int]:
    """The axes of loops that hold no loop."""
    loops = [s for s in statements_of(kernel.body) if isinstance(s, Loop)]
    return {
        loop.axis for loop in loops if not any(isinstance(s, Loop) for s in loop.body)
    }


def test_loops_walk_memory_in_short_steps():
    """A derivative along many directions repeats vectors along a new first axis."""
    x = sg.parameter(np.linspace(0.1, 1, 40), name="x")
    y = sg.sum(sg.sin(x[2:] * x[:-2]) + x[1:-1] ** 2 * x[:-2])
    found = kernels([sg.hessian(y, x)])
    copies = [k for k in found if k.name == "copy"]  # the transpose at the end
    wide = [k for k in found if sum(n > 1 for n in k.axes) > 1 and k not in copies]
    assert wide
    for kernel in wide:
        stores = [s for s in statements_of(kernel.body) if isinstance(s, Store)]
        last = innermost(kernel)
        steps = [abs(s.access.strides[a]) for s in stores for a in last]
        assert max(steps) == 1, kernel.name


OUTER_SUMS = {
    "all": lambda v, x: [sg.sum(v), sg.sum(v[..., None, None] * x)],
    "mean": lambda v, x: [sg.mean(v * v), sg.sum(v[..., None, None] * x, (1, 3))],
    "product": lambda v, x: [sg.prod(v), sg.prod(sg.cos(v[..., None, None] * x))],
    "rows": lambda v, x: [sg.sum(v, 0), sg.sum(v[..., None, None] * x, (0, 3))],
}


@pytest.mark.parametrize("sizes", [("n", "m", "k", "l"), (200, 100, 3, 2)], ids=str)
@pytest.mark.parametrize("name", OUTER_SUMS)
def test_a_sum_of_rows_beside_one_of_their_elements_adds_each_row_once(name, sizes):
    """Values summed per row forbid reordering the axes, stored or not."""
    with sg.Graph(dtype="float64"):
        v, x = sg.input("v", sizes[:2]), sg.input("x", sizes[2:])
        outputs = OUTER_SUMS[name](v, x)
    fast, slow = (
        sg.compile(outputs, inputs=[v, x], target=t) for t in ("cpu", "reference")
    )
    rng = np.random.default_rng(0)
    values = rng.uniform(0.9, 1.1, (200, 100)), rng.normal(size=(3, 2))
    for got, want in zip(fast(*values), slow(*values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10)


def test_functions_of_a_vector_are_not_computed_for_each_row_of_a_matrix():
    x, m = sg.input("x", (50,)), sg.input("m", (30, 50))
    sines = [k for k in kernels([sg.sin(x) * m]) if "sin" in k.name]
    assert [product(k.axes) for k in sines] == [50]


def test_single_numbers_of_one_tensor_are_taken_by_one_kernel():
    x = sg.input("x", (5,))
    last = sg.scan(
        lambda c, _: (tuple(v * 0.5 for v in c), None), tuple(x[k] for k in range(5)),
        length=3,
    )[0]  # fmt: skip
    f = sg.compile(last)
    np.testing.assert_allclose(f(np.arange(5.0)), np.arange(5.0) / 8)
    assert len(f.target.code.root.kernels) == 2


PLACED = {
    "numbers": lambda x: sg.stack([sg.sin(x[0]), x[1] * x[2], sg.exp(x[3])]),
    "rows": lambda x: sg.stack([sg.sin(x[:2]), x[2:] * x[:2]]),
    "columns": lambda x: sg.stack([sg.sin(x[:2]), x[2:] * x[:2]], axis=1),
    "padded": lambda x: sg.pad(sg.reshape(x[0] * x[1], (1,)), (1, 2)),
}


@pytest.mark.parametrize("name", PLACED)
def test_views_of_pieces_are_written_where_they_belong(name):
    x = sg.input("x", (4,), "float64")
    y = PLACED[name](x)
    given = np.array([0.5, -1.0, 2.0, 0.25])
    for outputs in (y, sg.grad(sg.sum(y * y), x), {"y": y, "more": sg.tanh(y)}):
        f = sg.compile(outputs, poison=True)
        want = sg.compile(outputs, target="reference")(given)
        found = f(given)
        for key in want if isinstance(want, dict) else [...]:
            np.testing.assert_allclose(found[key], want[key], rtol=1e-14)
    f = sg.compile(y)
    assert "concatenate" not in f.source()
    assert f.memory.arena_bytes == 0


def test_a_kernel_of_single_numbers_has_no_loop():
    x = sg.input("x", ())
    f = sg.compile(sg.sin(x) * x)
    assert "for" not in f.source()
    assert f(np.float32(0.5)) == pytest.approx(0.5 * np.sin(0.5))


def test_a_piece_that_is_read_twice_or_returned_is_copied():
    x = sg.input("x", (4,), "float64")
    z = sg.sin(x[0]) * x[1]
    for extra in (z, sg.reshape(z, (1, 1)), sg.stack([z, z]), sg.exp(z)):
        y = sg.stack([z, x[2] * x[3]])
        given = np.array([0.5, -1.0, 2.0, 0.25])
        found, want = (
            sg.compile([y, extra], target=target)(given)
            for target in ("cpu", "reference")
        )
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14)
