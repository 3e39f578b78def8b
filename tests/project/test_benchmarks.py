"""The benchmarks run: every table with tiny sizes, without peers."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import staticgrad as sg
from benchmarks import __main__ as command
from benchmarks import (
    ablated,
    budget,
    chain,
    compiling,
    conv,
    derivatives,
    draws,
    functions,
    indexing,
    launches,
    machine,
    memory,
    own,
    results,
    steps,
    tables,
)
from benchmarks.clock import calls, per_run
from benchmarks.engines import ENGINES, ours
from benchmarks.processes import WorkerError, reason
from benchmarks.workloads import ALL
from staticgrad.compiler.compile import PASSES

SCALE = 0.02


@pytest.fixture(autouse=True)
def _threads_as_before():
    before = sg.get_num_threads()
    yield
    sg.set_num_threads(before)


def test_every_workload_learns_or_computes():
    for workload in ALL.values():
        p, d = workload.arrays(SCALE)
        runner = ours.prepare(workload, p, d, 1)
        runner.step()
        after = runner.result()
        assert all(np.isfinite(array).all() for array in after)
        if workload.trains:
            assert any((a != b).any() for a, b in zip(after, p.values(), strict=True))
            runner.reset()
            back = zip(runner.result(), p.values(), strict=True)
            assert all((a == b).all() for a, b in back)
        assert workload.moved_bytes(p, d) > 0 <= workload.flops(p, d)


def test_an_engine_runs_what_is_written_for_its_library():
    able = {e for e in ENGINES if steps.can_run(e, ALL["carries"])}
    assert able == {"staticgrad", "jax"}
    assert all(steps.can_run(e, ALL["rosenbrock"]) for e in ENGINES)


def test_rosenbrock_gradient_is_the_known_one():
    workload = ALL["rosenbrock"]
    x = np.array([0.5, 2.0, -1.0], np.float32)
    (found,) = [ours.prepare(workload, {"x": x}, {}, 1)][0].result()
    low, high = x[:-1], x[1:]
    expected = np.zeros(3)
    expected[:-1] = -400 * low * (high - low**2) - 2 * (1 - low)
    expected[1:] += 200 * (high - low**2)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_steps_of_one_workload():
    rows = steps.measure(
        ["mlp-tiny"], (1,), 1, 0.01, SCALE, ["staticgrad"], progress=str
    )
    (row,) = rows
    assert row.call["staticgrad"] > 0 < row.loop["staticgrad"]
    assert row.floor > 0
    assert row.ratio("call") is None
    assert "mlp" not in steps.render(rows).lower()  # no peer: not shown


def row_with_peers():
    row = steps.Row("mlp-tiny", 1, 1e-7)
    row.call = {"staticgrad": 2e-6, "jax": 20e-6, "pytensor c": 7e-6}
    row.loop = {"staticgrad": 0.2e-6, "jax": 1.9e-6}
    row.first_call = {"staticgrad": 1.0, "jax": 0.5, "pytensor c": 3.0}
    return row


def test_a_row_names_the_best_peer_and_the_goals():
    row = row_with_peers()
    assert row.best_peer() == "jax"
    assert row.ratio("loop") == pytest.approx(9.5)
    assert row.ratio("call") == pytest.approx(3.5)
    text = steps.render([row])
    assert "loop 6 ok, call 3 ok" in text
    assert "2.00" in text
    row.call["pytensor c"] = 5e-6
    assert "call 3 MISSED" in steps.render([row])


def test_what_two_threads_gain():
    one, two = row_with_peers(), row_with_peers()
    two.threads, two.loop = 2, {"staticgrad": 0.1e-6}
    assert "against one: mlp-tiny 2.00" in steps.render([one, two])


def test_results_that_differ_are_noticed():
    workload = ALL["logistic"]
    p, d = workload.arrays(SCALE)
    ran = ours.prepare(workload, p, d, 1)
    ran.step()
    good = ran.result()
    off = [good[0] + 0.01 * (good[0] - p["w"]), good[1]]
    assert steps.difference(workload, good, good, SCALE) == 0
    assert steps.difference(workload, good, off, SCALE) == pytest.approx(0.01, rel=0.1)
    bad = [good[0] * np.nan, good[1]]
    assert steps.difference(workload, good, bad, SCALE) == np.inf


def test_what_is_slow_and_far_behind_is_measured_once():
    assert not steps.hopeless(None, None, 0.1)
    assert not steps.hopeless(0.01, 0.001, 0.1)
    assert not steps.hopeless(1.0, 0.5, 0.1)
    assert steps.hopeless(3.0, 0.5, 0.1)


def test_a_worker_that_fails_tells_why():
    with pytest.raises(WorkerError, match="KeyError"):
        steps.Worker("no such workload", "staticgrad", 1, 1.0)
    assert reason("a\nValueError: wrong\n  hint\n") == "ValueError: wrong"
    assert reason("killed\n") == "killed"


def test_chain(monkeypatch):
    monkeypatch.setenv("STATICGRAD_CACHE_DIR", "kept")
    with chain.empty_cache():
        pass
    assert machine.os.environ["STATICGRAD_CACHE_DIR"] == "kept"
    row = chain.measure(5)
    assert row["nodes"] == 16
    assert "per link" in chain.render([row])


def test_memory_of_random_graphs_and_sets():
    found = {
        "examples": [memory._row("MLP", memory.lowered(*memory.layers(3)))],
        "random": memory.random_graphs(2),
        "exact": memory.exact_sets(5),
        "planning": memory.planning(50),
        "layers": memory.equal_layers(4),
    }
    assert found["exact"]["equal"] == 5
    assert found["random"]["above"] == 0
    assert "planned in" in memory.render(found)


def test_equal_layers_share_kernels():
    (_, few, _), (_, many, _) = memory.equal_layers(8)[-2:]
    assert many <= few + 1


def test_a_chain_under_budgets():
    rows = budget.measure(12, 8, 4096, 0.002)
    assert rows[1]["arena"] <= rows[0]["arena"] // 2
    assert rows[-1].keys() & {"refused", "time"}
    assert "none" in budget.render(rows)


def test_random_numbers():
    rows = draws.measure(64, 0.002)
    assert [row["name"] for row in rows] == [" ".join(row) for row in draws.ROWS]
    assert "geometric mean" in draws.render(rows)


def test_calls_and_functions():
    found = launches.measure(0.002)
    assert all(seconds >= 0 for seconds in found.values())
    assert found["bound call, small"] < found["call, small"] * 2
    rows = functions.measure(64, 0.002)
    assert [row["name"] for row in rows] == list(functions.NAMES)
    assert "geometric mean" in functions.render(rows)


@pytest.mark.slow
def test_compile_time_by_stage():
    found = compiling.measure("mlp-tiny", SCALE, 1)
    text = compiling.render("mlp-tiny", found)
    assert all(cached for _, cached, _ in found["warm"]["kernels"])
    assert not all(cached for _, cached, _ in found["cold"]["kernels"])
    assert "load the machine" in text
    assert "total beyond imports" in text


def test_machine():
    assert "numba" in machine.description()
    assert machine.bandwidth(1000, 2, 0.001) > 0
    assert machine.peak_flops(0.001) > 0
    assert not set(machine.UNSET) & machine.environment(1).keys()


def test_clock_takes_the_least():
    assert per_run(calls(lambda: sum(range(1000))), 0.01) < 1e-3


def test_tables_are_aligned():
    text = tables.table(("a", "bb"), [("long", "1"), ("x", "22")])
    assert text.splitlines()[2:] == ["long   1", "x     22"]
    assert tables.duration(2.5) == "2.5 s"
    assert tables.ratio(None) == "-"


def test_results_are_kept_by_commit(tmp_path):
    if not results.FOLDER.parent.parent.joinpath(".git").exists():
        return
    path = results.write("steps", [{"x": 1}], tmp_path)
    results.write("chain", [], tmp_path)
    kept = json.loads(path.read_text())
    assert kept["steps"] == [{"x": 1}]
    assert kept["chain"] == []
    assert results.read("HEAD", tmp_path) == kept
    with pytest.raises(SystemExit, match="requires results"):
        results.read("HEAD", tmp_path / "none")


def test_two_commits_are_compared():
    old, new = row_with_peers(), row_with_peers()
    new.call["staticgrad"] = 1e-6
    text = results.compare_steps(steps.as_json([new]), steps.as_json([old]))
    assert "2.00" in text
    assert "1.00" in text


def test_command_line(capsys):
    command.main(["chain", "--lengths", "2"])
    assert "per link" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.parsed(["steps", "nothing"])
    assert "unknown name" in capsys.readouterr().err


def test_it_runs_as_a_module():
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"],
        capture_output=True, text=True, cwd=root, check=True,
    )  # fmt: skip
    assert "--against" in done.stdout


def test_operations_of_ones_own():
    rows = own.measure(0.002, 0.001, 1)
    assert [row["case"] for row in rows[:4]] == [
        "function of numbers", "its gradient", "function of arrays", "pure_callback"
    ]  # fmt: skip
    assert all(row["ours"] > 0 for row in rows)
    assert len(own.render(rows).splitlines()) == len(rows) + 2


def test_indexing():
    rows = indexing.measure(0.002, 0.001, {"numpy": np})
    assert len(rows) > 10
    assert all(row["ours"] > 0 for row in rows)
    # NumPy gives the same wherever it has the computation: all but two
    assert sum("numpy" not in row for row in rows) == 2
    text = indexing.render(rows)
    assert "top 8 of 1,000" in text
    assert "met" in text


def test_derivatives():
    rows = derivatives.counts(0.01)
    assert all(row["found"] <= row["goal"] for row in rows)
    for row in derivatives.products_with_vectors(1, 0.002, 0.1):
        assert row["product"] > 0 < row["gradient"]
    for row in derivatives.matrices(0.002, 0.02):
        assert row["ours"] > 0


def test_convolutions_alone(monkeypatch, capsys):
    monkeypatch.setattr(conv, "installed", lambda _: ["staticgrad"])
    words = ["conv", "f", "pool1", "--threads", "1", "--rounds", "1"]
    command.main([*words, "--seconds", "0.02"])
    shown = capsys.readouterr().out
    assert "f 32x3x32x32 32@3x3 s2" in shown
    assert shown.count("pool1") == 2


def test_convolutions_against_a_peer():
    entry = {
        "case": "c",
        "pass": "forward",
        "seconds": {"staticgrad": {"first": 2.0, "last": 1.0}, "jax": {"last": 3.0}},
    }
    assert conv.against(entry) == 3.0
    assert "geometric mean 3.00" in conv.summary([entry], convolutions=True)
    assert conv.summary([entry], convolutions=False) == ""


@pytest.mark.parametrize("path", ablated.PATHS.values(), ids=list(ablated.PATHS))
def test_what_switches_a_special_path_off_exists(path, monkeypatch):
    for name, change in path.off:
        module, _, attribute = name.rpartition(".")
        now = getattr(importlib.import_module(module), attribute)
        assert change(now) != now
    known = {*ALL, *ablated.PRODUCTS}
    assert all(w in known or w.startswith("product ") for w in path.workloads)


def test_a_pass_can_be_left_out():
    without = dict(ablated.PATHS["folded updates"].off)
    (change,) = without.values()
    assert len(change(PASSES)) == len(PASSES) - 1


@pytest.mark.slow
def test_the_gain_of_a_path_and_another_checkout_are_measured(capsys):
    root = str(Path(__file__).resolve().parents[2])
    options = ["--rounds", "1", "--seconds", "0.01", "--threads", "1"]
    command.main(["ablation", "small products by rows and dots", *options])
    command.main(["beside", root, "mlp-tiny", *options])
    text = capsys.readouterr().out
    assert "product NN 16 16 4" in text
    assert "after / before" in text
