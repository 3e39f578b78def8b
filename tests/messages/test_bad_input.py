"""Wrong data and graphs of users: the right answer, or an error that helps.

tests/compiler/runtime/test_executable.py and test_train.py ask the same of calls and of
training; here are the cases in between, on both targets. Threads, forks and disks are
in test_bad_surroundings.py.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from tolerances import assert_near

import staticgrad as sg
from staticgrad.ops.random import RandomStream

FILE = Path(__file__).name

both = pytest.mark.parametrize("target", ["cpu", "reference"])


def raises(error, *texts):
    """`error` with all of `texts` in it, and a line of this file."""
    parts = "".join(f"(?=.*{re.escape(text)})" for text in texts)
    return pytest.raises(error, match=rf"(?s)^{parts}.* requires .*  at {FILE}:\d+")


def classifier(target, **options):
    """w, and a trainer of softmax regression with 3 classes over 4 features."""
    with sg.Graph(seed=1):
        x = sg.input("x", ("batch", 4))
        label = sg.input("label", ("batch",), dtype="int64")
        w = sg.parameter(np.full((4, 3), 0.5, np.float32), name="w")
        loss = sg.nn.cross_entropy(x @ w, label)
    trainer = sg.Trainer(loss, sg.optim.Adam(0.1), target=target, **options)
    return w, trainer


RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.normal(size=(40, 4)).astype(np.float32),
    "label": RNG.integers(0, 3, 40),
}


# ---- sizes ---------------------------------------------------------------------------


def slices(target, cut):
    with sg.Graph():
        x = sg.input("x", ("n",))
        y = sg.sum(cut(x) * 2.0)
    return sg.compile([y, sg.grad(y, x)], target=target)


@both
@pytest.mark.parametrize(
    ("cut", "least"),
    [
        (lambda x: x[1:], 1),
        (lambda x: x[:-1], 1),
        (lambda x: x[1:] - x[:-1], 1),
        (lambda x: x[1:][1:], 2),
        (lambda x: x[1:-1], 2),
        (lambda x: np.concatenate([x, x])[1:], 1),
    ],
)
def test_a_slice_of_fewer_elements_than_it_leaves_out(target, cut, least):
    f = slices(target, cut)
    for n in range(4):
        x = np.arange(n, dtype=np.float32)
        if n < least:
            with raises(sg.ShapeError, "slice requires", f"fits, here n = {n}"):
                f(x)
            continue
        assert f(x)[0] == 2 * np.sum(cut(x))
        assert f(x)[1].shape == (n,)


@both
@pytest.mark.parametrize("cut", [lambda x: x[::2], lambda x: x[::-1], lambda x: x[:]])
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_slices_that_suit_every_size(target, cut, n):
    x = np.arange(n, dtype=np.float32)
    y, g = slices(target, cut)(x)
    expected = np.zeros(n)
    cut(expected)[...] = 2
    assert y == 2 * cut(x).sum()
    np.testing.assert_array_equal(g, expected)


@both
def test_a_difference_of_sizes_that_is_negative(target):
    with sg.Graph():
        x, y = sg.input("x", ("n",)), sg.input("y", ("m",))
        z = sg.ones((x.shape[0] - y.shape[0],))
    f = sg.compile(z, inputs=[x, y], target=target)
    assert f(np.ones(3), np.ones(1)).tolist() == [1, 1]
    assert f(np.ones(3), np.ones(3)).tolist() == []
    with raises(sg.ShapeError, "got float32[-m + n]", "here m = 3, n = 1"):
        f(np.ones(1), np.ones(3))


@both
def test_a_failed_size_leaves_the_executable_as_it_was(target):
    f = slices(target, lambda x: x[1:])
    for _ in range(2):
        with pytest.raises(sg.ShapeError):
            f([])
        assert f([1.0, 2.0])[0] == 4
    with pytest.raises(sg.ShapeError):
        f.bind(np.ones(0, np.float32))()


@both
def test_a_tail_batch_that_is_too_small(target):
    with sg.Graph():
        x = sg.input("x", ("batch",))
        w = sg.parameter(np.float32(1), name="w")
        loss = sg.mean((w * (x[2:] - x[:-2])) ** 2)
    trainer = sg.Trainer(loss, sg.optim.SGD(0.1), target=target)
    data = {"x": np.arange(9, dtype=np.float32)}
    with raises(sg.ShapeError, "batch = 1"):
        trainer.fit(data, batch_size=4, progress=False)
    trainer.fit({"x": data["x"][:8]}, batch_size=4, progress=False)


@both
def test_sizes_that_no_input_has(target):
    with sg.Graph():
        x = sg.input("x", ("m",))
        unknown = sg.zeros((sg.Size.symbol("n"),))
    with raises(sg.GraphError, "'n' in broadcast_to float32[n]", "give inputs=[...]"):
        sg.compile(sg.sum(x) + sg.sum(unknown), target=target)
    with raises(sg.GraphError, "compile requires sizes that inputs tell, got 'm'"):
        sg.compile(sg.ones_like(x), target=target)
    f = sg.compile(sg.ones_like(x), inputs=[x], target=target)
    assert f(np.zeros(2)).tolist() == [1, 1]


# ---- no elements ---------------------------------------------------------------------


@both
def test_empty_batches_give_numpys_values(target):
    with sg.Graph():
        x = sg.input("x", ("batch", 3))
        w = sg.parameter(np.ones((3, 2), np.float32), name="w")
        y = sg.tanh(x @ w)
        results = {
            "y": y, "sum": sg.sum(y, axis=0), "mean": sg.mean(y),
            "prod": sg.prod(y), "max": sg.max(y, axis=1), "argmax": sg.argmax(y, 1),
            "any": sg.any(y > 0), "all": sg.all(y > 0), "softmax": sg.softmax(y),
            "initial": sg.max(y, axis=0, initial=0.5), "down": sg.softmax(y, axis=0),
            "logsumexp": sg.logsumexp(y, 0), "log": sg.log(sg.sum(sg.exp(y))),
            "grad": sg.grad(sg.sum(y), w), "both": sg.concatenate([y, y]),
        }  # fmt: skip
    found = sg.compile(results, target=target)(np.ones((0, 3)))
    none = np.ones((0, 2), np.float32)
    expected = {
        "y": none, "sum": none.sum(0), "mean": np.float32(np.nan),
        "prod": none.prod(), "max": none.max(1), "argmax": none.argmax(1),
        "any": np.any(none > 0), "all": np.all(none > 0), "softmax": none,
        "initial": none.max(0, initial=0.5), "down": none,
        "logsumexp": np.logaddexp.reduce(none), "log": np.float32(-np.inf),
        "grad": np.zeros((3, 2), np.float32), "both": none,
    }  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert found[name].dtype == value.dtype, name


@both
@pytest.mark.parametrize("function", ["max", "min", "argmax", "argmin", "ptp"])
def test_no_element_has_no_extreme(target, function):
    with sg.Graph():
        x = sg.input("x", ("n",))
        f = sg.compile(getattr(sg, function)(x), target=target)
    assert np.isfinite(f([1.0]))
    with raises(sg.ShapeError, f"{function} requires at least one", "here n = 0"):
        f([])


def test_what_asks_for_an_element_shares_the_maximum_of_a_softmax():
    with sg.Graph():
        x = sg.input("x", ("n", "k"))
        f = sg.compile([sg.softmax(x), sg.max(x, axis=1), sg.argmax(x, axis=1)])
    assert f.source().count("maximum(") == 1
    assert f([[1.0, 3.0, 2.0]])[2].tolist() == [1]


def test_nothing_is_read_of_an_array_without_elements():
    """A stride of 0 would move its load in front of the loop that has no step."""
    with sg.Graph():
        x, w = sg.input("x", ("n", "n", 0)), sg.input("w", ("n", 0))
        y = sg.sum(sg.sin(w)[:, None] * x, axis=(1, 2))
        f = sg.compile([y, sg.grad(sg.sum(y * y), [x, w])], inputs=[x, w])
    y, (dx, dw) = f(np.ones((2, 2, 0)), np.ones((2, 0)))
    assert (y.tolist(), dx.shape, dw.shape) == ([0, 0], (2, 2, 0), (2, 0))


def test_sums_over_axes_without_elements_beside_symbolic_ones():
    with sg.Graph():
        x, y = sg.input("x", (0,)), sg.input("y", (0, "n", 0))
        columns = sg.hypot(y[:, None], y * 2) * x[:, None, None, None]
        results = [
            sg.grad(sg.sum(columns), y), sg.sum(sg.tanh(y), (0, 1)),
            sg.grad(sg.sum((y[:, None] * x) ** 2), x), sg.sum(y * x, axis=(0, 1)),
            sg.sum(y * sg.sum(y, 1, keepdims=True) * x, axis=1), sg.sum(y * x),
        ]  # fmt: skip
    found = sg.compile(results, inputs=[x, y])(np.ones(0), np.ones((0, 4, 0)))
    shapes = [(0, 4, 0), (0,), (0,), (0,), (0, 0), ()]
    assert [value.shape for value in found] == shapes


@both
def test_empty_data(target):
    w, trainer = classifier(target, metrics={})
    none = {"x": np.zeros((0, 4)), "label": np.zeros(0, np.int64)}
    assert np.isnan(trainer.evaluate(none)["loss"])
    assert np.isnan(trainer.evaluate(none, batch_size=8)["loss"])
    before = w.value
    with raises(ValueError, "data requires at least one sample"):
        trainer.fit(none, progress=False)
    with raises(ValueError, "data requires at least one sample"):
        trainer.fit(DATA, validation=none, progress=False)
    with raises(sg.NonFiniteError, "got nan"):
        trainer.step(**none)
    np.testing.assert_array_equal(w.value, before)
    trainer.fit(DATA, progress=False)


@both
def test_a_batch_larger_than_the_data_is_all_data(target):
    w, trainer = classifier(target)
    v, other = classifier(target)
    many = trainer.fit(DATA, epochs=2, batch_size=1000, progress=False)
    all_of_it = other.fit(DATA, epochs=2, batch_size=40, progress=False)
    np.testing.assert_array_equal(many["loss"], all_of_it["loss"])
    np.testing.assert_array_equal(w.value, v.value)
    assert trainer.evaluate(DATA, batch_size=1000) == trainer.evaluate(DATA)


# ---- layouts -------------------------------------------------------------------------


LAYOUTS = {
    "fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "swapped": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "list": lambda a: a.tolist(),
    "narrow": lambda a: a.astype("f2" if a.dtype.kind == "f" else "u1"),
    "memory": lambda a: memoryview(np.ascontiguousarray(a)),
}


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


@both
@pytest.mark.parametrize("change", [*LAYOUTS.values(), read_only], ids=[*LAYOUTS, "ro"])
def test_data_of_any_layout_trains_alike(target, change):
    data = {"x": np.round(DATA["x"] * 4) / 4, "label": DATA["label"]}
    options = {"epochs": 2, "batch_size": 7, "progress": False}
    (w, plain), (v, changed) = classifier(target), classifier(target)
    expected = plain.fit(data, **options)
    given = {name: change(array) for name, array in data.items()}
    kept = [np.array(array) for array in given.values()]
    found = changed.fit(given, **options)
    np.testing.assert_array_equal(found["loss"], expected["loss"])
    np.testing.assert_array_equal(w.value, v.value)
    assert changed.evaluate(given) == plain.evaluate(data)
    assert changed.step(**given) == plain.step(**data)
    for before, now in zip(kept, given.values(), strict=True):
        np.testing.assert_array_equal(before, now)


@both
@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("x", np.zeros((40, 5)), sg.ShapeError, "float32[batch, 4]"),
        ("x", np.zeros(40), sg.ShapeError, "float32[batch, 4]"),
        ("x", np.zeros((40, 4), complex), sg.DTypeError, "got complex128"),
        ("label", np.zeros(40), sg.DTypeError, "requires int64, got float64"),
        ("label", np.zeros(39, int), ValueError, "40"),
        ("x", [[1.0], [1.0, 2.0]], sg.ShapeError, "rows equally long"),
    ],
)
def test_wrong_data_is_refused_alike_everywhere(target, name, value, error, text):
    w, trainer = classifier(target)
    bad = {**DATA, name: value}
    before = w.value
    for use in (
        lambda: trainer.fit(bad, progress=False),
        lambda: trainer.fit(DATA, validation=bad, progress=False),
        lambda: trainer.evaluate(bad),
        lambda: trainer.step(**bad),
    ):
        with pytest.raises(error, match=re.escape(text)):
            use()
    np.testing.assert_array_equal(w.value, before)


@both
def test_missing_and_unknown_data(target):
    _, trainer = classifier(target)
    extra = {**DATA, "z": np.zeros(3)}
    for use in (trainer.evaluate, lambda d: trainer.fit(d, progress=False)):
        with pytest.raises(sg.GraphError, match=r"missing: \['label'\]"):
            use({"x": DATA["x"]})
        with pytest.raises(sg.GraphError, match=r"unknown: \['z'\]"):
            use(extra)
    with raises(sg.GraphError, "the call requires all inputs, got none for 'label'"):
        trainer.step(x=DATA["x"])
    with pytest.raises(sg.GraphError, match="known inputs, got 'z'"):
        trainer.step(**extra)


# ---- values --------------------------------------------------------------------------


def gathering(target):
    with sg.Graph():
        table = sg.input("table", ("rows", 2))
        first = sg.input("first", ("n",), dtype="int32")
        second = sg.input("second", ("n",), dtype="int64")
        total = sg.state(np.zeros((), np.float32), name="total")
        a = sg.sum(sg.take(table, first, axis=0) * 2.0)
        b = sg.sum(sg.take(table, second, axis=0))
    pairs = [(total, total + a + b)]
    return total, sg.compile([a, b], updates=pairs, target=target)


N = 600_000  # many chunks for several threads


@both
@pytest.mark.parametrize("places", [[N - 1], [5, N - 1], [N // 2, N // 2 + 1], [0]])
def test_the_lowest_node_and_index_is_reported(target, places):
    total, f = gathering(target)
    table = np.ones((7, 2), np.float32)
    good = np.zeros(N, np.int64)
    bad = good.copy()
    bad[places] = np.arange(len(places)) - 100
    position = f"got -100 at position {places[0]};"
    with raises(sg.IndexOutOfRange, "take requires -7 <= index < 7", position):
        f(table, bad.astype(np.int32), bad)
    with raises(sg.IndexOutOfRange, position):
        f(table, good.astype(np.int32), bad)
    assert total.value == 0
    assert f(table, good.astype(np.int32), good)[1] == 2 * N
    assert total.value == 6 * N


@both
@pytest.mark.parametrize("where", [0, 17, 39])
@pytest.mark.parametrize("label", [3, -1])
def test_a_bad_label_stops_a_fit_at_the_last_finished_step(target, where, label):
    options = {"batch_size": 8, "shuffle": False, "progress": False}
    labels = DATA["label"].copy()
    labels[where] = label
    (w, trainer), (v, clean) = classifier(target), classifier(target)
    with raises(sg.IndexOutOfRange, f"got {label} at position {where % 8}", "epoch 1"):
        trainer.fit({**DATA, "label": labels}, **options)
    done = where // 8
    if done:
        clean.fit({k: a[: 8 * done] for k, a in DATA.items()}, **options)
    np.testing.assert_array_equal(w.value, v.value)
    more = [t.fit(DATA, epochs=2, **options)["loss"] for t in (trainer, clean)]
    np.testing.assert_array_equal(*more)  # the optimiser's moments are equal too


def nan_flow(x, namespace):
    return [
        namespace.max(x, axis=1), namespace.min(x, axis=1), namespace.sum(x, axis=1),
        namespace.mean(x, axis=0), namespace.prod(x, axis=1), namespace.max(x),
        namespace.argmax(x, axis=1), namespace.argmin(x, axis=1),
        namespace.maximum(x, x * 0 + 1), namespace.minimum(x, x * 0 + 1),
        namespace.clip(x, -1, 1), namespace.sign(x), namespace.where(x > 0, x, x * 0),
        namespace.any(x > 5, axis=1), namespace.isnan(x), namespace.tanh(x),
    ]  # fmt: skip


@both
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("width", [3, 33])
def test_what_is_not_finite_flows_as_in_numpy(target, bad, width):
    with sg.Graph():
        x = sg.input("x", ("n", width))
        f = sg.compile([*nan_flow(x, sg), sg.softmax(x)], target=target)
    data = np.ones((5, width), np.float32)
    data[1, 2], data[3, 0] = bad, bad
    with np.errstate(all="ignore"):
        shifted = np.exp(data - data.max(1, keepdims=True))
        softmax = shifted / shifted.sum(1, keepdims=True)
        expected = [*nan_flow(data, np), softmax]
    for found, value in zip(f(data), expected, strict=True):
        assert_near(found, np.asarray(value, found.dtype))


def powers(target, **options):
    """A loss whose parts lie on lines of their own."""
    with sg.Graph():
        x = sg.input("x", ("batch",))
        w = sg.parameter(np.float32(2), name="w")
        root = sg.log(w)
        loss = sg.mean(x * root + 1.0)
    return w, root, loss, sg.Trainer(loss, sg.optim.SGD(0.0), target=target, **options)


@both
def test_an_error_names_what_stopped_being_finite(target):
    w, root, loss, trainer = powers(target)
    ones = {"x": np.ones(6, np.float32)}
    spoilt = {"x": np.array([1, 1, 1, 1, np.nan, 1], np.float32)}
    fits = {"batch_size": 2, "shuffle": False, "progress": False}
    with raises(sg.NonFiniteError, "input 'x' holds nan at [0]", "in step 3, epoch 1"):
        trainer.fit(spoilt, **fits)
    with raises(sg.NonFiniteError, "input 'x' holds nan at [4], look at the data"):
        trainer.step(**spoilt)
    w.value = 0.0
    first = f"log made the first -inf at {root.source}"
    for use in (lambda: trainer.fit(ones, **fits), lambda: trainer.step(**ones)):
        with raises(sg.NonFiniteError, first, "got -inf; ", str(loss.source)):
            use()
    f = sg.compile(loss, finite=[loss], target=target)
    g = f.bind(ones["x"])
    for use in (lambda: f(**ones), g, lambda: g.repeat(2), lambda: f.repeat(2, **ones)):
        with raises(sg.NonFiniteError, first):
            use()
    w.value = np.nan
    with raises(sg.NonFiniteError, "'w' holds nan at [], assign other values"):
        trainer.step(**ones)
    w.value = 1.0
    assert np.isfinite(trainer.step(**ones)["loss"])


@both
def test_a_mask_is_not_blamed_for_a_nan(target):
    with sg.Graph():
        keep = sg.input("keep", ("n", 3), dtype="bool")
        w = sg.parameter(np.ones(3, np.float32), name="w")
        scores = sg.where(keep, w, -np.inf)
        shifted = scores - sg.max(scores, axis=1, keepdims=True)
        loss = sg.sum(sg.exp(shifted) * w)
    f = sg.compile(loss, finite=[loss], target=target)
    keep = np.array([[1, 0, 1], [0, 0, 0]], bool)
    assert np.isfinite(f(keep[:1]))
    with raises(sg.NonFiniteError, f"subtract made the first nan at {shifted.source}"):
        f(keep)


@both
def test_dropout_draws_alike_when_an_error_is_traced(target):
    with sg.Graph(seed=3):
        x = sg.input("x", ("batch",))
        w = sg.parameter(np.float32(1), name="w")
        kept = sg.nn.Dropout(0.5)(x * w)
        loss = sg.mean(sg.log(kept))
    trainer = sg.Trainer(loss, sg.optim.SGD(0.1), target=target)
    stream = w.node.home.record(RandomStream).stream
    before = stream.value
    with raises(sg.NonFiniteError, "log made the first -inf"):
        trainer.step(x=np.ones(100))
    np.testing.assert_array_equal(stream.value, before)
    assert w.value == 1


# ---- graphs --------------------------------------------------------------------------


def test_wrt_that_the_loss_does_not_depend_on():
    with sg.Graph():
        x = sg.input("x", ("n",))
        w = sg.parameter(np.ones(3, np.float32), name="w")
        v = sg.parameter(np.ones(3, np.float32), name="v")
        stopped = sg.stop_gradient(w)
        rounded = sg.argmax(v).astype("float32")
        loss = sg.sum(x) + sg.sum(stopped) + rounded
    with raises(sg.GraphError, "wrt['a'][0], parameter 'w' float32[3]",
                "cut by stop_gradient", str(stopped.source)):  # fmt: skip
        sg.grad(loss, {"a": [w]})
    with raises(sg.GraphError, "parameter 'v' float32[3]", str(rounded.source)):
        sg.grad(loss, v)
    with raises(sg.GraphError, "y to depend on wrt"):
        sg.grad(sg.sum(x), w)
    zero = sg.compile(sg.grad(loss, v, unused="zero"))()
    assert zero.tolist() == [0, 0, 0]


def test_a_tensor_in_an_if():
    x = sg.input("x", ())
    with raises(sg.GraphError, "bool requires a value, got bool[]", "sg.where"):
        assert x > 0
    with raises(sg.GraphError, "bool requires a value"):
        [1] if x else [2]
    with raises(sg.GraphError, "bool requires a value"):
        x < 1 and x > 0
    with raises(sg.GraphError, "bool requires a value"):
        sorted([x, x + 1])
    assert x in [x, x + 1]  # the same object: nothing is asked of its value


@both
def test_a_graph_with_no_inputs(target):
    w = sg.parameter(np.ones(3, np.float32), name="w")
    loss = sg.sum(w * w)
    f = sg.compile({"loss": loss, "grad": sg.grad(loss, w)}, target=target)
    assert f()["grad"].tolist() == [2, 2, 2]
    with pytest.raises(sg.GraphError, match="at most 0 inputs, got 1; they are none"):
        f(1.0)
    trainer = sg.Trainer(loss, sg.optim.SGD(0.25), target=target)
    history = trainer.fit({}, epochs=3, progress=False)
    assert history["loss"].tolist() == [3, 0.75, 0.1875]
    assert trainer.evaluate({}) == {"loss": 0.046875} == trainer.step()
    with raises(sg.GraphError, "batch_size requires an input with a 'batch' axis"):
        trainer.fit({}, batch_size=2, progress=False)
    with pytest.raises(sg.GraphError, match=r"unknown: \['x'\]"):
        trainer.fit({"x": [1.0]}, progress=False)


def test_two_inputs_of_one_name():
    with sg.Graph() as graph:
        x = sg.input("x", ())
        with raises(sg.GraphError, "name of its own, got 'x' twice; rename one"):
            sg.input("x", (3,))
    assert graph.inputs == (x,)
    with sg.Graph():
        other = sg.input("x", ())
    with raises(sg.GraphError, "names of their own, got 'x' twice", str(other.source)):
        sg.compile(x + other)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (None, "NoneType of dtype object"),
        ("hello", "str of dtype str"),
        (b"ab", "bytes of dtype bytes"),
        ([[None]], "list of dtype object"),
        (np.array([None]), "ndarray of dtype object"),
    ],
)
def test_what_is_no_number(value, got):
    f = sg.compile(sg.input("x", (1,)) * 2)
    with raises(sg.DTypeError, "input 'x' requires numbers as float32", got, "lists"):
        f(value)


@pytest.mark.parametrize("leaf", [sg.parameter, sg.state])
@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (np.ones(4), sg.ShapeError, "requires shape (3,), got (4,); make a new"),
        (1.0, sg.ShapeError, "got ()"),
        (np.ones((3, 1)), sg.ShapeError, "got (3, 1)"),
        ([[1.0], [1.0, 2.0]], sg.ShapeError, "rows equally long"),
        (np.ones(3, complex), sg.DTypeError, "requires float32, got complex128"),
        (["a", "b", "c"], sg.DTypeError, "requires float32, got <U1"),
        ([None] * 3, sg.DTypeError, "requires float32, got object"),
    ],
)
def test_a_leaf_given_another_value(leaf, value, error, text):
    w = leaf(np.array([1, 2, 3], np.float32), name="w")
    with raises(error, "assigning to w", text):
        w.value = value
    assert w.value.tolist() == [1, 2, 3]
    w.value = np.array([4, 5, 6], ">f8")
    assert w.value.tolist() == [4, 5, 6]
    with pytest.raises(ValueError, match="read-only"):
        w.value[0] = 7
