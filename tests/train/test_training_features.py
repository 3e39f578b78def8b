"""Accumulation, checks, clipping, loss scales and phases of Trainer."""

import numpy as np
import pytest

import staticgrad as sg
from staticgrad.train.python_loop import permutation

TARGETS = ("reference", "cpu")
both = pytest.mark.parametrize("target", TARGETS)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 3)).astype(np.float32)
Y = (X @ [1.0, -2.0, 0.5] + 3).astype(np.float32)
DATA = {"x": X, "y": Y}
QUIET = {"progress": False}


def linear(optimizer=None, **options):
    with sg.Graph(seed=0) as graph:
        x, y = sg.input("x", ("batch", 3)), sg.input("y", ("batch",))
        w = sg.parameter(np.zeros(3, np.float32), name="w")
        loss = sg.mean((x @ w - y) ** 2)
        seen = sg.state(np.zeros((), np.float32), name="seen")
        sg.update(seen, sg.by_mode(train=seen + sg.sum(x), eval=seen))
    trainer = sg.Trainer(loss, optimizer or sg.optim.SGD(0.05), **options)
    return trainer, w, graph


def gradient(w, rows):
    return 2 * X[rows].T.astype(float) @ (X[rows].astype(float) @ w - Y[rows])


# ---- accumulation --------------------------------------------------------------------


@both
@pytest.mark.parametrize(("micro", "count"), [(8, 3), (10, 5), (7, 2), (50, 4), (1, 9)])
def test_groups_of_batches_count_their_samples(target, micro, count):
    trainer, w, _ = linear(target=target, accumulate=count)
    history = trainer.fit(DATA, epochs=2, batch_size=micro, seed=3, **QUIET)
    want = np.zeros(3)
    for epoch in range(2):
        order = permutation(50, 3, epoch)
        for first in range(0, 50, micro * count):
            rows = order[first : first + micro * count]
            want = want - 0.05 * gradient(want, rows) / len(rows)
    np.testing.assert_allclose(w.value, want, rtol=1e-5, atol=1e-6)
    assert history["loss"].shape == (2,)


@both
def test_micro_batches_equal_the_whole_batch_to_rounding(target):
    pairs = [linear(sg.optim.Adam(0.05), target=target, accumulate=n) for n in (1, 4)]
    for (trainer, _, _), size in zip(pairs, (20, 5), strict=True):
        trainer.fit(DATA, epochs=3, batch_size=size, **QUIET)
    (_, one, _), (_, four, _) = pairs
    np.testing.assert_allclose(four.value, one.value, rtol=1e-5)


@both
def test_steps_commit_when_the_group_is_full(target):
    trainer, w, _ = linear(target=target, accumulate=2, clip=sg.optim.clip_by_value(9))
    reported = trainer.step(x=X[:10], y=Y[:10])
    assert set(reported) == {"loss"}
    assert (w.value == 0).all()
    assert set(trainer.step(x=X[10:30], y=Y[10:30])) == {"loss", "clipped"}
    want = -0.05 * gradient(np.zeros(3), slice(30)) / 30
    np.testing.assert_allclose(w.value, want, rtol=1e-5)


def test_the_compiled_loop_equals_the_loop_in_python():
    found = []
    for target in TARGETS:
        trainer, w, _ = linear(
            sg.optim.Momentum(sg.optim.exponential(0.05, 0.9)),
            target=target, accumulate=3, clip=sg.optim.clip_by_global_norm(3.0),
        )  # fmt: skip
        valid = {"x": X[:13], "y": Y[:13]}
        history = trainer.fit(
            DATA, epochs=3, batch_size=8, validation=valid, record="step", **QUIET
        )
        found.append((w.value, history))
    (left, rows), (right, others) = found
    np.testing.assert_allclose(right, left, rtol=1e-5)
    assert rows.keys() == others.keys()
    for name in rows:
        np.testing.assert_allclose(others[name], rows[name], rtol=1e-5, err_msg=name)
    assert rows["loss"].shape == (21,)
    assert rows["learning_rate"].shape == rows["clipped"].shape == (3,)


@both
def test_saved_between_the_batches_of_a_group(target, tmp_path):
    whole, w, _ = linear(target=target, accumulate=3)
    for first in (0, 10, 20):
        whole.step(x=X[first : first + 10], y=Y[first : first + 10])
    half, _, _ = linear(target=target, accumulate=3)
    for first in (0, 10):
        half.step(x=X[first : first + 10], y=Y[first : first + 10])
    half.save(tmp_path / "file")
    rest, v, _ = linear(target=target, accumulate=3)
    rest.load(tmp_path / "file")
    rest.step(x=X[20:30], y=Y[20:30])
    np.testing.assert_array_equal(v.value, w.value)


@both
def test_a_stopped_run_goes_on_within_a_group(target):
    whole, w, _ = linear(target=target, accumulate=3)
    whole.fit(DATA, epochs=2, batch_size=8, **QUIET)
    parts, v, _ = linear(target=target, accumulate=3)
    parts.fit(DATA, epochs=2, batch_size=8, callbacks=lambda epoch, _: True, **QUIET)
    parts.fit(DATA, epochs=1, batch_size=8, **QUIET)
    np.testing.assert_array_equal(v.value, w.value)


def test_inputs_without_a_batch_axis_weigh_one():
    x = sg.input("x", (4,), "float64")
    w = sg.parameter(np.zeros(()), name="w")
    trainer = sg.Trainer(sg.mean(x) * w, sg.optim.SGD(1.0), accumulate=2)
    trainer.step(x=np.full(4, 1.0))
    trainer.step(x=np.full(4, 3.0))
    assert w.value == -2


# ---- what is not finite --------------------------------------------------------------


def leaves(trainer, graph):
    found = {leaf.name: leaf.value for leaf in graph.stored}
    return found | {n: s.value for n, s in trainer.optimizer.states.items()}


def unchanged(before, after):
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


@both
@pytest.mark.parametrize("checked", ["loss", "gradients"])
def test_skipped_steps_leave_everything_as_it_was(target, checked):
    trainer, _, graph = linear(
        sg.optim.Adam(sg.optim.exponential(0.1, 0.9)), target=target,
        check_finite=checked, on_nonfinite="skip",
    )  # fmt: skip
    assert trainer.step(x=X[:5], y=Y[:5])["skipped"] == 0
    before = leaves(trainer, graph)
    bad = X[:5].copy()
    bad[2, 1] = np.nan
    assert trainer.step(x=bad, y=Y[:5])["skipped"] == 1
    unchanged(before, leaves(trainer, graph))
    trainer.step(x=X[:5], y=Y[:5])
    assert leaves(trainer, graph)["step"] == 2


@both
def test_the_share_of_skipped_steps_is_recorded(target):
    trainer, _, _ = linear(target=target, on_nonfinite="skip")
    data = {"x": X[:40].copy(), "y": Y[:40]}
    data["x"][15] = np.inf
    history = trainer.fit(data, batch_size=10, epochs=2, **QUIET)
    assert history["skipped"].tolist() == [0.25, 0.25]
    assert trainer.evaluate({"x": X, "y": Y}).keys() == {"loss"}


@both
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    "options", [{"on_nonfinite": "skip"}, {"loss_scale": "dynamic"}]
)
def test_means_leave_out_batches_whose_loss_is_not_finite(target, accumulate, options):
    """Batches of 20, 20 and 10 samples; in the second a NaN, which a metric hides."""
    with sg.Graph():
        x, y = sg.input("x", ("batch", 3)), sg.input("y", ("batch",))
        w = sg.parameter(np.zeros(3, np.float32), name="w")
        loss = sg.mean((x @ w - y) ** 2)
    bad = {"x": X.copy(), "y": Y}
    bad["x"][25, 1] = np.nan
    trainer = sg.Trainer(
        loss, sg.optim.SGD(0.0), metrics={"largest": sg.max(y)}, target=target,
        accumulate=accumulate, **options,
    )  # fmt: skip
    wanted = {
        "loss": np.mean(np.r_[Y[:20], Y[40:]] ** 2),
        "largest": (20 * Y[:20].max() + 10 * Y[40:].max()) / 30,
    }
    reported = {"epochs": 2, "batch_size": 20, "shuffle": False, **QUIET}
    history = trainer.fit(bad, validation=bad, **reported)
    for name, value in wanted.items():
        np.testing.assert_allclose(history[name], [value] * 2, rtol=1e-6)
    assert np.isnan(history["val_loss"]).all()
    assert history["skipped"] == pytest.approx(
        [1 / 3 if accumulate == 1 else 1 / 2] * 2
    )
    steps = trainer.fit(bad, record="step", **reported)
    assert np.isnan(steps["loss"]).tolist() == [False, True, False] * 2


@both
def test_the_mean_of_no_batch_is_nan(target):
    trainer, w, _ = linear(target=target, on_nonfinite="skip")
    history = trainer.fit({"x": X * np.nan, "y": Y}, **QUIET)
    assert np.isnan(history["loss"]).all()
    assert history["skipped"] == 1
    assert (w.value == 0).all()


@both
def test_what_counted_is_saved_within_an_epoch(target, tmp_path):
    bad = {"x": X.copy(), "y": Y}
    bad["x"][3] = np.inf
    reported = {"batch_size": 10, "shuffle": False, **QUIET}
    trainers = [linear(target=target, on_nonfinite="skip")[0] for _ in range(3)]
    whole, half, rest = trainers
    wanted = whole.fit(bad, **reported)

    def stop(value):
        if half._last.steps.value == 3:
            raise KeyboardInterrupt

    half.tap(half._objective.phases[0].scalars["loss"], stop)
    with pytest.raises(KeyboardInterrupt):
        half.fit(bad, **reported)
    half.save(tmp_path / "file")
    rest.load(tmp_path / "file")
    np.testing.assert_equal(rest.fit(bad, resume=True, **reported), wanted)


@both
def test_replaced_gradients_are_finite(target):
    x = sg.input("x", ("batch",))
    w = sg.parameter(np.float32([1, 2]), name="w")
    loss = sg.mean(x) * sg.sum(sg.sqrt(w - 1))  # its derivative at 1 is infinite
    trainer = sg.Trainer(
        loss, sg.optim.SGD(1e-38), target=target, on_nonfinite="replace"
    )
    assert trainer.step(x=np.ones(3))["replaced"] == 1
    big = np.finfo(np.float32).max * 1e-38
    np.testing.assert_allclose(w.value, [1 - big, 2], rtol=1e-6)


@both
def test_gradients_that_are_not_finite_raise(target):
    x = sg.input("x", ("batch",))
    w = sg.parameter(np.float32(1), name="w")
    loss = sg.mean(x) * sg.sqrt(w - 1)
    trainer = sg.Trainer(
        loss, sg.optim.SGD(1.0), target=target, check_finite="gradients"
    )
    with pytest.raises(sg.NonFiniteError):
        trainer.step(x=np.ones(3))
    assert w.value == 1


# ---- clipping ------------------------------------------------------------------------


@both
def test_the_share_of_clipped_steps_is_recorded(target):
    x = sg.input("x", ("batch",))
    w = sg.parameter(np.float32(0), name="w")
    trainer = sg.Trainer(
        sg.mean(x) * w, sg.optim.SGD(1.0), target=target,
        clip=[sg.optim.clip_by_value(2.0), sg.optim.clip_by_global_norm(1.0)],
    )  # fmt: skip
    data = {"x": np.float32([0.5, 3, 0.25, 1.5])}
    history = trainer.fit(data, batch_size=1, shuffle=False, record="step", **QUIET)
    assert history["clipped"].tolist() == [0, 1, 0, 1]
    assert w.value == pytest.approx(-(0.5 + 1 + 0.25 + 1), rel=1e-5)
    assert trainer.fit(data, batch_size=1, **QUIET)["clipped"] == [0.5]


# ---- the loss scale ------------------------------------------------------------------


def published(overflows, init, growth, backoff, interval):
    """The scales of PyTorch's GradScaler: the scale in use at each step."""
    scale, good, used = init, 0, []
    for overflow in overflows:
        used.append(scale)
        if overflow:
            scale, good = scale * backoff, 0
            continue
        good += 1
        if good == interval:
            scale, good = scale * growth, 0
    return used


@both
def test_the_loss_scale_follows_the_published_rule(target):
    overflows = [0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    want = published(overflows, 65536.0, 2.0, 0.5, 3)
    x = sg.input("x", ("batch",))
    w = sg.parameter(np.float32(0.0), name="w")
    trainer = sg.Trainer(
        sg.mean(x) * w, sg.optim.Adam(0.1), target=target,
        loss_scale=sg.amp.LossScale(interval=3),
    )  # fmt: skip
    # the scaled gradient overflows float32 where the loss, which is 0, does not
    data = {"x": np.where(overflows, 3e38, 1).astype(np.float32)}
    history = trainer.fit(data, batch_size=1, shuffle=False, record="step", **QUIET)
    np.testing.assert_array_equal(history["loss_scale"], want)
    np.testing.assert_array_equal(history["skipped"], overflows)
    assert trainer.optimizer.states["step"].value == 20 - sum(overflows)
    assert np.isfinite(w.value)


@both
def test_the_default_scale_is_the_published_one(target):
    x = sg.input("x", ("batch",))
    w = sg.parameter(np.float32(0.0), name="w")
    trainer = sg.Trainer(
        sg.mean(x) * w, sg.optim.SGD(0.0), target=target, loss_scale="dynamic"
    )
    history = trainer.fit({"x": np.ones(1)}, epochs=2001, **QUIET)
    assert set(history["loss_scale"][:2000]) == {65536.0}
    assert history["loss_scale"][2000] == 131072.0


@both
def test_overflow_leaves_every_state_untouched(target):
    trainer, _, graph = linear(sg.optim.Adam(0.1), target=target, loss_scale="dynamic")
    trainer.step(x=X[:5], y=Y[:5])
    before = leaves(trainer, graph)
    reported = trainer.step(x=X[:5] * 1e18, y=Y[:5])
    assert reported["skipped"] == 1
    unchanged(before, leaves(trainer, graph))
    assert trainer.loss_scale.value.value == 32768


@both
def test_clipping_comes_after_unscaling(target):
    x = sg.input("x", ("batch",))
    w = sg.parameter(np.float32(0.0), name="w")
    trainer = sg.Trainer(
        sg.mean(x) * w, sg.optim.SGD(1.0), target=target, loss_scale=1024.0,
        clip=sg.optim.clip_by_global_norm(1.0),
    )  # fmt: skip
    reported = trainer.step(x=np.float32([0.5]))
    assert (reported["clipped"], reported["loss_scale"]) == (0, 1024)
    assert w.value == -0.5
    assert trainer.step(x=np.float32([3.0]))["clipped"] == 1
    assert w.value == pytest.approx(-1.5, rel=1e-5)


@both
def test_scaled_groups_of_batches(target):
    plain, w, _ = linear(target=target, accumulate=3)
    scaled, v, _ = linear(target=target, accumulate=3, loss_scale="dynamic")
    for trainer in (plain, scaled):
        trainer.fit(DATA, epochs=2, batch_size=8, **QUIET)
    np.testing.assert_allclose(v.value, w.value, rtol=1e-5)
    bad = {"x": X.copy(), "y": Y}
    bad["x"][3] = np.inf
    history = scaled.fit(bad, epochs=1, batch_size=8, shuffle=False, **QUIET)
    assert history["skipped"] == pytest.approx([1 / 3])
    assert np.isfinite(v.value).all()


# ---- phases --------------------------------------------------------------------------


def game(target, **options):
    """Two players, each with a loss of its own: p minimises p q + p^2, q (p - q)^2."""
    with sg.Graph() as graph:
        x = sg.input("x", ("batch",))
        p, q = (sg.parameter(np.float32(v), name=n) for n, v in (("p", 1), ("q", 2)))
        first = sg.mean(x) * p * q + p * p
        second = (p - q) ** 2 + 0 * sg.mean(x)
    phases = [(first, sg.optim.SGD(0.1), p), (second, sg.optim.Momentum(0.2), [q])]
    return sg.Trainer(phases, target=target, **options), p, q, graph


@both
@pytest.mark.parametrize("accumulate", [1, 2])
def test_each_loss_leaves_out_its_own_batches(target, accumulate):
    """The second loss takes the logarithm of 4, 0 and 1 in three batches."""
    x = sg.input("x", ("batch",))
    p, q = (sg.parameter(np.float32(1), name=n) for n in "pq")
    phases = {
        "one": (sg.mean(x) * p, sg.optim.SGD(0.0), p),
        "other": (sg.log(sg.mean(x)) * q, sg.optim.SGD(0.0), q),
    }
    trainer = sg.Trainer(
        phases, target=target, accumulate=accumulate, on_nonfinite="skip"
    )
    data = {"x": np.float32([4, 4, 0, 0, 1])}
    history = trainer.fit(data, batch_size=2, shuffle=False, **QUIET)
    assert history["one_loss"] == pytest.approx(9 / 5)
    assert history["other_loss"] == pytest.approx(2 * np.log(4) / 3)
    assert history["one_skipped"] == 0
    assert history["other_skipped"] == pytest.approx(1 / (3 if accumulate == 1 else 2))


@both
def test_later_phases_see_earlier_updates(target):
    trainer, p, q, _ = game(target)
    reported = trainer.step(x=np.ones(2))
    assert reported == {"loss_1": 3.0, "loss_2": pytest.approx((0.6 - 2) ** 2)}
    assert p.value == pytest.approx(1 - 0.1 * (2 + 2))
    assert q.value == pytest.approx(2 - 0.2 * 2 * (2 - 0.6))
    history = trainer.fit({"x": np.ones(8)}, batch_size=3, epochs=2, **QUIET)
    assert history.keys() == {"loss_1", "loss_2"}
    assert trainer.evaluate({"x": np.ones(8)}).keys() == {"loss_1", "loss_2"}


def test_phases_in_the_compiled_loop_equal_those_in_python():
    values = []
    for target in TARGETS:
        trainer, p, q, _ = game(target, loss_scale="dynamic", on_nonfinite="skip")
        history = trainer.fit(
            {"x": X[:, 0]}, batch_size=8, epochs=3, early_stopping=9, **QUIET
        )
        values.append((p.value, q.value, history["loss_1"], history["skipped_2"]))
    for left, right in zip(*values, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)


def test_phases_have_names():
    with sg.Graph():
        w, v = (sg.parameter(np.float32(1), name=n) for n in "wv")
        phases = {
            "critic": (w * w, sg.optim.SGD(0.1), w),
            "actor": (v * w, sg.optim.SGD(0.1), v),
        }
    trainer = sg.Trainer(phases)
    assert trainer.step().keys() == {"critic_loss", "actor_loss"}
    trainer.learning_rate = 0.5
    assert [o.learning_rate for o in trainer.optimizers] == [0.5, 0.5]


@both
def test_an_error_in_a_later_phase_says_what_is_applied(target):
    with sg.Graph():
        x = sg.input("x", ("batch",))
        p, q = (sg.parameter(np.float32(1), name=n) for n in "pq")
        phases = [(p * p, sg.optim.SGD(0.25), p), (sg.mean(x) * q, sg.optim.SGD(1), q)]
    trainer = sg.Trainer(phases, target=target)
    with pytest.raises(sg.NonFiniteError, match=r"in phase 2; phase 1 of it applied"):
        trainer.step(x=np.float32([np.nan]))
    assert (p.value, q.value) == (0.5, 1)
    with pytest.raises(
        sg.NonFiniteError,
        match=r"step 1.*phase 1 of it applied|phase 1 of it applied  in step 1",
    ):
        trainer.fit({"x": np.float32([np.nan])}, **QUIET)


@both
def test_updates_of_a_graph_happen_once_in_the_phase_that_computes_them(target):
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", 2))
        left, right = sg.nn.BatchNorm1d(2), sg.nn.BatchNorm1d(2)
        phases = [
            (sg.mean(left(x) ** 2), sg.optim.SGD(0.1), left.parameters()),
            (sg.mean(right(x + 1) ** 2), sg.optim.SGD(0.1), right.parameters()),
        ]
    trainer = sg.Trainer(phases, target=target)
    trainer.step(x=X[:, :2])
    mean = 0.1 * X[:, :2].mean(0)
    np.testing.assert_allclose(left.running_mean.value, mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(right.running_mean.value, mean + 0.1, rtol=1e-4)
    assert len(graph.updates) == 4


@both
def test_phases_are_saved(target, tmp_path):
    trainer, p, q, _ = game(target)
    trainer.fit({"x": np.ones(4)}, epochs=3, **QUIET)
    trainer.save(tmp_path / "file")
    other, r, s, _ = game(target)
    other.load(tmp_path / "file")
    for each in (trainer, other):
        each.fit({"x": np.ones(4)}, epochs=1, **QUIET)
    assert (p.value, q.value) == (r.value, s.value)


# ---- several losses, one step --------------------------------------------------------


@both
def test_several_gradients_in_one_executable(target):
    with sg.Graph():
        x = sg.input("x", ("batch",))
        w = sg.parameter(np.float32([1, 2]), name="w")
        first, second = sg.mean(x) * w[0] ** 2, sg.sum(w) ** 2
        grads = [sg.grad(loss, w) for loss in (first, second)]
        pairs = sg.optim.SGD(0.1).updates(0.5 * grads[0] + 2.0 * grads[1], w)
    f = sg.compile({"each": grads}, updates=pairs, mode="train", target=target)
    one, two = f(np.ones(3))["each"]
    assert (one.tolist(), two.tolist()) == ([2, 0], [6, 6])
    np.testing.assert_allclose(w.value, [1 - 0.1 * 13, 2 - 0.1 * 12], rtol=1e-6)


# ---- messages ------------------------------------------------------------------------


W = sg.parameter(np.float32(1), name="w")
SGD = sg.optim.SGD(0.1)
REFUSED = [
    ({"accumulate": 0}, "accumulate of at least 1, got 0"),
    ({"check_finite": "all"}, "check_finite 'loss', 'gradients' or None, got 'all'"),
    ({"on_nonfinite": "stop"}, "on_nonfinite 'raise', 'skip' or 'replace', got 'stop'"),
    ({"on_nonfinite": "skip", "check_finite": None}, "requires something to check"),
    ({"on_nonfinite": "replace", "loss_scale": 2.0}, "that overflow to be skipped"),
    ({"loss_scale": -1.0}, "loss_scale to be an sg.amp.LossScale"),
    ({"loss_scale": "static"}, "loss_scale to be an sg.amp.LossScale"),
    ({"clip": 1.0}, "requires clip=sg.optim.clip_by_global_norm"),
    ({"clip": [1.0]}, "requires clip=sg.optim.clip_by_global_norm"),
]


@pytest.mark.parametrize(("options", "match"), REFUSED)
def test_messages(options, match):
    with pytest.raises(sg.GraphError, match=match):
        sg.Trainer(W * W, SGD, **options)


PHASES = [
    ([(W * W, SGD, W), (W * W, SGD, W)], {}, "parameters of their own, got 'w'"),
    ([(W * W,)], {}, "phases as \\(loss, optimizer, parameters\\)"),
    ([(W * W, 0.1, W)], {}, "an optimizer in phase 1, got 0.1"),
    ([(W * W, SGD), (W, SGD, [])], {"loss_scale": sg.amp.LossScale()}, "of one loss"),
]


@pytest.mark.parametrize(("phases", "options", "match"), PHASES)
def test_messages_of_phases(phases, options, match):
    with pytest.raises(sg.GraphError, match=match):
        sg.Trainer(phases, **options)
