"""Time against nodes: a chain of ``h = tanh(h) * 0.9 + x`` with its gradient.

Whatever grows faster than linearly with the size of a graph shows here.
"""

import os
import tempfile
import time
from contextlib import contextmanager

import numpy as np

import staticgrad as sg
from benchmarks.clock import calls, per_run
from benchmarks.engines import ours
from benchmarks.tables import duration, table

LENGTHS = (10, 100, 1_000, 10_000)
ELEMENTS = 100


def measure(links: int) -> dict[str, float]:
    """Seconds by stage, nodes and kernels of one chain."""
    start = time.perf_counter()
    with sg.Graph():
        x = sg.input("x", (ELEMENTS,))
        h = x
        for _ in range(links):
            h = sg.tanh(h) * 0.9 + x
        loss = sg.sum(h)
        built = time.perf_counter()
        gradient = sg.grad(loss, x)
    differentiated = time.perf_counter()
    f = sg.compile([loss, gradient], inputs=[x])
    compiled = time.perf_counter()
    data = np.linspace(-1, 1, ELEMENTS, dtype=np.float32)
    f(x=data)
    end = time.perf_counter()
    code = f.target.code
    return {
        "links": links, "nodes": 3 * links + 1, "build": built - start,
        "differentiate": differentiated - built, "compile": compiled - differentiated,
        "first_run": end - compiled, "total": end - start,
        "run": per_run(calls(f.bind(x=data)), 0.1), "kernels": len(code.loops),
        "different": len({native.address for native in code.natives}),
    }  # fmt: skip


def render(rows: list[dict[str, float]]) -> str:
    """The table; "per link" should stay the same."""
    header = (
        "links", "nodes", "build", "differentiate", "compile", "first run", "total",
        "per link", "later runs", "kernels", "different",
    )  # fmt: skip
    return table(header, map(_cells, rows))


def _cells(row: dict[str, float]) -> tuple[str, ...]:
    stages = ("build", "differentiate", "compile", "first_run", "total")
    return (
        f"{row['links']:,}", f"{row['nodes']:,}",
        *(duration(row[stage]) for stage in stages),
        duration(row["total"] / row["links"]), duration(row["run"]),
        str(row["kernels"]), str(row["different"]),
    )  # fmt: skip


@contextmanager
def empty_cache():
    """No kernel is known; to be entered before anything is compiled."""
    before = os.environ.get("STATICGRAD_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STATICGRAD_CACHE_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("STATICGRAD_CACHE_DIR")
            if before is not None:
                os.environ["STATICGRAD_CACHE_DIR"] = before


def main(options) -> list[dict[str, float]]:
    """Measure and print."""
    with empty_cache():
        ours.warm_up()
        rows = [measure(links) for links in options.lengths or LENGTHS]
    print(render(rows))
    return rows
