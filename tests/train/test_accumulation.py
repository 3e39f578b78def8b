"""Groups of micro-batches: pooled statistics, bad batches, phases, all as one batch."""

import numpy as np
import pytest
from stop_cells import CountingCell

import staticgrad as sg

RNG = np.random.default_rng(1)
X = RNG.normal(2, 3, (50, 4)).astype("f4")
QUIET = {"progress": False}

both = pytest.mark.parametrize("target", ["cpu", "reference"])


def normed(uses=1, shape=("batch", 4), norm=sg.nn.BatchNorm1d, **options):
    """A Trainer of a linear layer on a batch norm, used so often, and the norm."""
    with sg.Graph(seed=0):
        x = sg.input("x", shape)
        layer = norm(4)
        parts = [layer(x * (n + 1.0)) for n in range(uses)]
        loss = sg.mean((parts[-1] * sg.parameter(np.ones(1, "f4"), name="w")) ** 2)
        metrics = {f"m{n}": sg.mean(part) for n, part in enumerate(parts)}
    return sg.Trainer(loss, sg.optim.SGD(0.01), metrics=metrics, **options), layer


def statistics(layer):
    return np.stack([layer.running_mean.value, layer.running_var.value])


# ---- pooled statistics ---------------------------------------------------------------


@both
@pytest.mark.parametrize(("micro", "count"), [(5, 4), (8, 3), (7, 2), (50, 4), (3, 20)])
def test_pooled_statistics_are_those_of_the_whole_batch(target, micro, count):
    """With 50 samples most groups are cut short, and so is their last batch."""
    whole, one = normed(target=target)
    parts, many = normed(target=target, accumulate=count, pool_statistics=True)
    whole.fit({"x": X}, epochs=2, batch_size=micro * count, **QUIET)
    parts.fit({"x": X}, epochs=2, batch_size=micro, **QUIET)
    np.testing.assert_allclose(statistics(many), statistics(one), rtol=2e-6)


def test_a_layer_that_is_used_twice_moves_twice_a_group():
    whole, one = normed(uses=2)
    parts, many = normed(uses=2, accumulate=5, pool_statistics=True)
    whole.fit({"x": X}, batch_size=25, **QUIET)
    parts.fit({"x": X}, batch_size=5, **QUIET)
    np.testing.assert_allclose(statistics(many), statistics(one), rtol=2e-6)


def test_pooled_statistics_of_images():
    images = X.reshape(-1, 4, 1, 1) + RNG.normal(size=(50, 4, 3, 2)).astype("f4")
    shape = ("batch", 4, 3, 2)
    whole, one = normed(shape=shape, norm=sg.nn.BatchNorm2d)
    parts, many = normed(
        shape=shape, norm=sg.nn.BatchNorm2d, accumulate=3, pool_statistics=True
    )
    whole.fit({"x": images}, batch_size=24, **QUIET)
    parts.fit({"x": images}, batch_size=8, **QUIET)
    np.testing.assert_allclose(statistics(many), statistics(one), rtol=2e-6)


def test_pooled_variances_survive_a_large_mean():
    far = {"x": X + np.float32(3e3)}
    parts, layer = normed(accumulate=10, pool_statistics=True)
    parts.fit(far, batch_size=5, **QUIET)
    want = 0.9 + 0.1 * far["x"].astype(float).var(axis=0, ddof=1)
    np.testing.assert_allclose(layer.running_var.value, want, rtol=1e-4)


@both
def test_pooled_statistics_move_with_the_update(target):
    trainer, layer = normed(target=target, accumulate=2, pool_statistics=True)
    trainer.step(x=X[:10])
    np.testing.assert_array_equal(statistics(layer), [[0] * 4, [1] * 4])
    trainer.step(x=X[10:30])
    np.testing.assert_allclose(layer.running_mean.value, X[:30].mean(0) / 10, rtol=1e-5)


def test_without_pooling_statistics_move_with_every_batch():
    trainer, layer = normed(accumulate=2)
    trainer.step(x=X[:10])
    np.testing.assert_allclose(layer.running_mean.value, X[:10].mean(0) / 10, rtol=1e-5)


@both
def test_saved_with_half_a_group_of_statistics(target, tmp_path):
    options = {"target": target, "accumulate": 2, "pool_statistics": True}
    (whole, one), (half, _), (rest, other) = (normed(**options) for _ in range(3))
    for trainer in (whole, half):
        trainer.step(x=X[:10])
    half.save(tmp_path / "file")
    rest.load(tmp_path / "file")
    for trainer in (whole, rest):
        trainer.step(x=X[10:20])
    np.testing.assert_array_equal(statistics(other), statistics(one))


# ---- what is not finite --------------------------------------------------------------


@both
def test_a_group_with_a_bad_loss_is_skipped(target):
    bad = X.copy()
    bad[2, 1] = np.nan
    trainer, layer = normed(
        target=target, accumulate=2, pool_statistics=True, on_nonfinite="skip"
    )
    before = statistics(layer)
    trainer.step(x=X[:5])
    assert trainer.step(x=bad[:5])["skipped"] == 1
    np.testing.assert_array_equal(statistics(layer), before)
    trainer.step(x=X[:5])
    assert trainer.step(x=X[5:10])["skipped"] == 0
    np.testing.assert_allclose(layer.running_mean.value, X[:10].mean(0) / 10, rtol=1e-5)


# ---- several phases ------------------------------------------------------------------


def players(target="cpu", first=None, **options):
    """A critic and a generator of two parameters each; both losses see the batch."""
    with sg.Graph(seed=0) as graph:
        x = sg.input("x", ("batch", 4))
        c = sg.parameter(np.float32([0.1, -0.2, 0.3, 0.2]), name="c")
        g = sg.parameter(np.float32([1.0, 0.5, -1.0, 2.0]), name="g")
        critic = sg.mean((x @ c) ** 2 - sg.tanh(x * g) @ c)
        generator = sg.mean(sg.tanh(x * g) @ c) + sg.mean(g * g) / 10
    phases = {
        "critic": (critic, first or sg.optim.Adam(0.05), c),
        "generator": (generator, sg.optim.Momentum(0.1), g),
    }
    return sg.Trainer(phases, target=target, **options), graph


def values(trainer, graph):
    return {leaf.name: leaf.value for leaf in graph.stored}


def assert_close(found, expected, rtol=2e-5):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, err_msg=name)


@both
@pytest.mark.parametrize(("micro", "count"), [(5, 4), (8, 3), (7, 2), (50, 4), (3, 20)])
def test_phases_over_groups_equal_phases_over_whole_batches(target, micro, count):
    """Tails too: 50 samples are no multiple of most groups, nor of their batches."""
    whole, one = players(target)
    parts, many = players(target, accumulate=count)
    valid = {"x": X[:13]}
    wanted = whole.fit(
        {"x": X}, epochs=3, batch_size=micro * count, validation=valid, **QUIET
    )
    found = parts.fit({"x": X}, epochs=3, batch_size=micro, validation=valid, **QUIET)
    assert_close(values(parts, many), values(whole, one))
    assert_close(found, wanted)


@both
def test_steps_of_phases_update_when_the_group_is_full(target):
    whole, one = players(target, clip=sg.optim.clip_by_value(9.0))
    parts, many = players(target, accumulate=3, clip=sg.optim.clip_by_value(9.0))
    for start in (0, 20):
        wanted = whole.step(x=X[start : start + 20])
        before = values(parts, many)
        reused = np.empty((5, 4), np.float32)
        for first in (start, start + 5):
            reused[...] = X[first : first + 5]
            assert parts.step(x=reused).keys() == {"critic_loss"}
        reused[...] = np.nan
        assert_close(values(parts, many), before, rtol=0)
        found = parts.step(x=X[start + 10 : start + 20])
        assert found.keys() == wanted.keys()
        assert found["generator_loss"] == pytest.approx(wanted["generator_loss"], 1e-4)
        assert_close(values(parts, many), values(whole, one))


def test_the_compiled_loop_of_groups_equals_the_loop_in_python():
    found = []
    for target in ("cpu", "reference"):
        trainer, graph = players(
            target, sg.optim.SGD(sg.optim.exponential(0.05, 0.9)), accumulate=3
        )
        history = trainer.fit({"x": X}, epochs=2, batch_size=8, record="step", **QUIET)
        assert history["critic_loss"].shape == history["generator_loss"].shape == (14,)
        assert history["critic_learning_rate"].shape == (2,)
        found.append((history, values(trainer, graph)))
    assert_close(found[0][0], found[1][0])
    assert_close(found[0][1], found[1][1])


@both
def test_steps_end_a_group_of_phases(target):
    whole, one = players(target)
    parts, many = players(target, accumulate=4)
    whole.fit({"x": X[:30]}, batch_size=30, shuffle=False, **QUIET)
    parts.fit({"x": X}, steps=3, batch_size=10, shuffle=False, **QUIET)
    assert_close(values(parts, many), values(whole, one))


@pytest.mark.parametrize("polls", range(8))
def test_a_run_of_groups_is_stopped_saved_and_resumed(polls, monkeypatch, tmp_path):
    fit = {"epochs": 2, "batch_size": 8, **QUIET}
    whole, one = players("reference", accumulate=3)
    expected = whole.fit({"x": X}, **fit)
    first, _ = players("reference", accumulate=3)
    with monkeypatch.context() as patch:
        patch.setattr("staticgrad.train.interrupt.Cell", lambda _: CountingCell(polls))
        with pytest.raises(KeyboardInterrupt):
            first.fit({"x": X}, **fit)
    first.save(tmp_path / "stopped")
    second, graph = players("reference", accumulate=3)
    second.load(tmp_path / "stopped")
    assert_close(second.fit({"x": X}, **fit, resume=True), expected, rtol=0)
    assert_close(values(second, graph), values(whole, one), rtol=0)


@both
def test_a_failing_later_phase_goes_on_where_it_failed(target):
    """The first phase of the group is applied once."""
    bad = X.copy()
    bad[5, 2] = np.nan
    fit = {"batch_size": 4, "shuffle": False, **QUIET}
    with sg.Graph():
        x = sg.input("x", ("batch", 4))
        c = sg.parameter(np.zeros(4, "f4"), name="c")
        g = sg.parameter(np.ones(4, "f4"), name="g")
        critic = sg.mean((c - 1) ** 2) + 0 * sg.mean(sg.nan_to_num(x))
        generator = sg.mean(g * x + c)
    trainer = sg.Trainer(
        [(critic, sg.optim.SGD(1.0), c), (generator, sg.optim.SGD(1.0), g)],
        target=target, accumulate=2,
    )  # fmt: skip
    with pytest.raises(sg.NonFiniteError, match="in phase 2; phase 1 of it applied"):
        trainer.fit({"x": bad}, **fit)
    np.testing.assert_array_equal(c.value, np.full(4, 0.5, "f4"))
    trainer.fit({"x": X}, **fit, resume=True)
    want = 1 - np.stack([X[i : i + 8].mean(0) for i in range(0, 50, 8)]).sum(0) / 4
    np.testing.assert_allclose(g.value, want, rtol=1e-4, atol=1e-5)


@both
def test_steps_of_phases_are_saved_between_the_batches_of_a_group(target, tmp_path):
    (whole, one), (half, _), (rest, other) = (
        players(target, accumulate=3) for _ in range(3)
    )
    for trainer in (whole, half):
        trainer.step(x=X[:5])
        trainer.step(x=X[5:15])
    half.save(tmp_path / "file")
    rest.load(tmp_path / "file")
    assert whole.step(x=X[15:20]) == rest.step(x=X[15:20])
    assert_close(values(rest, other), values(whole, one), rtol=0)


def test_what_steps_left_is_an_update_before_a_fit():
    whole, one = players()
    parts, many = players(accumulate=3)
    whole.step(x=X[:10])
    parts.step(x=X[:4])
    parts.step(x=X[4:10])
    fit = {"shuffle": False, **QUIET}
    whole.fit({"x": X[:30]}, batch_size=15, **fit)
    parts.fit({"x": X[:30]}, batch_size=5, **fit)
    assert_close(values(parts, many), values(whole, one))


def test_statistics_of_a_critic_are_pooled_over_its_group():
    def made(**options):
        with sg.Graph(seed=0):
            x = sg.input("x", ("batch", 4))
            norm = sg.nn.BatchNorm1d(4)
            c = sg.parameter(np.ones(4, "f4"), name="c")
            g = sg.parameter(np.ones(4, "f4"), name="g")
            critic, generator = sg.mean((norm(x) @ c) ** 2), sg.mean(x @ g) ** 2
        phases = [(critic, sg.optim.SGD(0.1), c), (generator, sg.optim.SGD(0.1), g)]
        return sg.Trainer(phases, **options), norm

    (whole, one), (parts, many) = made(), made(accumulate=4, pool_statistics=True)
    whole.fit({"x": X}, epochs=2, batch_size=20, **QUIET)
    parts.fit({"x": X}, epochs=2, batch_size=5, **QUIET)
    np.testing.assert_allclose(statistics(many), statistics(one), rtol=2e-6)


@both
def test_what_steps_left_is_an_update_before_a_run_goes_on(target):
    (whole, one), (parts, many) = players(target), players(target, accumulate=2)
    fit = {"shuffle": False, **QUIET}
    for trainer, size in ((whole, 20), (parts, 10)):
        trainer.fit({"x": X[:20]}, batch_size=size, **fit)
        trainer.step(x=X[:5])
        for more in ({"epochs": 3, "resume": True}, {"epochs": 1}):
            trainer.fit({"x": X[:20]}, batch_size=size, **fit, **more)
    assert_close(values(parts, many), values(whole, one))
