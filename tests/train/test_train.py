"""Trainer: equality with a NumPy replay, batches, history, data, errors."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.train.python_loop import permutation

TARGETS = ("reference", "cpu")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 3)).astype(np.float32)
Y = (X @ [1.0, -2.0, 0.5] + 3 + 0.1 * RNG.standard_normal(50)).astype(np.float32)
DATA = {"x": X, "y": Y}
VALID = {"x": X[:17] + 0.5, "y": Y[:17]}
RATE = 0.05


def make_linear(target="cpu", optimizer=None, **options):
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", 3))
        y = sg.input("y", ("batch",))
        w = sg.parameter(np.zeros(3, np.float32), name="w")
        b = sg.parameter(np.float32(0), name="b")
        error = x @ w + b - y
        loss = sg.mean(error * error)
        mae = sg.mean(sg.abs(error))
    trainer = sg.Trainer(
        loss,
        optimizer=optimizer or sg.optim.SGD(RATE),
        metrics={"mae": mae},
        target=target,
        **options,
    )
    return trainer, graph


def replay(epochs, batch, shuffle=True, seed=0, first_epoch=0):
    """History and parameters of the same training in float64."""
    w, b = np.zeros(3), 0.0
    rows = {"loss": [], "mae": [], "val_loss": [], "val_mae": []}
    steps = []
    for epoch in range(first_epoch, first_epoch + epochs):
        order = permutation(50, seed, epoch) if shuffle else np.arange(50)
        total = np.zeros(2)
        for first in range(0, 50, batch):
            part = order[first : first + batch]
            error = X[part].astype(float) @ w + b - Y[part]
            steps.append(np.mean(error**2))
            total += len(part) * np.array([steps[-1], np.mean(np.abs(error))])
            w = w - RATE * 2 * error @ X[part] / len(part)
            b = b - RATE * 2 * np.mean(error)
        error = VALID["x"].astype(float) @ w + b - VALID["y"]
        rows["loss"].append(total[0] / 50)
        rows["mae"].append(total[1] / 50)
        rows["val_loss"].append(np.mean(error**2))
        rows["val_mae"].append(np.mean(np.abs(error)))
    return rows, w, b, steps


def make_network(target="cpu", **options):
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", 3))
        y = sg.input("label", ("batch",), dtype="int64")
        model = sg.nn.Sequential(
            sg.nn.Linear(3, 8), sg.nn.ReLU(), sg.nn.Dropout(0.3), sg.nn.Linear(8, 4)
        )
        logits = model(x)
        loss = sg.nn.cross_entropy(logits, y)
        accuracy = sg.metrics.accuracy(logits, y)
    trainer = sg.Trainer(
        loss,
        optimizer=sg.optim.Adam(0.02),
        metrics={"accuracy": accuracy},
        target=target,
        **options,
    )
    return trainer, graph


LABELLED = {"x": X, "label": RNG.integers(0, 4, 50)}


def values(graph):
    return {name: p.value for name, p in graph.parameters.items()}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


# ---- values --------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("batch", [10, 16, 50, 64, 1])
@pytest.mark.parametrize("shuffle", [True, False])
def test_fit_equals_a_replay_in_numpy(target, batch, shuffle):
    trainer, graph = make_linear(target)
    history = trainer.fit(
        DATA, epochs=3, batch_size=batch, shuffle=shuffle, seed=5, validation=VALID,
        progress=False,
    )  # fmt: skip
    rows, w, b, _ = replay(3, batch, shuffle, seed=5)
    assert list(history) == ["loss", "mae", "val_loss", "val_mae"]
    for name, expected in rows.items():
        assert history[name].dtype == np.float64
        np.testing.assert_allclose(history[name], expected, rtol=2e-5)
    np.testing.assert_allclose(graph.parameters["w"].value, w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(graph.parameters["b"].value, b, rtol=1e-4)


def test_both_targets_give_one_history_with_dropout():
    histories = []
    for target in TARGETS:
        trainer, _ = make_network(target=target)
        histories.append(
            trainer.fit(
                LABELLED, epochs=3, batch_size=16, validation=LABELLED, progress=False
            )
        )
    for name in histories[0]:
        np.testing.assert_allclose(histories[1][name], histories[0][name], rtol=1e-4)


def test_step_is_one_step_of_fit():
    trainer, graph = make_linear()
    row = trainer.step(x=X[:10], y=Y[:10])
    assert set(row) == {"loss", "mae"}
    assert all(type(value) is float for value in row.values())
    np.testing.assert_allclose(
        row["loss"], np.mean(Y[:10].astype(float) ** 2), rtol=1e-5
    )
    g = -2 * Y[:10] @ X[:10] / 10
    np.testing.assert_allclose(graph.parameters["w"].value, -RATE * g, rtol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_evaluate_weights_batches_by_their_samples(target):
    trainer, _ = make_linear(target)
    whole = trainer.evaluate(DATA)
    assert set(whole) == {"loss", "mae"}
    np.testing.assert_allclose(whole["loss"], np.mean(Y.astype(float) ** 2), rtol=1e-5)
    for batch in (7, 50, 99):
        parts = trainer.evaluate(DATA, batch_size=batch)
        np.testing.assert_allclose(parts["loss"], whole["loss"], rtol=1e-5)


def test_evaluate_changes_nothing():
    trainer, graph = make_network()
    trainer.fit(LABELLED, batch_size=16, progress=False)
    before = {leaf.name: leaf.value for leaf in graph.stored}
    first, second = trainer.evaluate(LABELLED), trainer.evaluate(LABELLED)
    assert first == second
    assert_equal(before, {leaf.name: leaf.value for leaf in graph.stored})


@pytest.mark.parametrize("target", TARGETS)
def test_recording_every_step(target):
    trainer, _ = make_linear(target)
    history = trainer.fit(
        DATA, epochs=2, batch_size=16, validation=VALID, record="step", progress=False
    )
    rows, _, _, steps = replay(2, 16)
    np.testing.assert_allclose(history["loss"], steps, rtol=2e-5)
    np.testing.assert_allclose(history["val_loss"], rows["val_loss"], rtol=2e-5)
    assert len(history["mae"]) == 8


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("steps", [0, 1, 4, 6])
def test_a_number_of_steps(target, steps):
    trainer, graph = make_linear(target)
    history = trainer.fit(DATA, steps=steps, batch_size=16, progress=False)
    _, _, _, losses = replay(2, 16)
    sizes = np.array([16, 16, 16, 2] * 2)[:steps]
    rows = -(-steps // 4)
    assert len(history["loss"]) == rows
    for row in range(rows):
        part = slice(4 * row, 4 * row + 4)
        mean = np.average(losses[:steps][part], weights=sizes[part])
        np.testing.assert_allclose(history["loss"][row], mean, rtol=2e-5)
    assert bool(graph.parameters["w"].value.any()) == (steps > 0)


def test_epochs_are_additional_and_shuffle_as_one_fit():
    once, graph_once = make_network()
    twice, graph_twice = make_network()
    whole = once.fit(LABELLED, epochs=5, batch_size=16, progress=False)
    parts = [
        twice.fit(LABELLED, epochs=n, batch_size=16, progress=False) for n in (2, 3)
    ]
    joined = {name: np.concatenate([p[name] for p in parts]) for name in whole}
    assert_equal(whole, joined)
    assert_equal(values(graph_once), values(graph_twice))


def test_the_permutation_is_one_and_depends_on_seed_and_epoch():
    orders = [permutation(100, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    for order in orders:
        assert sorted(order) == list(range(100))
    assert not any(
        np.array_equal(a, b) for a, b in zip(orders, orders[1:] + orders[:1])
    )
    big = permutation(5, 2**63 + 7, 2**33)
    assert sorted(big) == list(range(5))
    assert permutation(1, 0, 0).tolist() == [0]


@pytest.mark.parametrize("seed", [-1, 2**64 - 1, 2**63])
def test_any_seed_shuffles_alike_on_both_targets(seed):
    histories = []
    for target in TARGETS:
        trainer, _ = make_linear(target)
        histories.append(
            trainer.fit(DATA, batch_size=1, seed=seed, record="step", progress=False)
        )
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-4)


def test_the_learning_rate_is_settable_without_compiling():
    trainer, graph = make_linear()
    trainer.fit(DATA, epochs=1, batch_size=10, progress=False)
    before = values(graph)
    trainer.learning_rate = 0.0
    trainer.fit(DATA, epochs=1, batch_size=10, progress=False)
    assert trainer.learning_rate == 0.0
    assert_equal(before, values(graph))


def test_assigning_a_parameter_keeps_the_moments_and_reset_clears_them():
    trainer, graph = make_linear(optimizer=sg.optim.SGD(0.1, momentum=0.9))
    trainer.step(x=X, y=Y)
    graph.parameters["w"].value = np.zeros(3, np.float32)
    assert trainer.optimizer.states["w.velocity"].value.any()
    trainer.reset_optimizer()
    assert not trainer.optimizer.states["w.velocity"].value.any()


def test_parameters_restricts_what_is_trained():
    with sg.Graph():
        x = sg.input("x", ("batch", 3))
        model = sg.nn.Sequential(sg.nn.Linear(3, 3), sg.nn.Linear(3, 1))
        loss = sg.mean(model(x) ** 2)
    parameters = model.parameters()
    head = {n: p for n, p in parameters.items() if n.startswith("1.")}
    trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.1), parameters=head)
    before = {n: p.value for n, p in parameters.items()}
    trainer.fit({"x": X}, epochs=2, progress=False)
    changed = {n for n, p in parameters.items() if (p.value != before[n]).any()}
    assert changed == set(head)


def test_parameters_that_are_not_trainable_stay():
    with sg.Graph():
        x = sg.input("x", ("batch",))
        w = sg.parameter(np.float32(1), name="w")
        fixed = sg.parameter(np.float32(1), name="fixed", trainable=False)
        loss = sg.mean((w * fixed * x - 1) ** 2)
    sg.Trainer(loss, optimizer=sg.optim.SGD(0.1)).fit({"x": Y}, progress=False)
    assert fixed.value == 1
    assert w.value != 1


def test_updates_of_the_graph_run_in_training_only():
    with sg.Graph():
        x = sg.input("x", ("batch",))
        w = sg.parameter(np.float32(1), name="w")
        count = sg.state(np.int64(0), name="count")
        sg.update(count, count + 1)
        loss = sg.mean((w * x) ** 2)
    trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.1))
    trainer.fit({"x": Y}, epochs=3, batch_size=20, progress=False)
    trainer.evaluate({"x": Y})
    assert count.value == 9


def test_a_seed_of_the_trainer_starts_the_stream_anew():
    def losses(seed):
        trainer, _ = make_network(seed=seed)
        return trainer.fit(LABELLED, epochs=2, progress=False)["loss"]

    assert np.array_equal(losses(3), losses(3))
    assert not np.array_equal(losses(3), losses(4))


# ---- data ----------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_lists_strided_and_swapped_arrays_are_data(target):
    plain, _ = make_linear(target)
    expected = plain.fit(DATA, epochs=2, batch_size=16, progress=False)
    wide = np.zeros((100, 6), np.float32)
    wide[::2, ::2] = X
    read_only = X.copy()
    read_only.flags.writeable = False
    forms = [
        wide[::2, ::2], np.asfortranarray(X), X.astype(">f4"), X.tolist(),
        X.astype(np.float64), read_only,
    ]  # fmt: skip
    for x in forms:
        trainer, _ = make_linear(target)
        history = trainer.fit({"x": x, "y": Y}, epochs=2, batch_size=16, progress=False)
        np.testing.assert_array_equal(history["loss"], expected["loss"])


def make_axes(target):
    with sg.Graph():
        x = sg.input("x", (2, "batch", 3))
        scale = sg.input("scale", (3,))
        y = sg.input("y", ("batch",))
        w = sg.parameter(np.ones(3, np.float32), name="w")
        loss = sg.mean((sg.sum(x * scale, axis=0) @ w - y) ** 2)
    return sg.Trainer(loss, optimizer=sg.optim.SGD(0.01), target=target)


def test_a_batch_axis_in_the_middle_and_an_input_that_passes_whole():
    data = {
        "x": RNG.standard_normal((2, 23, 3)).astype(np.float32),
        "y": Y[:23],
        "scale": np.float32([1, 2, 3]),
    }
    histories = [
        make_axes(target).fit(data, epochs=3, batch_size=5, progress=False)["loss"]
        for target in TARGETS
    ]
    np.testing.assert_allclose(*histories, rtol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_batch_axis_overrides_the_name(target):
    with sg.Graph():
        x = sg.input("x", ("n", 3))
        w = sg.parameter(np.ones(3, np.float32), name="w")
        loss = sg.mean((x @ w) ** 2)
    trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.01), target=target)
    for batch_axis in (0, {"x": -2}):
        history = trainer.fit(
            {"x": X}, batch_size=20, batch_axis=batch_axis, record="step",
            progress=False,
        )  # fmt: skip
        assert len(history["loss"]) == 3
    with pytest.raises(sg.GraphError, match="batch_axis requires an axis"):
        trainer.fit({"x": X}, batch_size=20, batch_axis=2)
    with pytest.raises(sg.GraphError, match="'batch' axis"):
        trainer.fit({"x": X}, batch_size=20)


@pytest.mark.parametrize("target", TARGETS)
def test_without_batched_inputs_an_epoch_is_a_step(target):
    with sg.Graph():
        w = sg.parameter(np.float32(1), name="w")
        loss = (w - 3) ** 2
    trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.25), target=target)
    history = trainer.fit({}, epochs=3, progress=False)
    np.testing.assert_allclose(history["loss"], [4, 1, 0.25], rtol=1e-6)
    with pytest.raises(sg.GraphError, match="'batch' axis"):
        trainer.fit({}, batch_size=1)


@pytest.mark.parametrize("name", ["epochs", "steps", "batch_size", "seed"])
@pytest.mark.parametrize("value", [1.5, "2"])
def test_numbers_of_a_fit_are_whole(name, value):
    trainer, _ = make_linear("reference")
    match = f"{name} requires a whole number, got {value!r}"
    with pytest.raises(sg.GraphError, match=match):
        trainer.fit(DATA, progress=False, **{name: value})


def test_callbacks_and_patience_that_are_none():
    trainer, _ = make_linear("reference")
    for callbacks in (3, [print, 3]):
        with pytest.raises(sg.GraphError, match="callbacks that can be called, got 3"):
            trainer.fit(DATA, progress=False, callbacks=callbacks)
    with pytest.raises(sg.GraphError, match="early_stopping requires a whole number"):
        trainer.fit(DATA, progress=False, early_stopping=1.5)


BAD_DATA = [
    ({"x": X}, sg.GraphError, "missing: \\['y'\\]"),
    ({"x": X, "y": Y, "z": Y}, sg.GraphError, "unknown: \\['z'\\]"),
    ({"x": X, "y": Y[:49]}, sg.GraphError, "equally many samples"),
    ({"x": X[:0], "y": Y[:0]}, ValueError, "at least one sample"),
    ({"x": X[:, :2], "y": Y}, sg.ShapeError, "float32\\[batch, 3\\]"),
    ({"x": X[0], "y": Y}, sg.ShapeError, "float32\\[batch, 3\\]"),
    ({"x": X.astype(complex), "y": Y}, sg.DTypeError, "float32"),
    ([X, Y], sg.GraphError, "dict"),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("data", "error", "match"), BAD_DATA)
def test_bad_data_is_refused_before_anything_runs(target, data, error, match):
    trainer, graph = make_linear(target)
    # Scores of no samples are NumPy's, so only fit refuses them.
    calls = [trainer.fit] if error is ValueError else [trainer.evaluate, trainer.fit]
    for call in calls:
        with pytest.raises(error, match=match):
            call(data)
    with pytest.raises(error, match=match):
        trainer.fit(DATA, validation=data, progress=False)
    assert not graph.parameters["w"].value.any()


def test_bad_arguments():
    trainer, _ = make_linear()
    for name, value in (("epochs", -1), ("steps", -1), ("batch_size", 0)):
        with pytest.raises(sg.GraphError, match=name):
            trainer.fit(DATA, **{name: value})
    with pytest.raises(sg.GraphError, match="record"):
        trainer.fit(DATA, record="batch")
    with pytest.raises(sg.GraphError, match="early_stopping"):
        trainer.fit(DATA, early_stopping=0)
    assert trainer.fit(DATA, epochs=0, progress=False)["loss"].shape == (0,)


def test_what_a_trainer_requires():
    with sg.Graph():
        x = sg.input("x", ("batch",))
        n = sg.input("n", (), dtype="int64")
        w = sg.parameter(np.float32(1), name="w")
        loss = sg.mean(w * x)
        unused = sg.parameter(np.float32(1), name="unused")
    opt = sg.optim.SGD(0.1)
    with pytest.raises(sg.ShapeError, match="scalars"):
        sg.Trainer(w * x, optimizer=opt)
    with pytest.raises(sg.ShapeError, match="scalars"):
        sg.Trainer(loss, optimizer=opt, metrics={"m": x})
    with pytest.raises(sg.DTypeError, match="float loss"):
        sg.Trainer(n, optimizer=opt)
    with pytest.raises(sg.DTypeError, match="tensors"):
        sg.Trainer(loss, optimizer=opt, metrics={"m": 1.0})
    with pytest.raises(sg.GraphError, match="names of their own"):
        sg.Trainer(loss, optimizer=opt, metrics={"loss": loss})
    with pytest.raises(sg.GraphError, match="trainable parameter"):
        sg.Trainer(sg.mean(x), optimizer=opt)
    with pytest.raises(sg.GraphError, match="unused"):
        sg.Trainer(loss, optimizer=opt, parameters=[unused])
    with pytest.raises(sg.GraphError, match="optimizer such as .*'adam'"):
        sg.Trainer(loss, optimizer="adam")
    with pytest.raises(sg.GraphError, match="check_finite"):
        sg.Trainer(loss, optimizer=opt, check_finite="all")


# ---- bad values ----------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_names_step_op_and_line(target, bad):
    trainer, graph = make_linear(target)
    clean, graph_clean = make_linear(target)
    x = X.copy()
    x[37, 1] = bad
    options = {"epochs": 3, "batch_size": 10, "shuffle": False, "progress": False}
    with pytest.raises(
        sg.NonFiniteError, match=r"test_train\.py:\d+.*step 4"
    ) as caught:
        trainer.fit({"x": x, "y": Y}, **options)
    assert "requires a finite result" in str(caught.value)
    clean.fit({"x": X[:30], "y": Y[:30]}, **options | {"epochs": 1})
    assert_equal(values(graph), values(graph_clean))


@pytest.mark.parametrize("target", TARGETS)
def test_a_gradient_that_is_not_finite_is_found_if_asked_for(target):
    def make(check_finite):
        with sg.Graph():
            x = sg.input("x", ("batch",))
            w = sg.parameter(np.float32(1e-30), name="w")
            loss = sg.mean(sg.log(w) * x)
        return w, sg.Trainer(
            loss, sg.optim.SGD(0.1), target=target, check_finite=check_finite
        )

    data = {"x": np.float32([1e10, 1e10])}  # d/dw is 1e40, the loss -7e11
    w, trainer = make("gradients")
    with pytest.raises(sg.NonFiniteError, match="step 1"):
        trainer.fit(data, progress=False)
    assert w.value == np.float32(1e-30)
    w, trainer = make("loss")
    trainer.fit(data, progress=False)
    assert w.value == -np.inf


def test_check_finite_none_lets_nan_pass():
    trainer, graph = make_linear(check_finite=None)
    x = X.copy()
    x[0, 0] = np.nan
    history = trainer.fit({"x": x, "y": Y}, epochs=2, progress=False)
    assert np.isnan(history["loss"]).all()
    assert np.isnan(graph.parameters["w"].value).all()


def test_validation_may_be_not_finite():
    trainer, _ = make_linear()
    x = VALID["x"].copy()
    x[0, 0] = np.nan
    history = trainer.fit(DATA, validation={**VALID, "x": x}, progress=False)
    assert np.isnan(history["val_loss"]).all()
    assert np.isfinite(history["loss"]).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("row", "label"), [(0, 4), (49, -1), (25, 2**40)])
def test_labels_out_of_range_name_the_line(target, row, label):
    trainer, graph = make_network(target)
    before = values(graph)
    labels = LABELLED["label"].copy()
    labels[row] = label
    with pytest.raises(sg.IndexOutOfRange, match=rf"{label}.*test_train\.py:\d+"):
        trainer.fit({"x": X, "label": labels}, progress=False)
    assert_equal(before, values(graph))
    bad = {"x": X, "label": labels}
    with pytest.raises(sg.IndexOutOfRange, match=rf"{label}.*\d$"):
        trainer.evaluate(bad, batch_size=16)
    with pytest.raises(sg.IndexOutOfRange, match="in validation, epoch 1"):
        trainer.fit(LABELLED, validation=bad, batch_size=16, progress=False)
    trainer.fit(LABELLED, progress=False)


def test_a_fixed_axis_is_not_cut_and_the_message_says_what_to_do():
    with sg.Graph():
        x, w = sg.input("x", (4, 3)), sg.parameter(np.ones(3, np.float32), name="w")
        trainer = sg.Trainer(sg.mean((x @ w) ** 2), sg.optim.SGD(0.1))
    with pytest.raises(sg.ShapeError, match="name the axis that is to be cut 'batch'"):
        trainer.fit({"x": np.ones((8, 3))}, batch_axis=0, progress=False)
    assert trainer.step(x=np.ones((4, 3)))["loss"] == 9
