"""``python -m benchmarks budget``: time against memory of a chain of equal layers.

64 layers (linear and tanh) are trained with SGD under smaller and smaller budgets; each
step is timed in turns with the step without a budget. The arena holds activations,
cotangents and scratch; parameters are not in it, and gradients are consumed at once.
"""

import argparse

import numpy as np

import staticgrad as sg
from benchmarks import machine
from benchmarks.clock import alternating
from benchmarks.tables import duration, table
from staticgrad.errors import MemoryBudgetError

LAYERS, WIDTH, BATCH = 64, 256, 256
SHARES = (1 / 2, 1 / 3, 1 / 5, 1 / 6, 1 / 8)


def main(options: argparse.Namespace) -> dict:
    """Measure and print."""
    machine.pin(1)
    rows = measure(LAYERS, WIDTH, BATCH, options.seconds)
    print(f"\n{LAYERS} layers of {WIDTH}, batch {BATCH}, one thread")
    print(render(rows))
    return {"budget": rows}


def measure(layers: int, width: int, batch: int, seconds: float) -> list[dict]:
    """Arena and seconds per step, without a budget and with shares of the arena."""
    sg.set_num_threads(1)
    plain = _step(layers, width, batch, None)
    arena = plain.memory.arena_bytes
    data = dict(zip("xy", np.zeros((2, batch, width), np.float32), strict=True))
    rows = [{"budget": None, "arena": arena, "again": 0, "time": 1.0}]
    for share in SHARES:
        budget = int(arena * share)
        try:
            lean = _step(layers, width, batch, budget)
        except MemoryBudgetError as error:
            rows.append({"budget": budget, "refused": str(error)})
            continue
        times = alternating(
            {"plain": plain.bind(**data), "lean": lean.bind(**data)}, seconds
        )
        rows[0]["seconds"] = times["plain"]
        again = len(lean.memory.plan.schedule.again)
        rows.append(
            {"budget": budget, "arena": lean.memory.arena_bytes, "again": again}
            | {"seconds": times["lean"], "time": times["lean"] / times["plain"]}
        )
    return rows


def _step(layers: int, width: int, batch: int, budget: int | None):
    with sg.Graph(seed=0):
        x, y = sg.input("x", (batch, width)), sg.input("y", (batch, width))
        parts = (
            part
            for _ in range(layers)
            for part in (sg.nn.Linear(width, width), sg.nn.Tanh())
        )
        model = sg.nn.Sequential(*parts)
        loss = sg.mean((model(x) - y) ** 2)
    parameters = model.parameters()
    updates = sg.optim.SGD(0.01).updates(sg.grad(loss, parameters), parameters)
    return sg.compile(
        loss, updates=updates, mode="train", memory_budget=budget, finite=[loss]
    )


def render(rows: list[dict]) -> str:
    """The table."""
    header = ("budget", "arena", "smaller", "kernels again", "step", "time x")
    whole = rows[0]["arena"]
    lines = []
    for row in rows:
        budget = f"{row['budget']:,}" if row["budget"] else "none"
        if "refused" in row:
            lines.append((budget, row["refused"], "", "", "", ""))
            continue
        smaller = f"{whole / row['arena']:.2f}"
        time = f"{row['time']:.2f}"
        cells = (str(row["again"]), duration(row.get("seconds")), time)
        lines.append((budget, f"{row['arena']:,}", smaller, *cells))
    return table(header, lines)
