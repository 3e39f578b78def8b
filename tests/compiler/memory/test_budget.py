"""A memory budget: it is met, or refused with the least; bits stay the same."""

from dataclasses import replace

import numpy as np
import pytest
from random_graphs import random_graph

import staticgrad as sg
from staticgrad.budget_argument import budget_bytes
from staticgrad.compiler.budget.budget import ArenaLimit, _Search, within
from staticgrad.compiler.budget.eviction_problem import bound
from staticgrad.compiler.budget.rematerialise import Uses
from staticgrad.compiler.compile import optimise
from staticgrad.compiler.kernel_ir.run_costs import work
from staticgrad.compiler.lower.lower import arranged
from staticgrad.compiler.memory.in_place import in_place
from staticgrad.compiler.memory.planner import plan
from staticgrad.compiler.verify.verify_plan import verify_plan
from staticgrad.compiler.verify.verify_schedule import verify_schedule
from staticgrad.errors import CompilerBug, GraphError, MemoryBudgetError
from staticgrad.ir.graph import Graph, topological
from staticgrad.ir.node import Input
from staticgrad.ir.types import is_float

RNG = np.random.default_rng(0)
WIDTH, BATCH = 16, 64


def chain(layers, batch=BATCH, middle=None):
    """Loss, parameters and gradients of layers of linear and tanh, with `middle`."""
    with sg.Graph(seed=1):
        x, y = sg.input("x", (batch, WIDTH)), sg.input("y", (batch, WIDTH))
        parts = []
        for _ in range(layers):
            parts += [sg.nn.Linear(WIDTH, WIDTH), sg.nn.Tanh()]
            parts += [] if middle is None else [middle()]
        model = sg.nn.Sequential(*parts)
        loss = sg.mean((model(x) - y) ** 2)
    return loss, model.parameters()


def step(layers, budget=None, batch=BATCH, middle=None, **more):
    loss, parameters = chain(layers, batch, middle)
    updates = sg.optim.SGD(0.05).updates(sg.grad(loss, parameters), parameters)
    f = sg.compile(
        loss, updates=updates, mode="train", memory_budget=budget, finite=[loss], **more
    )
    return f, parameters


def data(batch=BATCH):
    x, y = RNG.normal(size=(2, batch, WIDTH)).astype("f4")
    return {"x": x, "y": y}


def same_steps(plain, lean, batch=BATCH, steps=3):
    """Both train on the same data; losses and parameters have the same bits."""
    (f, p), (g, q) = plain, lean
    for _ in range(steps):
        given = data(batch)
        assert f(**given).tobytes() == g(**given).tobytes()
    for name, leaf in p.items():
        assert leaf.value.tobytes() == q[name].value.tobytes()


def test_a_chain_of_64_layers_in_a_fifth_of_the_memory():
    plain = step(64)
    arena = plain[0].memory.arena_bytes
    lean = step(64, arena // 5)
    memory = lean[0].memory
    assert memory.arena_bytes * 5 <= arena
    schedule = memory.plan.schedule
    # every layer runs at most twice, and the last ones once
    assert len(schedule.again) <= 2 * 56
    assert f"computed again: {len(schedule.again)} kernels" in lean[0].explain()
    assert "add_tanh" in lean[0].explain().splitlines()[-1]
    same_steps(plain, lean)


@pytest.mark.parametrize("share", [0.9, 0.6, 0.35])
def test_the_arena_meets_the_budget(share):
    plain = step(20)
    budget = int(share * plain[0].memory.arena_bytes)
    lean = step(20, budget)
    assert lean[0].memory.arena_bytes <= budget
    same_steps(plain, lean)


def test_a_mild_budget_repeats_few_layers():
    arena = step(20)[0].memory.arena_bytes
    schedule = step(20, int(0.9 * arena))[0].memory.plan.schedule
    assert 0 < len(schedule.again) <= 2 * 5


def test_kernels_that_run_three_times():
    plain = step(40)
    lean = step(40, plain[0].memory.arena_bytes // 6)
    names = [k.name for k in lean[0].memory.plan.schedule.kernels]
    assert names.count("add_tanh") > 2 * 40
    same_steps(plain, lean)


def test_a_budget_below_the_least_names_it_and_the_least_is_reached():
    with pytest.raises(MemoryBudgetError, match="got 1,000") as caught:
        step(12, 1000)
    text = str(caught.value)
    least = int(text.split("at least ")[1].split(" bytes")[0].replace(",", ""))
    f, _ = step(12, least)
    assert f.memory.arena_bytes == least
    with pytest.raises(MemoryBudgetError, match=f"at least {least:,} bytes"):
        step(12, least - 1)


def test_the_error_names_what_no_order_can_do_without():
    schedule, _ = raw_schedule(12)
    search = _Search(schedule, ArenaLimit({}, 0))
    for order in search.orders:
        floor, kernel = bound(order.facts)
        kernels = order.uses.schedule.kernels
        touched = {o.buffer for o in kernels[kernel].operands}
        sizes = order.facts.bytes[sorted(touched)]
        assert 0 < floor <= sizes.sum()
    with pytest.raises(MemoryBudgetError) as caught:
        fit(schedule, 1000)
    least, floor = (
        int(str(caught.value).split(text)[1].split()[0].replace(",", ""))
        for text in ("at least ", "no less than ")
    )
    assert 0 < floor <= least


def test_a_large_budget_changes_nothing():
    plain, ample = step(6)[0], step(6, "1GB")[0]
    assert ample.memory.plan.schedule.again == ()
    assert ample.source() == plain.source()


def test_masks_of_dropout_are_the_same_masks():
    plain = step(12, middle=lambda: sg.nn.Dropout(0.3))
    arena = plain[0].memory.arena_bytes
    lean = step(12, arena // 2, middle=lambda: sg.nn.Dropout(0.3))
    assert any(
        "uniform" in lean[0].memory.plan.schedule.kernels[p].name
        for p in lean[0].memory.plan.schedule.again
    )
    same_steps(plain, lean)


def test_symbolic_sizes_are_fitted_when_they_are_known():
    f, _ = step(12, "40KB", batch="batch")
    g, _ = step(12, None, batch="batch")
    small, large = data(16), data(64)
    assert f(**small).tobytes() == g(**small).tobytes()
    assert f.memory.plan.schedule.again == ()
    assert f(**large).tobytes() == g(**large).tobytes()
    assert f.memory.plan.schedule.again
    assert f.memory.arena_bytes <= 40_000 < g.memory.arena_bytes
    with pytest.raises(MemoryBudgetError, match=r"for batch=640, got 40,000"):
        f(**data(640))


def test_a_trainer_has_a_budget():
    rows = 4 * BATCH
    given = {k: RNG.normal(size=(rows, WIDTH)).astype("f4") for k in "xy"}

    def trained(budget):
        loss, parameters = chain(10, "batch")
        trainer = sg.Trainer(loss, sg.optim.Adam(1e-2), memory_budget=budget)
        history = trainer.fit(given, epochs=3, batch_size=BATCH, progress=False)
        return trainer, history["loss"], parameters

    plain, losses, _ = trained(None)
    lean, other, _ = trained(plain.memory.arena_bytes * 2 // 3)
    np.testing.assert_array_equal(losses, other)
    assert lean.memory.arena_bytes <= plain.memory.arena_bytes * 2 // 3
    assert "computed again" in lean.explain()


def test_inference_keeps_no_activations():
    with sg.Graph():
        x = sg.input("x", (BATCH, WIDTH))
        parts = [
            p for _ in range(20) for p in (sg.nn.Linear(WIDTH, WIDTH), sg.nn.Tanh())
        ]
        f = sg.compile(sg.nn.Sequential(*parts)(x))
    assert f.memory.arena_bytes <= 2 * BATCH * WIDTH * 4


def test_a_frozen_part_keeps_no_activations():
    loss, parameters = chain(20)
    last = {n: p for n, p in parameters.items() if int(n.split(".")[0]) >= 36}
    f = sg.compile([loss, sg.grad(loss, last)], mode="train")
    whole = sg.compile([loss, sg.grad(loss, parameters)], mode="train")
    assert f.memory.arena_bytes <= 6 * BATCH * WIDTH * 4
    assert whole.memory.arena_bytes >= 19 * BATCH * WIDTH * 4


# ---- graphs of other forms -----------------------------------------------------------


def branches(x, w):
    """Residual branches, reductions over rows, concatenation, a gather."""
    h = x
    for k in range(6):
        a = sg.tanh(h @ w[k])
        b = sg.nn.softmax(a @ w[k], axis=1)
        h = h + sg.concatenate([a[:, :8], b[:, 8:]], axis=1)
        h = h - sg.mean(h, axis=0)
        h = sg.take(h, sg.arange(WIDTH)[::-1], axis=1) * sg.sigmoid(h)
    return sg.mean(h * h)


def with_scan(x, w):
    def body(carry, row):
        carry = sg.tanh(carry @ w[0] + row)
        return carry, carry

    h = x
    for k in range(1, 5):
        h = sg.tanh(h @ w[k])
    last, every = sg.scan(body, sg.zeros((WIDTH,)), h)
    return sg.mean(every * every) + sg.sum(last)


def cumulative(x, w):
    h = x
    for k in range(6):
        h = sg.cumsum(sg.tanh(h @ w[k]), axis=0) * 0.1
        h = h * sg.max(h, axis=1, keepdims=True)
    return sg.mean(h * h)


@pytest.mark.parametrize("build", [branches, with_scan, cumulative])
@pytest.mark.parametrize("share", [0.8, 0.6, 0.45])
def test_other_forms(build, share):
    with sg.Graph():
        x = sg.input("x", (BATCH, WIDTH))
        w = [
            sg.parameter(RNG.normal(size=(WIDTH, WIDTH)).astype("f4") / 4, name=f"w{k}")
            for k in range(6)
        ]
        loss = build(x, w)
        used = w[:5] if build is with_scan else w
        gradients = sg.grad(loss, used)
    outputs = [loss, *gradients]
    given = RNG.normal(size=(BATCH, WIDTH)).astype("f4")
    plain = sg.compile(outputs)
    expected = plain(given)
    budget = int(share * plain.memory.arena_bytes)
    with pytest.raises(MemoryBudgetError) as caught:
        sg.compile(outputs, memory_budget=1)
    least = int(str(caught.value).split("at least ")[1].split()[0].replace(",", ""))
    lean = sg.compile(outputs, memory_budget=max(least, budget), poison=True)
    assert lean.memory.arena_bytes <= max(least, budget)
    assert lean.memory.plan.schedule.again or least > budget
    for got, want in zip(lean(given), expected, strict=True):
        assert got.tobytes() == want.tobytes()


# ---- residual blocks -----------------------------------------------------------------


def plain_blocks(h, count):
    for _ in range(count):
        h = h + sg.tanh(sg.nn.Linear(WIDTH, WIDTH)(h))
    return h


def normed_blocks(h, count):
    """Batch norms, whose statistics are made by the kernel of what they are of."""
    for _ in range(count):
        h = h + sg.nn.Linear(WIDTH, WIDTH)(sg.nn.relu(sg.nn.BatchNorm1d(WIDTH)(h)))
    return h


def layer_normed_blocks(h, count):
    for _ in range(count):
        inner = sg.nn.gelu(sg.nn.Linear(WIDTH, WIDTH)(sg.nn.LayerNorm(WIDTH)(h)))
        h = h + sg.nn.Linear(WIDTH, WIDTH)(inner)
    return h


def images(h, count):
    """Convolutions, whose weights are packed by kernels of their own."""
    h = sg.reshape(h, (2, 8, 8, WIDTH))
    for _ in range(count):
        inner = sg.nn.relu(sg.nn.Conv2d(8, 8, 3, padding=1)(h))
        h = sg.nn.relu(h + sg.nn.Conv2d(8, 8, 3, padding=1)(inner))
    return h


def residual(blocks, budget=None):
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", (2 * BATCH, WIDTH))
        loss = sg.mean(blocks(x, 12) ** 2)
    parameters = graph.parameters
    updates = sg.optim.SGD(0.01).updates(sg.grad(loss, parameters), parameters)
    updates += list(graph.updates)
    f = sg.compile(
        loss, updates=updates, mode="train", finite=[loss], memory_budget=budget
    )
    return f, graph


def total_work(f):
    schedule = f.memory.plan.schedule
    return sum(work(kernel, schedule.buffers, {}) for kernel in schedule.kernels)


@pytest.mark.parametrize(
    ("blocks", "smaller", "time"),
    [
        (plain_blocks, 2, 1.3),
        (plain_blocks, 3, 1.65),
        (normed_blocks, 2.5, 1.25),
        (normed_blocks, 4, 1.6),
        (layer_normed_blocks, 2, 1.42),
        (images, 1.5, 1.2),
        (images, 2.5, 1.6),
    ],
)
def test_residual_blocks(blocks, smaller, time):
    (plain, one) = residual(blocks)
    budget = int(plain.memory.arena_bytes / smaller)
    (lean, other) = residual(blocks, budget)
    assert lean.memory.arena_bytes <= budget
    assert total_work(lean) <= time * total_work(plain)
    for _ in range(2):
        x = RNG.normal(size=(2 * BATCH, WIDTH)).astype("f4")
        assert plain(x=x).tobytes() == lean(x=x).tobytes()
    for left, right in zip(one.stored, other.stored, strict=True):
        assert left.value.tobytes() == right.value.tobytes()


def test_smaller_budgets_take_more_work():
    plain, _ = residual(plain_blocks)
    works = []
    for smaller in (1.2, 1.6, 2):
        budget = int(plain.memory.arena_bytes / smaller)
        works.append(total_work(residual(plain_blocks, budget)[0]))
    assert works == sorted(works)
    assert works[-1] <= 1.4 * total_work(plain)


# ---- the stages ----------------------------------------------------------------------


def raw_schedule(layers=8):
    loss, parameters = chain(layers)
    updates = sg.optim.SGD(0.1).updates(sg.grad(loss, parameters), parameters)
    made = (t for node in topological((loss,)) for t in node.outputs)
    inputs = [t for t in made if isinstance(t, Input)]
    found = optimise(Graph.closed(inputs, (loss,), updates), "train")
    return arranged(found, found.outputs), found


def fit(schedule, budget):
    return in_place(within(schedule, ArenaLimit({}, budget)))


def test_the_schedule_and_plan_are_valid():
    schedule, graph = raw_schedule(16)
    fitted = fit(schedule, 8 * BATCH * WIDTH * 4)
    verify_schedule(fitted, graph)
    verify_plan(plan(fitted, {}))
    kept = [k for p, k in enumerate(fitted.kernels) if p not in set(fitted.again)]
    assert sorted(k.name for k in kept) == sorted(k.name for k in schedule.kernels)


def test_every_order_and_every_arena_gives_a_valid_schedule():
    """Between a sum and the kernel that finishes it, too; the peak is what was said."""
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", (2 * BATCH, WIDTH))
        loss = sg.mean(images(x, 6) ** 2)
    parameters = graph.parameters
    updates = sg.optim.SGD(0.01).updates(sg.grad(loss, parameters), parameters)
    found = optimise(Graph.closed((x,), (loss,), updates), "train")
    given = arranged(found, found.outputs)
    arena = plan(in_place(given), {}).arena_bytes
    search = _Search(given, ArenaLimit({}, 0))
    assert len(search.orders) > 1
    checked = 0
    for order in search.orders:
        for smaller in (1, 1.3, 2, 2.5):
            capacity = int(arena / smaller)
            simulated = order.simulated(capacity, 0.5)
            if simulated.peak_bytes <= capacity:
                placed = in_place(simulated.schedule())
                verify_schedule(placed, found)
                assert plan(placed, {}).arena_bytes <= 1.02 * capacity
                checked += 1
    assert checked > 4


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_meet_their_budgets_with_the_same_bits(seed):
    made = random_graph(seed, steps=30, dtype="float32", n=64)
    wrt = [made.inputs[0], *made.states]
    floats = [t for t in made.outputs if is_float(t.dtype)]
    loss = sg.sum(floats[-1]) + sum(sg.mean(t) for t in floats)
    outputs = [loss, *sg.grad(loss, wrt, unused="zero"), *made.outputs]
    plain = sg.compile(outputs, inputs=made.inputs)
    expected = plain(**made.data)
    arena = plain.memory.arena_bytes
    for share in (0.8, 0.6):
        try:
            lean = sg.compile(
                outputs, inputs=made.inputs, poison=True,
                memory_budget=int(share * arena),
            )  # fmt: skip
            results = lean(**made.data)
        except MemoryBudgetError as error:
            least = int(str(error).split("at least ")[1].split()[0].replace(",", ""))
            assert share * arena < least <= arena
            continue
        assert lean.memory.arena_bytes <= share * arena
        for got, want in zip(results, expected, strict=True):
            assert got.tobytes() == want.tobytes()


def test_the_same_choice_every_time():
    schedule, _ = raw_schedule(12)
    arena = plan(in_place(schedule), {}).arena_bytes
    first, second = (fit(schedule, arena // 3) for _ in range(2))
    assert first == second


def test_the_verifier_notices_what_is_wrong_with_kernels_that_run_again():
    schedule, _ = raw_schedule(16)
    fitted = fit(schedule, 8 * BATCH * WIDTH * 4)
    updates = [
        p
        for p, k in enumerate(fitted.kernels)
        if any(
            o.mode != "read" and fitted.buffers[o.buffer].kind == "stored"
            for o in k.operands
        )
    ]
    count = len(fitted.kernels)
    for again, text in (
        ((*fitted.again, count), "none such"),
        (fitted.again[::-1], "out of order"),
        ((updates[-1],), "runs again"),
    ):
        with pytest.raises(CompilerBug, match=text):
            verify_schedule(replace(fitted, again=again))


def test_what_reads_an_overwritten_leaf_cannot_run_again():
    """The product of a layer reads its w: up to the kernel that updates that."""
    schedule, _ = raw_schedule(3)
    uses = Uses(schedule)
    for recipe in uses.recipes().values():
        for position in recipe.kernels:
            for operand in schedule.kernels[position].operands:
                if schedule.buffers[operand.buffer].kind == "stored":
                    first = min(uses.written.get(operand.buffer, [recipe.deadline]))
                    assert recipe.deadline <= first
    deadlines = {recipe.deadline for recipe in uses.recipes().values()}
    assert min(deadlines) < len(schedule.kernels)


def test_what_changes_a_buffer_of_others_cannot_run_again():
    schedule, _ = raw_schedule(3)
    made = Uses(schedule).recipes()
    position = next(iter(made.values())).kernels[0]
    kernel = schedule.kernels[position]
    other = next(o for o in kernel.operands if o.mode == "read")
    operands = tuple(
        replace(o, mode="update") if o is other else o for o in kernel.operands
    )
    kernels = list(schedule.kernels)
    kernels[position] = replace(kernel, operands=operands)
    left = Uses(replace(schedule, kernels=tuple(kernels))).recipes()
    assert not any(position in recipe.kernels for recipe in left.values())


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MB", 64_000_000), ("1.5 GiB", 3 << 29), ("10", 10), ("7kb", 7000), (12, 12)],
)
def test_budgets_as_text(text, size):
    assert budget_bytes("compile", text) == size


@pytest.mark.parametrize("wrong", ["much", "-1MB", -1, 1.5, "3 apples"])
def test_what_is_no_budget(wrong):
    x = sg.input("x", (3,))
    with pytest.raises(GraphError, match="memory_budget in bytes") as caught:
        sg.compile(x * 2, memory_budget=wrong)
    assert "test_budget.py:" in str(caught.value)
