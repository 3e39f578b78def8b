"""One process that computes cases in one library; started by conv.py.

It reads lines of JSON: case, pass, seconds, and where to write the result (or null). It
answers with the seconds of each layout. It ends with its input. With one thread the
seconds are those of the processor, so that what else the machine does does not count.
"""

import argparse
import importlib
import json
import sys
import time

from benchmarks import machine
from benchmarks.clock import per_run


def main() -> None:
    """Answer lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    machine.pin(options.threads)
    cases = importlib.import_module("benchmarks.images.cases").CASES
    engine = importlib.import_module(options.module)
    np = importlib.import_module("numpy")
    known: dict = {}
    clock = time.process_time if options.threads == 1 else time.perf_counter
    for line in sys.stdin:
        ask = json.loads(line)
        key = (ask["case"], ask["pass"])
        if key not in known:
            known.clear()
            known[key] = engine.ways(cases[key[0]], key[1], options.threads)
        found = known[key]
        if ask["result"]:
            np.savez(ask["result"], *(y for _, give in found.values() for y in give()))
        share = ask["seconds"] / len(found)
        answer = {k: per_run(run, share, clock) for k, (run, _) in found.items()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
