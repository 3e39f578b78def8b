"""The machine: its name, versions, one or two cores, and what a core can do."""

import os
import platform
import threading
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from benchmarks.clock import calls, per_run

PACKAGES = ("numba", "numpy", "torch", "jax", "jaxlib", "pytensor", "scipy-openblas32")
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Settings that would slow a library down."""

PEAK_SIZE = 1024
LEAST_BANDWIDTH_BYTES = 1 << 18  # below, a copy's own overhead would be measured


def description() -> dict[str, str]:
    """Processor, cores, Python and versions of what is installed."""
    found = {"cpu": cpu_name(), "cores": str(len(cores())), "system": platform.system()}
    found["python"] = platform.python_version()
    return found | versions()


def versions() -> dict[str, str]:
    """Versions of the packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """The processor's own name."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or platform.machine()
    fields = [line.partition(":") for line in path.read_text().splitlines()]
    found = {key.strip(): value.strip() for key, _, value in reversed(fields)}
    family, model = found.get("cpu family", "?"), found.get("model", "?")
    return f"{found.get('model name', '?')} (family {family}, model {model})"


def cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin(threads: int) -> None:
    """Keep this process to as many cores; before libraries count them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores()[-threads:])


def environment(threads: int, **more: str) -> Mapping[str, str]:
    """The environment of a process that measures with so many threads."""
    kept = {k: v for k, v in os.environ.items() if k not in UNSET}
    openmp = f"openmp={threads > 1},floatX=float32"
    return {
        **kept,
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        "PYTENSOR_FLAGS": openmp,
        "PYTHONWARNINGS": "ignore",
        **more,
    }


def peak_flops(seconds: float) -> float:
    """Float32 flops per second of NumPy's own large product."""
    a, b = (np.ones((PEAK_SIZE, PEAK_SIZE), np.float32) for _ in range(2))
    out = np.empty_like(a)

    def product() -> None:
        np.matmul(a, b, out=out)

    return 2.0 * PEAK_SIZE**3 / per_run(calls(product), seconds)


def bandwidth(moved_bytes: float, threads: int, seconds: float) -> float:
    """Bytes per second read and written by copies that move `moved_bytes` in all."""
    size = int(max(moved_bytes, LEAST_BANDWIDTH_BYTES)) // 2 // threads
    sources = [np.ones(size, np.uint8) for _ in range(threads)]
    targets = [np.empty_like(source) for source in sources]
    alone = per_run(calls(lambda: np.copyto(targets[0], sources[0])), seconds)
    if threads == 1:
        return 2.0 * size / alone
    took = per_run(lambda n: _together(n, targets, sources), seconds)
    # Python's lock makes threads slow where copies are short.
    return 2.0 * size * max(threads / took, 1 / alone)


def _together(count: int, targets: list, sources: list) -> None:
    def copy(target: np.ndarray, source: np.ndarray) -> None:
        for _ in range(count):
            np.copyto(target, source)

    workers = [
        threading.Thread(target=copy, args=pair)
        for pair in zip(targets, sources, strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
