"""``python -m benchmarks beside CHECKOUT [workload ...]``: this checkout and another.

The steps of both are measured in turns, in processes of their own, so that what else
the machine does hits both alike; the least over all rounds counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.processes import Worker
from benchmarks.tables import duration, ratio, table
from benchmarks.workloads import ALL


def measured(
    name: str, threads: int, other: Path, options: argparse.Namespace
) -> dict[str, float | str | int]:
    """Seconds a step of a workload in the other checkout and in this one."""
    both = [
        Worker(name, "staticgrad", threads, options.scale, *root)
        for root in ((other,), ())
    ]
    for number in range(options.rounds):
        for worker in both if number % 2 else reversed(both):
            worker.measure(options.seconds)
    least = [
        min(t for t in (worker.best("loop"), worker.best("call")) if t is not None)
        for worker in both
    ]
    first = [worker.first_call for worker in both]
    for worker in both:
        worker.close()
    return {
        "workload": name, "threads": threads, "before": least[0], "after": least[1],
        "first before": first[0], "first after": first[1],
    }  # fmt: skip


def main(options: argparse.Namespace) -> list[dict]:
    """Print the table; a ratio below 1 is faster than the other checkout."""
    other, *names = options.names
    rows = []
    for name in names or list(ALL):
        for threads in options.threads:
            rows.append(measured(name, threads, Path(other).resolve(), options))
            print(_line(rows[-1]), flush=True)
    header = ("workload", "threads", "before", "after", "after / before", "first call")
    print(table(header, map(_cells, rows)))
    return rows


def _line(row: dict) -> str:
    quotient = ratio(row["after"] / row["before"])
    return f"  {row['workload']}, {row['threads']} threads: {quotient}"


def _cells(row: dict) -> tuple[str, ...]:
    return (
        row["workload"], str(row["threads"]), duration(row["before"]),
        duration(row["after"]), f"{row['after'] / row['before']:.3f}",
        f"{row['first after'] / row['first before']:.2f}",
    )  # fmt: skip
