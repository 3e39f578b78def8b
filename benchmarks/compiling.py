"""Compile time by stage, in fresh processes: first use ever, cold, warm.

- first ever: nothing is cached, neither kernels nor the machine and products;
- cold: no kernel is cached, the machine and products are;
- warm: everything is cached.
"""

import json
import subprocess
import sys
import tempfile

from benchmarks import machine
from benchmarks.engines import installed, missing_peers
from benchmarks.processes import ROOT
from benchmarks.tables import duration, table
from benchmarks.workloads import ALL

GOALS = {"first ever": 3.0, "cold": 1.5, "warm": 0.1}
IMPORTS = ("import numba", "numba's first use", "import staticgrad", "arrays")
TWICE = "(again)"


def measure(name: str, scale: float, rounds: int) -> dict:
    """Stages of the three, the best of some rounds, and jax.jit's first call."""
    with tempfile.TemporaryDirectory() as folder:
        found: dict = dict.fromkeys(GOALS)
        for number in range(rounds):
            kernels, numba = f"{folder}/kernels{number}", f"{folder}/numba{number}"
            first = _run(
                name, scale, f"{folder}/first{number}", f"{folder}/first{number}"
            )
            _process(name, scale, folders(kernels, numba), "--what", "once")
            cold = _run(name, scale, kernels, numba)
            warm = _run(name, scale, kernels, numba)
            for kind, new in zip(GOALS, (first, cold, warm), strict=True):
                found[kind] = _better(found[kind], new)
    if "jax" in installed():
        peers = [_process(name, scale, {}, "--what", "jax") for _ in range(rounds)]
        found["jax"] = min(p["stages"]["first call"] for p in peers)
    return found


def total(stages: dict[str, float]) -> float:
    """All but imports, Numba's first use and what is measured twice."""
    counted = (
        seconds
        for name, seconds in stages.items()
        if name not in IMPORTS and not name.endswith(TWICE)
    )
    return sum(counted)


def _better(old: dict | None, new: dict) -> dict:
    return new if old is None or total(new["stages"]) < total(old["stages"]) else old


def _run(name: str, scale: float, kernels: str, numba: str) -> dict:
    return _process(name, scale, folders(kernels, numba))


def folders(kernels: str, numba: str) -> dict[str, str]:
    """Return the folder in which a process keeps compiled code."""
    return {"STATICGRAD_CACHE_DIR": kernels, "NUMBA_CACHE_DIR": numba}


def _process(name: str, scale: float, more: dict[str, str], *flags: str) -> dict:
    done = subprocess.run(
        [
            sys.executable, "-m", "benchmarks.stages", name, "--scale", str(scale),
            *flags,
        ],
        capture_output=True, text=True, cwd=ROOT, env=machine.environment(1, **more),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"benchmarks.stages failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def render(name: str, found: dict) -> str:
    """Stages by kind, kernels, and the peer."""
    stages = list(found["first ever"]["stages"])
    rows = [
        (stage, *(duration(found[kind]["stages"][stage]) for kind in GOALS))
        for stage in stages
    ]
    totals = {kind: total(found[kind]["stages"]) for kind in GOALS}
    rows.append(("total beyond imports", *(duration(totals[kind]) for kind in GOALS)))
    marks = [
        f"{duration(goal)} {'ok' if totals[kind] <= goal else 'MISSED'}"
        for kind, goal in GOALS.items()
    ]
    rows.append(("goal", *marks))
    kernels = [
        (text, "cached" if cached else "compiled", duration(seconds))
        for text, cached, seconds in found["cold"]["kernels"]
    ]
    parts = [
        ALL[name].title,
        table(("stage", *GOALS), rows),
        "",
        table(("kernel, cold", "how", "time"), kernels),
    ]
    if "jax" in found:
        parts.append(f"\nfirst call of jax.jit: {duration(found['jax'])}")
    parts += [f"no peer installed: {p}" for p in missing_peers() if p == "jax"]
    return "\n".join(parts)


def main(options) -> dict:
    """Measure and print."""
    results = {}
    for name in options.names or ["mlp-wide"]:
        results[name] = measure(name, options.scale, options.rounds)
        print(render(name, results[name]))
    return results
