"""``python -m benchmarks contrast``: define-by-run and static, the same five models.

A step of training (loss, gradient, descent) on a tape written for the comparison, in
PyTorch eager where it is installed, and in staticgrad, one thread each. Printed are the
time of a step in a loop, and per step the kernels, the allocations, the bytes that
kernels read and write, and the most bytes alive beside parameters and data. All engines
start from the same parameters, and have the same ones after ten steps. With ``--chart``
the times and bytes are drawn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import staticgrad as sg
from benchmarks import clock, machine
from benchmarks.contrast.engines import Running, eager_torch, on_tape, static
from benchmarks.contrast.models import MODELS, Model
from benchmarks.tables import duration, size, table

CHECKED_STEPS = 10
TOLERANCE = 1e-3
COLUMNS = ("kernels", "allocations", "moved", "peak")


def engines() -> dict[str, Callable[[Model], Running]]:
    """Those that are there."""
    found = {"tape": on_tape}
    if find_spec("torch") is not None:
        found["PyTorch eager"] = eager_torch
    return found | {"staticgrad": static}


def measure(model: Model, seconds: float, rounds: int) -> dict[str, dict]:
    """Return the costs of a step of `model` in each engine."""
    running = {name: make(model) for name, make in engines().items()}
    _check_equal(model, running)
    found = {name: _counted(one) for name, one in running.items()}
    for _ in range(rounds):
        for name, one in running.items():
            took = clock.per_run(one.many, seconds / rounds)
            found[name]["seconds"] = min(took, found[name].get("seconds", np.inf))
    return found


def _check_equal(model: Model, running: dict[str, Running]) -> None:
    """Ten steps lead everywhere to the same parameters."""
    for one in running.values():
        one.many(CHECKED_STEPS)
    results = {name: one.parameters() for name, one in running.items()}
    for name, found in results.items():
        for a, b in zip(found, results["tape"], strict=True):
            apart = np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-6)
            if not apart <= TOLERANCE:
                raise SystemExit(f"{model.name}: {name} is {apart:.1e} off the tape")


def _counted(one: Running) -> dict:
    ledger = one.count()
    return {column: getattr(ledger, column) for column in COLUMNS}


def render(found: dict[str, dict[str, dict]]) -> str:
    """One line per model and engine."""
    header = ("model", "engine", "step", *COLUMNS)
    lines: list[Sequence[object]] = []
    for name, rows in found.items():
        for engine, row in rows.items():
            counts = [size(row[column]) for column in COLUMNS]
            lines.append((name, engine, duration(row["seconds"]), *counts))
            name = ""
    return table(header, lines)


def draw(found: dict[str, dict[str, dict]], path: Path) -> None:
    """Bars for time and for the most bytes alive, both on logarithmic scales."""
    import matplotlib as mpl  # heavy, and not always there

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "staticgrad"
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    names = list(found)
    kinds = list(next(iter(found.values())))
    width = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        places = [
            k + (number - (len(kinds) - 1) / 2) * width for k in range(len(names))
        ]
        times = [found[name][kind]["seconds"] * 1e6 for name in names]
        peaks = [found[name][kind]["peak"] / 1024 for name in names]
        axes[0].barh(places, times, width, label=kind)
        axes[1].barh(places, peaks, width, label=kind)
    titles = ("microseconds per step", "KiB alive beside parameters and data")
    for one, title in zip(axes, titles, strict=True):
        one.set(xscale="log", title=title, yticks=range(len(names)))
        one.set_yticklabels(names if one is axes[0] else [])
        one.invert_yaxis()
        one.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(options: argparse.Namespace) -> dict[str, dict[str, dict]]:
    """Measure, print, and draw if a path is given."""
    machine.pin(1)
    sg.set_num_threads(1)
    found = {
        model.name: measure(model, options.seconds, options.rounds) for model in MODELS
    }
    print(render(found))
    if options.chart:
        draw(found, Path(options.chart))
        print(f"drawn in {options.chart}")
    return found
