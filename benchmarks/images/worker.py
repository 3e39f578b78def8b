"""One process that computes cases in one library; started by conv.py.

It reads lines of JSON: case, pass, seconds, and where to write the result (or null). It
answers with the seconds of each layout. It ends with its input.
"""

import argparse
import importlib
import json
import sys

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
        answer = {layout: per_run(run, share) for layout, (run, _) in found.items()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
