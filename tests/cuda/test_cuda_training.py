"""Training on the cuda target: through the emulator and the fake driver, as on the cpu.

The data, the sums and the parameters are on the device; graphs are captured once and
replayed. Histories and parameters are those of the cpu target.
"""

import numpy as np
import pytest
from cuda_devices import EmulatedDevice
from fake_cuda import FakeGpu

import staticgrad as sg
from benchmarks.gpu_models import MODELS, classifier, layer_norm
from staticgrad.compiler.cuda.device import using
from staticgrad.ir.graph import topological
from staticgrad.ir.node import Parameter

SAMPLES, BATCH = 22, 8
NEAR = {"rtol": 2e-4, "atol": 2e-5}  # two steps of Adam divide by tiny moments


def data_of(names):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(SAMPLES, 6)).astype("float32")
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    full = {"x": x, "y": y}
    return {name: full[name] for name in names}


def trained(make, target, device=None, **options):
    with sg.Graph(seed=0):
        loss, metrics, optimizer = make()
    with using(device or EmulatedDevice()):
        trainer = sg.Trainer(
            loss, optimizer=optimizer, metrics=metrics, target=target, seed=3
        )
    data = data_of([leaf.name for leaf in trainer._objective.inputs])
    settings = {"epochs": 2, "batch_size": BATCH, "progress": False} | options
    history = trainer.fit(data, validation=data, **settings)
    stored = {name: leaf.value for name, leaf in trainer._stored.items()}
    return trainer, data, history, stored


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], **NEAR, err_msg=name)


@pytest.mark.parametrize("make", MODELS, ids=lambda f: f.__name__)
def test_models_train_in_the_emulator_as_on_the_cpu(make):
    _, _, history, stored = trained(make, "cuda")
    _, _, wanted, wanted_stored = trained(make, "cpu")
    assert_same(history, wanted)
    assert_same(stored, wanted_stored)


@pytest.mark.parametrize("make", MODELS, ids=lambda f: f.__name__)
def test_captured_runs_over_the_fake_driver_equal_the_cpus(make):
    gpu = FakeGpu()
    _, _, history, stored = trained(make, "cuda", gpu.driver())
    _, _, wanted, wanted_stored = trained(make, "cpu")
    assert gpu.errors == []
    assert gpu.library.fake_replays() > 0
    assert_same(history, wanted)
    assert_same(stored, wanted_stored)


def test_orders_of_threads_do_not_matter():
    runs = [trained(classifier, "cuda", EmulatedDevice(seed))[3] for seed in range(3)]
    for other in runs[1:]:
        for name in runs[0]:
            np.testing.assert_array_equal(runs[0][name], other[name], err_msg=name)


def test_values_per_step_and_a_limit_of_steps():
    options = {"record": "step", "steps": 5, "epochs": 3}
    _, _, history, stored = trained(classifier, "cuda", **options)
    _, _, wanted, wanted_stored = trained(classifier, "cpu", **options)
    assert len(history["loss"]) == 5
    assert_same(history, wanted)
    assert_same(stored, wanted_stored)


def test_graphs_of_many_steps_and_few_launches():
    gpu = FakeGpu()
    driver = gpu.driver()
    options = {"batch_size": 1, "epochs": 2, "shuffle": False}
    _, _, history, _ = trained(layer_norm, "cuda", driver, **options)
    _, _, wanted, _ = trained(layer_norm, "cpu", **options)
    assert_same(history, wanted)
    # one graph of 16 steps and one of a single step, for training and for validation
    assert gpu.library.fake_captures() == 4
    assert gpu.library.fake_replays() < 2 * 2 * SAMPLES


def test_one_step_evaluation_and_learning_rate():
    results = {}
    for target in ("cuda", "cpu"):
        trainer, data, _, _ = trained(classifier, target)
        trainer.learning_rate = 0.5
        first = trainer.step(**{name: array[:4] for name, array in data.items()})
        results[target] = first | trainer.evaluate(data, batch_size=5)
    assert_same(results["cuda"], results["cpu"])


def test_callbacks_change_parameters_between_epochs():
    def training(target):
        with sg.Graph(seed=0):
            loss, _, optimizer = layer_norm()
        with using(EmulatedDevice()):
            trainer = sg.Trainer(loss, optimizer=optimizer, target=target)

        def halve(epoch, row):
            scale = trainer._stored["scale"]
            scale.value = scale.value / 2

        return trainer.fit(
            data_of("xy"), epochs=3, batch_size=8, callbacks=halve, progress=False
        )

    assert_same(training("cuda"), training("cpu"))


def test_a_failed_step_changes_nothing_and_is_named():
    trainer, data, _, _ = trained(classifier, "cuda", EmulatedDevice())
    before = {name: leaf.value for name, leaf in trainer._stored.items()}
    bad = {name: array.copy() for name, array in data.items()}
    bad["y"][SAMPLES - 3] = 5
    with pytest.raises(sg.IndexOutOfRange, match=r"got 5 at position 3.*in step 3, ep"):
        trainer.fit(bad, batch_size=8, shuffle=False, progress=False)
    assert trainer._last.steps.value == 2
    after = {name: leaf.value for name, leaf in trainer._stored.items()}
    assert any((before[name] != after[name]).any() for name in before)
    trainer.fit(data, batch_size=8, progress=False)  # the status was cleared


def test_a_loss_that_is_not_finite_stops_the_run():
    trainer, data, _, _ = trained(classifier, "cuda", EmulatedDevice())
    bad = {name: array.copy() for name, array in data.items()}
    bad["x"][9] = np.nan
    with pytest.raises(
        sg.NonFiniteError, match=r"input 'x' holds nan.*step 2, epoch 1"
    ):
        trainer.fit(bad, batch_size=8, shuffle=False, progress=False)
    finite = [np.isfinite(leaf.value).all() for leaf in trainer._stored.values()]
    assert all(finite)


def test_targets_share_parameters():
    with sg.Graph(seed=0):
        x = sg.input("x", ("batch", 6))
        w = sg.parameter(np.ones(6, "float32"), name="w")
        y = sg.sum(x * w, axis=1)
        loss = sg.mean(y * y)
    on_cpu = sg.compile(y, inputs=[x])
    device = EmulatedDevice()
    with using(device):
        trainer = sg.Trainer(loss, optimizer=sg.optim.SGD(0.01), target="cuda")
        on_gpu = sg.compile(y, inputs=[x], target="cuda")
    one = np.ones((1, 6), "float32")
    trainer.step(x=one)
    np.testing.assert_allclose(on_cpu(one), [6 * 0.88], rtol=1e-6)
    w.value = np.zeros(6)
    assert on_gpu(one) == 0
    assert on_cpu(one) == 0
    w.value = np.arange(6)
    assert on_gpu(one) == 15
    trainer.step(x=one)
    np.testing.assert_allclose(w.value, np.arange(6) - 0.3, rtol=1e-6)
    np.testing.assert_allclose(on_cpu(one), [15 - 6 * 0.3], rtol=1e-6)


def test_memory_is_given_back():
    device = EmulatedDevice()
    trained(classifier, "cuda", device)
    import gc

    gc.collect()
    assert len(device.memory) < 4


OPTIONS = {
    "phases": {},
    "phases of groups": {"accumulate": 3},
    "accumulate": {"accumulate": 2},
    "clip": {"clip": sg.optim.clip_by_global_norm(0.1)},
    "skip": {"on_nonfinite": "skip"},
    "scale": {"loss_scale": "dynamic"},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_way_of_updating(option):
    def training(target):
        with sg.Graph(seed=0):
            loss, _, optimizer = layer_norm()
            w, scale = parameters_of(loss)
        given = (loss, optimizer)
        if option.startswith("phases"):
            phases = [
                (loss, sg.optim.SGD(0.1), [w]),
                (loss, sg.optim.SGD(0.2), [scale]),
            ]
            given = (phases,)
        with using(EmulatedDevice()):
            trainer = sg.Trainer(*given, target=target, **OPTIONS[option])
        history = trainer.fit(data_of("xy"), epochs=2, batch_size=8, progress=False)
        return history, {name: leaf.value for name, leaf in trainer._stored.items()}

    for one, other in zip(training("cuda"), training("cpu"), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("record", ["epoch", "step"])
def test_means_leave_out_batches_whose_loss_is_not_finite(record):
    def training(target):
        with sg.Graph(seed=0):
            loss, metrics, optimizer = classifier()
        with using(EmulatedDevice()):
            trainer = sg.Trainer(
                loss, optimizer, metrics=metrics, target=target, on_nonfinite="skip"
            )
        data = data_of("xy")
        data["x"][11, 2] = np.nan
        options = {"epochs": 2, "batch_size": 8, "record": record, "progress": False}
        return trainer.fit(data, **options)

    history = training("cuda")
    assert_same(history, training("cpu"))
    assert (history["skipped"] > 0).any()
    assert np.isnan(history["loss"]).any() == (record == "step")


def test_statistics_pooled_over_a_group():
    def training(target):
        with sg.Graph(seed=0):
            x = sg.input("x", ("batch", 8))
            norm = sg.nn.BatchNorm1d(8)
            loss = sg.mean(sg.tanh(norm(x)) ** 2)
        with using(EmulatedDevice()):
            trainer = sg.Trainer(
                loss, sg.optim.SGD(0.1), accumulate=3, pool_statistics=True,
                target=target,
            )  # fmt: skip
            trainer.fit(data, epochs=2, batch_size=4, progress=False)
        return {name: leaf.value for name, leaf in trainer._stored.items()}

    data = {"x": np.random.default_rng(0).normal(size=(26, 8)).astype(np.float32)}
    assert_same(training("cuda"), training("cpu"))


def parameters_of(loss):
    outputs = [t for node in topological([loss]) for t in node.outputs]
    found = {t.name: t for t in outputs if isinstance(t, Parameter)}
    return found["w"], found["scale"]
