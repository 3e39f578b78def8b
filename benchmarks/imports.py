"""``python -m benchmarks imports``: the processor time of an import in a fresh process.

User and system time of the whole process, the least over rounds in which the libraries
take turns. The files are in the page cache by the second round.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import subprocess
import sys

from benchmarks import machine
from benchmarks.tables import table

LIBRARIES = ("numpy", "numba", "staticgrad", "jax", "torch", "pytensor")
LEAST_ROUNDS = 5


def processor_seconds(code: str) -> float:
    """User and system time of a Python that runs `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=machine.environment(1))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user = after.ru_utime - before.ru_utime
    return user + after.ru_stime - before.ru_stime


def measured(names: list[str], rounds: int) -> dict[str, float]:
    """The least processor time of importing each."""
    found = dict.fromkeys(names, float("inf"))
    for _ in range(rounds):
        for name in names:
            found[name] = min(found[name], processor_seconds(f"import {name}"))
    return found


def main(options: argparse.Namespace) -> dict[str, float]:
    """Print the table."""
    names = [name for name in LIBRARIES if importlib.util.find_spec(name)]
    found = measured(names, max(options.rounds, LEAST_ROUNDS))
    rows = [
        (name, f"{seconds * 1e3:.0f}", f"{seconds / found['numba']:.2f}")
        for name, seconds in found.items()
    ]
    print(table(("import", "processor ms", "x numba"), rows))
    return found
