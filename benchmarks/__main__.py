"""The command line: ``python -m benchmarks [steps|chain|memory|compile|calls|...]``.

Every command prints tables; with ``--json`` what was measured is kept under results/.
"""

import argparse

from benchmarks import (
    ablation,
    accuracy,
    beside,
    budget,
    chain,
    compiling,
    contrast,
    conv,
    derivatives,
    draws,
    gemm,
    imports,
    indexing,
    launches,
    loops,
    machine,
    memory,
    own,
    results,
    steps,
)
from benchmarks.ablated import PATHS
from benchmarks.images.cases import CASES
from benchmarks.workloads import ALL

COMMANDS = {
    "steps": steps.main,
    "scan": loops.main,
    "chain": chain.main,
    "memory": memory.main,
    "compile": compiling.main,
    "calls": launches.main,
    "gemm": gemm.main,
    "conv": conv.main,
    "indexing": indexing.main,
    "derivatives": derivatives.main,
    "accuracy": accuracy.main,
    "contrast": contrast.main,
    "random": draws.main,
    "budget": budget.main,
    "own": own.main,
    "imports": imports.main,
    "beside": beside.main,
    "ablation": ablation.main,
}


def parsed(words: list[str] | None) -> argparse.Namespace:
    """The options; without a command it is steps."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("command", nargs="?", choices=COMMANDS, default="steps")
    add = parser.add_argument
    add("names", nargs="*", metavar="name", help="workloads, or functions")
    add("--json", action="store_true", help="keep the figures under results/")
    add("--against", metavar="REV", help="compare with the figures of a commit")
    add("--threads", type=int, nargs="+", default=[1, 2], help="steps: 1 2")
    add("--rounds", type=int, default=5, help="steps and compile: alternating rounds")
    add("--seconds", type=float, default=0.3, help="per measurement")
    add("--scale", type=float, default=1.0, help="of the workloads' sizes")
    add("--lengths", type=int, nargs="+", help="chain: links")
    add("--count", type=int, default=200, help="memory: random graphs and sets")
    add("--buffers", type=int, default=1000, help="memory: buffers to be planned")
    add("--layers", type=int, default=20, help="memory: equal layers")
    add("--step", type=int, default=1, help="accuracy: every so many bit patterns")
    add("--chart", metavar="PATH", help="contrast: draw it there")
    add("--elements", type=int, default=100_000, help="calls: of a function")
    add("--cpu", help="ablation: compile for this processor, as LLVM calls it")
    options = parser.parse_args(words)
    known = {
        "accuracy": accuracy.NAMES, "conv": CASES, "ablation": PATHS,
    }.get(options.command, ALL)  # fmt: skip
    names = options.names[options.command == "beside" :]  # the first is a checkout
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"unknown name {unknown[0]!r}; known: {', '.join(known)}")
    return options


def main(words: list[str] | None = None) -> None:
    """Run a command."""
    options = parsed(words)
    then = results.read(options.against) if options.against else None
    about = machine.description()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    found = COMMANDS[options.command](options)
    if then is not None and options.command == "steps":
        print(f"\nagainst {then['commit']}")
        print(results.compare_steps(found, then.get("steps", [])))
    if options.json:
        print(f"kept in {results.write(options.command, found)}")


if __name__ == "__main__":
    main()
