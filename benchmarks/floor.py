"""Lower bounds of a workload's time on this machine, measured beside each row.

``max(flops / peak, bytes / bandwidth)``; peak is that of NumPy's OpenBLAS on a large
product, bandwidth that of copies which move as many bytes as the workload. Time for
transcendental functions is not in it.
"""

import argparse
import json
import subprocess
import sys

from benchmarks import machine
from benchmarks.processes import ROOT
from benchmarks.workloads.workload import Workload


def floor(workload: Workload, threads: int, scale: float, seconds: float) -> float:
    """The least seconds for one step, measured in a process with so many threads."""
    parameters, data = workload.arrays(scale)
    moved = workload.moved_bytes(parameters, data)
    done = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.floor", "--threads", str(threads),
            "--bytes", str(moved), "--seconds", str(seconds),
        ],
        capture_output=True, text=True, cwd=ROOT, check=True,
        env=machine.environment(threads),
    )  # fmt: skip
    found = json.loads(done.stdout)
    flops = workload.flops(parameters, data)
    return float(max(flops / found["peak"], moved / found["bandwidth"]))


def main() -> None:
    """Measure on as many cores as asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bytes", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=0.3)
    options = parser.parse_args()
    machine.pin(options.threads)
    peak = machine.peak_flops(options.seconds)
    bandwidth = machine.bandwidth(options.bytes, options.threads, options.seconds)
    print(json.dumps({"peak": peak, "bandwidth": bandwidth}))


if __name__ == "__main__":
    main()
