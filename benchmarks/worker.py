"""One process that measures one workload in one engine; started by steps.py.

It prints a line of JSON when it is ready and one for each line that it reads, which is
the number of seconds to measure. It ends with its input.
"""

import argparse
import importlib
import json
import sys
import time

from benchmarks import machine
from benchmarks.clock import calls, per_run

CHECKED_STEPS = 3


def main() -> None:
    """Prepare, let others check, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("module")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--result", help="where to write what is to be checked")
    options = parser.parse_args()
    machine.pin(options.threads)
    serve(options, answer=print_json)


def print_json(value: dict) -> None:
    """One line, at once."""
    print(json.dumps(value), flush=True)


def serve(options, answer) -> None:
    """Everything that is imported here starts with the cores that it may use."""
    np = importlib.import_module("numpy")
    engine = importlib.import_module(options.module)
    workload = importlib.import_module("benchmarks.workloads").ALL[options.workload]
    parameters, data = workload.arrays(options.scale)
    engine.warm_up()
    start = time.perf_counter()
    runner = engine.prepare(workload, parameters, data, options.threads)
    runner.step()
    runner.wait()
    first_call = time.perf_counter() - start
    runner.reset()
    for _ in range(CHECKED_STEPS if workload.trains else 1):
        runner.step()
    runner.wait()
    np.savez(options.result, *runner.result())
    answer({"first_call": first_call})
    for line in sys.stdin:
        answer(measured(runner, float(line)))


def measured(runner, seconds: float) -> dict:
    """Seconds per step of a call from Python and in the loop, from first values."""
    step, wait = calls(runner.step), runner.wait

    def many(count: int) -> None:
        step(count)
        wait()

    runner.reset()
    found = {"call": per_run(many, seconds), "loop": None}
    if runner.loop is not None:
        runner.reset()
        found["loop"] = per_run(runner.loop, seconds)
    return found


if __name__ == "__main__":
    main()
