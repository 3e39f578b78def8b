"""Arenas: of the example graphs, of random graphs and of random sets of buffers."""

import random
import time

import numpy as np

import staticgrad as sg
from benchmarks.graphs import EXAMPLES, layers
from benchmarks.lowered import Lowered, lowered
from benchmarks.tables import duration, ratio, size, table
from staticgrad.compiler.codegen.loops.loop_source import kernel_source
from staticgrad.compiler.codegen.text_emitter import canonical
from staticgrad.compiler.kernel_ir.kernels import LoopKernel
from staticgrad.compiler.memory import planner
from staticgrad.compiler.verify.verify_plan import verify_plan

LEAST_BYTES = 4096
ALLOWED = 1.02  # arena / lower bound, where the arena isn't proven to be the smallest


def main(options) -> dict:
    """Measure and print."""
    found = {
        "examples": examples(),
        "random": random_graphs(options.count),
        "exact": exact_sets(options.count),
        "planning": planning(options.buffers),
        "layers": equal_layers(options.layers),
    }
    print(render(found))
    return found


def render(found: dict) -> str:
    """One table and four sentences."""
    header = (
        "graph", "kernels", "buffers", "arena", "lower bound", "ratio", "proof",
        "unplanned", "unplanned / arena",
    )  # fmt: skip
    rows = found["examples"]
    at_random, exact, speed = found["random"], found["exact"], found["planning"]
    return "\n".join(
        [
            table(header, map(_cells, rows)),
            "",
            f"{at_random['count']} random graphs, buffers >= 4 KB: "
            f"{at_random['proven']} proven the smallest, worst arena / lower bound of "
            f"the others {ratio(at_random['worst'])}, {at_random['above']} above "
            f"{ALLOWED}",
            f"{exact['count']} random sets of at most 12 buffers: {exact['equal']} "
            f"equal to exhaustive search",
            f"{speed['buffers']:,} buffers planned in {duration(speed['seconds'])} "
            f"(the first time in a process {duration(speed['first'])})",
            "different kernels by number of equal layers: "
            + ", ".join(f"{n}: {k} of {all_}" for n, k, all_ in found["layers"]),
        ]
    )


def _cells(row: dict) -> tuple[str, ...]:
    arena = row["arena"]
    return (
        row["name"], str(row["kernels"]), str(row["buffers"]), size(arena),
        size(row["bound"]), ratio(arena / row["bound"] if arena else None),
        row["proof"] or "-", size(row["unplanned"]),
        ratio(row["unplanned"] / arena if arena else None),
    )  # fmt: skip


def examples() -> list[dict]:
    """Arena and bound of each example graph."""
    return [_row(name, lowered(*make())) for name, make in EXAMPLES.items()]


def _row(name: str, graph: Lowered) -> dict:
    plan = planner.plan(graph.schedule, graph.sizes)
    verify_plan(plan)
    return {
        "name": name, "kernels": len(plan.schedule.kernels),
        "buffers": sum(offset >= 0 for offset in plan.offsets),
        "arena": plan.arena_bytes, "bound": plan.lower_bound_bytes,
        "unplanned": plan.unplanned_bytes, "proof": plan.proof,
    }  # fmt: skip


def random_graphs(count: int) -> dict:
    """Compare random graphs with gradients to the lower bound."""
    rng = random.Random(0)
    rows = [_row("random", lowered(*random_graph(rng))) for _ in range(count)]
    open_ones = [r["arena"] / r["bound"] for r in rows if not r["proof"]]
    return {
        "count": count,
        "proven": count - len(open_ones),
        "worst": max(open_ones, default=1.0),
        "above": sum(found > ALLOWED for found in open_ones),
    }


def random_graph(rng: random.Random):
    """Products and sums of matrices of at least 4 KB, in any order, with a gradient."""
    with sg.Graph() as graph:
        rows = 16 * rng.randint(2, 8)
        values = [sg.input("x", (rows, 32 * rng.randint(1, 8)))]
        weights = []
        for number in range(rng.randint(3, 20)):
            x = rng.choice(values[-4:])
            columns = 32 * rng.randint(1, 8)
            if rng.random() < 0.3 and len(values) > 2:
                columns = int(values[-1].shape[1])
            shape = (int(x.shape[1]), columns)
            weight = sg.parameter(np.zeros(shape, np.float32), name=f"w{number}")
            weights.append(weight)
            y = sg.tanh(x @ weight)
            alike = [v for v in values if v.shape == y.shape]
            values.append(y * rng.choice(alike) if alike else y)
        loss = sum((sg.mean(v * v) for v in values[-2:]), sg.constant(0.0))
        grads = sg.grad(loss, weights, unused="zero")
    return graph.inputs, [loss, *grads], (), {}


def exact_sets(count: int) -> dict:
    """Count how often the planner equals a search through all orders."""
    rng = random.Random(1)
    equal = 0
    for _ in range(count):
        lives = few_lives(rng, rng.randint(1, 12))
        units, first, last = lives
        found = planner.arrange([64 * unit for unit in units], first, last)
        equal += found.arena_bytes == 64 * smallest(*lives)
    return {"count": count, "equal": equal}


def few_lives(rng: random.Random, count: int):
    """Sizes, first and last steps."""
    units = [rng.randint(1, 9) for _ in range(count)]
    first = [rng.randint(0, 9) for _ in range(count)]
    return units, first, [step + rng.randint(0, 5) for step in first]


def smallest(units, first, last) -> int:
    """The smallest arena: all orders, each buffer as low as those before it allow."""
    best, bound = sum(units), planner.live_peak(units, first, last)
    stack, seen = [()], set()
    while stack and best > bound:
        placed = stack.pop()
        top = max((offset + units[b] for b, offset in placed), default=0)
        if top >= best or frozenset(placed) in seen:
            continue
        seen.add(frozenset(placed))
        if len(placed) == len(units):
            best = top
            continue
        for b in set(range(len(units))) - {b for b, _ in placed}:
            stack.append((*placed, (b, lowest(b, placed, units, first, last))))
    return best


def lowest(b, placed, units, first, last) -> int:
    """The lowest place for buffer `b` beside the placed ones that live with it."""
    low = 0
    for other, offset in sorted(placed, key=lambda pair: pair[1]):
        apart = last[other] < first[b] or last[b] < first[other]
        if not apart and offset < low + units[b]:
            low = max(low, offset + units[other])
    return low


def planning(buffers: int) -> dict:
    """The time to plan many buffers, which do not reach the bound at once."""
    rng = random.Random(2)
    first = [rng.randint(0, buffers) for _ in range(buffers)]
    last = [rng.randint(step, buffers) for step in first]
    sizes = [int(LEAST_BYTES * 2 ** rng.uniform(0, 8)) for _ in range(buffers)]
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        planner.arrange(sizes, first, last)
        seconds.append(time.perf_counter() - start)
    return {"buffers": buffers, "first": seconds[0], "seconds": min(seconds)}


def equal_layers(most: int) -> list[tuple[int, int, int]]:
    """(layers, different kernels, kernels) of a network of equal layers."""
    found = []
    for count in sorted({2, 3, 5, most // 2, most}):
        kernels = lowered(*layers(count)).schedule.kernels
        loops = [k for k in kernels if isinstance(k, LoopKernel)]
        texts = {canonical(kernel_source(k).text) for k in loops}
        found.append((count, len(texts), len(kernels)))
    return found
