"""Calls of executables: arguments, sizes, outputs, updates, errors, threads."""

import itertools
import threading

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.compiler.runtime import threads
from staticgrad.compiler.runtime.targets import cpu_target

TARGETS = ["cpu", "reference"]


def doubling(target="cpu", **options):
    with sg.Graph():
        x = sg.input("x", ("n", 3))
        y = sg.input("y", ("n",))
        result = {"sum": x * 2.0 + sg.expand_dims(y, 1), "total": sg.sum(y)}
    return sg.compile(result, target=target, poison=target == "cpu", **options)


X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([1, 2, 3, 4], np.float32)
EXPECTED = X * 2 + Y[:, None]

both = pytest.mark.parametrize("target", TARGETS)


@both
def test_positional_and_keyword(target):
    f = doubling(target)
    for result in (f(X, Y), f(x=X, y=Y), f(X, y=Y), f(y=Y, x=X)):
        assert list(result) == ["sum", "total"]
        np.testing.assert_array_equal(result["sum"], EXPECTED)
        assert result["total"] == 10
        assert type(result["total"]) is np.ndarray
        assert result["total"].shape == ()


@both
@pytest.mark.parametrize("n", [0, 1, 5, 1000])
def test_one_executable_for_every_size(target, n):
    f = doubling(target)
    result = f(np.ones((n, 3)), np.full(n, 2.0))
    assert result["sum"].shape == (n, 3)
    assert (result["sum"] == 4).all()
    assert result["total"] == 2 * n


@both
def test_outputs_are_fresh(target):
    f = doubling(target)
    first = f(X, Y)["sum"]
    second = f(X * 0, Y * 0)["sum"]
    np.testing.assert_array_equal(first, EXPECTED)
    assert (second == 0).all()
    first[:] = 7  # they belong to the caller


def misaligned(x):
    return np.frombuffer(b"_" + x.tobytes(), np.uint8)[1:].view("f4").reshape(x.shape)


@both
@pytest.mark.parametrize(
    "change",
    [
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[::-1][::-1],
        lambda x: x.astype(">f4"),
        lambda x: x.astype(np.float64),
        lambda x: x.astype(np.int64),
        lambda x: x.astype(np.float16),
        lambda x: x.tolist(),
        lambda x: tuple(map(tuple, x)),
        lambda x: x.view(np.matrix),
        lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),  # read-only
        lambda x: misaligned(x),
    ],
)
def test_arrays_of_any_layout(target, change):
    result = doubling(target)(change(X), Y)
    np.testing.assert_array_equal(result["sum"], EXPECTED)


@both
@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((X,), {}, "requires all inputs, got none for 'y'"),
        ((), {}, "got none for 'x', 'y'"),
        ((X, Y, Y), {}, "at most 2 inputs, got 3; they are x, y"),
        ((X, Y), {"z": 1}, "known inputs, got 'z', on which no result depends"),
        ((X, Y), {"x": X}, "got 'x' by position and by keyword"),
    ],
)
def test_missing_and_unknown_inputs(target, args, kwargs, text):
    with pytest.raises(sg.GraphError, match=text):
        doubling(target)(*args, **kwargs)


@both
def test_later_calls_are_as_strict_as_the_first(target):
    """Inputs by position are all there is to look at once a call has gone well."""
    f, two = doubling(target), sg.compile(sg.constant(1.0) + 1.0, target=target)
    f(X, Y)
    two()
    with pytest.raises(sg.GraphError, match="got 'y' by position and by keyword"):
        f(X, Y, y=Y + 1)
    with pytest.raises(sg.GraphError, match="known inputs, got 'z'"):
        f(X, Y, z=1)
    with pytest.raises(sg.GraphError, match="known inputs, got 'z'"):
        two(z=1)
    np.testing.assert_array_equal(f(y=Y, x=X)["sum"], f(X, Y)["sum"])


@both
def test_inputs_may_have_the_names_of_pythons_arguments(target):
    with sg.Graph():
        y = sg.input("self") + 2 * sg.input("times")
    f = sg.compile(y, target=target)
    values = {"self": np.float32(1), "times": np.float32(2)}
    assert float(f(**values)) == 5
    assert float(f.repeat(2, **values)) == 5
    arrays = {name: np.array(value) for name, value in values.items()}
    assert float(f.bind(**arrays)()) == 5


@both
@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (X, Y[:3], r"one size 'n', got 4 \(axis 0 of 'x'\) and 3 \(axis 0 of 'y'\)"),
        (X[:, :2], Y, r"'x' requires float32\[n, 3\], got shape \(4, 2\)"),
        (X[0], Y, r"'x' requires float32\[n, 3\], got shape \(3,\); .* 2 axes"),
        (X, np.float32(1), r"'y' requires float32\[n\], got shape \(\)"),
        ([[1, 2], [3]], Y, "rows equally long"),
    ],
)
def test_wrong_shapes(target, x, y, text):
    with pytest.raises(sg.ShapeError, match=text):
        doubling(target)(x, y)


@both
@pytest.mark.parametrize(
    "value", [X + 1j, X.astype(str), X.astype(object), None, [["a"]], X.astype("M8[s]")]
)
def test_wrong_dtypes(target, value):
    text = "input 'x' requires (numbers as )?float32, got"
    with pytest.raises(sg.DTypeError, match=text):
        doubling(target)(value, Y)


def test_floats_are_not_cast_to_integers():
    with sg.Graph():
        i = sg.input("i", ("n",), dtype="int32")
        u = sg.input("u", ("m",), dtype="uint8")
    f = sg.compile([i + 1, u])
    with pytest.raises(sg.DTypeError, match=r"cast it with \.astype\('int32'\)"):
        f(np.ones(3), np.zeros(1, np.uint8))
    with pytest.raises(sg.DTypeError, match="'u' requires uint8, got -1, which is"):
        f([1, 2], [3, -1])
    assert f([1, 2], [3])[0].tolist() == [2, 3]
    assert f([], [])[1].dtype == np.uint8
    with pytest.raises(sg.DTypeError, match="outside of its range"):
        f([1], [300])
    with pytest.raises(sg.DTypeError, match="'u' requires uint8"):
        f([1], np.array([3]))


def test_sizes_that_no_input_tells():
    with sg.Graph():
        n = sg.Size.symbol("n")
        x = sg.input("x", (2 * n,))
    with pytest.raises(sg.ShapeError, match="requires sizes that inputs tell"):
        sg.compile(x)(np.zeros(4))
    with sg.Graph():
        x, y = sg.input("x", (2 * n,)), sg.input("y", (n,))
    assert sg.compile(sg.sum(x) + sg.sum(y))(np.ones(4), np.ones(2)) == 6
    with pytest.raises(sg.ShapeError, match=r"'x' requires float32\[2\*n\], got"):
        sg.compile(sg.sum(x) + sg.sum(y))(np.ones(3), np.ones(2))


@both
def test_outputs_may_be_leaves_and_may_repeat(target):
    with sg.Graph():
        x = sg.input("x", ("n",))
        w = sg.parameter(np.array([1, 2], np.float32), name="w")
        y = x + 1.0
    f = sg.compile((x, w, sg.constant(3.5), y, [y, y], None), target=target)
    a, b, c, d, (e, g), nothing = f(X[0])
    assert a.tolist() == X[0].tolist()
    assert a is not X[0]
    assert b.tolist() == [1, 2]
    assert c == 3.5
    assert d.tolist() == e.tolist() == g.tolist() == (X[0] + 1).tolist()
    assert len({id(array) for array in (d, e, g)}) == 3
    assert nothing is None


def counting(target):
    with sg.Graph():
        x = sg.input("x", ())
        n = sg.state(np.zeros(()), name="n")
        w = sg.parameter(np.ones(()), name="w")
    pairs = [(n, n + 1.0), (w, w * x + n)]
    return n, w, sg.compile([n, w], inputs=[x], updates=pairs, target=target)


@both
def test_updates_read_the_values_before_the_step(target):
    n, w, f = counting(target)
    expected = (0.0, 1.0)
    for _ in range(4):
        assert tuple(map(float, f(2.0))) == expected
        expected = (expected[0] + 1, expected[1] * 2 + expected[0])
    assert (float(n.value), float(w.value)) == expected


@both
def test_bind_and_repeat(target):
    n, _, f = counting(target)
    x = np.zeros((), np.float32)
    g = f.bind(x=x)
    first = g()
    assert float(first[0]) == 0
    assert float(g.repeat(10)[0]) == 10
    assert float(n.value) == 11
    x[...] = 3  # read at each run
    g()
    assert float(f.repeat(5, 2.0)[0]) == 16
    with pytest.raises(ValueError, match="repeat requires at least 1"):
        g.repeat(0)


def test_bound_outputs_are_reused():
    g = doubling().bind(X.copy(), Y)
    assert g()["sum"] is g()["sum"]


@both
def test_bind_copies_nothing(target):
    f = doubling(target)
    with pytest.raises(sg.GraphError, match="contiguous array for 'x', got strides"):
        f.bind(np.asfortranarray(X), Y)
    with pytest.raises(sg.DTypeError, match="float32 array for 'y', got float64"):
        f.bind(X, Y.astype(float))
    with pytest.raises(sg.DTypeError, match="float32 array for 'y', got list"):
        f.bind(X, [1, 2, 3, 4])
    with pytest.raises(sg.DTypeError, match="float32 array for 'y', got float32, no"):
        f.bind(X, np.float32(1))


def classes(target):
    with sg.Graph():
        x = sg.input("x", ("n", 10))
        labels = sg.input("labels", ("n",), dtype="int64")
        w = sg.parameter(np.ones(10, np.float32), name="w")
        loss = sg.nn.cross_entropy(x * w, labels)
    pairs = [(w, w - sg.grad(loss, w))]
    return w, sg.compile(
        loss, updates=pairs, mode="train", finite=[loss], target=target
    )


@both
@pytest.mark.parametrize("bad", [10, -1, 2**40, -(2**63)])
@pytest.mark.parametrize("n", [5, 200_000])
def test_a_bad_label_is_named_and_nothing_is_written(target, bad, n):
    w, f = classes(target)
    labels = np.zeros(n, np.int64)
    labels[n - 1] = bad
    text = rf"cross_entropy requires .*, got {bad} at position {n - 1};.*py:\d"
    with pytest.raises(sg.IndexOutOfRange, match=text):
        f(np.ones((n, 10), np.float32), labels)
    assert (w.value == 1).all()
    assert np.isfinite(f(np.ones((n, 10), np.float32), labels * 0))


@both
def test_the_first_bad_label_wins(target):
    _, f = classes(target)
    labels = np.full(300_000, 77)
    labels[:1234] = 0
    with pytest.raises(sg.IndexOutOfRange, match="got 77 at position 1234;"):
        f(np.ones((len(labels), 10), np.float32), labels)


@both
def test_a_loss_that_is_not_finite_writes_nothing(target):
    w, f = classes(target)
    x = np.ones((3, 10), np.float32)
    x[1, 2] = np.nan
    with pytest.raises(sg.NonFiniteError, match=r"got nan; .*test_executable.py:\d+"):
        f(x, [0, 1, 2])
    assert (w.value == 1).all()


def test_explain_tells_what_was_compiled_planned_and_copied():
    f = doubling()
    f(X, Y)
    f(X[:2], Y[:2].astype(float))
    text = f.explain()
    assert "target cpu" in text
    assert "input x: float32[n, 3]" in text
    assert "kernels" in text
    assert "2 plans, each without recompilation" in text
    assert "n=4: arena" in text
    assert "n=2: arena" in text
    assert "y: copied at each call (from float64)" in text
    assert "x: copied" not in text
    assert "from the cache" in doubling().explain()
    assert "reference" in doubling("reference").explain()


def test_source_is_the_code_of_all_kernels():
    assert "def kernel(" in doubling().source()


def test_memory_is_that_of_the_last_call():
    f = doubling()
    with pytest.raises(sg.GraphError, match="memory requires sizes"):
        f.memory  # noqa: B018
    f(X, Y)
    small = f.memory
    f(np.ones((1000, 3)), np.ones(1000))
    large = f.memory
    assert small.arena_bytes >= small.lower_bound_bytes
    assert large.unplanned_bytes > small.unplanned_bytes > 0
    assert len(large.buffers) == sum(o >= 0 for o in large.plan.offsets)
    assert "arena_bytes=" in repr(large)
    given = doubling(sizes={"n": 1000}).memory
    assert given.arena_bytes == large.arena_bytes
    with pytest.raises(sg.GraphError, match="sizes of its inputs, got m; they are n"):
        doubling(sizes={"m": 3})
    with pytest.raises(sg.GraphError, match="no such frames or plan"):
        doubling("reference", sizes={"n": 3}).memory  # noqa: B018


def test_static_sizes_are_planned_before_the_first_call():
    with sg.Graph():
        x = sg.input("x", (3,))
    assert sg.compile(sg.sum(x * x)).memory.arena_bytes >= 0


def test_a_frame_can_be_run_by_other_programs():
    frame = doubling().frame({"n": 4})
    frame.inputs["x"][:], frame.inputs["y"][:] = X, Y
    assert frame.run() == 0
    np.testing.assert_array_equal(frame.outputs[0], EXPECTED)
    assert frame.outputs[1] == 10
    with pytest.raises(sg.GraphError, match="no such frames or plan"):
        doubling("reference").frame({"n": 4})


def test_a_bounded_number_of_sizes_is_kept(monkeypatch):
    monkeypatch.setattr(cpu_target, "MOST_SIZES", 3)
    f = doubling()
    for n in (1, 2, 3, 1, 4, 5, 1):
        f(np.ones((n, 3)), np.ones(n))
    assert [dict(key)["n"] for key in f.target._pools] == [4, 5, 1]


def test_four_threads_call_one_executable():
    f = doubling()
    wrong = []

    def work(number):
        for n in range(1, 60):
            x = np.full((n % 7 * 1000 + 1, 3), number, np.float32)
            result = f(x, x[:, 0])
            if not (result["sum"] == 3 * number).all():
                wrong.append((number, n))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_steps_of_several_threads_are_all_counted():
    n, _, f = counting("cpu")
    workers = [
        threading.Thread(target=lambda: [f(1.0) for _ in range(200)]) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert n.value == 800


def test_compiling_in_one_thread_while_another_runs():
    f, errors = doubling(), []

    def call():
        try:
            for _ in range(200):
                np.testing.assert_array_equal(f(X, Y)["sum"], EXPECTED)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    for number in range(5):
        with sg.Graph():
            x = sg.input("x", ("n",))
            y = sg.tanh(x) * float(number) + sg.exp(x - float(number))
        sg.compile(y)(np.ones(3))
    caller.join()
    assert not errors


def test_bits_do_not_depend_on_threads():
    with sg.Graph():
        x, w = sg.input("x", ("n", 64)), sg.input("w", (64, 32))
        loss = sg.mean(sg.tanh(x @ w) ** 2)
    f = sg.compile([loss, sg.grad(loss, w)])
    rng = np.random.default_rng(0)
    given = rng.normal(size=(20_000, 64)), rng.normal(size=(64, 32))
    before, found = sg.get_num_threads(), set()
    try:
        for count in (1, 2, 3):
            sg.set_num_threads(count)
            found.add(b"".join(array.tobytes() for array in f(*given)))
    finally:
        sg.set_num_threads(before)
    assert threads.layer()
    assert len(found) == 1


def test_train_mode_advances_the_stream_and_seed_restarts_it():
    with sg.Graph(seed=5):
        x = sg.input("x", ("n",))
        y = sg.nn.Dropout(0.5)(x)
    train = sg.compile(y, mode="train")
    ones = np.ones(1000)
    first, second = train(ones), train(ones)
    assert (first != second).any()
    again = sg.compile(y, mode="train", seed=5)
    np.testing.assert_array_equal(again(ones), first)
    np.testing.assert_array_equal(again(ones), second)
    assert (sg.compile(y)(ones) == 1).all()


def test_reference_and_cpu_draw_the_same_numbers():
    with sg.Graph(seed=5):
        x = sg.input("x", ("n",))
        y = sg.nn.Dropout(0.5)(x)
    results = [
        sg.compile(y, mode="train", target=target, seed=3)(np.ones(100))
        for target in TARGETS
    ]
    np.testing.assert_array_equal(*results)


def test_what_compile_refuses():
    with sg.Graph():
        x, y = sg.input("x", ("n",)), sg.input("y", ("n",))
        w = sg.parameter(np.ones(3, np.float32), name="w")
    with sg.Graph():
        other = sg.input("x", ("n",))
    cases = [
        (lambda: sg.compile(x + y, inputs=[x]), "got none for 'y'; add it to inputs"),
        (lambda: sg.compile(x + other), "names of their own, got 'x' twice"),
        (lambda: sg.compile(x, inputs=[x, x + y]), "inputs made by sg.input"),
        (lambda: sg.compile(3.0), "tensors as outputs, got float"),
        (lambda: sg.compile([x, "y"]), "tensors as outputs, got str"),
        (lambda: sg.compile(x, mode="test"), "mode 'train' or 'eval', got 'test'"),
        (
            lambda: sg.compile(x, target="gpu"),
            "target 'cpu' or 'cuda' or 'reference', got",
        ),
        (lambda: sg.compile(x, updates=[(x, y)]), "updates of parameters or states"),
        (lambda: sg.compile(x, updates=[x]), "updates as pairs"),
        (lambda: sg.compile(x, updates=[(w, w), (w, w)]), "one update per leaf"),
    ]
    for call, text in cases:
        with pytest.raises(sg.GraphError, match=text):
            call()


@both
def test_a_graph_without_inputs_and_inputs_that_nothing_needs(target):
    with sg.Graph():
        x = sg.input("x", ("n",))
        two = sg.constant(1.0) + 1.0
    assert sg.compile(two, target=target)() == 2
    assert sg.compile(two, inputs=[x], target=target)([1.0]) == 2
    assert sg.compile([], target=target)() == []


@both
def test_updates_of_a_graph(target):
    with sg.Graph() as graph:
        x = sg.input("x", ())
        n = sg.state(np.zeros(()), name="n")
        sg.update(n, n + x)
    f = sg.compile((), inputs=[x], updates=graph, target=target)
    f(2.5)
    f(2.5)
    assert n.value == 5


def test_unverified_and_verified_programs_agree():
    for verify in (False, True):
        with sg.Graph():
            x = sg.input("x", ("n",))
            f = sg.compile(sg.sum(sg.exp(x)), verify=verify)
        assert f([0.0, 0.0]) == 2


RENAMED = {
    "elementwise": lambda x: (x + 1).reshape(6, -1),
    "product": lambda x: (x.T @ x).reshape(2, 8),
    "tiled": lambda x: sg.tile(x, (3, 1)),
    "repeated": lambda x: sg.repeat(x, 2, axis=0),
    "joined": lambda x: sg.concatenate([x, x]).reshape(-1, 2, 2),
    "turned": lambda x: x.T.reshape(-1),
    "softmax": lambda x: sg.softmax(x, axis=-1).reshape(-1),
    "taken": lambda x: x[np.array([1, 0, 2])].reshape(-1),
    "gradient": lambda x: sg.grad(sg.sum(x.reshape(-1) ** 3), x),
}


@pytest.mark.parametrize("name", RENAMED)
def test_another_shape_of_a_result_is_no_copy(name):
    x = sg.input("x", (3, 4))
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = RENAMED[name](x)
    f = sg.compile(y, inputs=[x])
    wanted = sg.compile(y, inputs=[x], target="reference")(data)
    got, bound = f(data), f.bind(x=data)()
    assert got.shape == wanted.shape == y.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert got.tobytes() == np.asarray(bound).tobytes()
    assert f.memory.arena_bytes == 0


def test_several_shapes_of_a_result_are_arrays_of_their_own():
    x, p = sg.input("x", ("n", 2)), sg.parameter(np.ones((2, 2), np.float32))
    y = x @ p
    new = p * 2
    outputs = (y, y.reshape(-1), y.reshape(-1), x.reshape(-1), p.reshape(-1),
               new.reshape(-1), sg.sum(y).reshape(1, 1))  # fmt: skip
    f = sg.compile(outputs, inputs=[x], updates=[(p, new)])
    data = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    got = f(data)
    assert [a.shape for a in got] == [(3, 2), (6,), (6,), (6,), (4,), (4,), (1, 1)]
    assert [float(a.sum()) for a in got] == [42, 42, 42, 21, 4, 8, 42]
    assert all(not np.shares_memory(a, b) for a, b in itertools.combinations(got, 2))
    assert not any(np.shares_memory(a, data) for a in got)
    assert (p.value == 2).all()


def test_results_of_bodies_in_another_shape():
    x = sg.input("x", (2, 3))
    either = sg.cond(
        sg.sum(x) > 0, lambda: (x + 1).reshape(6), lambda: (x * 2).reshape(6)
    )
    last, all_of = sg.scan(
        lambda c, row: ((c.reshape(3) + row).reshape(3, 1), (row * 2).reshape(1, 3)),
        sg.zeros((3, 1)), x,
    )  # fmt: skip
    f = sg.compile((either, last.reshape(3), all_of.reshape(-1)), inputs=[x])
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    a, b, c = f(data)
    np.testing.assert_array_equal(a, data.ravel() + 1)
    np.testing.assert_array_equal(b, data.sum(0))
    np.testing.assert_array_equal(c, data.ravel() * 2)
    np.testing.assert_array_equal(f(-data)[0], data.ravel() * -2)
