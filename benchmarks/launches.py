"""Costs of calls: from Python, of the machine's instructions, of parallel launches."""

from functools import partial

import numpy as np

import staticgrad as sg
from benchmarks import machine, peers
from benchmarks.clock import calls, per_run
from benchmarks.functions import measure as measure_functions
from benchmarks.functions import render as render_functions
from benchmarks.tables import duration, table
from staticgrad.compiler.runtime.assembler import Assembler, Cell

INSTRUCTIONS = 1000


def main(options) -> dict:
    """Measure and print."""
    rows = measure(options.seconds)
    print(table(("cost of", "time"), [(name, duration(s)) for name, s in rows.items()]))
    machine.pin(1)
    functions = measure_functions(options.elements, options.seconds, peers.torch())
    print(f"\nelementary functions, float32, {options.elements:,} elements, one thread")
    print(render_functions(functions))
    return {"calls": rows, "functions": functions}


def measure(seconds: float) -> dict[str, float]:
    """Seconds of each."""
    sg.set_num_threads(1)
    small, small_data = small_graph()
    ordinary, ordinary_data = ordinary_graph()
    found = {}
    for name, f, data in (
        ("small", small, small_data),
        ("ordinary", ordinary, ordinary_data),
    ):
        bound = f.bind(**data)
        unbound = partial(f, **data)
        found[f"bound call, {name}"] = per_run(calls(bound), seconds)
        found[f"run in a loop, {name}"] = per_run(bound.repeat, seconds)
        found[f"call, {name}"] = per_run(calls(unbound), seconds)
    found["instruction of the machine"] = instruction(seconds)
    found["kernel in a program"] = kernel(seconds)
    launch = parallel_launch(seconds)
    if launch is not None:
        found["parallel launch, two threads"] = launch
    return found


def small_graph():
    """One kernel over eight numbers."""
    with sg.Graph():
        x = sg.input("x", (8,))
        f = sg.compile(x * 2)
    return f, {"x": np.ones(8, np.float32)}


def ordinary_graph():
    """Four inputs and three outputs of named sizes."""
    with sg.Graph():
        x, y = sg.input("x", ("batch", 8)), sg.input("y", ("batch", 8))
        w, b = sg.input("w", (8,)), sg.input("b", (8,))
        error = x * w + b - y
        loss = sg.mean(error * error)
        dw, db = sg.grad(loss, [w, b])
        f = sg.compile({"loss": loss, "w": dw, "b": db}, inputs=[x, y, w, b])
    rows, row = np.ones((4, 8), np.float32), np.ones(8, np.float32)
    return f, {"x": rows, "y": rows + 1, "w": row, "b": row}


def instruction(seconds: float) -> float:
    """An ADD among many."""
    assembler = Assembler()
    cell = assembler.cell("count")
    for _ in range(INSTRUCTIONS):
        assembler.add(cell, 1)
    program, stop = assembler.finish(), Cell(0)
    return per_run(calls(lambda: program.run(stop)), seconds) / INSTRUCTIONS


def kernel(seconds: float) -> float:
    """A kernel over eight numbers among many: the machine's call and the kernel."""
    f, _ = small_graph()
    frame = f.frame()
    assembler, stop = Assembler(), Cell(0)
    for _ in range(INSTRUCTIONS):
        assembler.run(frame)
    program = assembler.finish()
    return per_run(calls(lambda: program.run(stop)), seconds) / INSTRUCTIONS


def parallel_launch(seconds: float) -> float | None:
    """Return the overhead of two threads over half the time of one, for little work."""
    if len(machine.cores()) < 2:
        return None
    with sg.Graph():
        x = sg.input("x", (1 << 16,))
        f = sg.compile(sg.tanh(x * 2))
    bound = f.bind(x=np.ones(1 << 16, np.float32))
    took = []
    for count in (1, 2):
        sg.set_num_threads(count)
        took.append(per_run(bound.repeat, seconds))
    sg.set_num_threads(1)
    return max(took[1] - took[0] / 2, 0.0)
