"""``python -m benchmarks conv [case ...]``: convolutions and pools against peers.

Three passes of twelve shapes, two of two pools; each library in its better layout, one
process each, measured in turns. Packing kernels is part of our time, and so is bringing
their gradient into the order of parameters. On one thread it is processor time that
counts, on several the clock on the wall.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import machine
from benchmarks.engines import installed
from benchmarks.images.cases import CASES, Case
from benchmarks.processes import ROOT, Process
from benchmarks.tables import duration, geometric_mean, ratio, table

ENGINES = {
    "staticgrad": "benchmarks.images.ours",
    "torch": "benchmarks.images.torch_images",
    "jax": "benchmarks.images.jax_images",
}
GOALS = {True: 1.8, False: 4.0}  # geometric means: convolutions, pools with gradient
TOLERANCE = 1e-5  # of the largest element


class Engine(Process):
    """A library in a process of its own."""

    def __init__(self, name: str, threads: int) -> None:
        worker = ("benchmarks.images.worker", ENGINES[name], "--threads", str(threads))
        super().__init__(name, worker, machine.environment(threads))

    def measure(
        self, case: Case, what: str, seconds: float, result: str | None = None
    ) -> dict[str, float]:
        """Seconds of each layout."""
        ask = {"case": case.name, "pass": what, "seconds": seconds, "result": result}
        return self.ask(json.dumps(ask))


def row(
    engines: list[Engine], case: Case, what: str, rounds: int, seconds: float
) -> dict:
    """The least of all rounds, per library and layout; results are compared first."""
    _compare(engines, case, what)
    best: dict[str, dict[str, float]] = {e.name: {} for e in engines}
    for _ in range(rounds):
        for engine in engines:
            for layout, took in engine.measure(case, what, seconds).items():
                known = best[engine.name].get(layout, math.inf)
                best[engine.name][layout] = min(known, took)
    return {
        "case": case.name, "shape": str(case), "pass": what, "seconds": best,
    }  # fmt: skip


def _compare(engines: list[Engine], case: Case, what: str) -> None:
    wanted: list[np.ndarray] = []
    with tempfile.TemporaryDirectory() as folder:
        for engine in engines:
            path = Path(folder) / f"{engine.name}.npz"
            engine.measure(case, what, 0.0, str(path))
            with np.load(path) as found:
                results = list(found.values())
            wanted = wanted or results
            for got, want in zip(results, wanted, strict=True):
                error = np.abs(got - want).max() / np.abs(want).max()
                if not error <= TOLERANCE:
                    raise RuntimeError(
                        f"{engine.name} requires what ours gives in {case.name} {what},"
                        f" got {error:.1e} of the largest element away"
                    )


def lines(rows: list[dict], peak: float) -> list[tuple[str, ...]]:
    """One line a row: the better layout of each, ratios, distance from the floor."""
    found = []
    for entry in rows:
        case = CASES[entry["case"]]
        best = {name: min(took.values()) for name, took in entry["seconds"].items()}
        ours = best["staticgrad"]
        floor = case.flops / peak
        found.append(
            (
                f"{entry['case']} {entry['shape']}",
                entry["pass"],
                duration(ours),
                *(duration(best.get(peer)) for peer in ("torch", "jax")),
                ratio(against(entry)),
                ratio(ours / floor) if floor else "-",
            )
        )
    return found


def against(entry: dict) -> float | None:
    """Return the speedup of ours over the best peer."""
    best = {name: min(took.values()) for name, took in entry["seconds"].items()}
    ours = best.pop("staticgrad")
    return min(best.values()) / ours if best else None


def summary(rows: list[dict], convolutions: bool) -> str:
    """The geometric mean and the least against the goals."""
    chosen = [
        e
        for e in rows
        if bool(CASES[e["case"]].filters) == convolutions and e["pass"] != "pool"
    ]
    found = [ratio for e in chosen if (ratio := against(e)) is not None]
    if not found:
        return ""
    mean = geometric_mean(found)
    kind = "convolutions" if convolutions else "pools with gradient"
    behind = sum(x < 1 for x in found)
    return (
        f"{kind}: geometric mean {mean:.2f} (goal {GOALS[convolutions]}), "
        f"least {min(found):.2f}, {behind} of {len(found)} behind the best peer"
    )


def peak_flops() -> float:
    """Flops per second of NumPy's product in one process on one core."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.images.peak"],
        capture_output=True, text=True, cwd=ROOT, check=True,
        env=machine.environment(1),
    )  # fmt: skip
    return float(done.stdout)


def main(options: argparse.Namespace) -> dict[str, object]:
    """Measure and print, for each number of threads."""
    found: dict[str, object] = {}
    chosen = [CASES[name] for name in options.names or CASES]
    for threads in options.threads:
        engines = [Engine(name, threads) for name in installed(ENGINES)]
        rows = []
        for case in chosen:
            for what in case.passes:
                rows.append(
                    row(engines, case, what, options.rounds, options.seconds / 2)
                )
        for engine in engines:
            engine.close()
        peak = threads * peak_flops()
        print(f"\n{threads} threads, peak {peak / 1e9:.0f} GF/s (NumPy's product)")
        header = ("case", "pass", "ours", "torch", "jax", "best / ours", "x floor")
        print(table(header, lines(rows, peak)))
        for convolutions in (True, False):
            print(summary(rows, convolutions))
        found[str(threads)] = {"peak": peak, "rows": rows}
    return found
