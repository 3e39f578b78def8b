"""Timing: the least of many short batches."""

import time
from collections.abc import Callable, Mapping

BATCH_SECONDS = 0.01
"""Long beside the clock's resolution, short beside the other work of the machine."""


def per_run(
    run_many: Callable[[int], object],
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds per run: the least over batches, which together take `seconds`.

    ``run_many(n)`` runs n times. `clock` tells the time that a batch takes.
    """
    count = 1
    took = _timed(run_many, count, clock)
    best = took
    while took < BATCH_SECONDS and took < seconds:
        count = max(2 * count, min(int(count * BATCH_SECONDS / (took + 1e-9)), 1 << 20))
        took = _timed(run_many, count, clock)
        best = took / count
    end = time.perf_counter() + seconds - took
    while time.perf_counter() < end:
        best = min(best, _timed(run_many, count, clock) / count)
    return best


def calls(function: Callable[[], object]) -> Callable[[int], object]:
    """``run_many`` for a function that runs once."""

    def run_many(count: int) -> None:
        for _ in range(count):
            function()

    return run_many


def _timed(
    run_many: Callable[[int], object],
    count: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    start = clock()
    run_many(count)
    return clock() - start


def alternating(
    functions: Mapping[str, Callable[[], object]], seconds: float, rounds: int = 5
) -> dict[str, float]:
    """Seconds per call of each, measured in turns: the least over all rounds."""
    found = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            took = per_run(calls(function), seconds / rounds)
            found[name] = min(found[name], took)
    return found
