"""Saved trainers: round trips, other trainers, broken files, atomic replacement."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import staticgrad as sg
from staticgrad.train import saving

RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.standard_normal((50, 4)).astype(np.float32),
    "y": RNG.integers(0, 3, 50),
}


def make_trainer(hidden=5, optimizer=None, seed=0):
    with sg.Graph(seed=seed):
        x = sg.input("x", ("batch", 4))
        y = sg.input("y", ("batch",), dtype="int64")
        model = sg.nn.Sequential(
            sg.nn.Linear(4, hidden),
            sg.nn.Tanh(),
            sg.nn.Dropout(0.2),
            sg.nn.Linear(hidden, 3),
        )
        loss = sg.nn.cross_entropy(model(x), y)
    optimizer = optimizer or sg.optim.Adam(0.01)
    return sg.Trainer(loss, optimizer=optimizer), model


def values(model):
    return [p.value for p in model.parameters().values()]


def fit(trainer, epochs=2):
    return trainer.fit(DATA, epochs=epochs, batch_size=16, progress=False)


def test_a_loaded_trainer_goes_on_as_the_saved_one(tmp_path):
    first, model = make_trainer()
    fit(first)
    first.save(tmp_path / "a.safetensors")
    second, other = make_trainer(seed=9)
    second.load(tmp_path / "a.safetensors")
    assert all(map(np.array_equal, values(model), values(other)))
    history = fit(first), fit(second)
    assert np.array_equal(history[0]["loss"], history[1]["loss"])
    assert all(map(np.array_equal, values(model), values(other)))


def test_parameters_are_saved_under_their_own_names(tmp_path):
    trainer, model = make_trainer()
    trainer.save(tmp_path / "a")
    saved = load_file(tmp_path / "a")
    for name, parameter in model.parameters().items():
        assert np.array_equal(saved[name], parameter.value)
    others = {name for name in saved if ":" in name}
    assert "state:random_stream" in others
    assert "optimizer:learning_rate" in others


def test_the_learning_rate_is_saved(tmp_path):
    first, second = make_trainer()[0], make_trainer()[0]
    first.learning_rate = 0.125
    first.save(tmp_path / "a")
    second.load(tmp_path / "a")
    assert second.learning_rate == 0.125


def test_a_trainer_with_other_leaves_is_refused_and_unchanged(tmp_path):
    make_trainer()[0].save(tmp_path / "a")
    for trainer, model in (
        make_trainer(hidden=6),
        make_trainer(optimizer=sg.optim.SGD(0.1)),
    ):
        before = values(model)
        with pytest.raises(sg.GraphError, match="load requires"):
            trainer.load(tmp_path / "a")
        assert all(map(np.array_equal, before, values(model)))


def test_files_of_another_kind_are_refused(tmp_path):
    trainer, _ = make_trainer()
    (tmp_path / "text").write_text("not a safetensors file")
    save_file({"w": np.zeros(2)}, tmp_path / "plain")
    with pytest.raises(sg.GraphError, match="safetensors file"):
        trainer.load(tmp_path / "text")
    with pytest.raises(sg.GraphError, match="trainer.save wrote"):
        trainer.load(tmp_path / "plain")
    with pytest.raises(FileNotFoundError, match="save requires a folder, got none at"):
        trainer.save(tmp_path / "nowhere" / "file")
    with pytest.raises(IsADirectoryError, match="requires a file, got the folder"):
        trainer.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="none at"):
        trainer.load(tmp_path / "missing")


def test_a_truncated_file_is_refused(tmp_path):
    trainer, _ = make_trainer()
    trainer.save(tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(content[: len(content) // 2])
    with pytest.raises(sg.GraphError, match="safetensors file"):
        trainer.load(tmp_path / "a")


def test_saving_replaces_the_file_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "a"
    saving.write(path, {"w": np.arange(3)}, {"n": 1})
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk is full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk is full"):
        saving.write(path, {"w": np.arange(4)}, {"n": 2})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_arrays_of_every_rank_and_facts_come_back(tmp_path):
    arrays = {
        "scalar": np.float64(3), "empty": np.zeros((0, 2), np.float32),
        "words": np.arange(4, dtype=np.uint32), "strided": np.arange(6)[::2],
    }  # fmt: skip
    facts = {"text": "é", "list": [1, None, 0.1]}
    saving.write(tmp_path / "a", arrays, facts)
    read, read_facts = saving.read(tmp_path / "a")
    assert read_facts == json.loads(json.dumps(facts))
    for name, array in arrays.items():
        assert np.array_equal(read[name], array)
        assert (read[name].shape, read[name].dtype) == (array.shape, array.dtype)
