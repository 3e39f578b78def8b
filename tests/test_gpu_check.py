"""The check for machines with a GPU, in the emulator: it passes, and it notices."""

import json

import numpy as np
import pytest

from benchmarks import gpu_check


def run(tmp_path, *arguments):
    out = tmp_path / "found.json"
    code = gpu_check.main(["--emulate", "--out", str(out), *arguments])
    return code, json.loads(out.read_text())


def test_the_checks_pass_in_the_emulator(tmp_path, capsys):
    code, found = run(tmp_path, "--only", "add", "tanh", "take", "top_k", "reduce_sum")
    assert code == 0, found
    assert found["ops"]["ops"] == 5
    errors = found["training_runs"]["largest relative errors of losses"]
    assert len(errors) == 6
    assert found["surroundings"]["device"] == "emulator"
    assert found["features"]["failed"] == {}
    assert len(found["features"]) == len(gpu_check.GRAPHS) + len(gpu_check.PARTS) + 2


def test_a_wrong_result_is_noticed(tmp_path, capsys, monkeypatch):
    plain = gpu_check.samples_of

    def changed(op):
        inputs, outputs, arrays, wanted = plain(op)
        return (
            inputs,
            outputs,
            arrays,
            [(u, w + np.ones((), w.dtype)) for u, w in wanted],
        )

    monkeypatch.setattr(gpu_check, "samples_of", changed)
    monkeypatch.setattr(gpu_check, "MODELS", [])
    monkeypatch.setattr(gpu_check, "PARTS", [lambda device: 1 / 0])
    monkeypatch.setattr(gpu_check, "GRAPHS", [])
    code, found = run(tmp_path, "--only", "add")
    assert code == 1
    assert set(found["ops"]["failed"]) == {"add launched", "add replayed"}
    assert "ZeroDivisionError" in found["features"]["failed"]["<lambda>"]


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
    assert text in gpu_check.misfit(got, want, 4)
    assert gpu_check.misfit(want, want, 4) is None
