"""``python -m benchmarks ablation [path ...]``: what each special path gains.

A special path is code that computes what other code computes as well, only faster. For
each path and each workload that is named for it two processes alternate, one with the
path and one without (ablated.py switches it off before anything is compiled). The gain
is the time without over the time with; a path stays if it is at least LEAST_GAIN on one
of its workloads and nowhere below LEAST. ``--cpu haswell`` compiles for another
processor than this one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks import machine
from benchmarks.ablated import PATHS
from benchmarks.processes import Process, WorkerError
from benchmarks.tables import table

LEAST_GAIN = 1.05
LEAST = 0.98  # what noise leaves of 1


class Ablated(Process):
    """One workload with or without one special path; the least over all rounds."""

    def __init__(self, path: str, workload: str, off: bool, cpu: str | None) -> None:
        self._kept = tempfile.TemporaryDirectory()
        compiled_for = {} if cpu is None else {"NUMBA_CPU_NAME": cpu}
        if cpu is not None:
            compiled_for["NUMBA_CPU_FEATURES"] = ""
        environment = machine.environment(
            1, STATICGRAD_CACHE_DIR=str(Path(self._kept.name) / "kernels"),
            **compiled_for,
        )  # fmt: skip
        words = ("benchmarks.ablated", path, workload, "off" if off else "on")
        super().__init__(f"{path} {workload}", words, environment)
        self.read()
        self.best = float("inf")

    def measure(self, seconds: float) -> None:
        """One more round."""
        self.best = min(self.best, self.ask(str(seconds))["seconds"])

    def close(self) -> None:
        """End the process and forget its kernels."""
        super().close()
        self._kept.cleanup()


def gain(path: str, workload: str, options: argparse.Namespace) -> dict:
    """The times of a workload with and without a path, in seconds."""
    both = [Ablated(path, workload, off, options.cpu) for off in (False, True)]
    for round_ in range(options.rounds):
        for one in both if round_ % 2 else reversed(both):
            one.measure(options.seconds)
    for one in both:
        one.close()
    seconds, without = (one.best for one in both)
    return {
        "path": path, "workload": workload, "seconds": seconds, "without": without,
        "gain": without / seconds,
    }  # fmt: skip


def main(options: argparse.Namespace) -> list[dict]:
    """Print the table of gains."""
    names = options.names or list(PATHS)
    found = []
    for path in names:
        for workload in PATHS[path].workloads:
            try:
                found.append(gain(path, workload, options))
            except WorkerError as error:
                print(f"{path}: {error}")
    rows = [
        (r["path"], r["workload"], f"{r['seconds'] * 1e6:.2f}",
         f"{r['without'] * 1e6:.2f}", f"{r['gain']:.3f}")
        for r in found
    ]  # fmt: skip
    cpu = options.cpu or os.environ.get("NUMBA_CPU_NAME") or "this processor"
    print(f"\nspecial paths, compiled for {cpu}, one thread, microseconds")
    print(table(("path", "workload", "with", "without", "gain"), rows))
    for path in names:
        gains = [r["gain"] for r in found if r["path"] == path]
        if gains:
            stays = max(gains) >= LEAST_GAIN and min(gains) >= LEAST
            print(f"{path}: {'stays' if stays else 'does not earn its lines here'}")
    return found
