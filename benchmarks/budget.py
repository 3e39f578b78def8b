"""``python -m benchmarks budget``: time against memory of nets of equal blocks.

A chain of linear and tanh, residual blocks of two linear layers, and blocks of a
transformer are trained with SGD under smaller and smaller budgets; each step is timed
in turns with the step without a budget. The arena holds activations, cotangents and
scratch; parameters are not in it, and gradients are consumed at once.
"""

import argparse
from collections.abc import Callable

import numpy as np

import staticgrad as sg
from benchmarks import machine
from benchmarks.clock import alternating
from benchmarks.tables import duration, table
from staticgrad.errors import MemoryBudgetError

LAYERS, WIDTH, BATCH = 64, 256, 256
TIME, HEADS = 64, 4
SHARES = (1 / 2, 1 / 3, 1 / 5, 1 / 6, 1 / 8)

Block = Callable[[sg.Tensor, int], sg.Tensor]


def main(options: argparse.Namespace) -> dict:
    """Measure and print."""
    machine.pin(1)
    found = {}
    for name, net, layers in NETS:
        found[name] = measure(layers, WIDTH, BATCH, options.seconds, net)
        print(f"\n{layers} blocks ({name}) of {WIDTH}, batch {BATCH}, one thread")
        print(render(found[name]))
    return {"budget": found}


def _chained(h: sg.Tensor, width: int) -> sg.Tensor:
    return sg.tanh(sg.nn.Linear(width, width)(h))


def _residual(h: sg.Tensor, width: int) -> sg.Tensor:
    return h + sg.nn.Linear(width, width)(_chained(h, width))


def _transformer(h: sg.Tensor, width: int) -> sg.Tensor:
    """Sequences of TIME rows each."""
    h = sg.reshape(h, (-1, TIME, width))
    h = h + sg.nn.MultiHeadAttention(width, HEADS)(sg.nn.LayerNorm(width)(h))
    inner = sg.nn.gelu(sg.nn.Linear(width, 4 * width)(sg.nn.LayerNorm(width)(h)))
    return sg.reshape(h + sg.nn.Linear(4 * width, width)(inner), (-1, width))


NETS = (
    ("chain", _chained, LAYERS),
    ("residual", _residual, 16),
    ("transformer", _transformer, 6),
)


def measure(
    layers: int, width: int, batch: int, seconds: float, block: Block = _chained
) -> list[dict]:
    """Arena and seconds per step, without a budget and with shares of the arena."""
    sg.set_num_threads(1)
    plain = _step(block, layers, width, batch, None)
    arena = plain.memory.arena_bytes
    data = dict(zip("xy", np.zeros((2, batch, width), np.float32), strict=True))
    rows = [{"budget": None, "arena": arena, "again": 0, "time": 1.0}]
    for share in SHARES:
        budget = int(arena * share)
        try:
            lean = _step(block, layers, width, batch, budget)
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


def _step(block: Block, layers: int, width: int, batch: int, budget: int | None):
    with sg.Graph(seed=0) as graph:
        x, y = sg.input("x", (batch, width)), sg.input("y", (batch, width))
        h = x
        for _ in range(layers):
            h = block(h, width)
        loss = sg.mean((h - y) ** 2)
    parameters = graph.parameters
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
