"""One process that measures one workload with or without one special path.

Started by ablation.py: prints a line of JSON when it is ready and one for each line
that it reads, which is the number of seconds to measure.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import machine
from benchmarks.clock import per_run
from benchmarks.worker import print_json


@dataclass(frozen=True, slots=True)
class SpecialPath:
    """A special path: what it is, how it is switched off, where it should gain.

    `off` are pairs of a dotted name and a function from the thing of that name to what
    takes its place.
    """

    about: str
    off: tuple[tuple[str, Callable[[Any], object]], ...]
    workloads: tuple[str, ...]


def _answering(value: object) -> Callable[[Any], object]:
    return lambda _: lambda *_arguments, **_keywords: value


def _without(stage: str) -> Callable[[Any], object]:
    """A tuple of the compiler's stages without one."""
    return lambda stages: tuple(s for s in stages if s.run.__name__ != stage)


COMPILE = "staticgrad.compiler.compile"
GEMM = "staticgrad.compiler.gemm"
PRODUCTS = (
    "product NN 16 16 4", "product NN 16 16 16", "product NN 32 32 32",
    "product NT 32 32 32", "product TN 32 32 32", "product NN 64 64 64",
)  # fmt: skip

PATHS = {
    "small products": SpecialPath(
        "one call computes a small product, without the driver of tiles",
        (
            (f"{GEMM}.tile_driver.describe_small", _answering(False)),
            (f"{GEMM}.tile_driver.small_kernel", _answering(None)),
        ),
        (*PRODUCTS, "mlp-tiny", "mlp-deep", "lstm"),
    ),
    "small products by rows and dots": SpecialPath(
        "the kernels of small products that are not made of tiles",
        ((f"{GEMM}.small_products._kernel", _answering(None)),),
        (*PRODUCTS[:4], "mlp-tiny"),
    ),
    "product epilogues": SpecialPath(
        "updates and what follows a product run between the terms of its tiles",
        ((f"{COMPILE}.SCHEDULE_PASSES", _without("fuse_into_products")),),
        ("mlp-wide", "mlp-wide-adam", "mlp-deep", "transformer"),
    ),
    "what follows a product": SpecialPath(
        "elementwise loops behind a product, other than updates, run between its terms",
        ((f"{GEMM}.product_epilogues._followed", _answering(None)),),
        ("mlp-wide", "mlp-deep", "transformer"),
    ),
    "folded updates": SpecialPath(
        "a step of plain descent is a product that adds to the weights",
        ((f"{COMPILE}.PASSES", _without("fold_updates")),),
        ("mlp-deep", "mlp-wide", "mlp-tiny"),
    ),
}


def switched_off(path: SpecialPath) -> None:
    """Replace what the path is made of."""
    for name, change in path.off:
        module, _, attribute = name.rpartition(".")
        owner = importlib.import_module(module)
        setattr(owner, attribute, change(getattr(owner, attribute)))


def _product(words: list[str]) -> Callable[[int], None]:
    """One call of a product for each count: kind, m, n, k."""
    gemm = importlib.import_module("benchmarks.gemm")
    kind, *sizes = words
    case = gemm.Case((kind, *map(int, sizes), 1), "float32")
    return lambda count: case.run(len(case.ways) - 1, count)


def _steps(workload: str) -> Callable[[int], None]:
    engine = importlib.import_module("benchmarks.engines.ours")
    found = importlib.import_module("benchmarks.workloads").ALL[workload]
    engine.warm_up()
    runner = engine.prepare(found, *found.arrays(1.0), 1)
    runner.step()
    runner.wait()
    runner.reset()
    if runner.loop is not None:
        return runner.loop

    def many(count: int) -> None:
        for _ in range(count):
            runner.step()
        runner.wait()

    return many


def main() -> None:
    """Prepare, then measure as often as asked."""
    path, workload, state = sys.argv[1:]
    machine.pin(1)
    if state == "off":
        switched_off(PATHS[path])
    first, *rest = workload.split()
    run = _product(rest) if first == "product" else _steps(workload)
    run(1)
    print_json({"ready": True})
    for line in sys.stdin:
        print_json({"seconds": per_run(run, float(line))})


if __name__ == "__main__":
    main()
