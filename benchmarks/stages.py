"""One fresh process that builds, compiles and runs a workload, timing every stage.

Started by compiling.py; prints one line of JSON. What Python needs once (importing
Numba, its first use) is timed apart. `--what jax` times the first call of jax.jit;
`--what once` compiles only what serves all graphs.
"""

import argparse
import importlib
import json
import time

from benchmarks import machine


class Watch:
    """CPU seconds by stage, each since the stage before.

    What else the machine does takes no part; the process is pinned to one core.
    """

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._last = time.process_time()

    def lap(self, name: str) -> None:
        """End the stage `name`."""
        now = time.process_time()
        self.stages[name] = self.stages.get(name, 0.0) + now - self._last
        self._last = now


def ours(name: str, scale: float) -> dict:
    """Stages of staticgrad, in order."""
    watch = Watch()
    numba = importlib.import_module("numba")
    watch.lap("import numba")
    numba.njit("int64(int64)")(lambda x: x + 1)
    watch.lap("numba's first use")
    importlib.import_module("staticgrad")
    watch.lap("import staticgrad")
    step = importlib.import_module("benchmarks.compiled_step")
    workload = importlib.import_module("benchmarks.workloads").ALL[name]
    arrays = workload.arrays(scale)
    watch.lap("arrays")
    kernels = step.compiled_step(workload, *arrays, watch)
    return {"stages": watch.stages, "kernels": kernels}


def once(name: str, scale: float) -> dict:
    """Only what is compiled once per machine."""
    watch = Watch()
    importlib.import_module("benchmarks.compiled_step").load_all(watch)
    return {"stages": watch.stages, "kernels": []}


def jax(name: str, scale: float) -> dict:
    """The first call of a jitted step, after JAX's own first use."""
    watch = Watch()
    engine = importlib.import_module("benchmarks.engines.jax_jit")
    workload = importlib.import_module("benchmarks.workloads").ALL[name]
    arrays = workload.arrays(scale)
    engine.warm_up()
    watch.lap("import and first use")
    runner = engine.prepare(workload, *arrays, 1)
    runner.step()
    runner.wait()
    watch.lap("first call")
    return {"stages": watch.stages, "kernels": []}


MEASURED = {"ours": ours, "once": once, "jax": jax}


def main() -> None:
    """Measure one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--what", choices=MEASURED, default="ours")
    options = parser.parse_args()
    machine.pin(1)
    print(json.dumps(MEASURED[options.what](options.workload, options.scale)))


if __name__ == "__main__":
    main()
