"""The check for machines with a GPU, in the emulator: it passes, and it notices."""

import json

import numpy as np
import pytest
from cuda_devices import EmulatedDevice

import staticgrad as sg
from benchmarks import gpu


def run(tmp_path, *arguments):
    out = tmp_path / "found.json"
    code = gpu.main(["--emulate", "--out", str(out), *arguments])
    return code, json.loads(out.read_text())


def test_the_checks_pass_in_the_emulator(tmp_path, capsys):
    code, found = run(tmp_path, "--only", "add", "tanh", "take", "top_k", "reduce_sum")
    assert code == 0, found
    assert found["ops"]["ops"] == 5
    errors = found["training_runs"]["largest relative errors of losses"]
    assert len(errors) == 6
    assert found["surroundings"]["device"] == "emulator"
    assert found["features"]["failed"] == {}
    assert len(found["features"]) == len(gpu.GRAPHS) + len(gpu.PARTS) + 2


def test_a_wrong_result_is_noticed(tmp_path, capsys, monkeypatch):
    plain = gpu.samples_of

    def changed(op):
        inputs, outputs, arrays, wanted = plain(op)
        return (
            inputs,
            outputs,
            arrays,
            [(u, w + np.ones((), w.dtype)) for u, w in wanted],
        )

    monkeypatch.setattr(gpu, "samples_of", changed)
    monkeypatch.setattr(gpu, "MODELS", [])
    monkeypatch.setattr(gpu, "PARTS", [lambda device: 1 / 0])
    monkeypatch.setattr(gpu, "GRAPHS", [])
    code, found = run(tmp_path, "--only", "add")
    assert code == 1
    assert set(found["ops"]["failed"]) == {"add launched", "add replayed"}
    assert "ZeroDivisionError" in found["features"]["failed"]["<lambda>"]


def test_a_feature_that_is_nan_is_noticed(monkeypatch):
    def undefined():
        x = sg.input("x", (2,))
        return [sg.log(x)], [x], [np.float32([-1, 1])]

    monkeypatch.setattr(gpu, "PARTS", [])
    monkeypatch.setattr(gpu, "GRAPHS", [undefined])
    assert set(gpu.features(None, EmulatedDevice())["failed"]) == {"undefined"}


def test_parts_past_the_budget_are_left_out(tmp_path, capsys):
    code, found = run(tmp_path, "--budget", "0")
    assert code == 0
    assert found["ops"] == "left out: over the budget"


@pytest.mark.parametrize(
    ("got", "want", "text"),
    [
        (np.float32([1]), np.float64([1]), "float32"),
        (np.int64([1]), np.int64([2]), "other integers"),
        (np.float32([np.nan]), np.float32([1]), "NaN or infinity"),
        (np.float32([1.1]), np.float32([1]), "units"),
    ],
)
def test_misfits(got, want, text):
    assert text in gpu.misfit(got, want, 4)
    assert gpu.misfit(want, want, 4) is None
