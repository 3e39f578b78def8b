"""PyTensor compiled by Numba."""

from benchmarks.engines import pytensor_function
from benchmarks.engines.runner import Runner
from benchmarks.workloads.workload import Arrays, Workload

MODE = "NUMBA"


def warm_up() -> None:
    """Its compiler's first use."""
    pytensor_function.warm_up(MODE)


def prepare(workload: Workload, p: Arrays, d: Arrays, threads: int) -> Runner:
    """Threads follow OMP_NUM_THREADS and PYTENSOR_FLAGS."""
    return pytensor_function.prepare(workload, p, d, MODE)
